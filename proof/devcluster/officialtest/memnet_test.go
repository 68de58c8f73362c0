package officialtest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/config"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// network is a network in memory, for tests in which time is not real.
type network struct {
	mu        sync.Mutex // guards the fields below
	listeners map[string]*memListener
	port      int
}

func newNetwork() *network { return &network{listeners: make(map[string]*memListener)} }

// use makes a cluster live in the network.
func (n *network) use(c *devcluster.Config) { c.Listen, c.Dial = n.listen, n.dial }

// option makes the official client live in the network.
func (n *network) option() ydb.Option {
	return ydb.With(config.WithGrpcOptions(grpc.WithContextDialer(n.dial)))
}

func (n *network) listen(address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if host, ok := strings.CutSuffix(address, ":0"); ok {
		n.port++
		address = fmt.Sprintf("%s:%d", host, 20000+n.port)
	}
	if n.listeners[address] != nil {
		return nil, fmt.Errorf("listen %s: address in use", address)
	}
	l := &memListener{network: n, address: memAddr(address), conns: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[address] = l
	return l, nil
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: connection refused", address)
	}
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, fmt.Errorf("dial %s: connection refused", address)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

type memListener struct {
	network *network
	address memAddr
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.network.mu.Lock()
		defer l.network.mu.Unlock()
		delete(l.network.listeners, string(l.address))
	})
	return nil
}

func (l *memListener) Addr() net.Addr { return l.address }

type memAddr string

func (memAddr) Network() string  { return "memory" }
func (a memAddr) String() string { return string(a) }
