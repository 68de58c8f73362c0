package virtual

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// check compares everything with the model.
func (w *walk) check() {
	synctest.Wait()
	st := w.vs.State(new(IdentityPools))
	var attached, bound, inTx, held, owned int
	of := map[*pool.Session]*seen{}
	for _, v := range append(slices.Clone(w.all), w.over...) {
		lease := v.has
		if v.call != nil {
			lease = v.call.Server
		}
		if lease != nil {
			if held++; of[lease] != nil {
				w.Errorf("%s is with sessions %d and %d", lease.Name(), of[lease].number, v.number)
			}
			of[lease] = v
		}
		if v.ended {
			continue
		}
		if v.attached != nil {
			if attached++; v.attached.ended > 0 {
				w.Errorf("the stream of session %d has been ended", v.number)
			}
		}
		if v.has != nil && v.call == nil {
			bound++
		}
		if len(v.open) > 0 {
			inTx++
		}
		if v.owned {
			owned++
		}
		if v.has != nil && v.call == nil {
			if s := v.has.Resource().(*onNode); !s.dirty() && !v.always || s.temporary != v.table || len(s.open) != len(v.open) {
				w.Errorf("%s stays with session %d: %+v", s.name, v.number, s)
			}
		}
		w.checkOne(v)
	}
	if ps := w.pool.Stats(); ps.InUse-ps.Recovering != held {
		w.Errorf("%d server sessions are leased, of them %d recovering; want %d", ps.InUse, ps.Recovering, held)
	}
	if n := int(w.identity.sessions.Load()); n != owned || int(w.vs.n.Load()) != len(w.all) {
		w.Errorf("%d of the identity, %d counted; want %d, %d", n, w.vs.n.Load(), owned, len(w.all))
	}
	if st.Sessions != len(w.all) || st.Attached != attached || st.Bound != bound || w.vs.InTx() != inTx || st.Lost != w.lost {
		w.Errorf("%+v, in transactions %d; want %d, attached %d, bound %d, in transactions %d, lost %d", st, w.vs.InTx(),
			len(w.all), attached, bound, inTx, w.lost)
	}
	w.kept()
	w.lists()
}

// kept compares the connections that stay after all clients were asked to go.
func (w *walk) kept() {
	kept, want := map[Client]bool{}, map[Client]bool{}
	w.vs.Kept(func(c Client) { kept[c] = true })
	for v := range w.staying {
		if want[v.client] = true; v.attached != nil {
			want[v.stem] = true
		}
	}
	if !maps.Equal(kept, want) {
		w.Errorf("connections %v are kept; want %v", kept, want)
	}
}

// checkOne compares one session that has not ended.
func (w *walk) checkOne(v *seen) {
	s := w.vs.Of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	want := resting
	switch {
	case v.call != nil && v.has != nil:
		want = using
	case v.call != nil:
		want = calling
	case v.has != nil:
		want = bound
	}
	if s != w.vs.stripes[v.stripe] || s.byID.get(v.id) != v.Session || v.Session.state != want || v.server != v.has ||
		int(v.n) != len(v.open) || v.temporary != v.table {
		w.Errorf("session %d is %v with %d transactions, temporary %v; want %v, %d, %v", v.number, v.Session.state, v.n,
			v.temporary, want, len(v.open), v.table)
	}
	if v.Session.closing != v.closing {
		w.Errorf("session %d: its node wants it closed: %v; want %v", v.number, v.Session.closing, v.closing)
	}
	if (v.next == nil) != (v.attached != nil) {
		w.Errorf("session %d is among those that end by themselves: %v; attached %v", v.number, v.next != nil, v.attached != nil)
	}
}

// lists compares the lists of the stripes with their sessions.
func (w *walk) lists() {
	for i, s := range w.vs.stripes {
		n := 0
		for _, ring := range []*Session{&s.resting.idle, &s.resting.unused} {
			for v := ring.next; v != ring; v = v.next {
				if n++; v.next.prev != v || s.byID.get(v.id) != v || (v.identity == nil) != (ring == &s.resting.unused) {
					w.Errorf("stripe %d: a broken ring", i)
				}
			}
		}
		if n+int(s.attached) != s.byID.n {
			w.Errorf("stripe %d: %d unattached, %d attached, of %d", i, n, s.attached, s.byID.n)
		}
		for v := range s.bound {
			if v.server == nil || s.byID.get(v.id) != v {
				w.Errorf("stripe %d: %v is in the list of those that have a server session", i, v.state)
			}
		}
		for v := range w.vs.stay[i] {
			if s.byID.get(v.id) != v {
				w.Errorf("stripe %d: a session that has ended keeps connections", i)
			}
		}
	}
}

// finish ends all calls and sessions. All server sessions must be back then.
func (w *walk) finish() {
	for _, v := range append(slices.Clone(w.all), w.over...) {
		if v.call != nil {
			w.settle(v, givenUp)
		}
	}
	w.vs.Close()
	w.all, w.staying = nil, map[*seen]bool{}
	time.Sleep(10 * time.Second) // what recovers
	w.check()
	if w.pool.Stats().InUse > 0 {
		w.Errorf("leased at the end: %d", w.pool.Stats().InUse)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.pool.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		w.Error(err)
	}
}
