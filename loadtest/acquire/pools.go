package acquire

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/puddle/v2"
	"golang.org/x/sync/semaphore"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// session is what the pools hold. What the pools note in it belongs to its holder.
type session struct {
	id       string
	lease    *pool.Session
	resource *puddle.Resource[*session]
	element  *list.Element
}

// Close is for internal/pool: the session outlives the pool and serves the next.
func (*session) Close(context.Context) error { return nil }

// line is a pool as a task sees it. get waits if it must; its error is that of ctx. The task that has
// waited longest gets what is given back, but for the channel's and the semaphore's own order, which is the same.
type line interface {
	get(ctx context.Context, task int) (*session, error)
	put(s *session)
	close()
}

// stub is the row that is none: what all figures are less than.
const stub = "no pool"

// The names that claims and the text speak of.
const (
	classic = "list, map and queue, one lock"
	lists   = "three lists, one lock"
	puddled = "puddle"
	ours    = "the sidecar's"
)

// shapes are the pools, in the order of the tables.
var shapes = []struct {
	name string
	make func(all []*session) (line, error)
}{
	{classic, newClassic},
	{lists, newLists},
	{"mutex and stack", newStack},
	{"channel", newChannel},
	{"semaphore and stack", newCounted},
	{puddled, newPuddle},
	{ours, newOurs},
	{stub, newStub},
}

func makePool(name string, all []*session) (line, error) {
	for _, shape := range shapes {
		if shape.name == name {
			return shape.make(all)
		}
	}
	return nil, fmt.Errorf("no pool is called %q", name)
}

// noPool gives each task a session of its own, as long as there are some. The others wait for the end: so
// as many tasks are there as with a pool, and as many of them at work.
type noPool []*session

func newStub(all []*session) (line, error) { return noPool(all), nil }

func (p noPool) get(ctx context.Context, task int) (*session, error) {
	if task < len(p) {
		return p[task], nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (noPool) put(*session) {}
func (noPool) close()       {}

// locked is the pool as it is written first: a two-way list of idle sessions, those in use by their id, and a
// queue of those who wait, all behind one lock. Without the map those in use are in a list too.
type locked struct {
	mu    sync.Mutex // guards all
	idle  list.List  // of *session
	named map[string]*session
	busy  list.List // of *session, without named
	queue list.List // of chan *session
}

func newClassic(all []*session) (line, error) { return newLocked(all, map[string]*session{}), nil }
func newLists(all []*session) (line, error)   { return newLocked(all, nil), nil }

func newLocked(all []*session, named map[string]*session) *locked {
	p := &locked{named: named}
	for _, s := range all {
		p.idle.PushBack(s)
	}
	return p
}

func (p *locked) leaseLocked(s *session) {
	if p.named != nil {
		p.named[s.id] = s
	} else {
		s.element = p.busy.PushBack(s)
	}
}

func (p *locked) returnLocked(s *session) {
	if p.named != nil {
		delete(p.named, s.id)
	} else {
		p.busy.Remove(s.element)
	}
}

func (p *locked) get(ctx context.Context, _ int) (*session, error) {
	p.mu.Lock()
	if e := p.idle.Front(); e != nil {
		s := p.idle.Remove(e).(*session)
		p.leaseLocked(s)
		p.mu.Unlock()
		return s, nil
	}
	mine := make(chan *session, 1)
	e := p.queue.PushBack(mine)
	p.mu.Unlock()
	select {
	case s := <-mine:
		return s, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.queue.Remove(e)
	p.mu.Unlock()
	select { // it is sent under the lock: what was sent is there
	case s := <-mine:
		p.put(s)
	default:
	}
	return nil, ctx.Err()
}

func (p *locked) put(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.returnLocked(s)
	if e := p.queue.Front(); e != nil {
		p.leaseLocked(s)
		p.queue.Remove(e).(chan *session) <- s
		return
	}
	p.idle.PushFront(s)
}

func (*locked) close() {}

// stack is a slice of idle sessions, last in, first out, and a ring of those who wait, behind one lock. Nothing is allocated.
type stack struct {
	mu     sync.Mutex // guards idle, ring, first, n and waiter.state
	idle   []*session
	ring   []*waiter
	first  int
	n      int
	unused sync.Pool // of *waiter
}

// waiter is a place in the ring.
type waiter struct {
	c     chan *session
	given bool // out of the ring: a session is in c, or will be
	left  bool // the task waits no more
}

func newStack(all []*session) (line, error) {
	return &stack{idle: append([]*session(nil), all...),
		unused: sync.Pool{New: func() any { return &waiter{c: make(chan *session, 1)} }}}, nil
}

func (p *stack) get(ctx context.Context, _ int) (*session, error) {
	p.mu.Lock()
	if last := len(p.idle) - 1; last >= 0 {
		s := p.idle[last]
		p.idle = p.idle[:last]
		p.mu.Unlock()
		return s, nil
	}
	w := p.unused.Get().(*waiter)
	w.given = false
	if p.n == len(p.ring) {
		ring := make([]*waiter, max(64, 2*p.n))
		for i := range p.n {
			ring[i] = p.ring[(p.first+i)%p.n]
		}
		p.ring, p.first = ring, 0
	}
	p.ring[(p.first+p.n)%len(p.ring)] = w
	p.n++
	p.mu.Unlock()
	select {
	case s := <-w.c:
		p.unused.Put(w)
		return s, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	w.left = !w.given // then it is dropped when it is taken out of the ring
	p.mu.Unlock()
	if w.given {
		p.put(<-w.c)
	}
	return nil, ctx.Err()
}

func (p *stack) put(s *session) {
	p.mu.Lock()
	for p.n > 0 {
		w := p.ring[p.first]
		p.ring[p.first] = nil
		p.first = (p.first + 1) % len(p.ring)
		p.n--
		if !w.left {
			w.given = true
			p.mu.Unlock()
			w.c <- s
			return
		}
	}
	p.idle = append(p.idle, s)
	p.mu.Unlock()
}

func (*stack) close() {}

// channel is a buffered channel of sessions.
type channel chan *session

func newChannel(all []*session) (line, error) {
	p := make(channel, len(all))
	for _, s := range all {
		p <- s
	}
	return p, nil
}

func (p channel) get(ctx context.Context, _ int) (*session, error) {
	select { // that of one case is cheaper than that of two
	case s := <-p:
		return s, nil
	default:
	}
	select {
	case s := <-p:
		return s, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p channel) put(s *session) { p <- s }
func (channel) close()           {}

// counted has a semaphore that counts, and a stack behind a lock.
type counted struct {
	sem  *semaphore.Weighted
	mu   sync.Mutex // guards idle
	idle []*session
}

func newCounted(all []*session) (line, error) {
	return &counted{sem: semaphore.NewWeighted(int64(len(all))), idle: append([]*session(nil), all...)}, nil
}

func (p *counted) get(ctx context.Context, _ int) (*session, error) {
	if err := p.sem.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	p.mu.Lock()
	last := len(p.idle) - 1
	s := p.idle[last]
	p.idle = p.idle[:last]
	p.mu.Unlock()
	return s, nil
}

func (p *counted) put(s *session) {
	p.mu.Lock()
	p.idle = append(p.idle, s)
	p.mu.Unlock()
	p.sem.Release(1)
}

func (*counted) close() {}

// puddlePool is the pool under pgxpool.
type puddlePool struct{ *puddle.Pool[*session] }

func newPuddle(all []*session) (line, error) {
	var next atomic.Int64
	p, err := puddle.NewPool(&puddle.Config[*session]{
		Constructor: func(context.Context) (*session, error) { return all[next.Add(1)-1], nil },
		Destructor:  func(*session) {},
		MaxSize:     int32(len(all)),
	})
	for range all {
		if err == nil {
			err = p.CreateResource(context.Background())
		}
	}
	return puddlePool{p}, err
}

func (p puddlePool) get(ctx context.Context, _ int) (*session, error) {
	r, err := p.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	s := r.Value()
	s.resource = r
	return s, nil
}

func (p puddlePool) put(s *session) { s.resource.Release() }
func (p puddlePool) close()         { p.Close() }

// ownPool is the sidecar's, with three nodes and its maintenance running.
type ownPool struct {
	*pool.Pool
	stop func()
	over chan error // of Run
}

// opener hands out the sessions that there are.
type opener struct {
	all  []*session
	next atomic.Int64
}

func (o *opener) Open(context.Context, cluster.NodeID, func(string)) (pool.Resource, error) {
	n := o.next.Add(1)
	if n > int64(len(o.all)) {
		return nil, errors.New("there are no more sessions")
	}
	return o.all[n-1], nil
}

func newOurs(all []*session) (line, error) {
	cfg := pool.Default()
	cfg.Max, cfg.Min, cfg.Queue = len(all), len(all), 100_000
	cfg.Idle, cfg.Age = 0, 0
	p := &ownPool{Pool: pool.New(cfg, &opener{all: all}, nil), over: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	var view cluster.View
	for id := range min(3, len(all)) {
		view.Nodes = append(view.Nodes, cluster.ViewNode{Node: cluster.Node{ID: cluster.NodeID(id + 1)}, Weight: 1})
	}
	p.SetView(view)
	go func() { p.over <- p.Run(ctx) }()
	// Warm: all are open at once, and come back.
	patience, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	var held []*session
	for range all {
		s, err := p.get(patience, 0)
		if err != nil {
			p.close()
			return nil, err
		}
		held = append(held, s)
	}
	for _, s := range held {
		p.put(s)
	}
	return p, nil
}

func (p *ownPool) get(ctx context.Context, _ int) (*session, error) {
	g, err := p.Acquire(ctx, pool.Ask{Class: pool.Normal})
	if err != nil {
		return nil, err
	}
	s := g.Resource().(*session)
	s.lease = g.Session
	return s, nil
}

func (p *ownPool) put(s *session) { p.Release(s.lease) }

func (p *ownPool) close() {
	ctx, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	_ = p.Close(ctx) // what is late at closing measures nothing
	p.stop()
	<-p.over
}
