package restart

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/takeover"
)

// The names of the channels over which connections go from process to process.
const (
	channelGRPC       = "grpc" // clients
	channelHTTP       = "http"
	channelGRPCSocket = "grpc socket" // clients over Unix sockets, if this process has them
	channelHTTPSocket = "http socket"
	channelPeerGRPC   = "peer grpc" // calls for transactions of the receiver
	channelPeerHTTP   = "peer http"
)

// pair joins this process with the one that it replaces, or that replaces it,
// as long as both live.
type pair struct {
	deps     *Deps
	link     *takeover.Link
	channels map[string]*listen.Channel // by name

	grpc *grpc.Server // for calls of the other process
	http *http.Server

	toGRPC *grpc.ClientConn // for calls to it
	toHTTP *http.Transport
}

// newPair makes calls for transactions of other go there, and lets its own come
// in. The caller must run the pair.
func newPair(deps *Deps, link *takeover.Link, other takeover.Process) (*pair, error) {
	p := &pair{deps: deps, link: link, channels: make(map[string]*listen.Channel)}
	for _, name := range []string{channelGRPC, channelHTTP, channelPeerGRPC, channelPeerHTTP} {
		p.channels[name] = listen.NewChannel()
	}
	if deps.Servers.On.GRPCSocket != nil {
		p.channels[channelGRPCSocket] = listen.NewChannel()
	}
	if deps.Servers.On.HTTPSocket != nil {
		p.channels[channelHTTPSocket] = listen.NewChannel()
	}
	var err error
	p.toGRPC, err = grpc.NewClient("passthrough:///peer",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return link.Connect(channelPeerGRPC) }),
		grpc.WithIdleTimeout(0), grpc.WithDisableServiceConfig(),
		grpc.WithInitialWindowSize(deps.Window), grpc.WithInitialConnWindowSize(deps.ConnWindow),
		// What is too much, the process that gives the answer says.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	)
	if err != nil {
		return nil, fmt.Errorf("reach process %d: %w", other.PID, err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	p.toHTTP = &http.Transport{
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return link.Connect(channelPeerHTTP) },
		Protocols:          &protocols,
		DisableCompression: true, // answers pass as they are
	}
	most := 2 * deps.MaxOpen // the API itself refuses earlier
	p.grpc = grpc.NewServer(append([]grpc.ServerOption{
		grpc.InitialWindowSize(deps.Window), grpc.InitialConnWindowSize(deps.ConnWindow), grpc.MaxConcurrentStreams(uint32(most)),
	}, deps.API.OtherOptions()...)...)
	deps.API.Register(p.grpc)
	p.http = &http.Server{
		Handler: deps.API.OtherHandler(), Protocols: &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: most},
		ReadHeaderTimeout: deps.HeaderTimeout,
		MaxHeaderBytes:    2 * deps.MaxHeaders,
		ErrorLog:          slog.NewLogLogger(deps.Log.Handler(), slog.LevelWarn),
	}
	deps.API.SetOther(&facade.OtherProcess{Instance: other.Instance, GRPC: p.toGRPC, HTTP: p.toHTTP})
	return p, nil
}

// finish returns when the other process has the answers to all that it called here,
// or ctx ends: a handler is over before its answer is on its way.
func (p *pair) finish(ctx context.Context) {
	cut := context.AfterFunc(ctx, p.grpc.Stop)
	defer cut()
	var taken sync.WaitGroup
	taken.Go(func() {
		defer panics.Go("the end of the other process's connection")
		p.grpc.GracefulStop()
	})
	_ = p.http.Shutdown(ctx) // what is left when ctx ends is cut by run
	taken.Wait()
}

// part takes back what newPair did.
func (p *pair) part() {
	p.deps.API.SetOther(nil)
	_ = p.toGRPC.Close()
	p.toHTTP.CloseIdleConnections()
}

// run serves what comes from the other process until that ends or the link is
// closed. It returns what Link.Receive does.
func (p *pair) run() error {
	s := &p.deps.Servers
	on := s.On
	idle := p.deps.IdleTimeout
	for _, way := range []struct {
		name  string
		serve func(net.Listener) error
		to    *listen.Listener // the listener that connections of clients belong to from now on; nil: they are the other process's own
		first time.Duration    // the time that the next request may take
	}{
		{channelGRPC, s.ServeGRPC, on.GRPC, 0},
		{channelGRPCSocket, s.ServeGRPC, on.GRPCSocket, 0},
		// Between two requests a client may wait for the idle timeout; for the server that it has
		// come to, the next one is the first.
		{channelHTTP, func(l net.Listener) error { return listen.ServeHTTP(s.HTTP, l, s.HTTPTLS) }, on.HTTP, idle},
		{channelHTTPSocket, func(l net.Listener) error { return listen.ServeHTTP(s.HTTP, l, false) }, on.HTTPSocket, idle},
		{channelPeerGRPC, p.grpc.Serve, nil, 0},
		{channelPeerHTTP, p.http.Serve, nil, 0},
	} {
		h := p.channels[way.name]
		if h == nil {
			continue
		}
		if way.to != nil {
			h.Greet = func(c net.Conn) net.Conn { return way.to.Conns.Welcome(c, way.first) }
		}
		// Each ends when its channel or server is closed.
		h.Serving.Go(func() {
			_ = panics.Call("connections of the other process", func() error { return way.serve(h) })
		})
	}
	err := panics.Call("the link to another process", func() error {
		return p.link.Receive(func(name string, conn net.Conn) {
			if h := p.channels[name]; h == nil || !h.Pass(conn) {
				_ = conn.Close()
			}
		})
	})
	if err != nil && !errors.Is(err, net.ErrClosed) && !Refused(err) {
		p.deps.Log.Warn("the other process is not understood", "err", err)
	}
	p.part()
	for _, h := range p.channels {
		_ = h.Close()
	}
	// What they still serve nobody can answer any more.
	p.grpc.Stop()
	_ = p.http.Close()
	for _, h := range p.channels {
		h.Serving.Wait()
	}
	return err
}
