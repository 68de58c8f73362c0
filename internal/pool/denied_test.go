package pool

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lacking is an Opener's error that says that a right is missing.
type lacking struct{}

func (lacking) Error() string   { return "no right" }
func (lacking) Denied() bool    { return true }
func (lacking) Message() string { return "ask for it" }

// A caller that waits for a session that may not be opened is told so at once, and not at the end of its
// time; within a second of it nobody has the node asked again, and then the right may be there.
func TestDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		f.set(1, func(ctx context.Context) error {
			time.Sleep(10 * time.Millisecond)
			return lacking{}
		}, nil)
		p := start(t, config(10), f, view(1))
		denied := func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			_, err := p.Acquire(ctx, Ask{})
			e, ok := errors.AsType[*DeniedError](err)
			if !ok || !errors.Is(e, lacking{}) || e.Text != "ask for it" || time.Since(began) > 10*time.Millisecond {
				t.Errorf("after %v: %v; want to be told of the missing right", time.Since(began), err)
			}
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(denied)
		}
		wg.Wait()
		tried := f.nodes[1].opens
		time.Sleep(deniedFor / 2)
		denied()
		if n := f.nodes[1].opens - tried; n != 0 {
			t.Errorf("%d tries within a second", n)
		}
		if st := p.Stats(); st.InLine() != 0 || st.TimedOut != 0 || st.Shed != [shedSize]uint64{} {
			t.Errorf("%+v; want nobody in line, out of time or shed", st)
		}
		time.Sleep(deniedFor)
		denied()
		if n := f.nodes[1].opens - tried; n != 1 {
			t.Errorf("%d tries after a second; want 1", n)
		}
		f.set(1, nil, nil)
		time.Sleep(deniedFor)
		useFor(t, p, time.Second)
		synctest.Wait()
	})
}

// Sessions that are left serve the queue, whatever becomes of the right to open more.
func TestDeniedWithSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		p := start(t, config(10), f, view(1))
		g, err := p.Acquire(t.Context(), Ask{})
		if err != nil {
			t.Fatal(err)
		}
		f.set(1, func(context.Context) error { return lacking{} }, nil)
		time.AfterFunc(time.Second, func() { p.Release(g.Session) })
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { useFor(t, p, time.Second) })
		}
		wg.Wait()
	})
}

// A denial takes callers that do not block out of the queue, too.
func TestDeniedWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		f.set(1, func(context.Context) error { return lacking{} }, nil)
		p := start(t, config(10), f, view(1))
		told := make(chan error, 1)
		w := NewWaiter(func(_ Grant, err error) { told <- err })
		if g, err := p.Wait(w, Ask{}); g.Session != nil || err != nil {
			t.Fatal(g, err)
		}
		if _, ok := errors.AsType[*DeniedError](<-told); !ok {
			t.Error("not told of the missing right")
		}
		if p.Cancel(w) {
			t.Error("still in line")
		}
	})
}
