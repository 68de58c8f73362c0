package devcluster

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// Endpoints says how discovery lists the nodes.
type Endpoints string

// The ways.
const (
	EndpointsEach   Endpoints = "each"   // every node at its own address; the default
	EndpointsMerged Endpoints = "merged" // all nodes at the address of a balancer: one entry
)

func (e Endpoints) valid() bool { return e == "" || e == EndpointsEach || e == EndpointsMerged }

// balancer is one address for all nodes: each connection goes to one of them, in turn, and
// stays there. It looks at no byte.
type balancer struct {
	net.Listener
	address string
	dial    func(ctx context.Context, address string) (net.Conn, error)
	nodes   func() []string // addresses of the nodes that accept connections
	turn    atomic.Uint64
	life    context.Context
	end     context.CancelFunc
	wait    sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns map[net.Conn]struct{}
}

// balance starts a balancer.
func balance(config Config, nodes func() []string) (*balancer, error) {
	l, err := config.listen(net.JoinHostPort(config.Host, strconv.Itoa(config.Port)))
	if err != nil {
		return nil, err
	}
	b := &balancer{Listener: l, address: l.Addr().String(), dial: config.Dial, nodes: nodes, conns: make(map[net.Conn]struct{})}
	if b.dial == nil {
		b.dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	b.life, b.end = context.WithCancel(context.Background())
	b.wait.Go(b.accept)
	return b, nil
}

func (b *balancer) accept() {
	for {
		client, err := b.Accept()
		if err != nil {
			return // only close closes it
		}
		b.wait.Go(func() { b.carry(client) })
	}
}

// carry joins a client to the next node that accepts a connection.
func (b *balancer) carry(client net.Conn) {
	if !b.enter(client) {
		return
	}
	defer b.leave(client)
	nodes := b.nodes()
	turn := int(b.turn.Add(1))
	for i := range nodes {
		node, err := b.dial(b.life, nodes[(turn+i)%len(nodes)])
		if err != nil {
			continue
		}
		if !b.enter(node) {
			return
		}
		defer b.leave(node)
		var there sync.WaitGroup
		there.Go(func() { pour(node, client) })
		pour(client, node)
		there.Wait()
		return
	}
}

// pour copies until src ends, and ends dst in the same way.
func pour(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	half, ok := dst.(interface{ CloseWrite() error })
	if err == nil && ok {
		err = half.CloseWrite()
	}
	if err == nil && ok {
		return
	}
	if tcp, ok := dst.(*net.TCPConn); ok && err != nil {
		_ = tcp.SetLinger(0) // reset it; it may be closed already
	}
	_, _ = dst.Close(), src.Close() // the other direction ends as well
}

// enter takes note of a connection; false if the balancer ends.
func (b *balancer) enter(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		_ = c.Close() // it carried nothing
		return false
	}
	b.conns[c] = struct{}{}
	return true
}

func (b *balancer) leave(c net.Conn) {
	_ = c.Close() // it may be closed already
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
}

// close ends the balancer and its connections.
func (b *balancer) close() error {
	b.end()
	err := b.Listener.Close()
	b.mu.Lock()
	for c := range b.conns {
		err = errors.Join(err, ignoreClosed(c.Close()))
	}
	b.mu.Unlock()
	b.wait.Wait()
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}
