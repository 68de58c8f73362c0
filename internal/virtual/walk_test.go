package virtual

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

var walks = flag.Int("walks", 200, "random walks of the model test")

// TestRandomWalk has clients do random things on sessions, over a real pool, whose server sessions say what is on them.
// After each step all is compared with what must hold.
func TestRandomWalk(t *testing.T) {
	for seed := range short.Of(*walks, 20) {
		random := rand.New(rand.NewPCG(uint64(seed), 9))
		bytes := make([]byte, 1500)
		for i := range bytes {
			bytes[i] = byte(random.Uint32())
		}
		synctest.Test(t, func(t *testing.T) { takeWalk(t, bytes) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// FuzzWalk is the same with steps that the bytes say.
func FuzzWalk(f *testing.F) {
	for seed := range uint64(4) {
		var b []byte
		for random := rand.New(rand.NewPCG(seed, 7)); len(b) < 200; {
			b = binary.LittleEndian.AppendUint64(b, random.Uint64())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		synctest.Test(t, func(t *testing.T) { takeWalk(t, bytes[:min(len(bytes), 4000)]) })
	})
}

func takeWalk(t *testing.T, bytes []byte) {
	w := newWalk(t, bytes)
	for len(w.bytes) > 0 && !t.Failed() {
		w.advance()
		w.check()
		if t.Failed() {
			t.Errorf("after %v", w.story)
		}
	}
	w.finish()
}

// walk is the sessions, their pool, and the model.
type walk struct {
	*testing.T
	model
	bytes    []byte // they say what happens
	pool     *pool.Pool
	vs       *Sessions
	identity *IdentityPool
	stranger *IdentityPool
	who      *Credentials
	other    *Credentials
	clients  [3]*connection
	story    []string
}

// model is what the clients know.
type model struct {
	all     []*seen
	over    []*seen // sessions that have ended while a call is under way
	made    int     // sessions
	tx      uint64  // the last one begun
	lost    uint64  // what State.Lost must say
	asked   bool
	staying map[*seen]bool // at Ask, and since
	ends    time.Time      // of EndUnused: since when; zero: not yet
}

type connection struct{ number int }

// attachment is a Stream.
type attachment struct{ ended int }

func (a *attachment) End() { a.ended++ }

// seen is a session as its client sees it. Wide: each field is one thing that the
// model compares with the session.
type seen struct {
	*Session
	number   int
	stripe   int
	always   bool
	has      *pool.Session // the server session that stays with it
	open     []uint64
	lost     bool
	table    bool
	closing  bool
	client   *connection // of the last call
	attached *attachment
	streams  []uint8 // by their numbers; the last one is attached
	stem     *connection
	call     *Use // under way; nil: none
	ended    bool
	owned    bool      // the sessions know whose it is
	used     time.Time // with a transaction, at last
	made     time.Time
	told     uint64 // the transaction that the answer under way has named; 0: none
}

func newWalk(t *testing.T, bytes []byte) *walk {
	w := &walk{T: t, bytes: bytes, model: model{staying: map[*seen]bool{}}}
	config := pool.Default()
	config.Max = 3
	w.pool = pool.New(config, new(node), nil)
	router := routing.New(routing.Default())
	router.Subscribe(w.pool.SetView)
	router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: "a:1"}}, ""))
	w.vs = New(Config{Sessions: 6, ServerSessions: 3})
	w.identity, w.stranger = &IdentityPool{
		Pool: w.pool, name: poolKey{user: "one"},
	}, &IdentityPool{Pool: w.pool, name: poolKey{user: "two"}}
	w.who, w.other = ptr(NewCredentials("/local", "a")), ptr(NewCredentials("/local", "b"))
	for i := range w.clients {
		w.clients[i] = &connection{i}
	}
	return w
}

func ptr[T any](v T) *T { return &v }

// below takes a number below n from the bytes.
func (w *walk) below(n int) int {
	if len(w.bytes) == 0 {
		return 0
	}
	b := w.bytes[0]
	w.bytes = w.bytes[1:]
	return int(b) % n
}

func (w *walk) tell(format string, args ...any) {
	w.story = append(w.story[max(0, len(w.story)-20):], fmt.Sprintf(format, args...))
}

// pick is one of the sessions that fit; nil: none does.
func (w *walk) pick(fits func(*seen) bool) *seen {
	var some []*seen
	for _, v := range append(slices.Clone(w.all), w.over...) {
		if fits(v) {
			some = append(some, v)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return some[w.below(len(some))]
}

func here(v *seen) bool  { return !v.ended }
func calls(v *seen) bool { return v.call != nil }

// advance does one thing.
func (w *walk) advance() {
	switch n := w.below(100); {
	case n < 12:
		w.create()
	case n < 20:
		w.attach()
	case n < 45:
		w.enter()
	case n < 75:
		if v := w.pick(calls); v != nil {
			w.settle(v, max(fine, w.below(2*outcomes)-outcomes))
		}
	case n < 76:
		w.alone()
	case n < 78:
		if v := w.pick(calls); v != nil && v.call.Server != nil && !v.ended {
			w.lose(v)
		}
	case n < 80:
		if v := w.pick(calls); v != nil {
			w.abandon(v)
		}
	case n < 84:
		if v := w.pick(here); v != nil {
			w.tell("session %d is deleted", v.number)
			w.gone(v)
			w.back(v, w.vs.End(v.Session))
		}
	case n < 87:
		if v := w.pick(here); v != nil {
			w.endStream(v)
		}
	case n < 88:
		w.leaves(w.clients[w.below(len(w.clients))])
	case n < 90:
		w.closes(w.clients[w.below(len(w.clients))])
	case n < 93:
		if v := w.pick(func(v *seen) bool { return v.has != nil }); v != nil {
			w.tell("the node wants the server session of session %d closed", v.number)
			v.has.Resource().(*onNode).retire("the node's shutdown")
		}
	case n < 95:
		w.strange()
	case n < 96:
		w.expire()
	case n < 97:
		if v := w.pick(here); v != nil && w.vs.Touch(v.Session) != (v.call != nil) {
			w.Errorf("session %d is busy: %v", v.number, v.call == nil)
		}
	case n < 98:
		w.unused()
	case n < 99 && w.below(2) == 0:
		w.hear()
	case n < 99 && len(w.bytes) < 200 && !w.asked:
		w.ask()
	}
}

// endStream ends the stream of a session, after streams that it had before.
func (w *walk) endStream(v *seen) {
	earlier := v.streams
	if v.attached != nil {
		earlier = v.streams[:len(v.streams)-1]
	}
	for _, n := range append([]uint8{0}, earlier...) {
		if v.attached != nil && n == v.streams[len(v.streams)-1] {
			continue // there were 256 since
		}
		w.tell("stream %d of session %d has ended long since", n, v.number)
		if r := w.vs.Detached(v.Session, n); r != (Return{}) {
			w.Errorf("%+v", r)
		}
	}
	if v.attached != nil {
		w.tell("the stream of session %d ends", v.number)
		w.detached(v)
	}
}

func (w *walk) create() {
	w.made++
	v := &seen{number: w.made, stripe: w.below(stripeCount), always: w.below(5) == 0}
	w.tell("session %d is made, always %v", v.number, v.always)
	v.Session = w.vs.Create(w.vs.Stripe(v.stripe), w.who, nil, v.always)
	if full := len(w.all) == 6; full && v.Session != nil {
		w.madeRoom()
	} else if full != (v.Session == nil) {
		w.Errorf("%d sessions; made one: %v", len(w.all), v.Session != nil)
	}
	if v.Session != nil {
		v.made = time.Now()
		w.all = append(w.all, v)
	}
}

// madeRoom finds the session that had to go for another one: nobody has used it or attached to it, and it is no longer young.
func (w *walk) madeRoom() {
	var gone []*seen
	for _, v := range w.all {
		if found, _ := w.vs.See(v.ID(), w.who, w.identity); found == nil {
			gone = append(gone, v)
		}
	}
	for _, v := range gone {
		w.tell("session %d has made room", v.number)
		if age := time.Since(v.made); v.owned || v.attached != nil || v.call != nil || age < young {
			w.Errorf("session %d had to go: used %v, attached to %v, %v old", v.number, v.owned, v.attached != nil, age)
		}
		w.gone(v)
	}
	if len(gone) != 1 {
		w.Errorf("%d sessions had to go for one", len(gone))
	}
}

func (w *walk) attach() {
	v := w.pick(func(*seen) bool { return true })
	if v == nil {
		return
	}
	a, stem := new(attachment), w.clients[w.below(len(w.clients))]
	var want error
	if v.attached != nil {
		want = ErrAttached
	}
	if v.ended {
		want = ErrNoSession
	}
	w.tell("session %d is attached to: %v", v.number, want)
	if n, err := w.vs.Attach(v.Session, a, stem); err != want {
		w.Errorf("%v; want %v", err, want)
	} else if err == nil {
		v.attached, v.stem, v.streams = a, stem, append(v.streams, n)
	}
}

// enter begins a call, which may name a transaction.
func (w *walk) enter() {
	v := w.pick(func(*seen) bool { return true })
	if v == nil {
		return
	}
	inTx, client := w.below(4) == 0 || len(v.open) > 0 && w.below(2) == 0, w.clients[w.below(len(w.clients))]
	var want error
	switch {
	case v.ended:
		want = ErrNoSession
	case v.call != nil:
		want = ErrBusy
	case inTx && v.has == nil && v.lost:
		want = ErrLost
	case inTx && v.has == nil:
		want = ErrNoTx
	}
	e, err := w.vs.Enter(v.ID(), w.who, w.identity, nil, inTx, client)
	w.tell("a call on session %d, in a transaction %v: %v", v.number, inTx, err)
	if err != want {
		w.Errorf("%v; want %v", err, want)
	}
	if err != nil {
		return
	}
	stale := v.has != nil && !v.has.Valid() && len(v.open) == 0 && !v.table
	if stale != (e.Stale.Server != nil) {
		w.Errorf("gives a stale server session back: %v; want %v", e.Stale.Server != nil, stale)
	}
	if stale {
		if v.has = nil; e.Server != nil {
			w.Error("goes on with the one that is closed")
		}
		v.closing = false
		w.back(v, e.Stale)
	}
	if e.Server != v.has || e.Session != v.Session || e.Identity != w.identity {
		w.Errorf("entered %+v; want %p", e, v.has)
	}
	v.client, v.owned = client, true
	v.call = &Use{Identity: w.identity, Session: v.Session, Server: e.Server, Bound: e.Server != nil}
	w.checkOut(v)
}

// checkOut takes a server session for a call that has none, if the pool has one.
func (w *walk) checkOut(v *seen) {
	if v.call.Server != nil || w.below(8) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(w.Context(), time.Millisecond)
	defer cancel()
	g, err := w.pool.Acquire(ctx, pool.Ask{Class: Class})
	if err != nil {
		return
	}
	v.call.Server = g.Session
	if s := g.Session.Resource().(*onNode); s.dirty() {
		w.Errorf("session %d gets %s, on which there is %+v", v.number, s.name, s)
	}
}

// streamEnds expects that the session has ended its stream.
func (w *walk) streamEnds(v *seen) {
	if v.attached.ended != 1 {
		w.Errorf("the stream of session %d was ended %d times", v.number, v.attached.ended)
	}
	v.attached, v.stem = nil, nil
}

// gone notes that a session ends now.
func (w *walk) gone(v *seen) {
	v.ended = true
	delete(w.staying, v)
	w.all = slices.DeleteFunc(w.all, func(o *seen) bool { return o == v })
	if v.call != nil {
		w.over = append(w.over, v)
	}
}

// back gives a server session back that came from v's having ended or lost it.
func (w *walk) back(v *seen, r Return) {
	if v.ended && v.call == nil && v.has != nil {
		s := v.has.Resource().(*onNode)
		want := Released
		if s.dirty() || v.closing {
			want = Discarded
		}
		if r.Server != v.has || r.Fate != want {
			w.Errorf("at the end of session %d: %+v; want %s, %d", v.number, r, s.name, want)
		}
		v.has = nil
	}
	if v.ended && v.attached != nil {
		w.streamEnds(v)
	}
	if r.Server != nil && r.Fate == Released && r.Server.Resource().(*onNode).dirty() {
		w.Errorf("%+v goes back", r.Server.Resource())
	}
	r.Give()
}

// lose has the call find that its server session cannot be reached.
func (w *walk) lose(v *seen) {
	if !v.call.Bound || v.told != 0 {
		return
	}
	want := len(v.open) > 0 || v.table
	w.tell("session %d loses its server session: %v", v.number, want)
	r, lost := w.vs.Lose(v.call)
	if lost != want || r.Server != v.has || r.Fate != Discarded || v.call.Server != nil || v.call.Bound {
		w.Errorf("%+v, %v; want that %v", r, lost, want)
	}
	if v.lost = want; want {
		w.lost++
	}
	v.has, v.open, v.table, v.closing = nil, nil, false, false
	if r.Give(); !want {
		w.checkOut(v)
	}
}

// abandon ends a call whose end panicked.
func (w *walk) abandon(v *seen) {
	w.tell("the end of the call on session %d panics", v.number)
	if len(v.open) > 0 || v.table {
		w.lost++
	}
	lease := v.call.Server
	r := w.vs.Abandon(w.vs.Stripe(v.stripe), v.call)
	if r.Server != lease || r.Fate != Discarded {
		w.Errorf("%+v", r)
	}
	v.call, v.has, v.open, v.table, v.told = nil, nil, nil, false, 0
	if v.ended {
		w.over = slices.DeleteFunc(w.over, func(o *seen) bool { return o == v })
	} else {
		w.gone(v)
	}
	w.back(v, r)
}

// detached ends the stream of a session, which nobody ends any more.
func (w *walk) detached(v *seen) {
	v.attached = nil
	w.gone(v)
	w.back(v, w.vs.Detached(v.Session, v.streams[len(v.streams)-1]))
}

// closes ends a connection: its calls first, as they are.
func (w *walk) closes(c *connection) {
	w.tell("connection %d ends", c.number)
	for _, v := range append(slices.Clone(w.all), w.over...) {
		if v.call != nil && v.client == c {
			w.settle(v, givenUp)
		}
	}
	for _, v := range slices.Clone(w.all) {
		if v.attached != nil && v.stem == c {
			w.detached(v)
		}
	}
	w.vs.ClientGone(c)
	for _, v := range w.all {
		if v.client == c && v.has != nil && v.call == nil && v.attached == nil {
			if v.lost = len(v.open) > 0 || v.table; v.lost {
				w.lost++
			}
			v.has, v.open, v.table, v.closing = nil, nil, false, false
			delete(w.staying, v)
		}
	}
	for i, other := range w.clients {
		if other == c {
			w.clients[i] = &connection{c.number}
		}
	}
}

// strange has somebody else try.
func (w *walk) strange() {
	v := w.pick(func(*seen) bool { return true })
	if v == nil {
		return
	}
	w.tell("a stranger on session %d", v.number)
	if _, err := w.vs.Enter(v.ID(), w.other, w.stranger, nil, false, w.clients[0]); err != ErrNoSession {
		w.Errorf("a stranger: %v", err)
	}
	if got, sure := w.vs.See(v.ID(), w.other, w.stranger); got != nil || !sure {
		w.Error("a stranger sees it")
	}
	if id := w.vs.BoundTo(v.ID(), w.other, "two"); id != "" {
		w.Errorf("a stranger is told %s", id)
	}
	want := ""
	if v.has != nil && !v.ended {
		want = v.has.Name()
	}
	if id := w.vs.BoundTo(v.ID(), w.who, ""); id != want {
		w.Errorf("bound to %q; want %q", id, want)
	}
}

// expire is after ten minutes in which nobody does anything.
func (w *walk) expire() {
	w.tell("ten minutes pass")
	time.Sleep(lifetime + 2*sweeps)
	w.vs.Expire(time.Now())
	for _, v := range slices.Clone(w.all) {
		if v.call == nil && v.attached == nil {
			w.gone(v)
			v.has = nil // given back
		}
	}
}

// unused has transactions rolled back that nobody uses, at first from now on.
func (w *walk) unused() {
	if w.ends.IsZero() {
		w.tell("transactions end after a second")
		w.ends = time.Now()
		w.vs.EndUnused(time.Second)
	}
	time.Sleep(time.Duration(1+w.below(3)) * 400 * time.Millisecond)
	w.vs.rollBack(time.Now())
	w.tell("some time passes")
	for _, v := range slices.Clone(w.all) {
		if len(v.open) > 0 && v.call == nil && time.Since(w.ends) >= time.Second && time.Since(v.used) >= time.Second {
			if w.gone(v); v.attached != nil {
				w.streamEnds(v)
			}
			v.has = nil // deleted
			w.lost++
		}
	}
}

func (w *walk) ask() {
	w.tell("clients are asked to go")
	w.asked = true
	w.vs.Ask()
	for _, v := range slices.Clone(w.all) {
		switch {
		case v.call != nil, len(v.open) > 0:
			w.staying[v] = true
		case v.attached != nil:
			w.gone(v)
			w.streamEnds(v)
			v.has = nil
		}
	}
}

// leaves has the sessions end whose streams came over a connection, but those that are needed.
func (w *walk) leaves(c *connection) {
	w.tell("connection %d is to go", c.number)
	w.vs.Leave(func(other Client) bool { return other == Client(c) })
	for _, v := range slices.Clone(w.all) {
		if v.attached != nil && v.stem == c && v.call == nil && len(v.open) == 0 {
			w.gone(v)
			w.streamEnds(v)
			v.has = nil
		}
	}
}
