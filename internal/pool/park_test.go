package pool

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
)

// ejected is a view of two nodes of which the second is ejected for refusals.
func ejected(change func(*cluster.ViewNode)) cluster.View {
	v := viewOf(map[cluster.NodeID]cluster.Use{1: cluster.UseNew, 2: cluster.UseOpen})
	v.Nodes[1].Condition = cluster.Condition{Health: cluster.Ejected, Cause: cluster.CauseRefusals}
	if change != nil {
		change(&v.Nodes[1])
	}
	return v
}

// checkOutOf checks out a session of one node, of those that are idle.
func checkOutOf(t *testing.T, p *Pool, id cluster.NodeID) (s *Session) {
	t.Helper()
	var others []*Session
	for s == nil {
		next, ok := p.Try(Ask{Class: Normal})
		switch {
		case !ok:
			t.Fatalf("no session of node %d", id)
		case next.Node() == id:
			s = next
		default:
			others = append(others, next)
		}
	}
	for _, o := range others {
		p.Release(o)
	}
	return s
}

// Only a node that is ejected for its own load has its sessions parked, those that are idle
// and those that come back.
func TestWhoParks(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*cluster.ViewNode)
		parks  bool
	}{
		"refuses":           {nil, true},
		"is slow":           {func(n *cluster.ViewNode) { n.Condition.Cause = cluster.CauseLatency }, true},
		"is probed":         {func(n *cluster.ViewNode) { n.Condition.Health = cluster.Probing }, true},
		"is missing, too":   {func(n *cluster.ViewNode) { n.Missing = true }, true},
		"cannot be reached": {func(n *cluster.ViewNode) { n.Use, n.Condition.Unreachable = cluster.UseNone, true }, false},
		"cannot be reached, probed": {func(n *cluster.ViewNode) {
			n.Use, n.Condition.Health, n.Condition.Unreachable = cluster.UseNone, cluster.Probing, true
		}, false},
		"leaves":         {func(n *cluster.ViewNode) { n.Condition.Draining = true }, false},
		"is banned":      {func(n *cluster.ViewNode) { n.Condition.Banned = true }, false},
		"is gone":        {func(n *cluster.ViewNode) { n.Gone, n.Condition.Draining = true, true }, false},
		"is behind":      {func(n *cluster.ViewNode) { n.Pile.State = cluster.PileBehind }, false},
		"is detached":    {func(n *cluster.ViewNode) { n.Pile.State = cluster.PileDetached }, false},
		"is not ejected": {func(n *cluster.ViewNode) { n.Condition = cluster.Condition{} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2)
				p := start(t, config(50), f, view(1, 2))
				checkOut(t, p, 12)()
				s := checkOutOf(t, p, 2)
				p.SetView(ejected(tt.change))
				synctest.Wait()
				want := 0
				if tt.parks {
					want = 5
				}
				if st := p.Stats(); st.Parked != want || st.Aside != 0 || st.Idle != 6+want || st.InUse != 1 || f.live()[1] != want+1 {
					t.Errorf("%+v; want %d parked", st, want)
				}
				p.Release(s)
				synctest.Wait()
				if tt.parks {
					want++
				}
				if st := p.Stats(); st.Parked != want || f.live()[1] != want {
					t.Errorf("%d parked, %d on the node after the release; want %d", st.Parked, f.live()[1], want)
				}
				for range 20 {
					if n := get(t, p).Node(); n != 1 {
						t.Fatalf("a session of node %d was leased", n)
					}
				}
				for s := range p.liveLocked() {
					if s.inUse {
						p.Release(s)
					}
				}
			})
		})
	}
}

// What ends the time of parked sessions.
func TestParkingEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		do     func(p *Pool)
		within time.Duration // they are there until then, and not much longer; 0: at once
	}{
		"the node is lost": {do: func(p *Pool) {
			p.SetView(ejected(func(n *cluster.ViewNode) { n.Use, n.Condition.Unreachable = cluster.UseNone, true }))
		}},
		"the node leaves":          {do: func(p *Pool) { p.SetView(ejected(func(n *cluster.ViewNode) { n.Condition.Draining = true })) }},
		"the node leaves the view": {do: func(p *Pool) { p.SetView(view(1)) }},
		"a minute": {do: func(p *Pool) {
			for range 3 { // further views do not begin it again
				time.Sleep(10 * time.Second)
				p.SetView(ejected(func(n *cluster.ViewNode) { n.Condition.Health = cluster.Probing }))
			}
		}, within: parkMax},
		"unused":        {change: func(c *Config) { c.Idle, c.Min = 20*time.Second, 6 }, within: 20 * time.Second},
		"age":           {change: func(c *Config) { c.Age = 20 * time.Second }, within: 16 * time.Second},
		"a smaller max": {do: func(p *Pool) { c := p.Config(); c.Max = 6; p.Reconfigure(c) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2)
				cfg := config(50)
				if tt.change != nil {
					tt.change(&cfg)
				}
				p := start(t, cfg, f, view(1, 2))
				checkOut(t, p, 12)()
				began := time.Now()
				p.SetView(ejected(nil))
				synctest.Wait()
				if n := p.Stats().Parked; n != 6 {
					t.Fatalf("%d parked; want 6", n)
				}
				if tt.do != nil {
					tt.do(p)
				}
				if rest := tt.within - time.Since(began) - time.Millisecond; rest > 0 {
					time.Sleep(rest)
					if got := f.live()[1]; got != 6 {
						t.Errorf("%d sessions on the node after %v; want 6", got, time.Since(began))
					}
					time.Sleep(5 * time.Second)
				}
				synctest.Wait()
				if got := f.live(); got[1] != 0 || got[0] != 6 && name != "age" || p.Stats().Parked != 0 {
					t.Errorf("sessions by node %v, %d parked; want 6 and none", got, p.Stats().Parked)
				}
			})
		})
	}
}

// Parked sessions and the limits.
func TestParked(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		play   func(t *testing.T, p *Pool, f *servers)
	}{
		// 6 sessions on each of two nodes of a pool of 20, and the second is ejected.
		"are used when the node is back": {nil, func(t *testing.T, p *Pool, f *servers) {
			p.SetView(view(1, 2))
			synctest.Wait()
			checkOut(t, p, 12)()
			if got := f.live(); !slices.Equal(got, []int{6, 6}) || f.sum() != int(p.Stats().Created) {
				t.Errorf("sessions by node %v, %d opened", got, p.Stats().Created)
			}
		}},
		"stay in the slow start": {nil, func(t *testing.T, p *Pool, f *servers) {
			for _, share := range []float32{0.1, 0.2, 0.4, 0.6, 0.8, 0} {
				v := view(1, 2)
				v.Nodes[0].Weight, v.Nodes[1].Weight, v.Nodes[1].Condition.Ramp = 1, share, share
				if share == 0 {
					v.Nodes[1].Weight = 1
				}
				p.SetView(v)
				time.Sleep(2 * time.Second)
			}
			if got, st := f.live(), p.Stats(); !slices.Equal(got, []int{6, 6}) || st.Moved != 0 || st.Created != 12 {
				t.Errorf("sessions by node %v, %d moved, %d opened", got, st.Moved, st.Created)
			}
		}},
		"serve who waits when the node is back": {nil, func(t *testing.T, p *Pool, f *servers) {
			f.set(1, blackHole, nil)
			f.set(2, blackHole, nil)
			defer checkOut(t, p, 6)()
			served := make(chan cluster.NodeID, 1)
			w := NewWaiter(func(g Grant, err error) {
				served <- g.Node()
				p.Release(g.Session)
			})
			if g, err := p.Wait(w, Ask{Class: Normal}); g.Session != nil || err != nil {
				t.Fatalf("%v, %v; want to wait", g.Session, err)
			}
			time.Sleep(time.Second) // the opening for its sake stalls
			opens := f.node(2).opens
			p.SetView(view(1, 2))
			synctest.Wait()
			select {
			case id := <-served:
				if id != 2 || f.node(2).opens != opens {
					t.Errorf("served by node %d, %d more opened on the one that is back", id, f.node(2).opens-opens)
				}
			default:
				t.Error("a caller waits beside idle sessions of a node that is back")
			}
		}},
		"make room for callers, no more than they need": {func(c *Config) { c.Max = 12 }, func(t *testing.T, p *Pool, f *servers) {
			f.set(2, nil, after(time.Millisecond, nil))
			began := time.Now()
			defer checkOut(t, p, 9)()
			took := time.Since(began)
			time.Sleep(time.Second)
			if got := f.live(); !slices.Equal(got, []int{9, 3}) || f.most > 12 || took > 10*time.Millisecond {
				t.Errorf("sessions by node %v after %v, at most %d; want 9 and 3", got, took, f.most)
			}
			defer checkOut(t, p, 3)()
			time.Sleep(time.Second)
			if got := f.live(); !slices.Equal(got, []int{12, 0}) || f.most > 12 {
				t.Errorf("sessions by node %v, at most %d; want all on node 1", got, f.most)
			}
		}},
		"stay where their room helps nobody": {func(c *Config) { c.Max, c.MaxPerNode = 12, 6 }, func(t *testing.T, p *Pool, f *servers) {
			defer checkOut(t, p, 6)()
			done := make(chan struct{})
			go func() {
				defer close(done)
				p.Release(get(t, p))
			}()
			time.Sleep(10 * time.Second)
			if got := f.live(); !slices.Equal(got, []int{6, 6}) {
				t.Errorf("sessions by node %v; node 1 is at its cap", got)
			}
			p.SetView(view(1, 2))
			<-done
		}},
		"are those that come back while callers wait": {func(c *Config) { c.Max, c.MaxPerNode = 12, 6 },
			func(t *testing.T, p *Pool, f *servers) {
				p.SetView(view(1, 2))
				synctest.Wait()
				of2 := checkOutOf(t, p, 2)
				p.SetView(ejected(nil))
				synctest.Wait()
				of1 := checkOut(t, p, 6)
				done := make(chan struct{})
				go func() {
					defer close(done)
					p.Release(get(t, p))
				}()
				synctest.Wait()
				p.Release(of2)
				synctest.Wait()
				if n := p.Stats().Parked; n != 6 {
					t.Errorf("%d parked; want 6", n)
				}
				of1()
				<-done
			}},
		"are not those beyond a smaller max": {nil, func(t *testing.T, p *Pool, f *servers) {
			p.SetView(view(1, 2))
			synctest.Wait()
			back := checkOut(t, p, 12)
			p.SetView(ejected(nil))
			c := p.Config()
			c.Max = 6
			p.Reconfigure(c)
			back()
			synctest.Wait()
			if st := p.Stats(); st.Sessions > 6 {
				t.Errorf("%d sessions, %d parked; want 6 at most", st.Sessions, st.Parked)
			}
		}},
		"are no part of the minimum": {func(c *Config) { c.Min = 12 }, func(t *testing.T, p *Pool, f *servers) {
			time.Sleep(5 * time.Second)
			if got := f.live(); !slices.Equal(got, []int{12, 6}) {
				t.Errorf("sessions by node %v; want 12 and those parked", got)
			}
		}},
		"make no room for the minimum": {func(c *Config) { c.Max, c.Min = 15, 12 }, func(t *testing.T, p *Pool, f *servers) {
			time.Sleep(5 * time.Second)
			if got := f.live(); !slices.Equal(got, []int{9, 6}) {
				t.Errorf("sessions by node %v; want those parked, and others up to 15", got)
			}
		}},
		"leave the limit to the others": {nil, func(t *testing.T, p *Pool, f *servers) {
			p.SetLimit(4)
			synctest.Wait()
			if st := p.Stats(); st.Parked != 6 || st.Aside != 2 || st.Idle != 12 {
				t.Errorf("%+v; want 6 parked, 2 beyond the limit", st)
			}
			p.SetView(view(1, 2))
			synctest.Wait()
			if st := p.Stats(); st.Parked != 0 || st.Aside != 8 {
				t.Errorf("%+v; want 8 beyond the limit", st)
			}
			defer checkOut(t, p, 4)()
			p.SetView(ejected(nil))
			synctest.Wait()
			if st := p.Stats(); st.Parked+st.Aside != 8 || st.InUse != 4 || f.sum() != 12 {
				t.Errorf("%+v; want 4 in use", st)
			}
			p.SetLimit(20)
			defer checkOut(t, p, 12)()
		}},
		"are named as idle": {nil, func(t *testing.T, p *Pool, f *servers) {
			for _, s := range p.Sessions() {
				if s.InUse {
					t.Errorf("a session of node %d is leased", s.Node)
				}
			}
			if peak, limited := p.Use(); peak > 12 || limited {
				t.Errorf("%d in use, limited: %t", peak, limited)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2)
				cfg := config(20)
				if tt.change != nil {
					tt.change(&cfg)
				}
				p := start(t, cfg, f, view(1, 2))
				checkOut(t, p, 12)()
				p.SetView(ejected(nil))
				synctest.Wait()
				if st := p.Stats(); st.Parked != 6 {
					t.Fatalf("%+v; want 6 parked", st)
				}
				tt.play(t, p, f)
			})
		})
	}
}

// Pools within a budget give what is parked at once and first, to their own callers and to others.
func TestParkedPermits(t *testing.T) {
	for name, tt := range map[string]struct {
		leased [2]int // of the 3 sessions of the first pool that are not parked, of the 10 of the other
		needs  int    // the pool that needs more
		shed   uint64
	}{
		"their own":    {[2]int{3, 0}, 0, 0},
		"another pool": {[2]int{0, 10}, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := startFamily(t, 16, 2, nil)
				checkOut(t, y.pools[0], 6)()
				checkOut(t, y.pools[1], 10)()
				y.pools[0].SetView(ejected(nil))
				synctest.Wait()
				if n := y.pools[0].Stats().Parked; n != 3 {
					t.Fatalf("%d parked; want 3", n)
				}
				for i, n := range tt.leased {
					defer checkOut(t, y.pools[i], n)()
				}
				began := time.Now()
				defer checkOut(t, y.pools[tt.needs], 2)()
				if took := time.Since(began); took > 2*(budget.LookEvery+2*time.Millisecond) {
					t.Errorf("2 sessions took %v while 3 were parked", took)
				}
				synctest.Wait()
				y.check()
				if n, st := y.pools[0].Stats().Parked, y.Stats(); n != 1 || st.Used != 16 || st.Yielded != tt.shed {
					t.Errorf("%d parked, %+v; want 1, 16 used, %d shed", n, st, tt.shed)
				}
			})
		})
	}
}
