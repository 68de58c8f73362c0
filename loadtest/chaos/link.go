package chaos

import (
	"fmt"
	"net"
	"sync"
)

// link is a TCP proxy between the sidecar and one node. Everything but the sidecar
// reaches the node without it.
type link struct {
	listener net.Listener
	target   string
	all      sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	conns map[net.Conn]struct{}
	state linkState
	thaw  chan struct{} // closed when a frozen link goes on
}

type linkState uint8

const (
	whole  linkState = iota
	cut              // connections are reset, new ones as well
	frozen           // connections stay and carry nothing
)

// newLink begins to serve; close ends it.
func newLink(target string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	l := &link{listener: listener, target: target, conns: map[net.Conn]struct{}{}}
	l.all.Go(l.serve)
	return l, nil
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) serve() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		l.all.Go(func() { l.carry(client) })
	}
}

// hold registers a connection; false: it must not be.
func (l *link) hold(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == cut || l.conns == nil {
		reset(c)
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *link) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	_ = c.Close() // it may be closed already
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // if it fails the peer sees an orderly end
	}
	_ = c.Close()
}

func (l *link) carry(client net.Conn) {
	if !l.hold(client) {
		return
	}
	defer l.drop(client)
	node, err := net.Dial("tcp", l.target)
	if err != nil {
		reset(client)
		return
	}
	if !l.hold(node) {
		return
	}
	defer l.drop(node)
	var back sync.WaitGroup
	back.Go(func() { l.copy(client, node) })
	l.copy(node, client)
	back.Wait()
}

// copy carries bytes one way until either end closes, and then ends both.
func (l *link) copy(to, from net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if thaw := l.frozen(); thaw != nil {
			<-thaw
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_, _ = to.Close(), from.Close() // the other way ends as well
}

func (l *link) frozen() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.thaw
}

// set makes the link whole, cut or frozen.
func (l *link) set(s linkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.thaw != nil {
		close(l.thaw)
		l.thaw = nil
	}
	if l.state = s; s == frozen {
		l.thaw = make(chan struct{})
	}
	if s == cut {
		for c := range l.conns {
			reset(c)
		}
	}
}

// close ends the proxy and all it carries.
func (l *link) close() {
	_ = l.listener.Close() // ends serve
	l.set(cut)
	l.all.Wait()
}
