package virtual

import (
	"crypto/sha256"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// Client is the connection of a client, a pointer: it is compared, and handed back.
type Client any

// moment is in whole seconds since Sessions.began: a session takes 192 bytes, three lines of the cache.
type moment uint32

func at(since time.Duration) moment { return moment(since / time.Second) }

func (m moment) since() time.Duration { return time.Duration(m) * time.Second }

// ConnSessions counts the sessions that were created over one connection and have not ended. Its methods are for nil, too.
type ConnSessions struct{ n atomic.Int64 }

func (h *ConnSessions) add(n int64) {
	if h != nil {
		h.n.Add(n)
	}
}

func (h *ConnSessions) has() int64 {
	if h == nil {
		return 0
	}
	return h.n.Load()
}

// Stream is what keeps a session alive that a client attached to. End ends it, and must not block:
// it is called under a lock.
type Stream interface{ End() }

// maxOpen is how many transactions a server session may have open; YDB allows ten.
const maxOpen = 10

// Session is a session as a client sees it. Between calls it has no server session, but
// while a transaction is open or something else lives on the server session.
// Wide: there are many of them, and the order of the fields decides what a call reads from memory.
type Session struct {
	id ID

	// Guarded by its stripe's mu, as all that is not constant. What each call needs comes first:
	// with many sessions it is not in the processor's cache.
	identity  *IdentityPool // nil: nobody has asked yet whose it is
	server    *pool.Session // the one that stays with it: state.holds
	client    Client        // of the last call
	state     state
	always    bool      // its server session stays with it to the end: mode session
	lost      bool      // a transaction of it was lost with its server session
	temporary bool      // something on it lasts as long as the server session: a temporary table, settings of PostgreSQL
	closing   bool      // the node wants the server session closed
	inTx      bool      // it is counted in Sessions.inTx
	n         uint8     // of open
	streams   uint8     // how many there were, modulo 256
	near      pool.Home // of the last server session

	prev   *Session // in the list of those that nobody attached to
	next   *Session
	used   moment            // Stripe.now at its last use
	since  moment            // when server began to stay with it
	stream Stream            // nil: nobody attached to it
	stem   Client            // the connection of the stream
	open   *[maxOpen]uint64  // nil: none has been open yet
	maker  [sha256.Size]byte // Credentials.Hash of the caller that created it
	conn   *ConnSessions     // over whose connection it was created. Constant
	// since Sessions.began: when it was made; then when its last call ended with a transaction
	// open, noted from EndUnused on
	last time.Duration
	app  *apps.App // its server sessions bear the name of it; nil: none. Constant
}

// ID returns what the session is known by.
func (v *Session) ID() ID { return v.id }

// App is the app whose name its server sessions bear; nil: none.
func (v *Session) App() *apps.App { return v.app }

// remember notes an open transaction; false: there are too many.
func (v *Session) remember(tx uint64) bool {
	if slices.Contains(v.transactions(), tx) {
		return true
	}
	if v.n == maxOpen {
		return false
	}
	if v.open == nil {
		v.open = new([maxOpen]uint64)
	}
	v.open[v.n] = tx
	v.n++
	return true
}

// transactions are those that are open.
func (v *Session) transactions() []uint64 {
	if v.n == 0 {
		return nil
	}
	return v.open[:v.n]
}

// forget notes the end of one.
func (v *Session) forget(tx uint64) {
	if i := slices.Index(v.transactions(), tx); i >= 0 {
		v.n--
		v.open[i] = v.open[v.n]
	}
}

// dirty reports whether something on the server session is lost with it.
func (v *Session) dirty() bool { return v.n > 0 || v.temporary }

// clean forgets what was on the server session that goes.
func (v *Session) clean() { v.n, v.temporary, v.closing = 0, false, false }

// fateOfLease is what becomes of the server session when its session does not need it.
func (v *Session) fateOfServer() Fate {
	if v.dirty() || v.closing {
		return Discarded
	}
	return Released
}

// adopts reports whether the session changes to t, the pool of its next call. It does if it has no pool yet. It also
// does if it has no server session and t is of the same user, but the old pool is closed or is of the other service.
func (v *Session) adopts(t *IdentityPool) bool {
	return v.identity == nil || v.server == nil && v.identity.isUser(t) && (v.identity.gone.Load() || v.identity.name.table != t.name.table)
}

// stale reports whether the session's server session is to be given back before another call: nothing
// is on it, and its node wants it closed.
func (v *Session) stale() bool { return v.server != nil && !v.dirty() && !v.server.Valid() }

// isOf reports whether a session is the caller's: who created it, or the same identity
// with another ticket. t is the caller's identity; nil: nobody knows it yet.
func (v *Session) isOf(who *Credentials, t *IdentityPool) bool {
	return v.maker == who.Hash || v.identity != nil && v.identity.is(t)
}

// stripeCount is a power of two. Shards beyond it share stripes.
const stripeCount = 16

// Stripe is a part of the sessions, with a lock of its own. A shard makes its clients'
// sessions in a stripe of its own, so that as a rule no other shard asks for its lock.
//
// What each call writes is in its first line of the cache.
type Stripe struct {
	mu       sync.Mutex // guards all below but number, and what Session says
	byID     table
	count    counts
	bound    map[*Session]struct{} // have a server session, whether a call is under way or not
	resting  *rings
	now      time.Duration // from Sessions.began to the last sweep
	attached int32         // of byID
	number   uint8         // constant
}

// rings are the heads of lists of sessions that nobody attached to, the longest unused first.
type rings struct {
	idle   Session
	unused Session // sessions on which there was no call yet
}

func newRings() *rings {
	r := new(rings)
	for _, head := range []*Session{&r.idle, &r.unused} {
		head.prev, head.next = head, head
	}
	return r
}

// counts are since the start.
type counts struct {
	CheckedOut, Waited, InDoubt     uint64
	Created, Refused, Lost, Expired uint64
}

func (c *counts) add(o *counts) {
	c.CheckedOut += o.CheckedOut
	c.Waited += o.Waited
	c.InDoubt += o.InDoubt
	c.Created += o.Created
	c.Refused += o.Refused
	c.Lost += o.Lost
	c.Expired += o.Expired
}

// Waited counts a call that waits in the queue for a server session.
func (s *Stripe) Waited() {
	s.mu.Lock()
	s.count.Waited++
	s.mu.Unlock()
}

// restLocked begins the time after which v ends if it is not used, again if it runs. It is known as
// exactly as sweeps come, so that v seldom moves in the ring.
func (s *Stripe) restLocked(v *Session) {
	if v.stream != nil || v.state.over() || v.next != nil && v.used == at(s.now) {
		return
	}
	v.stirLocked()
	v.used = at(s.now)
	ring := &s.resting.idle
	if v.identity == nil {
		ring = &s.resting.unused
	}
	v.prev, v.next = ring.prev, ring
	v.prev.next, v.next.prev = v, v
}

// stirLocked takes v out of its ring: that time runs no more.
func (v *Session) stirLocked() {
	if v.next != nil {
		v.prev.next, v.next.prev = v.next, v.prev
		v.prev, v.next = nil, nil
	}
}

// detachLocked ends the stream of a session that has ended, or whose client was told that it is
// bad: most clients drop it then, and some know by the stream alone. In that case it goes on as
// one that nobody attached to, for clients that repeat a statement on it.
func (s *Stripe) detachLocked(v *Session) {
	if stream := v.stream; stream != nil {
		s.unstreamLocked(v)
		stream.End()
	}
}

func (s *Stripe) unstreamLocked(v *Session) {
	v.stream, v.stem = nil, nil
	s.attached--
}
