package listen

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/memguard"
)

// Conns are the connections of clients to one server.
type Conns struct {
	mu        sync.Mutex // guards open, newcomers, seconds and ended
	open      map[*Conn]struct{}
	newcomers list.List     // connections of which no request has come yet, the oldest first; some may have one by now
	left      chan struct{} // capacity 1: open shrank

	seconds map[*Conn]time.Time // connections of HTTP/2, and when they were taken in; guarded by mu
	queue   chan struct{}       // capacity 1: whoever holds it looks for room, and further ones of HTTP/2 wait for it in their order
	ended   time.Time           // when one of these made room whose requests were coming; guarded by mu
	most    int                 // of connections of HTTP/2; 0: as many as come
	resting time.Duration       // after which one of these is let go that has no request; 0: never
	leaving atomic.Int64        // how many made room, and have a while to end
	refused *atomic.Int64       // closed because there were as many, those that made room among them; nil: it is not counted

	Parking *Parking // where those of HTTP/1.1 rest; nil: with their server. Set before the first comes

	Headers *memguard.Budget // for headers of HTTP, and handshakes of TLS, that are not whole yet; nil: the server bounds them

	move  atomic.Pointer[Mover]     // where idle connections go; nil: they stay
	until atomic.Pointer[time.Time] // see Hush; nil: their server does not stop
}

// Mover gives a copy of a connection to another process.
type Mover func(Stream) error

// Stream is a connection of the kernel's: over TCP, or of a Unix socket.
type Stream interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// NewConns makes none. memory is the limit of the process, in bytes; 0: there is none.
func NewConns(memory int64) *Conns {
	return &Conns{
		open: make(map[*Conn]struct{}), left: make(chan struct{}, 1), Headers: memguard.OfBytes(headersFor(memory)),
		seconds: make(map[*Conn]time.Time), queue: make(chan struct{}, 1),
	}
}

// Conn is one connection. It knows whether it is idle: whether every byte
// that came belongs to a request that was answered.
type Conn struct {
	Stream
	of *Conns

	heard atomic.Bool // something came
	idle  atomic.Bool // no request is under way, for http.Server
	rest  atomic.Bool
	mixed atomic.Bool // HTTP/2, which never counts as idle: its state is on both sides
	fixed bool        // set before the first Read: it speaks TLS and cannot move either
	ahead bool        // a first byte of the next request came; only the server's reader touches it

	arrival
	move
	parkedState
	heading
	underWay
	ending
	timing
}

// arrival is how a connection came.
type arrival struct {
	user     *UserAddr     // of a Unix socket; nil: the address is the connection's
	since    time.Time     // it came; constant
	patience time.Duration // the first bytes may take at least so long; 0: what the server says
	elem     *list.Element // among newcomers, guarded by Conns.mu; nil: it is none
	// asked: it is no newcomer. A request came (over HTTP/1.1 its headers, over HTTP/2 its first bytes), or a handshake ended where
	// HTTP/2 is all that is spoken, or it came from another process.
	asked atomic.Bool
}

// move is whether a connection has moved to another process.
type move struct {
	moving sync.Mutex // guards moved
	moved  bool
}

// parkedState is what a connection keeps while it is parked.
type parkedState struct {
	parked   atomic.Pointer[Parked] // where it is parked, or was; nil: nowhere
	requests context.Context        // of the requests that are served while it is parked; nil: none was. Of the shard's turns
	before   []byte                 // what was read while it was parked; of the server's reader
	left     atomic.Bool            // another connection has the socket, which is parked
}

// heading is how far the headers of a request have come.
type heading struct {
	handshake atomic.Pointer[tls.Conn] // the one over this, until its handshake is done; nil: there is none

	whole  atomic.Bool // the headers of a request are here
	second atomic.Bool // HTTP/2 without TLS for sure, which bounds its headers itself; other goroutines read them
	// Of the goroutine that reads headers.
	reserving bool // share has begun
	preface   int  // bytes of HTTP/2's that have come; -1: it is something else
	head      int  // bytes of headers
	memory    memguard.Reservation
}

// underWay counts the requests of a connection.
type underWay struct {
	under atomic.Int32 // requests under way that have come whole
	free  atomic.Int64 // since when there is none of them, in nanoseconds since the epoch
}

// ending is how a connection closes.
type ending struct {
	pause  atomic.Pointer[time.Time] // nothing is read until then; nil: it is
	closed chan struct{}             // once the connection is, through over
	over   sync.Once
}

// timing is until when a connection waits, and for what.
type timing struct {
	mu       sync.Mutex  // guards what follows
	deadline time.Time   // for reading, as the server wants it
	rests    *time.Timer // of HTTP/2, lets the connection go; nil while a request is open
	resting  net.Conn    // with TLS, if that is spoken; for rests
	woken    bool        // the deadline in force has another reason
	parkDue  bool        // its reason is that the connection has been idle long enough to be parked
	away     bool        // it made room, and closes soon whatever is open
}

// Greet takes in a connection that was made now.
func (s *Conns) Greet(conn net.Conn) net.Conn { return s.take(conn, 0, true) }

// Welcome takes in a connection of another process, over which requests may have come there.
func (s *Conns) Welcome(conn net.Conn, patience time.Duration) net.Conn {
	return s.take(conn, patience, false)
}

func (s *Conns) take(conn net.Conn, patience time.Duration, newcomer bool) net.Conn {
	below, ok := conn.(Stream)
	if !ok {
		return conn
	}
	g := &Conn{Stream: below, of: s}
	g.patience, g.since, g.closed = patience, time.Now(), make(chan struct{})
	g.free.Store(g.since.UnixNano())
	if local, ok := conn.(*net.UnixConn); ok {
		g.user = newUserAddr(local)
	}
	g.rest.Store(true)
	g.asked.Store(!newcomer)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[g] = struct{}{}
	if newcomer {
		g.elem = s.newcomers.PushBack(g)
	}
	return g
}

func (s *Conns) forget(g *Conn) {
	s.mu.Lock()
	delete(s.open, g)
	delete(s.seconds, g)
	s.settled(g)
	s.mu.Unlock()
	g.mu.Lock()
	g.noRestLocked()
	if g.away {
		g.away = false
		s.leaving.Add(-1)
	}
	g.mu.Unlock()
	select {
	case s.left <- struct{}{}:
	default:
	}
}

// settled takes g off the newcomers. mu is held.
func (s *Conns) settled(g *Conn) {
	if g.elem != nil {
		s.newcomers.Remove(g.elem)
		g.elem = nil
	}
}

// newcomer is the one of which no request has come for longest; nil: there is none.
func (s *Conns) newcomer() *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for first := s.newcomers.Front(); first != nil; first = s.newcomers.Front() {
		g := first.Value.(*Conn)
		if !g.asked.Load() {
			return g
		}
		s.settled(g)
	}
	return nil
}

// newcomerGivesWay closes the connection of these doors of which no request has come for longest, see Door.giveWay.
func newcomerGivesWay(doors ...*Door) (closed bool, wait time.Duration) {
	var oldest *Conn
	for _, d := range doors {
		if g := d.conns.newcomer(); g != nil && (oldest == nil || g.since.Before(oldest.since)) {
			oldest = g
		}
	}
	if oldest == nil {
		return false, 0
	}
	if wait := idleLeast - time.Since(oldest.since); wait > 0 {
		return false, wait
	}
	oldest.leave()
	return true, 0
}

// Leave closes those over which nothing has come yet: somebody dialled and says
// nothing. Servers wait for their first bytes also while they stop, and a client
// is owed nothing for them.
func (s *Conns) Leave() {
	for _, g := range s.All() {
		if g.Silent() {
			g.leave()
		}
	}
}

// Silent reports whether nothing has come yet.
func (g *Conn) Silent() bool { return !g.heard.Load() }

// leave closes the connection here, whether or not another process serves now.
func (g *Conn) leave() {
	_ = g.end() // its reader sees it
}

// end closes the connection, and ends a pause.
func (g *Conn) end() error {
	g.over.Do(func() { close(g.closed) })
	g.of.forget(g)
	if g.left.Load() {
		return nil
	}
	g.recall()
	return g.Stream.Close()
}

// Size is how many there are.
func (s *Conns) Size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// SetMost bounds those of HTTP/2; 0: as many as come.
func (s *Conns) SetMost(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = n
}

// All returns all of them.
func (s *Conns) All() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Conn, 0, len(s.open))
	for g := range s.open {
		all = append(all, g)
	}
	return all
}

// MoveTo makes every connection leave through move as soon as it is idle, without
// its client noticing.
func (s *Conns) MoveTo(move Mover) {
	s.move.Store(&move)
	for _, g := range s.All() {
		if read, ok := g.recall(); ok {
			g.goOn(read)
		} else if g.rest.Load() {
			g.wake()
		}
	}
}

// Empty returns when no connection is left that can be moved, or done is closed.
func (s *Conns) Empty(done <-chan struct{}) {
	for {
		movable := 0
		for _, g := range s.All() {
			if !g.mixed.Load() {
				movable++
			}
		}
		if movable == 0 {
			return
		}
		select {
		case <-s.left:
		case <-done:
			return
		}
	}
}

// Read notes what comes. On an idle connection it takes the chance to move instead.
func (g *Conn) Read(b []byte) (int, error) {
	for {
		if g.rest.Load() && g.depart() {
			return 0, io.EOF
		}
		g.paused()
		n, err := g.read(b)
		if n > 0 {
			g.note(b[:n], len(b) == 1)
			if !g.whole.Load() && !g.second.Load() && !g.roomFor(b[:n]) {
				return 0, errHeaders
			}
			return n, err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		goesOn, parks := g.resume()
		if !goesOn {
			return n, err
		}
		if parks && g.rest.Load() && g.park() {
			return 0, io.EOF
		}
	}
}

// read reads what was read before, and then the socket.
func (g *Conn) read(b []byte) (n int, err error) {
	if len(g.before) == 0 {
		return g.Stream.Read(b)
	}
	n = copy(b, g.before)
	if g.before = g.before[n:]; len(g.before) == 0 {
		g.before = nil
	}
	return n, nil
}

// PauseUntil has nothing read until then. It is for HTTP/2, whose server sets no deadlines for reading.
func (g *Conn) PauseUntil(t time.Time) {
	for {
		was := g.pause.Load()
		if was != nil && was.After(t) || g.pause.CompareAndSwap(was, &t) {
			return
		}
	}
}

// paused returns when the pause is over, or the connection.
func (g *Conn) paused() {
	for until := g.pause.Load(); until != nil; until = g.pause.Load() {
		wait := time.Until(*until)
		if wait <= 0 {
			g.pause.CompareAndSwap(until, nil)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-g.closed:
			timer.Stop()
			return
		}
	}
}

// note learns from what came. peeked: it was read by net/http while a request
// runs, a single byte, to see whether the client leaves.
func (g *Conn) note(b []byte, peeked bool) {
	if !g.heard.Load() {
		// "PRI * HTTP/2.0". A lone P may become one; better once not moved.
		g.mixed.Store(g.fixed || b[0] == 'P' && (len(b) == 1 || b[1] == 'R'))
		g.heard.Store(true)
		if g.of.Headers == nil { // a listener of HTTP/2 alone, without TLS
			g.asked.Store(true)
		}
	}
	g.ahead = peeked
	g.rest.Store(false)
}

// Heard says that something came, where the socket is read below this.
func (g *Conn) Heard() {
	g.mixed.Store(true)
	g.heard.Store(true)
	if g.of.Headers == nil { // else a handshake comes first
		g.asked.Store(true)
	}
	g.rest.Store(false)
}

// settle says that a request was answered and none is being read.
func (g *Conn) settle() {
	// In this order: of HTTP/2 another goroutine than the reader says this.
	if !g.mixed.Load() && !g.ahead {
		g.rest.Store(true)
	}
}

// depart moves the connection, if connections move now. Once it has moved, what comes
// is for the other process: nothing may be read any more.
func (g *Conn) depart() bool {
	move := g.of.move.Load()
	if move == nil {
		return false
	}
	g.moving.Lock()
	defer g.moving.Unlock()
	if !g.moved {
		g.moved = (*move)(g.Stream) == nil
	}
	if !g.moved {
		g.of.move.Store(nil) // there is no other process any more
	}
	return g.moved
}

// wake interrupts a Read.
func (g *Conn) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.woken = true
	_ = g.Stream.SetReadDeadline(time.Unix(1, 0)) // fails only when closed
}

// resume tells whether a Read was interrupted for another reason than the server's deadline, and puts that in force.
// parks: it was because the rest has been long enough.
func (g *Conn) resume() (goesOn, parks bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.woken && !g.parkDue {
		return false, false
	}
	parks = g.parkDue && !g.woken
	g.woken, g.parkDue = false, false
	return g.Stream.SetReadDeadline(g.deadline) == nil, parks
}

// SetReadDeadline is the server's. http.Server calls it before a handshake of TLS and after it.
func (g *Conn) SetReadDeadline(t time.Time) error {
	g.shook()
	g.mu.Lock()
	defer g.mu.Unlock()
	if patient := time.Now().Add(g.patience); g.patience > 0 && !g.heard.Load() && !t.IsZero() && t.Before(patient) {
		t = patient
	}
	g.deadline = t
	due, isDue := g.parksAt(t)
	if g.parkDue = isDue; isDue {
		t = due
	}
	return g.Stream.SetReadDeadline(t)
}

// goodbyes is how long the last words of TLS may take on all connections that have no request under way, together.
const goodbyes = time.Second

// Hush bounds those words from now on. Else a server that stops has 5 s for each client that reads nothing, one after the other.
func (s *Conns) Hush() {
	if s != nil {
		until := time.Now().Add(goodbyes)
		s.until.Store(&until)
	}
}

// cut closes all connections here, without a word.
func (s *Conns) cut() {
	if s != nil {
		for _, g := range s.All() {
			g.leave()
		}
	}
}

// SetWriteDeadline is the server's, and TLS's for its last words.
func (g *Conn) SetWriteDeadline(t time.Time) error {
	if until := g.of.until.Load(); until != nil && g.idle.Load() && t.After(*until) {
		t = *until
	}
	return g.Stream.SetWriteDeadline(t)
}

// RemoteAddr tells the user of a program on the same machine, if the connection is of a Unix socket.
func (g *Conn) RemoteAddr() net.Addr {
	if g.user != nil {
		return g.user
	}
	return g.Stream.RemoteAddr()
}

// SetDeadline is the server's.
func (g *Conn) SetDeadline(t time.Time) error {
	return errors.Join(g.SetReadDeadline(t), g.SetWriteDeadline(t))
}

// Close forgets the connection. A server that closes one of which it has read
// nothing, because it stops, leaves it to the other process.
func (g *Conn) Close() error {
	if !g.heard.Load() {
		g.depart()
	}
	return g.end()
}
