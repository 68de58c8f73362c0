package app

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// How HTTP/1.1 clients are let go. The protocol has no word for "call elsewhere
// next time" but one in an answer, so a connection must not be closed right
// after an answer without it: the next request may be under way.
const quiet = 500 * time.Millisecond // a connection that rested so long may be closed

// clients follows the connections of an HTTP server. While the process drains,
// connections no longer come to rest: answers say "close".
type clients struct {
	mu     sync.Mutex                  // guards all below
	busy   map[net.Conn]http.ConnState // new: no request has come whole; active: one is under way
	rested time.Time                   // when one last came to rest
	parked []*parking                  // where others rest; constant
	free   chan struct{}               // capacity 1: busy shrank
}

func newClients() *clients {
	return &clients{busy: make(map[net.Conn]http.ConnState), free: make(chan struct{}, 1)}
}

// track is http.Server.ConnState.
func (c *clients) track(conn net.Conn, state http.ConnState) {
	heads(conn, state)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew, http.StateActive:
		c.busy[conn] = state
		return
	case http.StateIdle:
		c.rested = time.Now()
		if g, ok := below(conn).(*guest); ok {
			g.settle()
		}
	}
	delete(c.busy, conn)
	select {
	case c.free <- struct{}{}:
	default:
	}
}

// below is the connection that carries conn's TLS, or conn.
func below(conn net.Conn) net.Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		return secure.NetConn() // its Close does not wait to send TLS's last message
	}
	return conn
}

// leave closes the connections over which no request has come whole: nothing at all, half a
// handshake of TLS, half a head. http.Server waits for the rest also while it stops, and
// clients are owed no answer for them.
func (c *clients) leave() {
	c.mu.Lock() // no request begins meanwhile
	defer c.mu.Unlock()
	for conn, state := range c.busy {
		if state != http.StateNew {
			continue
		}
		if g, ok := below(conn).(*guest); ok {
			g.leave()
		} else {
			_ = below(conn).Close() // its reader sees it
		}
	}
}

// rest returns when every connection at rest has been so for quiet, or ctx ends.
func (c *clients) rest(ctx context.Context) {
	c.mu.Lock()
	last := c.rested
	c.mu.Unlock()
	for _, p := range c.parked {
		if rested := time.Unix(0, p.rested.Load()); rested.After(last) {
			last = rested
		}
	}
	left := quiet - time.Since(last)
	if left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// answered returns when no connection has a request under way, or after quiet:
// a new connection may as well stay silent. Call it when no more are accepted;
// http.Server.Shutdown drops requests that it has not read by then.
func (c *clients) answered(ctx context.Context) {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		c.mu.Lock()
		busy := len(c.busy)
		c.mu.Unlock()
		if busy == 0 {
			return
		}
		select {
		case <-c.free:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// patient is a listener that can be closed without resetting the connections
// that wait to be accepted.
type patient struct {
	socket
	*door
	guests  *guests
	name    *socketName // of a Unix socket; nil: it is none
	closing atomic.Bool
	waiting []net.Conn // the last ones; only the accepting goroutine touches it
	once    sync.Once
	empty   chan struct{} // closed when the last connection is taken
}

// socket is a listener of the kernel's: *net.TCPListener or *net.UnixListener.
type socket interface {
	net.Listener
	syscall.Conn
	SetDeadline(time.Time) error
}

// newPatient listens at l. memory is as for newGuests.
func newPatient(l socket, door *door, memory int64) *patient {
	p := &patient{socket: l, door: door, guests: newGuests(memory), empty: make(chan struct{})}
	door.open, door.guests = p.guests.size, p.guests
	p.guests.refused = &door.refused
	return p
}

// Accept returns the next connection that is for the server: others are parked. It returns net.ErrClosed once finish was called and the
// last connection is taken.
func (p *patient) Accept() (net.Conn, error) {
	for len(p.waiting) == 0 {
		conn, err := p.accept(p.socket.Accept)
		if err == nil {
			conn = p.guests.greet(conn)
			if g, ok := conn.(*guest); ok && g.parkNew() {
				continue
			}
			return conn, nil
		}
		if !p.closing.Load() {
			return nil, err
		}
		// Between these two lines is the one moment in which a connection can
		// still be made and lost.
		p.waiting = acceptWaiting(p.socket)
		_ = p.Close() // nothing can be done
		if len(p.waiting) == 0 {
			p.once.Do(func() { close(p.empty) })
			return nil, net.ErrClosed
		}
	}
	conn := p.waiting[0]
	p.waiting = p.waiting[1:]
	return p.guests.greet(conn), nil
}

// Close closes at once. Closing again is no error: servers close their listener
// after finish did.
func (p *patient) Close() error {
	p.shut()
	err := p.socket.Close()
	p.name.remove()
	if !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// finish has the accepting goroutine take what waits and close. It returns when
// that is done or ctx ends.
func (p *patient) finish(ctx context.Context) {
	p.name.unlink() // nobody comes any more
	p.closing.Store(true)
	_ = p.SetDeadline(time.Now()) // wakes Accept; fails only when it is closed
	p.shut()
	select {
	case <-p.empty:
	case <-ctx.Done():
		_ = p.Close()
	}
}
