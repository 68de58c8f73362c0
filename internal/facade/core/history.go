package core

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/history"
)

// remember adds a call to the last ten minutes. Streams of rows last for as long
// as their clients like.
func (s *Service) remember(c *Call, f *Fault, took time.Duration) {
	if s.meter == nil || c.Name == CallIngest {
		return
	}
	i, face := c.Info, "grpc"
	if c.Route != nil {
		face = "http"
	}
	h := history.Call{API: face, Name: c.Name, Node: i.NodeId, Attempts: int(i.Attempts), Took: took,
		Queue: fromMS(i.QueueMs), Acquire: fromMS(max(i.AcquireMs-i.QueueMs, 0)), Hop: fromMS(i.HopMs), Server: fromMS(i.ServerMs),
		App: c.App.Name(), Trace: c.leadsTo}
	if f != nil && f.Code != CodeKeyNotFound && f.Code != CodeCondition { // those are answers
		h.Status, h.Caller = f.Code.Name, f.Code.Caller
	}
	s.meter.Add(&h)
}

func fromMS(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
