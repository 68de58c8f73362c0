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

// PoolsConfig is what identity pools are made of.
type PoolsConfig struct {
	Cluster  Cluster
	Own      Pool                                 // everybody works with the sidecar's credentials, on this pool; nil: with their own
	Database string                               // of Own
	Tables   bool                                 // the table service has sessions of its own
	Names    func() int                           // the most apps of an identity that have pools of their own; below 65,536; nil: none has
	Weight   func(app string) int                 // of an app's pool next to the others of its identity
	Pools    func(nodes int) int                  // the most pools at a time, by the nodes that each of them knows; nil: MaxPools
	Refused  func(t *IdentityPool, ticket string) // hears that a node opens no session for that ticket of the identity's
	Log      *slog.Logger
}

// IdentityPools are the callers' identities, and their pools.
type IdentityPools struct {
	config PoolsConfig

	users   *cache.Cache[string] // by Credentials.Hash
	refused *cache.Cache[error]  // by ticket: the cluster said no just now

	ctx  context.Context // ends with the server
	runs sync.WaitGroup
	poolCounts

	quieting sync.Mutex    // held while pools are told of Quiet, which takes its time; before mu
	views    chan struct{} // capacity 1: there is a view that pools are yet to be told of
	telling  sync.Once     // starts who tells them

	mu sync.Mutex // guards all below; no pool is called under it, and none is made
	identityPools
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

// identityPools are the pools that there are. IdentityPools.mu guards them.
type identityPools struct {
	byName  map[poolKey]*IdentityPool
	making  map[poolKey][]Waiter // of identities whose pools are being made, and the calls that wait for them
	named   map[poolKey]int      // pools with an app, by identity, also of making
	closing int                  // pools that are closed to make room, and have not ended
	warned  bool                 // the log says that there are more apps than may have a pool
}

// questions ask the cluster which user credentials belong to. IdentityPools.mu guards them.
type questions struct {
	asking  map[[sha256.Size]byte]*question
	askers  map[Client]*askingConn // connections with questions
	waiting []*askingConn          // connections that wait for a question of theirs to be asked, the longest first
	asks    int                    // questions under way
	further int                    // questions behind the first of their connection
}

// news is what pools are to be told. Tenants.mu guards it.
type news struct {
	view   cluster.View
	viewed int  // views so far
	quiet  bool // written with quieting held, too
}

// NewIdentityPools returns none but that of PoolsConfig.Own. What it starts ends with ctx, and Wait waits for it.
func NewIdentityPools(ctx context.Context, config PoolsConfig) *IdentityPools {
	ts := &IdentityPools{
		config:  config,
		ctx:     ctx,
		users:   cache.New[string](cache.Config{Max: maxIdentities, TTL: identityTTL}),
		refused: cache.New[error](cache.Config{Max: maxIdentities, TTL: refusalTTL}),
		views:   make(chan struct{}, 1),
		identityPools: identityPools{
			byName: map[poolKey]*IdentityPool{}, making: map[poolKey][]Waiter{}, named: map[poolKey]int{},
		},
		questions: questions{asking: map[[sha256.Size]byte]*question{}, askers: map[Client]*askingConn{}},
	}
	if ts.config.Log == nil {
		ts.config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Own != nil {
		name := ts.own()
		t := &IdentityPool{name: name, Pool: config.Own}
		t.Meter, _ = config.Own.(Meter)
		ts.byName[name] = t
	}
	return ts
}

// Known returns the pool of a caller if it was looked for before and is still good; else nil.
func (ts *IdentityPools) Known(who *Credentials, table bool) *IdentityPool {
	i := ts.service(table)
	if t := who.pools[i]; t != nil && !t.gone.Load() && (who.unnamed[i] == 0 || who.unnamed[i] == ts.names()) {
		return t
	}
	return nil
}

func (ts *IdentityPools) service(table bool) int {
	if table && ts.config.Tables {
		return 1
	}
	return 0
}

// Of returns the pool of a caller for an app, which may be nil. client is the connection that the call came over. The
// error is one of those above.
func (ts *IdentityPools) Of(who *Credentials, table bool, app *apps.App, client Client, w Waiter) (*IdentityPool, error) {
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
	names, name := ts.names(), poolKey{who.Database, user, i == 1, appName(app)}
	t, err := ts.get(name, who.unnamed[i] == 0, w)
	if err != nil {
		return nil, err
	}
	if who.pools[i], who.unnamed[i] = t, 0; t.name != name {
		who.unnamed[i] = names
	}
	return t, nil
}

// UserOf is the identity of a caller, if it is known.
func (ts *IdentityPools) UserOf(who *Credentials) (user string, known bool) {
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

// get returns the pool with that name. If no further app of the identity may have a pool, it returns the identity's pool
// without an app. The first caller has the pool made, outside of the shard's turn; until it is there, the error is
// ErrAsked. ErrPools: there are too many pools. count: count the caller if its app has no pool of its own.
func (ts *IdentityPools) get(name poolKey, count bool, w Waiter) (*IdentityPool, error) {
	t, warn, err := ts.seek(name, w)
	if warn { // without the lock: whoever reads the log may be slow
		ts.config.Log.Warn("more apps than may have sessions of their own; further ones share sessions that bear no name",
			"setting", "apps.sessions", "app", name.app)
	}
	if count && t != nil && t.name != name {
		ts.unnamed.Add(1)
	}
	return t, err
}

// seek is get. warn: it is the first time that an app gets no sessions of its own.
func (ts *IdentityPools) seek(name poolKey, w Waiter) (_ *IdentityPool, warn bool, err error) {
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
		return nil, warn, ErrPools
	}
	t := &IdentityPool{name: name, ended: make(chan struct{})}
	t.ticket.Store(new(string))
	ts.making[name] = []Waiter{w}
	if name.app != "" {
		ts.named[name.identity()]++
	}
	ts.runs.Go(func() { ts.makePool(t) })
	return nil, warn, ErrAsked
}

// thereLocked returns the pool of a name, nil if there is none. ErrAsked: its pool is being made, and w is told.
func (ts *IdentityPools) thereLocked(name poolKey, w Waiter) (*IdentityPool, error) {
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
func (ts *IdentityPools) SetView(v cluster.View) {
	ts.mu.Lock()
	ts.view = v // a pool that is made later has it
	ts.viewed++
	ts.mu.Unlock()
	ts.telling.Do(func() { ts.runs.Go(ts.tellViews) })
	ts.tell()
}

// tell has tellViews go round the pools.
func (ts *IdentityPools) tell() {
	select {
	case ts.views <- struct{}{}:
	default: // another round is due in any case
	}
}

// tellViews tells the pools of views until the context of NewIdentityPools ends.
func (ts *IdentityPools) tellViews() {
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
func (ts *IdentityPools) newest() (cluster.View, int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.view, ts.viewed
}

// Quiet has the pools do only what somebody waits for, or all again.
func (ts *IdentityPools) Quiet(on bool) {
	ts.quieting.Lock()
	defer ts.quieting.Unlock()
	for _, t := range ts.made(func() { ts.quiet = on }) {
		t.mine.Quiet(on)
	}
}

// Sweep closes pools that nobody has used for a while.
func (ts *IdentityPools) Sweep(now time.Time) {
	for _, t := range ts.idle(now) {
		ts.runs.Go(func() { t.close(ts.ctx) })
	}
}

// idle takes out the pools that nobody has used for a while.
func (ts *IdentityPools) idle(now time.Time) (idle []*IdentityPool) {
	all := ts.made(func() {})
	used := make([]bool, len(all))
	for i, t := range all {
		lent := t.wasUsed.Swap(false)
		used[i] = t.mine.Busy() || lent || t.sessions.Load() > 0
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for i, t := range all {
		// Somebody may have come since.
		if used[i] || t.wasUsed.Load() || t.sessions.Load() > 0 {
			t.used = now
		}
		if now.Sub(t.used) >= poolIdle && !t.gone.Load() {
			ts.removeLocked(t)
			idle = append(idle, t)
		}
	}
	return idle
}

// removeLocked takes out a pool, which is to be closed.
func (ts *IdentityPools) removeLocked(t *IdentityPool) {
	delete(ts.byName, t.name)
	ts.unnameLocked(t.name)
	t.gone.Store(true)
}

// unnameLocked counts the end of a pool, which may have an app.
func (ts *IdentityPools) unnameLocked(name poolKey) {
	if id := name.identity(); name.app != "" {
		if ts.named[id]--; ts.named[id] == 0 {
			delete(ts.named, id)
		}
		ts.freed.Add(1)
	}
}

// Close closes every pool, all at once: their sessions are deleted. The error says what could not be
// deleted within ctx.
func (ts *IdentityPools) Close(ctx context.Context) error {
	ts.mu.Lock()
	ts.closed = true
	all := ts.byName
	ts.byName = map[poolKey]*IdentityPool{}
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
	App        string `json:"app,omitempty"` // name that the sessions bear
	Virtual    int    `json:"virtual_sessions"`
	Sessions   int    `json:"sessions"` // on the nodes; of these:
	Opening    int    `json:"opening"`
	Idle       int    `json:"idle"`
	InUse      int    `json:"leased"`
	Recovering int    `json:"recovering"` // of the leased ones, those whose call was given up: their nodes are asked whether they are idle
	Recovered  uint64 `json:"recovered"`  // sessions used again after that, so far
	Closing    int    `json:"closing"`
	Waiting    int    `json:"waiting"` // calls in the queue
	Limit      int    `json:"limit"`   // of sessions in use now; pool.max without pool.adaptive
}

// Wait waits for what was started. The context of NewIdentityPools must have ended.
func (ts *IdentityPools) Wait() { ts.runs.Wait() }

// State lists the pools that were made here.
func (ts *IdentityPools) State() []PoolState {
	all := ts.made(func() {})
	out := make([]PoolState, 0, len(all))
	for _, t := range all {
		st, name := t.mine.Stats(), t.name
		one := PoolState{Database: name.database, Identity: name.user, Table: name.table, App: name.app,
			Sessions: st.Sessions, Opening: st.Opening, Idle: st.Idle, InUse: st.InUse, Recovering: st.Recovering,
			Recovered: st.Recovered, Closing: st.Closing, Limit: st.Limit, Waiting: st.InLine(),
			Virtual: int(t.sessions.Load())}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b PoolState) int { return b.Sessions - a.Sessions })
	return out
}
