package pool

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// breaking is an opener that panics as often as it is told, in Open or in Close.
type breaking struct{ opens, closes int }

func (b *breaking) Open(context.Context, cluster.NodeID, func(string)) (Resource, error) {
	if b.opens > 0 {
		b.opens--
		panic("broken opener")
	}
	return b, nil
}

func (b *breaking) Close(context.Context) error {
	if b.closes > 0 {
		b.closes--
		panic("broken session")
	}
	return nil
}

// A pool that panics while the budget takes a session from it costs no other pool anything.
func TestABudgetOutlivesThePanicOfAPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		panics.LogTo(slog.New(slog.DiscardHandler))
		defer panics.LogTo(slog.Default())
		y := startFamily(t, 3, 2, func(_ int, c *Config) { c.Min = 0 })
		other, hungry := y.pools[0], y.pools[1]
		broken := New(config(2), &breaking{}, nil).WithinGroup(y.Budget, "", weightOne) // without Run, which would panic as well
		broken.SetView(view(1))
		checkOut(t, broken, 2)()
		checkOut(t, other, 1)()
		synctest.Wait()
		broken.mu.Lock()
		order := broken.order
		broken.order = []*node{nil} // the look for a node to take from panics
		broken.mu.Unlock()
		before := panics.Stats().Count
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		g, err := hungry.Acquire(ctx, Ask{Class: Normal})
		if err != nil {
			t.Error(err)
		} else {
			hungry.Release(g.Session)
		}
		if panics.Stats().Count == before {
			t.Error("nothing panicked")
		}
		broken.mu.Lock()
		broken.order = order
		broken.mu.Unlock()
		if err := broken.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// What panics while a session is opened or deleted keeps no room of the pool.
func TestPanicsKeepNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &breaking{opens: 2, closes: 2}
		p := New(config(1), b, nil)
		p.SetView(view(1))
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- p.Run(ctx) }()
		defer func() { cancel(); <-ran }()
		for range 4 {
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			p.Discard(g.Session)
			synctest.Wait()
		}
		st := p.Stats()
		if st.Sessions != 0 || st.Opening != 0 || st.Closing != 0 || st.Failed != 2 || b.opens != 0 || b.closes != 0 {
			t.Errorf("%+v; want nothing open and two failures", st)
		}
		if _, ok := errors.AsType[*panics.Error](st.OpenErr); st.OpenErr != nil && !ok {
			t.Errorf("the last failure is %v", st.OpenErr)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
}
