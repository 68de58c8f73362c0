package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/h2/unary"
	"github.com/ydb-sidecar/sidecar/internal/lifecycle"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/wire"
	"github.com/ydb-sidecar/sidecar/internal/xds"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

const (
	handshakeLimit = 10 * time.Second // for a client that connects and says nothing
	closeServers   = 5 * time.Second  // for clients to take the last answers and to hear GOAWAY
	writeLimit     = time.Minute      // for a client of HTTP/2 to take a byte of what is being written
	streamWorkers  = 64
	window         = 1 << 20  // HTTP/2 flow control: bytes in flight of one stream
	connWindow     = 4 << 20  // and of one connection
	windowInside   = 64 << 10 // of a stream that comes through the data path, where what waits is counted
)

// front accepts the connections of gRPC clients.
type front interface {
	Serve(net.Listener) error // until the listener is closed
	GracefulStop()            // says GOAWAY, and returns when the last call has ended
	Stop()                    // ends every call
}

// init has grpc-go keep buffers of all powers of two from 4 KiB on. By default it has none between 32 KiB and 1 MiB: a
// message of 100 KB took 1 MiB, and a fifth of the CPU of its call went to clearing that. It is for clients and servers
// that are made later.
func init() {
	pool, err := mem.NewBinaryTieredBufferPool(8, 12, 13, 14, 15, 16, 17, 18, 19, 20)
	if err != nil {
		panic(err) // of constants
	}
	experimental.SetDefaultBufferPool(pool)
}

// servers are the ways in.
type servers struct {
	grpc   *grpc.Server   // the plain API
	wire   *wire.Server   // in front of it; nil: nothing is
	front  front          // the one of these two that clients come to
	detach func(bool)     // lets front stop while clients keep sessions of YDB's attached; nil: YDB's own protocol is not served
	watch  *listen.Health // the Watch streams of its clients
	http   *http.Server
	admin  *http.Server
	probes *http.Server   // nil: off
	xds    *xds.Publisher // nil: off
	on     *listen.Set

	httpTLS, adminTLS bool // over TCP: what comes over a Unix socket does not leave the machine

	clients *listen.Clients // of http
	goodbye

	handedOver atomic.Bool // another process accepts
}

// goodbye is said to the connections of gRPC once.
type goodbye struct {
	goAway sync.Once
	away   chan struct{} // closed when every gRPC connection is over
}

func (a *App) newServers() *servers {
	s := &servers{
		grpc: a.grpc, wire: a.wire, front: a.grpc, watch: a.health, http: a.newHTTP(),
		on: &a.listeners, clients: listen.NewClients(), goodbye: goodbye{away: make(chan struct{})},
	}
	if a.wire != nil {
		s.front, s.detach = a.wire, a.wire.Release
	}
	s.http.ConnState = s.clients.Track
	s.admin = listen.AdminServer(a.admin.Handler(), a.listeners.Admin.Door)
	s.admin.TLSConfig = a.certs.admin.Server()
	s.httpTLS, s.adminTLS = a.certs.http != nil, a.certs.admin != nil
	if a.wire != nil {
		for _, l := range s.on.OfHTTP() {
			first := a.config.HTTP.HeaderTimeout
			if s.httpTLS && l == s.on.HTTP {
				first = 0
			}
			l.Conns.Parking = a.newParking(first)
			s.clients.Parked = append(s.clients.Parked, l.Conns.Parking)
		}
	}
	if a.listeners.Probes != nil {
		s.probes = listen.AdminServer(a.admin.Probes(), a.listeners.Probes.Door)
	}
	s.xds = a.xds
	return s
}

func (a *App) newGRPC(options []grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(append([]grpc.ServerOption{
		// Clients ping as often as every 10 s, most of them also without calls; a
		// stricter policy answers with GOAWAY and cuts what is open.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Finds clients that vanished without closing, whose calls would go on.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.ConnectionTimeout(handshakeLimit),
		// Calls run on goroutines whose stacks have grown already: copying stacks was a
		// tenth of the CPU of a small call. Beyond that many, calls start their own.
		grpc.NumStreamWorkers(streamWorkers),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(connWindow),
		// The API itself refuses what is above its own limit, with an error that names it. This keeps one connection from going far beyond.
		grpc.MaxConcurrentStreams(uint32(2 * a.config.Facade.API.MaxOpen)),
	}, a.api.ServerOptions()...), options...)...)
	a.api.Register(server)
	healthv1.RegisterHealthServer(server, a.health)
	for _, service := range []string{sidecarv1.Sidecar_ServiceDesc.ServiceName,
		sidecarv1.KeyValue_ServiceDesc.ServiceName, sidecarv1.Ingest_ServiceDesc.ServiceName} {
		a.health.SetServingStatus(service, healthv1.HealthCheckResponse_SERVING)
	}
	reflection.Register(server)
	return server
}

// unary are the methods that the gRPC port calls without a way through the server of newGRPC.
func (a *App) unary() map[string]unary.Method {
	all := map[string]unary.Method{}
	a.api.Unary(func(path string, run func(context.Context, func(any) error) (any, error)) { all[path] = run })
	a.api.Streaming(func(path string, run func(grpc.ServerStream) error) { all[path] = unary.Streaming(run) })
	return all
}

// denied answer calls of the plain API on the gRPC port that come with no token of an app, while any app has one.
func (a *App) denied() map[string]unary.Method {
	all := map[string]unary.Method{}
	a.api.Denied(func(path string, run func(context.Context, func(any) error) (any, error)) { all[path] = run })
	return all
}

// begin are the methods of unary whose calls may begin in the turn of the shard where they arrive.
func (a *App) begin() map[string]wire.Begin {
	if a.core.driver.Shard() == nil { // ydb.client=grpc: grpc-go carries the sidecar's own calls
		return nil
	}
	all := map[string]wire.Begin{}
	a.api.InlineCalls(func(path string, begin facade.Begin) {
		all[path] = func(ctx *callctx.Context, headers func(each func(name, value []byte)) bool, from *h2.Conn,
			request []byte, via wire.Via) unary.InlineCall {
			caller := facade.Caller{Headers: headers, Connection: from.Number(), Remote: driver.Remote(from)}
			caller.User, caller.Local = driver.User(from)
			caller.Certificate = driver.Certificate(from)
			// A nil *grpcapi.InlineCall would be a unary.InlineCall that is not nil.
			if t := begin(ctx, caller, request, via); t != nil {
				return t
			}
			return nil
		}
	})
	return all
}

// plain serves the ordinary requests of HTTP/1.1.
func (a *App) plain() wire.Plain {
	p := wire.Plain{Handler: a.api.Handler(), Idle: a.config.HTTP.IdleTimeout}
	if a.core.driver.Shard() != nil { // see begin
		p.Begin = func(ctx *callctx.Context, r *http.Request, body []byte, via wire.Via) wire.InlineRequest {
			// A nil *httpapi.InlineCall would be a wire.InlineRequest that is not nil.
			if t := a.api.BeginHTTP(ctx, r, body, via); t != nil {
				return t
			}
			return nil
		}
	}
	return p
}

func (a *App) newHTTP() *http.Server {
	most := 2 * a.config.Facade.API.MaxOpen // requests of one client; the API itself refuses earlier
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP2(true)
	server := &http.Server{
		Handler:           a.phase.letGo(a.api.Handler()),
		ConnContext:       peerOf,
		Protocols:         &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: min(listen.HTTPStreams, most), WriteByteTimeout: writeLimit},
		ReadHeaderTimeout: a.config.HTTP.HeaderTimeout,
		TLSConfig:         a.certs.http.Server(),
		MaxHeaderBytes:    2 * a.config.Facade.API.MaxHeaders,
		ErrorLog:          listen.FaultLog(a.log),
	}
	// An idle timeout that the server of HTTP/2 knows keeps each connection that ends with requests open, some 45 KB, for that time after
	// its end: their last one starts the timer again (Go 1.26, closeStream in net/http/h2_bundle.go). So it is not told, and connections
	// see to it. TestConnectionsOfHTTP2AreForgotten shows whether a later Go needs it.
	//lint:ignore SA1019 what is to be used in its place cannot have a timeout for HTTP/1.1 alone
	if err := http2.ConfigureServer(server, nil); err != nil {
		panic(err) // the suites of TLS are ours
	}
	server.IdleTimeout = a.config.HTTP.IdleTimeout
	return server
}

// addTo makes parts of the servers. Those of the API end when letGo ends them,
// those of admin with their context: they answer until everything else is over.
func (s *servers) addTo(group *lifecycle.Group) {
	part := func(name string, serve func(context.Context) error) {
		group.Part(name, func(ctx context.Context) error {
			if !s.on.Await(ctx) {
				return nil
			}
			return serve(ctx)
		})
	}
	part("grpc", func(context.Context) error { return listen.UnlessClosed(s.front.Serve(s.on.GRPC)) })
	if s.wire != nil {
		group.Part("data path", s.wire.Run)
		group.Part("grpc inside", func(context.Context) error { return listen.UnlessClosed(s.grpc.Serve(s.wire.Local())) })
	}
	part("http", func(context.Context) error { return listen.ServeHTTP(s.http, s.on.HTTP, s.httpTLS) })
	if s.on.GRPCSocket != nil {
		part("grpc socket", func(context.Context) error { return listen.UnlessClosed(s.front.Serve(s.on.GRPCSocket)) })
	}
	if s.on.HTTPSocket != nil {
		part("http socket", func(context.Context) error { return listen.ServeHTTP(s.http, s.on.HTTPSocket, false) })
	}
	for _, l := range s.on.OfHTTP() {
		if p := l.Conns.Parking; p != nil {
			part("http connections that were parked", func(context.Context) error { return listen.ServeHTTP(s.http, p.Back, false) })
		}
	}
	part("admin", func(ctx context.Context) error { return listen.ServeUntil(ctx, s.admin, s.on.Admin, s.adminTLS) })
	if s.probes != nil {
		part("probes", func(ctx context.Context) error { return listen.ServeUntil(ctx, s.probes, s.on.Probes, false) })
	}
	if s.xds != nil {
		group.Part("xds", s.xds.Run)
		part("xds server", func(ctx context.Context) error {
			defer context.AfterFunc(ctx, s.xds.Stop)()
			err := listen.UnlessClosed(s.xds.Serve(s.on.XDS))
			if err == nil {
				<-ctx.Done() // another process accepts now; who is connected here stays as long as this one
			}
			s.xds.Stop()
			return err
		})
	}
}

// drainGRPC says GOAWAY to every gRPC client and refuses no call; away is closed
// when the last answer is taken.
func (s *servers) drainGRPC() (away <-chan struct{}) {
	s.goAway.Do(func() {
		go func() {
			defer close(s.away)
			defer panics.Go("the end of gRPC connections")
			s.front.GracefulStop()
			s.grpc.Stop() // whatever its front brought is over
		}()
	})
	return s.away
}

// open reports whether a gRPC client has a call open: an idle one that hangs is cut
// without loss.
func (s *servers) open() bool {
	return s.wire == nil ||
		slices.ContainsFunc(s.wire.State().Connections, func(c wire.Connection) bool { return c.Peer == "client" && c.Streams > 0 })
}

// answering returns the number of requests of HTTP/1.1 under way that shards serve.
func (s *servers) answering() int {
	if s.wire == nil {
		return 0
	}
	return s.wire.Answering()
}

// openTx returns the number of transactions that virtual sessions have open.
func (s *servers) openTx() (n int) {
	if s.wire != nil {
		for _, h := range s.wire.SessionUses() {
			n += h.Transactions
		}
	}
	return n
}

// letGo closes the doors without hitting anybody: it waits until idle clients
// have rested a while, takes the connections that wait to be accepted, stops
// listening, closes those over which no request ever came, says GOAWAY, and waits
// until the last answers are taken. When ctx ends it cuts.
func (s *servers) letGo(ctx context.Context) error {
	if !s.handedOver.Load() {
		s.clients.Rest(ctx)
		s.on.Finish(ctx)
	}
	for _, l := range s.on.OfHTTP() {
		l.Conns.GreetParked(ctx, func(conn net.Conn) { s.clients.Track(conn, http.StateNew) })
	}
	s.clients.Answered(ctx)
	listen.Within(ctx, func() bool { return s.answering() == 0 })
	// They had at least the time that answered takes to say what they want.
	for _, l := range []*listen.Listener{s.on.GRPC, s.on.GRPCSocket} {
		if l != nil {
			l.Conns.Leave()
		}
	}
	s.clients.Leave()

	s.watch.Release()
	if s.detach != nil {
		s.detach(s.handedOver.Load())
	}
	for _, l := range s.on.OfHTTP() { // their clients have rested for long
		l.Conns.CloseParked()
	}
	away := s.drainGRPC()
	var errs []error
	if err := listen.Shutdown(ctx, s.http, s.on.HTTP.Conns); err != nil {
		errs = append(errs, fmt.Errorf("HTTP answers that clients did not take were cut off: %w", err))
	}
	select {
	case <-away:
	case <-ctx.Done():
		select {
		case <-away: // long before HTTP was
		default:
			open, openTx, answering := s.open(), s.openTx(), s.answering()
			s.front.Stop()
			<-away
			if answering > 0 {
				errs = append(errs, fmt.Errorf("%d HTTP answers that clients did not take were cut off: %w", answering, ctx.Err()))
			}
			if open {
				errs = append(errs, fmt.Errorf("gRPC answers that clients did not take were cut off: %w", ctx.Err()))
			}
			if openTx > 0 {
				errs = append(errs,
					fmt.Errorf("%d transactions of SDKs were cut off and rolled back: %w; raise drain.grace if they are long",
						openTx, ctx.Err()))
			}
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil // in a hurry nobody counts; lifecycle.ErrHurried says so
	}
	return errors.Join(errs...)
}
