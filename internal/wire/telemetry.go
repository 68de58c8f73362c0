package wire

import (
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

// instruments are the histograms of all shards, each of which counts in cells of its own.
type instruments struct {
	duration, wait *latency.Durations
	statements     *statements.Recorder // nil: none
}

func newInstruments(m latency.Maker, r *statements.Recorder) *instruments {
	return &instruments{
		m.Make("ydb.sidecar.forward.duration", "s", "Time of a forwarded call, from its coming to its last part."),
		m.Make("ydb.sidecar.forward.wait", "s", "Time in the sidecar of forwarded calls that had to wait, until they went to a node."),
		r,
	}
}

// series are the cells of a shard.
type series struct {
	duration, wait hop.Series
	statements     *statements.Stripe // nil: none
}

func (h *instruments) series() series {
	return series{hop.NewSeries(h.duration), hop.NewSeries(h.wait), h.statements.NewStripe()}
}

func (s *series) add(k *call, o *h2.Outcome, d *hop.Done) {
	s.count(k, o, d)
	s.duration.Add(d.Key, d.Took)
	if !d.Endless() {
		why := ""
		if d.Failed() {
			why = d.Result()
		}
		d.App.Ended(apps.YDB, why, d.Took)
	}
	if d.Waited > 0 { // most go on with the bytes that brought them
		s.wait.Add(d.Key, d.Waited)
	}
}

const traceparent = tracing.Header
