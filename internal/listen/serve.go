package listen

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

const (
	adminLimit  = 10 * time.Second // for the headers of an admin request, and for a body
	adminBody   = 64 << 10         // bytes of it
	adminIdle   = 30 * time.Second
	lastAnswers = 500 * time.Millisecond // for admin requests that are under way at the very end
	HTTPStreams = 100                    // open on one connection of HTTP/2: the least that RFC 9113 (6.5.2) recommends
)

// AdminServer returns the server for the connections of one door.
func AdminServer(handler http.Handler, d *Door) *http.Server {
	return &http.Server{
		Handler:           panics.Handler(d.idle.withoutBodies(handler)),
		ReadHeaderTimeout: adminLimit, IdleTimeout: adminIdle, MaxHeaderBytes: 64 << 10,
		ConnState: func(conn net.Conn, state http.ConnState) {
			heads(conn, state)
			d.idle.track(conn, state)
		}, ConnContext: withConn, ErrorLog: FaultLog(d.log),
	}
}

// ServeHTTP serves; overTLS by the server's configuration. That alone does not tell:
// net/http gives every server one, once it serves.
func ServeHTTP(server *http.Server, listener net.Listener, overTLS bool) error {
	if overTLS {
		return UnlessClosed(server.ServeTLS(secured{listener}, "", ""))
	}
	return UnlessClosed(server.Serve(listener))
}

// secured is a listener of connections that speak TLS, whose state is on both sides:
// they do not move to another process.
type secured struct{ net.Listener }

func (s secured) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if g, ok := conn.(*Conn); ok {
		g.fixed = true
	}
	return conn, err
}

// UnlessClosed drops the errors that mean that a server was closed.
func UnlessClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// ServeUntil serves until ctx ends, and then lets answers under way finish, for
// a moment.
func ServeUntil(ctx context.Context, server *http.Server, listener net.Listener, overTLS bool) error {
	served := make(chan error, 1)
	go func() {
		served <- panics.Call("an HTTP listener", func() error { return ServeHTTP(server, listener, overTLS) })
	}()
	select {
	case err := <-served:
		if err != nil {
			return err
		}
		served <- nil // another process accepts now
		<-ctx.Done()
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer cancel()
	var over *Conns
	if p, ok := listener.(*Listener); ok { // else there is no TLS
		over = p.Conns
	}
	_ = Shutdown(limited, server, over) // what it cuts off is a profile, or a caller that does not read
	return <-served
}

// Shutdown lets a server's answers end, and when ctx ends it cuts. over are those of its connections that may speak TLS.
func Shutdown(ctx context.Context, server *http.Server, over *Conns) error {
	over.Hush()
	err := server.Shutdown(ctx)
	if err != nil {
		over.cut()
		_ = server.Close()
	}
	return err
}
