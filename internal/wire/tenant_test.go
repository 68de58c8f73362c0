package wire

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Auth"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// fakeCluster are those of a backend. Tickets are "user/number"; the user nobody is not
// named by the cluster, bad is not accepted, late no longer, and away cannot be asked about.
type fakeCluster struct {
	*backend
	config pool.Config
}

// userOf is whose sessions a ticket may use.
func userOf(ticket string) string {
	if user, _, ok := strings.Cut(ticket, "/"); ok && user != "nobody" {
		return user
	}
	return ticket
}

func (a fakeCluster) WhoAmI(_ context.Context, _, ticket string) (string, Ydb.StatusIds_StatusCode) {
	a.mu.Lock()
	a.asked++
	gate := a.gate
	a.mu.Unlock()
	if gate != nil {
		<-gate
	}
	switch user, _, _ := strings.Cut(ticket, "/"); user {
	case "bad":
		return "", Ydb.StatusIds_UNAUTHORIZED
	case "away":
		return "", Ydb.StatusIds_UNAVAILABLE
	case "nobody":
		return "", Ydb.StatusIds_SUCCESS
	default:
		return user, Ydb.StatusIds_SUCCESS
	}
}

func (a fakeCluster) Pool(c virtual.PoolConfig) virtual.OwnedPool {
	a.mu.Lock()
	births := a.births
	a.mu.Unlock()
	if births != nil {
		<-births
	}
	return pool.New(a.config, as{a.backend, c}, nil)
}

// as opens sessions for an identity.
type as struct {
	*backend
	identity virtual.PoolConfig
}

func (o as) Open(ctx context.Context, node cluster.NodeID, retire func(string)) (pool.Resource, error) {
	ticket := ""
	if o.identity.Ticket != nil {
		ticket = o.identity.Ticket()
	}
	if strings.HasPrefix(ticket, "late/") {
		o.identity.Refused(ticket)
		return nil, status.Error(codes.Unauthenticated, "late")
	}
	r, err := o.backend.Open(ctx, node, retire)
	if err == nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		s := r.(*server)
		s.user = userOf(ticket)
		s.table = o.identity.Table
	}
	return r, err
}

// newInn is a house whose guests come with tickets of their own.
func newInn(t *testing.T, change func(*Config, *pool.Config)) *house {
	return newHouse(t, func(c *Config, p *pool.Config) {
		c.Auth = AuthCaller
		if change != nil {
			change(c, p)
		}
	})
}

func (h *house) comes(name, ticket string) *guest {
	g := h.guest(name)
	g.ticket = ticket
	return g
}

// questions is how often was asked whose a ticket is.
func (h *house) questions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked
}

// shut has answers about tickets wait until open is called, however long that takes.
func (h *house) shut() (open func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gate := make(chan struct{})
	h.gate = gate
	open = sync.OnceFunc(func() { close(gate) })
	h.Cleanup(open)
	return open
}

func (h *house) pools() map[string]virtual.PoolState {
	all := map[string]virtual.PoolState{}
	for _, p := range h.server.State().Virtual.Pools {
		all[p.Identity+p.Database] = p
	}
	return all
}

// identity is that of a ticket which is known.
func (h *house) identity(ticket string) *virtual.IdentityPool {
	h.Helper()
	who := virtual.NewCredentials("/local", ticket)
	t, err := h.server.identities.Of(&who, false, nil, nil, nil)
	if err != nil {
		h.Fatal(err)
	}
	return t
}

func TestPoolsAreOfIdentities(t *testing.T) {
	h := newInn(t, nil)
	h.limit *= 4
	a, b, n, m := h.comes("a", "alice/1"), h.comes("b", "bob/1"), h.comes("n", "nobody/1"), h.comes("m", "nobody/2")
	for range 3 {
		for _, g := range []*guest{a, b, n, m} {
			g.session().must(success, "select", nil)
		}
	}
	// A new ticket of the same user goes on with its pool, on the same connection and on another.
	a.ticket = "alice/2"
	a.session().must(success, "select", nil)
	h.comes("c", "alice/2").session().must(success, "select", nil)
	pools := h.pools()
	if len(pools) != 4 || pools["user alice/local"].Sessions != 1 || pools["user bob/local"].Sessions != 1 {
		t.Errorf("%+v", pools)
	}
	if h.questions() != 5 {
		t.Errorf("asked %d times whose 5 tickets these are", h.questions())
	}
}

// To nodes that know the sidecar by its certificate a call without a ticket would be the sidecar's own.
func TestNobodyIsTheSidecar(t *testing.T) {
	for _, c := range []struct {
		mode, auth string
		shown      bool
		ticket     []string
		want       Ydb.StatusIds_StatusCode
	}{
		{ModeTransaction, AuthCaller, true, nil, Ydb.StatusIds_UNAUTHORIZED},
		{ModeTransaction, AuthCaller, true, []string{""}, Ydb.StatusIds_UNAUTHORIZED},
		{ModeTransaction, AuthCaller, true, []string{" "}, Ydb.StatusIds_UNAUTHORIZED},
		{ModeTransaction, AuthCaller, true, []string{"alice/1"}, success},
		{ModeTransaction, AuthCaller, false, nil, success},
		{ModeTransaction, AuthOwn, true, nil, success},
		{ModePassthrough, AuthCaller, true, nil, Ydb.StatusIds_UNAUTHORIZED},
		{ModePassthrough, AuthCaller, true, []string{"", "alice/1"}, Ydb.StatusIds_UNAUTHORIZED},
		// Those that the node sees name no session of its own.
		{ModePassthrough, AuthCaller, true, []string{"alice/1", ""}, Ydb.StatusIds_BAD_SESSION},
		{ModePassthrough, AuthCaller, false, nil, Ydb.StatusIds_BAD_SESSION},
		{ModePassthrough, AuthOwn, true, nil, Ydb.StatusIds_BAD_SESSION},
	} {
		t.Run(fmt.Sprintf("%s %s %v %q", c.mode, c.auth, c.shown, c.ticket), func(t *testing.T) {
			h := newHouseWith(t, 1, nil, func(config *Config, _ *pool.Config) { config.Mode, config.Auth = c.mode, c.auth }, nil,
				func(d *Deps) { d.Shown = c.shown })
			g := h.guest("a")
			ctx := metadata.AppendToOutgoingContext(h.ctx, "x-ydb-database", "/local")
			for _, ticket := range c.ticket {
				ctx = metadata.AppendToOutgoingContext(ctx, "x-ydb-auth-ticket", ticket)
			}
			out, err := g.query.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{})
			if err != nil {
				t.Fatal(err)
			}
			part, err := out.Recv()
			if err != nil || part.GetStatus() != c.want {
				t.Fatalf("%v, %v; want %v", part, err, c.want)
			}
			if got := h.seen.Get(
				"x-ydb-auth-ticket",
			); c.mode == ModePassthrough && c.shown && c.want != Ydb.StatusIds_UNAUTHORIZED && c.auth == AuthCaller &&
				(len(got) != 1 || got[0] == "") {
				t.Errorf("the node sees the tickets %q", got)
			}
			err = g.conn.Invoke(ctx, login, &Ydb_Auth.LoginRequest{}, new(Ydb_Auth.LoginResponse))
			if status.Code(err) != codes.Unimplemented { // as the node says
				t.Errorf("logs in: %v", err)
			}
		})
	}
}

func TestAnonymousIsOneIdentity(t *testing.T) {
	h := newInn(t, nil)
	for _, name := range []string{"a", "b"} {
		h.comes(name, "").session().must(success, "select", nil)
	}
	if pools := h.pools(); len(pools) != 1 || pools["anonymous/local"].Sessions != 1 || h.questions() != 0 {
		t.Errorf("%+v, asked %d times", pools, h.questions())
	}
}

// A session serves the identity that created it alone, whoever knows its id.
func TestSessionsOfOthers(t *testing.T) {
	h := newInn(t, nil)
	h.limit *= 2
	a := h.comes("a", "alice/1")
	s := a.session()
	tx := s.must(success, "select", beginTx)
	mixed := *a // over the same connection
	mixed.ticket = "bob/1"
	if st, _, err := mixed.run(h.ctx, "", "select", nil); st != success || err != nil {
		t.Errorf("without a session: %v, %v", st, err)
	}
	for _, stranger := range []*guest{h.comes("b", "bob/1"), h.comes("n", ""), &mixed} {
		for _, control := range []*Ydb_Query.TransactionControl{nil, inTx(tx, true)} {
			if st, _, err := stranger.run(h.ctx, s.id, "select", control); st != Ydb.StatusIds_BAD_SESSION || err != nil {
				t.Errorf("a statement: %v, %v", st, err)
			}
		}
		if stream, err := stranger.query.AttachSession(stranger.with(h.ctx), &Ydb_Query.AttachSessionRequest{SessionId: s.id}); err != nil {
			t.Error(err)
		} else if state, err := stream.Recv(); err != nil || state.GetStatus() != Ydb.StatusIds_BAD_SESSION {
			t.Errorf("attached: %v, %v", state, err)
		}
		if r, err := stranger.table.KeepAlive(
			stranger.with(h.ctx), &Ydb_Table.KeepAliveRequest{SessionId: s.id},
		); err != nil || r.GetOperation().GetStatus() != Ydb.StatusIds_BAD_SESSION {
			t.Errorf("kept alive: %v, %v", r, err)
		}
		if r, err := stranger.query.DeleteSession(
			stranger.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id},
		); err != nil || r.GetStatus() != success {
			t.Errorf("deleted: %v, %v", r, err)
		}
	}
	s.must(success, "select", inTx(tx, true))
	// Its own, with another ticket: by all the ways there are.
	other := h.comes("a", "alice/2")
	if r, err := other.table.KeepAlive(other.with(h.ctx), &Ydb_Table.KeepAliveRequest{SessionId: s.id}); err != nil ||
		r.GetOperation().GetStatus() != success {
		t.Error(r, err)
	}
	if st, _, err := other.run(h.ctx, s.id, "select", nil); st != success || err != nil {
		t.Error(st, err)
	}
	if r, err := other.query.DeleteSession(
		other.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id},
	); err != nil || r.GetStatus() != success {
		t.Error(r, err)
	}
	s.must(Ydb.StatusIds_BAD_SESSION, "select", nil)
}

// A compressed message is not gathered beyond the window, inflated or scanned before it is known whose it is.
func TestCompressedMessagesWaitForWhoseTheyAre(t *testing.T) {
	noise := make([]byte, 900_000)
	for i := range noise {
		noise[i] = byte('a' + rand.N(26))
	}
	const temporary = "CREATE TEMPORARY TABLE t (a Int32)"
	for _, c := range []struct {
		name, text string
	}{
		{"short", temporary},
		{"long", temporary + " -- " + string(noise)},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newInn(t, nil)
			open := h.shut()
			g := h.comes("a", "alice/1")
			g.options = compressedBy["gzip"]
			s := g.session()
			done := make(chan struct{})
			go func() {
				defer close(done)
				if st, _, err := g.run(h.ctx, s.id, c.text, nil); st != success || err != nil {
					t.Errorf("%v, %v", st, err)
				}
			}()
			h.eventually("it is asked whose it is", func() string { return strings.Repeat("x", 1-h.questions()) })
			for _, f := range h.server.shards {
				f.shard.Do(func(*h2.Forwarder) {
					if f.seen.Temporary || f.inflated.sum > 0 {
						t.Errorf("the text was scanned: %v; %d bytes were inflated", f.seen.Temporary, f.inflated.sum)
					}
				})
			}
			if n, most := h.buffered(), h2.Default().Window+h2.Default().Window/2; n > most {
				t.Errorf("%d bytes wait; want at most %d", n, most)
			}
			open()
			<-done
		})
	}
}

// While a new identity's pool is being made its calls wait, and no other calls of their shard do.
func TestPoolsAreMadeBesideTheTurn(t *testing.T) {
	h := newHouseOn(t, 1, nil, func(c *Config, _ *pool.Config) { c.Auth = AuthCaller })
	h.limit *= 2
	known := h.comes("a", "alice/1").session()
	known.must(success, "select", nil)
	births := make(chan struct{})
	h.mu.Lock()
	h.births = births
	h.mu.Unlock()
	open := sync.OnceFunc(func() { close(births) })
	h.Cleanup(open)
	stays, goes := h.comes("b", "bob/1").session(), h.comes("c", "bob/1").session()
	waiting := func(n int) {
		t.Helper()
		h.eventually("calls wait", func() string {
			if held := h.server.State().Held; held != n {
				return fmt.Sprintf("%d; want %d", held, n)
			}
			return ""
		})
	}
	var wg sync.WaitGroup
	wg.Go(func() { stays.must(success, "select", nil) })
	waiting(1)
	ctx, cancel := context.WithCancel(h.ctx)
	wg.Go(func() { _, _, _ = goes.run(ctx, goes.id, "select", nil) })
	waiting(2)
	known.must(success, "select", nil)
	cancel()
	waiting(1)
	open()
	wg.Wait()
	goes.must(success, "select", nil) // its session is not taken by the call that was cancelled
	h.eventually("all sessions rest", func() string {
		if p := h.pools()["user bob/local"]; p.Sessions == 0 || p.InUse > 0 || p.Waiting > 0 || h.server.State().Held > 0 {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
}

func TestDatabases(t *testing.T) {
	for _, auth := range []string{AuthCaller, AuthOwn} {
		h := newHouse(t, func(c *Config, _ *pool.Config) { c.Auth, c.Databases = auth, []string{"/other"} })
		h.limit *= 4
		for database, want := range map[string]Ydb.StatusIds_StatusCode{"": success, "local": success, "/other": success,
			"/other/": success, "/third": Ydb.StatusIds_UNAUTHORIZED} {
			g := h.comes("a", "")
			g.database = database
			st, _, err := g.run(h.ctx, "", "select", nil)
			if st != want || err != nil {
				t.Errorf("%s, %q: %v, %v; want %v", auth, database, st, err, want)
			}
			if st == success {
				if got := h.seen.Get("x-ydb-database"); len(got) != 1 || got[0] != "/local" && got[0] != "/other" {
					t.Errorf("%q went as %q", database, got)
				}
				g.session().must(success, "select", nil)
			}
		}
		if auth == AuthCaller && len(h.pools()) != 2 {
			t.Errorf("%+v", h.pools())
		}
		// A session is of one database.
		a := h.comes("a", "")
		s := a.session()
		a.database = "/other"
		s.must(Ydb.StatusIds_BAD_SESSION, "select", nil)
	}
}

// What the node reads is what the sidecar has read, also if a header comes twice.
func TestHeadersThatComeTwice(t *testing.T) {
	for _, auth := range []string{AuthCaller, AuthOwn} {
		h := newHouse(t, func(c *Config, _ *pool.Config) { c.Auth = auth })
		g := h.comes("a", "alice/1")
		ctx := metadata.AppendToOutgoingContext(g.with(h.ctx), "x-ydb-database", "/third", "x-ydb-auth-ticket", "bob/1")
		out, err := g.query.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{})
		if err == nil {
			_, err = out.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{AuthCaller: "alice/1", AuthOwn: "own ticket"}[auth]
		if database, ticket := h.seen.Get("x-ydb-database"), h.seen.Get("x-ydb-auth-ticket"); fmt.Sprint(database, ticket) != fmt.Sprintf(
			"[/local] [%s]", want,
		) {
			t.Errorf("%s: %q %q", auth, database, ticket)
		}
		for err == nil {
			_, err = out.Recv()
		}
	}
}

func TestTableServiceWithSessionsOfItsOwn(t *testing.T) {
	h := newInn(t, func(c *Config, _ *pool.Config) { c.TableSessions = TableSessionsOwn })
	h.limit *= 2
	g := h.comes("a", "alice/1")
	g.session().must(success, "select", nil)
	created, err := g.table.CreateSession(g.with(h.ctx), &Ydb_Table.CreateSessionRequest{})
	result := new(Ydb_Table.CreateSessionResult)
	if err != nil || created.GetOperation().GetResult().UnmarshalTo(result) != nil {
		t.Fatal(created, err)
	}
	if r, err := g.table.ExecuteDataQuery(
		g.with(h.ctx), &Ydb_Table.ExecuteDataQueryRequest{SessionId: result.GetSessionId()},
	); err != nil || r.GetOperation().GetStatus() != success {
		t.Error(r, err)
	}
	// A session is of both services, as on a node, as long as nothing lives on its server session.
	s := g.session()
	ofTable := func(control *Ydb_Table.TransactionControl) Ydb.StatusIds_StatusCode {
		r, err := g.table.ExecuteDataQuery(g.with(h.ctx), &Ydb_Table.ExecuteDataQueryRequest{SessionId: s.id, TxControl: control})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetOperation().GetStatus()
	}
	for range 2 {
		s.must(success, "select", nil)
		if st := ofTable(nil); st != success {
			t.Errorf("after a call of the query service: %v", st)
		}
	}
	tx := s.must(success, "select", beginTx)
	if st := ofTable(nil); st != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("with a transaction of the query service: %v", st)
	}
	s.must(success, "select", inTx(tx, true))
	if n := h.pools()["user alice/local"].Virtual; n < 0 {
		t.Errorf("%d virtual sessions", n)
	}
	var tables []bool
	for _, p := range h.server.State().Virtual.Pools {
		tables = append(tables, p.Table)
	}
	if len(tables) != 2 || tables[0] == tables[1] {
		t.Errorf("%v", tables)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.tableUsed {
		t.Error("a call of the table service went on a session of the query service")
	}
}
