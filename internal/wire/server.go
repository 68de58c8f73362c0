package wire

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/audit"
	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/h2/unary"
	"github.com/ydb-sidecar/sidecar/internal/history"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// Nodes reaches the nodes of the cluster; internal/upstream satisfies it.
type Nodes interface {
	// Dial connects to a node.
	Dial(ctx context.Context, node cluster.Node) (net.Conn, error)
	// TLS is what that connection is secured with; nil: not at all.
	TLS(node cluster.Node) *tls.Config
	// Invoke makes a call of the sidecar's own; nothing but what is in the outgoing metadata of ctx goes with it.
	// Errors are gRPC statuses; the signs say what came of it, except the answer's own status.
	Invoke(ctx context.Context, node cluster.NodeID, method string, in, out any) (ydbstatus.Signs, error)
}

// Deps are the parts that a server works with. All must be given, but Apps.
//
// Wide: it is a flat list of what one caller gives, with one line for each.
type Deps struct {
	hop.Ways
	Nodes   Nodes
	Own     *driver.Shard           // carries the sidecar's own calls, and is shown with the others; nil: none does
	Tracer  *tracing.Tracer         // nil: spans are not exported
	TLS     *tls.Config             // for clients over TCP; nil: plaintext
	Listen  net.Addr                // where these come
	Apps    *apps.Registry          // of the callers
	History *history.Recorder       // of all calls; nil: none
	Access  *accesslog.Log          // nil: none
	Audit   *audit.Log              // of calls that are denied; nil: none
	Memory  *memguard.Guard         // nil: there is always enough
	Shown   bool                    // nodes are shown a certificate of the sidecar's own, by which they may know it
	Unary   map[string]unary.Method // methods, by path, of the server in this process that are called without a way through it; nil: none
	// answers, by path, calls of that server that come with no token of an app, while any app has
	// one; they get no request; nil: the methods do
	Denied map[string]unary.Method
	Inside Inside           // bounds what goes through it
	Lane   *lane.Lane       // where messages are inflated; nil: one of its own, with a place
	Begin  map[string]Begin // how calls of some of Unary are begun in the turn of their shard; nil: none are

	Target func(cluster.Node) client.Target // what statements of such calls say to nodes; must be given with Begin and Plain.Begin
	Plain  Plain                            // must be given if Park is called

	// For virtual sessions alone.
	Texts    int                    // bytes that texts of prepared queries may take; 0: 16 MiB
	Mine     func(id []byte) bool   // whether the session of that id belongs to a pool of this sidecar; nil: none does
	Pool     virtual.Pool           // of the sidecar's own sessions; for wire.auth = own
	Cluster  virtual.Cluster        // for others
	Database string                 // database of clients that name none
	Names    func() int             // the most apps of an identity that have sessions of their own, which bear their names; nil: none has
	Pools    func(nodes int) int    // the most pools of identities, by the number of nodes; nil: virtual.MaxPools
	Log      *slog.Logger           // nil: none
	Ticket   func() (string, error) // the sidecar's own credentials; "" if it has none; it does not wait

	Statements *statements.Recorder // nil: statements are not counted
	Histogram  latency.Maker        // of what is counted with each call
}

// Server is the gRPC port while frames are forwarded as they are: every call comes
// here, and those of the plain API go on to a server in this process.
type Server struct {
	deps        Deps
	h2          h2.Config
	instruments *instruments
	local       *driver.Local
	inside      methods // of the server in this process
	modes
	sessions   *virtual.Sessions      // nil: sessions are the clients' own
	identities *virtual.IdentityPools // nil with sessions
	texts      texts                  // of prepared queries
	log        *slog.Logger
	located    atomic.Bool // a client has asked where partitions are: see locate
	router
	plain
	unpackers unpackers
	life
}

// modes are what the settings say of clients and their sessions.
type modes struct {
	always    bool // sessions are made to keep their server sessions: mode session
	own       bool // everybody works with the sidecar's credentials
	strict    bool // nobody else does: see proved
	implicit  bool // ExecuteQuery without a session gets one of the pool
	kept      bool // there may be sessions of mode session
	databases served
	apps      map[string]string // modes of sessions, by the name of the app
	keeps     time.Duration     // sessionsKept
}

// router has the shards, to which connections are dealt.
type router struct {
	shards []*frames
	next   atomic.Uint32 // see deal
	unread atomic.Uint64 // readings of shards that got no turn
}

// plain is the part of the server that serves the plain API.
type plain struct {
	unary      unary.Server
	parked     atomic.Uint32  // connections that were parked, for the shard of the next
	answering  atomic.Int64   // requests under way of parked connections
	plainCalls sync.WaitGroup // what serves requests of parked connections
}

// life is how the server ends.
type life struct {
	ctx  context.Context // ends when everything must
	stop context.CancelFunc
	wg   sync.WaitGroup
	done chan struct{} // closed when the last shard has ended
}

// New returns a server that carries calls by frames and hands those of the plain
// API to inside, which must have all its services. Run must be called.
func New(config Config, path DataPath, engine h2.Config, deps Deps, inside *grpc.Server) (*Server, error) {
	s := &Server{deps: deps, h2: engine, local: driver.NewLocal(), inside: methodsOf(inside),
		texts: texts{most: cmp.Or(deps.Texts, maxTexts)}}
	s.databases, s.keeps, s.done = servedBy(config, deps), sessionsKept, make(chan struct{})
	s.own, s.strict = config.Auth == AuthOwn, deps.Shown && config.Auth == AuthCaller
	s.always = config.Mode == ModeSession
	s.deps.Inside = deps.Inside.bounded()
	if deps.Lane == nil {
		s.deps.Lane = lane.New(1)
	}
	s.h2.Names = headerNames
	if s.strict {
		s.h2.Names = headerNamesVirtual
	}
	if s.log = deps.Log; s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.deps.Apps == nil {
		var err error
		if s.deps.Apps, err = apps.New(apps.Default(), nil); err != nil {
			return nil, err
		}
	}
	if config.Virtual() {
		s.h2.Names, s.implicit = headerNamesVirtual, config.Implicit == ImplicitPool
		s.sessions = virtual.New(virtual.Config{Sessions: config.Sessions, ServerSessions: config.ServerSessions})
		s.h2.HoldTimeout = longestWait
	}
	if err := s.h2.Validate(); err != nil {
		return nil, fmt.Errorf("data_path: %w", err)
	}
	var err error
	if s.apps, err = config.appModes(); err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	s.kept = config.Mode == ModeSession || slices.Contains(slices.Collect(maps.Values(s.apps)), ModeSession)
	s.instruments = newInstruments(deps.Histogram, deps.Statements)
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.unpackers.in(s.ctx, s.deps.Lane)
	if s.sessions != nil {
		s.identities = s.newIdentities(s.ctx, config)
	}
	(&endpoints{advertise: config.Advertise, secure: deps.TLS != nil, listen: deps.Listen, apps: s.deps.Apps,
		databases: s.databases}).register(
		inside,
	)
	for i := range path.Shards {
		f := newFrames(s, i)
		f.shard.Age(path.MaxAge, f.leave)
		s.shards = append(s.shards, f)
	}
	return s, nil
}

// Tight has less taken in ahead of slow readers while memory is short.
func (s *Server) Tight(on bool) {
	for _, shard := range s.all() {
		shard.Do(func(e *h2.Forwarder) { e.Tight(on) })
	}
}

// all are the shards, that of the sidecar's own calls last.
func (s *Server) all() []*driver.Shard {
	all := make([]*driver.Shard, 0, len(s.shards)+1)
	for _, f := range s.shards {
		all = append(all, f.shard)
	}
	if s.deps.Own != nil {
		all = append(all, s.deps.Own)
	}
	return all
}

// Local is where the server in this process listens.
func (s *Server) Local() net.Listener { return s.local }

// isLocal tells whether a call is for the server in this process.
func (s *Server) isLocal(m *protocol.Method, path []byte) bool {
	if m != nil {
		return m == listEndpointsMethod
	}
	service := serviceOf(path)
	return len(service) == 0 || s.inside.services[string(service)] // not a path of gRPC: that server knows what to say
}

// serviceOf returns the service in "/service/method"; none: it is not that.
func serviceOf[T string | []byte](path T) (service T) {
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			return path[1:i]
		}
	}
	return
}

var listEndpointsMethod = protocol.Named("/Ydb.Discovery.V1.DiscoveryService/ListEndpoints")

// SetView tells the nodes.
func (s *Server) SetView(v cluster.View) {
	if s.identities != nil {
		s.identities.SetView(v)
	}
	for _, f := range s.shards {
		f.shard.Do(func(*h2.Forwarder) { f.setView(v) })
	}
}

// Run keeps the time of the shards until ctx or Stop ends them, and waits for all
// their connections.
func (s *Server) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.stop)()
	for _, f := range s.shards {
		s.wg.Go(func() { _ = f.shard.Run(s.ctx) }) // it returns nil
		s.wg.Go(func() { panics.Keep(s.ctx, "the mail of a shard", func() { f.deliver(s.ctx) }) })
	}
	if s.sessions != nil {
		s.wg.Go(func() {
			panics.Keep(s.ctx, "the care of virtual sessions", func() { s.sessions.Run(s.ctx, s.identities) })
		})
	}
	s.wg.Wait()
	s.plainCalls.Wait()
	s.unary.Close()
	s.unpackers.runs.Wait()
	if s.sessions != nil {
		s.sessions.Close()
		for _, f := range s.shards {
			f.shut() // what was granted to calls that are over, or is just now
		}
		s.identities.Wait()
	}
	close(s.done)
	return s.local.Close()
}

// Serve accepts clients until the listener fails, which is no error once it is closed or
// the server has stopped. The listener itself tries again what may succeed later.
func (s *Server) Serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
		case s.ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return nil
		default:
			return err
		}
		secure := s.deps.TLS
		if conn.RemoteAddr().Network() == "unix" { // it does not leave the machine
			secure = nil
		}
		s.deal().Accept(conn, secure)
	}
}

// deal is the shard of the next connection: one with the fewest clients, in turn among equals. So the shards are
// even again after clients have left some of them.
func (s *Server) deal() *driver.Shard {
	n := int(s.next.Add(1))
	best := s.shards[n%len(s.shards)].shard
	for i := 1; i < len(s.shards); i++ {
		if shard := s.shards[(n+i)%len(s.shards)].shard; shard.Clients() < best.Clients() {
			best = shard
		}
	}
	return best
}

// GracefulStop tells the clients of all shards to go and returns when their last call has ended (see
// Release), or when Stop is called. A client whose virtual session has a transaction open, or a call
// under way, is told after that has ended. Of connections that are parked it waits for requests under
// way; whoever parks them sees to it that no more begin.
func (s *Server) GracefulStop() {
	if s.sessions != nil {
		s.sessions.Ask()
	}
	var drains sync.WaitGroup
	for _, f := range s.shards {
		var kept func() map[*h2.Conn]bool
		if s.sessions != nil {
			kept = f.kept
		}
		drains.Go(func() { _ = f.shard.Drain(s.ctx, kept) }) // it fails when Stop was called
	}
	drains.Wait()
	s.keepSessions()
	awake.Until(s.ctx, func() bool { return s.Answering() == 0 })
	s.Stop()
}

// Release lets a drain end while clients keep sessions attached, which is a call
// that lasts as long as they do: such sessions end with the connection. With keep, which is for
// clients whose calls come over other connections too, the nodes end them only sessionsKept after
// the last client has learned it: nothing that runs in a session then is cancelled.
func (s *Server) Release(keep bool) {
	for _, f := range s.shards {
		f.shard.Do(func(e *h2.Forwarder) { e.Release(keep) })
	}
}

// sessionsKept is how long calls have to end that run in a session whose client has just
// learned that it is over: more than most take, and within what a stop may last after drain.grace.
const sessionsKept = 1500 * time.Millisecond

// keepSessions waits until the nodes may end the sessions that Release kept.
func (s *Server) keepSessions() {
	kept := 0
	for _, f := range s.shards {
		kept += f.shard.Stats().Kept
	}
	if kept == 0 {
		return
	}
	const slices = 15 // while the machine stands still, the calls do, too
	for range slices {
		select {
		case <-time.After(s.keeps / slices):
		case <-s.ctx.Done():
			return
		}
	}
}

// EndUnused rolls back every transaction of a virtual session for which nothing is sent for that time from now on, and ends
// the session.
func (s *Server) EndUnused(after time.Duration) {
	if s.sessions != nil {
		s.sessions.EndUnused(after)
	}
}

// Quiet has the pools of callers do only what somebody waits for, or all again.
func (s *Server) Quiet(on bool) {
	if s.identities != nil {
		s.identities.Quiet(on)
	}
}

// ClosePools deletes the sessions of the callers' pools, once the server has ended. The
// error says what could not be deleted within ctx.
func (s *Server) ClosePools(ctx context.Context) error {
	if s.identities == nil {
		return nil
	}
	return s.identities.Close(ctx)
}

// Stop ends every call and connection.
func (s *Server) Stop() {
	s.stop()
	<-s.done
}

// Starved returns how many calls were told so far that sessions of mode session keep all sessions of their pool.
func (s *Server) Starved() uint64 {
	if s.sessions == nil {
		return 0
	}
	return s.sessions.Starved.Load()
}

// SessionUses lists the virtual sessions that keep a server session between their calls.
func (s *Server) SessionUses() []virtual.SessionUse {
	if s.sessions == nil {
		return nil
	}
	return s.sessions.SessionUses()
}
