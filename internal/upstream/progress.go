package upstream

import (
	"sync/atomic"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
)

// Progress is how far a request has come, for whoever looks meanwhile. Of requests that run side by side under one
// Progress it shows the step that came last. A nil one notes nothing.
type Progress struct {
	word atomic.Uint64 // the phase in the upper 8 bits, the attempt in 24, the node in the lower 32
}

// set notes a step. Node 0 is the one noted before.
func (p *Progress) set(phase hop.Phase, attempt int, node cluster.NodeID) {
	if p == nil {
		return
	}
	if node == 0 {
		node = cluster.NodeID(uint32(p.word.Load()))
	}
	p.word.Store(uint64(phase)<<56 | uint64(min(attempt, 1<<24-1))<<32 | uint64(node))
}

// Get returns the last step: how far the request is, in which attempt, and at which node it is or was. 0: none.
func (p *Progress) Get() (phase hop.Phase, attempt int, node cluster.NodeID) {
	word := p.word.Load()
	return hop.Phase(word >> 56), int(word >> 32 & (1<<24 - 1)), cluster.NodeID(uint32(word))
}

// at notes a step of the request. A nil one ignores it.
func (t *tries) at(phase hop.Phase, node cluster.NodeID) {
	if t != nil {
		t.progress.set(phase, t.report.Attempts, node)
	}
}
