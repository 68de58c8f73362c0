package app

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/listen"
)

// peerOf numbers a connection, and notes the user of a program that has come over a Unix socket.
func peerOf(ctx context.Context, conn net.Conn) context.Context {
	connection := facade.Connection{Number: h2.NextNumber(), Remote: conn.RemoteAddr()}
	if g, ok := listen.Below(conn).(*listen.Conn); ok {
		connection.Pause, connection.UnderWay = g.PauseUntil, g.UnderWay
	}
	ctx = facade.WithConnection(ctx, connection)
	if local, ok := conn.RemoteAddr().(*listen.UserAddr); ok {
		if uid, known := local.User(); known {
			return facade.WithUser(ctx, uid)
		}
	}
	return ctx
}

// overTCP are credentials for clients that come over TCP. What comes over a Unix socket does not leave the machine.
type overTCP struct {
	credentials.TransportCredentials
}

func (c overTCP) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if _, local := conn.RemoteAddr().(*listen.UserAddr); local {
		return conn, nil, nil
	}
	return c.TransportCredentials.ServerHandshake(conn)
}

func (c overTCP) Clone() credentials.TransportCredentials {
	return overTCP{c.TransportCredentials.Clone()}
}

// parkAfter is for how long a connection of HTTP/1.1 has had no request until its server, which has a goroutine and
// buffers for it, some 20 KB, lets go of it: it is parked. A connection with TLS is not: its state is in its server. A
// variable for tests.
var parkAfter = 5 * time.Second

func (a *App) newParking(first time.Duration) *listen.Parking {
	return &listen.Parking{
		After: parkAfter, First: first, Back: listen.NewChannel(), Context: peerOf, Serves: func() bool { return a.phase.get() < draining },
		Park: func(conn net.Conn, until time.Time, c *listen.Conn) listen.Parked {
			// A nil *wire.Parked would be a parked that is not nil.
			if p := a.wire.Park(conn, until, c); p != nil {
				return p
			}
			return nil
		},
	}
}
