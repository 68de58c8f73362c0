package latency

import (
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

func TestSeries(t *testing.T) {
	d := NewDurations(nil)
	s := NewSeries(d, 3, func(n int) []attribute.KeyValue { return []attribute.KeyValue{attribute.Int("n", n)} }, func(n int) int { return -n % 2 })
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for n := range 10 {
				s.Add(n, time.Second)
			}
		})
	}
	all.Wait()
	got := map[int64]uint64{}
	for _, c := range d.Read() {
		n, _ := c.Set.Value("n")
		got[n.AsInt64()] += c.Counts[0]
	}
	sum := uint64(0)
	for _, n := range got {
		sum += n
	}
	// Three come first, in whatever order; of the others, half count as 0 and half as -1.
	if sum != 40 || len(got) < 3 || len(got) > 5 || got[0] < 4 || got[-1] == 0 {
		t.Errorf("%v", got)
	}
	if n := testing.AllocsPerRun(100, func() { s.Add(0, time.Second) }); n != 0 {
		t.Errorf("a call of Add allocates %v times", n)
	}
}
