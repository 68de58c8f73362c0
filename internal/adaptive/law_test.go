package adaptive

import (
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// world is one law and a cluster that answers as the test says.
type world struct {
	law     *Law
	now     time.Duration
	latency func(limit int) time.Duration
	refuse  func(limit int) int // calls refused in a step
	demand  int                 // sessions that callers want
	calls   int                 // in a step, at most
}

func newWorld(c Config) *world {
	return &world{law: New(c), demand: 1 << 20, calls: 100,
		latency: func(int) time.Duration { return 10 * time.Millisecond },
		refuse:  func(int) int { return 0 },
	}
}

// run lets time pass; the clock is right.
func (w *world) run(d time.Duration) {
	for end := w.now + d; w.now < end; {
		var s Sample
		from, to := w.law.Quiet()
		limit := w.law.Limit()
		inUse := min(limit, w.demand)
		for range min(w.calls, 10*w.calls*inUse/100) {
			s.Served(w.latency(inUse), w.now >= from && w.now < to)
		}
		s.Refused = uint64(w.refuse(inUse))
		next := w.law.Step(w.now, w.now+time.Hour, s, Use{Peak: inUse, Limited: w.demand >= limit})
		if next <= w.now || next > w.now+w.law.config.Window {
			panic("a step that does not follow, or follows late")
		}
		w.now = next
	}
}

func TestLaw(t *testing.T) {
	within := func(t *testing.T, got, least, most float64, what string) {
		t.Helper()
		if got < least || got > most {
			t.Errorf("%s: %.2f; want %v to %v", what, got, least, most)
		}
	}
	// Beyond so many sessions latency grows in proportion.
	full := func(at int) func(int) time.Duration {
		return func(n int) time.Duration {
			return 10 * time.Millisecond * time.Duration(max(n, at)) / time.Duration(at)
		}
	}
	tests := map[string]func(t *testing.T, w *world){
		"grows_to_the_maximum_where_nothing_is_in_the_way": func(t *testing.T, w *world) {
			w.run(time.Minute)
			within(t, w.law.State().Limit, 50, 50, "limit")
		},
		"rests_where_latency_rises": func(t *testing.T, w *world) {
			w.latency = full(10)
			w.run(2 * time.Minute)
			within(t, w.law.State().Limit, 12, 17, "limit")
			within(t, w.law.State().Base.Seconds(), 0.009, 0.011, "base")
		},
		"halves_at_most_when_all_is_refused": func(t *testing.T, w *world) {
			w.run(time.Minute)
			w.refuse = func(n int) int { return 1000 * n }
			was := w.law.State().Limit
			for changes := w.law.State().Changes[Refused]; w.law.State().Changes[Refused] == changes; {
				w.run(100 * time.Millisecond)
			}
			within(t, w.law.State().Limit, was/2, was/2+gain, "limit")
			w.run(time.Minute)
			within(t, w.law.State().Limit, 2, 2, "limit after a minute of refusals")
		},
		"refusals_that_grow_with_it_hold_it": func(t *testing.T, w *world) {
			w.refuse = func(n int) int { return n / 5 }
			w.run(2 * time.Minute)
			within(t, w.law.State().Limit, 18, 28, "limit")
		},
		"rests_where_the_refused_part_and_growth_balance": func(t *testing.T, w *world) {
			part := func(percent int) func(int) int {
				return func(n int) int { return min(100, 10*n) * percent / 100 }
			}
			w.refuse = part(5)
			w.run(2 * time.Minute)
			within(t, w.law.State().Limit, 18, 25, "limit at 5 of 105")
			w.refuse = part(20)
			w.run(2 * time.Minute)
			within(t, w.law.State().Limit, 5, 7, "limit at 20 of 120")
			w.refuse = part(1)
			w.run(2 * time.Minute)
			within(t, w.law.State().Limit, 50, 50, "limit at 1 of 101")
		},
		"few_refusals_among_many_calls_do_not_count": func(t *testing.T, w *world) {
			w.run(time.Minute)
			steps := 0
			w.refuse = func(int) int { steps++; return steps & 1 } // 2 in a second
			w.calls = 2500
			w.run(time.Minute)
			within(t, w.law.State().Limit, 50, 50, "limit")
			if n := w.law.State().Changes[Refused]; n > 0 {
				t.Errorf("%d changes because of refusals; want none", n)
			}
		},
		"halves_at_most_when_little_is_in_use": func(t *testing.T, w *world) {
			w.run(time.Minute)
			w.demand = 3
			w.refuse = func(int) int { return 1 }
			for was := w.law.State().Limit; was > 4; was = w.law.State().Limit {
				w.run(time.Millisecond)
				if is := w.law.State().Limit; is < was/2 {
					t.Fatalf("limit %.1f, then %.1f; want half at least", was, is)
				}
			}
		},
		"does_not_grow_unused": func(t *testing.T, w *world) {
			w.demand = 4
			w.run(5 * time.Minute)
			within(t, w.law.State().Limit, 5, 10, "limit")
		},
		"falls_when_it_is_no_longer_used": func(t *testing.T, w *world) {
			w.run(time.Minute)
			w.demand = 3
			w.run(5 * time.Minute)
			within(t, w.law.State().Limit, 3, 12, "limit")
			if w.law.State().Changes[Unused] == 0 {
				t.Error("no change counted as unused")
			}
		},
		"keeps_what_it_learned_within_other_bounds": func(t *testing.T, w *world) {
			w.run(time.Minute)
			base := w.law.State().Base
			reconfigure := func(floor, most int, want float64) {
				t.Helper()
				w.law.Reconfigure(Default(floor, most))
				within(t, w.law.State().Limit, want, want, "limit")
				if got := w.law.Limit(); got != int(want) {
					t.Errorf("limit %d; want %v", got, want)
				}
			}
			w.demand = 0
			for w.law.hushed {
				w.run(time.Millisecond)
			}
			reconfigure(2, 80, 50)
			reconfigure(2, 30, 30)
			reconfigure(35, 60, 35)
			if got := w.law.State().Base; got != base || got == 0 {
				t.Errorf("base %v; want %v as before", got, base)
			}
			w.demand = 1 << 20
			w.run(time.Minute)
			within(t, w.law.State().Limit, 60, 60, "limit after a minute")
		},
		"goes_no_lower_than_the_floor": func(t *testing.T, w *world) {
			w.run(20 * time.Second)
			w.latency = func(int) time.Duration { return time.Second }
			w.run(10 * time.Second)
			within(t, w.law.State().Limit, 2, 2, "limit")
		},
		"takes_a_slower_workload_for_what_it_is_within_two_minutes": func(t *testing.T, w *world) {
			w.run(time.Minute)
			w.latency = func(int) time.Duration { return 40 * time.Millisecond }
			w.run(2 * time.Minute)
			within(t, w.law.State().Limit, 45, 50, "limit")
		},
		"does_nothing_without_calls": func(t *testing.T, w *world) {
			w.run(20 * time.Second)
			w.demand = 0
			w.run(time.Second)
			was := w.law.State().Base
			w.run(time.Minute)
			if got := w.law.State().Base; got != was {
				t.Errorf("base %v after a minute without calls; was %v", got, was)
			}
		},
		"holds_back_at_marks_only": func(t *testing.T, w *world) {
			w.latency = full(10)
			w.run(2 * time.Minute)
			low, steps := 0, 0
			for end := w.now + w.law.config.Period; w.now < end; steps++ {
				w.run(time.Millisecond)
				if w.law.Limit() < 10 {
					low++
				}
			}
			if low == 0 || low > steps/4 {
				t.Errorf("held back in %d of %d steps", low, steps)
			}
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := Default(2, 50)
			if err := c.Validate(); err != nil {
				t.Fatal(err)
			}
			test(t, newWorld(c))
		})
	}
}

// Of two that meet the same answers the higher one comes down to the other.
func TestLawIsFair(t *testing.T) {
	a, b := newWorld(Default(2, 50)), newWorld(Default(2, 50))
	shared := func(int) time.Duration {
		n := a.law.Limit() + b.law.Limit()
		return 10 * time.Millisecond * time.Duration(max(n, 20)) / 20
	}
	a.latency, b.latency = shared, shared
	a.run(20 * time.Second)
	b.run(20 * time.Second)
	a.law.limit, b.law.limit = 40, 2
	a.law.rising, b.law.rising = false, false
	for range 1200 {
		a.run(50 * time.Millisecond)
		b.run(50 * time.Millisecond)
	}
	x, y := a.law.State().Limit, b.law.State().Limit
	if min(x, y) < 0.9*max(x, y) {
		t.Errorf("limits %.1f and %.1f after a minute; want them equal", x, y)
	}
}

// The limit in whole sessions comes to what it is in parts.
func TestWholeSessionsAddUp(t *testing.T) {
	w := newWorld(Default(1, 50))
	w.latency = func(n int) time.Duration { return 10 * time.Millisecond * time.Duration(max(n, 3)) / 3 }
	w.run(2 * time.Minute)
	sum, whole, n := 0.0, 0.0, 0.0
	for range 2000 {
		w.run(50 * time.Millisecond)
		if !w.law.hushed {
			sum, whole, n = sum+w.law.limit, whole+float64(w.law.Limit()), n+1
		}
	}
	if d := (whole - sum) / n; d < -0.3 || d > 0.3 {
		t.Errorf("%.2f sessions on average; the limit is %.2f", whole/n, sum/n)
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"floor":  Default(0, 10),
		"max":    Default(11, 10),
		"window": {Floor: 1, Max: 2, Window: time.Millisecond, Period: time.Minute},
		"period": {Floor: 1, Max: 2, Window: time.Second, Period: 9 * time.Second},
	} {
		if c.Validate() == nil {
			t.Errorf("%s: no fault in %+v", name, c)
		}
	}
}

func TestMeter(t *testing.T) {
	ok := cluster.Outcome{Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: time.Millisecond, Detail: "SUCCESS"}
	with := func(change func(*cluster.Outcome)) cluster.Outcome {
		o := ok
		change(&o)
		return o
	}
	tests := map[string]struct {
		outcome cluster.Outcome
		want    Sample
	}{
		"success": {ok, Sample{Calls: 1, Logs: logOf(time.Millisecond)}},
		"commit":  {with(func(o *cluster.Outcome) { o.Kind = cluster.CallCommit }), Sample{Calls: 1, Logs: logOf(time.Millisecond)}},
		"begin":   {with(func(o *cluster.Outcome) { o.Kind = cluster.CallControl }), Sample{}},
		"open":    {with(func(o *cluster.Outcome) { o.Kind = cluster.CallOpen }), Sample{}},
		"overloaded": {with(func(o *cluster.Outcome) {
			o.Blame, o.Detail, o.Congestion = cluster.BlameNone, "OVERLOADED", cluster.CongestedUnknown
		}), Sample{Refused: 1}},
		"compile_queue": {with(func(o *cluster.Outcome) {
			o.Blame, o.Detail, o.Congestion = cluster.BlameRefusal, "OVERLOADED", cluster.CongestedNode
		}), Sample{Refused: 1}},
		"hot_table": {with(func(o *cluster.Outcome) {
			o.Blame, o.Detail, o.Congestion = cluster.BlameNone, "OVERLOADED", cluster.CongestedTable
		}), Sample{}},
		"disk_full": {with(func(o *cluster.Outcome) {
			o.Blame, o.Detail, o.Congestion = cluster.BlameNone, "OVERLOADED", cluster.CongestedDisk
		}), Sample{}},
		"quota": {with(func(o *cluster.Outcome) {
			o.Blame, o.Detail, o.Congestion = cluster.BlameNone, "OVERLOADED", cluster.CongestedQuota
		}), Sample{}},
		"resource_pool": {with(func(o *cluster.Outcome) {
			o.Blame, o.Detail, o.Congestion = cluster.BlameNone, "OVERLOADED", cluster.CongestedPool
		}), Sample{}},
		"exhausted": {with(func(o *cluster.Outcome) {
			o.Blame, o.Detail, o.Congestion = cluster.BlameRefusal, "RESOURCE_EXHAUSTED", cluster.CongestedNode
		}), Sample{Refused: 1}},
		"unavailable": {with(func(o *cluster.Outcome) {
			o.Blame, o.Detail, o.Congestion = cluster.BlameNone, "UNAVAILABLE", cluster.CongestedUnknown
		}), Sample{}},
		"bad_statement": {with(func(o *cluster.Outcome) { o.Blame = cluster.BlameNone }), Sample{}},
		"gave_up_early": {with(func(o *cluster.Outcome) { o.Blame, o.Latency, o.Waited = cluster.BlameNone, 0, 2*time.Millisecond }),
			Sample{}},
		"gave_up_late": {with(func(o *cluster.Outcome) { o.Blame, o.Latency, o.Waited = cluster.BlameNone, 0, 2*time.Second }),
			Sample{Calls: 1, Logs: logOf(2 * time.Second)}},
		"broken_network": {with(func(o *cluster.Outcome) { o.Blame, o.Latency = cluster.BlameTransport, 0 }), Sample{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := NewMeter()
			m.mean.Store(logOf(10 * time.Millisecond))
			m.Report(test.outcome)
			if got := m.Take(); got != test.want {
				t.Errorf("%+v; want %+v", got, test.want)
			}
			if got := m.Take(); got != (Sample{}) {
				t.Errorf("taken twice: %+v", got)
			}
		})
	}
	m := NewMeter()
	m.span[0].Store(-int64(time.Hour))
	m.span[1].Store(int64(time.Hour))
	m.Report(ok)
	if got := m.Take(); got.QuietCalls != 1 || got.QuietLogs != got.Logs {
		t.Errorf("%+v; want a quiet call", got)
	}
	if n := testing.AllocsPerRun(100, func() { m.Report(ok) }); n != 0 {
		t.Errorf("Report: %v allocations; want 0", n)
	}
}

func BenchmarkReport(b *testing.B) {
	m := NewMeter()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		o := cluster.Outcome{Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: time.Millisecond, Detail: "SUCCESS"}
		for pb.Next() {
			o.Latency++
			m.Report(o)
		}
	})
}
