package driver

import (
	"context"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// EachClient calls f in one turn with each open connection of a client and its address, and last, unless it is nil, behind all
// of them. False: the shard gave no turn before ctx ended.
func (s *Shard) EachClient(ctx context.Context, f func(c *h2.Conn, remote string), last func(*h2.Forwarder)) bool {
	if !s.tryLock(ctx) {
		return false
	}
	var t turn
	s.turn(func() {
		for l := range s.links {
			if l.client && l.conn != nil && l.conn.IsOpen() {
				f(l.conn, l.nc.RemoteAddr().String())
			}
		}
		if last != nil {
			last(s.f)
		}
	})
	s.flush(&t)
	s.mu.Unlock()
	return true
}
