package listen

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
const Quiet = 500 * time.Millisecond // a connection that rested so long may be closed

// Clients follows the connections of an HTTP server. While the process drains,
// connections no longer come to rest: answers say "close".
type Clients struct {
	mu     sync.Mutex                  // guards all below
	busy   map[net.Conn]http.ConnState // new: no request has come whole; active: one is under way
	rested time.Time                   // when one last came to rest
	Parked []*Parking                  // where others rest; constant
	free   chan struct{}               // capacity 1: busy shrank
}

func NewClients() *Clients {
	return &Clients{busy: make(map[net.Conn]http.ConnState), free: make(chan struct{}, 1)}
}

// Track is http.Server.ConnState.
func (c *Clients) Track(conn net.Conn, state http.ConnState) {
	heads(conn, state)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew, http.StateActive:
		c.busy[conn] = state
		return
	case http.StateIdle:
		c.rested = time.Now()
		if g, ok := Below(conn).(*Conn); ok {
			g.settle()
		}
	}
	delete(c.busy, conn)
	select {
	case c.free <- struct{}{}:
	default:
	}
}

// Below is the connection that carries conn's TLS, or conn.
func Below(conn net.Conn) net.Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		return secure.NetConn() // its Close does not wait to send TLS's last message
	}
	return conn
}

// Leave closes the connections over which no request has come whole: nothing at all, half a
// handshake of TLS, half a head. http.Server waits for the rest also while it stops, and
// clients are owed no answer for them.
func (c *Clients) Leave() {
	c.mu.Lock() // no request begins meanwhile
	defer c.mu.Unlock()
	for conn, state := range c.busy {
		if state != http.StateNew {
			continue
		}
		if g, ok := Below(conn).(*Conn); ok {
			g.leave()
		} else {
			_ = Below(conn).Close() // its reader sees it
		}
	}
}

// Rest returns when every idle connection has been so for quiet, or ctx ends.
func (c *Clients) Rest(ctx context.Context) {
	c.mu.Lock()
	last := c.rested
	c.mu.Unlock()
	for _, p := range c.Parked {
		if rested := time.Unix(0, p.rested.Load()); rested.After(last) {
			last = rested
		}
	}
	left := Quiet - time.Since(last)
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

// Answered returns when no connection has a request under way, or after quiet:
// a new connection may as well stay silent. Call it when no more are accepted;
// http.Server.Shutdown drops requests that it has not read by then.
func (c *Clients) Answered(ctx context.Context) {
	timer := time.NewTimer(Quiet)
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

// Listener is a listener that can be closed without resetting the connections
// that wait to be accepted.
type Listener struct {
	socket
	*Door
	Conns   *Conns
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

// newListener listens at l. memory is as for newGuests.
func newListener(l socket, door *Door, memory int64) *Listener {
	p := &Listener{socket: l, Door: door, Conns: NewConns(memory), empty: make(chan struct{})}
	door.open, door.conns = p.Conns.Size, p.Conns
	p.Conns.refused = &door.refused
	return p
}

// Accept returns the next connection that is for the server: others are parked. It returns net.ErrClosed once finish was called and the
// last connection is taken.
func (p *Listener) Accept() (net.Conn, error) {
	for len(p.waiting) == 0 {
		conn, err := p.accept(p.socket.Accept)
		if err == nil {
			conn = p.Conns.Greet(conn)
			if g, ok := conn.(*Conn); ok && g.parkNew() {
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
	return p.Conns.Greet(conn), nil
}

// Close closes at once. Closing again is no error: servers close their listener
// after finish did.
func (p *Listener) Close() error {
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
func (p *Listener) finish(ctx context.Context) {
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
