package pool

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

var walks = flag.Int("walks", 60, "random walks of the model test")

// TestRandomWalk drives a pool through random operations against fake nodes that
// are slow, refuse, swallow requests and retire sessions, and after every step
// compares it with what must hold.
func TestRandomWalk(t *testing.T) {
	for seed := range short.Of(*walks, 6) {
		synctest.Test(t, func(t *testing.T) {
			w := newWalk(t, uint64(seed), nil, "", nil)
			for w.step = range 400 {
				w.advance()
				synctest.Wait()
				w.listen()
				w.check()
				if t.Failed() {
					t.Fatalf("seed %d, step %d (%s)", seed, w.step, w.last)
				}
			}
			w.finish()
			if t.Failed() {
				t.Fatalf("seed %d, at the end", seed)
			}
		})
	}
}

// walk is one random walk: the pool, its nodes, and the model: who holds what and
// who waits in which order.
type walk struct {
	*testing.T
	r    *rand.Rand
	cfg  Config
	roof int // sessions that there may be at a time: Config.Max, and what was there when it was lowered
	played
	viewed
	switched
	held     []*Session
	resting  []*Session                      // given to Recover
	homes    []Home                          // homes of sessions that were in use
	waiting  [ClassSize * walkApps][]*walker // by class and app
	mu       sync.Mutex
	step     int
	last     string
	together bool // a step did several things at once: what it checked out may have changed since
}

// played is the pool of a walk and its nodes.
type played struct {
	f       *servers
	p       *Pool
	stop    context.CancelFunc
	stopped chan struct{}
}

// viewed is what the last view of a walk said.
type viewed struct {
	uses  map[cluster.NodeID]cluster.Use
	opens map[cluster.NodeID]int // sessions opened until the view came, on nodes that are not eligible
	soft  map[cluster.NodeID]bool
}

// switched is how a walk has left Quiet and Pause.
type switched struct {
	quiet   bool
	quietAt time.Time
	paused  bool
}

// walkApps is how many apps there are.
const walkApps = 3

// walker is somebody who waits.
type walker struct {
	w    *Waiter
	left bool // it said how long it waits at most

	// Guarded by walk.mu: the waiter is told on any goroutine.
	told    int
	session *Session
	err     error
}

func newWalk(t *testing.T, seed uint64, b *Budget, group string, all *tally) *walk {
	w := &walk{T: t, r: rand.New(rand.NewPCG(seed, 1))}
	w.uses, w.stopped = make(map[cluster.NodeID]cluster.Use), make(chan struct{})
	w.cfg = Default()
	w.cfg.Max = 1 + w.r.IntN(12)
	w.cfg.Min = w.r.IntN(min(4, w.cfg.Max+1))
	w.cfg.Queue = 1 + w.r.IntN(30)
	w.cfg.CreateBurst, w.cfg.MoveRate = 1+w.r.IntN(3), w.r.IntN(101)
	if w.r.IntN(3) == 0 {
		w.cfg.MaxPerNode = 1 + w.r.IntN(6)
	}
	w.cfg.Idle, w.cfg.Age = 2*time.Second, 10*time.Second
	if err := w.cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	w.f = newServers(1, 2, 3, 4)
	w.f.stillborn = func() bool { return rand.IntN(30) == 0 }
	w.f.all = all
	w.p = New(w.cfg, recovers{w.f, atRest}, nil)
	w.p.slots = make([]slot, 1<<w.r.IntN(5)) // as with more processors than there are here
	w.p = w.p.WithinGroup(b, group, func() int { return 1 + int(seed%3) })
	var ctx context.Context
	ctx, w.stop = context.WithCancel(t.Context())
	go func() {
		defer close(w.stopped)
		if err := w.p.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	w.changeView()
	synctest.Wait()
	return w
}

// atRest is a node that is asked whether it is done with what was given up.
func atRest(ctx context.Context) (bool, error) {
	select {
	case <-time.After(rand.N(20 * time.Millisecond)):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if rand.IntN(10) == 0 {
		return false, errors.New("BAD_SESSION")
	}
	return rand.IntN(2) == 0, nil
}

// ask is what a caller of a class asks for.
func (w *walk) ask(c Class) Ask {
	a := Ask{Class: c, App: uint8(w.r.IntN(walkApps))}
	a.From = uint64(a.App) + 1 // one for each app: the model of the queue knows no turns
	if len(w.homes) > 0 && w.r.IntN(2) == 0 {
		a.Near = w.homes[w.r.IntN(len(w.homes))]
	}
	if w.r.IntN(3) == 0 {
		a.Needs = time.Duration(w.r.IntN(20)) * time.Millisecond
	}
	if w.r.IntN(4) == 0 {
		a.Left = time.Duration(1+w.r.IntN(60)) * time.Millisecond
	}
	return a
}

// set says that another configuration is in force now.
func (w *walk) set(c Config) {
	w.roof = max(w.roof, w.cfg.Max)
	w.cfg = c
}

// advance does one random thing. Long: one case for each thing that a pool may be asked for.
func (w *walk) advance() {
	n := w.r.IntN(100)
	class := Class(w.r.IntN(ClassSize))
	switch {
	case n == 3:
		w.last = "quiet or not"
		w.quiet, w.quietAt = !w.quiet, time.Now()
		w.p.Quiet(w.quiet)
	case n < 3 && w.r.IntN(3) == 0, w.paused && n < 10:
		w.last = "pause or resume"
		w.paused = !w.paused
		w.p.Pause(w.paused)
	case n < 25:
		w.last = "wait"
		w.wait(class)
	case n < 32:
		w.last = "try"
		better := !w.together && w.stocked()
		if s, ok := w.p.Try(w.ask(class)); ok {
			if better && s.node.view.weight == 0 {
				w.Errorf("leased a session of node %d, which has no weight, though others have idle ones", s.Node())
			}
			w.hold(s)
		}
	case n < 38:
		w.last = "acquire"
		ctx, cancel := context.WithTimeout(w.Context(), time.Duration(w.r.IntN(50))*time.Millisecond)
		w.acquire(ctx, class)
		cancel()
	case n < 42:
		w.last = "recover"
		if s := w.drop(); s != nil {
			w.resting = append(w.resting, s)
			w.p.Recover(s)
		}
	case n < 62:
		w.last = "release"
		if s := w.drop(); s != nil {
			w.p.Release(s)
		}
	case n < 66:
		w.last = "discard"
		if s := w.drop(); s != nil {
			w.p.Discard(s)
		}
	case n < 71:
		w.last = "cancel"
		w.cancel()
	case n < 75:
		w.last = "retire"
		w.retire()
	case n < 77:
		w.last = "kill"
		if all := w.p.Sessions(); len(all) > 0 {
			w.p.Kill(all[w.r.IntN(len(all))].Session, "killed")
		}
	case n < 82:
		w.last = "view"
		w.changeView()
	case n < 88:
		w.last = "node behaviour"
		id := cluster.NodeID(1 + w.r.IntN(4))
		w.f.set(id, w.behaviour(), w.behaviour())
	case n < 91:
		w.last = "limit"
		w.p.SetLimit(1 + w.r.IntN(w.cfg.Max+2))
	case n < 97:
		w.last = "pass a little time"
		time.Sleep(time.Duration(w.r.IntN(40)) * time.Millisecond)
	default:
		w.last = "pass time"
		time.Sleep(time.Duration(w.r.IntN(4000)) * time.Millisecond)
	}
}

func (w *walk) behaviour() func(context.Context) error {
	switch w.r.IntN(6) {
	case 0:
		return blackHole
	case 1:
		return after(time.Millisecond, errors.New("refused"))
	case 2:
		return after(time.Duration(1+w.r.IntN(300))*time.Millisecond, nil)
	default:
		return after(time.Millisecond, nil)
	}
}

func (w *walk) changeView() {
	for id := cluster.NodeID(1); id <= 4; id++ {
		switch n := w.r.IntN(10); {
		case n < 6:
			w.uses[id] = cluster.UseNew
		case n < 7:
			delete(w.uses, id)
		case n < 8 && w.r.IntN(2) == 0:
			w.uses[id] = cluster.UseNone
		default:
			w.uses[id] = cluster.UseOpen
		}
	}
	v := viewOf(w.uses)
	w.opens, w.soft = make(map[cluster.NodeID]int), make(map[cluster.NodeID]bool)
	for i := range v.Nodes {
		n := &v.Nodes[i]
		n.Weight = []float32{0, 0.1, 0.5, 1, 1}[w.r.IntN(5)]
		n.Condition = cluster.Condition{Health: cluster.Health(w.r.IntN(4)), Unreachable: w.r.IntN(3) == 0,
			Draining: w.r.IntN(5) == 0, Ramp: []float32{0, 0.1, 0.5}[w.r.IntN(3)], Joined: w.r.IntN(2) == 0}
		w.soft[n.ID] = n.Use == cluster.UseOpen && n.Condition.Health >= cluster.Ejected && !n.Condition.Unreachable &&
			!n.Condition.Draining
		n.Load = new(cluster.Load)
		n.Load.Observe(time.Duration(w.r.IntN(10)) * time.Millisecond)
	}
	w.countOpens()
	w.p.SetView(v)
}

// countOpens takes note of the sessions that were opened until now where none is to be opened.
func (w *walk) countOpens() {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	for id, n := range w.f.nodes {
		if use, ok := w.uses[id]; !ok || use != cluster.UseNew {
			w.opens[id] = n.opens
		}
	}
}

// stocked reports whether a node with weight has a session on its stack.
func (w *walk) stocked() bool {
	return slices.ContainsFunc(w.p.table.Load().weighted, func(c choice) bool { return c.idle.len() > 0 })
}

func (w *walk) eligible() (n int) {
	for _, use := range w.uses {
		if use == cluster.UseNew {
			n++
		}
	}
	return n
}

// hold checks a session that the pool just gave.
func (w *walk) hold(s *Session) {
	if slices.Contains(w.held, s) {
		w.Errorf("a session is leased twice")
	}
	if use, ok := w.uses[s.Node()]; (!ok || use != cluster.UseNew) && !w.together {
		w.Errorf("a session of node %d, which is not eligible, was leased", s.Node())
	}
	if r := s.Retired(); !w.together && (r == "hint" || r == "stream ended" || r == "killed") {
		w.Errorf("a session retired because of %q was leased", s.Retired())
	}
	if r := s.Resource().(patient); r.node != s.Node() {
		w.Errorf("session of node %d says %d", r.node, s.Node())
	}
	w.held = append(w.held, s)
	w.homes = append(w.homes, s.Home())
	w.homes = w.homes[max(0, len(w.homes)-20):]
	s.slot = uint32(w.r.IntN(len(w.p.slots)))
}

func (w *walk) drop() *Session {
	if len(w.held) == 0 {
		return nil
	}
	i := w.r.IntN(len(w.held))
	s := w.held[i]
	w.held = slices.Delete(w.held, i, i+1)
	return s
}

// acquire blocks, in the bubble's time, no longer than ctx.
func (w *walk) acquire(ctx context.Context, c Class) {
	began := time.Now()
	deadline, _ := ctx.Deadline()
	by := w.ask(c)
	g, err := w.p.Acquire(ctx, by)
	var late *WaitError
	switch {
	case err == nil:
		w.hold(g.Session)
	case errors.As(err, &late):
		if !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("%v does not unwrap to the context's error", err)
		}
		if !time.Now().Equal(deadline) && time.Now().After(deadline) || late.Waited != time.Since(began) {
			w.Errorf("left the line at %v, with %v; deadline %v", time.Now(), err, deadline)
		}
	case errors.As(err, new(*ShedError)): // foretold
		if by.Left == 0 && by.Needs == 0 && !time.Now().Equal(began) {
			w.Errorf("after %v: %v", time.Since(began), err)
		}
	case errors.Is(err, ErrQueueFull), errors.Is(err, ErrNoNode) && w.eligible() == 0:
	default:
		w.Errorf("Acquire: %v", err)
	}
}

func (w *walk) wait(c Class) {
	by := w.ask(c)
	by.Weight = uint16(by.App)
	q := &w.waiting[int(c)*walkApps+int(by.App)]
	x := &walker{left: by.Left > 0}
	x.w = NewWaiter(func(g Grant, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		x.told++
		x.session, x.err = g.Session, err
	})
	*q = append(*q, x)
	g, err := w.p.Wait(x.w, by)
	if g.Session == nil && err == nil {
		return
	}
	*q = (*q)[:len(*q)-1]
	switch {
	case err == nil:
		w.hold(g.Session)
	case errors.Is(err, ErrNoNode) && w.eligible() == 0:
	case errors.Is(err, ErrQueueFull), x.left && errors.As(err, new(*ShedError)):
	default:
		w.Errorf("Wait: %v", err)
	}
}

// listen notes which callers were told since the last step. Of those that got a
// session in one step, the order in time is not looked at: they must be the first
// of their app in the class. Callers that were refused must be the last.
func (w *walk) listen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.waiting {
		w.waiting[c] = slices.DeleteFunc(w.waiting[c],
			func(x *walker) bool { return x.left && x.told == 1 && errors.As(x.err, new(*ShedError)) })
		q := w.waiting[c]
		for len(q) > 0 && q[0].told > 0 && q[0].err == nil {
			w.hold(q[0].session)
			q = q[1:]
		}
		for last := len(q) - 1; last >= 0 && q[last].told > 0; last-- {
			if err := q[last].err; !errors.Is(err, ErrQueueFull) && !errors.Is(err, ErrClosed) {
				w.Errorf("the last of %d in class %v was told %v", len(q), Class(c/walkApps), err)
			}
			q = q[:last]
		}
		for i, x := range q {
			if x.told > 0 {
				w.Errorf("waiter %d of %d in class %v was told %v", i, len(q), Class(c/walkApps), x.err)
			}
		}
		for _, x := range w.waiting[c] {
			if x.told > 1 {
				w.Errorf("a waiter was told %d times", x.told)
			}
		}
		w.waiting[c] = q
	}
}

func (w *walk) cancel() {
	q := &w.waiting[w.r.IntN(len(w.waiting))]
	if len(*q) == 0 {
		return
	}
	i := w.r.IntN(len(*q))
	if !w.p.Cancel((*q)[i].w) {
		if w.together { // it was told just before
			return
		}
		w.Errorf("a waiter in line was not cancelled")
	}
	if w.p.Cancel((*q)[i].w) {
		w.Errorf("a waiter was cancelled twice")
	}
	*q = slices.Delete(*q, i, i+1)
}

// retire ends a session from the side of its node.
func (w *walk) retire() {
	w.f.mu.Lock()
	var all []*remote
	for _, n := range w.f.nodes {
		for r := range n.live {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *remote) int { return int(a.node) - int(b.node) })
	w.f.mu.Unlock()
	if len(all) > 0 {
		all[w.r.IntN(len(all))].retire("hint")
	}
}
