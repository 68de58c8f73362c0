package upstream

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// errSilent is what calls on a severed connection end with.
var errSilent = errors.New("the connection brought no byte, and a call to check it got no answer")

// wire is the network below the connection to one node: what is under way on it
// and when it last brought a byte. One look at the clock for each read from the
// network and one atomic addition for each call keep that.
type wire struct {
	calls atomic.Int64 // under way; attach streams do not count
	since atomic.Int64 // when calls last rose above 0; like all times here in nanoseconds since began
	heard atomic.Int64 // when the last byte came
	asked atomic.Int64 // when the last check ended
	began time.Time

	checking atomic.Bool // a check is under way
	severed  atomic.Bool // nothing goes over it any more

	life context.Context // until severed or closed: bounds dialling
	end  context.CancelFunc

	mu      sync.Mutex // guards sockets
	sockets map[*socket]struct{}
}

func newWire() *wire {
	w := &wire{began: time.Now(), sockets: make(map[*socket]struct{})}
	w.life, w.end = context.WithCancel(context.Background())
	return w
}

func (w *wire) clock() int64 { return int64(time.Since(w.began)) }

// enter counts a call that starts now; first says that there was no other.
func (w *wire) enter(now time.Time) (first bool) {
	if w.calls.Add(1) != 1 {
		return false
	}
	w.since.Store(int64(now.Sub(w.began)))
	return true
}

// leave ends what enter began.
func (w *wire) leave() { w.calls.Add(-1) }

// quiet is for how long calls have waited without a byte or a check; busy is
// false if no call is under way.
func (w *wire) quiet() (d time.Duration, busy bool) {
	if w.calls.Load() == 0 {
		return 0, false
	}
	return time.Duration(w.clock() - max(w.heard.Load(), w.since.Load(), w.asked.Load())), true
}

// dialer returns dial with the sockets watched by w.
func (w *wire) dialer(dial dialer) dialer {
	return func(ctx context.Context, address string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(w.life, cancel)()
		raw, err := dial(ctx, address)
		if err != nil {
			return nil, err
		}
		s := &socket{Conn: raw, wire: w}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.life.Err() != nil {
			_ = raw.Close() // nothing was sent
			return nil, errSilent
		}
		w.sockets[s] = struct{}{}
		return s, nil
	}
}

// sever makes everything on the wire fail at once. The sockets stay open until
// close: a node that could not be told the end of an attach stream anyway must
// not learn of it the moment its network is back, or over a path that works one
// way. It would delete the session, and calls of its open transaction may go
// through other nodes meanwhile.
func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.severed.Store(true)
	w.end()
	for s := range w.sockets {
		_ = s.Conn.SetDeadline(time.Unix(1, 0)) // wakes who waits in Read or Write; if it fails they are awake
	}
}

// close closes the sockets that sever left open; gRPC has closed the others.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end()
	for s := range w.sockets {
		_ = s.Conn.Close() // nothing was to be sent any more
	}
	clear(w.sockets)
}

// socket is one connection of a wire, below TLS.
type socket struct {
	net.Conn
	wire *wire
}

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n > 0 {
		s.wire.heard.Store(s.wire.clock())
	}
	if s.wire.severed.Load() {
		return 0, errSilent
	}
	return n, err
}

// Write implements net.Conn.
func (s *socket) Write(p []byte) (int, error) {
	if s.wire.severed.Load() {
		return 0, errSilent
	}
	return s.Conn.Write(p)
}

// Close implements net.Conn. See sever for sockets of a severed wire.
func (s *socket) Close() error {
	s.wire.mu.Lock()
	kept := s.wire.severed.Load()
	_, open := s.wire.sockets[s]
	if !kept {
		delete(s.wire.sockets, s)
	}
	s.wire.mu.Unlock()
	if kept || !open {
		return nil
	}
	return s.Conn.Close()
}
