package devcluster

import (
	"errors"
	"net"
	"sync"
	"time"
)

// listener hands out connections that can be frozen and reset: what a broken
// network or a dying process does to clients.
type listener struct {
	net.Listener

	mu     sync.Mutex // guards the fields below
	conns  map[*conn]struct{}
	thaw   chan struct{} // closed when frozen connections go on; nil while not frozen
	pace   *pace         // nil while connections are as fast as they can be
	closed bool
}

func newListener(l net.Listener) *listener {
	return &listener{Listener: l, conns: make(map[*conn]struct{})}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, listener: l, gone: make(chan struct{})}
	if !l.admit(c) {
		c.reset() // without mu, which it takes
		return nil, net.ErrClosed
	}
	return c, nil
}

// admit reports whether the listener is open, and has the connection then.
func (l *listener) admit(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.conns[c] = struct{}{}
	}
	return !l.closed
}

// freeze makes every connection, also a new one, silent in both directions until thawed.
func (l *listener) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.thaw == nil {
		l.thaw = make(chan struct{})
	}
}

// unfreeze lets frozen connections go on where they were.
func (l *listener) unfreeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.thaw != nil {
		close(l.thaw)
		l.thaw = nil
	}
}

func (l *listener) frozen() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.thaw
}

// pace is a limit to the speed of each connection, each way.
type pace struct {
	bytesPerSecond int
	over           chan struct{} // closed when another pace, or none, counts
}

// step is how many bytes go at once: what takes a twentieth of a second.
func (p *pace) step() int { return max(1, p.bytesPerSecond/20) }

// throttle sets the pace of every connection, also of a new one; 0 ends it.
func (l *listener) throttle(bytesPerSecond int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pace != nil {
		close(l.pace.over)
		l.pace = nil
	}
	if bytesPerSecond > 0 {
		l.pace = &pace{bytesPerSecond: bytesPerSecond, over: make(chan struct{})}
	}
}

func (l *listener) paced() *pace {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pace
}

// kill stops listening and resets every connection.
func (l *listener) kill() {
	_ = l.Listener.Close() // an error means that it is closed already
	l.mu.Lock()
	l.closed = true
	conns := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		c.reset()
	}
}

// cut resets the connection from the given remote address, if there is one.
func (l *listener) cut(remote string) {
	l.mu.Lock()
	var found *conn
	for c := range l.conns {
		if c.RemoteAddr().String() == remote {
			found = c
			break
		}
	}
	l.mu.Unlock()
	if found != nil {
		found.reset()
	}
}

// conn is a connection of a listener.
type conn struct {
	net.Conn
	listener *listener
	once     sync.Once
	gone     chan struct{} // closed by Close
}

// pass waits while the listener is frozen.
func (c *conn) pass() error {
	for {
		thaw := c.listener.frozen()
		if thaw == nil {
			return nil
		}
		select {
		case <-thaw:
		case <-c.gone:
			return net.ErrClosed
		}
	}
}

// Read implements net.Conn. What arrives while the listener is frozen is held back.
func (c *conn) Read(p []byte) (int, error) {
	if err := c.pass(); err != nil {
		return 0, err
	}
	pace := c.listener.paced()
	if pace != nil {
		p = p[:min(len(p), pace.step())]
	}
	n, err := c.Conn.Read(p)
	if waited := c.wait(pace, n); waited != nil {
		return 0, waited
	}
	if held := c.pass(); held != nil {
		return 0, held
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	written := 0
	for {
		if err := c.pass(); err != nil {
			return written, err
		}
		pace, part := c.listener.paced(), p[written:]
		if pace != nil {
			part = part[:min(len(part), pace.step())]
		}
		if err := c.wait(pace, len(part)); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(part)
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
	}
}

// wait lets the time pass that n bytes take at a pace.
func (c *conn) wait(p *pace, n int) error {
	if p == nil || n == 0 {
		return nil
	}
	timer := time.NewTimer(time.Duration(n) * time.Second / time.Duration(p.bytesPerSecond))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.over:
	case <-c.gone:
		return net.ErrClosed
	}
	return nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		close(c.gone)
		c.listener.mu.Lock()
		delete(c.listener.conns, c)
		c.listener.mu.Unlock()
		err = c.Conn.Close()
	})
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// reset closes the connection so that its peer sees a reset and not an orderly end.
func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // if it fails the peer sees an orderly end
	}
	_ = c.Close()
}

func (l *listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}
