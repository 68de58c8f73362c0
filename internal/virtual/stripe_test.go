package virtual

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// What a call writes of a stripe and of a session is in one line of the cache each, which objects of these sizes begin with.
func TestLines(t *testing.T) {
	var s Stripe
	var v Session
	if size := unsafe.Sizeof(s); size != 128 || unsafe.Offsetof(s.count)+unsafe.Sizeof(s.count.CheckedOut) > 64 {
		t.Errorf("a stripe is of %d bytes, its first counter at %d", size, unsafe.Offsetof(s.count))
	}
	if size := unsafe.Sizeof(v); size <= 176 || size > 192 || unsafe.Offsetof(v.n) >= 64 {
		t.Errorf("a virtual session is of %d bytes, n at %d", size, unsafe.Offsetof(v.n))
	}
}

// An id says which stripe has its session, and ids that differ in that alone are two.
func TestStripesOfIDs(t *testing.T) {
	vs := New(Config{Sessions: 10_000})
	who := &Credentials{}
	for i, s := range vs.stripes {
		for range 100 {
			if v := vs.Create(s, who, nil, false); int(v.id.stripe()) != i || vs.Of(v.id) != s {
				t.Fatalf("%x was made in stripe %d", v.id, i)
			}
		}
	}
	same := newID(0)
	var all []*Session
	for i, s := range vs.stripes {
		v := &Session{id: same, maker: who.Hash}
		v.id[0] |= uint8(i)
		s.byID.put(v)
		all = append(all, v)
	}
	for _, v := range all {
		id, ok := Parse(v.id.Append(nil))
		if got, _ := vs.See(id, who, nil); !ok || got != v {
			t.Errorf("%x: %p; want %p", id, got, v)
		}
	}
}

// Never are there more sessions than allowed, in whatever stripes they are made, and none less.
func TestLimitOverStripes(t *testing.T) {
	const most, makers = 50, 2 * stripeCount
	rounds := short.Of(300, 100)
	vs, own, who := New(Config{Sessions: most}), new(IdentityPool), new(Credentials)
	own.wasUsed.Store(true)
	var there, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range makers {
		wg.Go(func() {
			s := vs.stripes[i%stripeCount]
			var mine []*Session
			for round := range rounds {
				if v := vs.Create(s, who, nil, false); v == nil {
					refused.Add(1)
				} else if mine = append(mine, v); there.Add(1) > most {
					t.Error("more than allowed")
				} else if _, no := vs.Enter(v.id, who, own, nil, false, nil); no != nil {
					t.Error(no)
				} else {
					vs.Settle(s, &Use{Identity: own, Session: v}, new(Outcome))
				}
				if len(mine) > 0 && (len(mine) > 5 || round%3 == 2) {
					there.Add(-1)
					vs.End(mine[0])
					mine = mine[1:]
				}
				if round%50 == 0 {
					vs.State(new(IdentityPools))
				}
			}
		})
	}
	wg.Wait()
	st := vs.State(new(IdentityPools))
	if st.Sessions != int(there.Load()) || vs.n.Load() != there.Load() || own.sessions.Load() != there.Load() ||
		st.Refused != uint64(refused.Load()) || st.Created+st.Refused != uint64(makers*rounds) {
		t.Errorf("%d sessions, %d refused; counted %+v, %d, %d", there.Load(), refused.Load(), st, vs.n.Load(), own.sessions.Load())
	}
	for vs.Create(vs.stripes[int(there.Load())%stripeCount], who, nil, false) != nil {
		there.Add(1)
	}
	if there.Load() != most {
		t.Errorf("%d sessions when one was refused; want %d", there.Load(), most)
	}
	vs.Close()
	if st := vs.State(new(IdentityPools)); st.Sessions != 0 || vs.n.Load() != 0 || own.sessions.Load() != 0 {
		t.Errorf("all have ended: %+v, %d, %d of the identity", st, vs.n.Load(), own.sessions.Load())
	}
}

// A panic under the lock of a stripe leaves it free.
func TestAPanicUnderALockFreesIt(t *testing.T) {
	who, own := new(Credentials), new(IdentityPool)
	for name, do := range map[string]func(vs *Sessions, v *Session){
		"Enter": func(vs *Sessions, v *Session) { v.state = gone; vs.Enter(v.id, who, own, nil, false, nil) },
		"Settle": func(vs *Sessions, v *Session) { // there is no call
			vs.Settle(vs.stripes[0], &Use{Session: v, Server: new(pool.Session), Identity: own}, new(Outcome))
		},
		"endAll": func(vs *Sessions, _ *Session) { vs.endAll(func(*Session) bool { panic("broken") }) },
		"Expire": func(vs *Sessions, v *Session) {
			v.state = none
			vs.Expire(time.Now().Add(time.Hour))
		},
	} {
		vs := New(Config{Sessions: 1})
		v := vs.Create(vs.stripes[0], who, nil, true)
		panicked := true
		func() {
			defer func() { _ = recover() }()
			do(vs, v)
			panicked = false
		}()
		if !panicked || !vs.stripes[0].mu.TryLock() {
			t.Errorf("%s: panicked %v; want that, and the lock free", name, panicked)
			continue
		}
		vs.stripes[0].mu.Unlock()
	}
}

// A server session with more transactions than can be noted is in doubt.
func TestMoreTransactionsThanAreNoted(t *testing.T) {
	vs, own, who := New(Config{Sessions: 1}), new(IdentityPool), new(Credentials)
	v := vs.Create(vs.Stripe(0), who, nil, false)
	lease := new(pool.Session)
	for tx := range uint64(maxOpen + 1) {
		e, err := vs.Enter(v.id, who, own, nil, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := vs.Settle(
			vs.Stripe(0),
			&Use{Identity: own, Session: v, Server: lease, Bound: e.Server != nil, Request: Request{Begin: true}},
			&Outcome{Status: Ydb.StatusIds_SUCCESS, HasMeta: true, MetaTx: tx + 1, Ran: true, Clean: true},
		)
		if want := tx < maxOpen; (r.Fate == Kept) != want || (vs.InTx() == 1) != want {
			t.Errorf("transaction %d: fate %d, %d sessions with transactions", tx+1, r.Fate, vs.InTx())
		}
	}
}
