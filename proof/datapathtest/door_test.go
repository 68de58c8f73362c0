package datapathtest

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// door is a TCP proxy before a node. It can be shut in many ways.
type door struct {
	address string
	target  string
	stop    chan struct{} // closed when the test is over
	all     sync.WaitGroup

	mu       sync.Mutex // guards what follows
	listener net.Listener
	instead  func(net.Conn) // serves new connections in place of the node; nil: the node
	carried  map[*pair]struct{}
}

// pair is a connection that the door carries.
type pair struct {
	client, node net.Conn
	frozen       chan struct{} // closed: nothing is carried any more
}

// newDoor opens a door for as long as the test.
func newDoor(t testing.TB, target string) *door {
	d := &door{address: standtest.FreeAddress(t), target: target, stop: make(chan struct{}), carried: map[*pair]struct{}{}}
	d.open(t)
	t.Cleanup(func() {
		d.shut()
		d.reset()
		close(d.stop)
		d.all.Wait()
	})
	return d
}

// open listens, at the same address as before.
func (d *door) open(t testing.TB) {
	l, err := net.Listen("tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.listener = l
	d.mu.Unlock()
	d.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // shut
			}
			d.all.Go(func() { d.serve(c) })
		}
	})
}

// shut has new connections refused.
func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.listener.Close() // it may be shut already
}

// reset ends what is carried.
func (d *door) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.carried {
		abort(p.client)
		abort(p.node)
	}
}

// freeze leaves what is carried open, and carries nothing more.
func (d *door) freeze() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.carried {
		select {
		case <-p.frozen:
		default:
			close(p.frozen)
		}
	}
}

// put has new connections served by fn; nil: by the node.
func (d *door) put(fn func(net.Conn)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.instead = fn
}

// abort closes with RST.
func abort(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0) // if it fails the peer sees an orderly end
	_ = c.Close()
}

func (d *door) serve(c net.Conn) {
	d.mu.Lock()
	instead := d.instead
	d.mu.Unlock()
	if instead != nil {
		p := &pair{c, c, make(chan struct{})} // for reset
		d.mu.Lock()
		d.carried[p] = struct{}{}
		d.mu.Unlock()
		instead(c)
		d.mu.Lock()
		delete(d.carried, p)
		d.mu.Unlock()
		_ = c.Close() // it may be closed already
		return
	}
	n, err := net.DialTimeout("tcp", d.target, 5*time.Second)
	if err != nil {
		abort(c)
		return
	}
	p := &pair{c, n, make(chan struct{})}
	d.mu.Lock()
	d.carried[p] = struct{}{}
	d.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() { p.copy(c, n) })
	p.copy(n, c)
	back.Wait()
	d.mu.Lock()
	delete(d.carried, p)
	d.mu.Unlock()
}

// copy carries bytes one way until either end closes, and then ends both.
func (p *pair) copy(to, from net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		select {
		case <-p.frozen: // the peer's kernel acknowledges what no program will see
			n = 0
		default:
		}
		if _, wrong := to.Write(b[:n]); err != nil || wrong != nil {
			break
		}
	}
	_, _ = to.Close(), from.Close() // the other way ends as well
}

// Ways to serve in place of a node. They end with the peer, or the test.

func (d *door) swallow(c net.Conn) {
	go func() { <-d.stop; c.Close() }()
	_, _ = io.Copy(io.Discard, c)
}

func (d *door) closeAtOnce(net.Conn) {}

func (d *door) closeAfterPreface(c net.Conn) { _, _ = io.ReadFull(c, make([]byte, 24)) }

// say returns a way to say something and to listen then.
func (d *door) say(what []byte) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = c.Write(what)
		d.swallow(c)
	}
}
