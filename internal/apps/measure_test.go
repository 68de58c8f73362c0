package apps

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/latency"
)

// measured is a registry with its histograms, by their names.
func measured(t *testing.T, r *Registry) (*Registry, map[string]*latency.Durations) {
	t.Helper()
	all := map[string]*latency.Durations{}
	r.Measure(func(name, _, _ string, _ ...float64) *latency.Durations {
		all[name] = latency.NewDurations([]time.Duration{time.Millisecond, time.Second})
		return all[name]
	}, classes)
	return r, all
}

// read returns how many there are in each bucket, by attributes.
func read(d *latency.Durations) map[string]string {
	out := map[string]string{}
	for _, c := range d.Read() {
		text := ""
		for i := c.Set.Iter(); i.Next(); {
			a := i.Attribute()
			text += string(a.Key) + "=" + a.Value.String() + " "
		}
		out[text] = fmt.Sprint(c.Counts)
	}
	return out
}

func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s:\ngot  %v\nwant %v", what, got, want)
	}
}

// Waits and calls are counted by app, whatever stripe they came to.
func TestMeasured(t *testing.T) {
	r, all := measured(t, registry(t, Config{Max: 2}))
	web := mustBe(t, r, Caller{Name: "web"}, "web").App
	for n := range len(web.stripes) + 1 {
		s := web.Stripe(n)
		if err := s.Ask(normal); err != nil {
			t.Fatal(err)
		}
		s.Got(normal, time.Duration(n)*time.Second)
		s.Done(normal)
	}
	web.Stripe(0).Ended(GRPC, "", 2*time.Millisecond)
	web.Stripe(1).Ended(GRPC, "", time.Minute)
	web.Stripe(1).Ended(YDB, "OVERLOADED", time.Minute)
	mustBe(t, r, Caller{}, Unnamed).Ended(HTTP, "", 0)
	(*Stripe)(nil).Ended(HTTP, "", 0) // of nobody
	n := len(web.stripes)
	same(t, "waits", read(all["ydb.sidecar.app.wait_time"]), map[string]string{
		"ydb.sidecar.app=web ydb.sidecar.priority=normal ": fmt.Sprintf("[1 1 %d]", n-1),
	})
	same(t, "calls", read(all["ydb.sidecar.app.duration"]), map[string]string{
		"ydb.sidecar.app=web ydb.sidecar.face=grpc ":                      "[0 1 1]",
		"error.type=OVERLOADED ydb.sidecar.app=web ydb.sidecar.face=ydb ": "[0 0 1]",
		"ydb.sidecar.app=default ydb.sidecar.face=http ":                  "[1 0 0]",
	})
}

// An app that fails for ever more reasons has a bounded number of series.
func TestReasonsAreBounded(t *testing.T) {
	r, all := measured(t, registry(t, Config{Max: 1}))
	s := mustBe(t, r, Caller{Name: "web"}, "web")
	for i := range 100 {
		s.Ended(GRPC, fmt.Sprint("CODE", i), 0)
	}
	got := read(all["ydb.sidecar.app.duration"])
	if len(got) != maxReasons+1 ||
		got["error.type=_OTHER ydb.sidecar.app=web ydb.sidecar.face=grpc "] != fmt.Sprintf("[%d 0 0]", 100-maxReasons) {
		t.Errorf("%d series: %v", len(got), got)
	}
}

// What was measured of an app that loses its place counts for the app of all names without one, and nothing is lost.
func TestMeasuredOfAnAppThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, all := measured(t, running(t, Config{Max: 1}))
		old := mustBe(t, r, Caller{Name: "old"}, "old")
		for range 3 {
			old.Got(normal, time.Minute)
			old.Cancel(normal)
			old.Ended(HTTP, "", 0)
			old.Ended(HTTP, "BAD_REQUEST", 0)
		}
		old.class[normal].sessions.Store(0)
		mustBe(t, r, Caller{Name: "late"}, Other).Ended(HTTP, "", 0)
		time.Sleep((forgetAfter + 1) * time.Minute)
		mustBe(t, r, Caller{Name: "new"}, "new").Ended(HTTP, "", 0)
		old.Ended(HTTP, "", 0) // of a call that was on its way out
		same(t, "waits", read(all["ydb.sidecar.app.wait_time"]), map[string]string{
			"ydb.sidecar.app=other ydb.sidecar.priority=normal ": "[0 0 3]",
		})
		same(t, "calls", read(all["ydb.sidecar.app.duration"]), map[string]string{
			"ydb.sidecar.app=other ydb.sidecar.face=http ":                        "[5 0 0]",
			"error.type=BAD_REQUEST ydb.sidecar.app=other ydb.sidecar.face=http ": "[3 0 0]",
			"ydb.sidecar.app=new ydb.sidecar.face=http ":                          "[1 0 0]",
		})
	})
}

func TestMeasuringAllocatesNothing(t *testing.T) {
	r, _ := measured(t, registry(t, Config{Max: 1}))
	s := mustBe(t, r, Caller{Name: "web"}, "web")
	if n := testing.AllocsPerRun(1000, func() {
		s.waited(normal, time.Millisecond)
		s.Ended(GRPC, "", time.Millisecond)
		s.Ended(GRPC, "BAD_REQUEST", time.Millisecond)
	}); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
}

func BenchmarkEnded(b *testing.B) {
	r, err := New(Config{Max: 1}, nil)
	if err != nil {
		b.Fatal(err)
	}
	r.Measure(func(string, string, string, ...float64) *latency.Durations {
		return latency.NewDurations(
			[]time.Duration{10e3, 25e3, 50e3, 100e3, 250e3, 500e3, 1e6, 25e5, 5e6, 1e7, 25e6, 5e7, 1e8, 25e7, 5e8, 1e9},
		)
	}, classes)
	s := r.named("web").Stripe(0)
	for why, name := range map[string]string{"": "well", "BAD_REQUEST": "failed"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s.Ended(GRPC, why, time.Millisecond)
			}
		})
	}
	b.Run("wait", func(b *testing.B) {
		for b.Loop() {
			s.waited(normal, 0)
		}
	})
}
