package app

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/wire"
)

// guests are the connections of clients to one server.
type guests struct {
	mu        sync.Mutex // guards open, newcomers, seconds and ended
	open      map[*guest]struct{}
	newcomers list.List     // those of which no request has come yet, the oldest first; some may have one by now
	left      chan struct{} // capacity 1: open shrank

	seconds map[*guest]time.Time // those of HTTP/2, and when they were taken in; guarded by mu
	queue   chan struct{}        // capacity 1: whoever holds it looks for room, and further ones of HTTP/2 wait for it in their order
	ended   time.Time            // when one of these made room whose requests were coming; guarded by mu
	most    int                  // of these; 0: as many as come
	resting time.Duration        // after which one of these is let go that has no request; 0: never
	aways   atomic.Int64         // of these that made room, and have a while to end
	refused *atomic.Int64        // closed because there were as many, those that made room among them; nil: it is not counted

	parking *parking // where those of HTTP/1.1 rest; nil: with their server. Set before the first comes

	headers *memguard.Budget // for headers of HTTP, and handshakes of TLS, that are not whole yet; nil: the server bounds them

	move  atomic.Pointer[mover]     // where guests at rest go; nil: they stay
	until atomic.Pointer[time.Time] // see hush; nil: their server does not stop
}

// mover gives a copy of a connection to another process.
type mover func(stream) error

// stream is a connection of the kernel's: over TCP, or of a Unix socket.
type stream interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

func newGuests() *guests {
	return &guests{
		open: make(map[*guest]struct{}), left: make(chan struct{}, 1), headers: memguard.OfBytes(headersFor(memoryLimit())),
		seconds: make(map[*guest]time.Time), queue: make(chan struct{}, 1),
	}
}

// guest is one connection. It knows whether it is at rest: whether every byte
// that came belongs to a request that was answered.
type guest struct {
	stream
	of   *guests
	user *userAddr // of a Unix socket; nil: the address is the connection's

	heard atomic.Bool // something came
	idle  atomic.Bool // no request is under way, for http.Server
	asked atomic.Bool // it is no newcomer: a request came (over HTTP/1.1 its headers, over HTTP/2 its first bytes), or a handshake ended where HTTP/2 is all that is spoken, or it came from another process
	rest  atomic.Bool
	mixed atomic.Bool // HTTP/2, which is never at rest: its state is on both sides
	fixed bool        // set before the first Read: it speaks TLS and cannot move either
	ahead bool        // a first byte of the next request came; only the server's reader touches it

	since time.Time     // it came; constant
	place *list.Element // among newcomers, guarded by guests.mu; nil: it is none

	moving sync.Mutex // guards moved
	moved  bool

	parked   atomic.Pointer[wire.Parked] // where it is parked, or was; nil: nowhere
	left     atomic.Bool                 // another guest has the socket, which is parked
	requests context.Context             // of those that are served while it is parked; nil: none was. Of the shard's turns
	before   []byte                      // what was read while it was parked; of the server's reader

	handshake atomic.Pointer[tls.Conn] // the one over this, until its handshake is done; nil: there is none

	whole  atomic.Bool // the headers of a request are here
	second atomic.Bool // HTTP/2 without TLS for sure, which bounds its headers itself; other goroutines read them
	// Of the goroutine that reads headers.
	preface int // bytes of HTTP/2's that have come; -1: it is something else
	head    int // bytes of headers
	share   memguard.Share
	shared  bool // share has begun

	patience time.Duration // the first bytes may take at least so long; 0: what the server says

	under atomic.Int32 // requests under way that have come whole
	free  atomic.Int64 // since when there is none of them, in nanoseconds since the epoch

	pause  atomic.Pointer[time.Time] // nothing is read until then; nil: it is
	closed chan struct{}             // once the connection is, through over
	over   sync.Once

	mu       sync.Mutex  // guards what follows
	deadline time.Time   // for reading, as the server wants it
	woken    bool        // the one in force has another reason
	parkDue  bool        // the same: its rest has been long enough then
	rests    *time.Timer // of HTTP/2, lets the connection go; nil while a request is open
	away     bool        // it made room, and closes soon whatever is open
	resting  net.Conn    // with TLS, if that is spoken; for rests
}

// greet takes in a connection that was made now.
func (s *guests) greet(conn net.Conn) net.Conn { return s.take(conn, 0, true) }

// welcome takes in a connection of another process, over which requests may have come there.
func (s *guests) welcome(conn net.Conn, patience time.Duration) net.Conn {
	return s.take(conn, patience, false)
}

func (s *guests) take(conn net.Conn, patience time.Duration, newcomer bool) net.Conn {
	below, ok := conn.(stream)
	if !ok {
		return conn
	}
	g := &guest{stream: below, of: s, patience: patience, since: time.Now(), closed: make(chan struct{})}
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
		g.place = s.newcomers.PushBack(g)
	}
	return g
}

func (s *guests) forget(g *guest) {
	s.mu.Lock()
	delete(s.open, g)
	delete(s.seconds, g)
	s.settled(g)
	s.mu.Unlock()
	g.mu.Lock()
	g.noRestLocked()
	if g.away {
		g.away = false
		s.aways.Add(-1)
	}
	g.mu.Unlock()
	select {
	case s.left <- struct{}{}:
	default:
	}
}

// settled takes g off the newcomers. mu is held.
func (s *guests) settled(g *guest) {
	if g.place != nil {
		s.newcomers.Remove(g.place)
		g.place = nil
	}
}

// newcomer is the one of which no request has come for longest; nil: there is none.
func (s *guests) newcomer() *guest {
	s.mu.Lock()
	defer s.mu.Unlock()
	for first := s.newcomers.Front(); first != nil; first = s.newcomers.Front() {
		g := first.Value.(*guest)
		if !g.asked.Load() {
			return g
		}
		s.settled(g)
	}
	return nil
}

// newcomerGivesWay closes the connection of these doors of which no request has come for longest, see door.giveWay.
func newcomerGivesWay(doors ...*door) (closed bool, wait time.Duration) {
	var oldest *guest
	for _, d := range doors {
		if g := d.guests.newcomer(); g != nil && (oldest == nil || g.since.Before(oldest.since)) {
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

// A connection of HTTP/2 that finds no room waits for it, and is closed after roomWait: one that was closed at once would be back at once, which costs
// us more than its client. Who is first in the queue looks again every roomEach.
const (
	roomEach = 50 * time.Millisecond
	roomWait = 2 * spareAfter
)

// isSecond takes g in as one of HTTP/2, if need be after a while. False: there was no room, or it was closed meanwhile, or its server stops.
func (s *guests) isSecond(g *guest) bool {
	if len(s.queue) == 0 && s.hasRoom(g) {
		return true
	}
	until := time.NewTimer(roomWait)
	defer until.Stop()
	select {
	case s.queue <- struct{}{}:
	case <-until.C:
		s.countRefused()
		return false
	case <-g.closed:
		return false
	}
	defer func() { <-s.queue }()
	each := time.NewTicker(roomEach)
	defer each.Stop()
	for !s.hasRoom(g) {
		if s.until.Load() != nil || s.move.Load() != nil {
			return false
		}
		select {
		case <-each.C:
		case <-until.C:
			s.countRefused()
			return false
		case <-g.closed:
			return false
		}
	}
	return true
}

func (s *guests) countRefused() {
	if s.refused != nil {
		s.refused.Add(1)
	}
}

// hasRoom takes g in as one of HTTP/2. Where there are as many as there may be, one makes room that has had no request under
// way for a while. False: there is none.
func (s *guests) hasRoom(g *guest) bool {
	s.mu.Lock()
	if _, here := s.open[g]; !here || s.most == 0 { // it was closed, or there may be any number
		s.mu.Unlock()
		return here
	}
	now := time.Now()
	var gone *guest
	if len(s.seconds) >= s.most {
		if gone = s.spareLocked(now); gone == nil {
			s.mu.Unlock()
			return false
		}
		if !gone.idle.Load() {
			s.ended = now
		}
		s.countRefused()
		delete(s.seconds, gone)
	}
	s.seconds[g] = now
	s.mu.Unlock()
	if gone != nil && (s.aways.Load() >= int64(max(1, s.most/8)) || !gone.sendAway()) {
		gone.leave()
	}
	return true
}

// endsEach is from one connection that makes room with requests on it to the next: each of these is work to end, and as many begin on the
// connection that takes the place. Without it 40 connections of 100 requests each ended and began at a moment, over and over, and calls of
// others took 61 ms (p99).
const endsEach = 250 * time.Millisecond

// spareAfter is for how long a connection has had no request under way until it makes room.
const spareAfter = time.Second

// spareLocked is the one that makes room: of those on which no request has ever come whole the one that has been here for longest; else of those
// without requests the one that has had none for longest; else one whose requests are all coming. nil: there is none.
func (s *guests) spareLocked(now time.Time) (spare *guest) {
	rank := func(g *guest) (rank int, free int64) {
		free = g.free.Load()
		switch {
		case free == g.since.UnixNano():
			return 0, free
		case g.idle.Load():
			return 1, free
		}
		return 2, free
	}
	var least int
	var longest int64
	mayEnd, blocked := now.Sub(s.ended) >= endsEach, 3 // above all ranks: none is
	for g, taken := range s.seconds {
		n, free := rank(g)
		if g.under.Load() > 0 || now.UnixNano()-max(free, taken.UnixNano()) < int64(spareAfter) {
			continue
		}
		if !mayEnd && !g.idle.Load() {
			blocked = min(blocked, n)
			continue
		}
		if spare == nil || n < least || n == least && free < longest {
			spare, least, longest = g, n, free
		}
	}
	if spare != nil && blocked < least {
		return nil // that one's time comes soon
	}
	return spare
}

// underWay says that one more request has come whole, or that one of these has ended.
func (g *guest) underWay(delta int) {
	if g.under.Add(int32(delta)) == 0 {
		g.free.Store(time.Now().UnixNano())
	}
}

// leave closes those over which nothing has come yet: somebody dialled and says
// nothing. Servers wait for their first bytes also while they stop, and a client
// is owed nothing for them.
func (s *guests) leave() {
	for _, g := range s.all() {
		if !g.heard.Load() {
			g.leave()
		}
	}
}

// leave closes the connection here, whether or not another process serves now.
func (g *guest) leave() {
	_ = g.end() // its reader sees it
}

// end closes the connection, and ends a pause.
func (g *guest) end() error {
	g.over.Do(func() { close(g.closed) })
	g.of.forget(g)
	if g.left.Load() {
		return nil
	}
	g.recall()
	return g.stream.Close()
}

// size is how many there are.
func (s *guests) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

func (s *guests) all() []*guest {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*guest, 0, len(s.open))
	for g := range s.open {
		all = append(all, g)
	}
	return all
}

// moveTo makes every guest leave through move as soon as it is at rest, without
// its client noticing.
func (s *guests) moveTo(move mover) {
	s.move.Store(&move)
	for _, g := range s.all() {
		if read, ok := g.recall(); ok {
			g.goOn(read)
		} else if g.rest.Load() {
			g.wake()
		}
	}
}

// empty returns when no guest is left that can be moved, or done is closed.
func (s *guests) empty(done <-chan struct{}) {
	for {
		movable := 0
		for _, g := range s.all() {
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

// Read notes what comes, and at rest takes the chance to move instead.
func (g *guest) Read(b []byte) (int, error) {
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
func (g *guest) read(b []byte) (n int, err error) {
	if len(g.before) == 0 {
		return g.stream.Read(b)
	}
	n = copy(b, g.before)
	if g.before = g.before[n:]; len(g.before) == 0 {
		g.before = nil
	}
	return n, nil
}

// pauseUntil has nothing read until then. It is for HTTP/2, whose server sets no deadlines for reading.
func (g *guest) pauseUntil(t time.Time) {
	for {
		was := g.pause.Load()
		if was != nil && was.After(t) || g.pause.CompareAndSwap(was, &t) {
			return
		}
	}
}

// paused returns when the pause is over, or the connection.
func (g *guest) paused() {
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
func (g *guest) note(b []byte, peeked bool) {
	if !g.heard.Load() {
		// "PRI * HTTP/2.0". A lone P may become one; better once not moved.
		g.mixed.Store(g.fixed || b[0] == 'P' && (len(b) == 1 || b[1] == 'R'))
		g.heard.Store(true)
		if g.of.headers == nil { // a listener of HTTP/2 alone, without TLS
			g.asked.Store(true)
		}
	}
	g.ahead = peeked
	g.rest.Store(false)
}

// http2Preface is what a client of HTTP/2 sends first. Less of it may be the beginning of a request of HTTP/1.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// prefaced reports whether what came is all of HTTP/2's preface, and notes what is.
func (g *guest) prefaced(b []byte) bool {
	if g.preface < 0 {
		return false
	}
	next := http2Preface[g.preface:]
	if n := min(len(b), len(next)); string(b[:n]) == next[:n] {
		g.preface += n
	} else {
		g.preface = -1
	}
	return g.preface == len(http2Preface)
}

// freeHead is how much of headers is not counted, in bytes: it fits the buffer that each connection has.
const freeHead = 4 << 10

var errHeaders = errors.New("app: headers came slowly, or there is no memory for them")

// roomFor reports whether there is memory for b, if it is of headers. If it becomes short while they come slowly, the
// connection ends.
func (g *guest) roomFor(b []byte) bool {
	if g.prefaced(b) {
		g.headersAre(true)
		g.second.Store(true)
		if g.of.headers != nil && !g.of.isSecond(g) {
			g.leave() // net/http takes what it has read for a request of HTTP/1 otherwise
			return false
		}
		return true
	}
	n := len(b)
	if g.head += n; g.head <= freeHead {
		return true
	}
	if !g.shared {
		g.shared = true
		g.share.Begin(g.of.headers, nil, 0)
		g.share.Coming(func() { _ = g.stream.SetReadDeadline(time.Unix(1, 0)) }) // its reader sees it
	}
	return g.share.Take(headTwice*n) == ""
}

// headTwice: headers are there as they came and as a request.
const headTwice = 2

// heads tells a guest of its headers. It is for http.Server.ConnState.
func heads(conn net.Conn, state http.ConnState) {
	g, ok := below(conn).(*guest)
	if !ok {
		return
	}
	g.idle.Store(state != http.StateActive)
	secure, ok := conn.(*tls.Conn)
	if state == http.StateNew {
		g.handshake.Store(secure)
		return
	}
	g.asked.Store(true)
	// HTTP/2 bounds its headers itself, and another goroutine reads them.
	second := g.second.Load() || ok && secure.ConnectionState().NegotiatedProtocol == "h2"
	g.headersAre(state != http.StateIdle || second)
	if second {
		g.restsNow(state == http.StateIdle, conn)
	}
}

// goAway tells a client of HTTP/2 to send what follows on another connection (RFC 9113, 6.8: no error, and none of the requests is said
// to be lost). A frame may stand between any others of a connection without requests: its server writes them whole.
const goAway = "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00"

// leaveTaking is how long a client has for that. What it has sent meanwhile is answered.
const leaveTaking = time.Second

// awayAfter is the same for one that made room. It no longer counts, so it closes whatever it asks for, and an eighth as many as may be open have
// that time, at a time: further ones close at once.
const awayAfter = 3 * time.Second

// restsNow says whether a connection of HTTP/2 has no request open. Once it has had none for guests.resting its client is told
// (goAway), and it is closed.
func (g *guest) restsNow(rests bool, conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.away {
		return
	}
	g.noRestLocked()
	if rests && g.of.resting > 0 {
		g.resting = conn
		g.awayLocked(g.of.resting)
	}
}

func (g *guest) noRestLocked() {
	if g.rests != nil {
		g.rests.Stop()
		g.rests, g.resting = nil, nil
	}
}

// sendAway has a connection without requests told now, and closed awayAfter later: what it asks for meanwhile is answered, if that takes no longer. False:
// it has some.
func (g *guest) sendAway() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rests == nil || !g.rests.Stop() {
		return false
	}
	g.away = true
	g.of.aways.Add(1)
	g.awayLocked(0)
	return true
}

func (g *guest) awayLocked(after time.Duration) {
	conn := g.resting
	var this *time.Timer
	this = time.AfterFunc(after, func() {
		defer panics.Go("a connection at rest")
		_ = g.SetWriteDeadline(time.Now().Add(leaveTaking))
		_, _ = io.WriteString(conn, goAway)
		_ = g.SetWriteDeadline(time.Time{})
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.rests == this { // no request has come meanwhile, or it is away
			wait := leaveTaking
			if g.away {
				wait = awayAfter
			}
			g.rests = time.AfterFunc(wait, func() {
				defer panics.Go("the end of a connection at rest")
				g.leave()
			})
		}
	})
	g.rests = this
}

// shook has what comes after the handshake of TLS counted anew. It is for the goroutine that shakes hands, before and after.
func (g *guest) shook() {
	secure := g.handshake.Load()
	if secure == nil {
		return
	}
	if state := secure.ConnectionState(); state.HandshakeComplete {
		g.handshake.Store(nil)
		second := state.NegotiatedProtocol == "h2"
		g.headersAre(second)
		if second && !g.of.isSecond(g) {
			g.leave()
		}
	}
}

// headersAre says whether the headers of a request are here whole.
func (g *guest) headersAre(whole bool) {
	if g.second.Load() {
		return
	}
	g.whole.Store(whole)
	g.head = 0
	if g.shared {
		g.shared = false
		g.share.Release()
	}
}

// Shaken says that the handshake of TLS is over, well or not, where HTTP/2 is all that is spoken over it. What comes now is bounded elsewhere.
func (g *guest) Shaken() {
	g.asked.Store(true)
	g.headersAre(true)
}

// Heard says that something came, where the socket is read below this.
func (g *guest) Heard() {
	g.mixed.Store(true)
	g.heard.Store(true)
	if g.of.headers == nil { // else a handshake comes first
		g.asked.Store(true)
	}
	g.rest.Store(false)
}

// settle says that a request was answered and none is being read.
func (g *guest) settle() {
	// In this order: of HTTP/2 another goroutine than the reader says this.
	if !g.mixed.Load() && !g.ahead {
		g.rest.Store(true)
	}
}

// depart moves the connection, if guests move now. Once it has moved, what comes
// is for the other process: nothing may be read any more.
func (g *guest) depart() bool {
	move := g.of.move.Load()
	if move == nil {
		return false
	}
	g.moving.Lock()
	defer g.moving.Unlock()
	if !g.moved {
		g.moved = (*move)(g.stream) == nil
	}
	if !g.moved {
		g.of.move.Store(nil) // there is no other process any more
	}
	return g.moved
}

// wake interrupts a Read.
func (g *guest) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.woken = true
	_ = g.stream.SetReadDeadline(time.Unix(1, 0)) // fails only when closed
}

// resume tells whether a Read was interrupted for another reason than the server's deadline, and puts that in force. parks: it was because the rest
// has been long enough.
func (g *guest) resume() (goesOn, parks bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.woken && !g.parkDue {
		return false, false
	}
	parks = g.parkDue && !g.woken
	g.woken, g.parkDue = false, false
	return g.stream.SetReadDeadline(g.deadline) == nil, parks
}

// SetReadDeadline is the server's. http.Server calls it before a handshake of TLS and after it.
func (g *guest) SetReadDeadline(t time.Time) error {
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
	return g.stream.SetReadDeadline(t)
}

// goodbyes is how long the last words of TLS may take on all connections that have no request under way, together.
const goodbyes = time.Second

// hush bounds those words from now on. Else a server that stops has 5 s for each client that reads nothing, one after the other.
func (s *guests) hush() {
	if s != nil {
		until := time.Now().Add(goodbyes)
		s.until.Store(&until)
	}
}

// cut closes all connections here, without a word.
func (s *guests) cut() {
	if s != nil {
		for _, g := range s.all() {
			g.leave()
		}
	}
}

// SetWriteDeadline is the server's, and TLS's for its last words.
func (g *guest) SetWriteDeadline(t time.Time) error {
	if until := g.of.until.Load(); until != nil && g.idle.Load() && t.After(*until) {
		t = *until
	}
	return g.stream.SetWriteDeadline(t)
}

// RemoteAddr tells the user of a program on the same machine, if the connection is of a Unix socket.
func (g *guest) RemoteAddr() net.Addr {
	if g.user != nil {
		return g.user
	}
	return g.stream.RemoteAddr()
}

// SetDeadline is the server's.
func (g *guest) SetDeadline(t time.Time) error {
	return errors.Join(g.SetReadDeadline(t), g.SetWriteDeadline(t))
}

// Close forgets the connection. A server that closes one of which it has read
// nothing, because it stops, leaves it to the other process.
func (g *guest) Close() error {
	if !g.heard.Load() {
		g.depart()
	}
	return g.end()
}
