package app

import (
	"net"
	"sync"
	"sync/atomic"
)

// silents are the connections over which nothing has come yet: somebody dialled
// and says nothing. Servers wait for their first bytes also while they stop, and
// a client is owed nothing for them.
type silents struct {
	mu   sync.Mutex // guards open
	open map[*guest]struct{}
}

// guest is a connection that may still be silent.
type guest struct {
	*net.TCPConn
	of    *silents
	heard atomic.Bool
}

// greet follows a new connection until its first byte comes.
func (s *silents) greet(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	g := &guest{TCPConn: tcp, of: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[*guest]struct{})
	}
	s.open[g] = struct{}{}
	return g
}

func (s *silents) forget(g *guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, g)
}

// leave closes all that are still silent.
func (s *silents) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for g := range s.open {
		_ = g.TCPConn.Close() // its reader sees it
	}
	clear(s.open)
}

// Read notes the first byte.
func (g *guest) Read(b []byte) (int, error) {
	n, err := g.TCPConn.Read(b)
	if n > 0 && !g.heard.Load() {
		g.heard.Store(true)
		g.of.forget(g)
	}
	return n, err
}

// Close forgets the connection.
func (g *guest) Close() error {
	g.of.forget(g)
	return g.TCPConn.Close()
}
