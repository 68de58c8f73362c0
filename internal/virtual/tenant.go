package virtual

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cache"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// Accounts is what the server needs of the cluster on behalf of its callers.
type Accounts interface {
	// WhoAmI names the user of a ticket; user is "" if the cluster names none. The
	// status is SUCCESS, UNAUTHORIZED, or UNAVAILABLE: no node could be asked.
	WhoAmI(ctx context.Context, database, ticket string) (user string, status Ydb.StatusIds_StatusCode)
	// Pool makes a pool for a tenant. It has run nothing and knows no node.
	Pool(TenantConfig) TenantPool
}

// TenantConfig is what sessions of a tenant's pool are opened with.
type TenantConfig struct {
	Database string
	Table    bool          // they are of the table service
	Ticket   func() string // of the moment, "" for none; nil: the sidecar's own credentials

	// An identity may have several pools, which together get what one does.
	Identity    string     // the same for all pools of an identity in a database and a service
	Own         bool       // it is the sidecar's own, as of TenantsConfig.Own
	Application string     // the app that its sessions are for; "": any without sessions of its own
	Weight      func() int // of the pool, next to the others of the identity

	// Refused hears that a node opens no session for this ticket: it does not accept it.
	Refused func(ticket string)
}

// TenantPool is the pool of a tenant; *pool.Pool satisfies it.
type TenantPool interface {
	Pool
	SetView(cluster.View)
	Run(context.Context) error
	Quiet(bool)
	Busy() bool
	Close(context.Context) error
}

// Meter hears what came of the calls on a pool's sessions.
type Meter = interface{ Report(cluster.Outcome) }

// Tenant is who shares a pool: an identity in a database, or one app of it.
type Tenant struct {
	Pool  Pool
	Meter Meter // of the pool; nil: it does not want to know

	name   tenantName
	mine   TenantPool             // Pool, if it was made here
	ticket atomic.Pointer[string] // what sessions are opened with: of whoever needed one last

	gone atomic.Bool // its pool is closed, or about to be
	left atomic.Bool // the same, because another one needed the room
	lent atomic.Bool // a session of it, since the last sweep; calls write it only if it is not set

	sessions atomic.Int64 // of clients; changed when one is first used and when it ends

	// Guarded by Tenants.mu.
	used  time.Time
	ended chan struct{} // closed when mine.Run has
}

// OpensWith says with which ticket sessions are to be opened from now on.
func (t *Tenant) OpensWith(ticket *string) { t.ticket.Store(ticket) }

// tenantName tells tenants apart.
type tenantName struct {
	database string
	user     string // see identity
	table    bool   // sessions of the table service, where they are not those of the query service
	app      string // that the sessions bear the name of; "": none
}

// identity is the name of the tenant whose sessions bear no name.
func (n tenantName) identity() tenantName {
	n.app = ""
	return n
}

// String is the same for all apps of an identity, and for no other identity.
func (n tenantName) String() string { return fmt.Sprintf("%q %q %v", n.database, n.user, n.table) }

// is reports whether two are of one identity.
func (t *Tenant) is(other *Tenant) bool {
	return t == other || t != nil && other != nil && t.name.identity() == other.name.identity()
}

// isUser is is, but for the service.
func (t *Tenant) isUser(other *Tenant) bool {
	return t == other || other != nil && t.name.database == other.name.database && t.name.user == other.name.user
}

// What a user is called that the cluster does not name. A name of the cluster's begins with "user ".
const (
	ownUser   = "own"
	anonymous = "anonymous"
)

// Caller is what calls come with. It belongs to one goroutine at a time; what is exported is constant.
type Caller struct {
	Ticket   string            // "": none
	Database string            // in the spelling of TenantsConfig.Database
	Hash     [sha256.Size]byte // of both
	Share    *Share            // of the connection, whatever ticket its calls come with; nil: its sessions are not counted

	tenants [2]*Tenant // by service, the table service behind; nil: not looked for yet
	unnamed [2]uint64  // the same: what Tenants.names said when its app got no pool of its own; 0: it has what it is to have
}

// NewCaller returns one.
func NewCaller(database, ticket string) Caller {
	return Caller{Ticket: ticket, Database: database, Hash: sha256.Sum256([]byte(database + "\x00" + ticket))}
}

// Waiter is a call that waits to know whose it is, or for its pool. Wake is called once, from any goroutine, and must not block.
type Waiter interface{ Wake() }

// TenantsConfig is what tenants are made of.
type TenantsConfig struct {
	Accounts Accounts
	Own      Pool                           // everybody works with the sidecar's credentials, on this pool; nil: with their own
	Database string                         // of Own
	Tables   bool                           // the table service has sessions of its own
	Names    func() int                     // the most apps of an identity that have pools of their own; below 65,536; nil: none has
	Weight   func(app string) int           // of an app's pool next to the others of its identity
	Pools    func(nodes int) int            // the most pools at a time, by the nodes that each of them knows; nil: MaxPools
	Refused  func(t *Tenant, ticket string) // hears that a node opens no session for that ticket of the tenant's
	Log      *slog.Logger
}

// Tenants are the callers' identities, and their pools.
type Tenants struct {
	config TenantsConfig

	users   *cache.Cache[string] // by Caller.Hash
	refused *cache.Cache[error]  // the same: to whom the cluster said no just now

	ctx     context.Context // ends with the server
	runs    sync.WaitGroup
	unnamed atomic.Uint64 // callers whose app got no pool of its own
	freed   atomic.Uint64 // pools with an app that are gone: others may have one
	evicted atomic.Uint64 // pools closed because others needed the room

	quieting sync.Mutex    // held while pools are told of Quiet, which takes its time; before mu
	views    chan struct{} // capacity 1: there is a view that pools are yet to be told of
	telling  sync.Once     // starts who tells them

	mu      sync.Mutex // guards all below; no pool is called under it, and none is made
	byName  map[tenantName]*Tenant
	making  map[tenantName][]Waiter // of tenants whose pools are being made, and the calls that wait for them
	named   map[tenantName]int      // pools with an app, by identity, also of making
	closing int                     // pools that are closed to make room, and have not ended
	asking  map[[sha256.Size]byte]*question
	askers  map[Client]*asker // connections with questions
	line    []*asker          // those that wait for one of theirs to be asked, the longest first
	asks    int               // questions under way
	further int               // questions behind the first of their connection
	view    cluster.View
	viewed  int  // views so far
	quiet   bool // written with quieting held, too
	closed  bool
	warned  bool // that there are more apps than may have a pool
}

// question is whose a ticket is.
type question struct {
	hash             [sha256.Size]byte // of both:
	database, ticket string
	waiting          []Waiter
}

// asker is a client's connection that came with tickets which are not known. One of its questions is asked at a time, and the
// connections take turns: tickets that one of them makes up do not keep those of others waiting.
type asker struct {
	client Client
	asks   []*question // the first is under way, or next; never empty
}

const (
	MaxPools      = 1000             // of tenants, at a time
	maxIdentities = 10_000           // tickets remembered
	maxAsks       = 32               // questions under way at a time whose ticket it is, of one connection each
	maxOfClient   = 32               // questions of one connection
	maxFurther    = 1024             // questions behind the first of their connection, of all connections
	maxWaiters    = 1 << 16          // calls that wait for one answer
	identityTTL   = time.Hour        // after that is asked again whose it is; nodes look at the ticket of every call anyway
	refusalTTL    = time.Second      // so long a ticket is not asked about again
	askTimeout    = 5 * time.Second  // for one question
	tenantIdle    = 10 * time.Minute // a pool that nobody used is closed
)

// Why a caller has no tenant. ErrAsked is no refusal: it is being found out, or the pool is being made, and the Waiter is told.
var (
	ErrAsked        = errors.New("it is not known yet whose ticket it is, or the pool is being made")
	ErrTenants      = errors.New("there are as many pools of identities as the sidecar's memory allows, 1000 at the most; try again later")
	ErrAsks         = errors.New("too many new tickets on the connection at a time; try again")
	ErrUnauthorized = errors.New("the cluster does not accept the call's credentials (header x-ydb-auth-ticket)")
	ErrNobodyKnows  = errors.New("no node could be asked whose credentials these are; the call was not sent")
)

// NewTenants returns none but that of TenantsConfig.Own. What it starts ends with ctx, and Wait waits for it.
func NewTenants(ctx context.Context, config TenantsConfig) *Tenants {
	ts := &Tenants{
		config:  config,
		ctx:     ctx,
		users:   cache.New[string](cache.Config{Max: maxIdentities, TTL: identityTTL}),
		refused: cache.New[error](cache.Config{Max: maxIdentities, TTL: refusalTTL}),
		views:   make(chan struct{}, 1),
		byName:  map[tenantName]*Tenant{}, making: map[tenantName][]Waiter{}, named: map[tenantName]int{}, asking: map[[sha256.Size]byte]*question{}, askers: map[Client]*asker{},
	}
	if ts.config.Log == nil {
		ts.config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Own != nil {
		name := ts.own()
		t := &Tenant{name: name, Pool: config.Own}
		t.Meter, _ = config.Own.(Meter)
		ts.byName[name] = t
	}
	return ts
}

// Known returns the tenant of a caller if it was looked for before and is still good; else nil.
func (ts *Tenants) Known(who *Caller, table bool) *Tenant {
	i := ts.service(table)
	if t := who.tenants[i]; t != nil && !t.gone.Load() && (who.unnamed[i] == 0 || who.unnamed[i] == ts.names()) {
		return t
	}
	return nil
}

func (ts *Tenants) service(table bool) int {
	if table && ts.config.Tables {
		return 1
	}
	return 0
}

// Of returns the tenant of a caller for an app, which may be nil. client is the connection that the call came over. The
// error is one of those above.
func (ts *Tenants) Of(who *Caller, table bool, app *apps.App, client Client, w Waiter) (*Tenant, error) {
	user, known := ts.UserOf(who)
	if !known {
		if err, ok := ts.refused.Get(string(who.Hash[:])); ok {
			return nil, err
		}
		if !ts.ask(who, client, w) {
			return nil, ErrAsks
		}
		return nil, ErrAsked
	}
	i := ts.service(table)
	names, name := ts.names(), tenantName{who.Database, user, i == 1, appName(app)}
	t, err := ts.get(name, who.unnamed[i] == 0, w)
	if err != nil {
		return nil, err
	}
	if who.tenants[i], who.unnamed[i] = t, 0; t.name != name {
		who.unnamed[i] = names
	}
	return t, nil
}

// Ask has somebody find out whose ticket it is; false: nobody will, and nobody is told.
func (ts *Tenants) Ask(who *Caller, client Client, w Waiter) bool {
	_, refused := ts.refused.Get(string(who.Hash[:]))
	return !refused && ts.ask(who, client, w)
}

// names changes when an app may get a pool of its own that got none: one is gone, or more are allowed. It is not 0.
func (ts *Tenants) names() uint64 {
	if ts.config.Names == nil {
		return 1
	}
	return 1 + ts.freed.Load()<<namesBits + uint64(ts.config.Names())
}

const namesBits = 16 // pool.max is less

// UserOf is the identity of a caller, if it is known.
func (ts *Tenants) UserOf(who *Caller) (user string, known bool) {
	if ts.config.Own != nil {
		return ownUser, true
	}
	if who.Ticket == "" {
		return anonymous, true
	}
	return ts.users.Get(string(who.Hash[:]))
}

// appName is the name of an app that may be nil.
func appName(app *apps.App) string {
	if app == nil {
		return ""
	}
	return app.Name()
}

// get returns the tenant of that name, or that of the same identity without an app if there are as many with one as may be.
// Its pool is made when it is first needed, off the shard's turn: until it is there the error is ErrAsked. It is ErrTenants if
// there are too many. count says that the caller counts if its app has none.
func (ts *Tenants) get(name tenantName, count bool, w Waiter) (*Tenant, error) {
	t, warn, err := ts.seek(name, w)
	if warn { // without the lock: whoever reads the log may be slow
		ts.config.Log.Warn("more apps than may have sessions of their own; further ones share sessions that bear no name", "setting", "apps.sessions", "app", name.app)
	}
	if count && t != nil && t.name != name {
		ts.unnamed.Add(1)
	}
	return t, err
}

// seek is get. warn: it is the first time that an app gets no sessions of its own.
func (ts *Tenants) seek(name tenantName, w Waiter) (_ *Tenant, warn bool, err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t, err := ts.thereLocked(name, w); t != nil || err != nil {
		return t, false, err
	}
	if name.app != "" && (ts.named[name.identity()] >= ts.config.Names() || len(ts.byName)+len(ts.making) >= ts.mostLocked()/2) {
		warn, ts.warned = !ts.warned, true
		name = name.identity()
		if t, err := ts.thereLocked(name, w); t != nil || err != nil {
			return t, warn, err
		}
	}
	if ts.closed || !ts.roomLocked() {
		return nil, warn, ErrTenants
	}
	t := &Tenant{name: name, ended: make(chan struct{})}
	t.ticket.Store(new(string))
	ts.making[name] = []Waiter{w}
	if name.app != "" {
		ts.named[name.identity()]++
	}
	ts.runs.Go(func() { ts.makePool(t) })
	return nil, warn, ErrAsked
}

// thereLocked returns the tenant of a name, nil if there is none. ErrAsked: its pool is being made, and w is told.
func (ts *Tenants) thereLocked(name tenantName, w Waiter) (*Tenant, error) {
	waiting, making := ts.making[name]
	switch {
	case !making:
		return ts.byName[name], nil
	case len(waiting) == maxWaiters:
		return nil, ErrAsks
	}
	ts.making[name] = append(waiting, w)
	return nil, ErrAsked
}

// makePool makes the pool of a new tenant, and lets the calls go on that wait for it. No shard waits: pools that get another
// configuration keep a new one waiting until all have it.
func (ts *Tenants) makePool(t *Tenant) {
	name, born := t.name, false
	var waiting []Waiter
	madeLocked := func() { // it counts once
		waiting = ts.making[name]
		delete(ts.making, name)
	}
	defer func() { // also after a panic
		if !born {
			ts.mu.Lock()
			madeLocked()
			ts.unnameLocked(name)
			ts.mu.Unlock()
		}
		for _, w := range waiting {
			w.Wake()
		}
	}()
	config := TenantConfig{
		Database: name.database, Table: name.table, Refused: func(ticket string) { ts.config.Refused(t, ticket) },
		Identity: name.String(), Own: ts.config.Own != nil && name.identity() == ts.own(), Application: name.app,
		Weight: func() int { return ts.config.Weight(name.app) },
	}
	if ts.config.Own == nil {
		config.Ticket = func() string { return *t.ticket.Load() }
	}
	panics.Keep(ts.ctx, "the making of a pool", func() { t.mine = ts.config.Accounts.Pool(config) })
	if t.mine == nil { // the server ends
		return
	}
	t.Pool = t.mine
	t.Meter, _ = t.mine.(Meter)
	view, viewed := ts.newest()
	_ = panics.Call("the nodes of a caller's pool", func() error { t.mine.SetView(view); return nil })
	ts.quieting.Lock()
	defer ts.quieting.Unlock()
	_ = panics.Call("the quiet of a caller's pool", func() error { t.mine.Quiet(ts.quiet); return nil })
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.runs.Go(func() {
		defer close(t.ended)
		panics.Keep(ts.ctx, "the pool of a caller", func() { _ = t.mine.Run(ts.ctx) }) // it returns nil
	})
	if ts.closed {
		ts.runs.Go(func() { _ = t.close(ts.ctx) })
		return
	}
	t.used = time.Now()
	ts.byName[name], born = t, true
	madeLocked()
	if ts.viewed != viewed {
		ts.tell()
	}
}

// own is the name of the tenant of TenantsConfig.Own.
func (ts *Tenants) own() tenantName {
	return tenantName{database: ts.config.Database, user: ownUser}
}

// ForApp returns the tenant of the same identity for an app, which may be nil. The errors are those of Of.
func (ts *Tenants) ForApp(t *Tenant, app *apps.App, w Waiter) (*Tenant, error) {
	name := t.name
	name.app = appName(app)
	return ts.get(name, true, w)
}

// mostLocked is how many pools there may be. Half as many leave no room for further ones with an app.
func (ts *Tenants) mostLocked() int {
	if ts.config.Pools == nil {
		return MaxPools
	}
	return ts.config.Pools(len(ts.view.Nodes))
}

// roomLocked makes room for one more pool. Once the nodes are more than before there may be too many pools: each new one has two
// closed, until there are not. False: there is no room.
func (ts *Tenants) roomLocked() bool {
	most := ts.mostLocked()
	for range 2 {
		if len(ts.byName)+len(ts.making) >= most && !ts.makeRoomLocked(most) {
			return false
		}
	}
	return true
}

// makeRoomLocked closes the pool that has lent nothing for longest: where the cluster names no users, every ticket that a client
// makes up is an identity, and those of others are to find room. Calls that have sessions of the pool keep them to
// their end. False: as many such pools are being closed as there may be open.
func (ts *Tenants) makeRoomLocked(most int) bool {
	if ts.closing >= most {
		return false
	}
	var oldest *Tenant
	now := time.Now()
	for _, t := range ts.byName {
		switch {
		case t.mine == nil:
			continue
		case t.lent.Swap(false):
			t.used = now
		}
		if oldest == nil || t.used.Before(oldest.used) {
			oldest = t
		}
	}
	if oldest == nil {
		return false
	}
	ts.closing++
	ts.evicted.Add(1)
	oldest.left.Store(true)
	ts.removeLocked(oldest)
	ts.runs.Go(func() {
		_ = oldest.close(ts.ctx) // what is left is deleted when the server ends
		ts.mu.Lock()
		ts.closing--
		ts.mu.Unlock()
	})
	return true
}

// Refusal is err of the tenant's pool as its callers are told it: a pool that made room for another is closed, too.
func (t *Tenant) Refusal(err error) error {
	if t.left.Load() && errors.Is(err, pool.ErrClosed) {
		return ErrTenants
	}
	return err
}

// ask has somebody find out whose ticket it is, once for all who wait; false: too
// many tickets of the connection are being asked about.
func (ts *Tenants) ask(who *Caller, client Client, w Waiter) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	q := ts.asking[who.Hash]
	if q == nil {
		a := ts.askers[client]
		switch {
		case a == nil:
			a = &asker{client: client}
			ts.askers[client] = a
			ts.line = append(ts.line, a)
		case len(a.asks) == maxOfClient || ts.further == maxFurther:
			return false
		default:
			ts.further++
		}
		q = &question{hash: who.Hash, database: who.Database, ticket: who.Ticket}
		ts.asking[who.Hash] = q
		a.asks = append(a.asks, q)
		ts.askLocked()
	}
	if len(q.waiting) == maxWaiters {
		return false
	}
	q.waiting = append(q.waiting, w)
	return true
}

// askLocked asks as many questions as may be under way.
func (ts *Tenants) askLocked() {
	for ts.asks < maxAsks && len(ts.line) > 0 {
		a := ts.line[0]
		ts.line[0], ts.line = nil, ts.line[1:]
		q := a.asks[0]
		ts.asks++
		ts.runs.Go(func() {
			ts.find(q)
			ts.found(a, q)
		})
	}
}

// found lets the calls go on that wait for an answer, and has the next question asked.
func (ts *Tenants) found(a *asker, q *question) {
	ts.mu.Lock()
	waiting := q.waiting
	delete(ts.asking, q.hash)
	if a.asks = a.asks[1:]; len(a.asks) == 0 {
		delete(ts.askers, a.client)
	} else {
		ts.further--
		ts.line = append(ts.line, a)
	}
	ts.asks--
	ts.askLocked()
	ts.mu.Unlock()
	for _, w := range waiting {
		w.Wake()
	}
}

// find asks the cluster.
func (ts *Tenants) find(q *question) {
	ctx, cancel := context.WithTimeout(ts.ctx, askTimeout)
	defer cancel()
	key := string(q.hash[:])
	var user string
	var status Ydb.StatusIds_StatusCode
	err := panics.Call("the search for the owner of a ticket", func() error {
		user, status = ts.config.Accounts.WhoAmI(ctx, q.database, q.ticket)
		return nil
	})
	switch {
	case err != nil:
		ts.refused.Set(key, ErrNobodyKnows)
	case status == Ydb.StatusIds_UNAUTHORIZED:
		ts.refused.Set(key, ErrUnauthorized)
	case status != Ydb.StatusIds_SUCCESS:
		ts.refused.Set(key, ErrNobodyKnows)
	case user == "":
		ts.users.Set(key, "ticket "+hex.EncodeToString(q.hash[:]))
	default:
		ts.users.Set(key, "user "+user)
	}
}

// made returns the tenants whose pools were made here, after a change under the lock. Pools are called without it: shards
// take it at the first call of a connection, and what pools do takes time in proportion to their nodes.
func (ts *Tenants) made(change func()) []*Tenant {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	change()
	all := make([]*Tenant, 0, len(ts.byName))
	for _, t := range ts.byName {
		if t.mine != nil {
			all = append(all, t)
		}
	}
	return all
}

// SetView has the pools told of the nodes, and waits for none of them: there may be many, and who calls it has to go on
// judging nodes. A pool hears views in order, and may miss those that are not the newest any more.
func (ts *Tenants) SetView(v cluster.View) {
	ts.mu.Lock()
	ts.view = v // a pool that is made later has it
	ts.viewed++
	ts.mu.Unlock()
	ts.telling.Do(func() { ts.runs.Go(ts.tellViews) })
	ts.tell()
}

// tell has tellViews go round the pools.
func (ts *Tenants) tell() {
	select {
	case ts.views <- struct{}{}:
	default: // another round is due in any case
	}
}

// tellViews tells the pools of views until the context of NewTenants ends.
func (ts *Tenants) tellViews() {
	for {
		select {
		case <-ts.views:
		case <-ts.ctx.Done():
			return
		}
		for _, t := range ts.made(func() {}) {
			_ = panics.Call("the nodes of a caller's pool", func() error {
				view, _ := ts.newest()
				t.mine.SetView(view)
				return nil
			})
		}
	}
}

// newest is the newest view, and its number.
func (ts *Tenants) newest() (cluster.View, int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.view, ts.viewed
}

// Quiet has the pools do only what somebody waits for, or all again.
func (ts *Tenants) Quiet(on bool) {
	ts.quieting.Lock()
	defer ts.quieting.Unlock()
	for _, t := range ts.made(func() { ts.quiet = on }) {
		t.mine.Quiet(on)
	}
}

// Sweep closes pools that nobody has used for a while.
func (ts *Tenants) Sweep(now time.Time) {
	for _, t := range ts.idle(now) {
		ts.runs.Go(func() { t.close(ts.ctx) })
	}
}

// idle takes out the tenants whose pools nobody has used for a while.
func (ts *Tenants) idle(now time.Time) (idle []*Tenant) {
	all := ts.made(func() {})
	used := make([]bool, len(all))
	for i, t := range all {
		lent := t.lent.Swap(false)
		used[i] = t.mine.Busy() || lent || t.sessions.Load() > 0
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for i, t := range all {
		// Somebody may have come since.
		if used[i] || t.lent.Load() || t.sessions.Load() > 0 {
			t.used = now
		}
		if now.Sub(t.used) >= tenantIdle && !t.gone.Load() {
			ts.removeLocked(t)
			idle = append(idle, t)
		}
	}
	return idle
}

// removeLocked takes out a tenant, whose pool is to be closed.
func (ts *Tenants) removeLocked(t *Tenant) {
	delete(ts.byName, t.name)
	ts.unnameLocked(t.name)
	t.gone.Store(true)
}

// unnameLocked counts the end of a pool, which may have an app.
func (ts *Tenants) unnameLocked(name tenantName) {
	if id := name.identity(); name.app != "" {
		if ts.named[id]--; ts.named[id] == 0 {
			delete(ts.named, id)
		}
		ts.freed.Add(1)
	}
}

// close closes the pool and waits for it.
func (t *Tenant) close(ctx context.Context) error {
	err := panics.Call("the closing of a pool", func() error { return t.mine.Close(ctx) })
	<-t.ended
	return err
}

// Close closes every pool, all at once: their sessions are deleted. The error says what could not be
// deleted within ctx.
func (ts *Tenants) Close(ctx context.Context) error {
	ts.mu.Lock()
	ts.closed = true
	all := ts.byName
	ts.byName = map[tenantName]*Tenant{}
	ts.mu.Unlock()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, t := range all {
		t.gone.Store(true)
		if t.mine != nil {
			wg.Go(func() {
				if err := t.close(ctx); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// PoolState is one pool of State.
type PoolState struct {
	Database   string `json:"database"`
	Identity   string `json:"identity"` // own, anonymous, user NAME, or ticket and a hash
	Table      bool   `json:"table,omitempty"`
	App        string `json:"app,omitempty"` // that the sessions bear the name of
	Virtual    int    `json:"virtual_sessions"`
	Sessions   int    `json:"sessions"` // on the nodes; of these:
	Opening    int    `json:"opening"`
	Idle       int    `json:"idle"`
	Leased     int    `json:"leased"`
	Recovering int    `json:"recovering"` // of the leased ones, those whose call was given up: their nodes are asked whether they are at rest
	Recovered  uint64 `json:"recovered"`  // sessions used again after that, so far
	Closing    int    `json:"closing"`
	Waiting    int    `json:"waiting"` // calls in line
	Limit      int    `json:"limit"`   // of sessions in use now; pool.max without pool.adaptive
}

// Wait waits for what was started. The context of NewTenants must have ended.
func (ts *Tenants) Wait() { ts.runs.Wait() }

// State lists the pools that were made here.
func (ts *Tenants) State() []PoolState {
	all := ts.made(func() {})
	out := make([]PoolState, 0, len(all))
	for _, t := range all {
		st, name := t.mine.Stats(), t.name
		one := PoolState{Database: name.database, Identity: name.user, Table: name.table, App: name.app, Sessions: st.Sessions, Opening: st.Opening, Idle: st.Idle, Leased: st.Leased, Recovering: st.Recovering, Recovered: st.Recovered, Closing: st.Closing, Limit: st.Limit, Waiting: st.InLine(), Virtual: int(t.sessions.Load())}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b PoolState) int { return b.Sessions - a.Sessions })
	return out
}
