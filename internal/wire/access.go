package wire

import (
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// logCall writes a line of the access log, if the call gets one. It does not block.
func logCall(log *accesslog.Log, d *hop.Done, end h2.End, id trace.TraceID) {
	failed, took := d.Failed(), d.Took
	if d.Endless() { // a client ends it when it likes
		failed, took = failed && d.Code != codes.Canceled, 0
	}
	sampled := log.Wants(failed, took)
	if sampled == 0 {
		return
	}
	line := accesslog.Call{
		API: "ydb", Method: d.Path("_OTHER"), Status: d.Result(), App: d.App.Name(), Node: uint32(d.Node), Took: d.Took,
		Phases: [4]accesslog.Phase{{Name: "wait_ms", MS: accesslog.Milliseconds(d.Waited)},
			{Name: "first_part_ms", MS: accesslog.Milliseconds(d.First)}},
		Request: d.Request, Answer: d.Answer, Sampled: sampled,
	}
	if d.Status == 0 {
		line.Status = ydbstatus.CodeName(d.Code)
	}
	if id.IsValid() {
		line.TraceID = id.String()
	}
	if failed {
		line.Reason = line.Status
		if end != h2.Answered && end != h2.AnsweredBy {
			line.Reason = end.String()
		}
	}
	log.Write(line)
}
