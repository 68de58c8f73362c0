package wire

import (
	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/history"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

func meterOf(r *history.Recorder) *history.Meter {
	if r == nil {
		return nil
	}
	return r.NewMeter()
}

// remember adds a call to the last ten minutes, if its time means anything, and if
// it is more than an answer of the sidecar's own about a virtual session. id is the trace in which it can be found, if there is one.
func remember(m *history.Meter, d *hop.Done, id trace.TraceID) {
	failed := d.Failed()
	if m == nil || d.Endless() || !failed && d.Node == 0 {
		return
	}
	c := history.Call{API: "wire", Name: d.Op(), Node: uint32(d.Node), App: d.App.Name(), Attempts: 1, Took: d.Took,
		Queue: d.Waited, Hop: d.Took - d.Waited, Trace: id}
	if failed {
		c.Status, c.Caller = d.Result(), ydbstatus.OfCaller(d.Status, d.Code)
	}
	m.Add(&c)
}
