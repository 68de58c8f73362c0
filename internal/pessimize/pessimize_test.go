package pessimize

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// prober answers probes as the test says; nil errors are good answers.
type prober struct {
	mu    sync.Mutex
	err   map[cluster.NodeID]error
	hang  bool          // answer nothing until the probe's context ends
	still time.Duration // how long this process stands still at that moment
	takes map[cluster.NodeID]time.Duration
	asked map[cluster.NodeID]int
}

func (p *prober) Probe(ctx context.Context, id cluster.NodeID) error {
	p.mu.Lock()
	p.asked[id]++
	err, hang, takes, still := p.err[id], p.hang, p.takes[id], p.still
	p.mu.Unlock()
	if takes > 0 && !hang {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(takes):
		}
	}
	if hang {
		<-ctx.Done()
		time.Sleep(still)
		return ctx.Err()
	}
	return err
}

func (p *prober) fail(id cluster.NodeID, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err[id] = err
}

func newProber() *prober {
	return &prober{err: map[cluster.NodeID]error{}, takes: map[cluster.NodeID]time.Duration{}, asked: map[cluster.NodeID]int{}}
}

// take has the probes of a node take d.
func (p *prober) take(id cluster.NodeID, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takes[id] = d
}

func (p *prober) count(id cluster.NodeID) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[id]
}

// world is a judge that runs in a synctest bubble.
type world struct {
	testing.TB
	*Detector
	prober   *prober
	last     atomic.Pointer[cluster.Conditions]
	changed  chan struct{} // last is another one
	panicked atomic.Int64
	stop     func()
}

func inBubble(t *testing.T, config Config, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{TB: t, prober: newProber(), changed: make(chan struct{}, 1)}
		w.Detector = New(config, w.prober, slog.New(slog.DiscardHandler))
		w.Subscribe(func(v cluster.Conditions) {
			w.last.Store(&v)
			select {
			case w.changed <- struct{}{}:
			default:
			}
		})
		w.OnPanic(func() { w.panicked.Add(1) })
		w.SetTopology(nodes(1, 2, 3))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		w.stop = func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run = %v", err)
			}
		}
		w.settle()
		test(w)
		w.stop()
	})
}

func nodes(ids ...cluster.NodeID) cluster.Topology {
	list := make([]cluster.Node, len(ids))
	for i, id := range ids {
		list[i] = cluster.Node{ID: id, Address: fmt.Sprintf("node-%d:2136", id)}
	}
	return cluster.NewTopology(list, "")
}

// settle lets the judge look at everything reported so far.
func (w *world) settle() {
	time.Sleep(2 * minGap)
	synctest.Wait()
}

// conditions returns those of this instant.
func (w *world) conditions() cluster.Conditions {
	synctest.Wait()
	return *w.last.Load()
}

func (w *world) report(id cluster.NodeID, kind cluster.CallKind, blame cluster.Blame, times int) {
	for range times {
		w.Report(cluster.Outcome{Node: id, Kind: kind, Blame: blame, Detail: "UNAVAILABLE"})
	}
	w.settle()
}

func (w *world) is(id cluster.NodeID, want cluster.Health) {
	w.Helper()
	if got := w.conditions()[id]; got.Health != want {
		w.Errorf("node %d is %v (%s); want %v", id, got.Health, got.Reason, want)
	}
}

// awaitHealth returns how long it took, in the bubble's time.
func (w *world) awaitHealth(id cluster.NodeID, want cluster.Health, limit time.Duration) time.Duration {
	w.Helper()
	began, late := time.Now(), time.After(limit)
	for w.conditions()[id].Health != want {
		select {
		case <-w.changed:
		case <-late:
			w.Fatalf("node %d is %v after %v; want %v", id, w.conditions()[id].Health, limit, want)
		}
	}
	return time.Since(began)
}

func TestTransportErrors(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
		w.is(1, cluster.Suspect)
		w.report(1, cluster.CallExecute, cluster.BlameSuccess, 1)
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
		w.is(1, cluster.Suspect) // a success between
		w.report(1, cluster.CallOpen, cluster.BlameTransport, 1)
		w.is(1, cluster.Ejected)
		v := w.conditions()[1]
		if !v.Unreachable || v.Draining || v.Reason != "UNAVAILABLE on open; 2 transport errors in a row" {
			t.Errorf("verdict %+v", v)
		}
		w.is(2, cluster.Healthy)
	})
}

func TestARefusalBetweenTransportErrorsShowsThatTheNodeAnswers(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		for range 4 {
			w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
			w.report(1, cluster.CallExecute, cluster.BlameRefusal, 1)
		}
		w.is(1, cluster.Suspect)
	})
}

// However much was open on a connection, its loss is one sign; that of another one is a second.
func TestALostConnectionIsOneSign(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		lost := func(number uint64, times int) {
			for range times {
				w.Report(
					cluster.Outcome{Node: 1, Kind: cluster.CallControl, Blame: cluster.BlameTransport, Detail: "UNAVAILABLE", Lost: number},
				)
			}
			w.settle()
		}
		lost(7, 50)
		w.is(1, cluster.Suspect)
		lost(8, 1)
		w.is(1, cluster.Ejected)
	})
	inBubble(t, Default(), func(w *world) { // it is not known what they were lost with
		w.report(1, cluster.CallControl, cluster.BlameTransport, Default().TransportFailures)
		w.is(1, cluster.Ejected)
	})
}

func TestNoBlameChangesNothing(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		before := w.conditions()[1]
		w.report(1, cluster.CallExecute, cluster.BlameNone, 1000)
		w.report(9, cluster.CallExecute, cluster.BlameTransport, 1000) // an unknown node
		w.report(1, cluster.CallProbe, cluster.BlameRefusal, 1000)     // the judge makes its own probes
		if w.conditions()[1] != before || len(w.conditions()) != 3 {
			t.Errorf("verdicts %v", w.conditions())
		}
	})
}

func TestASilentConnectionEjectsAtOnce(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		silent := func() {
			w.Report(cluster.Outcome{Node: 1, Kind: cluster.CallProbe, Blame: cluster.BlameTransport, Detail: "SILENT"})
			w.settle()
		}
		w.prober.fail(1, errors.New("black hole"))
		w.report(1, cluster.CallExecute, cluster.BlameSuccess, 100)
		silent()
		if v := w.conditions()[1]; v.Health != cluster.Ejected || !v.Unreachable ||
			v.Reason != "SILENT on probe; a connection with calls outstanding is dead" {
			t.Errorf("verdict %+v", v)
		}
		// Another while it is being probed: it is unreachable again, and starts again.
		w.prober.fail(1, ErrRefused)
		w.awaitHealth(1, cluster.Probing, 2*time.Second)
		time.Sleep(2 * time.Second)
		if w.conditions()[1].Unreachable {
			t.Error("unreachable, though it refuses")
		}
		// Right after a probe: the next one is refused, and ends what is looked at.
		for n := w.prober.count(1); w.prober.count(1) == n; {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		silent()
		if v := w.conditions()[1]; v.Health != cluster.Probing || !v.Unreachable {
			t.Errorf("verdict %+v; want probing and unreachable", v)
		}
	})
}

func TestRefusals(t *testing.T) {
	tests := map[string]func(w *world){
		"in a row": func(w *world) {
			w.report(1, cluster.CallExecute, cluster.BlameRefusal, 4)
			w.is(1, cluster.Suspect)
			w.report(1, cluster.CallExecute, cluster.BlameRefusal, 1)
			w.is(1, cluster.Ejected)
			if w.conditions()[1].Unreachable {
				w.Error("a node that refuses counts as unreachable")
			}
		},
		"as a share": func(w *world) {
			for range 20 {
				w.report(1, cluster.CallExecute, cluster.BlameSuccess, 1)
				w.report(2, cluster.CallExecute, cluster.BlameSuccess, 3)
				w.report(1, cluster.CallExecute, cluster.BlameRefusal, 1)
				w.report(2, cluster.CallExecute, cluster.BlameRefusal, 1)
			}
			w.is(1, cluster.Ejected)
			w.is(2, cluster.Suspect) // one in four
		},
		"spread over windows": func(w *world) {
			for range 100 {
				w.report(1, cluster.CallExecute, cluster.BlameSuccess, 1)
				w.report(1, cluster.CallExecute, cluster.BlameRefusal, 1)
				time.Sleep(200 * time.Millisecond) // 10 in a window
			}
			w.is(1, cluster.Suspect)
		},
		"by all nodes eject none": func(w *world) {
			for range 100 {
				for id := range cluster.NodeID(3) {
					for range 5 {
						w.Report(
							cluster.Outcome{Node: id + 1, Kind: cluster.CallExecute, Blame: cluster.BlameRefusal,
								Detail: "RESOURCE_EXHAUSTED"},
						)
					}
					w.report(id+1, cluster.CallExecute, cluster.BlameSuccess, 1)
				}
			}
			for id := range cluster.NodeID(3) {
				w.is(id+1, cluster.Suspect)
			}
		},
		"by one more node than may be ejected": func(w *world) {
			w.report(1, cluster.CallExecute, cluster.BlameRefusal, 5)
			w.is(1, cluster.Ejected)
			w.report(2, cluster.CallExecute, cluster.BlameRefusal, 50)
			w.is(2, cluster.Suspect)
			if reason := w.conditions()[2].Reason; !strings.Contains(reason, "OVERLOADED") && !strings.Contains(reason, "UNAVAILABLE") {
				w.Errorf("reason %q", reason)
			}
		},
		"by the only node": func(w *world) {
			w.SetTopology(nodes(1))
			w.settle()
			w.report(1, cluster.CallExecute, cluster.BlameRefusal, 50)
			w.is(1, cluster.Suspect)
		},
		"of what is not the node": func(w *world) {
			for range 100 {
				w.Report(
					cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Detail: "OVERLOADED",
						Congestion: cluster.CongestedTable, Subject: "/local/t"},
				)
			}
			w.settle()
			w.is(1, cluster.Healthy)
			if s := w.Stats().Nodes[0]; s.Congested[cluster.CongestedTable] != 100 || s.Subjects[cluster.CongestedTable] != "/local/t" {
				w.Errorf("counted %v of %q", s.Congested, s.Subjects)
			}
		},
		"of new sessions never eject": func(w *world) {
			w.report(1, cluster.CallOpen, cluster.BlameRefusal, 1000)
			w.is(1, cluster.Suspect)
		},
	}
	for name, play := range tests {
		t.Run(name, func(t *testing.T) { inBubble(t, Default(), play) })
	}
}

func TestASuspectRecovers(t *testing.T) {
	t.Run("by_calls", func(t *testing.T) {
		inBubble(t, Default(), func(w *world) {
			w.prober.fail(1, errors.New("probes do not matter here"))
			w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
			w.report(1, cluster.CallExecute, cluster.BlameSuccess, 1)
			w.is(1, cluster.Suspect)
			w.awaitHealth(1, cluster.Healthy, Default().ProbeInterval)
			if n := w.prober.count(1); n != 0 {
				t.Errorf("%d probes; want none, because calls succeed", n)
			}
		})
	})
	t.Run("by_a_probe_without_calls", func(t *testing.T) {
		inBubble(t, Default(), func(w *world) {
			w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
			w.awaitHealth(1, cluster.Healthy, Default().ProbeInterval+20*time.Millisecond)
			if n := w.prober.count(1); n != 1 {
				t.Errorf("%d probes; want 1", n)
			}
		})
	})
	t.Run("not_if_the_probe_fails", func(t *testing.T) {
		inBubble(t, Default(), func(w *world) {
			w.prober.fail(1, errors.New("connection\nrefused"))
			w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
			w.awaitHealth(1, cluster.Ejected, Default().ProbeInterval+20*time.Millisecond)
			if v := w.conditions()[1]; !v.Unreachable || v.Reason != "probe: connection refused" {
				t.Errorf("verdict %+v", v)
			}
		})
	})
}

func TestReturnNeedsProbes(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.fail(1, errors.New("still down"))
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		w.is(1, cluster.Ejected)
		w.awaitHealth(1, cluster.Probing, 1300*time.Millisecond)
		time.Sleep(10 * time.Minute)
		w.is(1, cluster.Probing) // time alone brings nothing back
		if n := w.prober.count(1); n < 450 || n > 800 {
			t.Errorf("%d probes in 10 minutes; want about one a second", n)
		}
		w.prober.fail(1, fmt.Errorf("OVERLOADED: %w", ErrRefused))
		time.Sleep(2 * time.Second)
		w.is(1, cluster.Probing)
		if w.conditions()[1].Unreachable {
			t.Error("unreachable, though it answers by refusing")
		}
		w.prober.fail(1, nil)
		if took := w.awaitHealth(1, cluster.Healthy, 2*time.Second); took > 1600*time.Millisecond {
			t.Errorf("came back after %v", took)
		}
		// It starts again: one bad sign does not eject.
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
		w.is(1, cluster.Suspect)
	})
}

// The answer to a probe that began before the ejection says nothing of the time after it.
func TestAProbeOfBeforeTheEjectionBringsNothingBack(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.take(1, 900*time.Millisecond)
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
		for w.prober.count(1) == 0 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		w.is(1, cluster.Ejected)
		w.report(1, cluster.CallExecute, cluster.BlameSuccess, 1) // which hastens the return
		w.is(1, cluster.Probing)
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
		if n := w.prober.count(1) - 1; n != Default().Probes {
			t.Errorf("back after %d probes; want %d", n, Default().Probes)
		}
	})
}

func TestAHangingProbeIsBounded(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.hang = true
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		time.Sleep(time.Minute)
		w.is(1, cluster.Probing)
		if n := w.prober.count(1); n < 20 || n > 40 {
			t.Errorf("%d probes a minute; want one in two seconds: a second of timeout, one of rest", n)
		}
	})
}

// What came of a probe during which this process stood still is not known: one is asked again. A machine that is
// always that busy ejects silent nodes all the same.
func TestAProbeWhileTheProcessStoodStill(t *testing.T) {
	for still, ejectedAfter := range map[time.Duration]int{0: 1, Default().ProbeTimeout / 5: 1,
		Default().ProbeTimeout/4 + time.Millisecond: 2, time.Hour: 2} {
		inBubble(t, Default(), func(w *world) {
			w.prober.hang, w.prober.still = true, still
			w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
			w.is(1, cluster.Suspect)
			w.awaitHealth(1, cluster.Ejected, 3*time.Hour)
			if n := w.prober.count(1); n != ejectedAfter {
				t.Errorf("stood still for %v: ejected after %d probes; want %d", still, n, ejectedAfter)
			}
		})
	}
}

func TestEjectionGrowsAndIsForgiven(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		eject := func() time.Duration {
			w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
			w.is(1, cluster.Ejected)
			rest := w.awaitHealth(1, cluster.Probing, 2*time.Minute)
			w.awaitHealth(1, cluster.Healthy, 10*time.Second)
			return rest
		}
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			want *= time.Second
			if got := eject(); got < want*79/100 || got > want*121/100 {
				t.Errorf("rested %v; want %v ± a fifth", got, want)
			}
		}
		time.Sleep(3 * time.Minute) // 8 repeats less 3, plus this one
		if got, want := eject(), 32*time.Second; got < want*79/100 || got > want*121/100 {
			t.Errorf("rested %v after 3 good minutes; want %v ± a fifth", got, want)
		}
		time.Sleep(time.Hour)
		if got := eject(); got > 1300*time.Millisecond {
			t.Errorf("rested %v after a good hour; want 1s", got)
		}
	})
}

func TestACallThatGetsThroughHastensTheProbe(t *testing.T) {
	config := Default()
	config.Ejection, config.EjectionMax = time.Hour, time.Hour
	inBubble(t, config, func(w *world) {
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		w.is(1, cluster.Ejected)
		w.report(1, cluster.CallExecute, cluster.BlameSuccess, 1)
		w.awaitHealth(1, cluster.Healthy, time.Second)
		if n := w.prober.count(1); n != config.Probes {
			t.Errorf("%d probes; want %d", n, config.Probes)
		}
	})
}

func TestASoftEjectionTurnsHard(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.report(1, cluster.CallExecute, cluster.BlameRefusal, 5)
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
		if v := w.conditions()[1]; v.Health != cluster.Ejected || !v.Unreachable {
			t.Errorf("verdict %+v; want ejected and unreachable", v)
		}
	})
}

func TestPanic(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		for id, want := range []int64{0, 1, 2} {
			w.prober.fail(cluster.NodeID(id+1), errors.New("down"))
			w.report(cluster.NodeID(id+1), cluster.CallExecute, cluster.BlameTransport, 2)
			if got := w.panicked.Load(); got != want {
				t.Errorf("%d of 3 ejected: %d alarms; want %d", id+1, got, want)
			}
		}
		time.Sleep(time.Minute)
		if got := w.panicked.Load(); got != 2 {
			t.Errorf("%d alarms without a further ejection; want 2", got)
		}
	})
}

func TestReportAllocatesNothingForSuccesses(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		o := cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: time.Millisecond}
		if got := testing.AllocsPerRun(1000, func() { w.Report(o) }); got != 0 {
			t.Errorf("%v allocations; want 0", got)
		}
	})
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	zero := Config{EjectionMax: -1}
	if err := zero.Validate(); err == nil || len(err.(interface{ Unwrap() []error }).Unwrap()) != 18 {
		t.Errorf("Validate = %v; want a fault for each setting and one for the pair", err)
	}
}

func BenchmarkReport(b *testing.B) {
	j := New(Default(), nil, nil)
	j.SetTopology(nodes(1, 2, 3))
	j.look(context.Background(), new(sync.WaitGroup), time.Now())
	o := cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: time.Millisecond}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			j.Report(o)
		}
	})
}
