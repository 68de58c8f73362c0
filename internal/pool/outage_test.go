package pool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// A node is drained under full load: it is empty soon, and nobody notices.
func TestDrained(t *testing.T) {
	for _, use := range []cluster.Use{cluster.UseOpen, cluster.UseNone} {
		for _, callers := range []int{50, 20, 100}[:short.Of(3, 1)] {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2, 3)
				for id := range f.nodes {
					f.set(id, random, random)
				}
				p := start(t, config(50), f, view(1, 2, 3))
				checkOut(t, p, 50)()
				stop := load(t, p, callers, 20*time.Millisecond, 5*time.Millisecond)
				time.Sleep(time.Second)
				before := f.node(3).opens
				p.SetView(viewOf(map[cluster.NodeID]cluster.Use{1: cluster.UseNew, 2: cluster.UseNew, 3: use}))
				time.Sleep(200 * time.Millisecond)
				if got := f.live(); got[2] != 0 || f.node(3).opens != before {
					t.Errorf("%v, %d callers: sessions by node %v, %d opened on the one that is drained", use, callers,
						got, f.node(3).opens-before)
				}
				time.Sleep(5 * time.Second)
				stop()
				if got := f.live(); got[0]+got[1] < min(callers, 50)*8/10 {
					t.Errorf("%v, %d callers: sessions by node %v", use, callers, got)
				}
				if most := f.node(3).mostDeleting; most > endsAtATime {
					t.Errorf("%d deletions at a time; want at most %d", most, endsAtATime)
				}
			})
		}
	}
}

// However many sessions wait for their deletion, each has its time, no more.
func TestDeletionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		f.set(1, nil, blackHole)
		cfg := config(400)
		p := start(t, cfg, f, view(1, 2))
		checkOut(t, p, 400)()
		p.SetView(viewOf(map[cluster.NodeID]cluster.Use{1: cluster.UseNone, 2: cluster.UseNew}))
		synctest.Wait()
		if st := p.Stats(); st.Closing != 200 || f.node(1).deleting != endsAtATime {
			t.Errorf("%d closing, %d of them under way; want 200 and %d", st.Closing, f.node(1).deleting, endsAtATime)
		}
		time.Sleep(cfg.DeleteTimeout)
		synctest.Wait()
		if got := f.live(); got[0] != 0 || got[1] != 200 {
			t.Errorf("sessions by node %v after the time for deletion", got)
		}
		// At the end as well.
		f.set(2, nil, blackHole)
		began := time.Now()
		if err := p.Close(t.Context()); err != nil || time.Since(began) > cfg.DeleteTimeout || f.node(2).mostDeleting != endsAtTheLast {
			t.Errorf("Close: %v after %v, %d deletions at a time", err, time.Since(began), f.node(2).mostDeleting)
		}
	})
}

// Sessions that wait for their deletion are deleted, in the time that each has, while their node
// answers; but none waits for long.
func TestDeletionsThatWait(t *testing.T) {
	for _, tt := range []struct {
		name   string
		each   time.Duration
		close  bool // the pool, at the end
		left   int  // sessions that were not deleted
		within time.Duration
	}{
		{"all_are_deleted", time.Second, false, 0, 13 * time.Second},
		{"some_are_given_up", 1900 * time.Millisecond, false, 200 - 10*endsAtATime, 20 * time.Second},
		{"fewer_wait_at_the_end", 900 * time.Millisecond, true, 200 - 2*endsAtTheLast, 2 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2)
				f.set(1, nil, after(tt.each, nil))
				p := start(t, config(400), f, view(1, 2))
				checkOut(t, p, 400)()
				began := time.Now()
				if tt.close {
					if err := p.Close(t.Context()); err != nil {
						t.Error(err)
					}
				} else {
					p.SetView(viewOf(map[cluster.NodeID]cluster.Use{1: cluster.UseNone, 2: cluster.UseNew}))
				}
				for f.live()[0] > 0 {
					time.Sleep(10 * time.Millisecond)
				}
				if took := time.Since(began); took > tt.within+10*time.Millisecond {
					t.Errorf("took %v; want %v", took, tt.within)
				}
				if got := f.node(1).undeleted; got != tt.left {
					t.Errorf("%d sessions were not deleted; want %d", got, tt.left)
				}
			})
		})
	}
}

var errDown = errors.New("connection refused")

// All nodes are down for a while. Of those who wait nobody is lost, and when the
// first node is back there is full service within two seconds, and no rush.
func TestOutage(t *testing.T) {
	for _, tt := range []struct {
		name string
		open func(context.Context) error
		told bool // the view says so
	}{
		{"refuse", after(time.Millisecond, errDown), false},
		{"refuse_and_told", after(time.Millisecond, errDown), true},
		{"silent_and_told", blackHole, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2, 3)
				p := start(t, config(50), f, view(1, 2, 3))
				checkOut(t, p, 50)()
				for id := range f.nodes {
					f.set(id, tt.open, after(time.Millisecond, nil))
				}
				for range 50 { // the nodes' streams broke
					for id := range f.nodes {
						if r := f.any(id); r != nil {
							r.retire("the connection broke")
							synctest.Wait()
						}
					}
				}
				down := view(1, 2, 3)
				for i := range down.Nodes {
					down.Nodes[i].Condition = cluster.Condition{Health: cluster.Ejected, Unreachable: true}
				}
				p.SetView(down)
				f.forget()
				served := serveMany(t, p, 200)
				time.Sleep(10 * time.Second)
				if n := f.busiest(time.Second); n > 3*16+3*2 {
					t.Errorf("%d openings within a second while all are down", n)
				}
				f.forget()
				f.set(1, random, nil)
				back := time.Now()
				if tt.told {
					time.Sleep(100 * time.Millisecond) // a probe found out
					up := view(1, 2, 3)
					up.Nodes[0].Condition = cluster.Condition{}
					up.Nodes[1].Condition, up.Nodes[2].Condition = down.Nodes[1].Condition, down.Nodes[2].Condition
					up.Nodes[1].Use, up.Nodes[2].Use = cluster.UseNone, cluster.UseNone
					p.SetView(up)
				}
				for range 200 {
					if late := (<-served).Sub(back); late > 2*time.Second || tt.told && late > time.Second {
						t.Fatalf("served %v after the first node was back", late)
					}
				}
				if most := f.node(1).mostOpening; most > 16 {
					t.Errorf("%d openings on node 1 at a time", most)
				}
				// One first, then more and more.
				if n := f.node(1).opens; n > 50 {
					t.Errorf("%d openings on node 1", n)
				}
			})
		})
	}
}

// serveMany has callers use sessions for 10 ms. It returns when each was done.
func serveMany(t *testing.T, p *Pool, callers int) <-chan time.Time {
	served := make(chan time.Time, callers)
	for range callers {
		go func() {
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(10 * time.Millisecond)
			p.Release(g.Session)
			served <- time.Now()
		}()
	}
	return served
}
