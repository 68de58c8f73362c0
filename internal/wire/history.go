package wire

import (
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/history"
)

func meterOf(r *history.Recorder) *history.Meter {
	if r == nil {
		return nil
	}
	return r.NewMeter()
}

// remember adds a call to the last ten minutes, if its time means anything, and if
// it is more than an answer of the sidecar's own about a virtual session.
func remember(m *history.Meter, k seriesKey, app *apps.Stripe, id trace.TraceID, took, waited time.Duration) {
	good := k.status == Ydb.StatusIds_SUCCESS || k.status == 0 && k.code == codes.OK
	if m == nil || k.method != nil && k.method.Endless || good && k.node == 0 {
		return
	}
	c := history.Call{Face: "wire", Name: nameOf(k.method), Node: uint32(k.node), Attempts: 1, Took: took, Queue: waited, Hop: took - waited, Trace: id}
	if !good {
		c.Status = statusName(k.status, k.code)
	}
	if app != nil {
		c.App = app.Name()
	}
	m.Add(&c)
}
