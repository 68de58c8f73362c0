package grpcapi

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// TestBothPausesAgree: RetryInfo and the message Error advise the same pause, however exact the pool's own figure is.
func TestBothPausesAgree(t *testing.T) {
	for retry, want := range map[time.Duration]time.Duration{
		0: time.Millisecond, 300 * time.Microsecond: time.Millisecond, 1499 * time.Microsecond: time.Millisecond,
		1704080 * time.Microsecond: 1704 * time.Millisecond, 2 * time.Second: 2 * time.Second,
	} {
		fault := core.FaultOf(&pool.ShedError{Why: pool.ShedDelay, Retry: retry}, core.Deed{})
		var advised, told time.Duration
		for _, d := range status.Convert(StatusOf(fault, "")).Details() {
			switch d := d.(type) {
			case *errdetails.RetryInfo:
				advised = d.GetRetryDelay().AsDuration()
			case *sidecarv1.Error:
				told = time.Duration(d.GetRetryAfterMs()) * time.Millisecond
			}
		}
		if advised != want || told != want {
			t.Errorf("%v: RetryInfo %v, retry_after_ms %v; want %v", retry, advised, told, want)
		}
	}
}
