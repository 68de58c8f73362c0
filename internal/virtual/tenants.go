package virtual

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cache"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

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

	users   *cache.Cache[string] // by Credentials.Hash
	refused *cache.Cache[error]  // the same: to whom the cluster said no just now

	ctx  context.Context // ends with the server
	runs sync.WaitGroup
	poolCounts

	quieting sync.Mutex    // held while pools are told of Quiet, which takes its time; before mu
	views    chan struct{} // capacity 1: there is a view that pools are yet to be told of
	telling  sync.Once     // starts who tells them

	mu sync.Mutex // guards all below; no pool is called under it, and none is made
	tenantPools
	questions
	news
	closed bool
}

// poolCounts count callers and pools over the life of the process.
type poolCounts struct {
	unnamed atomic.Uint64 // callers whose app got no pool of its own
	freed   atomic.Uint64 // pools with an app that are gone: others may have one
	evicted atomic.Uint64 // pools closed because others needed the room
}

// tenantPools are the pools that there are. Tenants.mu guards them.
type tenantPools struct {
	byName  map[tenantName]*Tenant
	making  map[tenantName][]Waiter // of tenants whose pools are being made, and the calls that wait for them
	named   map[tenantName]int      // pools with an app, by identity, also of making
	closing int                     // pools that are closed to make room, and have not ended
	warned  bool                    // that there are more apps than may have a pool
}

// questions ask the cluster which user credentials belong to. Tenants.mu guards them.
type questions struct {
	asking  map[[sha256.Size]byte]*question
	askers  map[Client]*askingConn // connections with questions
	line    []*askingConn          // those that wait for one of theirs to be asked, the longest first
	asks    int                    // questions under way
	further int                    // questions behind the first of their connection
}

// news is what pools are to be told. Tenants.mu guards it.
type news struct {
	view   cluster.View
	viewed int  // views so far
	quiet  bool // written with quieting held, too
}

// NewTenants returns none but that of TenantsConfig.Own. What it starts ends with ctx, and Wait waits for it.
func NewTenants(ctx context.Context, config TenantsConfig) *Tenants {
	ts := &Tenants{
		config:  config,
		ctx:     ctx,
		users:   cache.New[string](cache.Config{Max: maxIdentities, TTL: identityTTL}),
		refused: cache.New[error](cache.Config{Max: maxIdentities, TTL: refusalTTL}),
		views:   make(chan struct{}, 1),
		tenantPools: tenantPools{
			byName: map[tenantName]*Tenant{}, making: map[tenantName][]Waiter{}, named: map[tenantName]int{},
		},
		questions: questions{asking: map[[sha256.Size]byte]*question{}, askers: map[Client]*askingConn{}},
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
func (ts *Tenants) Known(who *Credentials, table bool) *Tenant {
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
func (ts *Tenants) Of(who *Credentials, table bool, app *apps.App, client Client, w Waiter) (*Tenant, error) {
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

// UserOf is the identity of a caller, if it is known.
func (ts *Tenants) UserOf(who *Credentials) (user string, known bool) {
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
