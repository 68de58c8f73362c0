package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// TestStress has many goroutines do everything at once, in real time, while the
// view changes and sessions are retired. No session may be in two hands, none may
// get lost, and nobody may wait for ever: who waits without a deadline is served.
func TestStress(t *testing.T) {
	const workers, turns = 48, 400
	f := newServers(1, 2, 3)
	cfg := config(12)
	cfg.Idle, cfg.Age = 100*time.Millisecond, 200*time.Millisecond
	p := start(t, cfg, f, view(1, 2, 3))

	done := make(chan struct{})
	var disturbers, wg sync.WaitGroup
	disturbers.Go(func() {
		r := rand.New(rand.NewPCG(1, 1))
		for {
			select {
			case <-done:
				return
			default:
			}
			p.SetView(stressView(r))
			if res := f.any(cluster.NodeID(1 + r.IntN(3))); res != nil {
				res.retire("hint")
			}
			p.Stats()
			runtime.Gosched()
		}
	})
	for i := range workers {
		wg.Go(func() { stressCaller(t, p, rand.New(rand.NewPCG(2, uint64(i))), turns) })
	}
	wg.Wait()
	close(done)
	disturbers.Wait()
	f.mu.Lock() // openings for callers that left may still be under way
	most := f.most
	f.mu.Unlock()
	if most > cfg.Max {
		t.Errorf("%d sessions at a time; max %d", most, cfg.Max)
	}
	// A session that was opened for a caller that left counts as in use until it is laid down.
	await.Right(t, "all sessions are given back", func() string {
		if st := p.Stats(); st.InUse != 0 || st.Waiting != [ClassSize]int{} {
			return fmt.Sprintf("%d in use and %v waiting after all is done", st.InUse, st.Waiting)
		}
		return ""
	})
	// Every session that the nodes know is one that the pool knows.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	if st := p.Stats(); st.Created != st.Closed || f.sum() != 0 {
		t.Errorf("%d created, %d closed, %d left", st.Created, st.Closed, f.sum())
	}
}

// stressView returns a random view of three nodes, of which the first one is eligible.
func stressView(r *rand.Rand) cluster.View {
	uses := map[cluster.NodeID]cluster.Use{1: cluster.UseNew}
	for id := cluster.NodeID(2); id <= 3; id++ {
		if u := cluster.Use(r.IntN(4)); u <= cluster.UseNone {
			uses[id] = u
		}
	}
	v := viewOf(uses)
	for i := range v.Nodes {
		v.Nodes[i].Condition.Health = cluster.Health(r.IntN(4)) // ejected ones park their sessions
	}
	return v
}

// stressUse uses a session, alone, and gives it back or ends it.
func stressUse(t *testing.T, p *Pool, s *Session, r *rand.Rand) {
	res := s.Resource().(*remote)
	if res.inUse.Swap(true) {
		t.Error("a session in two hands")
	}
	for range r.IntN(3) {
		runtime.Gosched()
	}
	res.inUse.Store(false)
	switch n := r.IntN(100); {
	case n < 2:
		p.Discard(s)
	case n < 4:
		res.retire("hint")
		fallthrough
	default:
		p.Release(s)
	}
}

// stressCaller asks for sessions in each way, turns times.
func stressCaller(t *testing.T, p *Pool, r *rand.Rand, turns int) {
	told := make(chan Grant, 1)
	w := NewWaiter(func(g Grant, err error) {
		if err != nil {
			t.Error(err)
		}
		told <- g
	})
	for range turns {
		class := Class(r.IntN(ClassSize))
		switch r.IntN(4) {
		case 0:
			if s, ok := p.Try(Ask{Class: class}); ok {
				stressUse(t, p, s, r)
			}
		case 1:
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(200))*time.Microsecond)
			g, err := p.Acquire(ctx, Ask{Class: class})
			if err == nil {
				stressUse(t, p, g.Session, r)
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		case 2:
			g, err := p.Wait(w, Ask{Class: class})
			if err != nil {
				t.Error(err)
				continue
			}
			if g.Session == nil {
				if r.IntN(2) == 0 && p.Cancel(w) {
					continue
				}
				g = <-told
			}
			stressUse(t, p, g.Session, r)
		default:
			g, err := p.Acquire(t.Context(), Ask{Class: class})
			if err != nil {
				t.Error(err)
				continue
			}
			stressUse(t, p, g.Session, r)
		}
	}
}

// TestHandOverStress is about one thing: somebody who lays a session down and
// somebody who comes to wait must not miss each other. Few sessions, no deadlines,
// no maintenance that could put things right later.
func TestHandOverStress(t *testing.T) {
	const workers = 16
	turns := short.Of(3000, 1000)
	p := New(config(2), newServers(1, 2), nil)
	p.SetView(view(1, 2))
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range turns {
				g, err := p.Acquire(t.Context(), Ask{Class: Normal})
				if err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					runtime.Gosched()
				}
				p.Release(g.Session)
			}
		})
	}
	wg.Wait()
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
