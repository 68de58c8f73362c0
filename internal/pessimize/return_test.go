package pessimize

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// slowNode makes node 1 slow until it is ejected for it.
func (w *world) slowNode() {
	w.Helper()
	w.prober.take(1, 50*time.Millisecond)
	all := everywhere(3, statements(50, around(time.Millisecond)))
	all[1] = []traffic{statements(50, around(50*time.Millisecond))}
	began := time.Now()
	for w.conditions()[1].Health != cluster.Ejected {
		if time.Since(began) > 5*time.Second {
			w.Fatalf("a slow node is %+v", w.conditions()[1])
		}
		w.drive(1, 250*time.Millisecond, all)
	}
}

func TestASlowNodeReturnsWhenItIsFast(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.slowNode()
		w.awaitHealth(1, cluster.Probing, 2*time.Second)
		asked := w.prober.count(2) + w.prober.count(3)
		time.Sleep(time.Minute)
		v := w.conditions()[1]
		if v.Health != cluster.Probing || v.Unreachable || !strings.HasPrefix(v.Reason, "a probe took 50ms, on 2 other nodes 0s") {
			t.Errorf("after a minute of slow probes: %+v", v)
		}
		if n := w.prober.count(2) + w.prober.count(3) - asked; n > 10 {
			t.Errorf("%d probes of the others to see what is normal", n)
		}
		if s := w.Stats(); s.ProbesSlow < 40 || s.Nodes[0].Ejections[cluster.CauseLatency] != 1 {
			t.Errorf("stats %+v", s)
		}
		w.prober.take(1, time.Millisecond)
		w.awaitHealth(1, cluster.Healthy, 3*time.Second)
	})
}

// What is slow is what is slower than the others' probes, not than their calls.
func TestASlowNodeReturnsWhenProbesAreSlowEverywhere(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.slowNode()
		for id := range cluster.NodeID(3) {
			w.prober.take(id+1, 40*time.Millisecond)
		}
		time.Sleep(knownAge) // the fast ones are too old to count
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
	})
}

func TestASlowNodeReturnsWhenTheOthersCannotTell(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.slowNode()
		w.SetTopology(nodes(1, 2))
		w.awaitHealth(1, cluster.Healthy, 10*time.Second)
	})
}

func TestASlowNodeReturnsWhenTheOthersRefuseProbes(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.slowNode()
		w.prober.fail(2, ErrRefused)
		w.prober.fail(3, ErrRefused)
		time.Sleep(knownAge)
		w.awaitHealth(1, cluster.Healthy, 10*time.Second)
	})
}

// A node that could not be reached returns however far it is.
func TestAnUnreachableNodeReturnsBySlowProbes(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.take(1, 200*time.Millisecond)
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
	})
}

func TestTheCapOfSlowNodes(t *testing.T) {
	for size, want := range map[int]int{3: 1, 4: 1, 6: 1, 7: 2, 9: 2} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inBubble(t, Default(), func(w *world) {
				w.SetTopology(nodes(upTo(size)...))
				all := everywhere(size, statements(50, around(time.Millisecond)))
				for id := range cluster.NodeID((size - 1) / 2) {
					w.prober.take(id+1, 50*time.Millisecond)
					all[id+1] = []traffic{statements(50, around(50*time.Millisecond))}
				}
				most := 0
				for range 20 {
					w.drive(1, 250*time.Millisecond, all)
					out := 0
					for _, v := range w.conditions() {
						if v.Health > cluster.Suspect {
							out++
						}
					}
					most = max(most, out)
				}
				if most != want {
					t.Errorf("%d of %d ejected; want %d", most, size, want)
				}
				if slow := (size - 1) / 2; slow > want && w.Stats().Spared == 0 {
					t.Error("nobody is told that the cap spared a node")
				}
			})
		})
	}
}

// With one of three nodes down, the two that are left do not eject each other;
// with two of five down, a third would make it more than half.
func TestLatencyEjectsNobodyBesideDeadNodes(t *testing.T) {
	for size, dead := range map[int]int{3: 1, 5: 2} {
		inBubble(t, Default(), func(w *world) {
			w.SetTopology(nodes(upTo(size)...))
			w.settle()
			all := everywhere(size-dead, statements(50, around(time.Millisecond)))
			all[1] = []traffic{statements(50, around(50*time.Millisecond))}
			w.prober.take(1, 50*time.Millisecond)
			for i := range cluster.NodeID(dead) {
				w.prober.fail(cluster.NodeID(size)-i, errors.New("down"))
				w.report(cluster.NodeID(size)-i, cluster.CallExecute, cluster.BlameTransport, 2)
			}
			w.drive(1, 10*time.Second, all)
			if s := w.Stats(); s.Ejections[cluster.CauseLatency] != 0 || s.Panic {
				t.Errorf("%d of %d down: %+v", dead, size, s)
			}
		})
	}
}

func TestSlowStart(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		var shares []float32
		w.Subscribe(func(v cluster.Conditions) { shares = append(shares, v[1].Ramp) })
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
		began := w.conditions()[1].Since
		time.Sleep(Default().SlowStart - time.Second - time.Since(began))
		if got := w.conditions()[1].Ramp; got != 0.8 {
			t.Errorf("share %v a second before the end; want 0.8", got)
		}
		time.Sleep(time.Second + 2*time.Millisecond)
		if got := w.conditions()[1].Ramp; got != 0 {
			t.Errorf("share %v after the slow start; want all", got)
		}
		if got, want := slices.Compact(shares), []float32{0, 0.1, 0.2, 0.4, 0.6, 0.8, 0}; !slices.Equal(got, want) {
			t.Errorf("shares %v; want %v", got, want)
		}
		// Ejected in the middle of the next one: it ends.
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		if v := w.conditions()[1]; v.Health != cluster.Ejected || v.Ramp != 0 {
			t.Errorf("verdict %+v", v)
		}
	})
	off := Default()
	off.SlowStart = 0
	inBubble(t, off, func(w *world) {
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
		if got := w.conditions()[1].Ramp; got != 0 {
			t.Errorf("share %v though slow_start is off", got)
		}
	})
}

// A node that joins, or comes back after it left, may be a process that has just started: it gets
// its share gradually. At the process's first answer of discovery, and when most nodes are new, all
// get theirs at once.
func TestSlowStartOfNodesThatJoin(t *testing.T) {
	list := func(w *world, change func([]cluster.Node)) {
		all := slices.Clone(nodes(1, 2, 3).Nodes)
		change(all)
		w.SetTopology(cluster.NewTopology(all, ""))
		w.settle()
	}
	set := func(w *world, ids ...cluster.NodeID) {
		w.SetTopology(nodes(ids...))
		w.settle()
	}
	rise := []float32{0.1, 0.2, 0.4, 0.6, 0.8, 0}
	for name, tc := range map[string]struct {
		node   cluster.NodeID
		do     func(*world)
		want   []float32
		joined bool
	}{
		"the_first_answer": {1, func(*world) {}, []float32{0}, false},
		"joins":            {4, func(w *world) { set(w, 1, 2, 3, 4) }, rise, true},
		"half_are_new":     {6, func(w *world) { set(w, 1, 2, 3, 4, 5, 6) }, rise, true},
		"most_are_new":     {7, func(w *world) { set(w, 1, 2, 3, 4, 5, 6, 7) }, []float32{0}, false},
		"most_are_new_in_two_parts": {6, func(w *world) {
			set(w, 1, 2, 3, 4, 5, 6)
			set(w, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
		}, []float32{0.1, 0}, true},
		"others_join":      {1, func(w *world) { set(w, 1, 2, 3, 4) }, []float32{0}, false},
		"all_are_replaced": {6, func(w *world) { set(w, 4, 5, 6) }, []float32{0}, false},
		"left_and_is_back": {3, func(w *world) { set(w, 1, 2); set(w, 1, 2, 3) }, append([]float32{0}, rise...), true},
		"forgotten_and_is_back": {3,
			func(w *world) { set(w, 1, 2); time.Sleep(2 * Default().Forget); set(w, 1, 2, 3) },
			append([]float32{0}, rise...), true},
		"another_address": {3,
			func(w *world) { list(w, func(n []cluster.Node) { n[2].Address = "elsewhere:2136" }) },
			append([]float32{0}, rise...), false},
		"missing_and_listed": {3,
			func(w *world) { list(w, func(n []cluster.Node) { n[2].Missing = true }); set(w, 1, 2, 3) }, []float32{0},
			false},
		"an_operator_undrains_it": {3, func(w *world) { w.do(w.Drain(3)); w.settle(); w.do(w.Undrain(3)); w.settle() },
			append([]float32{0}, rise...), false},
		"joins_drained": {4, func(w *world) {
			set(w, 1, 2, 3, 4)
			w.do(w.Drain(4))
			set(w, 1, 2, 3)
			time.Sleep(Default().SlowStart)
			set(w, 1, 2, 3, 4)
			time.Sleep(Default().SlowStart)
			w.do(w.Undrain(4))
			w.settle()
		}, append(slices.Clone(rise), rise...), true},
		"who_lists_it_undrains_it": {3, func(w *world) {
			list(w, func(n []cluster.Node) { n[2].Draining = true })
			list(w, func([]cluster.Node) {})
		}, append([]float32{0}, rise...), false},
		"announced_its_shutdown_and_stays": {3, func(w *world) {
			w.report(3, cluster.CallControl, cluster.BlameDraining, 1)
			time.Sleep(Default().Leaving + Default().SlowStart/20)
		}, append([]float32{0}, rise...), false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Default(), func(w *world) {
				var shares []float32
				var at []time.Duration
				began, joined := time.Now(), false
				w.Subscribe(func(all cluster.Conditions) {
					v, known := all[tc.node]
					if known && (len(shares) == 0 || shares[len(shares)-1] != v.Ramp) {
						shares = append(shares, v.Ramp)
						at = append(at, time.Since(began))
					}
					joined = joined || v.Joined
					if v.Joined && v.Ramp == 0 {
						t.Errorf("joined with all of its share: %+v", v)
					}
				})
				w.report(3, cluster.CallOpen, cluster.BlameRefusal, 1) // something to publish
				tc.do(w)
				time.Sleep(Default().SlowStart + time.Second)
				synctest.Wait()
				if !slices.Equal(shares, tc.want) || joined != tc.joined {
					t.Errorf("shares %v, joined %v; want %v, %v", shares, joined, tc.want, tc.joined)
				}
				for i := max(1, len(at)-5); i < len(at) && len(tc.want) > 2; i++ {
					if step := at[i] - at[i-1]; shares[i-1] >= rampFirst &&
						(step < Default().SlowStart/5 || step > Default().SlowStart/5+10*time.Millisecond) {
						t.Errorf("from %v to %v in %v", shares[i-1], shares[i], step)
					}
				}
			})
		})
	}
	off := Default()
	off.SlowStart = 0
	inBubble(t, off, func(w *world) {
		set(w, 1, 2, 3, 4)
		if v := w.conditions()[4]; v.Ramp != 0 || v.Joined {
			t.Errorf("%+v though slow_start is off", v)
		}
	})
}

func TestIdleNodesAreProbed(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		for range 60 * 5 {
			w.report(1, cluster.CallExecute, cluster.BlameSuccess, 1)
			w.report(2, cluster.CallExecute, cluster.BlameNone, 1) // says nothing
			time.Sleep(time.Second)
		}
		if n := w.prober.count(1); n != 0 {
			t.Errorf("%d probes of a node that has calls", n)
		}
		for id := cluster.NodeID(2); id <= 3; id++ {
			if n := w.prober.count(id); n < 8 || n > 13 {
				t.Errorf("%d probes of idle node %d in 5 minutes; want one in 30 s ± a fifth", n, id)
			}
		}
		w.prober.fail(3, errors.New("connection timed out"))
		w.awaitHealth(3, cluster.Ejected, 40*time.Second)
	})
	off := Default()
	off.IdleProbe = 0
	inBubble(t, off, func(w *world) {
		time.Sleep(time.Hour)
		if n := w.prober.count(1); n != 0 {
			t.Errorf("%d probes though idle_probe is off", n)
		}
	})
	inBubble(t, Default(), func(w *world) {
		w.SetTopology(nodes(upTo(300)...))
		time.Sleep(time.Minute)
		if n := w.Stats().Probes; n < 25 || n > 61 {
			t.Errorf("%d probes of 300 idle nodes in a minute; want one a second at most", n)
		}
	})
}

// A node that takes no more sessions refuses probes; its sessions keep working.
func TestARefusedProbeEjectsNobody(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.fail(1, fmt.Errorf("OVERLOADED: %w", ErrRefused))
		w.report(1, cluster.CallOpen, cluster.BlameRefusal, 10)
		time.Sleep(5 * time.Minute)
		w.is(1, cluster.Suspect)
		w.prober.fail(1, nil)
		w.awaitHealth(1, cluster.Healthy, 2*time.Second)
	})
}

func TestAProbeThatFailsBesideCallsThatSucceedEjectsNobody(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.hang = true
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
		time.Sleep(Default().ProbeInterval + Default().ProbeTimeout/2) // its probe is under way
		w.report(1, cluster.CallExecute, cluster.BlameSuccess, 1)
		time.Sleep(Default().ProbeTimeout)
		w.is(1, cluster.Suspect)
		time.Sleep(Default().ProbeInterval + 2*Default().ProbeTimeout) // the next one, without calls
		if w.conditions()[1].Health <= cluster.Suspect {
			t.Error("not ejected though nothing is answered")
		}
	})
}

func TestCauses(t *testing.T) {
	for want, do := range map[cluster.Cause]func(*world){
		cluster.CauseTransport: func(w *world) { w.report(1, cluster.CallExecute, cluster.BlameTransport, 2) },
		cluster.CauseSilence:   func(w *world) { w.report(1, cluster.CallProbe, cluster.BlameTransport, 1) },
		cluster.CauseRefusals:  func(w *world) { w.report(1, cluster.CallExecute, cluster.BlameRefusal, 5) },
		cluster.CauseLatency:   (*world).slowNode,
		cluster.CauseProbe: func(w *world) {
			w.prober.fail(1, errors.New("down"))
			time.Sleep(37 * time.Second)
		},
	} {
		t.Run(want.String(), func(t *testing.T) {
			inBubble(t, Default(), func(w *world) {
				do(w)
				v := w.conditions()[1]
				if v.Cause != want || v.Unreachable != (want <= cluster.CauseProbe) {
					t.Errorf("verdict %+v", v)
				}
				w.prober.fail(1, nil)
				w.prober.take(1, 0)
				w.awaitHealth(1, cluster.Healthy, 5*time.Second)
				if v := w.conditions()[1]; v.Cause != cluster.CauseNone {
					t.Errorf("cause %v after its return", v.Cause)
				}
			})
		})
	}
}

// A probe that this process ended is made again, and says nothing.
func TestProbesThatThisProcessEnds(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.fail(1, fmt.Errorf("no memory: %w", ErrNothing))
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
		w.is(1, cluster.Suspect)
		time.Sleep(time.Minute)
		w.is(1, cluster.Suspect)
		if n := w.prober.count(1); n < 10 {
			t.Errorf("%d probes in a minute", n)
		}
		w.prober.fail(1, nil)
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
	})
}
