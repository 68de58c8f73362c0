package upstream

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

const (
	// maxMessage is the most bytes of one message that YDB's servers accept and send.
	maxMessage = 64_000_000

	// streamWindow and connWindow are the most that a node may send ahead of a
	// reader, for one call and for all calls of a connection. Fixed windows save
	// the pings that estimate them.
	streamWindow = 1 << 20
	connWindow   = 16 << 20

	// reconnectMax is the longest pause between attempts to connect to a node.
	reconnectMax = 3 * time.Second
)

// nodeConn is the connection to one node. Everything that uses it holds a
// reference; the driver's own goes when the node leaves the view, and the last
// one closes the connection. So what is open on a node that left may finish.
type nodeConn struct {
	node    cluster.Node
	wire    *wire
	cc      line
	query   Ydb_Query_V1.QueryServiceClient
	watched bool         // watchSilence looks after it
	refs    atomic.Int64 // > 0 while open

	closed func() // tells the driver, once

	asked asked

	several atomic.Bool // a session that was made on it names another node: several share the address
}

// asked is what a node did of late to sessions without giving a reason.
type asked struct {
	mu   sync.Mutex
	last time.Time // when it asked for one to be closed; zero: never
}

// several is how close together a node asks for sessions to be closed when it shuts down. One
// alone says little: the cluster evens out its sessions, and a full node lets idle ones go.
const several = time.Second

// again notes that the node asks for a session to be closed, and tells whether it asked for
// another one just before.
func (a *asked) again(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.last
	if now.After(before) {
		a.last = now
	}
	return !before.IsZero() && now.Sub(before).Abs() <= several
}

func newNodeConn(node cluster.Node) *nodeConn {
	c := &nodeConn{node: node, wire: newWire()}
	c.refs.Store(1)
	return c
}

// use gives the connection its client.
func (c *nodeConn) use(l line) {
	c.cc, c.query = l, Ydb_Query_V1.NewQueryServiceClient(l)
	_, c.watched = l.(grpcLine)
}

// hold takes a reference; false if the connection is closed already.
func (c *nodeConn) hold() bool {
	for {
		n := c.refs.Load()
		if n == 0 {
			return false
		}
		if c.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop gives a reference back. The caller must not hold Driver.mu.
func (c *nodeConn) drop() {
	if c.refs.Add(-1) == 0 {
		c.close()
		c.closed()
	}
}

// close ends everything on the connection; it may be called again.
func (c *nodeConn) close() {
	c.wire.hangUp()
	c.cc.close()
	c.wire.close()
}

// line is a client's connection to one node, dialled when it is first used and again when it is lost: that of package
// h2/client, or grpc-go's.
type line interface {
	grpc.ClientConnInterface
	// hurry has the next attempt to connect made at once.
	hurry()
	// ask has a connection checked on which a call got no answer.
	ask()
	// shelve leaves a connection alone that was given up: it takes no more calls.
	shelve()
	// close ends it, and what is left on it.
	close()
}

// dialer opens the TCP (or in-memory) connection to an address.
type dialer func(ctx context.Context, address string) (net.Conn, error)

// network dials when a test does not.
var network = net.Dialer{KeepAlive: -1} // HTTP/2 has pings of its own

func dialNetwork(ctx context.Context, address string) (net.Conn, error) {
	return dialAny(ctx, address, net.DefaultResolver.LookupHost, func(ctx context.Context, address string) (net.Conn, error) {
		return network.DialContext(ctx, "tcp", address)
	})
}

// tlsFor is what a connection to an address is secured with; nil without TLS.
func (d *Driver) tlsFor(address, tlsName string) *tls.Config {
	if !d.endpoint.secure {
		return nil
	}
	if d.config.ServerName != "" {
		tlsName = d.config.ServerName
	}
	if tlsName == "" {
		tlsName, _, _ = net.SplitHostPort(address)
	}
	return d.certs.Client(tlsName)
}
