package core

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// TestTheSchemeIsMeasured: requests over TLS are told apart.
func TestTheSchemeIsMeasured(t *testing.T) {
	for _, secure := range []bool{false, true} {
		want := map[bool]string{false: "http", true: "https"}[secure]
		set := attribute.NewSet(seriesKey{method: "GET", status: 200, tls: secure}.attributes()...)
		if v, _ := set.Value("url.scheme"); v.AsString() != want {
			t.Errorf("TLS %t: %v; want %s", secure, set, want)
		}
	}
}

// With log.access=errors, answers that callers ask for have no line: a row that is not there is no failure.
func TestAnswersAreNoErrorsInTheAccessLog(t *testing.T) {
	var out bytes.Buffer
	l := accesslog.New(accesslog.Config{Access: accesslog.Errors, Slow: time.Second, Rate: 10}, slog.New(slog.NewTextHandler(&out, nil)))
	s := &Service{Deps: Deps{Access: l}}
	for _, f := range []*Fault{nil, Faultf(CodeKeyNotFound, "x"), Faultf(CodeCondition, "x"), Faultf(codeNoNode, "x")} {
		s.logCall(&Call{Name: CallKVGet, Info: new(sidecarv1.Info)}, f, 0)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = l.Run(ctx)
	if got := out.String(); strings.Count(got, "msg=call") != 1 || !strings.Contains(got, "reason=NO_HEALTHY_NODE") ||
		!strings.Contains(got, "sampled=1") {
		t.Errorf("the log has %s", got)
	}
}
