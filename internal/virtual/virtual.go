// Package virtual owns the sessions of SDKs: sessions that clients hold for as long as they like, and that
// have one of a node's (a server session, of a pool) only while a call is under way, or something lives on it.
// It owns their clients' identities, too (IdentityPools): whose a session is, and from which pool it gets server sessions.
//
// It knows no connection and no call. Its user tells it what happens, in this order: Enter begins a call on a session
// and says which server session the call goes out on, if one stayed with it; else the user gets one of the identity's pool.
// Settle ends the call, by what it left behind (Outcome), and says what becomes of the server session. What a
// session is in is one of few states; edges.go has them and every way between them, and decision 9 explains them.
//
// What always holds: a server session is with one session at a time, or with one call; no session has two calls. A
// session in no call has a server session if and only if something lives there (a transaction, a temporary
// table, settings of PostgreSQL), or it is to keep one. A server session with something on it goes to nobody else: it is discarded.
// Sessions are found by ids that nobody can guess, and by their own identity alone.
//
// All methods are for any goroutine. Except for sweeps and figures, a stripe's lock is held for a number of steps that no client
// decides; no pool is called under it. The order of locks: keeps.mu, Stripe.mu, whatever Stream.End takes.
package virtual

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// What Enter and the like answer. ErrOtherApp is for no client: enter again with the pool for the session's App.
var (
	ErrNoSession = errors.New("the session has ended, or never was")
	ErrOtherApp  = errors.New("the session is of another app")
	ErrBusy      = errors.New("the session runs another call")
	ErrAttached  = errors.New("the session is attached already")
	ErrNoTx      = errors.New("no transaction is open on the session")
	ErrLost      = errors.New("the transaction was lost with the server session that it was open on")
)

// Config says how many sessions there may be.
type Config struct {
	Sessions       int // at a time
	ServerSessions int // of the pools of all identities
}

// Sessions are all sessions of a server, in stripes by what their ids say.
type Sessions struct {
	max     int64
	servers int
	began   time.Time
	leave   atomic.Bool            // clients are asked to go
	unused  atomic.Pointer[unused] // see EndUnused; nil: they last
	stripes [stripeCount]*Stripe
	stay    [stripeCount]map[*Session]struct{} // what Ask found under way and has not ended; guarded by the stripe's mu
	_       [64]byte                           // what follows is written, and what is above is read by each call

	Starved atomic.Uint64 // calls refused because sessions of mode session keep all of their pool; counted before their clients are told

	keeps keeps
	ends  chan struct{} // capacity 1: unused was set
	n     atomic.Int64  // sessions in all stripes; reserved before they are there
	inTx  atomic.Int64  // sessions with a transaction open; changed under their stripe's mu, before the client is told
}

// New returns no sessions. Run must be called for those that nobody uses to end.
func New(config Config) *Sessions {
	vs := &Sessions{max: int64(config.Sessions), servers: config.ServerSessions, began: time.Now(), ends: make(chan struct{}, 1)}
	for i := range vs.stripes {
		s := &Stripe{bound: map[*Session]struct{}{}, resting: newRings(), number: uint8(i)}
		vs.stripes[i] = s
	}
	return vs
}

// Stripe is where a shard makes sessions.
func (vs *Sessions) Stripe(shard int) *Stripe { return vs.stripes[shard%stripeCount] }

// Of is the stripe that has a session, if there is one of that id.
func (vs *Sessions) Of(id ID) *Stripe { return vs.stripes[id.stripe()] }

// InTx is how many sessions have a transaction open. One that a client was told of is counted.
func (vs *Sessions) InTx() int { return int(vs.inTx.Load()) }

// Create makes a session in a stripe, for an app, which may be nil; nil: there are as many as allowed, and none makes room (see
// makeRoom). always: it keeps its server session to its end.
func (vs *Sessions) Create(s *Stripe, who *Credentials, app *apps.App, always bool) *Session {
	for {
		n := vs.n.Load()
		if n >= vs.max {
			if vs.makeRoom(int(s.number), who.ConnSessions) {
				continue
			}
			s.mu.Lock()
			s.count.Refused++
			s.mu.Unlock()
			return nil
		}
		if vs.n.CompareAndSwap(n, n+1) {
			break
		}
	}
	v := &Session{id: newID(s.number), state: resting, always: always, maker: who.Hash, conn: who.ConnSessions, app: app,
		last: time.Since(vs.began)}
	v.conn.add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count.Created++
	s.byID.put(v)
	s.restLocked(v)
	return v
}

// young is the age below which a session is about to be used or attached to. As many as a client can create
// within it are far fewer than there may be.
const young = 100 * time.Millisecond

// left is how long a session without a stream is not used before it makes room for another one.
const left = time.Minute

// makeRoom ends one session so that the connection that conn counts can have a new one. It takes the first that it finds:
//   - the oldest session of a stripe that was never used or attached to, if it is older than young;
//   - a session of the connection with the most sessions, if that has more than this one would have;
//   - the longest unused session without a stream, if it was not used for left.
//
// So a client that creates many sessions keeps no other client out.
func (vs *Sessions) makeRoom(first int, conn *ConnSessions) bool {
	now := time.Since(vs.began)
	return vs.endFirst(first, func(s *Stripe) *Session {
		if v := s.resting.unused.next; v != &s.resting.unused && now-v.last >= young {
			return v
		}
		return nil
	}) || vs.displace(conn) || vs.endFirst(first, func(s *Stripe) *Session {
		if v := s.resting.idle.next; v != &s.resting.idle && v.state == resting && now-v.used.since() >= left {
			return v
		}
		return nil
	})
}

// endFirst ends the session that which names, of the first stripe for which it names one. It has no server session.
func (vs *Sessions) endFirst(first int, which func(*Stripe) *Session) (found bool) {
	for i := 0; i < len(vs.stripes) && !found; i++ {
		s := vs.stripes[(first+i)%stripeCount]
		s.mu.Lock()
		if v := which(s); v != nil {
			found = true
			s.count.Expired++
			vs.endLocked(s, v)
		}
		s.mu.Unlock()
	}
	return found
}

// samples is how many sessions of a stripe displace looks at. A connection that has half of them is missed once in 2^16.
const samples = 16

// displace ends a session of the connection that has most, of those of some sessions at random, if it has more than the one that has share
// will have.
func (vs *Sessions) displace(conn *ConnSessions) bool {
	var victim *Session
	most := conn.has() + 1
	for _, s := range vs.stripes {
		s.mu.Lock()
		for range samples {
			if v := s.byID.any(); v != nil && v.state == resting && v.conn.has() > most {
				victim, most = v, v.conn.has()
			}
		}
		s.mu.Unlock()
	}
	if victim == nil {
		return false
	}
	s := vs.Of(victim.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if victim.state == resting { // else look again
		s.count.Expired++
		vs.endLocked(s, victim)
	}
	return true
}

// See finds the caller's session. Another caller's is as one that is not there. sure is
// false if that depends on the caller's identity, which nobody knows yet.
func (vs *Sessions) See(id ID, who *Credentials, t *IdentityPool) (v *Session, sure bool) {
	s := vs.Of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	v = s.byID.get(id)
	if v == nil || v.isOf(who, t) {
		return v, true
	}
	return nil, t != nil || v.identity == nil
}

// Entered is a call on a session.
type Entered struct {
	*Session
	Identity *IdentityPool // of the session
	Server   *pool.Session // the one that stays with the session; nil: none
	Stale    Return        // a server session that did, and is needed no more: the node wants it closed
}

// Enter begins a call of the identity pool t, which is the caller's for an app; nil: for none. The call goes
// on with the session's own pool, which is of the same identity. inTx: it names a transaction.
// The error is ErrNoSession, ErrOtherApp (with the session), ErrBusy, ErrLost or ErrNoTx.
func (vs *Sessions) Enter(id ID, who *Credentials, t *IdentityPool, app *apps.App, inTx bool, client Client) (e Entered, err error) {
	s := vs.Of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.byID.get(id)
	switch {
	case v == nil || v.identity == nil && v.maker != who.Hash || v.identity != nil && !v.identity.is(t) && !v.adopts(t):
		return e, ErrNoSession
	case (v.adopts(t) || v.stale() && v.identity.gone.Load()) && v.app != app:
		e.Session = v
		return e, ErrOtherApp
	case v.state.busy():
		return e, ErrBusy
	case inTx && v.server == nil && v.lost:
		return e, ErrLost
	case inTx && v.server == nil:
		return e, ErrNoTx
	}
	if v.stale() {
		e.Stale = Return{v.identity, v.server, Released}
		s.moveLocked(v, drop)
	}
	if v.adopts(t) && v.identity != t {
		if v.identity != nil {
			v.identity.sessions.Add(-1)
		}
		v.identity = t
		t.sessions.Add(1)
		if v.next != nil { // it is no longer unused
			v.stirLocked()
			s.restLocked(v)
		}
	}
	e.Session, e.Identity, e.Server = v, v.identity, v.server
	v.client = client
	s.moveLocked(v, enter) // last: after a panic nobody would end the call
	return e, nil
}

// Near is where the session's last server session was. Only its call may ask.
func (v *Session) Near() pool.Home { return v.near }

// Attach notes the stream that keeps a session alive, and the connection that it came over. The number is for
// Detached. The error is ErrNoSession or ErrAttached.
func (vs *Sessions) Attach(v *Session, stream Stream, stem Client) (uint8, error) {
	s := vs.Of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case v.state.over():
		return 0, ErrNoSession
	case v.stream != nil:
		return 0, ErrAttached
	}
	v.stirLocked()
	v.stream, v.stem = stream, stem
	v.streams++
	s.attached++
	return v.streams, nil
}

// Touch says that a session is in use, and returns whether a call is under way.
func (vs *Sessions) Touch(v *Session) (busy bool) {
	s := vs.Of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restLocked(v)
	return v.state.busy()
}

// End ends a session. What it returns is to be given back.
func (vs *Sessions) End(v *Session) Return {
	s := vs.Of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.state.over() {
		return Return{}
	}
	return vs.endLocked(s, v)
}

// Detached ends a session whose stream of that number has ended, unless it was detached before (see detachLocked): it may have
// another one by now.
func (vs *Sessions) Detached(v *Session, number uint8) Return {
	s := vs.Of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.stream == nil || v.streams != number {
		return Return{}
	}
	s.unstreamLocked(v)
	return vs.endLocked(s, v)
}

// endLocked ends one of s that has not ended. A call that is under way sees to the server session.
func (vs *Sessions) endLocked(s *Stripe, v *Session) (r Return) {
	if v.state == bound {
		r = Return{v.identity, v.server, v.fateOfServer()}
	}
	s.moveLocked(v, end)
	s.byID.remove(v)
	delete(vs.stay[s.number], v)
	vs.n.Add(-1)
	v.conn.add(-1)
	if v.identity != nil {
		v.identity.sessions.Add(-1)
	}
	v.stirLocked()
	s.detachLocked(v)
	vs.countTxLocked(v)
	return r
}

// countTxLocked counts the sessions that have a transaction open.
func (vs *Sessions) countTxLocked(v *Session) {
	switch open := v.n > 0 && v.state.holds(); {
	case open && !v.inTx:
		vs.inTx.Add(1)
		v.inTx = true
	case !open && v.inTx:
		vs.inTx.Add(-1)
		v.inTx = false
	}
}

// BoundTo returns the id of the server session that stays with the caller's session; "": none does.
// user is the caller's identity, as UserOf has it; "": nobody knows it yet.
func (vs *Sessions) BoundTo(id ID, who *Credentials, user string) string {
	s := vs.Of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.byID.get(id)
	if v == nil || v.server == nil {
		return ""
	}
	if name := v.identity.name; v.maker != who.Hash && (name.user != user || name.database != who.Database) {
		return ""
	}
	return v.server.Name()
}

// lifetime is how long a session lasts that nobody attached to or uses, and up to two sweeps longer.
const lifetime = 10 * time.Minute

// sweeps is how long it is from one look for sessions that have lasted so long to the next.
const sweeps = 10 * time.Second

// Expire ends the sessions that have not been used for lifetime.
func (vs *Sessions) Expire(now time.Time) {
	for _, s := range vs.stripes {
		for more := true; more; {
			var r Return
			r, more = vs.expireOne(s, now)
			r.Give()
		}
	}
}

// expireOne ends the first of those of a stripe, or puts it off if a call is under way; more is
// false if there is none.
func (vs *Sessions) expireOne(s *Stripe, now time.Time) (r Return, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now.Sub(vs.began)
	old := func(ring *Session) bool { return ring.next != ring && s.now-ring.next.used.since() >= lifetime+sweeps }
	v := s.resting.idle.next
	switch {
	case old(&s.resting.idle):
	case old(&s.resting.unused):
		v = s.resting.unused.next
	default:
		return r, false
	}
	if v.state.busy() { // so long
		s.restLocked(v)
		return r, true
	}
	s.count.Expired++
	return vs.endLocked(s, v), true
}

// ClientGone lets go of what sessions without a stream have on server sessions, once the
// connection of their last call is gone: their clients may have died.
func (vs *Sessions) ClientGone(client Client) {
	var all []Return
	for _, s := range vs.stripes { // what it used last may have been made on another connection
		s.mu.Lock()
		for v := range s.bound {
			if v.client == client && v.stream == nil && v.state == bound {
				delete(vs.stay[s.number], v)
				all = append(all, Return{v.identity, v.server, v.fateOfServer()})
				s.moveLocked(v, drop)
				if v.lost = v.dirty(); v.lost {
					s.count.Lost++
				}
				v.clean()
				vs.countTxLocked(v)
			}
		}
		s.mu.Unlock()
	}
	giveAll(all)
}

// Ask has clients go: sessions without a transaction end, the others after it.
func (vs *Sessions) Ask() {
	vs.leave.Store(true) // first: Settle sees to those that have a call under way
	vs.endAll(func(v *Session) bool {
		if !v.state.busy() && v.n == 0 {
			return v.stream != nil
		}
		stay := &vs.stay[v.id.stripe()]
		if *stay == nil {
			*stay = map[*Session]struct{}{}
		}
		(*stay)[v] = struct{}{}
		return false
	})
}

// unused is the rule of EndUnused.
type unused struct {
	since time.Duration // since Sessions.began: it was made; what was before does not count
	after time.Duration
}

// EndUnused has every transaction rolled back for which nothing is sent from now on for the time after.
func (vs *Sessions) EndUnused(after time.Duration) {
	vs.unused.Store(&unused{since: time.Since(vs.began), after: after})
	select {
	case vs.ends <- struct{}{}:
	default: // Run has yet to come to the last one
	}
}

// looks is how long it is from one look for transactions that are not used to the next.
const looks = 100 * time.Millisecond

// rollBack ends the sessions of transactions that are not used for as long as EndUnused allows.
func (vs *Sessions) rollBack(now time.Time) {
	var all []Return
	rule := vs.unused.Load()
	for _, s := range vs.stripes {
		s.mu.Lock()
		for v := range s.bound {
			if v.n > 0 && v.state == bound && now.Sub(vs.began)-max(v.last, rule.since) >= rule.after {
				s.count.Lost++
				all = append(all, vs.endLocked(s, v))
			}
		}
		s.mu.Unlock()
	}
	giveAll(all)
}

// Kept calls keep for each connection that work needs which was under way at Ask: the connection of the session's
// stream and that of its last call. Work that began later keeps no connection, so that clients that are never idle leave,
// too. keep runs under a lock.
func (vs *Sessions) Kept(keep func(Client)) {
	for i, s := range vs.stripes {
		s.mu.Lock()
		for v := range vs.stay[i] {
			keep(v.client)
			if v.stream != nil {
				keep(v.stem)
			}
		}
		s.mu.Unlock()
	}
}

// Leave ends the sessions whose streams came over connections that are to go, but those for which a call is under way
// or a transaction open. goes is called under a lock.
func (vs *Sessions) Leave(goes func(Client) bool) {
	vs.endAll(func(v *Session) bool { return v.stream != nil && v.n == 0 && !v.state.busy() && goes(v.stem) })
}

// Close ends every session.
func (vs *Sessions) Close() {
	vs.endAll(func(*Session) bool { return true })
}

// endAll ends those sessions that are to go. goes is called under the lock of the session's stripe.
func (vs *Sessions) endAll(goes func(*Session) bool) {
	for _, s := range vs.stripes {
		giveAll(vs.endThose(s, goes))
	}
}

func (vs *Sessions) endThose(s *Stripe, goes func(*Session) bool) (back []Return) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*Session
	for v := range s.byID.all {
		if goes(v) {
			all = append(all, v)
		}
	}
	for _, v := range all {
		if r := vs.endLocked(s, v); r.Server != nil {
			back = append(back, r)
		}
	}
	return back
}

// Run ends sessions that nobody uses, and closes pools that nobody uses, until ctx ends.
func (vs *Sessions) Run(ctx context.Context, ts *IdentityPools) {
	tick := time.NewTicker(sweeps)
	defer tick.Stop()
	look := time.NewTicker(looks)
	defer look.Stop()
	if vs.unused.Load() == nil {
		look.Stop()
	}
	for {
		select {
		case now := <-tick.C:
			vs.Expire(now)
			ts.Sweep(now)
		case <-vs.ends:
			look.Reset(looks)
		case now := <-look.C:
			vs.rollBack(now)
		case <-ctx.Done():
			return
		}
	}
}
