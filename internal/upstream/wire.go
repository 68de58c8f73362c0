package upstream

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// errSilent is why the calls on a connection that was given up end.
var errSilent = errors.New("the connection brought no byte, and a call to check it got no answer")

// wire is what lies under the connection to one node: the calls under way on it,
// and the sockets. Once given up it takes no more calls. What the node still
// believes then ends only with the connection, by close: the session of an open
// transaction lives as long as its attach stream, and its calls may reach it
// through another node meanwhile.
type wire struct {
	began time.Time
	heard atomic.Int64  // when the last byte came, in nanoseconds since began
	lost  atomic.Uint64 // the number of its newest socket that was closed; 0: none was. See ydbstatus.Signs

	checking  atomic.Bool // a check is under way
	abandoned atomic.Bool // set under mu

	mu      sync.Mutex    // guards all below
	since   time.Duration // when calls last rose above 0, or a check ended
	calls   int           // under way; attach streams do not count
	flights flight        // the head of a ring
	sockets map[*socket]struct{}
	closed  bool
}

// flight is something on a wire that wants to know when the wire is given up.
type flight struct {
	cut        func(error) // called with errSilent; must not block
	prev, next *flight
}

func newWire() *wire {
	w := &wire{began: time.Now(), sockets: make(map[*socket]struct{})}
	w.flights.prev, w.flights.next = &w.flights, &w.flights
	return w
}

// enter counts a call that begins now; first says that there was no other. f, if
// not nil, is cut when the wire is given up; if it is already, then at once.
func (w *wire) enter(f *flight, now time.Time) (first bool) {
	w.mu.Lock()
	if w.calls++; w.calls == 1 {
		w.since, first = max(w.since, now.Sub(w.began)), true
	}
	w.mu.Unlock()
	if f != nil {
		w.join(f)
	}
	return first
}

// leave ends what enter began.
func (w *wire) leave(f *flight) {
	w.mu.Lock()
	w.calls--
	w.mu.Unlock()
	if f != nil {
		w.part(f)
	}
}

// join is enter for what is no call.
func (w *wire) join(f *flight) {
	w.mu.Lock()
	f.prev, f.next = w.flights.prev, &w.flights
	f.prev.next, f.next.prev = f, f
	late := w.abandoned.Load()
	w.mu.Unlock()
	if late {
		f.cut(errSilent)
	}
}

// part ends what join began.
func (w *wire) part(f *flight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f.prev.next, f.next.prev = f.next, f.prev
}

// quiet is for how long calls have waited without a byte or a check; busy is
// false if there is nothing to look after.
func (w *wire) quiet() (d time.Duration, busy bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls == 0 || w.abandoned.Load() {
		return 0, false
	}
	return time.Since(w.began) - max(time.Duration(w.heard.Load()), w.since), true
}

// checked notes that a check has ended.
func (w *wire) checked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = time.Since(w.began)
	w.checking.Store(false)
}

// giveUp cuts every flight.
func (w *wire) giveUp() {
	w.mu.Lock()
	w.abandoned.Store(true)
	var cuts []func(error)
	for f := w.flights.next; f != &w.flights; f = f.next {
		cuts = append(cuts, f.cut)
	}
	w.mu.Unlock()
	for _, cut := range cuts {
		cut(errSilent) // of one that has just parted, perhaps
	}
}

// hangUp has what is still read and written on a wire that was given up fail at
// once: nobody is to wait until it arrives. The node learns of it by close.
func (w *wire) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abandoned.Load() {
		for s := range w.sockets {
			s.mute()
		}
	}
}

// close closes the sockets that gRPC has not closed, or wanted to and could not:
// see socket.Close.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for s := range w.sockets {
		_ = s.Conn.Close() // nothing was to be sent any more
	}
	clear(w.sockets)
}

// dialer returns dial with its sockets on w.
func (w *wire) dialer(dial dialer) dialer {
	return func(ctx context.Context, address string) (net.Conn, error) {
		raw, err := dial(ctx, address)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.abandoned.Load() || w.closed {
			_ = raw.Close() // nothing was sent
			return nil, errSilent
		}
		s := &socket{Conn: raw, wire: w}
		w.sockets[s] = struct{}{}
		return s, nil
	}
}

// socket is one connection of a wire, below TLS.
type socket struct {
	net.Conn
	wire  *wire
	muted atomic.Bool
}

// mute makes Read and Write fail without telling the other side.
func (s *socket) mute() {
	s.muted.Store(true)
	_ = s.Conn.SetDeadline(time.Unix(1, 0)) // wakes who waits; fails only where nobody can wait
}

// Read implements net.Conn. It looks at the clock, which is all that telling a
// silent connection costs a call.
func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n > 0 {
		s.wire.heard.Store(int64(time.Since(s.wire.began)))
	}
	if s.muted.Load() {
		return 0, errSilent
	}
	return n, err
}

// Write implements net.Conn.
func (s *socket) Write(p []byte) (int, error) {
	if s.muted.Load() {
		return 0, errSilent
	}
	return s.Conn.Write(p)
}

// Close implements net.Conn. The socket of a wire that was given up stays open,
// mute, until the wire is closed: gRPC finds out as well that nobody answers its
// pings, but the node must not hear of it the moment its network is back.
func (s *socket) Close() error {
	w := s.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, open := w.sockets[s]; !open {
		return net.ErrClosed
	}
	if w.abandoned.Load() {
		s.mute()
		return nil
	}
	delete(w.sockets, s)
	w.lost.Store(h2.NextNumber()) // before gRPC ends what was on it
	return s.Conn.Close()
}
