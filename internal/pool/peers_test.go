package pool

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/puddle/v2"
	"golang.org/x/sync/semaphore"
)

// benchPool is what every pool in the benchmarks does. get waits if it must.
type benchPool interface {
	get(context.Context) any
	put(any)
}

type peer struct {
	name string
	open func(b *testing.B, sessions int) benchPool
}

var peers = []peer{
	{"none", func(*testing.B, int) benchPool { return none{} }},
	{"pool", func(b *testing.B, n int) benchPool { return ours{warmPool(b, n, 3)} }},
	{"chan", openChan},
	{"mutex", openMutex},
	{"puddle", openPuddle},
	{"semaphore", openSemaphore},
}

type none struct{}

func (none) get(context.Context) any { return nil }
func (none) put(any)                 {}

type ours struct{ *Pool }

func (p ours) get(ctx context.Context) any {
	g, err := p.Acquire(ctx, Ask{Class: Normal})
	if err != nil {
		panic(err)
	}
	return g.Session
}

func (p ours) put(s any) { p.Release(s.(*Session)) }

// chanPool is a buffered channel of sessions.
type chanPool chan *int

func openChan(_ *testing.B, n int) benchPool {
	p := make(chanPool, n)
	for range n {
		p <- new(int)
	}
	return p
}

func (p chanPool) get(ctx context.Context) any {
	select {
	case s := <-p:
		return s
	default:
	}
	select {
	case s := <-p:
		return s
	case <-ctx.Done():
		panic(ctx.Err())
	}
}

func (p chanPool) put(s any) { p <- s.(*int) }

// mutexPool is a slice under a mutex and a queue of channels to wait on.
type mutexPool struct {
	mu   sync.Mutex
	idle []*int
	line []chan *int
	free sync.Pool
}

func openMutex(_ *testing.B, n int) benchPool {
	p := &mutexPool{free: sync.Pool{New: func() any { return make(chan *int, 1) }}}
	for range n {
		p.idle = append(p.idle, new(int))
	}
	return p
}

func (p *mutexPool) get(ctx context.Context) any {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		s := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return s
	}
	c := p.free.Get().(chan *int)
	p.line = append(p.line, c)
	p.mu.Unlock()
	select {
	case s := <-c:
		p.free.Put(c)
		return s
	case <-ctx.Done():
		panic(ctx.Err())
	}
}

func (p *mutexPool) put(s any) {
	p.mu.Lock()
	if len(p.line) > 0 {
		c := p.line[0]
		p.line = p.line[1:]
		p.mu.Unlock()
		c <- s.(*int)
		return
	}
	p.idle = append(p.idle, s.(*int))
	p.mu.Unlock()
}

// puddlePool is the pool under pgxpool.
type puddlePool struct{ *puddle.Pool[*int] }

func openPuddle(b *testing.B, n int) benchPool {
	p, err := puddle.NewPool(&puddle.Config[*int]{
		Constructor: func(context.Context) (*int, error) { return new(int), nil },
		Destructor:  func(*int) {},
		MaxSize:     int32(n),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.Close)
	for range n {
		if err := p.CreateResource(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	return puddlePool{p}
}

func (p puddlePool) get(ctx context.Context) any {
	r, err := p.Acquire(ctx)
	if err != nil {
		panic(err)
	}
	return r
}

func (p puddlePool) put(r any) { r.(*puddle.Resource[*int]).Release() }

// semaphorePool counts with a semaphore and keeps the idle on a stack.
type semaphorePool struct {
	sem  *semaphore.Weighted
	mu   sync.Mutex
	idle []*int
}

func openSemaphore(_ *testing.B, n int) benchPool {
	p := &semaphorePool{sem: semaphore.NewWeighted(int64(n))}
	for range n {
		p.idle = append(p.idle, new(int))
	}
	return p
}

func (p *semaphorePool) get(ctx context.Context) any {
	if err := p.sem.Acquire(ctx, 1); err != nil {
		panic(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle) - 1
	s := p.idle[n]
	p.idle = p.idle[:n]
	return s
}

func (p *semaphorePool) put(s any) {
	p.mu.Lock()
	p.idle = append(p.idle, s.(*int))
	p.mu.Unlock()
	p.sem.Release(1)
}
