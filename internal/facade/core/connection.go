package core

import (
	"context"
	"crypto/tls"
	"hash/maphash"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/ydb-sidecar/sidecar/internal/apps"
)

// connectionKey is where WithConnection puts the number.
type connectionKey struct{}

// Connection is one of the HTTP API.
type Connection struct {
	Number   uint64                // no other one of this process has it
	Remote   net.Addr              // of the client; nil: it is not known
	Pause    func(until time.Time) // has nothing read of it until then; it is for HTTP/2. nil: it cannot be paused
	UnderWay func(delta int)       // is called with 1 when a call has come whole, and with -1 at its end; may be nil
}

// KnownConnection is a Connection with what is known of it here.
type KnownConnection struct {
	Connection
	refusals Pace // calls for which there was no memory

	looked      sync.Once // certificate is found
	certificate *apps.Certificate
}

// WithConnection returns the context of a connection.
func WithConnection(ctx context.Context, c Connection) context.Context {
	return context.WithValue(ctx, connectionKey{}, &KnownConnection{Connection: c, refusals: Pace{Rate: refusalRate, Burst: refusalRate}})
}

// CertificateOf is what the client has shown by the TLS of the connection, verified; nil: nothing. It is read once for
// each connection that is known.
func (c *KnownConnection) CertificateOf(state *tls.ConnectionState) *apps.Certificate {
	if c == nil {
		return apps.CertificateOf(state.VerifiedChains)
	}
	c.looked.Do(func() { c.certificate = apps.CertificateOf(state.VerifiedChains) })
	return c.certificate
}

// ConnectionIn returns the connection of a request of HTTP; nil: it is not known.
func ConnectionIn(ctx context.Context) *KnownConnection {
	c, _ := ctx.Value(connectionKey{}).(*KnownConnection)
	return c
}

// ConnectionOf is a number for the connection that a call came over; 0: unknown. get reads metadata of gRPC.
func ConnectionOf(ctx context.Context, get func(string) string) uint64 {
	if c := ConnectionIn(ctx); c != nil {
		return c.Number
	}
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ Connection() uint64 }); ok {
		return s.Connection()
	}
	p, ok := peer.FromContext(ctx)
	switch {
	case !ok || p.Addr == nil:
		return 0
	case p.Addr.Network() == inProcess: // what a client says in this header does not come here
		return apps.ParseOrigin(get(apps.HeaderOrigin)).Connection
	}
	return maphash.String(printSeed, p.Addr.String())
}

const (
	// refusalRate is how many calls of one connection of HTTP/2 are refused a second for want of
	// memory until it pauses. With 75 us of CPU for one (40 connections that open calls as fast as
	// they may, 2 cores) those of 40 connections take 0.15 of a core.
	refusalRate = 50
	mostPause   = 2 * time.Second // at a time
)

// PauseAfter has the connection of a call that was refused for want of memory pause until such calls of its own are no more than
// refusalRate: who is refused and calls again at once, on a hundred streams, would take the processors of all.
func (c *KnownConnection) PauseAfter() {
	if c == nil || c.Pause == nil {
		return
	}
	wait, ok := c.refusals.Take(1, mostPause)
	if !ok {
		wait = mostPause
	}
	if wait > 0 {
		c.Pause(time.Now().Add(wait))
	}
}
