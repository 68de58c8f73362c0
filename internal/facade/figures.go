package facade

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// CallsState is what admin shows of the calls of the plain API that have ended:
// counts and sums since the start.
type CallsState struct {
	Calls     uint64            `json:"calls"`
	Failed    map[string]uint64 `json:"failed"` // by code
	TotalMS   float64           `json:"total_ms"`
	QueueMS   float64           `json:"queue_ms"`   // waiting in line for a session
	AcquireMS float64           `json:"acquire_ms"` // getting one, the line included
	HopMS     float64           `json:"hop_ms"`     // calls to nodes, the server's time included
	ServerMS  float64           `json:"server_ms"`  // by the nodes' own clocks, of calls with stats
}

// otherCode counts codes that the table of this version does not have.
const otherCode = "OTHER"

// figures count calls. Recording takes no lock and does not allocate.
type figures struct {
	calls                              atomic.Uint64
	total, queue, acquire, hop, server atomic.Uint64             // microseconds
	failed                             map[string]*atomic.Uint64 // by code; fixed
}

func newFigures() *figures {
	f := &figures{failed: map[string]*atomic.Uint64{otherCode: {}}}
	for _, c := range slices.Concat(ownCodes, slices.Collect(maps.Values(ydbCodes))) {
		f.failed[c.name] = new(atomic.Uint64)
	}
	return f
}

func (f *figures) add(code *code, i *sidecarv1.Info, took time.Duration) {
	f.calls.Add(1)
	if code != nil {
		n := f.failed[code.name]
		if n == nil {
			n = f.failed[otherCode]
		}
		n.Add(1)
	}
	f.total.Add(uint64(took.Microseconds()))
	for _, part := range [...]struct {
		to *atomic.Uint64
		ms float64
	}{{&f.queue, i.GetQueueMs()}, {&f.acquire, i.GetAcquireMs()}, {&f.hop, i.GetHopMs()}, {&f.server, i.GetServerMs()}} {
		if part.ms > 0 {
			part.to.Add(uint64(part.ms * 1000))
		}
	}
}

// Calls returns the counts of this moment.
func (s *Service) Calls() CallsState {
	f := s.figures
	ms := func(us *atomic.Uint64) float64 { return float64(us.Load()) / 1000 }
	out := CallsState{
		Calls: f.calls.Load(), Failed: map[string]uint64{}, TotalMS: ms(&f.total),
		QueueMS: ms(&f.queue), AcquireMS: ms(&f.acquire), HopMS: ms(&f.hop), ServerMS: ms(&f.server),
	}
	for code, n := range f.failed {
		if n := n.Load(); n > 0 {
			out.Failed[code] = n
		}
	}
	return out
}
