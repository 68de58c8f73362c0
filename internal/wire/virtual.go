package wire

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// Pool lends the sessions of the nodes; *pool.Pool satisfies it. Their resources must be
// ServerSessions. One that is a Judge too is told what came of the calls on its sessions.
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

// virtualID is the part of a virtual session's id that nobody can guess: random, but for
// the number of the stripe that has the session.
type virtualID [16]byte

// virtualPrefix is what ids of virtual sessions begin with: the sidecar's own node id.
var virtualPrefix = "ydb://session/3?node_id=" + strconv.Itoa(endpointID) + "&id="

func newVirtualID(stripe uint8) (id virtualID) {
	rand.Read(id[:]) // it never fails
	id[0] = id[0]&^(stripeCount-1) | stripe
	return id
}

// stripe is the number of the stripe that has the session, if there is one.
func (id *virtualID) stripe() uint8 { return id[0] & (stripeCount - 1) }

// append appends the id as clients know it.
func (id virtualID) append(b []byte) []byte {
	return hex.AppendEncode(append(b, virtualPrefix...), id[:])
}

// parseVirtual reads such an id. Others are not ok.
func parseVirtual(session []byte) (id virtualID, ok bool) {
	if len(session) != len(virtualPrefix)+2*len(id) || string(session[:len(virtualPrefix)]) != virtualPrefix {
		return id, false
	}
	wrong := uint64(0)
	for i := 0; i < len(id); i += 4 {
		four, w := fromHex(binary.LittleEndian.Uint64(session[len(virtualPrefix)+2*i:]))
		binary.LittleEndian.PutUint32(id[i:], four)
		wrong |= w
	}
	return id, wrong == 0
}

// fromHex reads eight digits at a time, in one spelling only: four octets. wrong is 0 if they are digits.
func fromHex(text uint64) (octets uint32, wrong uint64) {
	const each = 0x0101010101010101
	letters := text >> 6 & each            // 0x61 to 0x66; the others are 0x30 to 0x39
	digits := text&(0x0f*each) + 9*letters // at most 24: none reaches the next octet
	wrong = text&(0xf0*each) ^ (0x30*each + 0x30*letters)
	wrong |= digits & (0xf0 * each)
	wrong |= (digits+6*each)>>4&each ^ letters // ten and more, and no less, are letters
	pairs := (digits<<4 | digits>>8) & 0x00ff00ff00ff00ff
	pairs = (pairs | pairs>>8) & 0x0000ffff0000ffff
	return uint32(pairs | pairs>>16), wrong
}

// maxOpen is how many transactions a server session may have open; YDB allows ten.
const maxOpen = 10

// virtual is a session as a client sees it. Between calls it has no server session, but
// while a transaction is open or something else lives on the server session.
type virtual struct {
	id virtualID

	// Guarded by its stripe's mu, as all that is not constant. What each call needs comes first:
	// with many sessions it is not in the processor's cache.
	tenant    *tenant       // nil: nobody has asked yet whose it is
	lease     *pool.Session // nil: none
	near      pool.Place    // of the last one; the call under way may read it
	client    *h2.Conn      // of the last call
	keep      bool          // its server session stays with it: mode session
	busy      bool          // a call is under way
	ended     bool          // it is in no list any more
	lost      bool          // a transaction of it was lost with its server session
	temporary bool          // there is a temporary table
	closing   bool          // the node wants the server session closed
	inTx      bool          // it is counted in virtuals.inTx
	attached  bool
	n         int // of open

	prev   *virtual // in the list of those that nobody attached to
	next   *virtual
	used   time.Duration // stripe.now then
	attach h2.Ticket
	home   *frames  // of attach
	stem   *h2.Conn // that attach came over
	open   [maxOpen]uint64
	maker  [sha256.Size]byte // caller.hash of who created it
	since  int64             // unix, in nanoseconds: when lease began to stay with it
	last   time.Duration     // since virtuals.began: when its last call ended with a transaction open; noted from endUnused on
	app    *apps.App         // whose name its server sessions bear; nil: none. Constant

	// 256 octets in all: objects of this size begin with a cache line.
}

// remember notes an open transaction; false: there are too many.
func (v *virtual) remember(tx uint64) bool {
	for _, t := range v.open[:v.n] {
		if t == tx {
			return true
		}
	}
	if v.n == maxOpen {
		return false
	}
	v.open[v.n] = tx
	v.n++
	return true
}

// forget notes the end of one.
func (v *virtual) forget(tx uint64) {
	for i, t := range v.open[:v.n] {
		if t == tx {
			v.n--
			v.open[i] = v.open[v.n]
			return
		}
	}
}

// stripeCount is a power of two. Shards beyond it share stripes.
const stripeCount = 16

// virtuals are all virtual sessions of a server, in stripes by what their ids say.
type virtuals struct {
	max     int64
	servers int  // wire.max_server_sessions
	keep    bool // mode session
	began   time.Time
	leave   atomic.Bool            // clients are asked to go
	unused  atomic.Pointer[unused] // see endUnused; nil: they last
	stripes [stripeCount]*stripe
	stay    [stripeCount]map[*virtual]struct{} // what ask found under way and has not ended; guarded by the stripe's mu
	_       [64]byte                           // what follows is written, and what is above is read by each call

	keeps   keeps
	ends    chan struct{} // capacity 1: unused was set
	texts   texts         // of prepared queries
	n       atomic.Int64  // sessions in all stripes; reserved before they are there
	starved atomic.Uint64 // calls told that sessions of mode session keep all sessions of their pool; before they are told
	inTx    atomic.Int64  // sessions with a transaction open; changed under their stripe's mu, before the client is told
}

// stripe is a part of the virtual sessions, with a lock of its own. A shard makes its clients'
// sessions in a stripe of its own, so that as a rule no other shard asks for its lock.
//
// What each call writes is in its first line of the cache.
type stripe struct {
	mu       sync.Mutex // guards all below but number, and what virtual says
	byID     table
	count    virtualCounts
	bound    map[*virtual]struct{} // have a server session, whether a call is under way or not
	idle     *virtual              // head of a ring: those that nobody attached to, the longest unused first
	now      time.Duration         // from virtuals.began to the last sweep
	attached int32                 // of byID
	number   uint8                 // constant
}

// virtualCounts are since the start.
type virtualCounts struct {
	Borrowed, Waited, InDoubt       uint64
	Created, Refused, Lost, Expired uint64
}

func (c *virtualCounts) add(o *virtualCounts) {
	c.Borrowed += o.Borrowed
	c.Waited += o.Waited
	c.InDoubt += o.InDoubt
	c.Created += o.Created
	c.Refused += o.Refused
	c.Lost += o.Lost
	c.Expired += o.Expired
}

func newVirtuals(config Config) *virtuals {
	vs := &virtuals{max: int64(config.Sessions), servers: config.ServerSessions, keep: config.Mode == ModeSession, began: time.Now(), ends: make(chan struct{}, 1)}
	for i := range vs.stripes {
		s := &stripe{bound: map[*virtual]struct{}{}, idle: new(virtual), number: uint8(i)}
		s.idle.prev, s.idle.next = s.idle, s.idle
		vs.stripes[i] = s
	}
	return vs
}

// of is the stripe that has a session, if there is one of that id.
func (vs *virtuals) of(id virtualID) *stripe { return vs.stripes[id.stripe()] }

// create makes a virtual session in a stripe; nil: there are as many as allowed.
func (vs *virtuals) create(s *stripe, who *caller, app *apps.App, keep bool) *virtual {
	for {
		n := vs.n.Load()
		if n >= vs.max {
			s.mu.Lock()
			s.count.Refused++
			s.mu.Unlock()
			return nil
		}
		if vs.n.CompareAndSwap(n, n+1) {
			break
		}
	}
	v := &virtual{id: newVirtualID(s.number), keep: keep, maker: who.hash, app: app}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count.Created++
	s.byID.put(v)
	s.restLocked(v)
	return v
}

// restLocked begins the time after which v ends if nobody uses it, anew if it runs. It is known as
// exactly as sweeps come, so that v seldom moves in the ring.
func (s *stripe) restLocked(v *virtual) {
	if v.attached || v.ended || v.next != nil && v.used == s.now {
		return
	}
	v.stirLocked()
	v.used = s.now
	v.prev, v.next = s.idle.prev, s.idle
	v.prev.next, v.next.prev = v, v
}

// stirLocked ends it.
func (v *virtual) stirLocked() {
	if !v.attached && v.next != nil {
		v.prev.next, v.next.prev = v.next, v.prev
		v.prev, v.next = nil, nil
	}
}

// What find and the like answer besides a session. Where the server has words for it they come first:
// clients look for them.
var (
	errNoSession = &refusal{status: Ydb.StatusIds_BAD_SESSION, text: "Session not found (ydb-sidecar: it has ended, or never was)"}
	errOtherApp  = &refusal{} // no client is told: enter again with the tenant for that app
	errBusy      = &refusal{status: Ydb.StatusIds_SESSION_BUSY, text: "Pending previous query completion (ydb-sidecar: the session runs another call)"}
	errAttached  = &refusal{status: Ydb.StatusIds_SESSION_BUSY, text: "ydb-sidecar: the session is attached already"}
	errNoTx      = &refusal{status: Ydb.StatusIds_NOT_FOUND, text: "Transaction not found (ydb-sidecar: none is open on the session)"}
	errLost      = &refusal{status: Ydb.StatusIds_BAD_SESSION, text: "Session not found (ydb-sidecar: the transaction was lost with the session that it was open on; it was rolled back)"}
	errFullHouse = &refusal{status: Ydb.StatusIds_OVERLOADED, text: "ydb-sidecar: as many sessions are open as wire.max_virtual_sessions allows"}
)

// entered is a call on a virtual session.
type entered struct {
	*virtual
	lease *pool.Session // that the session has; nil: none
	stale *pool.Session // that it had and needs no more: the node wants it closed
}

// isOf reports whether a session is the caller's: who created it, or the same identity
// with another ticket. t is the caller's tenant; nil: nobody knows it yet.
func (v *virtual) isOf(who *caller, t *tenant) bool {
	return v.maker == who.hash || v.tenant != nil && v.tenant.is(t)
}

// see finds the caller's session. It tells as much of another's as of none. sure is
// false if that depends on the caller's tenant, which nobody knows yet.
func (vs *virtuals) see(id virtualID, who *caller, t *tenant) (v *virtual, sure bool) {
	s := vs.of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	v = s.byID.get(id)
	if v == nil || v.isOf(who, t) {
		return v, true
	}
	return nil, t != nil || v.tenant == nil
}

// enter begins a call of the tenant t, which is the caller's for an app; nil: for none. The call goes
// on with the session's own tenant, which is of the same identity. inTx: it names a transaction.
func (vs *virtuals) enter(id virtualID, who *caller, t *tenant, app *apps.App, inTx bool, client *h2.Conn) (e entered, refused *refusal) {
	s := vs.of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enterLocked(id, who, t, app, inTx, client)
}

func (s *stripe) enterLocked(id virtualID, who *caller, t *tenant, app *apps.App, inTx bool, client *h2.Conn) (e entered, refused *refusal) {
	v := s.byID.get(id)
	switch {
	case v == nil || v.tenant == nil && v.maker != who.hash || v.tenant != nil && !v.tenant.is(t):
		return e, errNoSession
	case v.tenant == nil && v.app != app:
		e.virtual = v
		return e, errOtherApp
	case v.busy:
		return e, errBusy
	case inTx && v.lease == nil && v.lost:
		return e, errLost
	case inTx && v.lease == nil:
		return e, errNoTx
	}
	if v.lease != nil && v.n == 0 && !v.temporary && !v.lease.Valid() {
		delete(s.bound, v)
		e.stale, v.lease = v.lease, nil
	}
	if v.tenant == nil {
		v.tenant = t
		t.sessions.Add(1)
	}
	v.busy, v.client = true, client // last: after a panic nobody would end it
	e.virtual, e.lease = v, v.lease
	return e, nil
}

// attachTo notes the stream that keeps a session alive.
func (vs *virtuals) attachTo(v *virtual, f *frames, client *h2.Conn, t h2.Ticket) *refusal {
	s := vs.of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case v.ended:
		return errNoSession
	case v.attached:
		return errAttached
	}
	v.stirLocked()
	v.attached, v.home, v.stem, v.attach = true, f, client, t
	s.attached++
	return nil
}

// touch says that a session is in use, and returns whether a call is under way.
func (vs *virtuals) touch(v *virtual) (busy bool) {
	s := vs.of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restLocked(v)
	return v.busy
}

// fate is what becomes of a server session.
type fate uint8

const (
	fateKept     fate = iota // it stays with the virtual session, or there is none
	fateReleased             // back to the pool
	fateDiscarded
	fateRecovered // back to the pool, once the node is done with it
)

// end ends a virtual session. The lease, of t, is to be let go as fate says. detached: its stream has ended.
func (vs *virtuals) end(v *virtual, detached bool) (t *tenant, lease *pool.Session, fate fate) {
	s := vs.of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.ended {
		return nil, nil, fateKept
	}
	if detached {
		if !v.attached {
			return nil, nil, fateKept // see detachLocked
		}
		v.attached = false
		s.attached--
	}
	lease, fate = vs.endLocked(s, v)
	return v.tenant, lease, fate
}

// endLocked is end for one of s that has not ended.
func (vs *virtuals) endLocked(s *stripe, v *virtual) (lease *pool.Session, fate fate) {
	v.ended = true
	s.byID.remove(v)
	delete(vs.stay[s.number], v)
	vs.n.Add(-1)
	if v.tenant != nil {
		v.tenant.sessions.Add(-1)
	}
	v.stirLocked()
	s.detachLocked(v)
	if v.busy || v.lease == nil {
		return nil, fateKept // the call that is under way sees to it
	}
	delete(s.bound, v)
	lease, v.lease = v.lease, nil
	vs.countTxLocked(v)
	return lease, v.fateOfLease()
}

// abandon ends a virtual session whose call panicked in Done. The caller closes the server
// session of the call, which is the only one that v may have.
func (vs *virtuals) abandon(v *virtual) {
	s := vs.of(v.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.n > 0 || v.temporary {
		s.count.Lost++
	}
	delete(s.bound, v)
	v.busy, v.lease, v.n, v.temporary = false, nil, 0, false
	vs.countTxLocked(v)
	if !v.ended {
		vs.endLocked(s, v)
	}
}

// detachLocked ends the stream of a session that has ended, or whose client was told that it is
// bad: most clients drop it then, and some know by the stream alone. In that case it goes on as
// one that nobody attached to, for clients that repeat a statement on it.
func (s *stripe) detachLocked(v *virtual) {
	if v.attached {
		v.home.post(mail{ticket: v.attach, status: &h2.Status{Body: attachSession.Success("", nil)}})
		v.attached = false
		s.attached--
	}
}

// fateOfLease is what becomes of the server session of a virtual one that does not need it.
func (v *virtual) fateOfLease() fate {
	if v.n > 0 || v.temporary || v.closing {
		return fateDiscarded
	}
	return fateReleased
}

// lifetime is how long a session lasts that nobody attached to or uses, and up to two sweeps longer.
const lifetime = 10 * time.Minute

// sweeps is how long it is from one look for sessions that have lasted so long to the next.
const sweeps = 10 * time.Second

// expire ends those.
func (vs *virtuals) expire(now time.Time) {
	for _, s := range vs.stripes {
		for more := true; more; {
			var t *tenant
			var lease *pool.Session
			var fate fate
			t, lease, fate, more = vs.expireOne(s, now)
			t.letGo(lease, fate)
		}
	}
}

// expireOne ends the first of those of a stripe, or puts it off if a call is under way; more is
// false if there is none. The lease, of t, is to be let go as fate says.
func (vs *virtuals) expireOne(s *stripe, now time.Time) (t *tenant, lease *pool.Session, fate fate, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now.Sub(vs.began)
	v := s.idle.next
	if v == s.idle || s.now-v.used < lifetime+sweeps {
		return nil, nil, fateKept, false
	}
	if v.busy { // so long
		s.restLocked(v)
		return nil, nil, fateKept, true
	}
	s.count.Expired++
	lease, fate = vs.endLocked(s, v)
	return v.tenant, lease, fate, true
}

// letGo gives a server session back.
func (t *tenant) letGo(lease *pool.Session, fate fate) {
	if lease == nil || fate == fateKept {
		return
	}
	if app, ok := lease.Holder.(*apps.Stripe); ok {
		lease.Holder = nil
		app.Done(uint8(class))
	}
	switch fate {
	case fateReleased:
		t.pool.Release(lease)
	case fateRecovered:
		t.pool.Recover(lease)
	default:
		t.pool.Discard(lease)
	}
}

// clientGone lets go of what sessions without a stream have on server sessions, once the
// connection of their last call is gone: their clients may have died.
func (vs *virtuals) clientGone(conn *h2.Conn) {
	type owned struct {
		*tenant
		lease *pool.Session
	}
	var all []owned
	for _, s := range vs.stripes { // what it used last may have been made on another connection
		s.mu.Lock()
		for v := range s.bound {
			if v.client == conn && !v.attached && !v.busy {
				delete(s.bound, v)
				delete(vs.stay[s.number], v)
				all = append(all, owned{v.tenant, v.lease})
				v.lease, v.lost, v.n = nil, v.n > 0 || v.temporary, 0
				vs.countTxLocked(v)
				s.count.Lost++
			}
		}
		s.mu.Unlock()
	}
	for _, o := range all {
		o.letGo(o.lease, fateDiscarded)
	}
}

// ask has clients go: sessions without a transaction end, the others after it.
func (vs *virtuals) ask() {
	vs.leave.Store(true) // first: settle sees to those that have a call under way
	vs.endAll(func(v *virtual) bool {
		if !v.busy && v.n == 0 {
			return v.attached
		}
		stay := &vs.stay[v.id.stripe()]
		if *stay == nil {
			*stay = map[*virtual]struct{}{}
		}
		(*stay)[v] = struct{}{}
		return false
	})
}

// unused is the rule of endUnused.
type unused struct {
	since time.Duration // since virtuals.began: it was made; what was before does not count
	after time.Duration
}

// endUnused has every transaction rolled back for which nothing is sent for so long from now on.
func (vs *virtuals) endUnused(after time.Duration) {
	vs.unused.Store(&unused{since: time.Since(vs.began), after: after})
	select {
	case vs.ends <- struct{}{}:
	default: // run has yet to come to the last one
	}
}

// looks is how long it is from one look for transactions that are not used to the next.
const looks = 100 * time.Millisecond

// rollBack ends the sessions of transactions that are not used for as long as endUnused allows.
func (vs *virtuals) rollBack(now time.Time) {
	type owned struct {
		*tenant
		lease *pool.Session
		fate  fate
	}
	var all []owned
	rule := vs.unused.Load()
	for _, s := range vs.stripes {
		s.mu.Lock()
		for v := range s.bound {
			if v.n > 0 && !v.busy && now.Sub(vs.began)-max(v.last, rule.since) >= rule.after {
				s.count.Lost++
				t := v.tenant
				lease, fate := vs.endLocked(s, v)
				all = append(all, owned{t, lease, fate})
			}
		}
		s.mu.Unlock()
	}
	for _, o := range all {
		o.letGo(o.lease, o.fate)
	}
}

// kept returns the connections that a transaction or call needs which was under way at ask: that
// of the session's stream and that of its last call. What begins later keeps none, so that a
// client that is never idle is told to go, too.
func (vs *virtuals) kept() map[*h2.Conn]bool {
	all := map[*h2.Conn]bool{}
	for i, s := range vs.stripes {
		s.mu.Lock()
		for v := range vs.stay[i] {
			all[v.client] = true
			if v.attached {
				all[v.stem] = true
			}
		}
		s.mu.Unlock()
	}
	return all
}

// close ends every session.
func (vs *virtuals) close() {
	vs.endAll(func(*virtual) bool { return true })
}

// endAll ends those sessions that are to go. goes is called under the lock of the session's stripe.
func (vs *virtuals) endAll(goes func(*virtual) bool) {
	for _, s := range vs.stripes {
		for _, v := range s.those(goes) {
			t, lease, fate := vs.end(v, false)
			t.letGo(lease, fate)
		}
	}
}

func (s *stripe) those(goes func(*virtual) bool) (all []*virtual) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for v := range s.byID.all {
		if goes(v) {
			all = append(all, v)
		}
	}
	return all
}

// VirtualState is the part of State about virtual sessions.
type VirtualState struct {
	Sessions int    `json:"sessions"`
	Attached int    `json:"attached"`
	Bound    int    `json:"bound"` // have a server session between their calls
	Created  uint64 `json:"created"`
	Refused  uint64 `json:"refused"`  // beyond wire.max_virtual_sessions
	Expired  uint64 `json:"expired"`  // without a stream, and not used
	Lost     uint64 `json:"lost"`     // transactions rolled back because their client or node went away, or did not use them during a stop
	Borrowed uint64 `json:"borrowed"` // server sessions, by calls
	Waited   uint64 `json:"waited"`   // of these, in line
	Starved  uint64 `json:"starved"`  // calls told OVERLOADED because sessions of mode session keep all sessions of their pool
	InDoubt  uint64 `json:"in_doubt"` // server sessions that nobody knew the state of after a call: deleted, or recovered (see pools)
	Unnamed  uint64 `json:"unnamed"`  // callers whose app got no sessions of its own because there were too many: see apps.sessions

	Pools []PoolState `json:"pools"` // of callers' identities; not the sidecar's own
}

func (vs *virtuals) state(ts *tenants) *VirtualState {
	st := &VirtualState{Pools: ts.state(), Unnamed: ts.unnamed.Load()}
	var c virtualCounts
	for _, s := range vs.stripes {
		s.mu.Lock()
		c.add(&s.count)
		st.Sessions += s.byID.n
		st.Attached += int(s.attached)
		for v := range s.bound {
			if !v.busy {
				st.Bound++
			}
		}
		s.mu.Unlock()
	}
	st.Created, st.Refused, st.Lost, st.Expired = c.Created, c.Refused, c.Lost, c.Expired
	st.Borrowed, st.Waited, st.InDoubt, st.Starved = c.Borrowed, c.Waited, c.InDoubt, vs.starved.Load()
	return st
}

// Starved returns how many calls were told so far that sessions of mode session keep all sessions of their pool.
func (s *Server) Starved() uint64 {
	if s.virtual == nil {
		return 0
	}
	return s.virtual.starved.Load()
}

// keeps counts the server sessions that stay with virtual ones until these end. Many ask at a time.
type keeps struct {
	mu  sync.Mutex // guards all below; before that of a stripe
	at  time.Time
	by  map[*tenant]int
	ids map[tenantName]int // by identity
	all int
}

// keptFor is how long a count serves.
const keptFor = 100 * time.Millisecond

// of is how many those of a tenant keep, those of its identity, and all.
func (k *keeps) of(vs *virtuals, t *tenant) (mine, identity, all int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.at) < keptFor {
		return k.by[t], k.ids[t.name.identity()], k.all
	}
	k.at, k.by, k.ids, k.all = time.Now(), map[*tenant]int{}, map[tenantName]int{}, 0
	for _, s := range vs.stripes {
		s.mu.Lock()
		for v := range s.bound {
			if v.keep || v.temporary {
				k.by[v.tenant]++
				k.ids[v.tenant.name.identity()]++
				k.all++
			}
		}
		s.mu.Unlock()
	}
	return k.by[t], k.ids[t.name.identity()], k.all
}

// Holder is a virtual session that keeps a server session between its calls.
type Holder struct {
	Session      *pool.Session
	App          string
	Since        time.Time
	Busy         bool // a call is under way
	Transactions int  // open
}

// Holders lists those of the sidecar's own pool and of callers' pools.
func (s *Server) Holders() []Holder {
	if s.virtual == nil {
		return nil
	}
	return s.virtual.holders()
}

func (vs *virtuals) holders() []Holder {
	var all []Holder
	for _, s := range vs.stripes {
		s.mu.Lock()
		for v := range s.bound {
			h := Holder{Session: v.lease, Since: time.Unix(0, v.since), Busy: v.busy, Transactions: v.n}
			if app, ok := v.lease.Holder.(*apps.Stripe); ok {
				h.App = app.Name()
			}
			all = append(all, h)
		}
		s.mu.Unlock()
	}
	return all
}
