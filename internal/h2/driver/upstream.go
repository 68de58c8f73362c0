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
	Timeout time.Duration // of one attempt to connect, TLS included; 0: 5 s
	Silent  func()        // see h2.Conn.Silent; nil: a connection that is silent ends
	Tag     any           // of its connections, until the router sets another

	shard   *Shard
	dial    func(context.Context) (net.Conn, error)
	config  *tls.Config
	conn    *h2.Conn
	dialed  time.Duration // conn was begun
	fails   int           // attempts since one of its connections was of use
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
	now := u.shard.f.Now()
	if u.retryAt == never {
		return nil, u.unable()
	}
	if conn := u.conn; conn != nil {
		if conn.Usable() {
			return conn, nil
		}
		// Whatever the node does, it is not dialed in a row without a pause.
		u.conn = nil
		err := conn.Err()
		if err == nil {
			err = h2.ErrClosed
		}
		if conn.Ready() {
			u.fails, u.failure, u.retryAt = 0, err, u.dialed+firstBackoff
		} else {
			u.failed(err, u.dialed)
		}
	}
	if now < u.retryAt {
		return nil, u.unable()
	}
	u.dialed = now
	var conn *h2.Conn
	conn = u.shard.dial(u.dial, u.config, u.Timeout, func(err error) {
		if u.conn == conn { // else it is not wanted any more
			u.conn = nil
			u.failed(err, u.shard.f.Now())
		}
	})
	conn.Silent, conn.Tag = u.Silent, u.Tag
	u.conn = conn
	return conn, nil
}

// unable says why there is no connection.
func (u *Upstream) unable() error {
	return &h2.Status{Code: unavailable, Message: "the sidecar cannot connect to the node: " + u.failure.Error()}
}

// Hurry has the next attempt to connect made at once, within a router's method or Do.
func (u *Upstream) Hurry() {
	if u.retryAt < never {
		u.retryAt = 0
	}
}

// Ask has the node show that it is there: see h2.Conn.Ask. Within Do.
func (u *Upstream) Ask() {
	if u.conn != nil {
		u.conn.Ask()
	}
}

// Shelve is for a connection whose node is silent: it takes no more calls, and is left alone until Cut. Within Do.
func (u *Upstream) Shelve() {
	if u.conn != nil {
		u.conn.Shelve()
	}
	u.retryAt, u.failure = never, h2.ErrSilent
}

// Cut ends the connection at once, and what is left on it. Within Do.
func (u *Upstream) Cut() {
	u.retryAt, u.failure = never, net.ErrClosed
	conn := u.conn
	if conn == nil {
		return
	}
	u.conn = nil
	conn.Drain() // with a word to the node, if nothing is left on it
	if conn.Finished() {
		return
	}
	conn.Close()
	if l := conn.Link.(*link); l.nc != nil { // else the one who dials it sees
		now := time.Now()
		l.cut(now)
		u.shard.poller.look(now)
	}
}

// never is a moment that does not come.
const never = 1 << 62

// failed puts the next attempt off, counted from a moment.
func (u *Upstream) failed(err error, from time.Duration) {
	d := min(firstBackoff<<min(u.fails, 16), lastBackoff)
	u.fails++
	u.failure, u.retryAt = err, from+d/2+rand.N(d/2)
}

// Close ends the connection once its calls have ended, within a router's method or Do.
func (u *Upstream) Close() {
	if u.conn != nil {
		u.conn.Drain()
		u.conn = nil
	}
	u.retryAt, u.failure = never, net.ErrClosed
}
