package wire

import (
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// passed is what the access log has of a forwarded call that is over.
type passed struct {
	key                 seriesKey
	app                 *apps.Stripe // nil: nobody's
	trace               trace.TraceID
	end                 h2.End
	took, waited, first time.Duration
	request, answer     int
}

// logCall writes a line of the access log, if the call gets one. It does not block.
func logCall(log *accesslog.Log, p passed) {
	failed, took := p.key.failed(), p.took
	if p.key.method != nil && p.key.method.Endless { // a client ends it when it likes
		failed, took = failed && p.key.code != codes.Canceled, 0
	}
	if !log.Wants(failed, took) {
		return
	}
	line := accesslog.Call{
		Face: "ydb", Method: "_OTHER", Status: statusName(p.key.status, p.key.code), Node: uint32(p.key.node), Took: p.took,
		Phases:  [4]accesslog.Phase{{Name: "wait_ms", MS: accesslog.Milliseconds(p.waited)}, {Name: "first_part_ms", MS: accesslog.Milliseconds(p.first)}},
		Request: p.request, Answer: p.answer,
	}
	if p.key.method != nil {
		line.Method = p.key.method.Path[1:]
	}
	if p.app != nil {
		line.App = p.app.Name()
	}
	if p.trace.IsValid() {
		line.TraceID = p.trace.String()
	}
	if failed {
		line.Reason = line.Status
		if p.end != h2.Answered && p.end != h2.AnsweredBy {
			line.Reason = p.end.String()
		}
	}
	log.Write(line)
}
