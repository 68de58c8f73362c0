package wire

import (
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/routing"
)

type nobody struct{}

func (nobody) Report(cluster.Outcome) {}

// What it costs to place a call and to tell everybody what came of it, beside the
// engine's own work. Health is not in it: see BenchmarkReport of internal/pessimize.
func BenchmarkPlaceAndTell(b *testing.B) {
	router := routing.New(routing.Default())
	router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: "a:1"}, {ID: 2, Address: "b:2"}, {ID: 3, Address: "c:3"}}, ""))
	t, err := newInstruments(noop.NewTracerProvider(), sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())), false)
	if err != nil {
		b.Fatal(err)
	}
	f := &frames{server: &Server{deps: Deps{Router: router, Judge: nobody{}}, instruments: t}, series: series{}}
	k := &call{method: methods["/Ydb.Query.V1.QueryService/ExecuteQuery"]}
	o := &h2.Outcome{Began: time.Second, Forwarded: time.Second, FirstByte: time.Second + time.Millisecond, Ended: time.Second + time.Millisecond, Node: new(h2.Conn)}
	b.ReportAllocs()
	for b.Loop() {
		if k.node, err = place(router, 2, false); err != nil {
			b.Fatal(err)
		}
		f.tell(k, o)
	}
}
