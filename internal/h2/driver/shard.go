// Package driver feeds an h2.Forwarder from net.Conns, plain or TLS.
//
// It owns the goroutines: on Linux one for all sockets of a shard (the poller),
// else one for each connection, which reads, lets the forwarder
// work under the shard's lock, and writes to whatever connections that touched, each
// with one system call, after the lock is free. A write never blocks a reader: what
// a socket does not take at once goes to a goroutine of its own, and everything
// that comes up meanwhile joins it. No timer delays a write.
//
// What always holds: one goroutine at a time writes to a connection; a connection
// closes only after its last bytes are written or given up; nothing is written to a
// client from which nothing came; when Run has returned no goroutine and no
// connection is left. A panic in a turn of the forwarder ends the connections of its shard,
// of which none can be relied on any more, and not the process. A panic while bytes are written,
// or read over TLS, ends the connection that they are of.
package driver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Shard runs one Forwarder. More than one splits the batches in which calls are
// read and written, and pays only when one processor is not enough.
type Shard struct {
	epoch  time.Time
	config h2.Config
	ender  Ender // the router, if it is an Ender; nil
	running
	jobs jobs
	pulse
	clients atomic.Int64 // among links; written under mu

	// entry is for those who read a connection without the poller, new ones above all: one at a time of them waits for mu, which
	// goes to whoever has waited longest, so that the poller does not wait for thousands.
	entry entry

	mu sync.Mutex // guards what follows, and the forwarder
	f  *h2.Forwarder
	connections
	leaving
	parkedAnswers
	ages
}

// running is until when a shard runs, and what it waits for then.
type running struct {
	ctx  context.Context // of all connections
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// pulse is what Stalled looks at.
type pulse struct {
	awake   awake.Clock              // goes while Run does
	turned  atomic.Int64             // Run had its last turn, by awake; 0: none
	polling atomic.Int64             // the poller's turn in hand began, by awake; 0: none
	counted atomic.Pointer[h2.Stats] // what TryStats returned last
}

// connections are those of a shard.
type connections struct {
	links   map[*link]struct{}
	poller  *poller // reads sockets; nil: none has come
	apart   bool    // each connection keeps its goroutine, as where there is no poller: for tests
	crowded uint64  // refused because there were too many
	slow    uint64  // TLS handshakes that took too long
}

// leaving is how a shard ends.
type leaving struct {
	empty   chan struct{} // closed when links is empty and drains is set
	closed  bool
	drains  bool
	untold  bool                     // further clients are to be told to go, in turns of Run
	drainBy time.Time                // clients that have not shaken hands by then are let go
	kept    func() map[*h2.Conn]bool // clients that are not to go yet, while there are some; nil: none
}

// parkedAnswers are for connections that are parked.
type parkedAnswers struct {
	answers []answer // to be written when the turn ends
	unsent  int      // bytes of answers that their sockets did not take
}

// ages have connections end that are too old, see Age.
type ages struct {
	age   time.Duration               // 0: none
	leave func(old map[*h2.Conn]bool) // is told those that are to go
	aging time.Time                   // the next look at ages
}

// entry lets one in at a time, in the order in which they came. It is no mutex: who leaves goes on at once, and does not let whoever comes
// next run first, which has thousands of goroutines ready to run at a time.
type entry chan struct{}

// Lock is for sync.Locker.
func (e entry) Lock() { e <- struct{}{} }

// Unlock is for sync.Locker.
func (e entry) Unlock() { <-e }

// Ender is a Router that has something to do at the end of a turn.
type Ender interface {
	// TurnEnds is called in the turn, before what comes of it is written.
	TurnEnds(*h2.Forwarder)
}

// New returns a shard. Run must be called. The router may be an Ender.
func New(config h2.Config, router h2.Router) *Shard {
	s := &Shard{epoch: time.Now(), config: config, f: h2.New(config, router), entry: make(entry, 1)}
	s.links, s.empty = map[*link]struct{}{}, make(chan struct{})
	s.ender, _ = router.(Ender)
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// timeouts is how often the forwarder looks at its timeouts.
const timeouts = 100 * time.Millisecond

// Run keeps the shard's time until ctx ends, then closes every connection and waits
// for their goroutines. Drain first for calls to end well.
func (s *Shard) Run(ctx context.Context) error {
	s.wg.Go(func() { _ = s.awake.Run(s.ctx) }) // it returns nil
	ticker := time.NewTicker(timeouts)
	defer ticker.Stop()
	for {
		s.turned.Store(int64(s.awake.Now()))
		select {
		case <-ticker.C:
			s.Do(func(*h2.Forwarder) { s.giveUp(); s.poller.look(time.Now()) })
			for behind := true; behind; s.turned.Store(int64(s.awake.Now())) { // others have their turns in between
				behind = false
				s.Do(func(f *h2.Forwarder) {
					if s.untold {
						s.tell()
					}
					behind = s.untold || f.Behind()
				})
			}
			continue
		case <-ctx.Done():
		}
		s.Do(func(f *h2.Forwarder) { f.Cut() }) // what a socket does not take at once is lost
		for busy, until := s.busy(), time.Now().Add(lastWrites); s.stillBusy(busy) && time.Now().Before(until); {
			s.turned.Store(int64(s.awake.Now()))
			time.Sleep(time.Millisecond)
		}
		s.mu.Lock()
		s.closed = true
		for l := range s.links {
			l.nc.SetDeadline(time.Now()) // not Close, which waits for readers, who wait for mu
		}
		s.poller.look(time.Now())
		s.mu.Unlock()
		s.turned.Store(0)
		s.stop()
		s.wg.Wait()
		for behind := true; behind; { // calls of clients that had many
			s.Do(func(f *h2.Forwarder) { behind = f.Behind() })
		}
		return nil
	}
}

// lastWrites is how long a shard that ends waits for those who were just writing to come to what
// clients were told last.
const lastWrites = time.Second

// busy returns the connections that somebody is writing to, with the number of that write: what the
// client was told last is in the next one. A socket that takes nothing at the moment is not waited for.
func (s *Shard) busy() map[*link]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[*link]uint64{}
	for l := range s.links {
		if l.writing && !l.blocked {
			all[l] = l.writes
		}
	}
	return all
}

// stillBusy reports whether the write after that one is not over on any of the connections. Those on
// which it is leave the map.
func (s *Shard) stillBusy(all map[*link]uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l, write := range all {
		if !l.writing || l.blocked || l.writes > write+1 {
			delete(all, l)
		}
	}
	return len(all) > 0
}

// Do runs fn in the forwarder's turn and writes what comes of it. fn must not block.
func (s *Shard) Do(fn func(*h2.Forwarder)) {
	var t turn
	s.mu.Lock()
	s.turn(func() { fn(s.f) })
	s.flush(&t)
	s.mu.Unlock()
}

// turn tells the forwarder the time and runs fn, which works with it. mu is held.
func (s *Shard) turn(fn func()) {
	defer s.mend()
	s.f.Advance(time.Since(s.epoch))
	fn()
}

// receive gives bytes to the forwarder. mu is held.
func (s *Shard) receive(l *link, b []byte) {
	defer s.mend()
	_ = l.conn.Receive(b) // what it has to say about an error is in its output
}

// mend is to be deferred by whoever works with the forwarder. After a panic the shard goes
// on with another one: tables and streams of this one may be half changed, and what one
// client says must not come to another's node. mu is held.
func (s *Shard) mend() {
	v := recover()
	if v == nil {
		return
	}
	_ = panics.Caught("a turn of the data path", v)
	s.renew()
}

func (s *Shard) renew() {
	old := s.f
	s.f = old.Renew()
	old.GiveUp(s.f)
	now := time.Now()
	for l := range s.links {
		if l.conn != nil { // else it shakes hands: nothing of it was here yet
			l.cut(now)
		}
	}
	s.poller.look(now)
}

// cut has the reader close the connection at once. mu is held.
func (l *link) cut(now time.Time) {
	l.hungUp = true
	if l.poller != nil {
		l.poller.closeAt(l, now)
	}
	l.nc.SetDeadline(now)
}

// turnEnds tells the router that a turn ends. mu is held. After a panic there is a new forwarder.
func (s *Shard) turnEnds() {
	if s.ender != nil {
		defer s.mend()
		s.ender.TurnEnds(s.f)
	}
}

// Resume asks the router again about a call it parked. Any goroutine may call it, but
// not the router from within a call of its own.
func (s *Shard) Resume(t h2.Ticket) { s.Do(func(f *h2.Forwarder) { f.Resume(t) }) }

// Forwarder is for a Router's methods, and Listeners': it is good until they return.
func (s *Shard) Forwarder() *h2.Forwarder { return s.f }

// Later is h2.Forwarder.Later, for the router's methods.
func (s *Shard) Later(t h2.Ticket, st *h2.Status) { s.f.Later(t, st) }

// Expel is h2.Forwarder.Expel.
func (s *Shard) Expel(t h2.Ticket, st *h2.Status) { s.f.Expel(t, st) }

// Unhold is h2.Forwarder.Unhold, for the router's methods.
func (s *Shard) Unhold(t h2.Ticket, n int) { s.f.Unhold(t, n) }

// Clients is how many clients are connected; it does not wait for the shard.
func (s *Shard) Clients() int { return int(s.clients.Load()) }

// Stats returns the forwarder's counts.
func (s *Shard) Stats() h2.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statsLocked()
}

func (s *Shard) statsLocked() h2.Stats {
	st := s.f.Stats()
	st.Crowded = s.crowded
	st.Abuses[h2.SlowHandshake] += s.slow
	return st
}

// Connection is one connection as operators see it.
type Connection struct {
	h2.State
	Remote string
	TLS    bool
	Tag    any // what the router put into h2.Conn.Tag
}

// Connections returns what is known of at most most connections, in no order; false: the
// shard gave no turn before ctx ended. Those that are being made are left out.
func (s *Shard) Connections(ctx context.Context, most int) ([]Connection, bool) {
	if !s.tryLock(ctx) {
		return nil, false
	}
	defer s.mu.Unlock()
	s.turn(func() {})
	all := make([]Connection, 0, min(most, len(s.links)))
	for l := range s.links {
		if len(all) == most {
			break
		}
		if l.conn != nil && l.conn.IsOpen() {
			all = append(all, Connection{l.conn.State(), l.nc.RemoteAddr().String(), l.tls != nil, l.conn.Tag})
		}
	}
	return all, true
}

// giveUp tells clients to go that are no longer kept, and ends handshakes that hold up a drain. mu is held.
func (s *Shard) giveUp() {
	if s.kept != nil {
		s.tell()
	}
	if now := time.Now(); s.age > 0 && !s.drains && now.After(s.aging) {
		s.aging = now.Add(agesEach)
		s.retire(now)
	}
	if !s.drains || time.Now().Before(s.drainBy) {
		return
	}
	for l := range s.links {
		if l.client && l.conn == nil {
			l.nc.SetDeadline(time.Now())
		}
	}
}

// Drain tells the clients to go and waits until they have, or ctx ends. Those that do
// not react and have no calls open are let go after h2.Config.DrainTimeout.
//
// A client whose connection kept returns is told only when kept returns it no more. kept may be
// nil. It is asked at once and every 100 ms, in the shard's turn, until it returns none or panics.
func (s *Shard) Drain(ctx context.Context, kept func() map[*h2.Conn]bool) error {
	s.Do(func(*h2.Forwarder) {
		s.drains, s.drainBy, s.kept = true, time.Now().Add(s.config.DrainTimeout), kept
		s.tell()
		s.emptied()
	})
	select {
	case <-s.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// toldOnce is how many clients are told to go in a turn: for that each has a buffer until it is written.
const toldOnce = 64

// tell has clients go that are not kept, as many as a turn may tell. mu is held.
func (s *Shard) tell() {
	var kept map[*h2.Conn]bool
	if s.kept != nil {
		err := panics.Call("the choice of clients to keep", func() error { kept = s.kept(); return nil })
		if err != nil || len(kept) == 0 {
			s.kept = nil
		}
	}
	s.untold = false
	n := 0
	for l := range s.links {
		if !l.client || l.conn == nil || kept[l.conn] { // without conn: when it has shaken hands
			continue
		}
		if l.conn.Usable() {
			if n++; n > toldOnce {
				s.untold = true
				return
			}
		}
		l.conn.Drain()
	}
}

// Accept takes over the connection of a client. If it has a method Heard(), that is
// called once, when the first bytes have come and before they are dealt with; until
// then whoever sets a deadline in the past gets it closed with nothing written to it. If it has a method Shaken(), that is
// called once the handshake of TLS is over, well or not. If its remote
// address has a method User() (uint32, bool), that says for User who the client's program runs as.
func (s *Shard) Accept(nc net.Conn, config *tls.Config) {
	l := &link{shard: s, client: true}
	if known, ok := nc.RemoteAddr().(interface{ User() (uint32, bool) }); ok {
		l.user, l.local = known.User()
	}
	if s.age > 0 {
		l.oldAt = time.Now().Add(s.age - rand.N(s.age/10))
	}
	s.mu.Lock()
	ok := s.clients.Load() < int64(s.config.Connections)
	if !ok {
		s.crowded++
	} else if ok = s.add(l, nc); ok {
		s.clients.Add(1)
	}
	s.mu.Unlock()
	if !ok {
		nc.Close()
		return
	}
	go func() {
		defer s.wg.Done()
		if err := l.secure(nc, config, true); err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				s.mu.Lock()
				s.slow++
				s.mu.Unlock()
			}
			l.close()
			return
		}
		s.entry.Lock()
		s.mu.Lock()
		s.turn(func() {
			conn := s.f.Accept()
			conn.Link, l.conn = l, conn
			if s.drains {
				conn.Drain()
			}
		})
		ok := l.conn != nil && !l.hungUp
		s.flush(&l.turn)
		s.mu.Unlock()
		s.entry.Unlock()
		if !ok {
			l.close()
			return
		}
		l.read()
	}()
}

// User is the user that the program of a client runs as; false: nobody knows.
func User(c *h2.Conn) (uid uint32, ok bool) {
	l, ok := c.Link.(*link)
	if !ok {
		return 0, false
	}
	return l.user, l.local
}

// Certificate is what a client has shown by TLS, verified; nil: nothing.
func Certificate(c *h2.Conn) *apps.Certificate {
	l, ok := c.Link.(*link)
	if !ok {
		return nil
	}
	return l.certificate
}

// Remote is the address of a client; nil: nobody knows.
func Remote(c *h2.Conn) net.Addr {
	l, ok := c.Link.(*link)
	if !ok || l.nc == nil {
		return nil
	}
	return l.nc.RemoteAddr()
}

// add takes a connection into the books; false: the shard is closed. mu is held.
func (s *Shard) add(l *link, nc net.Conn) bool {
	if s.closed {
		return false
	}
	l.nc = nc
	s.links[l] = struct{}{}
	s.wg.Add(1)
	return true
}

// dial makes a connection to a node in the background. The returned one takes calls
// already. mu is held: it is called by the router. failed is told, with mu held, why it
// could not be made. timeout 0 is connectTimeout.
func (s *Shard) dial(dial func(context.Context) (net.Conn, error), config *tls.Config, timeout time.Duration, failed func(error)) *h2.Conn {
	f := s.f
	l := &link{shard: s, conn: f.Connect()}
	l.conn.Link = l
	if s.closed {
		l.conn.Close()
		return l.conn
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		ctx, cancel := context.WithTimeout(s.ctx, cmp.Or(timeout, connectTimeout))
		defer cancel()
		var nc net.Conn
		err := panics.Call("the dialling of a node", func() (err error) {
			nc, err = dial(ctx)
			return err
		})
		if err == nil {
			s.mu.Lock()
			if !s.add(l, nc) {
				err = net.ErrClosed
			}
			s.mu.Unlock()
			if err != nil {
				nc.Close()
			} else {
				defer s.wg.Done() // add counts one more
				if err = l.secure(nc, config, false); err != nil {
					l.nc.Close()
				}
			}
		}
		s.mu.Lock()
		if err == nil && s.f != f {
			err = net.ErrClosed // its forwarder is gone
			l.nc.Close()
		}
		if err != nil {
			delete(s.links, l)
		}
		s.turn(func() {
			if err != nil {
				failed(err)
				l.conn.Close()
				return
			}
			l.conn.Open()
			l.conn.Touch() // it may have ended before it stood
		})
		s.flush(&l.turn)
		s.mu.Unlock()
		if err == nil {
			l.read()
		}
	}()
	return l.conn
}

// connectTimeout bounds the making of a connection to a node, TLS included.
const connectTimeout = 5 * time.Second

// turn is the room one goroutine needs to flush.
type turn struct {
	dirty   []*h2.Conn
	jobs    []job
	answers []answer
}

// forget lets go of what was written, which may be the last that knows of connections that have ended.
func (t *turn) forget() {
	clear(t.dirty)
	clear(t.jobs)
	t.dirty, t.jobs = t.dirty[:0], t.jobs[:0]
}

type job struct {
	l      *link
	rest   net.Buffers // what the socket did not take
	broken bool        // writing panicked
}

// flush writes what the forwarder has. mu is held, and free while it writes. A panic while bytes are
// written ends the connection that they are for, and no other.
func (s *Shard) flush(t *turn) {
	s.turnEnds()
	defer s.mend()
	defer t.forget()
	for round := 0; ; round++ {
		s.writeAnswers(t)
		t.forget()
		t.dirty = s.f.Dirty(t.dirty)
		for _, c := range t.dirty {
			l := c.Link.(*link)
			if l.nc == nil {
				continue
			}
			if c.Finished() && !s.closed {
				words := lastWords
				if c.Expelled() {
					words = 0
				}
				l.nc.SetWriteDeadline(time.Now().Add(words))
			}
			if l.writing {
				continue // whoever writes looks again
			}
			if l.take() {
				t.jobs = append(t.jobs, job{l: l})
			} else if c.Finished() {
				l.hangUp()
			}
		}
		if len(t.jobs) == 0 {
			return
		}
		if round == mostRounds && !s.closed { // others are to have their turn
			for i := range t.jobs {
				s.wg.Add(1)
				go t.jobs[i].l.writeLater()
			}
			return
		}
		s.mu.Unlock()
		for i := range t.jobs {
			j := &t.jobs[i]
			j.rest, j.broken = j.l.tryWrite()
		}
		s.mu.Lock()
		s.written(t.jobs)
	}
}

// written deals with what sockets did not take. mu is held.
func (s *Shard) written(jobs []job) {
	for i := range jobs {
		j := &jobs[i]
		switch {
		case j.broken:
			j.l.breakOff()
		case len(j.rest) > 0 && !s.closed:
			s.wg.Add(1)
			j.l.blocked = true
			go j.l.writeOn(j.rest, false)
		default:
			j.l.written()
		}
		j.rest = nil
	}
}

// mostRounds is how often one turn writes. A connection that takes what there is, and then has more, has a goroutine from then on, as
// one has that takes too little.
const mostRounds = 3

// take takes what there is to write; false: nothing. mu is held.
func (l *link) take() bool {
	for b := l.conn.Take(); b != nil; b = l.conn.Take() {
		l.taken = append(l.taken, b)
	}
	if l.writing = len(l.taken) > 0; l.writing {
		l.writes++
	}
	return l.writing
}

// keptTaken is the most places for pieces that a connection keeps.
const keptTaken = 16

// wrote notes that n bytes of what was taken are out. Over TLS they are more. mu is held.
func (l *link) wrote(n int) {
	sum := 0
	for l.at < len(l.taken) && sum < n {
		b := l.taken[l.at]
		k := min(len(b)-l.out, n-sum)
		sum += k
		if l.out += k; l.out == len(b) {
			l.shard.f.Recycle(b)
			l.taken[l.at] = nil
			l.at, l.out = l.at+1, 0
		}
	}
	l.conn.Sent(sum)
}

// written notes that all that was taken is out. mu is held.
func (l *link) written() {
	n := -l.out
	for i := l.at; i < len(l.taken); i++ {
		n += len(l.taken[i])
		l.shard.f.Recycle(l.taken[i])
		l.taken[i] = nil
	}
	if l.taken, l.at, l.out, l.writing = l.taken[:0], 0, 0, false; cap(l.taken) > keptTaken {
		l.taken = nil
	}
	l.conn.Sent(n)
	l.conn.Touch()
}

// breakOff ends a connection in the middle of what is written to it. mu is held.
func (l *link) breakOff() {
	l.taken, l.at, l.out, l.writing = nil, 0, 0, false
	l.conn.Close()
	now := time.Now()
	l.cut(now)
	l.shard.poller.look(now)
}

// advance tells the forwarder the time. mu is held.
func (s *Shard) advance() {
	defer s.mend()
	s.f.Advance(time.Since(s.epoch))
}
