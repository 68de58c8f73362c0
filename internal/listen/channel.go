package listen

import (
	"net"
	"sync"
)

// Channel is a listener through which connections are passed by hand.
type Channel struct {
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
	Greet   func(net.Conn) net.Conn // nil: as they are
	Serving sync.WaitGroup
}

func NewChannel() *Channel { return &Channel{conns: make(chan net.Conn), closed: make(chan struct{})} }

// Pass hands a connection to whoever accepts; false: nobody does any more.
func (h *Channel) Pass(conn net.Conn) bool {
	select {
	case h.conns <- conn:
		return true
	case <-h.closed:
		return false
	}
}

// Accept returns the next connection that is passed.
func (h *Channel) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		if h.Greet != nil {
			conn = h.Greet(conn)
		}
		return conn, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (h *Channel) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr is that of no place in particular.
func (h *Channel) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "takeover"} }
