package pessimize

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

func TestRanks(t *testing.T) {
	for n := range latencyLeast {
		if low, _ := ranks(n); low != 0 {
			t.Errorf("%d samples bound a median", n)
		}
	}
	for n, want := range map[int][2]int{latencyLeast: {1, 13}, 20: {3, 18}, 100: {35, 66}, 10_000: {4850, 5151}} {
		if low, high := ranks(n); low != want[0] || high != want[1] {
			t.Errorf("%d samples: ranks %d and %d; want %v", n, low, high, want)
		}
	}
}

func TestNorm(t *testing.T) {
	c := Default()
	voices := func(zone string, all ...int) (v []voice) {
		for _, n := range all {
			v = append(v, voice{zone, time.Duration(n) * time.Millisecond, time.Duration(n) * time.Millisecond})
		}
		return v
	}
	for _, test := range []struct {
		name   string
		others []voice
		want   time.Duration // limit
	}{
		{"alone", nil, 0},
		{"one_other_is_no_norm", voices("a", 1), 0},
		{"two_others_take_ten_times_the_slower", voices("a", 1, 4), 40 * time.Millisecond},
		{"three_others_take_the_factor", voices("a", 1, 4, 100), 20 * time.Millisecond},
		{"the_floor", voices("a", 1, 1, 1, 1), 10 * time.Millisecond},
		{"its_own_zone_is_as_far", append(voices("a", 1, 1, 1, 1, 1), voices("z", 30)...), 150 * time.Millisecond},
		{"its_own_zone_is_faster", append(voices("a", 30, 30, 30), voices("z", 1)...), 150 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := c.normOf("z", test.others, len(test.others)).limit; got != test.want {
				t.Errorf("limit %v; want %v", got, test.want)
			}
		})
	}
}

// traffic is what calls to one node do.
type traffic struct {
	rate  float64 // calls a second
	kind  cluster.CallKind
	takes func(r *rand.Rand, at time.Duration) time.Duration // by the time since the begin
	gives time.Duration                                      // how long callers wait; 0: without end
	waits bool                                               // the server waits inside
}

func statements(rate float64, takes func(*rand.Rand, time.Duration) time.Duration) traffic {
	return traffic{rate: rate, kind: cluster.CallExecute, takes: takes}
}

// around is a latency that is d in the middle, with a tail.
func around(d time.Duration) func(*rand.Rand, time.Duration) time.Duration {
	return func(r *rand.Rand, _ time.Duration) time.Duration {
		return time.Duration(float64(d) * math.Exp(r.NormFloat64()*0.5))
	}
}

// from is one latency before a time and another from it.
func from(when time.Duration, before, after time.Duration) func(*rand.Rand, time.Duration) time.Duration {
	return func(r *rand.Rand, at time.Duration) time.Duration {
		if at < when {
			return around(before)(r, at)
		}
		return around(after)(r, at)
	}
}

// mixed is heavy for a share of the calls.
func mixed(light, heavy time.Duration, share float64) func(*rand.Rand, time.Duration) time.Duration {
	return func(r *rand.Rand, at time.Duration) time.Duration {
		if r.Float64() < share {
			return around(heavy)(r, at)
		}
		return around(light)(r, at)
	}
}

// call is the end of one.
type call struct {
	at time.Duration
	o  cluster.Outcome
}

// calls makes the outcomes of all calls that begin within a time, in the order
// in which they end.
func calls(r *rand.Rand, d time.Duration, all map[cluster.NodeID][]traffic) (out []call) {
	for _, id := range slices.Sorted(maps.Keys(all)) {
		for _, t := range all[id] {
			for at := 0.0; ; {
				at += r.ExpFloat64() / t.rate
				begin := time.Duration(at * float64(time.Second))
				if begin >= d {
					break
				}
				takes := t.takes(r, begin)
				if takes == noCall {
					continue
				}
				c := call{begin + takes,
					cluster.Outcome{Node: id, Kind: t.kind, Blame: cluster.BlameSuccess, Latency: takes, Waits: t.waits, Detail: "SUCCESS"}}
				if t.gives > 0 && takes > t.gives {
					c.at, c.o.Blame, c.o.Latency, c.o.Waited = begin+t.gives, cluster.BlameNone, 0, t.gives
				}
				out = append(out, c)
			}
		}
	}
	slices.SortFunc(out, func(a, b call) int { return cmp.Compare(a.at, b.at) })
	return out
}

// drive has the calls end, in the bubble's time. Ejected nodes get none.
func (w *world) drive(seed uint64, d time.Duration, all map[cluster.NodeID][]traffic) {
	r := rand.New(rand.NewPCG(seed, 1))
	began := time.Now()
	for _, c := range calls(r, d, all) {
		if wait := c.at - time.Since(began); wait > 0 {
			time.Sleep(wait)
		}
		if v := (*w.last.Load())[c.o.Node]; v.Health <= cluster.Suspect {
			w.Report(c.o)
		}
	}
	time.Sleep(d - time.Since(began))
	w.settle()
}

// ejectedAt returns when nodes were first ejected, since a time.
func (w *world) ejectedAt(since time.Time) map[cluster.NodeID]time.Duration {
	out := map[cluster.NodeID]time.Duration{}
	for _, e := range w.Events(0) {
		if _, was := out[e.Node]; e.Kind == EventState && e.To == "ejected" && !was {
			out[e.Node] = e.Time.Sub(since)
		}
	}
	return out
}

func sum(all []uint64) (total uint64) {
	for _, n := range all {
		total += n
	}
	return total
}

func upTo(n int) (ids []cluster.NodeID) {
	for id := range n {
		ids = append(ids, cluster.NodeID(id+1))
	}
	return ids
}

// everywhere has the same traffic on n nodes.
func everywhere(n int, t ...traffic) map[cluster.NodeID][]traffic {
	all := make(map[cluster.NodeID][]traffic)
	for _, id := range upTo(n) {
		all[id] = t
	}
	return all
}

func TestOneSlowNode(t *testing.T) {
	const turns = 5 * time.Second
	slowly := from(turns, time.Millisecond, 50*time.Millisecond)
	for _, test := range []struct {
		name   string
		sizes  []int
		normal traffic
		slow   traffic
		probe  time.Duration // what probes of the slow node take; of the others a twentieth
		within time.Duration // 0: never
	}{
		{"of_two_is_never_ejected", []int{2},
			statements(100, around(time.Millisecond)), statements(100, slowly), 50 * time.Millisecond, 0},
		{"under_load", []int{3, 4, 9},
			statements(100, around(time.Millisecond)), statements(100, slowly), 50 * time.Millisecond, 3 * time.Second},
		{"whose_probes_are_fast", []int{3, 4, 9},
			statements(100, around(time.Millisecond)), statements(100, slowly), 0, 3 * time.Second},
		{"shunned_by_the_load_rule", []int{3, 9},
			statements(200, around(time.Millisecond)), statements(5, slowly), 50 * time.Millisecond, 3 * time.Second},
		{"that_gets_no_more_calls_once_it_is_known", []int{3, 9},
			statements(30, around(time.Millisecond)), statements(30, func(r *rand.Rand, at time.Duration) time.Duration {
				if at > turns+100*time.Millisecond {
					return noCall
				}
				return from(turns, time.Millisecond, 50*time.Millisecond)(r, at)
			}), 50 * time.Millisecond, time.Second},
		{"that_takes_150_ms_and_gets_no_more_calls", []int{3, 9},
			statements(30, around(3*time.Millisecond)), statements(30, func(r *rand.Rand, at time.Duration) time.Duration {
				if at > turns+150*time.Millisecond {
					return noCall
				}
				return from(turns, 3*time.Millisecond, 150*time.Millisecond)(r, at)
			}), 150 * time.Millisecond, 1500 * time.Millisecond},
		{"where_all_have_few_calls", []int{3, 4, 9},
			// three calls take a second on average, not always
			statements(4, around(time.Millisecond)), statements(4, slowly), 50 * time.Millisecond, 4 * time.Second},
		{"that_answers_after_a_second_and_a_half", []int{3, 9},
			statements(100, around(time.Millisecond)),
			statements(40, from(turns, time.Millisecond, 1500*time.Millisecond)), 1500 * time.Millisecond,
			3 * time.Second},
		{"whose_callers_all_give_up", []int{3, 4},
			statements(100, around(time.Millisecond)),
			traffic{rate: 100, takes: from(turns, time.Millisecond, time.Minute), kind: cluster.CallExecute, gives: 300 * time.Millisecond},
			0, 3 * time.Second},
		{"whose_callers_give_up_at_once", []int{3},
			statements(100, around(time.Millisecond)),
			traffic{rate: 100, takes: from(turns, time.Millisecond, time.Minute), kind: cluster.CallExecute, gives: 5 * time.Millisecond},
			0, 0},
		{"by_commits", []int{4},
			traffic{rate: 100, takes: around(time.Millisecond), kind: cluster.CallCommit},
			traffic{rate: 100, takes: slowly, kind: cluster.CallCommit}, 0, 3 * time.Second},
		{"by_openings_is_not_ejected", []int{4},
			traffic{rate: 100, takes: around(time.Millisecond), kind: cluster.CallOpen},
			traffic{rate: 100, takes: slowly, kind: cluster.CallOpen}, 0, 0},
		{"by_calls_that_wait_for_a_shard_is_not_ejected", []int{4},
			traffic{rate: 100, takes: around(time.Millisecond), kind: cluster.CallExecute, waits: true},
			traffic{rate: 100, takes: slowly, kind: cluster.CallExecute, waits: true}, 0, 0},
		{"by_such_calls_whose_callers_give_up_is_not_ejected", []int{4},
			traffic{rate: 100, takes: around(time.Millisecond), kind: cluster.CallExecute, waits: true},
			traffic{rate: 100, takes: from(turns, time.Millisecond, time.Minute), kind: cluster.CallExecute,
				gives: 300 * time.Millisecond, waits: true},
			0, 0},
		{"below_the_floor", []int{4},
			statements(100, around(100*time.Microsecond)),
			statements(100, from(turns, 100*time.Microsecond, 5*time.Millisecond)), 5 * time.Millisecond, 0},
		{"of_three_seven_times_as_slow", []int{3},
			statements(100, around(5*time.Millisecond)), statements(100, from(turns, 5*time.Millisecond, 35*time.Millisecond)), 0, 0},
		{"of_four_nine_times_as_slow", []int{4},
			statements(100, around(5*time.Millisecond)),
			statements(100, from(turns, 5*time.Millisecond, 45*time.Millisecond)), 45 * time.Millisecond,
			3 * time.Second},
	} {
		for _, size := range test.sizes[:short.Of(len(test.sizes), 1)] {
			t.Run(fmt.Sprintf("%s/%d", test.name, size), func(t *testing.T) {
				for seed := range uint64(2) {
					inBubble(t, Default(), func(w *world) {
						w.SetTopology(nodes(upTo(size)...))
						w.settle()
						began := time.Now()
						all := everywhere(size, test.normal)
						all[1] = []traffic{test.slow}
						for id := range cluster.NodeID(size) {
							w.prober.take(id+1, test.probe/20)
						}
						w.prober.take(1, test.probe)
						w.drive(seed, turns+5*time.Second, all)
						ejected := w.ejectedAt(began)
						after, was := ejected[1]
						if test.within == 0 {
							if len(ejected) != 0 {
								t.Errorf("ejected: %v", ejected)
							}
							return
						}
						if after -= turns; !was || after < 0 || after > test.within {
							t.Errorf("ejected %v after it became slow (%v); want within %v", after, was, test.within)
						}
						if len(ejected) != 1 {
							t.Errorf("ejected: %v; want node 1 alone", ejected)
						}
						if got := w.Stats().Ejections; got[cluster.CauseLatency] == 0 || got[cluster.CauseLatency] != sum(got[:]) {
							t.Errorf("ejections by cause: %v", got)
						}
						t.Logf("after %v: %s", after, w.conditions()[1].Reason)
					})
				}
			})
		}
	}
}

func TestNoFalseAlarm(t *testing.T) {
	type load = map[cluster.NodeID][]traffic
	const turns = 5 * time.Second
	light, heavy := time.Millisecond, 100*time.Millisecond
	for _, test := range []struct {
		name  string
		sizes []int
		load  func(size int) load
		probe func(w *world, size int)
	}{
		{"all_become_slow", []int{3, 4, 9}, func(size int) load {
			return everywhere(size, statements(50, from(turns, light, 60*light)))
		}, allProbesTake(60 * time.Millisecond)},
		{"all_become_slow_and_callers_wait_for_answers", []int{3, 4, 9}, func(size int) load {
			l := everywhere(size, statements(200, until(turns, light)), statements(4, since(turns, 300*light)))
			l[1] = []traffic{statements(400, until(turns, light)), statements(8, since(turns, 300*light))}
			return l
		}, allProbesTake(300 * time.Millisecond)},
		{"heavy_statements_evenly", []int{3, 4, 9}, func(size int) load {
			return everywhere(size, statements(30, mixed(light, heavy, 0.5)))
		}, nil},
		{"more_heavy_ones", []int{3, 4, 9}, func(size int) load {
			return everywhere(size, statements(30, mixed(light, heavy, 0.6)))
		}, nil},
		{"fewer_heavy_ones_at_other_rates", []int{3, 4, 9}, func(size int) load {
			l := everywhere(size, statements(8, mixed(light, heavy, 0.45)))
			l[1] = []traffic{statements(80, mixed(light, heavy, 0.45))}
			l[3] = []traffic{statements(3, mixed(light, heavy, 0.45))}
			return l
		}, nil},
		{"kinds_of_other_weight", []int{3, 9}, func(size int) load {
			l := everywhere(size, statements(50, around(light)), traffic{rate: 50, kind: cluster.CallCommit, takes: around(heavy)})
			l[1] = []traffic{statements(5, around(light)), {rate: 100, kind: cluster.CallCommit, takes: around(heavy)}}
			return l
		}, nil},
		{"a_long_job_in_one_session", []int{3, 9}, func(size int) load {
			l := everywhere(size, statements(40, around(light)))
			l[1] = []traffic{statements(2, around(light)), statements(12, within(turns, turns+8*time.Second, 50*light))}
			return l
		}, nil},
		{"a_short_stall", []int{3, 9}, func(size int) load {
			l := everywhere(size, statements(100, around(light)))
			l[1] = []traffic{statements(100, func(r *rand.Rand, at time.Duration) time.Duration {
				return around(light)(r, at) + stall(at, turns, 600*time.Millisecond)
			})}
			return l
		}, nil},
		{"slow_for_a_moment", []int{3, 9}, func(size int) load {
			l := everywhere(size, statements(200, around(light)))
			l[1] = []traffic{statements(200, func(r *rand.Rand, at time.Duration) time.Duration {
				if at >= turns && at < turns+850*time.Millisecond {
					return around(50*light)(r, at)
				}
				return around(light)(r, at)
			})}
			return l
		}, nil},
		{"callers_elsewhere_give_up_early", []int{3, 4}, func(size int) load {
			l := everywhere(size, statements(50, around(heavy)),
				traffic{rate: 200, kind: cluster.CallExecute, takes: around(heavy), gives: light})
			l[1] = []traffic{statements(50, around(heavy))}
			return l
		}, nil},
		{"a_far_zone", []int{9}, func(size int) load {
			l := everywhere(size, statements(50, around(light)))
			for id := range cluster.NodeID(3) {
				l[id+1] = []traffic{statements(50, around(30*light))}
			}
			return l
		}, func(w *world, size int) {
			var list []cluster.Node
			for i, n := range nodes(upTo(size)...).Nodes {
				n.Zone = string(rune('a' + i/3))
				list = append(list, n)
			}
			w.SetTopology(cluster.NewTopology(list, ""))
		}},
	} {
		for _, size := range test.sizes[:short.Of(len(test.sizes), 1)] {
			t.Run(fmt.Sprintf("%s/%d", test.name, size), func(t *testing.T) {
				for seed := range uint64(1) {
					inBubble(t, Default(), func(w *world) {
						w.SetTopology(nodes(upTo(size)...))
						w.settle()
						if test.probe != nil {
							test.probe(w, size)
						}
						began := time.Now()
						w.drive(seed, watched, test.load(size))
						if got := w.ejectedAt(began); len(got) != 0 {
							t.Errorf("seed %d: ejected %v: %+v", seed, got, w.Events(0)[size:])
						}
						if s := w.Stats(); s.Probes > uint64(size)*uint64(watched/time.Second)/2 {
							t.Errorf("seed %d: %d probes of %d nodes within %v", seed, s.Probes, size, watched)
						}
					})
				}
			})
		}
	}
}

// watched is how long no false alarm may come; by hand it was 18 hours of mixed
// statements.
const watched = 30 * time.Second

// stall is how long a call that begins at this time waits for the end of a stall.
func stall(at, from, lasts time.Duration) time.Duration {
	if at < from || at >= from+lasts {
		return 0
	}
	return from + lasts - at
}

// within is a latency between two times; before and after there are no calls.
func within(begin, end, d time.Duration) func(*rand.Rand, time.Duration) time.Duration {
	return func(r *rand.Rand, at time.Duration) time.Duration {
		if at < begin || at >= end {
			return noCall
		}
		return around(d)(r, at)
	}
}

func until(end, d time.Duration) func(*rand.Rand, time.Duration) time.Duration {
	return within(0, end, d)
}

func since(begin, d time.Duration) func(*rand.Rand, time.Duration) time.Duration {
	return within(begin, time.Hour, d)
}

const noCall = -1

func allProbesTake(d time.Duration) func(*world, int) {
	return func(w *world, size int) {
		time.AfterFunc(5*time.Second, func() {
			for _, id := range upTo(size) {
				w.prober.take(id, d)
			}
		})
	}
}

// Of many nodes, two busy ones do not say alone what is normal.
func TestNormalNeedsHalfOfTheOthers(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		for busy, want := range map[int]bool{2: false, 3: false, 4: true, 8: true} {
			w.SetTopology(nodes(upTo(9)...))
			w.settle()
			w.mu.Lock()
			for id, n := range w.nodes {
				n.recent[0].sum = summary{total: 100, span: 5 * time.Second}
				if int(id) > 9-busy {
					n.recent[0].sum.span = time.Second
				}
			}
			w.nodes[1].recent[0].sum.span = time.Second
			if _, sure := w.normal(w.nodes[1], 0); sure != want {
				t.Errorf("%d of 8 others seen lately: sure %v; want %v", busy, sure, want)
			}
			w.mu.Unlock()
		}
	})
}

// Statements are slow where probes are fast: it takes calls to tell, and probes
// do not go on for ever.
func TestADoubtThatAProbeSettledRests(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		all := everywhere(3, statements(4, around(time.Millisecond)))
		all[1] = []traffic{statements(4, around(50*time.Millisecond))}
		w.drive(1, 9*time.Second, all)
		w.is(1, cluster.Healthy)
		if n := w.prober.count(1); n < 2 || n > 3 {
			t.Errorf("%d probes in 9 s; want them after pauses of 2 and 4 s ± a fifth", n)
		}
	})
}

func TestWhatEndsADoubt(t *testing.T) {
	for _, test := range []struct {
		name    string
		then    func(w *world)
		ejected bool
	}{
		{"slow_probes", func(*world) {}, true},
		{"a_fast_call", func(w *world) {
			w.Report(cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: time.Millisecond})
		}, false},
		{"a_call_that_nobody_waited_for_does_not", func(w *world) {
			w.Report(cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Blame: cluster.BlameNone, Waited: time.Millisecond})
		}, true},
		{"fast_probes", func(w *world) { w.prober.take(1, time.Millisecond) }, false},
		{"slow_probes_everywhere", func(w *world) {
			w.prober.take(2, 40*time.Millisecond)
			w.prober.take(3, 40*time.Millisecond)
		}, false},
		{"slow_probes_elsewhere_for_a_moment_do_not", func(w *world) {
			w.prober.take(2, 10*time.Millisecond)
			w.prober.take(3, 10*time.Millisecond)
			time.AfterFunc(400*time.Millisecond, func() {
				w.prober.take(2, time.Millisecond)
				w.prober.take(3, time.Millisecond)
			})
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, Default(), func(w *world) {
				w.prober.take(1, 50*time.Millisecond)
				w.drive(1, 2*time.Second, everywhere(3, statements(50, around(time.Millisecond))))
				for range few {
					w.Report(
						cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: 50 * time.Millisecond},
					)
				}
				time.Sleep(10 * time.Millisecond) // the first probe is under way
				test.then(w)
				time.Sleep(1800 * time.Millisecond) // a doubt that ended would rest for longer
				if got := w.Stats().Ejections[cluster.CauseLatency]; (got == 1) != test.ejected {
					t.Errorf("%d ejections; %+v", got, w.Events(3))
				}
			})
		})
	}
}

// A node that may be slow itself does not show how long a probe takes.
func TestNormalProbesAreThoseOfNodesInNoDoubt(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.SetTopology(nodes(upTo(6)...))
		w.settle()
		w.mu.Lock()
		defer w.mu.Unlock()
		now := time.Now()
		for _, n := range w.nodes {
			n.lastProbe = lastProbe{at: now, took: time.Millisecond, ok: true}
		}
		w.nodes[2].doubt.step(suspected)
		w.nodes[3].doubt.step(capped)
		w.nodes[4].slowSince[1] = now
		if got := w.probeNorm(w.nodes[1], now, freshAge); got.nodes != 2 {
			t.Errorf("%d nodes are compared with; want the 2 in no doubt", got.nodes)
		}
		w.nodes[5].lastProbe.at = now.Add(-2 * freshAge)
		w.nodes[6].lastProbe.ok = false
		if got := w.probeNorm(w.nodes[1], now, freshAge); got.nodes != 0 {
			t.Errorf("%d nodes are compared with; want none: too old, not answered", got.nodes)
		}
	})
}
