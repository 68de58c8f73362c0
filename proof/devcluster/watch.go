package devcluster

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// watches keep a connection to each peer of a node that was started by hand:
// the peers that can be reached are the ones in discovery.
type watches struct {
	cancel context.CancelFunc
	all    sync.WaitGroup
}

func (c *Cluster) watch(others []Peer) {
	ctx, cancel := context.WithCancel(context.Background())
	c.watches.cancel = cancel
	for _, p := range others {
		c.watches.all.Go(func() { c.watchPeer(ctx, p) })
	}
}

func (w *watches) stop() {
	if w.cancel != nil {
		w.cancel()
	}
	w.all.Wait()
}

func (c *Cluster) watchPeer(ctx context.Context, p Peer) {
	conn, err := grpc.NewClient("passthrough:///"+p.Address, newPeers(c.config).options...)
	if err != nil {
		c.log.Error("cannot watch a peer", "node", p.ID, "address", p.Address, "err", err)
		return
	}
	defer conn.Close()
	for {
		state := conn.GetState()
		if state == connectivity.Idle {
			conn.Connect()
		}
		c.setReachable(p.ID, state == connectivity.Ready)
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// setReachable publishes whether a peer answers.
func (c *Cluster) setReachable(id uint32, up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.remote, func(m member) bool { return m.ID == id })
	if c.remote[i].Alive == up {
		return
	}
	remote := slices.Clone(c.remote)
	remote[i].Alive, remote[i].Listed = up, up
	c.remote = remote
	c.publishLocked()
	c.log.Info("peer changed", "node", id, "reachable", up)
}
