package pool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

var walks = flag.Int("walks", 60, "random walks of the model test")

// TestRandomWalk drives a pool through random operations against fake nodes that
// are slow, refuse, swallow requests and retire sessions, and after every step
// compares it with what must hold.
func TestRandomWalk(t *testing.T) {
	for seed := range *walks {
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
	r        *rand.Rand
	cfg      Config
	f        *servers
	p        *Pool
	stop     context.CancelFunc
	stopped  chan struct{}
	uses     map[cluster.NodeID]cluster.Use
	opens    map[cluster.NodeID]int // when the view was told, on nodes that are not eligible
	soft     map[cluster.NodeID]bool
	held     []*Session
	resting  []*Session // given to Recover
	places   []Place    // of sessions that were leased
	quiet    bool
	quietAt  time.Time
	line     [ClassSize * walkApps][]*walker // by class and app
	mu       sync.Mutex
	step     int
	last     string
	paused   bool
	together bool // a step did several things at once: what it leased may have changed since
	roof     int  // sessions that there may be at a time: Config.Max, and what was there when it was lowered
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
	w := &walk{T: t, r: rand.New(rand.NewPCG(seed, 1)), uses: make(map[cluster.NodeID]cluster.Use), stopped: make(chan struct{})}
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
	a.From = uint64(a.App) + 1 // one for each app: the model of the line knows no turns
	if len(w.places) > 0 && w.r.IntN(2) == 0 {
		a.Near = w.places[w.r.IntN(len(w.places))]
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

// advance does one random thing.
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
			if better && s.node.place.weight == 0 {
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
		n.Verdict = cluster.Verdict{Health: cluster.Health(w.r.IntN(4)), Unreachable: w.r.IntN(3) == 0, Leaving: w.r.IntN(5) == 0, Share: []float32{0, 0.1, 0.5}[w.r.IntN(3)], Joined: w.r.IntN(2) == 0}
		w.soft[n.ID] = n.Use == cluster.UseOpen && n.Verdict.Health >= cluster.Ejected && !n.Verdict.Unreachable && !n.Verdict.Leaving
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
	w.places = append(w.places, s.Place())
	w.places = w.places[max(0, len(w.places)-20):]
	s.home = uint32(w.r.IntN(len(w.p.slots)))
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
	q := &w.line[int(c)*walkApps+int(by.App)]
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

// listen takes note of who was told since the last step. Of those who got a
// session in one step, the order in time is not looked at: they must be the first
// of their app in the class. Who was refused must be the last.
func (w *walk) listen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.line {
		w.line[c] = slices.DeleteFunc(w.line[c], func(x *walker) bool { return x.left && x.told == 1 && errors.As(x.err, new(*ShedError)) })
		q := w.line[c]
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
		for _, x := range w.line[c] {
			if x.told > 1 {
				w.Errorf("a waiter was told %d times", x.told)
			}
		}
		w.line[c] = q
	}
}

func (w *walk) cancel() {
	q := &w.line[w.r.IntN(len(w.line))]
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

// check compares the pool with the invariants. Nothing moves meanwhile: every
// goroutine of the bubble is blocked.
func (w *walk) check() {
	p, f := w.p, w.f
	busy := p.Busy()
	p.mu.Lock()
	defer p.mu.Unlock()

	// What callers of a connection got in line, and have, counts.
	counted := make(map[*holder]int32)
	for _, s := range w.held {
		if s.holds != nil {
			counted[s.holds]++
		}
	}
	for from, holds := range p.line.holds {
		if n := holds.sessions.Load(); n < counted[holds] { // some are on their way
			w.Errorf("connection %d has %d sessions, and %d count", from, counted[holds], n)
		}
	}

	// I1: each live session is in one place.
	places := make(map[*Session]string)
	put := func(s *Session, where string) {
		if was, twice := places[s]; twice {
			w.Errorf("a session is %s and %s", was, where)
		}
		places[s] = where
	}
	idle, aside, parked := make(map[*node][]*Session), 0, 0
	for i := range p.slots {
		if number := p.slots[i].Load(); number != 0 {
			s := p.in(number)
			put(s, "in a slot")
			idle[s.node] = append(idle[s.node], s)
		}
	}
	for _, n := range p.order {
		count := 0
		for top := uint32(n.idle.head.Load() & headTop); top != 0; top = p.cells.at(uint16(top - 1)).next.Load() {
			s := p.cells.at(uint16(top - 1)).session
			put(s, fmt.Sprintf("on the stack of node %d", n.id))
			if s.node != n {
				w.Errorf("a session of node %d is on the stack of node %d", s.node.id, n.id)
			}
			idle[n] = append(idle[n], s)
			count++
		}
		if n.idle.len() != count {
			w.Errorf("node %d counts %d idle, has %d", n.id, n.idle.len(), count)
		}
		for _, i := range n.aside {
			s := p.cells.at(i).session
			put(s, "aside")
			if !s.aside || s.node != n || !s.Valid() || !n.eligible.Load() && !w.soft[n.id] {
				w.Errorf("a session of node %d is aside on node %d: %t, %q, eligible %t, soft %t", s.node.id, n.id, s.aside, s.Retired(), n.eligible.Load(), w.soft[n.id])
			}
		}
		aside += len(n.aside)
		if !n.eligible.Load() {
			parked += len(n.aside)
		}
	}
	w.resting = slices.DeleteFunc(w.resting, func(s *Session) bool { return !s.recovers })
	if p.recovering != len(w.resting) {
		w.Errorf("%d sessions recover; want %d", p.recovering, len(w.resting))
	}
	for _, s := range w.resting {
		put(s, "recovering")
	}
	for _, s := range w.held {
		put(s, "leased")
		if s.gone {
			w.Errorf("a leased session is closed")
		}
	}
	for i := range p.made {
		if s := p.cells.at(uint16(i)).session; s != nil && places[s] == "" {
			w.Errorf("a session of node %d is nowhere", s.node.id)
		} else if s != nil && int(s.index) != i {
			w.Errorf("cell %d has the session of cell %d", i, s.index)
		}
	}
	for s, where := range places {
		if p.cells.at(s.index).session != s {
			w.Errorf("a session %s has lost its cell", where)
		}
		if s.gone {
			w.Errorf("a session %s is gone", where)
		}
	}

	// I3 and the books: the pool's, and the nodes'.
	f.mu.Lock()
	defer f.mu.Unlock()
	w.roof = max(w.roof, w.cfg.Max)
	if f.most > w.roof || p.size > w.roof {
		w.Errorf("%d sessions at a time on the nodes, %d in the books; max %d, %d at the last look", f.most, p.size, w.cfg.Max, w.roof)
	}
	w.roof, f.most = max(w.cfg.Max, p.size), f.total
	if over := p.size - p.closing - w.cfg.Max; over > len(w.held)+len(w.resting)+len(p.openings) {
		w.Errorf("%d sessions beyond max %d, %d leased, %d opening", over, w.cfg.Max, len(w.held), len(p.openings))
	}
	if got := p.cfg; got != w.cfg {
		w.Errorf("configuration %+v; want %+v", got, w.cfg)
	}
	live, total, opening, retired := make(map[*node]int), 0, 0, 0
	for s, where := range places {
		if where != "aside" {
			live[s.node]++
		}
	}
	for _, n := range p.order {
		if got := int(n.live.Load()); got != live[n] {
			w.Errorf("node %d counts %d live sessions, has %d", n.id, got, live[n])
		}
		fn := f.nodes[n.id]
		if live := live[n] + len(n.aside); n.size != live+n.opening+n.closing || n.opening != fn.opening || live+n.closing != len(fn.live) {
			w.Errorf("node %d: size %d, live %d, opening %d, closing %d; the node itself has %d and %d opening",
				n.id, n.size, live, n.opening, n.closing, len(fn.live), fn.opening)
		}
		if w.cfg.MaxPerNode > 0 && fn.most > w.cfg.MaxPerNode {
			w.Errorf("node %d had %d sessions; cap %d", n.id, fn.most, w.cfg.MaxPerNode)
		}
		linked, going := 0, 0
		for s := n.first; s != nil; s = s.next {
			if linked++; s.node != n || s.gone || s.prev == nil != (s == n.first) || s.prev != nil && s.prev.next != s {
				w.Errorf("node %d: session %d of its list is of node %d, gone: %t, or badly linked", n.id, linked, s.node.id, s.gone)
			}
			if !s.Valid() {
				going++
			}
		}
		if linked != live[n]+len(n.aside) || going != n.going {
			w.Errorf("node %d: %d sessions linked, %d live, %d aside; %d retired, %d counted", n.id, linked, live[n], len(n.aside), going, n.going)
		}
		retired += n.going
		total += n.size
		opening += n.opening
	}
	// I5: nothing begins on a node that gets nothing new. And nothing begins above
	// the pace.
	for id, opens := range w.opens {
		if got := f.nodes[id].opens; got != opens {
			w.Errorf("%d sessions were opened on node %d, which is not eligible", got-opens, id)
		}
	}
	moving := make(map[*node]int)
	for o := range p.openings {
		if o.from == nil {
			continue
		}
		moving[o.from]++
		if w.quiet && o.begun.After(w.quietAt) {
			w.Errorf("a session moves from node %d to node %d, though the pool is to be quiet", o.from.id, o.node.id)
		}
	}
	for id, fn := range f.nodes {
		if fn.mostOpening > w.cfg.CreateBurst {
			w.Errorf("%d openings at a time on node %d; want at most %d", fn.mostOpening, id, w.cfg.CreateBurst)
		}
		if fn.mostDeleting > endsAtATime {
			w.Errorf("%d deletions at a time on node %d; want at most %d", fn.mostDeleting, id, endsAtATime)
		}
	}
	for _, n := range p.order {
		if n.share.pledged != moving[n] || n.share.owed < 0 || len(n.ending.queue)+n.ending.underWay != n.closing {
			w.Errorf("node %d: %d pledged, %d are; %d owed; %d and %d of %d closing", n.id,
				n.share.pledged, moving[n], n.share.owed, len(n.ending.queue), n.ending.underWay, n.closing)
		}
	}
	if total != p.size || opening != len(p.openings) || retired != p.going {
		w.Errorf("size %d, sum of nodes %d, max %d; opening %d, sum %d; retired %d, sum %d", p.size, total, w.cfg.Max, len(p.openings), opening, p.going, retired)
	}

	// I4: nobody waits beside an idle session, and the lines agree.
	waiting := 0
	for c := range p.line.class {
		of := 0
		for _, q := range w.line[c*walkApps:][:walkApps] {
			of += len(q)
		}
		waiting += of
		if got := p.line.class[c].n; got != of {
			w.Errorf("%d wait in class %v; want %d", got, Class(c), of)
		}
	}
	if p.line.n != waiting || (p.gate.Load() == gateLine) != (waiting > 0 || w.paused) || waiting > w.cfg.Queue {
		w.Errorf("line of %d, gate %d, want %d, at most %d", p.line.n, p.gate.Load(), waiting, w.cfg.Queue)
	}
	if busy != (waiting+len(w.held)+len(w.resting) > 0) {
		w.Errorf("busy: %t; %d wait, %d leased, %d recovering", busy, waiting, len(w.held), len(w.resting))
	}
	// The limit: nothing rests beyond it, and nothing is aside that it allows.
	switch surplus := p.surplusLocked(); {
	case int(p.limit.aside.Load()) != aside || int(p.limit.parked.Load()) != parked:
		w.Errorf("%d sessions aside, %d parked; counted %d, %d", aside, parked, p.limit.aside.Load(), p.limit.parked.Load())
	case surplus > 0 && (len(idle) > 0 || p.gate.Load() == gateOpen):
		w.Errorf("%d sessions beyond the limit of %d, and on %d nodes some are idle; gate %d", surplus, p.limit.most, len(idle), p.gate.Load())
	case surplus < 0 && aside > parked:
		w.Errorf("%d sessions aside, though the limit of %d allows %d more", aside, p.limit.most, -surplus)
	case surplus <= 0 && waiting == 0 && !w.paused && p.gate.Load() != gateOpen:
		w.Errorf("gate %d for nothing", p.gate.Load())
	}
	for n, list := range idle {
		for _, s := range list {
			switch {
			case !s.Valid():
				w.Errorf("an idle session of node %d is not closed: %s", n.id, s.Retired())
			case !n.eligible.Load():
				w.Errorf("an idle session of node %d rests though the node is not eligible", n.id)
			case waiting > 0 && !w.paused:
				w.Errorf("a session of node %d is idle while %d wait", n.id, waiting)
			}
		}
	}
	// Somebody who waits is being helped, unless every node is at its cap, paused
	// or does not answer, or the pool is in the queue of its budget.
	if inLine, ahead := p.wantLocked(); max(inLine, ahead) > 0 && p.size < w.cfg.Max && (inLine > 0 || !time.Now().Before(p.warmAt)) {
		if n, _ := p.targetLocked(time.Now()); n != nil && !p.hungry {
			w.Errorf("%d in line and %d ahead are wanted, node %d could open one, nothing happens", inLine, ahead, n.id)
		}
	}
	// What is kept for the choice of a node chooses as a look at all nodes does.
	kept := p.targets
	kept.nodes = slices.Clone(kept.nodes)
	chosen, _ := p.targetLocked(time.Now())
	p.targets.clear()
	if best, _ := p.targetLocked(time.Now()); (chosen == nil) != (best == nil) || best != nil && best.before(chosen) {
		w.Errorf("the next session is for another node than that with least: %t, %t", chosen != nil, best != nil)
	}
	p.targets = kept
	// Nobody waits for the room or the permit of a parked session.
	if inLine, _ := p.wantLocked(); parked > 0 && inLine > p.closing && (p.size >= w.cfg.Max || p.hungry) {
		if n, _ := p.targetLocked(time.Now()); n != nil {
			w.Errorf("%d in line are wanted, node %d could open them, %d are parked, %d closing", inLine, n.id, parked, p.closing)
		}
	}
}

// finish closes the pool with some sessions still out.
func (w *walk) finish() {
	for id := range w.f.nodes {
		w.f.set(id, after(time.Millisecond, nil), after(time.Millisecond, nil))
	}
	ctx, cancel := context.WithTimeout(w.Context(), time.Second)
	defer cancel()
	done := make(chan error)
	go func() { done <- w.p.Close(ctx) }()
	synctest.Wait()
	w.listen()
	for c := range w.line {
		if len(w.line[c]) > 0 {
			w.Errorf("%d still wait in class %v", len(w.line[c]), Class(c/walkApps))
		}
	}
	if _, err := w.p.Acquire(w.Context(), Ask{Class: Normal}); !errors.Is(err, ErrClosed) {
		w.Errorf("Acquire after Close: %v", err)
	}
	late := len(w.held) > 2
	for len(w.held) > 2 {
		s := w.drop()
		if w.r.IntN(2) == 0 {
			w.p.Release(s)
		} else {
			w.p.Discard(s)
		}
	}
	err := <-done
	if (err == nil) != (len(w.held) == 0) {
		w.Errorf("Close: %v, with %d sessions held (some came back late: %v)", err, len(w.held), late)
	}
	for _, s := range w.held {
		w.p.Release(s) // must do nothing
	}
	w.stop()
	<-w.stopped
	if left := w.f.live(); slices.Max(left) > 0 {
		w.Errorf("sessions left by node: %v", left)
	}
	if w.f.twice > 0 {
		w.Errorf("%d sessions were deleted twice", w.f.twice)
	}
	if st := w.p.Stats(); st.Sessions != 0 || st.Created != st.Closed {
		w.Errorf("after Close: %+v", st)
	}
	for from, holds := range w.p.line.holds {
		if n := holds.sessions.Load(); n != 0 || holds.turns != 0 {
			w.Errorf("connection %d holds %d sessions at the end", from, n)
		}
	}
}
