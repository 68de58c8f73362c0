package accesslog

import (
	"math/rand/v2"
	"sync/atomic"
)

// sampler picks the calls of one kind that get a line: all while they are few, else one in N by chance, so that the lines of a second
// are of all of it and not of its beginning. N follows the calls of the second before, and grows within a second that has far more.
type sampler struct {
	second atomic.Uint64 // number of the second <<32 | calls of it so far
	every  atomic.Uint32 // N as the second before has it
	next   atomic.Int64  // when the next line is due, in nanoseconds since the start: see admit
}

// headroom is the part of the lines of a second that sampling leaves free, one in four: chance would fill them now and then.
const headroom = 4

// pick returns for how many calls the line of this one stands; 0: it gets none. most is how many lines a second may have, now the
// nanoseconds since the start.
func (s *sampler) pick(most int, now int64) (every int) {
	n := s.count(most, uint64(now)/1e9)
	every = max(1, int(s.every.Load()))
	for m := int(n) / (4 * most); m > every; { // 4 times what this N is for
		every *= 4
	}
	if every > 1 && rand.IntN(every) != 0 || !s.admit(int64(1e9)/int64(most), now) {
		return 0
	}
	return every
}

// count counts a call and returns how many there were in this second.
func (s *sampler) count(most int, second uint64) uint32 {
	for {
		old := s.second.Load()
		if old>>32 >= second&(1<<32-1) { // of the same, or another goroutine is ahead
			return uint32(s.second.Add(1))
		}
		if s.second.CompareAndSwap(old, second<<32|1) {
			every := 1
			if old>>32+1 == second { // else there was none in the second before
				fit := max(1, most-most/headroom)
				every = (int(uint32(old)) + fit - 1) / fit
			}
			s.every.Store(uint32(max(1, every)))
			return 1
		}
	}
}

// admit takes a place among the lines of this second, by a clock that each line
// moves on: it may run ahead of time by a second.
func (s *sampler) admit(gap, now int64) bool {
	for {
		next := s.next.Load()
		due := max(next, now) + gap
		if due-now > burst*int64(1e9) && next > now {
			return false
		}
		if s.next.CompareAndSwap(next, due) {
			return true
		}
	}
}
