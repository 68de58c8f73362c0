package pessimize

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// doubtEdges spells out by hand each edge that leads to another state.
var doubtEdges = map[doubtState]map[doubtEvent]doubtState{
	undoubted:     {suspected: doubted, capped: spared},
	doubted:       {settled: undoubted, capped: sparedDoubted, over: undoubted},
	spared:        {suspected: sparedDoubted, calmed: undoubted, over: undoubted},
	sparedDoubted: {settled: spared, calmed: doubted, over: undoubted},
}

func doubtEdge(from doubtState, e doubtEvent) doubtState {
	if to, moves := doubtEdges[from][e]; moves {
		return to
	}
	return from
}

// TestDoubtEdges takes each edge from each state.
func TestDoubtEdges(t *testing.T) {
	for from := range doubtState(doubtStates) {
		for e := range doubtEvent(doubtEvents) {
			d := doubt{state: from}
			moved := d.step(e)
			if want := doubtEdge(from, e); d.state != want || moved != (want != from) {
				t.Errorf("%v: %v leads to %v, moved %t; want %v", from, e, d.state, moved, want)
			}
			if probes := d.state == doubted || d.state == sparedDoubted; d.doubts() != probes {
				t.Errorf("%v: doubts %t; want %t", d.state, d.doubts(), probes)
			}
		}
	}
}

func doubtMarkdown() string {
	var b strings.Builder
	b.WriteString("| event |")
	for from := range doubtState(doubtStates) {
		fmt.Fprintf(&b, " %v |", from)
	}
	b.WriteString("\n|---" + strings.Repeat("|---", doubtStates) + "|\n")
	for e := range doubtEvent(doubtEvents) {
		fmt.Fprintf(&b, "| %v |", e)
		for from := range doubtState(doubtStates) {
			if to := doubtTable[from][e]; to == from {
				b.WriteString(" · |")
			} else {
				fmt.Fprintf(&b, " → %v |", to)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// doubtSteps holds each step of the doubts of one judge against the edges, while its random walk lasts.
type doubtSteps struct {
	check *walkCheck
	taken *[doubtStates]int     // steps that led to each state from another one, in all walks
	state map[*doubt]doubtState // by the steps
}

func watchDoubts(check *walkCheck, taken *[doubtStates]int) *doubtSteps {
	s := &doubtSteps{check: check, taken: taken, state: map[*doubt]doubtState{}}
	check.mu.Lock()
	defer check.mu.Unlock()
	testHookDoubt = s.stepped
	return s
}

func (s *doubtSteps) stop() {
	s.check.mu.Lock()
	defer s.check.mu.Unlock()
	testHookDoubt = nil
}

// stepped is called by Run, which holds the lock of the judge.
func (s *doubtSteps) stepped(d *doubt, from doubtState, e doubtEvent) {
	if from != s.state[d] {
		s.check.Errorf("seed %d: a doubt is %v at %v; by its steps it is %v", s.check.seed, from, e, s.state[d])
	}
	if want := doubtEdge(from, e); d.state != want {
		s.check.Errorf("seed %d: %v: %v led to %v; want %v", s.check.seed, from, e, d.state, want)
	}
	if e == capped && s.check.mayEject() {
		s.check.Errorf("seed %d: a node is %v, although one more may be ejected", s.check.seed, d.state)
	}
	s.state[d] = d.state
	if d.state != from {
		s.taken[d.state]++
	}
}

// agree reports doubts that came to their state without a step, or outlived the ejection of their node.
func (s *doubtSteps) agree() {
	s.check.mu.Lock()
	defer s.check.mu.Unlock()
	for id, n := range s.check.nodes {
		if n.doubt.state != s.state[&n.doubt] {
			s.check.Errorf("seed %d: the doubt of node %d is %v; by its steps it is %v", s.check.seed, id, n.doubt.state, s.state[&n.doubt])
		}
		if n.condition.Health >= cluster.Ejected && n.doubt.state != undoubted {
			s.check.Errorf("seed %d: node %d is %v and %v", s.check.seed, id, n.condition.Health, n.doubt.state)
		}
	}
}
