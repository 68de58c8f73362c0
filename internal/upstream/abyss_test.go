package upstream

import (
	"context"
	"net"
	"os"
	"sync"
	"time"
)

// abyss is a network that can swallow what goes over it: packets vanish, nobody
// hears of it, and what was sent meanwhile arrives when it is passable again.
type abyss struct {
	dial dialer

	mu      sync.Mutex    // guards all below
	thaw    chan struct{} // closed when the hole is; nil while there is none
	accepts bool          // it is a stopped process: its kernel still accepts connections
	dials   int           // attempts since the start
	open    map[*holeConn]struct{}
}

func newAbyss(dial dialer) *abyss { return &abyss{dial: dial, open: map[*holeConn]struct{}{}} }

// shut opens the abyss.
func (h *abyss) shut(accepts bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.thaw, h.accepts = make(chan struct{}), accepts
}

// clear makes the network passable, and has what was held back arrive.
func (h *abyss) clear() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.thaw)
	h.thaw = nil
	for c := range h.open {
		c.flushLocked()
	}
}

// renew makes it passable for new connections; those there are stay dead.
func (h *abyss) renew() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.thaw = nil
	for c := range h.open {
		c.dead = true
	}
}

func (h *abyss) connect(ctx context.Context, address string) (net.Conn, error) {
	h.mu.Lock()
	h.dials++
	thaw, accepts := h.thaw, h.accepts
	h.mu.Unlock()
	if thaw != nil && !accepts {
		select {
		case <-thaw:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	raw, err := h.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	c := &holeConn{Conn: raw, hole: h, woken: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[c] = struct{}{}
	return c, nil
}

// live counts the connections that this side has not closed.
func (h *abyss) live() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.open {
		if !c.closed {
			n++
		}
	}
	return n
}

// holeConn is one connection through a hole.
type holeConn struct {
	net.Conn
	hole *abyss

	// hole.mu guards all below.
	held   []byte // written while the hole was there
	closed bool   // by this side; the other one learns of it when it can
	dead   bool   // nothing passes any more
	late   bool   // its deadline is over
	woken  chan struct{}
}

func (c *holeConn) blockedLocked() bool { return c.dead || c.hole.thaw != nil }

func (c *holeConn) flushLocked() {
	if c.dead {
		return
	}
	if len(c.held) > 0 {
		c.Conn.Write(c.held)
		c.held = nil
	}
	if c.closed {
		c.Conn.Close()
		delete(c.hole.open, c)
	}
}

// pass waits while nothing passes.
func (c *holeConn) pass() error {
	for {
		c.hole.mu.Lock()
		thaw, blocked, closed, late, woken := c.hole.thaw, c.blockedLocked(), c.closed, c.late, c.woken
		c.hole.mu.Unlock()
		switch {
		case closed:
			return net.ErrClosed
		case late:
			return os.ErrDeadlineExceeded
		case !blocked:
			return nil
		}
		select {
		case <-thaw: // nil, and so for ever, on a dead one
		case <-woken:
		}
	}
}

func (c *holeConn) Read(p []byte) (int, error) {
	if err := c.pass(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	if held := c.pass(); held != nil {
		return 0, held
	}
	return n, err
}

func (c *holeConn) Write(p []byte) (int, error) {
	c.hole.mu.Lock()
	switch {
	case c.closed:
		c.hole.mu.Unlock()
		return 0, net.ErrClosed
	case c.blockedLocked():
		c.held = append(c.held, p...)
		c.hole.mu.Unlock()
		return len(p), nil
	}
	c.hole.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *holeConn) SetDeadline(t time.Time) error {
	c.hole.mu.Lock()
	if late := !t.IsZero() && !t.After(time.Now()); late && !c.late && !c.closed {
		c.late = true
		close(c.woken)
	}
	c.hole.mu.Unlock()
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline is not SetDeadline: a deadline that is over may be taken back.
func (c *holeConn) SetReadDeadline(t time.Time) error {
	c.hole.mu.Lock()
	switch over := !t.IsZero() && !t.After(time.Now()); {
	case c.closed:
	case over && !c.late:
		c.late = true
		close(c.woken)
	case !over && c.late:
		c.late, c.woken = false, make(chan struct{})
	}
	c.hole.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

func (c *holeConn) Close() error {
	c.hole.mu.Lock()
	defer c.hole.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	if !c.late {
		close(c.woken)
	}
	if c.blockedLocked() {
		// A reader may sit in the connection below; wake it, but tell the other side nothing.
		return c.Conn.SetDeadline(time.Unix(1, 0))
	}
	delete(c.hole.open, c)
	return c.Conn.Close()
}

// end closes everything, for the end of a test.
func (h *abyss) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.open {
		c.Conn.Close()
	}
}
