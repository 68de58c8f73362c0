package latency

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

func TestSeries(t *testing.T) {
	d := NewDurations(nil)
	s := NewSeries(d, 3, func(n int) []attribute.KeyValue { return []attribute.KeyValue{attribute.Int("n", n)} },
		func(n int) int { return -n % 2 })
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

// When the series are full and nodes are replaced, the new ones get the series of the old ones; the sum over all
// stays what was added, and no series that stays goes back.
// Long: one series is followed from step to step, and all is compared after each.
func TestSeriesOfReplacedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDurations([]time.Duration{time.Second})
		const most = 8
		s := NewSeries(d, most, func(n int) []attribute.KeyValue { return []attribute.KeyValue{attribute.Int("n", n)} },
			func(int) int { return 0 })
		added := map[int]uint64{}
		add := func(from, to int) {
			for n := from; n <= to; n++ {
				s.Add(n, time.Millisecond)
				s.Add(n, time.Minute)
				added[n] += 2
			}
		}
		last := map[int64]uint64{}
		read := func() map[int64]uint64 {
			t.Helper()
			got, sum, want, took := map[int64]uint64{}, uint64(0), uint64(0), time.Duration(0)
			for _, c := range d.Read() {
				n, _ := c.Set.Value("n")
				got[n.AsInt64()] = c.Counts[0] + c.Counts[1]
				if c.Counts[0] != c.Counts[1] {
					t.Errorf("%d: %v", n.AsInt64(), c.Counts)
				}
				sum, took = sum+c.Counts[0]+c.Counts[1], took+c.Sum
			}
			for _, n := range added {
				want += n
			}
			if sum != want || took != time.Duration(want/2)*(time.Minute+time.Millisecond) {
				t.Errorf("%d counted, %v; want %d", sum, took, want)
			}
			for n, was := range last {
				if is, stays := got[n]; stays && is < was {
					t.Errorf("%d went back from %d to %d", n, was, is)
				}
			}
			if len(got) > most+1 {
				t.Errorf("%d series", len(got))
			}
			last = got
			return got
		}
		add(1, most)
		add(100, 103) // there is no room
		if got := read(); len(got) != most+1 || got[0] != 8 {
			t.Errorf("%v; want %d series and the rest", got, most)
		}
		for range 4 { // 1 to 4 are replaced by 100 to 103
			time.Sleep(time.Minute)
			add(5, most)
			add(100, 103)
			read()
		}
		got := read()
		for _, n := range []int64{5, 6, 7, most} {
			if got[n] != 10 {
				t.Errorf("%d counted %d; want 10", n, got[n])
			}
		}
		own := 0
		for n := int64(100); n <= 103; n++ {
			if got[n] > 0 {
				own++
			}
			if _, old := got[n-99]; old {
				t.Errorf("%d has a series still", n-99)
			}
		}
		if own < 3 {
			t.Errorf("%d of 4 new ones have series: %v", own, got)
		}
	})
}

// Those who hold a cell while it is folded lose nothing.
func TestFoldLosesNothing(t *testing.T) {
	d := NewDurations(nil)
	rest := d.NewCell(attribute.NewSet())
	const adders, times, cells = 4, 2000, 50
	var all sync.WaitGroup
	for i := range cells {
		c := d.NewCell(attribute.NewSet(attribute.Int("n", i+1)))
		for range adders {
			all.Go(func() {
				for range times {
					c.Add(time.Nanosecond)
				}
			})
		}
		all.Go(func() { d.Fold(map[*Cell]*Cell{c: rest}) })
	}
	before := uint64(0)
	for range 100 {
		sum := uint64(0)
		for _, c := range d.Read() {
			sum += c.Counts[0]
		}
		if sum+adders*cells < before { // an addition that is being moved is nowhere for a moment
			t.Errorf("%d counted after %d", sum, before)
		}
		before = sum
	}
	all.Wait()
	if got := d.Read(); len(got) != 1 || got[0].Counts[0] != adders*times*cells || got[0].Sum != adders*times*cells*time.Nanosecond {
		t.Errorf("%v", got)
	}
}
