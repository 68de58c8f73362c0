package virtual

import (
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// Class is that of all calls of SDKs, which know of no classes.
const Class = pool.Normal

// Pool has the sessions of the nodes; *pool.Pool satisfies it. Their resources must be
// ServerSessions.
type Pool interface {
	Try(pool.Ask) (*pool.Session, bool)
	Wait(*pool.Waiter, pool.Ask) (pool.Grant, error)
	Cancel(*pool.Waiter) bool
	Release(*pool.Session)
	Discard(*pool.Session)
	Recover(*pool.Session)
	Stats() pool.Stats
}

// ServerSession is a session on a node; *upstream.Session satisfies it.
type ServerSession interface {
	// ID is what the node knows it by.
	ID() string
	// Forget says that the node has forgotten it: there is nothing to delete.
	Forget()
	// Fail says that a call in it had a status with which the node ends sessions.
	Fail()
}

// Use is what a call has of a session, from Enter to Settle.
type Use struct {
	Identity *IdentityPool // the owner of the pool; nil: none is needed
	Session  *Session      // nil: the call names none, and has a server session for itself
	Server   *pool.Session // the call goes out on it; nil: none yet
	Request  Request
	Bound    bool   // Server is Session's already
	Closing  bool   // the node wants Server closed
	Told     uint64 // the transaction that Sessions.Tell noted; 0: none
}

// Request is what settles the fate of a call's server session, of what the call asked for.
type Request struct {
	HasTx, Begin, Commit, Temporary bool
	Tx                              uint64
}

// Outcome is what a call left behind.
type Outcome struct {
	Role    protocol.Role
	Status  Ydb.StatusIds_StatusCode // of the answer; 0: none
	HasMeta bool                     // the answer has a tx_meta, with this transaction; 0: with none
	MetaTx  uint64
	Ran     bool // a node may have run it
	Clean   bool // and it was answered whole, with a status that keeps sessions
	Ended   bool // it failed in a way that shows that the node has ended its transaction
	Gone    bool // the node has forgotten the server session
	GivenUp bool // by its client, or its time was up; nothing more of it comes to the node
}

// Fate is what becomes of a server session.
type Fate uint8

const (
	Kept      Fate = iota // it stays with the session, or there is none
	Released              // back to the pool
	Discarded             // deleted on its node
	Recovered             // back to the pool, once the node is done with it
)

// Return is a server session that goes back to its pool. Whoever has it must call Give, once.
type Return struct {
	Identity *IdentityPool
	Server   *pool.Session
	Fate     Fate
}

// Give gives it back. Somebody who waits for it may be told at once.
func (r Return) Give() {
	if r.Server == nil || r.Fate == Kept {
		return
	}
	if app, ok := r.Server.User.(*apps.Stripe); ok {
		r.Server.User = nil
		app.Done(uint8(Class))
	}
	switch r.Fate {
	case Released:
		r.Identity.Pool.Release(r.Server)
	case Recovered:
		r.Identity.Pool.Recover(r.Server)
	default:
		r.Identity.Pool.Discard(r.Server)
	}
}

func giveAll(all []Return) {
	for _, r := range all {
		r.Give()
	}
}

// take takes the server session, and the session, from a use.
func (l *Use) take(fate Fate) Return {
	r := Return{l.Identity, l.Server, fate}
	l.Session, l.Server = nil, nil
	return r
}

// Tell notes a transaction that the call has opened, as the first part of its answer says: the client is about to be told of
// it, and may name it elsewhere before the call is over. It is for calls on a session, and nothing more than once for each.
func (vs *Sessions) Tell(l *Use, tx uint64) {
	v := l.Session
	s := vs.Of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.Told = tx; v.state.over() {
		return
	}
	if v.server == nil {
		v.server, v.since = l.Server, at(time.Since(vs.began))
		s.moveLocked(v, tell)
	}
	v.remember(tx) // of one too many Settle learns, too
	vs.countTxLocked(v)
}

// Settle decides what becomes of the server session of a call that is over, and takes it from the use. A call
// without a session counts in own, its shard's stripe. watch is the connection that the call came over, if ClientGone
// must be called once that has ended; else nil.
func (vs *Sessions) Settle(own *Stripe, l *Use, o *Outcome) (back Return, watch Client) {
	ran := l.Server != nil && o.Ran
	clean := !ran || o.Clean
	if ran && o.Gone {
		l.Server.Resource().(ServerSession).Forget()
	}
	if ran && o.Status == Ydb.StatusIds_INTERNAL_ERROR {
		l.Server.Resource().(ServerSession).Fail()
	}
	recovers := ran && !clean && !o.Gone && l.recoverable(o)
	borrowed := l.Server != nil && !l.Bound
	if borrowed && !l.Identity.wasUsed.Load() { // other shards read it for each of their calls
		l.Identity.wasUsed.Store(true)
	}
	v, s := l.Session, own
	if v != nil {
		s = vs.Of(v.id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if borrowed {
		s.count.CheckedOut++
	}
	what := Discarded
	switch {
	case v != nil:
		what = vs.settleLocked(s, l, o, ran, clean, recovers)
		if v.state == bound && v.stream == nil {
			watch = v.client
		}
	case recovers:
		what = Recovered
	case clean && !l.Closing && !(ran && l.leavesOpen(o)):
		what = Released
	}
	if what == Discarded || what == Recovered { // no count of its own: a stripe's are one cache line
		s.count.InDoubt++
	}
	return l.take(what), watch
}

// leavesOpen reports whether a call without a session may have left something on its server session.
func (l *Use) leavesOpen(o *Outcome) bool {
	q := &l.Request
	return q.Temporary || o.MetaTx != 0 || q.Begin && !q.Commit || o.Role == protocol.RoleBegin ||
		q.Commit && o.Status == Ydb.StatusIds_SUCCESS && !o.HasMeta
}

// recoverable reports whether a call that was given up leaves nothing on its server session once the node is done with it.
func (l *Use) recoverable(o *Outcome) bool {
	q := &l.Request
	return o.GivenUp && !l.Closing && (o.Role == protocol.RoleUse || o.Role == protocol.RoleImplicit) &&
		!q.HasTx && q.Begin == q.Commit && !q.Temporary && o.MetaTx == 0
}

// settleLocked is Settle for a call on a session of s. ran: a node may have run it; clean: nothing of it is
// in doubt; recovers: nothing will be in doubt once the node is done with it.
func (vs *Sessions) settleLocked(s *Stripe, l *Use, o *Outcome, ran, clean, recovers bool) (fate Fate) {
	v := l.Session
	if l.Server == nil {
		s.moveLocked(v, free)
	} else {
		v.near = l.Server.Home()
		fate = vs.fateLocked(s, l, o, ran, clean, recovers)
		vs.countTxLocked(v)
	}
	if v.n > 0 && vs.unused.Load() != nil {
		v.last = time.Since(vs.began)
	}
	if v.n == 0 && vs.leave.Load() {
		delete(vs.stay[s.number], v)
	}
	s.restLocked(v)
	return fate
}

// fateLocked is settleLocked for a call that had a server session.
func (vs *Sessions) fateLocked(s *Stripe, l *Use, o *Outcome, ran, clean, recovers bool) Fate {
	v := l.Session
	had := v.dirty()
	if ran && clean {
		clean = v.noteTransactions(&l.Request, o, l.Told)
	}
	v.closing = v.closing || l.Closing
	if !clean {
		s.moveLocked(v, free)
		recovers = recovers && !had && !v.closing
		if v.clean(); recovers {
			return Recovered
		}
		if o.Status == 0 || o.Status == Ydb.StatusIds_SUCCESS || o.Gone { // else the client was told that it failed
			v.lost = had || l.Request.Begin || o.Role == protocol.RoleBegin
		}
		if o.Gone {
			s.detachLocked(v)
		}
		return Discarded
	}
	v.lost = v.lost && !ran
	goes := v.n == 0 && v.stream != nil && vs.leave.Load()
	if v.state.over() || goes || v.n == 0 && !v.temporary && (!v.always || v.closing) {
		fate := v.fateOfServer()
		s.moveLocked(v, free)
		if v.clean(); goes {
			vs.endLocked(s, v)
		}
		return fate
	}
	if v.server == nil {
		v.server, v.since = l.Server, at(time.Since(vs.began))
	}
	s.moveLocked(v, keep)
	return Kept
}

// noteTransactions notes what a call that was answered has done to the transactions of its session. told is the one that
// the client was told of before, or 0. False: nobody knows.
func (v *Session) noteTransactions(q *Request, o *Outcome, told uint64) bool {
	begins := q.Begin && !q.Commit || o.Role == protocol.RoleBegin
	v.temporary = v.temporary || q.Temporary // also if it failed: settings of PostgreSQL's syntax are made when a text is read, and stay
	switch {
	case o.Status == Ydb.StatusIds_SUCCESS:
		switch {
		case o.MetaTx != 0: // whatever the request asked for: EXPLAIN commits nothing
			return v.remember(o.MetaTx)
		case told != 0: // and it is said no more
			return false
		case o.Role == protocol.RoleEnd, o.HasMeta:
			v.forget(q.Tx)
		case q.Commit: // an answer to it has tx_meta
			return false
		}
		return !begins
	case o.Status == Ydb.StatusIds_ABORTED, o.Ended, o.Status == Ydb.StatusIds_NOT_FOUND && o.Role == protocol.RoleEnd:
		v.forget(q.Tx) // the node has ended it
		v.forget(told) // the end of the answer may name none
		v.forget(o.MetaTx)
		return true
	}
	return !q.HasTx && !begins && told == 0 // what failed may have left it open
}

// Loses reports whether something would be lost with the server session of the use.
func (vs *Sessions) Loses(l *Use) bool {
	s := vs.Of(l.Session.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.Session.dirty()
}

// Lose takes a server session that its call lost from its session, which goes on without it.
// lost: something was lost with it.
func (vs *Sessions) Lose(l *Use) (r Return, lost bool) {
	v := l.Session
	s := vs.Of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if lost = v.dirty(); v.state == using {
		s.moveLocked(v, lose)
	}
	v.lost = lost
	v.clean()
	vs.countTxLocked(v)
	if s.count.InDoubt++; lost {
		s.count.Lost++
	}
	r = Return{l.Identity, l.Server, Discarded}
	l.Server, l.Bound = nil, false
	return r, lost
}

// Abandon ends the session of a call whose end panicked: nobody knows the state of its server session, nor what of
// the end was done. A call without a session counts in own, its shard's stripe.
func (vs *Sessions) Abandon(own *Stripe, l *Use) Return {
	if l.Session != nil {
		vs.abandon(l.Session)
	}
	if l.Server != nil {
		own.mu.Lock()
		own.count.InDoubt++
		own.mu.Unlock()
	}
	return l.take(Discarded)
}

func (vs *Sessions) abandon(v *Session) {
	s := vs.Of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.dirty() {
		s.count.Lost++
	}
	switch {
	case v.state.busy():
		s.moveLocked(v, free)
	case v.state == bound:
		s.moveLocked(v, drop)
	}
	v.server = nil
	v.clean()
	vs.countTxLocked(v)
	if !v.state.over() {
		vs.endLocked(s, v)
	}
}
