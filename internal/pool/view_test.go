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

// Missing nodes that are a reserve keep their sessions: none is moved away, however long
// that lasts, and they are checked out when the other nodes have none that is idle.
func TestMissingNodesKeepTheirSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3, 4)
		p := start(t, config(40), f, weights(1, 1, 1, 1))
		checkOut(t, p, 40)()
		before := f.live()
		v := weights(0, 0, 1, 1)
		v.Nodes[0].Missing, v.Nodes[1].Missing = true, true
		p.SetView(v)
		for range 20 {
			time.Sleep(time.Second)
			checkOut(t, p, 5)()
		}
		if got := f.live(); !slices.Equal(got, before) || p.Stats().Moved != 0 {
			t.Errorf("sessions by node %v, were %v; %d moved", got, before, p.Stats().Moved)
		}
		var held []*Session
		for i := range 40 {
			s, ok := p.Try(Ask{Class: Normal})
			if !ok {
				t.Fatalf("only %d sessions are leased; want those of missing nodes, too", i)
			}
			if i < 15 && s.Node() <= 2 {
				t.Errorf("lease %d is on missing node %d", i, s.Node())
			}
			held = append(held, s)
		}
		for _, s := range held {
			p.Release(s)
		}
		p.SetView(weights(1, 1, 1, 1))
		time.Sleep(20 * time.Second)
		if got := f.live(); !slices.Equal(got, before) {
			t.Errorf("sessions by node %v after all came back; were %v", got, before)
		}
	})
}

func TestViews(t *testing.T) {
	use := func(u cluster.Use, leaving bool) func(*cluster.ViewNode) {
		return func(n *cluster.ViewNode) { n.Use, n.Condition.Draining = u, leaving }
	}
	tests := []struct {
		name   string
		change func(*cluster.ViewNode) // of node 2; nil: it leaves the view
		idle   int                     // sessions of node 2 afterwards, of 5 idle ones
		leased int                     // and when one that was checked out came back
	}{
		{"new", use(cluster.UseNew, false), 5, 6},
		{"open", use(cluster.UseOpen, false), 0, 0},
		{"open_and_leaving", use(cluster.UseOpen, true), 0, 0},
		{"none", use(cluster.UseNone, false), 0, 0},
		{"left_the_view", nil, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2)
				p := start(t, config(50), f, view(1, 2))
				checkOut(t, p, 12)()
				of2 := oneOfNode2(t, p)
				v := view(1, 2)
				if tt.change == nil {
					v = view(1)
				} else {
					tt.change(&v.Nodes[1])
				}
				p.SetView(v)
				synctest.Wait()
				if got := f.live(); got[0] != 6 || got[1] != tt.idle+1 {
					t.Errorf("sessions by node %v; want 6 and %d, one of them leased", got, tt.idle+1)
				}
				p.Release(of2)
				synctest.Wait()
				if got := f.live()[1]; got != tt.leased {
					t.Errorf("%d sessions on node 2 after the release; want %d", got, tt.leased)
				}
				eligible := v.Nodes[len(v.Nodes)-1].ID == 2 && v.Nodes[len(v.Nodes)-1].Use == cluster.UseNew
				var held []*Session
				for range 6 {
					g, err := p.Acquire(t.Context(), Ask{Class: Normal})
					if err != nil {
						t.Fatal(err)
					}
					if g.Node() == 2 && !eligible {
						t.Error("a session of node 2 was leased")
					}
					held = append(held, g.Session)
				}
				for _, s := range held {
					p.Release(s)
				}
			})
		})
	}
}

// oneOfNode2 checks out one session, which is of node 2.
func oneOfNode2(t *testing.T, p *Pool) *Session {
	t.Helper()
	for others := []*Session(nil); ; {
		s, ok := p.Try(Ask{Class: Normal})
		if !ok {
			t.Fatal("no session of node 2")
		}
		if s.Node() == 2 {
			for _, s := range others {
				p.Release(s)
			}
			return s
		}
		others = append(others, s)
	}
}

// A node that comes back serves waiting callers.
func TestReturningNodeServesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		cfg := config(2)
		p := start(t, cfg, f, view(1, 2))
		checkOut(t, p, 2)()
		f.set(1, nil, nil)
		p.SetView(viewOf(map[cluster.NodeID]cluster.Use{1: cluster.UseNew, 2: cluster.UseOpen}))
		release := checkOut(t, p, 1)
		defer release()
		f.set(1, blackHole, nil) // no room can be had
		f.set(2, nil, blackHole)
		got := make(chan cluster.NodeID, 1)
		w := NewWaiter(func(g Grant, err error) {
			got <- g.Node()
			p.Release(g.Session)
		})
		if _, err := p.Wait(w, Ask{Class: Normal}); err != nil {
			t.Fatal(err)
		}
		p.SetView(view(1, 2))
		if id := <-got; id != 2 {
			t.Errorf("served by node %d; want 2", id)
		}
	})
}

// The pool is full, and a node that gets nothing new holds half of it: its idle
// sessions make room for those who wait.
func TestIneligibleSessionsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		p := start(t, config(10), f, view(1, 2))
		checkOut(t, p, 10)()
		p.SetView(viewOf(map[cluster.NodeID]cluster.Use{1: cluster.UseNew, 2: cluster.UseOpen}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 10 { // the cap of a node that is alone
			g, err := p.Acquire(ctx, Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			if g.Node() != 1 {
				t.Errorf("session of node %d", g.Node())
			}
			defer p.Release(g.Session)
		}
		if got := f.live(); !slices.Equal(got, []int{10, 0}) || f.most != 10 {
			t.Errorf("sessions by node %v, at most %d; want all 10 on node 1", got, f.most)
		}
	})
}

// A node that comes back gets its share again: below the limit, at the limit with
// idle sessions, and at the limit with every session in use.
func TestReturningNodeGetsItsShare(t *testing.T) {
	for _, tt := range []struct {
		name     string
		sessions int
		busy     bool
	}{
		{"room", 12, false},
		{"full_and_idle", 30, false},
		{"full_and_busy", 30, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2, 3)
				cfg := config(30)
				p := start(t, cfg, f, view(1, 2, 3))
				checkOut(t, p, tt.sessions)()
				p.SetView(view(1, 2))
				checkOut(t, p, tt.sessions)()
				synctest.Wait()
				if got := f.live(); got[2] != 0 || got[0]+got[1] != tt.sessions {
					t.Fatalf("sessions by node %v; want none on node 3", got)
				}
				stop := make(chan struct{})
				var wg sync.WaitGroup
				if tt.busy {
					for range 60 {
						wg.Go(func() {
							for {
								select {
								case <-stop:
									return
								default:
								}
								g, err := p.Acquire(t.Context(), Ask{Class: Normal})
								if err != nil {
									t.Error(err)
									return
								}
								time.Sleep(10 * time.Millisecond)
								p.Release(g.Session)
							}
						})
					}
				}
				p.SetView(view(1, 2, 3))
				time.Sleep(3 * time.Second)
				close(stop)
				wg.Wait()
				synctest.Wait()
				evenly(t, f)
				if got := f.live(); got[2] == 0 || f.most > cfg.Max {
					t.Errorf("sessions by node %v, at most %d", got, f.most)
				}
				before := f.sum()
				time.Sleep(10 * time.Second)
				if f.sum() != before || f.node(3).opens > 30 {
					t.Errorf("the pool does not come to rest: %d sessions, then %d", before, f.sum())
				}
			})
		})
	}
}

// When a second node appears the cap of the first falls to a half: it comes down
// to it although it is busy, and sessions in excess of what is needed are not lost.
func TestFallingCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		p := start(t, config(20), f, view(1))
		release := checkOut(t, p, 20)
		p.SetView(view(1, 2))
		time.Sleep(5 * time.Second)
		release()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := f.live(); got[0] != 10 || got[1] < 9 || got[1] > 10 {
			t.Errorf("sessions by node %v; want 10 and about as many", got)
		}
	})
}
