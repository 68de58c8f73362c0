package driver

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Next is what becomes of a connection that is parked.
type Next int

// What may become of it.
const (
	Stays   Next = iota // its socket is watched on
	Busy                // an answer is under way: nothing is read until it has gone out
	Returns             // it is given back
)

// ParkedHandler handles what happens to a parked connection. All but Back are called in a turn of the
// shard: they must not block, nor call methods of Shard that need one.
type ParkedHandler interface {
	// Came is given what has come; b is good until it returns.
	Came(b []byte) Next
	// Left says that the peer has ended its side of a connection that is busy.
	Left()
	// Rests asks what becomes of a connection that is no longer busy.
	Rests() Next
	// Back gives the connection back, once. came: there is something to read, or Came, Rests or Stop
	// has asked for it; else the peer has ended it, it is its time, it is broken, or the shard has
	// ended. It must not block.
	Back(came bool)
}

// Parked is a connection of somebody else's that the poller of a shard reads, without a goroutine or a buffer of its own.
type Parked struct {
	link    *link
	handler ParkedHandler
	sends   atomic.Int32 // how far the sending of the answer under way is

	// Guarded by shard.mu:
	came  bool // what Back is told
	busy  bool
	aside bool // it is not watched until it rests: the next request came while the answer went out
	deaf  bool // it is busy, and no longer watched: something has come
	ended bool // by its peer, while it was busy
	read  bool // it is being read
	asked bool // Stop wants it back
	last  bool // the answer under way is: the connection is given back, to be closed
	gone  bool // it is about to be given back
	over  bool // it is parked no more
}

// What sends may be.
const (
	unsent  int32 = iota
	sending       // its last bytes go out: the peer may ask for something else
	sent          // they have
)

// Prepare returns a connection that can be parked, once.
func (s *Shard) Prepare(nc net.Conn, owner ParkedHandler) *Parked {
	l := &link{shard: s}
	l.raw.use(nc)
	l.nc = nc
	l.parked = &Parked{link: l, handler: owner}
	return l.parked
}

// Park parks it until then (zero: for ever). False: it cannot be parked, because it is no socket, the
// shard has ended, or the system has no poller, and no method of its owner is called.
func (k *Parked) Park(until time.Time) bool {
	l, s := k.link, k.link.shard
	if !l.raw.isSocket() {
		return false
	}
	l.closeAt = until
	s.entry.Lock()
	s.mu.Lock()
	ok := s.add(l, l.nc)
	s.mu.Unlock()
	s.entry.Unlock()
	return ok && (s.join(l) || !k.Stop())
}

// Until has the connection given back at another time. It is for methods of ParkedHandler.
func (k *Parked) Until(t time.Time) {
	l := k.link
	if l.closeAt = t; !t.IsZero() && l.poller != nil {
		l.poller.closeAt(l, t)
	}
}

// Sooner is Until, if it is to be given back later than then, or never.
func (k *Parked) Sooner(t time.Time) {
	if at := k.link.closeAt; at.IsZero() || t.Before(at) {
		k.Until(t)
	}
}

// Stop takes the connection back, and Back is not called. False: it is busy, and Back is called after that, or it was, or is about to be.
func (k *Parked) Stop() bool {
	s := k.link.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.busy || k.read || k.gone {
		k.asked = true
		return false
	}
	return k.endLocked()
}

// endLocked reports whether it was parked until now. shard.mu is held.
func (k *Parked) endLocked() bool {
	if k.over {
		return false
	}
	k.over = true
	l := k.link
	if l.poller != nil {
		l.poller.leave(l)
		l.poller.forget(l)
	}
	delete(l.shard.links, l)
	l.shard.wg.Done()
	return true
}

// tell gives the connection back, outside of a turn.
func (k *Parked) tell() {
	s := k.link.shard
	s.mu.Lock()
	was, came := k.endLocked(), k.came
	s.mu.Unlock()
	if was {
		_ = panics.Call("the end of a connection's rest", func() error { k.handler.Back(came); return nil })
	}
}

// hear gives the owner what was read, and over says that the peer has ended the connection, or it is
// broken. True: the connection is to be given back. mu is held.
func (k *Parked) hear(b []byte, over bool) bool {
	k.read = false
	if len(b) > 0 {
		k.goesOn(func() Next { return k.handler.Came(b) })
	}
	if !k.busy && (over || k.asked) {
		k.came, k.gone = k.came || !over, true
	}
	return k.gone
}

// goesOn has the owner say how it goes on. True: the connection is to be given back, also after a panic. mu is held.
func (k *Parked) goesOn(next func() Next) (back bool) {
	k.gone, back = true, true
	defer k.link.shard.mend()
	switch next() {
	case Stays:
		k.gone = false
	case Busy:
		k.busy, k.gone = true, false
		k.Until(time.Time{})
	case Returns:
		k.came = true
	}
	return k.gone
}

// AnswerNow has a short answer written when the turn ends. It is for methods of ParkedHandler and of
// h2.Listener. The pieces are to stay as they are. last: the connection is to end after it, and Back
// is called.
func (k *Parked) AnswerNow(pieces [][]byte, last bool) {
	s := k.link.shard
	k.last = last
	k.sends.Store(sending)
	s.answers = append(s.answers, answer{k, pieces})
}

// answer is one that is to be written.
type answer struct {
	to     *Parked
	pieces net.Buffers
}

// writeSome writes as much as the socket takes, and leaves the rest.
func (a *answer) writeSome() {
	defer func() {
		if v := recover(); v != nil {
			_ = panics.Caught(writePlace, v)
			a.pieces, a.to.last = nil, true
		}
	}()
	a.pieces = a.to.link.raw.write(a.pieces)
}

// answerLimit bounds the sending of an answer to a peer that reads slowly.
const answerLimit = time.Minute

// writeRest writes the rest of an answer, and may block.
func (k *Parked) writeRest(rest net.Buffers, size int) {
	nc, s := k.link.nc, k.link.shard
	nc.SetWriteDeadline(time.Now().Add(answerLimit))
	_, err := rest.WriteTo(nc)
	nc.SetWriteDeadline(time.Time{})
	s.mu.Lock()
	s.unsent -= size
	s.mu.Unlock()
	k.Answered(err != nil)
}

// How much of such answers may wait for peers that do not read them, in bytes, on a shard: further
// ones end their connections. One with more than largeUnsent left has only a quarter of that, so that
// a few do not take the room of all.
const (
	mostUnsent  = 4 << 20
	largeUnsent = 64 << 10
)

// Sending says that the last bytes of an answer that the owner writes itself are about to go out.
func (k *Parked) Sending() { k.sends.Store(sending) }

// Answered says that the owner has written an answer itself, or cannot. last is as for AnswerNow. Not in a turn.
func (k *Parked) Answered(last bool) {
	s := k.link.shard
	if !last {
		k.sends.Store(sent) // the poller may see it first
	}
	s.entry.Lock()
	s.mu.Lock()
	back := false
	if last || k.sends.Load() == sent { // else it has, and the next request may be under way
		k.last = k.last || last
		back = k.rested()
	}
	s.mu.Unlock()
	s.entry.Unlock()
	if back {
		k.tell()
	}
}

// rested reports whether the connection is to be given back after an answer. mu is held.
func (k *Parked) rested() bool {
	if k.over || !k.busy {
		return false
	}
	k.busy = false
	k.sends.Store(unsent)
	if k.last {
		k.gone = true
		return true
	}
	if k.aside {
		k.aside = false
		k.deaf = !k.link.poller.watch(k.link)
	}
	if !k.goesOn(k.handler.Rests) && (k.deaf || k.asked) {
		k.came, k.gone = !k.ended, true
	}
	return k.gone
}

// writeAnswers writes the answers of a turn. mu is held, and free while it writes.
func (s *Shard) writeAnswers(t *turn) {
	for len(s.answers) > 0 {
		t.answers = append(t.answers[:0], s.answers...)
		clear(s.answers)
		s.answers = s.answers[:0]
		s.mu.Unlock()
		for i := range t.answers {
			t.answers[i].writeSome()
		}
		s.mu.Lock()
		for _, a := range t.answers {
			size := 0
			for _, p := range a.pieces {
				size += len(p)
			}
			room := mostUnsent
			if size > largeUnsent {
				room /= 4
			}
			if size > 0 && s.unsent+size <= room {
				s.unsent += size
				s.later(func() { a.to.writeRest(a.pieces, size) })
				continue
			}
			a.to.last = a.to.last || size > 0
			if a.to.rested() {
				s.later(a.to.tell)
			}
		}
		clear(t.answers)
	}
}

// later has a goroutine do what must not be done in a turn. mu is held.
func (s *Shard) later(f func()) {
	if s.closed {
		return // the goroutine that closes the links ends these
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer panics.Go("an answer of HTTP/1.1")
		f()
	}()
}
