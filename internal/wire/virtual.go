package wire

import (
	"crypto/rand"
	"crypto/sha256"
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
}

// ServerSession is a session on a node; *upstream.Session satisfies it.
type ServerSession interface {
	// ID is what the node knows it by.
	ID() string
	// Forget says that the node has forgotten it: there is nothing to delete.
	Forget()
}

// virtualID is the part of a virtual session's id that nobody can guess.
type virtualID [16]byte

// virtualPrefix is what ids of virtual sessions begin with: the sidecar's own node id.
var virtualPrefix = "ydb://session/3?node_id=" + strconv.Itoa(endpointID) + "&id="

func newVirtualID() (id virtualID) {
	rand.Read(id[:]) // it never fails
	return id
}

// append appends the id as clients know it.
func (id virtualID) append(b []byte) []byte {
	return hex.AppendEncode(append(b, virtualPrefix...), id[:])
}

// parseVirtual reads such an id. Others are not ok.
func parseVirtual(session []byte) (id virtualID, ok bool) {
	if len(session) != len(virtualPrefix)+2*len(id) || string(session[:len(virtualPrefix)]) != virtualPrefix {
		return id, false
	}
	text, all := session[len(virtualPrefix):], uint8(0)
	for i := range id {
		high, low := fromHex[text[2*i]], fromHex[text[2*i+1]]
		id[i] = high<<4 | low
		all |= high | low
	}
	return id, all < 16
}

// fromHex is what a digit stands for, in one spelling only; 16: it is none.
var fromHex = func() (t [256]uint8) {
	for c := range t {
		t[c] = 16
	}
	for i, c := range "0123456789abcdef" {
		t[c] = uint8(i)
	}
	return t
}()

// maxOpen is how many transactions a server session may have open; YDB allows ten.
const maxOpen = 10

// virtual is a session as a client sees it. Between calls it has no server session, but
// while a transaction is open or something else lives on the server session.
type virtual struct {
	id virtualID

	// Guarded by virtuals.mu, as all that is not constant. What each call needs comes first:
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
	used   time.Time
	attach h2.Ticket
	home   *frames // of attach
	open   [maxOpen]uint64
	maker  [sha256.Size]byte // caller.hash of who created it
	since  int64             // unix, in nanoseconds: when lease began to stay with it
	_      [8]byte           // 256 octets in all: objects of this size begin with a cache line
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

// virtuals are all virtual sessions of a server.
type virtuals struct {
	max  int
	keep bool // mode session

	texts texts // of prepared queries

	inTx atomic.Int64 // sessions with a transaction open; changed under mu, before the client is told

	mu    sync.Mutex // guards all below, and what virtual says
	byID  table
	bound map[*virtual]struct{} // have a server session, whether a call is under way or not
	idle  virtual               // head of a ring: those that nobody attached to, the longest unused first
	leave bool                  // clients are asked to go
	count virtualCounts
}

// virtualCounts are since the start.
type virtualCounts struct {
	Created, Refused, Lost, Expired uint64
	Borrowed, Waited, Discarded     uint64
}

func newVirtuals(config Config) *virtuals {
	vs := &virtuals{max: config.Sessions, keep: config.Mode == ModeSession, bound: map[*virtual]struct{}{}}
	vs.idle.prev, vs.idle.next = &vs.idle, &vs.idle
	return vs
}

// create makes a virtual session; nil: there are as many as allowed.
func (vs *virtuals) create(who *caller, keep bool) *virtual {
	v := &virtual{id: newVirtualID(), keep: keep, maker: who.hash}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if vs.byID.n >= vs.max {
		vs.count.Refused++
		return nil
	}
	vs.count.Created++
	vs.byID.put(v)
	vs.restLocked(v)
	return v
}

// restLocked begins the time after which v ends if nobody uses it.
func (vs *virtuals) restLocked(v *virtual) {
	if v.attached || v.ended {
		return
	}
	v.used = time.Now()
	v.prev, v.next = vs.idle.prev, &vs.idle
	v.prev.next, v.next.prev = v, v
}

// stirLocked ends it.
func (v *virtual) stirLocked() {
	if !v.attached && v.next != nil {
		v.prev.next, v.next.prev = v.next, v.prev
		v.prev, v.next = nil, nil
	}
}

// What find and the like answer besides a session.
var (
	errNoSession = &refusal{status: Ydb.StatusIds_BAD_SESSION, text: "ydb-sidecar: session not found"}
	errBusy      = &refusal{status: Ydb.StatusIds_SESSION_BUSY, text: "ydb-sidecar: the session runs another call"}
	errAttached  = &refusal{status: Ydb.StatusIds_SESSION_BUSY, text: "ydb-sidecar: the session is attached already"}
	errNoTx      = &refusal{status: Ydb.StatusIds_NOT_FOUND, text: "ydb-sidecar: transaction not found"}
	errLost      = &refusal{status: Ydb.StatusIds_BAD_SESSION, text: "ydb-sidecar: the transaction was lost with the session that it was open on; it was rolled back"}
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
	return v.maker == who.hash || v.tenant != nil && v.tenant == t
}

// see finds the caller's session. It tells as much of another's as of none. sure is
// false if that depends on the caller's tenant, which nobody knows yet.
func (vs *virtuals) see(id virtualID, who *caller, t *tenant) (v *virtual, sure bool) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v = vs.byID.get(id)
	if v == nil || v.isOf(who, t) {
		return v, true
	}
	return nil, t != nil || v.tenant == nil
}

// enter begins a call of the tenant t. inTx: it names a transaction.
func (vs *virtuals) enter(id virtualID, who *caller, t *tenant, inTx bool, client *h2.Conn) (e entered, refused *refusal) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v := vs.byID.get(id)
	switch {
	case v == nil || v.tenant != t && (v.tenant != nil || v.maker != who.hash):
		return e, errNoSession
	case v.busy:
		return e, errBusy
	case inTx && v.lease == nil && v.lost:
		return e, errLost
	case inTx && v.lease == nil:
		return e, errNoTx
	}
	if v.tenant == nil {
		v.tenant = t
		t.sessions++
	}
	v.stirLocked()
	v.busy, v.client = true, client
	if v.lease != nil && v.n == 0 && !v.temporary && !v.lease.Valid() {
		delete(vs.bound, v)
		e.stale, v.lease = v.lease, nil
	}
	e.virtual, e.lease = v, v.lease
	return e, nil
}

// attachTo notes the stream that keeps a session alive.
func (vs *virtuals) attachTo(v *virtual, f *frames, t h2.Ticket) *refusal {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	switch {
	case v.ended:
		return errNoSession
	case v.attached:
		return errAttached
	}
	v.stirLocked()
	v.attached, v.home, v.attach = true, f, t
	return nil
}

// touch says that a session is in use, and returns whether a call is under way.
func (vs *virtuals) touch(v *virtual) (busy bool) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v.next != nil {
		v.stirLocked()
		vs.restLocked(v)
	}
	return v.busy
}

// fate is what becomes of a server session.
type fate uint8

const (
	fateKept     fate = iota // it stays with the virtual session, or there is none
	fateReleased             // back to the pool
	fateDiscarded
)

// end ends a virtual session. The lease, of t, is to be let go as fate says. detached: its stream has ended.
func (vs *virtuals) end(v *virtual, detached bool) (t *tenant, lease *pool.Session, fate fate) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	lease, fate = vs.endLocked(v, detached)
	return v.tenant, lease, fate
}

func (vs *virtuals) endLocked(v *virtual, detached bool) (lease *pool.Session, fate fate) {
	if detached {
		if !v.attached && !v.ended {
			return nil, fateKept // see detachLocked
		}
		v.attached = false
	}
	if v.ended {
		return nil, fateKept
	}
	v.ended = true
	vs.byID.remove(v)
	if v.tenant != nil {
		v.tenant.sessions--
	}
	v.stirLocked()
	if v.attached {
		v.endStreamLocked()
	}
	if v.busy || v.lease == nil {
		return nil, fateKept // the call that is under way sees to it
	}
	delete(vs.bound, v)
	lease, v.lease = v.lease, nil
	vs.countTxLocked(v)
	return lease, v.fateOfLease()
}

func (v *virtual) endStreamLocked() {
	v.home.post(mail{ticket: v.attach, status: &h2.Status{Body: attachSession.success("", nil)}})
}

// detachLocked ends the stream of a session whose client was told that it is bad: most
// clients drop it then, and some know by the stream alone. It goes on as one that nobody
// attached to, for clients that repeat a statement on it.
func (v *virtual) detachLocked() {
	if v.attached && !v.ended {
		v.endStreamLocked()
		v.attached = false
	}
}

// fateOfLease is what becomes of the server session of a virtual one that does not need it.
func (v *virtual) fateOfLease() fate {
	if v.n > 0 || v.temporary || v.closing {
		return fateDiscarded
	}
	return fateReleased
}

// lifetime is how long a session lasts that nobody attached to or uses.
const lifetime = 10 * time.Minute

// expire ends those.
func (vs *virtuals) expire(now time.Time) {
	for {
		vs.mu.Lock()
		v := vs.idle.next
		if v == &vs.idle || now.Sub(v.used) < lifetime {
			vs.mu.Unlock()
			return
		}
		vs.count.Expired++
		t := v.tenant
		lease, fate := vs.endLocked(v, false)
		vs.mu.Unlock()
		t.letGo(lease, fate)
	}
}

// letGo gives a server session back.
func (t *tenant) letGo(lease *pool.Session, fate fate) {
	if lease != nil && fate != fateKept {
		if app, ok := lease.Holder.(*apps.Stripe); ok {
			lease.Holder = nil
			app.Done(uint8(class))
		}
	}
	switch {
	case lease == nil || fate == fateKept:
	case fate == fateReleased:
		t.pool.Release(lease)
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
	vs.mu.Lock()
	for v := range vs.bound {
		if v.client == conn && !v.attached && !v.busy {
			delete(vs.bound, v)
			all = append(all, owned{v.tenant, v.lease})
			v.lease, v.lost, v.n = nil, v.n > 0 || v.temporary, 0
			vs.countTxLocked(v)
			vs.count.Lost++
		}
	}
	vs.mu.Unlock()
	for _, o := range all {
		o.letGo(o.lease, fateDiscarded)
	}
}

// ask has clients go: sessions without a transaction end, the others after it.
func (vs *virtuals) ask() {
	vs.mu.Lock()
	vs.leave = true
	var all []*virtual
	for v := range vs.byID.all {
		if !v.busy && v.n == 0 && v.attached {
			all = append(all, v)
		}
	}
	vs.mu.Unlock()
	for _, v := range all {
		t, lease, fate := vs.end(v, false)
		t.letGo(lease, fate)
	}
}

// close ends every session.
func (vs *virtuals) close() {
	vs.mu.Lock()
	all := make([]*virtual, 0, vs.byID.n)
	for v := range vs.byID.all {
		all = append(all, v)
	}
	vs.mu.Unlock()
	for _, v := range all {
		t, lease, fate := vs.end(v, false)
		t.letGo(lease, fate)
	}
}

// VirtualState is the part of State about virtual sessions.
type VirtualState struct {
	Sessions  int    `json:"sessions"`
	Attached  int    `json:"attached"`
	Bound     int    `json:"bound"` // have a server session between their calls
	Created   uint64 `json:"created"`
	Refused   uint64 `json:"refused"`   // beyond wire.max_virtual_sessions
	Expired   uint64 `json:"expired"`   // without a stream, and not used
	Lost      uint64 `json:"lost"`      // transactions rolled back because their client or node went away
	Borrowed  uint64 `json:"borrowed"`  // server sessions, by calls
	Waited    uint64 `json:"waited"`    // of these, in line
	Discarded uint64 `json:"discarded"` // server sessions that were in doubt

	Pools []PoolState `json:"pools"` // of callers' identities; not the sidecar's own
}

func (vs *virtuals) state(ts *tenants) *VirtualState {
	pools := ts.state(vs)
	vs.mu.Lock()
	defer vs.mu.Unlock()
	c := &vs.count
	st := &VirtualState{Sessions: vs.byID.n, Created: c.Created, Refused: c.Refused, Expired: c.Expired, Lost: c.Lost,
		Borrowed: c.Borrowed, Waited: c.Waited, Discarded: c.Discarded, Pools: pools}
	for v := range vs.byID.all {
		if v.attached {
			st.Attached++
		}
		if v.lease != nil && !v.busy {
			st.Bound++
		}
	}
	return st
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
	vs.mu.Lock()
	defer vs.mu.Unlock()
	all := make([]Holder, 0, len(vs.bound))
	for v := range vs.bound {
		h := Holder{Session: v.lease, Since: time.Unix(0, v.since), Busy: v.busy, Transactions: v.n}
		if app, ok := v.lease.Holder.(*apps.Stripe); ok {
			h.App = app.Name()
		}
		all = append(all, h)
	}
	return all
}
