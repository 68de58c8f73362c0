package driver

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Local is a listener inside the process: a server on it serves calls of the shard
// without a trip through the kernel.
type Local struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewLocal returns a listener for Serve of a server in this process.
func NewLocal() *Local { return &Local{conns: make(chan net.Conn), done: make(chan struct{})} }

// Accept implements net.Listener.
func (l *Local) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Local) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *Local) Addr() net.Addr { return localAddr{} }

// Dial connects to the server; it suits Shard.Upstream.
func (l *Local) Dial(ctx context.Context) (net.Conn, error) {
	here, there := newPipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type localAddr struct{}

func (localAddr) Network() string { return "local" }
func (localAddr) String() string  { return "local" }

// pipe is one end of a connection inside the process.
type pipe struct{ read, write *half }

// newPipe returns both ends of a connection.
func newPipe() (a, b *pipe) {
	up, down := newHalf(), newHalf()
	return &pipe{read: up, write: down}, &pipe{read: down, write: up}
}

// half is one direction of it: a buffer with an end.
type half struct {
	mu       sync.Mutex // guards what follows
	change   sync.Cond  // broadcast when it has
	b        []byte
	at       int // read so far
	closed   bool
	deadline time.Time // for the reader
	timer    *time.Timer
}

// pipeSize is how much a writer may be ahead.
const pipeSize = 256 << 10

func newHalf() *half {
	h := &half{}
	h.change.L = &h.mu
	return h
}

func (h *half) close() {
	h.mu.Lock()
	h.closed = true
	h.change.Broadcast()
	h.mu.Unlock()
}

func (p *pipe) Read(b []byte) (int, error) {
	h := p.read
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.at == len(h.b) {
		if h.closed {
			return 0, io.EOF
		}
		if !h.deadline.IsZero() && !time.Now().Before(h.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		h.change.Wait()
	}
	n := copy(b, h.b[h.at:])
	if h.at += n; h.at == len(h.b) {
		h.b, h.at = h.b[:0], 0
	}
	h.change.Broadcast()
	return n, nil
}

func (p *pipe) Write(b []byte) (int, error) {
	h, n := p.write, 0
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		if h.closed {
			return n, io.ErrClosedPipe
		}
		k := h.put(b[n:])
		if n += k; n == len(b) {
			return n, nil
		}
		h.change.Wait()
	}
}

// put takes what there is room for. mu is held.
func (h *half) put(b []byte) int {
	n := min(len(b), pipeSize-(len(h.b)-h.at))
	if h.at > 0 && len(h.b)+n > cap(h.b) {
		h.b, h.at = h.b[:copy(h.b, h.b[h.at:])], 0
	}
	h.b = append(h.b, b[:n]...)
	if n > 0 {
		h.change.Broadcast()
	}
	return n
}

// TryWrite writes what there is room for.
func (p *pipe) TryWrite(b []byte) int {
	h := p.write
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return len(b) // the reader will see it
	}
	return h.put(b)
}

func (p *pipe) Close() error {
	p.read.close()
	p.write.close()
	return nil
}

func (p *pipe) LocalAddr() net.Addr              { return localAddr{} }
func (p *pipe) RemoteAddr() net.Addr             { return localAddr{} }
func (p *pipe) SetWriteDeadline(time.Time) error { return nil } // the reader is in this process
func (p *pipe) SetDeadline(t time.Time) error    { return p.SetReadDeadline(t) }
func (p *pipe) SetReadDeadline(t time.Time) error {
	h := p.read
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deadline = t; h.timer != nil {
		h.timer.Stop()
	}
	if !t.IsZero() {
		h.timer = time.AfterFunc(time.Until(t), func() {
			h.mu.Lock()
			h.change.Broadcast()
			h.mu.Unlock()
		})
	}
	return nil
}
