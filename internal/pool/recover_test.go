package pool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// patient is a resource whose node is done with what was given up after some time.
type patient struct {
	*remote
	idle func(ctx context.Context) (bool, error)
}

func (r patient) AtRest(ctx context.Context) (bool, error) { return r.idle(ctx) }

// recovers makes the sessions that an Opener opens Recoverable.
type recovers struct {
	*servers
	idle func(ctx context.Context) (bool, error)
}

func (f recovers) Open(ctx context.Context, id cluster.NodeID, retire func(string)) (Resource, error) {
	r, err := f.servers.Open(ctx, id, retire)
	if err != nil {
		return nil, err
	}
	return patient{r.(*remote), f.idle}, nil
}

// A session whose call was given up is used again once its node is done with that.
func TestRecover(t *testing.T) {
	for name, c := range map[string]struct {
		idle  func(asked int) (bool, error)
		after time.Duration // it is back, or deleted
		asked int
		kept  bool
	}{
		"done at once":           {func(int) (bool, error) { return true, nil }, 25 * time.Millisecond, 1, true},
		"done later":             {func(asked int) (bool, error) { return asked == 3, nil }, 175 * time.Millisecond, 3, true},
		"busy for too long":      {func(int) (bool, error) { return false, nil }, 375 * time.Millisecond, 4, false},
		"not known to its node":  {func(int) (bool, error) { return false, errors.New("BAD_SESSION") }, 25 * time.Millisecond, 1, false},
		"the question has a bug": {func(int) (bool, error) { panic("a bug") }, 25 * time.Millisecond, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1)
				asked := 0
				p := startPool(t, recovers{f, func(context.Context) (bool, error) { asked++; return c.idle(asked) }}, f,
					view(1), config(1), nil)
				first := get(t, p)
				p.Recover(first)
				if st := p.Stats(); st.Recovering != 1 || st.InUse != 1 || st.Idle != 0 {
					t.Errorf("%+v; want it to count as leased", st)
				}
				began := time.Now()
				next := get(t, p) // the pool has room for one
				if took := time.Since(began); took != c.after || asked != c.asked || (next == first) != c.kept {
					t.Errorf("the next caller: after %v and %d questions, the same session: %v; want %v, %d, %v", took,
						asked, next == first, c.after, c.asked, c.kept)
				}
				want := uint64(0)
				if c.kept {
					want = 1
				}
				if st := p.Stats(); st.Recovering != 0 || st.Recovered != want || st.Created != 2-want {
					t.Errorf("%+v", st)
				}
				p.Release(next)
			})
		})
	}
}

// Answers that take their time do not make a recovery longer.
func TestRecoverIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		p := startPool(t, recovers{f, func(ctx context.Context) (bool, error) {
			select {
			case <-time.After(recoverWithin * 2 / 3):
				return false, nil
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}}, f, view(1), config(1), nil)
		first := get(t, p)
		p.Recover(first)
		began := time.Now()
		next := get(t, p)
		if took := time.Since(began); took != recoverWithin || next == first {
			t.Errorf("another session after %v: %v; want one after %v", took, next != first, recoverWithin)
		}
		p.Release(next)
	})
}

// A session of a node that is ejected for its own load recovers, too, and is parked then.
func TestRecoverOnAnEjectedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		p := startPool(t, recovers{f, func(context.Context) (bool, error) { return true, nil }}, f, view(1, 2), config(50), nil)
		checkOut(t, p, 12)()
		s := checkOutOf(t, p, 2)
		p.SetView(ejected(nil))
		synctest.Wait()
		p.Recover(s)
		time.Sleep(recoverWithin)
		synctest.Wait()
		if st := p.Stats(); st.Parked != 6 || st.Recovered != 1 {
			t.Errorf("%+v; want it parked with the five others of the node", st)
		}
	})
}

// Recover is for a session in use, and ends it.
func TestRecoverTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		p := startPool(t, recovers{f, func(context.Context) (bool, error) { return true, nil }}, f, view(1), config(1), nil)
		s := get(t, p)
		p.Recover(s)
		defer func() {
			if recover() == nil {
				t.Error("a session that recovers may recover again")
			}
		}()
		p.Recover(s)
	})
}

// Nothing is asked where the answer does not matter.
func TestRecoverNot(t *testing.T) {
	for name, spoil := range map[string]func(p *Pool, s *Session){
		"its stream ended before": func(_ *Pool, s *Session) { s.Resource().(patient).retire("ended") },
		"its node went before":    func(p *Pool, _ *Session) { p.SetView(view(2)) },
		"it cannot be asked":      func(_ *Pool, s *Session) { s.res = s.res.(patient).remote },
		"its stream ends meanwhile": func(p *Pool, s *Session) {
			r := s.Resource().(patient)
			time.AfterFunc(time.Millisecond, func() { r.retire("ended") })
		},
		"the pool closes meanwhile": func(p *Pool, _ *Session) {
			time.AfterFunc(time.Millisecond, func() { _ = p.Close(context.Background()) })
		},
		"the pool closed before now": func(p *Pool, _ *Session) { go p.Close(context.Background()); synctest.Wait() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2)
				p := startPool(t, recovers{f, func(context.Context) (bool, error) {
					t.Error("the node was asked")
					return true, nil
				}}, f, view(1), config(1), nil)
				s := get(t, p)
				spoil(p, s)
				p.Recover(s)
				time.Sleep(time.Second)
				synctest.Wait()
				if live := f.live(); live[0] != 0 {
					t.Errorf("sessions by node %v; want none on the first", live)
				}
			})
		})
	}
}

// A question that nobody answers does not hold up Close, and costs its session.
func TestRecoverUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		p := startPool(t, recovers{f, func(ctx context.Context) (bool, error) { <-ctx.Done(); return false, ctx.Err() }},
			f, view(1), config(2), nil)
		a, b := get(t, p), get(t, p)
		p.Recover(a)
		time.Sleep(recoverWithin)
		synctest.Wait()
		if n := f.sum(); n != 1 {
			t.Errorf("%d sessions; want only the other one", n)
		}
		p.Recover(b)
		time.Sleep(recoverAfter[0])
		began := time.Now()
		if err := p.Close(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("Close: %v, after %v; want it at once", err, time.Since(began))
		}
	})
}
