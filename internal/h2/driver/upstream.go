package driver

import (
	"cmp"
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// Upstream is the connection to one node, made when it is needed. While the node allows no more streams on that,
// there are further ones.
type Upstream struct {
	Timeout time.Duration // of one attempt to connect, TLS included; 0: 5 s
	Silent  func()        // see h2.Conn.Silent; nil: a connection that is silent ends
	Tag     any           // of its connections, until the router sets another

	shard   *Shard
	dial    func(context.Context) (net.Conn, error)
	config  *tls.Config
	conn    *h2.Conn
	more    []*h2.Conn    // while conn is at its limit, and some time longer
	limited time.Duration // conn was at its limit last
	dialed  time.Duration // the last one was begun
	fails   int           // rounds of attempts since one of its connections was of use
	failure error
	retryAt time.Duration
	again   *time.Timer // looks for room for calls that wait; nil: none does
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
	if u.stands() {
		return u.room(now), nil
	}
	if conn := u.conn; conn != nil {
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
	u.conn = u.connect(now)
	if len(u.more) > 0 { // which are being made: their calls may go on here
		u.conn.Others = u.all
	}
	return u.room(now), nil
}

// stands reports whether there is a first connection of use. A further one takes its place if there is none, and goes
// before one that is being made.
func (u *Upstream) stands() bool {
	usable := u.conn != nil && u.conn.Usable()
	if usable && u.conn.Ready() {
		return true
	}
	i := slices.IndexFunc(u.more, func(c *h2.Conn) bool { return c.Usable() && c.Ready() })
	if i < 0 {
		return usable
	}
	first := u.more[i]
	if usable {
		u.more[i] = u.conn
	} else {
		u.more = slices.Delete(u.more, i, i+1)
	}
	u.conn = first
	return true
}

func (u *Upstream) connect(now time.Duration) *h2.Conn {
	u.dialed = now
	var conn *h2.Conn
	conn = u.shard.dial(u.dial, u.config, u.Timeout, func(err error) {
		i := slices.Index(u.more, conn)
		switch {
		case u.conn == conn:
			u.conn = nil
		case i >= 0:
			u.more = slices.Delete(u.more, i, i+1)
		default:
			return // it is not wanted any more
		}
		u.failed(err, u.shard.f.Now())
	})
	conn.Silent, conn.Tag = u.Silent, u.Tag
	return conn
}

const (
	mostMore = 7           // further connections to a node
	keepMore = time.Minute // so long after the first was at its limit those without calls stay
)

// room is the connection for the next call. A call that has to wait there is looked after by roomLater.
func (u *Upstream) room(now time.Duration) *h2.Conn {
	c := u.choose(now)
	if !c.Ready() || c.AtLimit() {
		u.roomLater(now)
	}
	return c
}

// choose returns the first connection, or while that is at its limit one that is not. If all
// are, and no more can be made, it is the first.
func (u *Upstream) choose(now time.Duration) *h2.Conn {
	if !u.conn.AtLimit() {
		if len(u.more) > 0 && now-u.limited >= keepMore {
			u.more = slices.DeleteFunc(u.more, func(c *h2.Conn) bool {
				if c.Calls() == 0 {
					c.Drain()
				}
				return !c.Usable()
			})
		}
		return u.conn
	}
	u.limited = now
	u.more = slices.DeleteFunc(u.more, u.over)
	var made *h2.Conn // is being made
	for _, c := range u.more {
		switch {
		case c.AtLimit():
		case c.Ready():
			return c
		case made == nil && !c.Exceeds(u.conn.MaxStreams()):
			made = c
		}
	}
	if made != nil {
		return made
	}
	if len(u.more) == mostMore || now < u.retryAt {
		return u.conn
	}
	c := u.connect(now)
	u.more = append(u.more, c)
	c.Others, u.conn.Others = u.all, u.all
	return c
}

// roomLater has further connections made, as soon as they may be and one after the other, until no call waits for one. An attempt may
// outlast the time until the next look, and then fail or bring less room than is needed: so each look is followed by another one.
func (u *Upstream) roomLater(now time.Duration) {
	if u.again != nil || u.retryAt == never {
		return
	}
	u.again = time.AfterFunc(max(u.retryAt-now, firstBackoff), func() {
		u.shard.Do(func(f *h2.Forwarder) {
			u.again = nil
			if !slices.ContainsFunc(u.all(), func(c *h2.Conn) bool { return c.Waiting() > 0 }) {
				return
			}
			if u.stands() {
				u.room(f.Now())
			}
			u.roomLater(f.Now())
		})
	})
}

// over reports whether a further connection takes no more calls. Whatever the node does with those, they are not made in a row
// without a pause.
func (u *Upstream) over(c *h2.Conn) bool {
	if c.Ready() {
		u.fails = 0
	}
	switch {
	case c.Usable():
		return false
	case c.Ready():
		u.retryAt = max(u.retryAt, u.dialed+firstBackoff)
	default:
		u.failed(cmp.Or(c.Err(), h2.ErrClosed), u.dialed)
	}
	return true
}

// all are the connections that there are.
func (u *Upstream) all() []*h2.Conn {
	if u.conn == nil {
		return u.more
	}
	return append([]*h2.Conn{u.conn}, u.more...)
}

// unable says why there is no connection.
func (u *Upstream) unable() error {
	return &h2.Status{Code: unavailable, Message: "the sidecar cannot connect to the node: " + u.failure.Error()}
}

// Hurry has the next attempt to connect made at once, within a router's method or Do.
func (u *Upstream) Hurry() {
	if u.retryAt == never {
		return
	}
	u.retryAt = 0
	if u.again != nil && u.again.Stop() {
		u.again.Reset(0)
	}
}

// giveUp has no more attempts made, and says why.
func (u *Upstream) giveUp(why error) {
	u.retryAt, u.failure = never, why
	if u.again != nil && u.again.Stop() {
		u.again = nil
	}
}

// Ask has the node show that it is there: see h2.Conn.Ask. Within Do.
func (u *Upstream) Ask() {
	for _, c := range u.all() {
		c.Ask()
	}
}

// Shelve is for a connection whose node is silent: it takes no more calls, and is left alone until Cut. Within Do.
func (u *Upstream) Shelve() {
	for _, c := range u.all() {
		c.Shelve()
	}
	u.giveUp(h2.ErrSilent)
}

// Cut ends the connection at once, and what is left on it. Within Do.
func (u *Upstream) Cut() {
	all := u.all()
	u.conn, u.more = nil, nil
	u.giveUp(net.ErrClosed)
	for _, c := range all {
		u.cut(c)
	}
}

func (u *Upstream) cut(conn *h2.Conn) {
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

// failed puts the next attempt off, counted from a moment. Attempts that fail while it is put off are of one round.
func (u *Upstream) failed(err error, from time.Duration) {
	if u.retryAt == never {
		return
	}
	if u.failure = err; from < u.retryAt {
		return
	}
	d := min(firstBackoff<<min(u.fails, 16), lastBackoff)
	u.fails++
	u.retryAt = from + d/2 + rand.N(d/2)
}

// Close ends the connection once its calls have ended, within a router's method or Do.
func (u *Upstream) Close() {
	for _, c := range u.all() {
		c.Drain()
	}
	u.conn, u.more = nil, nil
	u.giveUp(net.ErrClosed)
}
