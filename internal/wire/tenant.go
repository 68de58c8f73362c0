package wire

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cache"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
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
	Own         bool       // it is the sidecar's own, as of Deps.Pool
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
	Close(context.Context) error
}

// tenant is who shares a pool: an identity in a database, or one app of it.
type tenant struct {
	name   tenantName
	pool   Pool
	mine   TenantPool             // the same, if it was made here
	meter  hop.Judge              // the same, if it wants to know what comes of calls; else nil
	ticket atomic.Pointer[string] // what sessions are opened with: of whoever needed one last

	gone atomic.Bool // its pool is closed
	lent atomic.Bool // a session of it, since the last sweep; calls write it only if it is not set

	sessions atomic.Int64 // virtual ones; changed when one is first used and when it ends

	// Guarded by tenants.mu.
	used  time.Time
	ended chan struct{} // closed when mine.Run has
}

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
func (t *tenant) is(other *tenant) bool {
	return t == other || t != nil && other != nil && t.name.identity() == other.name.identity()
}

// What a user is called that the cluster does not name. A name of the cluster's begins with "user ".
const (
	ownUser   = "own"
	anonymous = "anonymous"
)

// caller is what the calls of a connection come with. It belongs to the connection's
// shard; hash, ticket and database are constant.
type caller struct {
	named
	ticket   string // "": none
	asked    string // database, as the client names it
	database string
	hash     [sha256.Size]byte // of ticket and database
	tenants  [2]*tenant        // by table; nil: not looked for yet
	unnamed  [2]uint64         // the same: what names said when its app got no pool of its own; 0: it has what it is to have

	ticketVersion, databaseVersion uint64 // of the headers, see same
}

// tenants are the callers' identities, and their pools.
type tenants struct {
	accounts  Accounts
	own       bool // everybody works with the sidecar's credentials
	databases served
	tables    bool // the table service has sessions of its own

	users   *cache.Cache[string]  // by caller.hash
	refused *cache.Cache[refusal] // the same: to whom the cluster said no just now
	asks    chan struct{}         // has room for those who may ask at a time

	ctx     context.Context // ends with the server
	runs    sync.WaitGroup
	unnamed atomic.Uint64 // callers whose app got no pool of its own
	freed   atomic.Uint64 // pools with an app that are gone: others may have one

	mu     sync.Mutex // guards all below
	byName map[tenantName]*tenant
	named  map[tenantName]int              // pools with an app, by identity
	asking map[[sha256.Size]byte][]mailbox // calls that wait for an answer
	view   cluster.View
	quiet  bool
	closed bool
	warned bool // that there are more apps than may have a pool
}

// mailbox is where a call waits.
type mailbox struct {
	frames *frames
	ticket h2.Ticket
}

const (
	maxTenants    = 1000             // pools at a time
	maxNamed      = maxTenants / 2   // so many leave no room for further ones with an app
	maxIdentities = 10_000           // tickets remembered
	maxAsks       = 32               // questions at a time whose ticket it is
	identityTTL   = time.Hour        // after that is asked again whose it is; nodes look at the ticket of every call anyway
	refusalTTL    = time.Second      // so long a ticket is not asked about again
	askTimeout    = 5 * time.Second  // for one question
	tenantIdle    = 10 * time.Minute // a pool that nobody used is closed
)

var (
	errTenants      = refusal{codes.ResourceExhausted, Ydb.StatusIds_OVERLOADED, "ydb-sidecar: there are pools for 1000 identities, which is the most; try again later"}
	errAsks         = refusal{codes.ResourceExhausted, Ydb.StatusIds_OVERLOADED, "ydb-sidecar: too many new tickets at a time; try again"}
	errUnauthorized = refusal{codes.Unauthenticated, Ydb.StatusIds_UNAUTHORIZED, "ydb-sidecar: the cluster does not accept the call's credentials (header x-ydb-auth-ticket)"}
	errNobodyKnows  = refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE, "ydb-sidecar: no node could be asked whose credentials these are; the call was not sent"}
)

// errTicketRefused ends the wait of calls for a session that cannot be opened for them.
var errTicketRefused = errors.New("the cluster does not accept the credentials")

func newTenants(ctx context.Context, config Config, deps Deps) *tenants {
	ts := &tenants{
		accounts: deps.Accounts, own: config.Auth == AuthOwn, databases: servedBy(config, deps), tables: config.TableSessions == TableSessionsOwn, ctx: ctx,
		users:   cache.New[string](cache.Config{Max: maxIdentities, TTL: identityTTL}),
		refused: cache.New[refusal](cache.Config{Max: maxIdentities, TTL: refusalTTL}),
		asks:    make(chan struct{}, maxAsks),
		byName:  map[tenantName]*tenant{}, named: map[tenantName]int{}, asking: map[[sha256.Size]byte][]mailbox{},
	}
	if ts.own {
		name := tenantName{database: deps.Database, user: ownUser}
		t := &tenant{name: name, pool: deps.Pool} // the plain API's
		t.meter, _ = t.pool.(hop.Judge)
		ts.byName[name] = t
	}
	return ts
}

// canonical is a database's path as the sidecar writes it: "/local".
func canonical(database string) string { return "/" + strings.Trim(database, "/") }

// served are the databases that clients may name, the sidecar's own first.
type served []string

func servedBy(config Config, deps Deps) served {
	all := served{canonical(deps.Database)}
	for _, database := range config.Databases {
		all = append(all, canonical(database))
	}
	return all
}

// path is that of a database as a client names it; ok is false if it is not served.
func (d served) path(name string) (path string, ok bool) {
	if name == "" {
		return d[0], true
	}
	path = canonical(name)
	return path, slices.Contains(d, path)
}

// callerOf returns what a call comes with. The connection keeps it: usually there is
// nothing to do but to compare.
func (f *frames) callerOf(c *h2.Call) (*caller, *refusal) {
	ts, conn := f.server.tenants, c.Client()
	if who, ok := conn.Tag.(*caller); ok && (ts.own || same(c, headerTicket, &who.ticketVersion, who.ticket)) &&
		same(c, headerDatabase, &who.databaseVersion, who.asked) && who.is(c, f.server.deps.Apps) {
		return who, nil
	}
	who := &caller{asked: string(c.Header(headerDatabase)), databaseVersion: c.Version(headerDatabase)}
	if !ts.own {
		who.ticket, who.ticketVersion = string(c.Header(headerTicket)), c.Version(headerTicket)
	}
	var ok bool
	if who.database, ok = ts.databases.path(who.asked); !ok {
		return nil, &errDatabase
	}
	var refused *refusal
	if who.named, refused = f.introduce(c); refused != nil {
		return nil, refused
	}
	who.hash = sha256.Sum256([]byte(who.database + "\x00" + who.ticket))
	conn.Tag = who
	return who, nil
}

// tenantOf returns the tenant of a call. While nobody knows it the error is
// h2.ErrPark, and the call goes on when somebody does.
func (f *frames) tenantOf(c *h2.Call, k *call, who *caller) (*tenant, error) {
	ts, table := f.server.tenants, 0
	if ts.tables && k.method.Style == protocol.StyleOperation {
		table = 1
	}
	if t := who.tenants[table]; t != nil && !t.gone.Load() && (who.unnamed[table] == 0 || who.unnamed[table] == f.server.names()) {
		return t, nil
	}
	user := ownUser
	if !ts.own {
		var known bool
		if user, known = ts.userOf(who); !known {
			if r, ok := ts.refused.Get(string(who.hash[:])); ok {
				return nil, k.refuse(r)
			}
			if !ts.ask(who, mailbox{f, c.Ticket()}) {
				return nil, k.refuse(errAsks)
			}
			return nil, h2.ErrPark
		}
	}
	names, name := f.server.names(), tenantName{who.database, user, table == 1, appName(f.server.appOf(who))}
	t := ts.get(name, f.server, who.unnamed[table] == 0)
	if t == nil {
		return nil, k.refuse(errTenants)
	}
	if who.tenants[table], who.unnamed[table] = t, 0; t.name != name {
		who.unnamed[table] = names
	}
	return t, nil
}

// names changes when an app may get a pool of its own that got none: one is gone, or more are allowed. It is not 0.
func (s *Server) names() uint64 {
	if s.deps.Names == nil {
		return 1
	}
	return 1 + s.tenants.freed.Load()<<namesBits + uint64(s.deps.Names())
}

const namesBits = 16 // pool.max is less

// userOf is the identity of a caller, if it is known.
func (ts *tenants) userOf(who *caller) (user string, known bool) {
	if who.ticket == "" {
		return anonymous, true
	}
	return ts.users.Get(string(who.hash[:]))
}

// appOf is the app whose name the sessions for a caller bear; nil: none.
func (s *Server) appOf(who *caller) *apps.App {
	if s.deps.Names == nil || !who.app.Named() {
		return nil
	}
	return who.app.App
}

// appName is the name of an app that may be nil.
func appName(app *apps.App) string {
	if app == nil {
		return ""
	}
	return app.Name()
}

// get returns the tenant of that name, made when it is first needed, or that of the same identity
// without an app if there are as many with one as may be; nil: there are too many. count says that
// the caller counts if its app has none.
func (ts *tenants) get(name tenantName, s *Server, count bool) *tenant {
	t, warn := ts.make(name, s, count)
	if warn { // without the lock: whoever reads the log may be slow
		s.log.Warn("more apps than may have sessions of their own; further ones share sessions that bear no name", "setting", "apps.sessions", "app", name.app)
	}
	return t
}

// make is get. warn: it is the first time that an app gets no sessions of its own.
func (ts *tenants) make(name tenantName, s *Server, count bool) (t *tenant, warn bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.byName[name]; t != nil {
		return t, false
	}
	if name.app != "" && (ts.named[name.identity()] >= s.deps.Names() || len(ts.byName) >= maxNamed) {
		if count {
			ts.unnamed.Add(1)
		}
		warn, ts.warned = !ts.warned, true
		name = name.identity()
	}
	if t := ts.byName[name]; t != nil || len(ts.byName) >= maxTenants || ts.closed {
		return t, warn
	}
	whole := ts.byName[name.identity()]
	t = &tenant{name: name, used: time.Now(), ended: make(chan struct{})}
	t.ticket.Store(new(string))
	config := TenantConfig{
		Database: name.database, Table: name.table, Refused: func(ticket string) { s.refused(t, ticket) },
		Identity: name.String(), Own: whole != nil && whole.mine == nil, Application: name.app,
		Weight: func() int { return s.deps.Apps.Weight(name.app) },
	}
	if !ts.own {
		config.Ticket = func() string { return *t.ticket.Load() }
	}
	t.mine = ts.accounts.Pool(config)
	t.pool = t.mine
	t.meter, _ = t.pool.(hop.Judge)
	t.mine.Quiet(ts.quiet)
	t.mine.SetView(ts.view)
	ts.byName[name] = t
	if name.app != "" {
		ts.named[name.identity()]++
	}
	ts.runs.Go(func() {
		defer close(t.ended)
		s.keep("the pool of a caller", func() { _ = t.mine.Run(ts.ctx) }) // it returns nil
	})
	return t, warn
}

// forApp returns the tenant of the same identity for an app, which may be nil; nil: there are too many.
func (ts *tenants) forApp(t *tenant, app *apps.App, s *Server) *tenant {
	name := t.name
	name.app = appName(app)
	return ts.get(name, s, true)
}

// ask has somebody find out whose ticket it is, once for all who wait; false: too
// many tickets are being asked about.
func (ts *tenants) ask(who *caller, m mailbox) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	waiting, asked := ts.asking[who.hash]
	if !asked {
		select {
		case ts.asks <- struct{}{}:
		default:
			return false
		}
		hash, database, ticket := who.hash, who.database, who.ticket
		ts.runs.Go(func() {
			defer func() { <-ts.asks }()
			ts.find(hash, database, ticket)
		})
	}
	ts.asking[who.hash] = append(waiting, m)
	return true
}

// find asks the cluster and lets those go on who wait.
func (ts *tenants) find(hash [sha256.Size]byte, database, ticket string) {
	ctx, cancel := context.WithTimeout(ts.ctx, askTimeout)
	defer cancel()
	key := string(hash[:])
	var user string
	var status Ydb.StatusIds_StatusCode
	err := panics.Call("the search for the owner of a ticket", func() error {
		user, status = ts.accounts.WhoAmI(ctx, database, ticket)
		return nil
	})
	switch {
	case err != nil:
		ts.refused.Set(key, errNobodyKnows)
	case status == Ydb.StatusIds_UNAUTHORIZED:
		ts.refused.Set(key, errUnauthorized)
	case status != Ydb.StatusIds_SUCCESS:
		ts.refused.Set(key, errNobodyKnows)
	case user == "":
		ts.users.Set(key, "ticket "+hex.EncodeToString(hash[:8]))
	default:
		ts.users.Set(key, "user "+user)
	}
	ts.mu.Lock()
	waiting := ts.asking[hash]
	delete(ts.asking, hash)
	ts.mu.Unlock()
	for _, m := range waiting {
		m.frames.post(mail{ticket: m.ticket})
	}
}

// refused ends the wait of those calls for a session of t that came with a ticket for which
// a node opens none: see TenantConfig.Refused.
func (s *Server) refused(t *tenant, ticket string) {
	for _, f := range s.shards {
		f.post(mail{refused: t, ofTicket: ticket})
	}
}

// setView tells the pools.
func (ts *tenants) setView(v cluster.View) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.view = v
	for _, t := range ts.byName {
		if t.mine != nil {
			t.mine.SetView(v)
		}
	}
}

// setQuiet tells the pools.
func (ts *tenants) setQuiet(on bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.quiet = on
	for _, t := range ts.byName {
		if t.mine != nil {
			t.mine.Quiet(on)
		}
	}
}

// sweep closes pools that nobody has used for a while.
func (ts *tenants) sweep(now time.Time) {
	for _, t := range ts.idle(now) {
		ts.runs.Go(func() { t.close(ts.ctx) })
	}
}

// idle takes out the tenants whose pools nobody has used for a while.
func (ts *tenants) idle(now time.Time) (idle []*tenant) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for name, t := range ts.byName {
		if t.mine == nil {
			continue
		}
		lent := t.lent.Swap(false)
		if st := t.mine.Stats(); lent || t.sessions.Load() > 0 || st.Leased > 0 || st.InLine() > 0 {
			t.used = now
		}
		if now.Sub(t.used) >= tenantIdle {
			delete(ts.byName, name)
			if id := name.identity(); name.app != "" {
				if ts.named[id]--; ts.named[id] == 0 {
					delete(ts.named, id)
				}
				ts.freed.Add(1)
			}
			t.gone.Store(true)
			idle = append(idle, t)
		}
	}
	return idle
}

// close closes the pool and waits for it.
func (t *tenant) close(ctx context.Context) error {
	err := t.mine.Close(ctx)
	<-t.ended
	return err
}

// close closes every pool, all at once.
func (ts *tenants) close(ctx context.Context) error {
	ts.mu.Lock()
	ts.closed = true
	all := ts.byName
	ts.byName = map[tenantName]*tenant{}
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

// state lists the pools that were made here.
func (ts *tenants) state() []PoolState {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	out := make([]PoolState, 0, len(ts.byName))
	for name, t := range ts.byName {
		if t.mine == nil {
			continue
		}
		st := t.mine.Stats()
		one := PoolState{Database: name.database, Identity: name.user, Table: name.table, App: name.app, Sessions: st.Sessions, Opening: st.Opening, Idle: st.Idle, Leased: st.Leased, Recovering: st.Recovering, Recovered: st.Recovered, Closing: st.Closing, Limit: st.Limit, Waiting: st.InLine(), Virtual: int(t.sessions.Load())}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b PoolState) int { return b.Sessions - a.Sessions })
	return out
}
