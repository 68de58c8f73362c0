package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// What calls need that are forwarded as they are.

// Ticket returns the driver's own credentials as calls carry them, "" if it has none. It
// does not wait: there is an error while it has none that work.
func (s *signIn) Ticket() (string, error) {
	if k := s.tickets.working(); k != nil {
		return k.value, nil
	}
	return "", errNoTicket
}

// Credentials tells how many calls nodes refused because of the driver's credentials,
// and why it has none, nil if it has or waits for the first.
func (s *signIn) Credentials() (refused uint64, missing error) {
	t := s.tickets
	if t.working() == nil {
		t.mu.Lock()
		if t.failure != nil {
			missing = t.failure
		}
		t.mu.Unlock()
	}
	return t.denials.Load(), missing
}

var errNoTicket = errors.New("upstream: there are no credentials now")

// Dial connects to a node, to the first of its addresses that accepts.
func (d *Driver) Dial(ctx context.Context, node cluster.Node) (net.Conn, error) {
	dial := d.deps.Dial
	if dial == nil {
		dial = dialNetwork
	}
	c, err := dial(ctx, node.Address)
	if err == nil && node.ID != 0 && d.reached != nil {
		d.reached(node.Address)
	}
	return c, err
}

// TLS is what a connection to a node must be secured with; nil: not at all.
func (d *Driver) TLS(node cluster.Node) *tls.Config { return d.tlsFor(node.Address, node.TLSName) }

// Invoke calls a node as it is told to: without the driver's credentials, and nobody is told what comes of it, which the
// signs say. A node that is not in the current view is codes.Unavailable.
func (d *Driver) Invoke(ctx context.Context, node cluster.NodeID, method string, in, out any) (s ydbstatus.Signs, err error) {
	c, err := d.conn(node)
	if err != nil {
		return ydbstatus.Signs{Code: codes.Unavailable, NotSent: true, Unrouted: true}, status.Error(codes.Unavailable, err.Error())
	}
	defer c.drop()
	if err = c.cc.Invoke(ctx, method, in, out); err != nil {
		s, _ = failure(ctx, err, false)
	}
	return s, err
}
