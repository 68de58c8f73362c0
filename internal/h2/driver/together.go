package driver

import (
	"runtime"
	"sync"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// Job is something to be done in the forwarder's turn.
type Job interface{ Turn(*h2.Forwarder) }

// jobs are those that wait to be done together.
type jobs struct {
	mu    sync.Mutex // guards what follows
	all   []Job
	spare []Job
	busy  bool // somebody does them
}

// roundsEach is how often whoever comes first does jobs of others.
const roundsEach = 4

// Together is Do for jobs of many goroutines. Those that come up at the same moment are done in one turn, so
// what they write to a connection goes out in one write: whoever is first lets the others come, and does what
// there is. It may return before the job is done; a later job of the same goroutine is done after it.
func (s *Shard) Together(j Job) {
	q := &s.jobs
	q.mu.Lock()
	q.all = append(q.all, j)
	first := !q.busy
	q.busy = true
	q.mu.Unlock()
	if !first {
		return
	}
	runtime.Gosched()
	for range roundsEach {
		if !s.doJobs() {
			return
		}
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.wg.Add(1)
	}
	s.mu.Unlock()
	rest := func() {
		for s.doJobs() {
		}
	}
	if closed {
		rest()
		return
	}
	go func() { // the caller has something of its own to do
		defer s.wg.Done()
		rest()
	}()
}

// doJobs does what waits; false: nothing does, and somebody else is to do what comes.
func (s *Shard) doJobs() bool {
	q := &s.jobs
	q.mu.Lock()
	all := q.all
	if len(all) == 0 {
		q.busy = false
		q.mu.Unlock()
		return false
	}
	q.all, q.spare = q.spare, nil
	q.mu.Unlock()
	for at := 0; at < len(all); { // again after a panic
		s.Do(func(f *h2.Forwarder) {
			for at < len(all) {
				j := all[at]
				all[at] = nil
				at++
				j.Turn(f)
			}
			f.CatchUp()
		})
	}
	q.mu.Lock()
	q.spare = all[:0]
	q.mu.Unlock()
	return true
}
