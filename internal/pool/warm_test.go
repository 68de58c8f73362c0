package pool

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// One try goes to a node that returns, and after each that succeeds one more.
func TestRamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		p := start(t, config(100), f, view(1, 2))
		f.set(1, blackHole, nil)
		f.set(2, after(10*time.Millisecond, nil), nil)
		p.SetView(viewOf(map[cluster.NodeID]cluster.Use{1: cluster.UseNone, 2: cluster.UseOpen}))
		p.SetView(view(2))
		over := make(chan struct{})
		defer close(over)
		for range 200 {
			go func() {
				if g, err := p.Acquire(t.Context(), Ask{Class: Normal}); err == nil {
					<-over
					p.Release(g.Session)
				}
			}()
		}
		for _, want := range []int{1, 2, 4, 8, 16, 16} {
			synctest.Wait()
			if n := p.Stats().Opening; n != want {
				t.Errorf("%d openings at a time; want %d", n, want)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// A cold start is as fast as the burst allows.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		for id := range f.nodes {
			f.set(id, after(10*time.Millisecond, nil), nil)
		}
		p := start(t, config(50), f, view(1, 2, 3))
		began := time.Now()
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				g, err := p.Acquire(t.Context(), Ask{Class: Normal})
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(10 * time.Millisecond)
				p.Release(g.Session)
			})
		}
		wg.Wait()
		if d := time.Since(began); d > 60*time.Millisecond {
			t.Errorf("200 callers took %v; want 10ms for each round of theirs, and two for openings", d)
		}
		for id := range f.nodes {
			if n := f.node(id); n.mostOpening > 16 {
				t.Errorf("%d openings at a time on node %d", n.mostOpening, id)
			}
		}
	})
}

// The minimum is opened with pauses, after the first few; those who call do not
// wait for them.
func TestWarmUpHasPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		cfg := config(50)
		cfg.Min = 40
		p := start(t, cfg, f, view(1, 2, 3))
		synctest.Wait()
		if n := f.sum(); n != warmFirst {
			t.Errorf("%d sessions at once; want %d", n, warmFirst)
		}
		release := checkOut(t, p, 20)
		if n := f.sum(); n != 20 {
			t.Errorf("%d sessions; want 20 for those who need them, at once", n)
		}
		release()
		f.forget()
		time.Sleep(2 * warmWithin)
		if n := f.sum(); n != 40 || !p.Warm() {
			t.Errorf("%d sessions after %v; want the minimum of 40", n, 2*warmWithin)
		}
		pauses := slices.Clone(f.begun)
		for i := len(pauses) - 1; i > 0; i-- {
			pauses[i] = time.Time{}.Add(pauses[i].Sub(pauses[i-1]))
		}
		slices.SortFunc(pauses[1:], time.Time.Compare)
		if len(slices.Compact(pauses[1:])) < 15 {
			t.Error("the pauses are not random")
		}
	})
}

// Tries pause after failures, but not beyond the news that a node can be reached.
func TestNewsEndsPauses(t *testing.T) {
	verdict := func(v cluster.View, health cluster.Health) cluster.View {
		for i := range v.Nodes {
			v.Nodes[i].Condition.Health, v.Nodes[i].Condition.Unreachable = health, health >= cluster.Ejected
		}
		return v
	}
	for _, tt := range []struct {
		name string
		open func(context.Context) error
		news cluster.View
		tell bool // is news
	}{
		{"refused", after(0, errDown), verdict(view(1, 2), cluster.Healthy), true},
		{"silent", blackHole, verdict(view(1, 2), cluster.Suspect), true},
		{"no_news", after(0, errDown), verdict(view(1, 2), cluster.Probing), false},
		{"came_back", blackHole, verdict(view(1, 2), cluster.Ejected), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2)
				f.set(1, tt.open, nil)
				f.set(2, tt.open, nil)
				p := start(t, config(5), f, verdict(view(1, 2), cluster.Ejected))
				w := NewWaiter(func(g Grant, _ error) { p.Release(g.Session) })
				if _, err := p.Wait(w, Ask{Class: Normal}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(3 * time.Second)
				synctest.Wait()
				p.Cancel(w)
				if tt.name == "came_back" {
					p.SetView(viewOf(map[cluster.NodeID]cluster.Use{1: cluster.UseOpen, 2: cluster.UseOpen}))
				}
				// Just failed, or in the midst of it.
				p.mu.Lock()
				for _, n := range p.order {
					if n.stalled == 0 {
						n.pace.until = time.Now().Add(pauseMax)
					}
				}
				p.pace.until = time.Now().Add(pauseMax)
				p.mu.Unlock()
				f.set(1, nil, nil)
				f.set(2, nil, nil)
				p.SetView(tt.news)
				got := make(chan Grant, 1)
				w = NewWaiter(func(g Grant, _ error) { got <- g })
				if _, err := p.Wait(w, Ask{Class: Normal}); err != nil {
					t.Fatal(err)
				}
				g := <-got
				defer p.Release(g.Session)
				if (g.Waited == 0) != tt.tell {
					t.Errorf("waited %v; want no time: %v", g.Waited, tt.tell)
				}
			})
		})
	}
}

// What is being opened on a node when it is ejected takes no room from those who
// wait, and says nothing of the node.
func TestOpeningsOnAnEjectedNode(t *testing.T) {
	for _, use := range []cluster.Use{cluster.UseOpen, cluster.UseNone} {
		synctest.Test(t, func(t *testing.T) {
			f := newServers(1, 2)
			f.set(1, blackHole, nil)
			f.set(2, after(time.Millisecond, nil), nil)
			p := start(t, config(2), f, view(1))
			for range 2 {
				go func() { p.Release(must(p.Acquire(context.Background(), Ask{Class: Normal})).Session) }()
			}
			synctest.Wait()
			if n := p.Stats().Opening; n != 2 {
				t.Fatalf("%d being opened on node 1; want 2", n)
			}
			p.SetView(viewOf(map[cluster.NodeID]cluster.Use{1: use, 2: cluster.UseNew}))
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if st := p.Stats(); st.Opening != 1 || st.Nodes[0].Failures != 0 {
				t.Errorf("%v: %d being opened, %d failures; want 1, on node 2, and none", use, st.Opening, st.Nodes[0].Failures)
			}
			time.Sleep(10 * time.Millisecond)
		})
	}
}
