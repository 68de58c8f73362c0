package facade

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/ydb-sidecar/sidecar/internal/tracing"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// BenchmarkExecute is what this package itself costs for a point read of one row
// of 100 bytes: decoding, typing, encoding, without transport and driver.
func BenchmarkExecute(b *testing.B) {
	answer := facadetest.RowsOf(b, 1)
	db := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return answer, nil
		},
	}
	s, err := New(Default(), core.Deps{Driver: db, Database: "/local"})
	if err != nil {
		b.Fatal(err)
	}
	const sql = "DECLARE $id AS Uint64; SELECT id, v FROM items WHERE id = $id"
	b.Run("http", func(b *testing.B) {
		b.ReportAllocs()
		handler := s.Handler()
		for b.Loop() {
			r := httptest.NewRequest("POST", "http://localhost/v1/query", strings.NewReader(`{"sql":"`+sql+`","params":{"id":42}}`))
			r.Header.Set("Content-Type", core.MediaJSON)
			w := httptest.NewRecorder()
			if handler.ServeHTTP(w, r); w.Code != 200 {
				b.Fatal(w.Body)
			}
			db.Taken()
			db.Calls = nil
		}
	})
	b.Run("grpc", func(b *testing.B) {
		b.ReportAllocs()
		req := &sidecarv1.ExecuteRequest{Sql: sql,
			Params: map[string]*sidecarv1.Value{"id": {Kind: &sidecarv1.Value_Int64Value{Int64Value: 42}}}}
		for b.Loop() {
			if _, err := s.grpc.Execute(b.Context(), req); err != nil {
				b.Fatal(err)
			}
			db.Taken()
			db.Calls = nil
		}
	})
}

// BenchmarkTracing is what tracing adds to a plain call that made one attempt, in turns:
// all that the sidecar itself does between decoding and encoding, and the spans.
func BenchmarkTracing(b *testing.B) {
	answer := facadetest.RowsOf(b, 1)
	db := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return answer, nil
		},
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(tracing.Generator{}), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	with := func(share float64) *tracing.Tracer {
		return tracing.New(provider, func() bool { return true }, tracing.Default(), tracing.Ratio(share))
	}
	names := []string{"off", "0%", "1%", "100%"}
	var services []*Service
	for _, tracer := range []*tracing.Tracer{nil, with(0), with(0.01), with(1)} {
		s, err := New(Default(), core.Deps{Driver: reported{db}, Database: "/local", Tracer: tracer})
		if err != nil {
			b.Fatal(err)
		}
		services = append(services, s)
	}
	req := &sidecarv1.ExecuteRequest{Sql: "DECLARE $id AS Uint64; SELECT id, v FROM items WHERE id = $id",
		Params: map[string]*sidecarv1.Value{"id": {Kind: &sidecarv1.Value_Int64Value{Int64Value: 42}}}}
	const turn = 200 // calls
	times := make([][]float64, len(services))
	for b.Loop() {
		for i, s := range services {
			start := time.Now()
			for range turn {
				if _, err := s.grpc.Execute(b.Context(), req); err != nil {
					b.Fatal(err)
				}
				db.Taken()
				db.Calls = nil
			}
			times[i] = append(times[i], float64(time.Since(start))/turn)
		}
	}
	for i, list := range times {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], "ns/call:"+names[i])
	}
}
