package churn

import (
	"sync"
	"testing"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

func TestLeaksAreWhatLapsAdd(t *testing.T) {
	start := lab.Gauges{Goroutines: 100, Descriptors: 20, Anonymous: 30e6, Heap: 5e6, Sessions: 10}
	warm := lab.Gauges{Goroutines: 110, Descriptors: 22, Anonymous: 60e6, Heap: 6e6, Sessions: 12}
	for name, tc := range map[string]struct {
		laps   []lab.Gauges
		listed int
		want   []string // of the leaks that are found
	}{
		"none":            {[]lab.Gauges{warm, warm}, 12, nil},
		"one lap":         {[]lab.Gauges{{Goroutines: 110, Descriptors: 22, Anonymous: 35e6, Heap: 6e6, Sessions: 12}}, 12, nil},
		"opened sessions": {[]lab.Gauges{warm, {Goroutines: 150, Descriptors: 22, Anonymous: 60e6, Heap: 6e6, Sessions: 30}}, 30, nil},
		"a held session": {[]lab.Gauges{warm, {Goroutines: 110, Descriptors: 22, Anonymous: 60e6, Heap: 6e6, Sessions: 12, Busy: 1}},
			12, []string{"sessions in use when nobody calls"}},
		"an orphan": {[]lab.Gauges{warm, warm}, 13, []string{"sessions on the nodes that the sidecar does not know"}},
		"goroutines": {[]lab.Gauges{warm, {Goroutines: 204, Descriptors: 22, Anonymous: 60e6, Heap: 6e6, Sessions: 12}},
			12, []string{"goroutines, more than after the first lap", "goroutines, more than before the first lap"}},
		"memory each lap": {[]lab.Gauges{warm, {Goroutines: 110, Descriptors: 22, Anonymous: 90e6, Heap: 36e6, Sessions: 12}},
			12,
			[]string{"MB of anonymous memory, more than after the first lap", "MB of live heap, more than after the first lap"}},
		"descriptors, slow": {[]lab.Gauges{{Descriptors: 26}, {Descriptors: 32}}, 0,
			[]string{"descriptors, more than before the first lap"}},
	} {
		var got []string
		for _, one := range leaks(start, tc.laps, tc.listed) {
			if one.value > one.most {
				got = append(got, one.text)
			}
		}
		if len(got) != len(tc.want) {
			t.Errorf("%s: found %q; want %q", name, got, tc.want)
			continue
		}
		for i := range got {
			if got[i] != tc.want[i] {
				t.Errorf("%s: found %q; want %q", name, got, tc.want)
			}
		}
	}
}

func TestEachVisitsAllOnceAndBounded(t *testing.T) {
	var mu sync.Mutex
	now, most, seen := 0, 0, map[int]int{}
	each(3, 20, func(i int) {
		mu.Lock()
		now++
		most = max(most, now)
		seen[i]++
		mu.Unlock()
		mu.Lock()
		now--
		mu.Unlock()
	})
	if len(seen) != 20 || most > 3 {
		t.Errorf("saw %v with %d at a time; want 0 to 19 once each, 3 at a time at most", seen, most)
	}
	for i, n := range seen {
		if n != 1 {
			t.Errorf("%d was visited %d times", i, n)
		}
	}
	each(3, 0, func(int) { t.Error("visited one of none") })
}

func TestWatchKeepsTheGreatest(t *testing.T) {
	most := lab.Figures{}
	atMost(most, lab.Gauges{Goroutines: 5, Busy: 1}.Figures())
	atMost(most, lab.Gauges{Goroutines: 3, Busy: 2}.Figures())
	if most[lab.Goroutines] != 5 || most[lab.Busy] != 2 {
		t.Errorf("got %v; want 5 goroutines and 2 sessions in use", most)
	}
	if p := prefixed("peak-", most); p["peak-"+lab.Busy] != 2 || len(p) != len(most) {
		t.Errorf("got %v", p)
	}
}
