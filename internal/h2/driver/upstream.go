package driver

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// Upstream is the connection to one node, made when it is needed.
type Upstream struct {
	shard   *Shard
	dial    func(context.Context) (net.Conn, error)
	config  *tls.Config
	conn    *h2.Conn
	fails   int
	failure error
	retryAt time.Duration
}

// Upstream returns the connection to a node that dial reaches; config is nil for
// plaintext, else it asks for h2 by ALPN.
func (s *Shard) Upstream(dial func(context.Context) (net.Conn, error), config *tls.Config) *Upstream {
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"h2"}
	}
	return &Upstream{shard: s, dial: dial, config: config}
}

// unavailable is gRPC's code for calls that were surely not executed, among others.
const unavailable = 14

// Backoff between attempts to connect: doubled from the first to the last, halved at random.
const (
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 5 * time.Second
)

// Conn returns the node's connection for a Router, within one of its methods. It may
// still be being made: calls wait for it. A *h2.Status says why there is none just now.
func (u *Upstream) Conn() (*h2.Conn, error) {
	if u.conn != nil && u.conn.Usable() {
		return u.conn, nil
	}
	now := u.shard.f.Now()
	if now < u.retryAt {
		return nil, &h2.Status{Code: unavailable, Message: "the sidecar cannot connect to the node: " + u.failure.Error()}
	}
	u.conn = u.shard.dial(u.dial, u.config, func(err error) {
		if u.failure = err; err == nil {
			u.fails, u.retryAt = 0, 0
			return
		}
		d := min(firstBackoff<<min(u.fails, 16), lastBackoff)
		u.fails++
		u.retryAt = u.shard.f.Now() + d/2 + rand.N(d/2)
	})
	return u.conn, nil
}

// Close ends the connection once its calls have ended, within a router's method or Do.
func (u *Upstream) Close() {
	if u.conn != nil {
		u.conn.Drain()
	}
	u.retryAt, u.failure = 1<<62, net.ErrClosed
}
