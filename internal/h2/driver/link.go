package driver

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// tryWriter is a connection that can be written to without blocking.
type tryWriter interface{ TryWrite(p []byte) int }

// link is one connection.
//
// Wide: there is one for each connection, and its small fields of several users share words.
type link struct {
	shard  *Shard
	client bool
	nc     net.Conn // the socket; under mu until the goroutine of the link runs
	secured
	raw

	conn    *h2.Conn // guarded by shard.mu
	writing bool     // guarded by shard.mu: a goroutine writes
	blocked bool     // guarded by shard.mu: that goroutine writes because the socket did not take all
	writes  uint64   // guarded by shard.mu: writes so far, the one in hand among them
	taken   [][]byte // what it writes
	at      int      // of taken: the first that is not wholly out
	out     int      // bytes of that that are out
	hungUp  bool     // guarded by shard.mu: our side has ended
	heard   bool     // something has come; of the reading goroutine
	turn    turn     // of the reading goroutine

	poller  *poller   // reads it in place of a goroutine of its own, set once
	slot    int32     // the poller's name for it
	much    bool      // there was more than the poller read last; of its goroutine
	heavy   bool      // a client that is new, or of which heavySize or more was read last; the same
	waits   bool      // it is among poller.heavy; the same
	most    int       // bytes that the poller reads at once, as long as it is heavy; 0: as many as there is room for; the same
	closeAt time.Time // guarded by shard.mu: the poller closes it, zero: when its peer does
	parked  *Parked   // it is somebody else's; nil: it is the shard's. Constant
	oldAt   time.Time // see Age; constant
	user    uint32    // see User; constant, as local
	local   bool      // user is known

	certificate *apps.Certificate // see Certificate; constant once the handshake is over
}

// isRationed reports whether the connection is one of those that share the time of a turn: a client's.
func (l *link) isRationed() bool { return l.client || l.parked != nil }

// tryWrite writes as much of what was taken as the socket takes now and returns the
// bytes, as they go over the wire, that it does not. broken: it panicked.
func (l *link) tryWrite() (rest net.Buffers, broken bool) {
	defer func() {
		if v := recover(); v != nil {
			_ = panics.Caught(writePlace, v)
			rest, broken = nil, true
		}
	}()
	if l.tls == nil {
		return l.raw.write(l.taken), false
	}
	l.sealed.seal()
	for _, b := range l.taken {
		if _, err := l.tls.Write(b); err != nil {
			return nil, false // the reader will see it
		}
	}
	l.raw.spare[0] = l.sealed.take(l.raw.spare[0])
	return l.raw.write(l.raw.spare[:]), false
}

const writePlace = "a write to a connection"

// left returns what is left of bufs behind the first n bytes.
func left(bufs [][]byte, n int) (rest net.Buffers) {
	for _, b := range bufs {
		if n < len(b) {
			rest = append(rest, b[n:])
		}
		n = max(n-len(b), 0)
	}
	return rest
}

// pieceSize is how much a peer that is slow takes before that counts as progress.
const pieceSize = 64 << 10

// cut takes the first n bytes of bufs.
func cut(bufs net.Buffers, n int) (first, rest net.Buffers) {
	for i, b := range bufs {
		if len(b) > n {
			bufs[i] = b[n:]
			return append(first, b[:n]), bufs[i:]
		}
		first, n = append(first, b), n-len(b)
	}
	return first, nil
}

// writeLater writes what was taken, and goes on as writeOn.
func (l *link) writeLater() {
	rest, broken := l.tryWrite()
	if len(rest) > 0 {
		l.shard.mu.Lock()
		l.blocked = true
		l.shard.mu.Unlock()
	}
	l.writeOn(rest, broken)
}

// writeOn writes the rest of what was taken, and what comes up meanwhile, and may block. After each piece the
// forwarder is told.
func (l *link) writeOn(rest net.Buffers, broken bool) {
	s := l.shard
	defer s.wg.Done()
	for {
		for !broken && len(rest) > 0 {
			var piece net.Buffers
			piece, rest = cut(rest, pieceSize)
			n, failed := int64(0), false
			broken = panics.Call(writePlace, func() error {
				var err error
				n, err = piece.WriteTo(l.nc)
				failed = err != nil // the reader will see it
				return nil
			}) != nil
			if failed {
				break
			}
			if !broken && len(rest) > 0 {
				s.mu.Lock()
				s.turn(func() { l.wrote(int(n)) })
				var t turn
				s.flush(&t)
				s.mu.Unlock()
			}
		}
		s.mu.Lock()
		more := false
		s.turn(func() {
			if broken {
				l.breakOff()
				return
			}
			l.written()
			more = l.take()
		})
		if !more {
			l.blocked = false
			var t turn
			s.flush(&t)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		rest, broken = l.tryWrite()
	}
}

const (
	lastWords = 10 * time.Second // for a peer to take the rest of what a connection that ends has for it
	lingering = time.Second      // for it to close its side after that
)

// hangUp ends our side; the peer gets a moment to read what we said last. The reader
// closes the connection. mu is held.
func (l *link) hangUp() {
	if l.hungUp || l.shard.closed {
		return
	}
	l.hungUp = true
	wait := time.Duration(0)
	if l.tls != nil && l.tls.CloseWrite() == nil {
		l.nc.SetWriteDeadline(time.Now().Add(lingering)) // CloseWrite has left one in the past
		l.raw.write([][]byte{l.sealed.take(nil)})
	}
	if c, ok := l.nc.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		wait = lingering
	}
	if until := time.Now().Add(wait); l.poller != nil {
		l.poller.closeAt(l, until)
	} else {
		l.nc.SetReadDeadline(until)
	}
}

// close forgets the connection.
func (l *link) close() {
	s := l.shard
	if l.poller != nil {
		l.poller.leave(l)
	}
	l.nc.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.poller != nil {
		l.poller.forget(l)
	}
	l.hungUp = true // Close may have given the socket to somebody else
	delete(s.links, l)
	if l.conn != nil {
		s.turn(l.conn.Close)
		s.flush(&l.turn)
	}
	if l.client {
		s.clients.Add(-1)
		s.emptied()
	}
}

// maxRecord is the most that one record of TLS holds, and so one read from it.
const maxRecord = 16 << 10

// readSize is the room for one read: 16 frames of a large message, or some hundred calls.
const readSize = 64 << 10

var readBuffers = sync.Pool{New: func() any { return new([readSize]byte) }}

// read feeds the forwarder until the connection ends, or the poller does so. That is only
// when something has come: until then whoever sets a deadline wants to see it at work.
func (l *link) read() {
	for l.tls == nil {
		first := !l.heard
		socket, err := l.raw.read(l.shard.entry, l.deliver, first)
		if !socket {
			break
		}
		if first && l.heard && err == nil {
			if l.shard.join(l) {
				return
			}
			continue
		}
		if !l.goesOn(err) {
			l.close()
			return
		}
	}
	if l.tls != nil && l.raw.isSocket() {
		goes, joined := l.joinSealed()
		if joined {
			return
		}
		if !goes {
			l.close()
			return
		}
	}
	defer l.close()
	read := l.nc.Read
	if l.tls != nil {
		read = l.sealed.unseal
	}
	b := make([]byte, 4<<10) // idle connections have no need of more
	for {
		n, err := read(b)
		if n > 0 {
			l.received(b[:n])
		}
		if n == len(b) && n < maxRecord {
			b = make([]byte, maxRecord)
		}
		if err != nil && !l.goesOn(err) {
			return
		}
	}
}

// joinSealed has the poller read a connection with TLS, after what TLS has read ahead of the handshake's end. goes:
// else its goroutine is to go on; false: the peer has ended it.
func (l *link) joinSealed() (goes, joined bool) {
	l.sealed.fed = true
	b := make([]byte, maxRecord)
	for {
		n, err := l.sealed.open(nil, b)
		if n > 0 {
			l.received(b[:n])
		}
		if err == errDry {
			break
		}
		if err != nil {
			return false, false
		}
	}
	if joined = l.shard.join(l); !joined {
		l.sealed.fed = false
	}
	return true, joined
}

// goesOn reports whether reading goes on after err: it was for a deadline that somebody
// had set who did not know yet that something has come.
func (l *link) goesOn(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) || !l.heard {
		return false
	}
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	return !l.hungUp && !l.shard.closed && l.nc.SetReadDeadline(time.Time{}) == nil
}

// hear notes that something has come.
func (l *link) hear() {
	if l.heard {
		return
	}
	l.heard = true
	if h, ok := l.nc.(interface{ Heard() }); ok {
		h.Heard()
	}
}

// received is deliver in its turn among those who have no poller.
func (l *link) received(b []byte) {
	l.shard.entry.Lock()
	l.deliver(b)
	l.shard.entry.Unlock()
}

// deliver gives the forwarder bytes and writes what comes of them. entry is held.
func (l *link) deliver(b []byte) {
	l.hear()
	s := l.shard
	s.mu.Lock()
	s.advance()
	s.receive(l, b)
	s.flush(&l.turn)
	s.mu.Unlock()
}
