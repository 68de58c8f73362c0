package latency

import (
	"slices"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

func TestDurations(t *testing.T) {
	d := NewDurations([]time.Duration{time.Microsecond, time.Millisecond, time.Second})
	one, two := attribute.NewSet(attribute.Int("n", 1)), attribute.NewSet(attribute.Int("n", 2))
	a, b, c := d.NewCell(one), d.NewCell(one), d.NewCell(two)
	var writers sync.WaitGroup
	for _, cell := range []*Cell{a, b} {
		writers.Go(func() {
			// A bound belongs to the bucket below it, as in OpenTelemetry.
			for _, took := range []time.Duration{0, time.Microsecond, time.Microsecond + 1, time.Millisecond,
				time.Second, time.Second + 1, time.Hour} {
				cell.Add(took)
			}
		})
	}
	writers.Wait()
	all := d.Read()
	if len(all) != 2 {
		t.Fatalf("%d sets; want 2", len(all))
	}
	sum := 2 * (time.Microsecond + time.Microsecond + 1 + time.Millisecond + time.Second + time.Second + 1 + time.Hour)
	if got := all[0]; got.Set != one || !slices.Equal(got.Counts, []uint64{4, 4, 2, 4}) || got.Sum != sum {
		t.Errorf("%v: %v, %v; want [4 4 2 4], %v", got.Set, got.Counts, got.Sum, sum)
	}
	if got := all[1]; got.Set != two || !slices.Equal(got.Counts, []uint64{0, 0, 0, 0}) || got.Sum != 0 {
		t.Errorf("%v: %v, %v; want nothing", got.Set, got.Counts, got.Sum)
	}
	if n := testing.AllocsPerRun(100, func() { c.Add(time.Millisecond) }); n != 0 {
		t.Errorf("a call of Add allocates %v times", n)
	}
}

func BenchmarkDurations(b *testing.B) {
	d := NewDurations([]time.Duration{10e3, 25e3, 50e3, 100e3, 250e3, 500e3, 1e6, 25e5, 5e6, 1e7, 25e6, 5e7, 1e8, 25e7, 5e8, 1e9})
	c := d.NewCell(attribute.NewSet())
	for i := range b.N {
		c.Add(time.Duration(i & 0xfffff))
	}
}
