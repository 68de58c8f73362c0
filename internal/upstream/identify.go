package upstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Identify asks the node at an address for its id, for sources of nodes that do not
// know it. No call of YDB is there for that: it creates a session, without saying that
// the cluster may place it elsewhere, reads the node out of the answer, and deletes the
// session, all on a connection of its own. It takes Config.DiscoveryTimeout at most.
func (d *Driver) Identify(ctx context.Context, address, tlsName string) (cluster.NodeID, error) {
	id, err := d.identify(ctx, cluster.Node{Address: address, TLSName: tlsName})
	if err != nil {
		return 0, fmt.Errorf("ask %s for its node id: %w", address, err)
	}
	return id, nil
}

func (d *Driver) identify(ctx context.Context, n cluster.Node) (cluster.NodeID, error) {
	ctx, cancel := context.WithTimeout(ctx, d.config.DiscoveryTimeout)
	defer cancel()
	k, err := d.tickets.get(ctx)
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return 0, ErrClosed
	}
	c, err := d.connectLocked(n)
	d.mu.Unlock()
	if err != nil {
		return 0, err
	}
	defer c.drop()
	r, err := d.askSession(ctx, d.tickets, c, k.call)
	if err != nil {
		return 0, err
	}
	if r.err != nil {
		_, e := failure(ctx, r.err, true)
		e.Op = "CreateSession"
		d.rejected(e)
		return 0, e
	}
	c.hold() // for orphan
	d.orphan(newSession(d, d.tickets, c, r.id))
	if r.at == 0 {
		return 0, errors.New("neither the answer to CreateSession nor the session's id names a node")
	}
	return r.at, nil
}
