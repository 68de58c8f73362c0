package wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/history"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

// Nodes reaches the nodes of the cluster; internal/upstream satisfies it.
type Nodes interface {
	// Dial connects to a node.
	Dial(ctx context.Context, node cluster.Node) (net.Conn, error)
	// TLS is what that connection is secured with; nil: not at all.
	TLS(node cluster.Node) *tls.Config
	// Stream begins a call to a node by grpc-go; end must be called when it is over.
	Stream(ctx context.Context, node cluster.NodeID, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (stream grpc.ClientStream, end func(), err error)
}

// Deps are the parts that a server works with. All must be given, but Apps.
type Deps struct {
	Router  Router
	Judge   Judge
	Nodes   Nodes
	Tracer  *tracing.Tracer   // nil: spans are not exported
	TLS     *tls.Config       // for clients; nil: plaintext
	Apps    *apps.Registry    // of the callers
	History *history.Recorder // of all calls; nil: none
	Access  *accesslog.Log    // nil: none
	Memory  *memguard.Guard   // nil: there is always enough
	Unary   map[string]Unary  // methods, by path, of the server in this process that are called without a way through it; nil: none

	Durations func(name, description string) *latency.Durations // makes histograms that are exported; nil: nobody sees them

	// For virtual sessions alone.
	Pool     Pool                   // of the sidecar's own sessions; for wire.auth = own
	Accounts Accounts               // for others
	Database string                 // that is served if the client names none
	Ticket   func() (string, error) // the sidecar's own credentials; "" if it has none; it does not wait
}

// Server is the gRPC port while frames are forwarded as they are: every call comes
// here, and those of the plain API go on to a server in this process.
type Server struct {
	deps        Deps
	h2          h2.Config
	instruments *instruments
	local       *driver.Local
	services    map[string]bool // of the server in this process
	virtual     *virtuals       // nil: sessions are the clients' own
	tenants     *tenants        // the same
	apps        map[string]string
	implicit    bool // ExecuteQuery without a session gets one of the pool
	shards      []*frames
	next        atomic.Uint32 // shard of the next connection
	crew        crew

	ctx  context.Context // ends when everything must
	stop context.CancelFunc
	wg   sync.WaitGroup
	done chan struct{} // closed when the last shard has ended
}

// New returns a server that carries calls by frames and hands those of the plain
// API to inside, which must have all its services. Run must be called.
func New(config Config, path DataPath, engine h2.Config, deps Deps, inside *grpc.Server) (*Server, error) {
	s := &Server{deps: deps, h2: engine, local: driver.NewLocal(), services: servicesOf(inside), done: make(chan struct{})}
	s.h2.Names = headerNames
	if s.deps.Apps == nil {
		var err error
		if s.deps.Apps, err = apps.New(apps.Default(), nil); err != nil {
			return nil, err
		}
	}
	if config.Virtual() {
		s.h2.Names, s.virtual, s.implicit = headerNamesVirtual, newVirtuals(config), config.Implicit == ImplicitPool
		s.h2.HoldTimeout = longestWait
	}
	if err := s.h2.Validate(); err != nil {
		return nil, fmt.Errorf("data_path: %w", err)
	}
	var err error
	if s.apps, err = config.appModes(); err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	s.instruments = newInstruments(&s.deps)
	s.ctx, s.stop = context.WithCancel(context.Background())
	if s.virtual != nil {
		s.tenants = newTenants(s.ctx, config, deps)
	}
	(&endpoints{advertise: config.Advertise, secure: deps.TLS != nil, databases: servedBy(config, deps)}).register(inside)
	for i := range path.Shards {
		s.shards = append(s.shards, newFrames(s, i))
	}
	return s, nil
}

// Tight has less taken in ahead of slow readers while memory is short.
func (s *Server) Tight(on bool) {
	for _, f := range s.shards {
		f.shard.Do(func(e *h2.Forwarder) { e.Tight(on) })
	}
}

// Local is where the server in this process listens.
func (s *Server) Local() net.Listener { return s.local }

// isLocal tells whether a call is for the server in this process.
func (s *Server) isLocal(m *Method, path []byte) bool {
	if m != nil {
		return m == listEndpointsMethod
	}
	service := serviceOf(path)
	return len(service) == 0 || s.services[string(service)] // not a path of gRPC: that server knows what to say
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

// servicesOf names the services of a server. Methods that they do not have are not
// looked for at a node.
func servicesOf(server *grpc.Server) map[string]bool {
	names := map[string]bool{}
	for name := range server.GetServiceInfo() {
		names[name] = true
	}
	return names
}

var listEndpointsMethod = methods[listEndpoints]

// SetView tells the nodes.
func (s *Server) SetView(v cluster.View) {
	if s.tenants != nil {
		s.tenants.setView(v)
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
		if s.virtual != nil {
			s.wg.Go(func() { f.deliver(s.ctx) })
		}
	}
	if s.virtual != nil {
		s.wg.Go(func() { s.virtual.run(s.ctx, s.tenants) })
	}
	s.wg.Wait()
	s.crew.end()
	if s.virtual != nil {
		s.virtual.close()
		for _, f := range s.shards {
			f.read() // what was granted to calls that are over
		}
		s.tenants.runs.Wait()
	}
	close(s.done)
	return s.local.Close()
}

// Serve accepts clients until the listener is closed.
func (s *Server) Serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return nil
			}
			return err
		}
		f := s.shards[s.next.Add(1)%uint32(len(s.shards))]
		f.shard.Accept(conn, s.deps.TLS)
	}
}

// GracefulStop tells the clients to go and returns when their last call has ended
// (see Release), or when Stop is called.
func (s *Server) GracefulStop() {
	if s.virtual != nil {
		s.virtual.ask()
	}
	for _, f := range s.shards {
		_ = f.shard.Drain(s.ctx, nil) // it fails when Stop was called
	}
	s.Stop()
}

// Release lets a drain end while clients keep sessions attached, which is a call
// that lasts as long as they do: such sessions end with the connection.
func (s *Server) Release() {
	for _, f := range s.shards {
		f.shard.Do(func(e *h2.Forwarder) { e.Release(false) })
	}
}

// Quiet has the pools of callers do only what somebody waits for, or all again.
func (s *Server) Quiet(on bool) {
	if s.tenants != nil {
		s.tenants.setQuiet(on)
	}
}

// ClosePools deletes the sessions of the callers' pools, once the server has ended. The
// error says what could not be deleted within ctx.
func (s *Server) ClosePools(ctx context.Context) error {
	if s.tenants == nil {
		return nil
	}
	return s.tenants.close(ctx)
}

// Stop ends every call and connection.
func (s *Server) Stop() {
	s.stop()
	<-s.done
}
