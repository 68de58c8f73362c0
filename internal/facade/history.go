package facade

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/history"
)

// remember adds a call to the last ten minutes. Streams of rows last for as long
// as their clients like.
func (s *coreService) remember(c *call, f *fault, took time.Duration) {
	if s.meter == nil || c.name == callIngest {
		return
	}
	i, face := c.info, "grpc"
	if c.route != nil {
		face = "http"
	}
	h := history.Call{Face: face, Name: c.name, Node: i.NodeId, Attempts: int(i.Attempts), Took: took,
		Queue: fromMS(i.QueueMs), Acquire: fromMS(max(i.AcquireMs-i.QueueMs, 0)), Hop: fromMS(i.HopMs), Server: fromMS(i.ServerMs),
		App: c.app.Name(), Trace: c.leadsTo}
	if f != nil && f.code != codeKeyNotFound && f.code != codeCondition { // those are answers
		h.Status = f.code.Name
	}
	s.meter.Add(&h)
}

func fromMS(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
