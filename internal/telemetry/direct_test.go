package telemetry

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// A reader of differences gets each duration once, beside one that wants the sum.
func TestDirectHistograms(t *testing.T) {
	tel := set(t, nil)
	set := attribute.NewSet(attribute.String("db.operation.name", "ExecuteQuery"))
	times := tel.Histogram("test.duration", "s", "of a test")
	cell, other := times.NewCell(set), times.NewCell(set)
	sum := &producer{direct: &tel.figures.direct}
	difference := &producer{direct: &tel.figures.direct, temporality: metricdata.DeltaTemporality}
	read := func(p *producer) (n uint64, total float64, since time.Time) {
		t.Helper()
		all, err := p.Produce(t.Context())
		if err != nil || len(all) > 1 {
			t.Fatal(all, err)
		}
		if len(all) == 0 {
			return 0, 0, time.Time{}
		}
		h := all[0].Metrics[0].Data.(metricdata.Histogram[float64])
		if want := max(
			p.temporality, metricdata.CumulativeTemporality,
		); h.Temporality != want || len(h.DataPoints) != 1 || h.DataPoints[0].Attributes != set {
			t.Fatalf("%v with %d points; want %v with one", h.Temporality, len(h.DataPoints), want)
		}
		return h.DataPoints[0].Count, h.DataPoints[0].Sum, h.DataPoints[0].StartTime
	}
	if n, _, _ := read(sum); n != 0 {
		t.Errorf("%d before anything was counted", n)
	}
	cell.Add(time.Millisecond)
	other.Add(time.Second)
	began := time.Time{}
	for round, want := range []struct{ sums, differences uint64 }{{2, 2}, {2, 0}, {3, 1}} {
		if round == 2 {
			cell.Add(time.Second)
		}
		n, total, since := read(sum)
		if n != want.sums || total != float64(n-1)+1e-3 {
			t.Errorf("round %d: %d, %v s; want %d", round, n, total, want.sums)
		}
		if round > 0 && !since.Equal(began) {
			t.Errorf("round %d: the sum began at %v, before at %v", round, since, began)
		}
		began = since
		if n, _, since := read(difference); n != want.differences || n > 0 && round > 0 && !since.After(began) {
			t.Errorf("round %d: a difference of %d since %v; want %d", round, n, since, want.differences)
		}
	}
}
