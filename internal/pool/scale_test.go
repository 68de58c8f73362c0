package pool

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// What the pool looks at under its lock is counted here, in a pool of this size: nodes, slots and
// sessions, at some 10 to 50 ns each. TestMain sets them: 1,000 and 10,000, a quarter of it in a short run.
var manyNodes, manySessions int

// walkMost is how many may be looked at while the lock is held once.
func walkMost() int { return 20 * manyNodes }

// large is a pool with many sessions on many nodes. The test does what Run does elsewhere.
type large struct {
	*Pool
	f    *servers
	ids  []cluster.NodeID
	most int // looked at while the lock was held once
	sum  int
}

// newLarge opens all sessions of a pool. It must be called in a bubble.
func newLarge(t *testing.T, change func(*Config)) *large {
	t.Helper()
	l := &large{}
	for id := range cluster.NodeID(manyNodes) {
		l.ids = append(l.ids, id+1)
	}
	l.f = newServers(l.ids...)
	cfg := config(manySessions)
	cfg.Queue = 2 * manySessions
	cfg.CreateBurst = 1000
	if change != nil {
		change(&cfg)
	}
	l.Pool = New(cfg, l.f, nil)
	l.SetView(view(l.ids...))
	t.Cleanup(func() {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	checkOut(t, l.Pool, manySessions)()
	if n := l.Stats().Sessions; n != manySessions {
		t.Fatalf("%d sessions; want %d", n, manySessions)
	}
	return l
}

// look counts what is looked at under the lock, which do takes once.
func (l *large) look(do func()) {
	l.mu.Lock()
	before := l.walked
	l.mu.Unlock()
	do()
	l.mu.Lock()
	n := l.walked - before
	l.mu.Unlock()
	l.most = max(l.most, n)
	l.sum += n
}

// run does what Run does, for a time.
func (l *large) run(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		next := time.Duration(0)
		l.look(func() { next, _, _ = l.maintain() })
		time.Sleep(min(next, time.Until(end)))
		synctest.Wait()
	}
}

// check compares what was looked at with the bounds: for a time, with 1,000 nodes, 1 % of a core.
func (l *large) check(t *testing.T, d time.Duration) {
	t.Helper()
	if l.most > walkMost() {
		t.Errorf("looked at %d nodes, slots and sessions while the lock was held; want at most %d", l.most, walkMost())
	}
	if perSecond := float64(l.sum) / d.Seconds(); perSecond > 500*float64(manyNodes) {
		t.Errorf("looked at %.0f a second; want at most %d", perSecond, 500*manyNodes)
	}
	t.Logf("looked at %d at a time, %.0f a second", l.most, float64(l.sum)/d.Seconds())
	l.most, l.sum = 0, 0
}

// Sessions that nobody uses any more are found and closed by short looks.
func TestExpiryIsCheap(t *testing.T) {
	for _, least := range []int{0, manySessions / 20, manySessions / 2} {
		synctest.Test(t, func(t *testing.T) {
			l := newLarge(t, func(c *Config) { c.Min = least })
			idle := l.Config().Idle
			l.run(idle * 13 / 10)
			if n := l.f.sum(); n != least {
				t.Errorf("%d sessions are left; want %d", n, least)
			}
			for i, n := range l.f.live() {
				if most := (least + manyNodes - 1) / manyNodes; n > most {
					t.Errorf("%d sessions are left on node %d; want at most %d", n, i+1, most)
				}
			}
			l.check(t, idle*13/10)
		})
	}
}

// A pool that starts does not look at all nodes for each session, and a view of the same nodes does not sort them again.
func TestOpeningIsCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLarge(t, func(c *Config) { c.CreateBurst = Default().CreateBurst })
		if perSession := l.walked / manySessions; perSession > 10 {
			t.Errorf("looked at %d nodes and slots for each session that was opened; want at most 10", perSession)
		}
		for i, n := range l.f.live() {
			if n != manySessions/manyNodes {
				t.Errorf("%d sessions on node %d", n, i+1)
			}
		}
		v := view(l.ids...)
		v.Nodes[7].Weight = 2
		if l.look(func() { l.SetView(v) }); l.sum == 0 || l.sum > 16*manyNodes {
			t.Errorf("looked at %d nodes for a weight; want at most %d", l.sum, 16*manyNodes)
		}
	})
}

// A view is dealt with in a time in proportion to the nodes, whatever it says of them and whatever is under way there.
func TestViewsAreCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLarge(t, nil)
		uses := func(use cluster.Use) cluster.View {
			v := view(l.ids...)
			for i := range v.Nodes {
				if v.Nodes[i].Use = use; use == cluster.UseOpen {
					v.Nodes[i].Condition.Health = cluster.Ejected
				}
			}
			return v
		}
		l.mu.Lock()
		hang := make([]*opening, 0, manyNodes)
		for _, n := range l.order {
			o := &opening{node: n, stalled: true, cancel: func() {}}
			hang, l.openings[o] = append(hang, o), struct{}{}
		}
		l.mu.Unlock()
		for _, tt := range []struct {
			name string
			v    cluster.View
			most int  // of each node
			ends bool // what hangs there
		}{
			{"the_same", uses(cluster.UseNew), 17, false},
			{"all_are_ejected", uses(cluster.UseOpen), 20 + len(l.slots), true},
			{"all_stay_ejected", uses(cluster.UseOpen), 20 + len(l.slots), true},
			{"all_come_back", uses(cluster.UseNew), 17, true},
			{"all_are_gone", cluster.View{}, 20 + len(l.slots), true},
		} {
			l.sum = 0
			for _, o := range hang {
				o.givenUp = false
			}
			if l.look(func() { l.SetView(tt.v) }); l.sum > tt.most*manyNodes {
				t.Errorf("%s: looked at %d nodes, slots, sessions and openings; want at most %d", tt.name, l.sum, tt.most*manyNodes)
			}
			t.Logf("%s: %d", tt.name, l.sum)
			for _, o := range hang {
				if o.givenUp != tt.ends {
					t.Fatalf("%s: an opening that hangs is given up: %v", tt.name, o.givenUp)
				}
			}
		}
		l.mu.Lock()
		for _, o := range hang {
			delete(l.openings, o)
		}
		l.mu.Unlock()
	})
}

// Sessions move to other nodes by short looks, also while those that lack most can have none.
func TestMovingIsCheap(t *testing.T) {
	for name, tt := range map[string]struct {
		room  int
		inUse bool // all sessions
		fail  bool // the nodes that lack sessions
		least int  // sessions that move
	}{
		"with_room": {room: manySessions / 100, least: manySessions / 10}, "when_full": {least: manySessions / 10},
		"when_all_are_in_use":   {inUse: true, least: manySessions / 100},
		"when_nothing_can_move": {room: manySessions / 100, fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLarge(t, func(c *Config) {
					c.Idle = 0
					c.Max += tt.room
				})
				back := func() {}
				if tt.inUse {
					back = checkOut(t, l.Pool, manySessions)
				}
				v := view(l.ids...)
				for i := range v.Nodes {
					v.Nodes[i].Weight = 1
					if i < manyNodes/50 {
						v.Nodes[i].Weight = 10
						if tt.fail {
							l.f.set(v.Nodes[i].ID, after(time.Millisecond, errDown), nil)
						}
					}
				}
				l.SetView(v)
				l.run(10 * time.Second)
				if moved := int(l.Stats().Moved); moved < tt.least || tt.least == 0 && moved > 0 {
					t.Errorf("%d sessions moved; want at least %d", moved, tt.least)
				}
				l.check(t, 10*time.Second)
				back()
			})
		})
	}
}

// When the time of all who wait is over at once, the figures in their errors are counted for all.
func TestTimeoutsAreCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		callers := manyNodes
		l := newLarge(t, nil)
		back := checkOut(t, l.Pool, manySessions)
		within, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var waiting sync.WaitGroup
		for range callers {
			waiting.Go(func() {
				_, err := l.Acquire(within, Ask{Class: Normal})
				var late *WaitError
				if !errors.As(err, &late) || late.Live != manySessions || late.Busy != manySessions {
					t.Errorf("%v; want %d of %d in use", err, manySessions, manySessions)
				}
			})
		}
		synctest.Wait()
		l.look(waiting.Wait)
		for range callers { // callers that come too late
			l.look(func() { _, _ = l.Acquire(within, Ask{Class: Normal}) })
		}
		if l.sum > 10*manyNodes {
			t.Errorf("looked at %d nodes, slots and sessions for %d callers; want at most %d", l.sum, 2*callers, 10*manyNodes)
		}
		back()
	})
}

// Nodes that have left go one by one, as their last sessions are deleted.
func TestNodesThatGoAreCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLarge(t, nil)
		l.SetView(view(l.ids[:manyNodes/2]...))
		l.look(synctest.Wait)
		if n := len(l.order); n != manyNodes/2 || l.sum > walkMost() {
			t.Errorf("looked at %d nodes for %d that went; want at most %d", l.sum, manyNodes-n, walkMost())
		}
	})
}

// Figures and lists for metrics and state pages are made by short looks, and are whole.
func TestFiguresAreCheap(t *testing.T) {
	defer func(nodes, sessions int) { manyNodes, manySessions = nodes, sessions }(manyNodes, manySessions)
	manyNodes, manySessions = 1000, 10_000 // several pieces
	synctest.Test(t, func(t *testing.T) {
		l := newLarge(t, nil)
		back := checkOut(t, l.Pool, manySessions/2)
		holds, began := 0, 0
		next := func() {
			holds++
			l.most = max(l.most, l.walked-began)
			began = l.walked
		}
		whole := func(do func()) {
			l.mu.Lock()
			holds, began, l.breathes = 0, l.walked, next
			l.mu.Unlock()
			do()
			l.mu.Lock()
			next()
			l.breathes = nil
			l.mu.Unlock()
		}
		for _, c := range []struct {
			name  string
			do    func()
			most  int
			holds int
		}{
			{"stats", func() {
				st := l.Stats()
				if st.Sessions != manySessions || st.InUse != manySessions/2 || st.Idle != manySessions/2 || len(st.Nodes) != manyNodes {
					t.Errorf("%+v, %d nodes", st.Counts, len(st.Nodes))
				}
			}, 5 * manyNodes, 3},
			{"sessions", func() {
				leased := 0
				all := l.Sessions()
				for _, s := range all {
					if s.InUse {
						leased++
					}
				}
				if len(all) != manySessions || leased != manySessions/2 {
					t.Errorf("%d sessions, %d leased", len(all), leased)
				}
			}, 2 * manyNodes, manySessions / statsPiece},
		} {
			l.most = 0
			if whole(c.do); l.most > c.most || holds < c.holds {
				t.Errorf(
					"%s: looked at up to %d nodes, slots and sessions while the lock was held, %d times; want at most %d, and %d times",
					c.name, l.most, holds, c.most, c.holds,
				)
			}
			t.Logf("%s: %d at a time, %d times", c.name, l.most, holds)
		}
		l.most = 0
		back()
	})
}
