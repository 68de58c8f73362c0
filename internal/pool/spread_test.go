package pool

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// shares fails if a node's sessions are off its part of them, by weight, by more
// than a fifth and more than one and a half.
func shares(t *testing.T, f *servers, weights ...float64) {
	t.Helper()
	live, sum := f.live(), 0.0
	for _, w := range weights {
		sum += w
	}
	for i, w := range weights {
		fair := float64(f.sum()) * w / sum
		off := max(float64(live[i])-fair, fair-float64(live[i]))
		if off > driftLeast && off > fair*driftPart {
			t.Errorf("sessions by node %v; want them like %v", live, weights)
			return
		}
	}
}

// load runs callers that use sessions until the function it returns is called.
func load(t *testing.T, p *Pool, callers int, hold, pause time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				limit, done := context.WithTimeout(t.Context(), time.Second)
				g, err := p.Acquire(limit, Ask{Class: Normal})
				done()
				if err != nil {
					t.Errorf("Acquire: %v", err)
					continue
				}
				time.Sleep(rand.N(2 * hold))
				p.Release(g.Session)
				time.Sleep(rand.N(2*pause + 1))
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// random takes a random time, 5 ms in the mean.
func random(ctx context.Context) error { return after(rand.N(10*time.Millisecond), nil)(ctx) }

func TestFair(t *testing.T) {
	tests := []struct {
		name    string
		weights []float64
		limits  int
		sum     float64
		want    []float64
	}{
		{"equal", []float64{1, 1, 1}, 50, 30, []float64{10, 10, 10}},
		{"by_weight", []float64{1, 0.5, 0.5}, 50, 20, []float64{10, 5, 5}},
		{"no_weight_gets_nothing", []float64{1, 0, 1}, 50, 20, []float64{10, 0, 10}},
		{"the_rest_of_a_full_one", []float64{8, 1, 1}, 10, 20, []float64{10, 5, 5}},
		{"one_after_the_other", []float64{8, 4, 1, 1}, 10, 30, []float64{10, 10, 5, 5}},
		{"no_weight_gets_the_rest", []float64{1, 1, 0, 0}, 10, 26, []float64{10, 10, 3, 3}},
		{"more_than_fits", []float64{1, 0}, 10, 30, []float64{10, 10}},
		{"nothing", []float64{1, 0}, 10, 0, []float64{0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var nodes []*node
			for _, w := range tt.weights {
				nodes = append(nodes, &node{guarded: guarded{view: nodeView{weight: w, cap: tt.limits}}})
			}
			fair(nodes, tt.sum)
			for i, n := range nodes {
				if d := n.balance.fair - tt.want[i]; d > 1e-6 || d < -1e-6 {
					t.Errorf("node %d: %v; want %v", i, n.balance.fair, tt.want)
				}
			}
		})
	}
}

func TestGrowsByWeight(t *testing.T) {
	tests := []struct {
		name       string
		weights    []float32
		maxPerNode int
		sessions   int
		want       []int
	}{
		{"in_proportion", []float32{1, 0.5, 0.5}, 0, 40, []int{20, 10, 10}},
		{"slow_start", []float32{1, 1, 0.1}, 0, 42, []int{20, 20, 2}},
		{"one_takes_nearly_all", []float32{1, 0.1}, 0, 50, []int{45, 5}},
		{"none_with_weight_0", []float32{1, 0, 0}, 0, 50, []int{50, 0, 0}},
		{"all_with_weight_0", []float32{0, 0}, 0, 50, []int{25, 25}},
		{"weight_0_when_the_others_are_full", []float32{1, 1, 0, 0}, 10, 30, []int{10, 10, 5, 5}},
		{"never_above_a_cap", []float32{1, 0.1, 0.1}, 10, 30, []int{10, 10, 10}},
		{"what_cannot_be_is_nothing", []float32{1, -1, 1}, 0, 20, []int{10, 0, 10}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2, 3, 4)
				cfg := config(50)
				cfg.MaxPerNode = tt.maxPerNode
				p := start(t, cfg, f, weights(tt.weights...))
				defer checkOut(t, p, tt.sessions)()
				got := f.live()[:len(tt.want)]
				for i := range got {
					if d := got[i] - tt.want[i]; d < -1 || d > 1 || tt.weights[i] <= 0 && d != 0 {
						t.Errorf("sessions by node %v; want %v", got, tt.want)
						break
					}
				}
			})
		})
	}
}

// A node of weight 0 gets a session when the others cannot open any, not when
// they are busy opening.
func TestSpareNodes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		open  func(context.Context) error // on node 1, the only one with weight
		spare bool                        // is used
	}{
		{"slow", after(100*time.Millisecond, nil), false},
		{"fails", after(time.Millisecond, errRefused), true},
		{"stalls", blackHole, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2, 3)
				f.set(1, tt.open, nil)
				p := start(t, config(50), f, weights(1, 0, 0))
				var wg sync.WaitGroup
				for range 30 {
					wg.Go(func() {
						if g, err := p.Acquire(t.Context(), Ask{Class: Normal}); err != nil {
							t.Error(err)
						} else {
							time.Sleep(time.Second)
							p.Release(g.Session)
						}
					})
				}
				time.Sleep(900 * time.Millisecond)
				defer wg.Wait()
				if got := f.live(); (got[1]+got[2] > 0) != tt.spare {
					t.Errorf("sessions by node %v; want the others used: %v", got, tt.spare)
				}
			})
		})
	}
}

// Idle sessions of nodes of weight 0 are checked out when no other has any left, also
// when they rest in slots.
func TestSpareNodesAreLeasedLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(40)
		cfg.MaxPerNode, cfg.MoveRate = 20, 0
		p := start(t, cfg, newServers(1, 2), weights(1, 0))
		checkOut(t, p, 40)()
		for range 10 * slotTurns {
			s, ok := p.Try(Ask{Class: Normal})
			if !ok || s.Node() != 1 {
				t.Fatalf("leased %v of node %d; want one of node 1", ok, s.Node())
			}
			p.Release(s)
		}
		var held []*Session
		for i := range 40 {
			s, ok := p.Try(Ask{Class: Normal})
			// One of node 1 may rest in the slot of another P.
			if !ok || (s.Node() == 1) != (i < 20) && i != 20-len(p.slots) && i < 20-len(p.slots) {
				t.Fatalf("lease %d: %v, node %d", i, ok, s.Node())
			}
			held = append(held, s)
		}
		for _, s := range held {
			p.Release(s)
		}
	})
}

// A node joins three others: it has its share soon, at the pace that the settings
// say, and nobody notices.
func TestNodeAdded(t *testing.T) {
	for _, maxSessions := range []int{50, 5, 200}[:short.Of(3, 1)] {
		for _, busy := range []string{"idle", "half", "full"} {
			t.Run(strconv.Itoa(maxSessions)+"_"+busy, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newServers(1, 2, 3, 4)
					for id := range f.nodes {
						f.set(id, random, random)
					}
					cfg := config(maxSessions)
					cfg.Idle = 0
					p := start(t, cfg, f, view(1, 2, 3))
					callers := map[string]int{"idle": 0, "half": maxSessions / 2, "full": 2 * maxSessions}[busy]
					hold := time.Duration(maxSessions) * time.Millisecond // so that it is not too much work
					checkOut(t, p, maxSessions)()
					stop := load(t, p, callers, hold, 0)
					time.Sleep(time.Second)
					f.forget()
					p.SetView(view(1, 2, 3, 4))
					time.Sleep(10 * time.Second)
					stop()
					shares(t, f, 1, 1, 1, 1)
					if n := f.sum(); n < maxSessions-1-maxSessions/100 {
						t.Errorf("%d sessions are left of %d", n, maxSessions)
					}
					if f.node(4).most > f.live()[3]+1 {
						t.Errorf("node 4 had %d sessions at a time, has %d now", f.node(4).most, f.live()[3])
					}
					rate := max(1, maxSessions*cfg.MoveRate/100)
					if n := f.busiest(time.Second); n > rate+1+maxSessions/100 {
						t.Errorf("%d openings within a second; want at most %d", n, rate)
					}
					// It stays as it is.
					moved := p.Stats().Moved
					stop = load(t, p, callers, hold, 0)
					time.Sleep(10 * time.Second)
					stop()
					if st := p.Stats(); st.Moved != moved || st.Moving {
						t.Errorf("%d sessions moved, then %d, still moving: %v", moved, st.Moved, st.Moving)
					}
				})
			})
		}
	}
}

// Weights that rise in steps, nodes that leave and come back, at random, under
// load: nobody gets an error, and it all comes to rest at the shares.
func TestConverges(t *testing.T) {
	for seed := range uint64(short.Of(20, 3)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			f := newServers(1, 2, 3, 4, 5)
			for id := range f.nodes {
				f.set(id, random, random)
			}
			p := start(t, config(10+r.IntN(100)), f, view(1, 2, 3, 4, 5))
			stop := load(t, p, 1+r.IntN(100), 50*time.Millisecond, 100*time.Millisecond)
			var w []float64
			for range 10 {
				v := weights(1, 1, 1, 1, 1)
				w = []float64{1, 1, 1, 1, 1}
				for i := range v.Nodes[1:] {
					switch r.IntN(4) {
					case 0:
						w[i+1] = float64(1+r.IntN(10)) / 10
					case 1:
						v.Nodes[i+1].Use = cluster.Use(1 + r.IntN(2))
						w[i+1] = 0
					}
					v.Nodes[i+1].Weight = float32(w[i+1])
				}
				p.SetView(v)
				time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
			}
			time.Sleep(15 * time.Second)
			moved := p.Stats().Moved
			shares(t, f, w...)
			time.Sleep(20 * time.Second)
			stop()
			shares(t, f, w...)
			if st := p.Stats(); st.Moved != moved || st.Moving {
				t.Errorf("%d sessions moved, then %d, still moving: %v", moved, st.Moved, st.Moving)
			}
			if t.Failed() {
				t.Fatalf("seed %d: weights %v, %+v", seed, w, p.Stats())
			}
		})
	}
}

// A node that joins has its part of the sessions as soon as moves allow. They are used by the share of
// its slow start.
func TestANodeThatJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		p := start(t, config(60), f, weights(1, 1))
		checkOut(t, p, 60)()
		const calls = 42
		for _, tt := range []struct {
			share float32
			want  int // calls on the new node
		}{{0.1, 2}, {0.2, 4}, {0.4, 7}, {0.8, 12}, {0, 14}} {
			v := weights(1, 1, 1)
			if tt.share > 0 {
				v.Nodes[2].Weight, v.Nodes[2].Condition = tt.share, cluster.Condition{Ramp: tt.share, Joined: true}
			}
			p.SetView(v)
			time.Sleep(5 * time.Second)
			shares(t, f, 1, 1, 1)
			sum := 0
			const times = 10 // where a session is taken from is by chance, too
			for range times {
				release := checkOut(t, p, calls)
				sum += p.Stats().Nodes[2].InUse
				release()
			}
			if n := float64(sum) / times; n < float64(tt.want)-1 || n > float64(tt.want)+1 {
				t.Errorf("with a share of %v the new node has %v of %d calls on average; want %d", tt.share, n, calls, tt.want)
			}
		}
	})
}

// A slow start: the share rises step by step, and each session moves once.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		p := start(t, config(60), f, weights(1, 1))
		checkOut(t, p, 60)()
		for step := 1; step <= 10; step++ {
			w := float32(step) / 10
			p.SetView(weights(1, 1, w))
			time.Sleep(3 * time.Second)
			checkOut(t, p, 40)()
			shares(t, f, 1, 1, float64(w))
		}
		if st := p.Stats(); st.Moved > 21 || f.node(3).opens > 21 {
			t.Errorf("%d sessions moved, %d opened on node 3; want 20", st.Moved, f.node(3).opens)
		}
	})
}

// The spread drifts without anybody saying so: one node's sessions were lost, and
// reopened elsewhere because it refused for a while.
func TestDrift(t *testing.T) {
	for _, tt := range []struct {
		rate   int
		heals  bool
		weight float32
	}{{20, true, 1}, {20, true, 0.5}, {0, false, 1}} {
		synctest.Test(t, func(t *testing.T) {
			f := newServers(1, 2, 3, 4)
			cfg := config(30)
			cfg.MoveRate = tt.rate
			p := start(t, cfg, f, weights(1, 1, tt.weight, 0))
			checkOut(t, p, 24)()
			f.set(3, after(time.Millisecond, errRefused), nil)
			for s := f.any(3); s != nil; s = f.any(3) {
				s.retire("lost")
				synctest.Wait()
			}
			checkOut(t, p, 24)()
			if got := f.live(); got[2] != 0 {
				t.Fatalf("sessions by node %v; want none on node 3", got)
			}
			time.Sleep(5 * time.Second)
			if got := f.live(); got[2] != 0 || got[0]+got[1] != 24 {
				t.Errorf("sessions by node %v; want none moved to node 4, without weight, because node 3 refuses", got)
			}
			f.set(3, nil, nil)
			checkOut(t, p, 25)() // somebody finds out that it works
			time.Sleep(10 * time.Second)
			if got := f.live(); (got[2] > 3) != tt.heals || got[0]+got[1]+got[2] < 24 {
				t.Errorf("move_rate %d: sessions by node %v", tt.rate, got)
			}
			if tt.heals {
				shares(t, f, 1, 1, float64(tt.weight), 0)
			}
		})
	}
}

// A session in use is never moved under its holder, and one in use for long does
// not hold up the others.
func TestMovesSparesHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		p := start(t, config(20), f, weights(1))
		var held []*Session
		for range 20 {
			s, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, s.Session)
		}
		p.SetView(weights(1, 1))
		time.Sleep(time.Minute)
		marked := 0
		for _, s := range held {
			if s.gone {
				t.Fatal("a session was closed under its holder")
			}
			if !s.Valid() {
				marked++
			}
		}
		if marked != 10 {
			t.Errorf("%d of 20 sessions end at their release; want 10", marked)
		}
		for _, s := range held {
			p.Release(s)
		}
		time.Sleep(10 * time.Second)
		evenly(t, f)
		if n := f.sum(); n < 19 {
			t.Errorf("%d sessions are left of 20", n)
		}
	})
}

func must(g Grant, err error) Grant {
	if err != nil {
		panic(err)
	}
	return g
}

// However many nodes there are, and however many callers wait, openings under way
// are bounded; what waits for them is told.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3, 4, 5, 6)
		for id := range f.nodes {
			f.set(id, after(10*time.Millisecond, nil), nil)
		}
		cfg := config(100)
		cfg.CreateBurst = 4
		p := start(t, cfg, f, view(1, 2, 3, 4, 5, 6))
		for range 90 {
			go func() {
				g := must(p.Acquire(context.Background(), Ask{Class: Normal}))
				time.Sleep(time.Second)
				p.Release(g.Session)
			}()
		}
		synctest.Wait()
		if st := p.Stats(); st.Opening != 16 || st.Paced != 74 || st.Nodes[0].Window != 4 {
			t.Errorf("%d being opened, %d have to wait, window %d; want 16, 74, 4", st.Opening, st.Paced, st.Nodes[0].Window)
		}
		time.Sleep(time.Second)
		for id := range f.nodes {
			if n := f.node(id); n.mostOpening > 4 {
				t.Errorf("%d openings at a time on node %d", n.mostOpening, id)
			}
		}
		if st := p.Stats(); st.Sessions != 90 || st.Paced != 0 {
			t.Errorf("%d sessions, %d have to wait", st.Sessions, st.Paced)
		}
		time.Sleep(time.Second)
	})
}

// What is uneven once may be so by chance; new weights are known to last.
func TestWhatIsMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		p := start(t, config(30), f, view(1, 2))
		checkOut(t, p, 20)()
		for range 8 {
			f.any(2).retire("lost")
			synctest.Wait()
		}
		looks := func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.evenLocked(time.Now())
			return p.spread.moving
		}
		if looks() {
			t.Error("sessions move at the first look")
		}
		for range 3 { // news of the nodes, which change nothing
			time.Sleep(driftEvery / 10)
			p.SetView(view(1, 2))
			synctest.Wait()
		}
		if looks() {
			t.Errorf("sessions move before they have been uneven for %v", driftEvery)
		}
		time.Sleep(driftEvery)
		if !looks() {
			t.Errorf("no sessions move after %v", driftEvery)
		}
		time.Sleep(10 * time.Second)
		evenly(t, f)
		moved := p.Stats().Moved
		p.SetView(weights(1, 0.2))
		synctest.Wait()
		if st := p.Stats(); !st.Moving {
			t.Errorf("%d and %d moved; want some at once with new weights", moved, st.Moved)
		}
		p.SetView(weights(1, 0.99))
		time.Sleep(10 * time.Second)
		moved = p.Stats().Moved
		p.SetView(weights(1, 0.95))
		time.Sleep(10 * time.Second)
		if st := p.Stats(); st.Moved != moved {
			t.Errorf("%d sessions moved for nearly the same weights", st.Moved-moved)
		}
	})
}
