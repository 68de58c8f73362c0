package driver

import (
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"
	"unsafe"
)

// poller reads the sockets of a shard, all of them in one goroutine, and opens what came by TLS: what has come
// over several goes through the forwarder in one turn, on one processor, and out again with
// one write for each connection (docs/dev/decisions/0022-one-reader.md).
//
// Its epoll instance is itself a descriptor of the runtime's: the goroutine waits for it as
// for a socket, and no thread is blocked. The sockets stay with the runtime's besides, for
// writes that wait.
//
// Wide: except the first three and those that shard.mu guards, all are the variables of one loop.
type poller struct {
	shard *Shard
	file  *os.File // the epoll instance
	sys   syscall.RawConn

	links []*link   // by slot; nil: it is free. Guarded by shard.mu
	free  []int32   // slots. Guarded by shard.mu
	due   time.Time // the first that hung up is to be closed, zero: there is none. Guarded by shard.mu
	awake bool      // there is something to close. Guarded by shard.mu

	// Of the goroutine.
	events [512]syscall.EpollEvent
	ready  []*link
	heavy  []*link // clients that have something and wait for their part of a turn, who waits longest first
	gone   []*link
	alone  bool // only one has something
	turn   turn
	turns  int // since others had a chance
	readFn func(fd uintptr)
	paced  func(n int, took time.Duration) int // inATurn, except in tests
	buf    [readSize]byte
	plain  [readSize]byte // what was in buf, where that is TLS's
	room   int            // what readFn may read
	n      int            // what readFn read
	err    syscall.Errno
}

const (
	turnSize  = 4 * readSize         // bytes that are read before what came of them is written
	heavySize = 4 << 10              // bytes of one read from which on a client is heavy
	lightTurn = 2 * time.Millisecond // of each turn for clients that are not heavy: those behind wait as heavy ones do
	heavyTurn = time.Millisecond     // of each turn for heavy clients together; a call with a header of 15 KB takes 0.13 ms
	// turns before other goroutines of this processor have a chance; a turn with many connections,
	// or with heavy ones, is several
	turnsOnce = 8
	manyOnce  = 64       // connections, heavy ones aside, that are read before what came of them is written
	lookEach  = 16       // connections from one look at the time to the next
	fairSize  = 16 << 10 // bytes read at once from a connection that had more, while others have something
	leastSize = 1 << 10  // bytes read at once from a client however long they take
)

// newPoller returns nil if the system has no descriptor left for one. mu is held.
func newPoller(s *Shard) *poller {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	syscall.SetNonblock(fd, true) // says that it can be waited for
	p := &poller{shard: s, file: os.NewFile(uintptr(fd), "epoll")}
	if p.sys, err = p.file.SyscallConn(); err != nil || p.file.SetReadDeadline(time.Time{}) != nil {
		p.file.Close()
		return nil
	}
	p.paced = inATurn
	p.readFn = func(fd uintptr) {
		for {
			if p.n, p.err = readSocket(fd, p.buf[:p.room]); p.err != syscall.EINTR {
				return
			}
		}
	}
	s.wg.Add(1)
	go p.run()
	return p
}

// join has the poller read a connection from now on; false: its goroutine goes on.
func (s *Shard) join(l *link) bool {
	s.entry.Lock()
	defer s.entry.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.apart || l.hungUp {
		return false
	}
	if s.poller == nil {
		if s.poller = newPoller(s); s.poller == nil {
			return false
		}
	}
	p := s.poller
	if len(p.free) == 0 {
		p.free, p.links = append(p.free, int32(len(p.links))), append(p.links, nil)
	}
	slot := p.free[len(p.free)-1]
	l.slot = slot
	if !p.watch(l) {
		return false
	}
	p.free = p.free[:len(p.free)-1]
	p.links[slot], l.poller = l, p
	l.heavy = l.isRationed() // until it is known
	if !l.closeAt.IsZero() {
		p.closeAt(l, l.closeAt)
	}
	return true
}

// watch has the socket reported.
func (p *poller) watch(l *link) bool {
	return p.control(l, syscall.EPOLL_CTL_ADD, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: l.slot})
}

func (p *poller) control(l *link, op int, event *syscall.EpollEvent) (ok bool) {
	_ = p.sys.Control(func(epoll uintptr) {
		_ = l.raw.sys.Control(func(fd uintptr) { ok = syscall.EpollCtl(int(epoll), op, int(fd), event) == nil })
	})
	return ok
}

// leave is before a socket is closed, forget after. Only the poller's goroutine closes those
// that it reads, after a turn, so what a slot stands for does not change within one.
func (p *poller) leave(l *link) { p.control(l, syscall.EPOLL_CTL_DEL, nil) }

// forget frees the slot. mu is held.
func (p *poller) forget(l *link) {
	p.links[l.slot] = nil
	p.free = append(p.free, l.slot)
}

// closeAt closes a connection that hung up if its peer has not done so until then. mu is held.
func (p *poller) closeAt(l *link, at time.Time) {
	if l.closeAt = at; p.due.IsZero() || at.Before(p.due) {
		p.due = at
	}
}

// look wakes the goroutine if it has something to close. mu is held.
func (p *poller) look(now time.Time) {
	if p != nil && (p.shard.closed || !p.due.IsZero() && !now.Before(p.due)) {
		p.awake = true
		p.file.SetReadDeadline(now)
	}
}

func (p *poller) run() {
	s, closed := p.shard, false
	defer s.wg.Done()
	defer p.file.Close()
	defer func() { p.heavy = nil }() // the shard stays a while longer
	defer func() {
		if !closed { // it ends before its shard does: Stalled reports that
			s.polling.Store(int64(s.awake.Now()))
		}
	}()
	for !closed {
		_ = p.sys.Read(p.poll) // until it is awake
		now := time.Now()
		s.mu.Lock()
		p.file.SetReadDeadline(time.Time{})
		closed, p.awake, p.due = s.closed, false, time.Time{}
		for _, l := range p.links {
			switch {
			case l == nil:
			case closed || !l.closeAt.IsZero() && !now.Before(l.closeAt):
				p.gone = append(p.gone, l)
			case !l.closeAt.IsZero():
				p.closeAt(l, l.closeAt)
			}
		}
		s.mu.Unlock()
		p.closeGone()
	}
}

// poll deals with what has come; false: with all of it, and the goroutine may wait.
func (p *poller) poll(epoll uintptr) bool {
	for {
		n, _, err := syscall.RawSyscall6(
			syscall.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&p.events)), uintptr(len(p.events)), 0, 0, 0,
		)
		if err != 0 {
			n = 0
		}
		if n == 0 && len(p.heavy) == 0 {
			p.turns = 0
			return false
		}
		if p.serve(p.events[:n]) {
			return true
		}
		if p.turns += 1 + int(n)/manyOnce; p.turns >= turnsOnce {
			p.turns = 0
			runtime.Gosched()
		}
	}
}

// serve is one turn. It reads at most readSize from each connection. While several have something, it
// reads at most heavySize from a client that is not heavy, and at most fairSize from a connection that
// had more the last time. From a client whose bytes take long it reads as many as take heavyTurn.
//
// Heavy clients have their turn after the others, for heavyTurn in all: thousands of them may have a
// long header each, and short requests and answers of nodes wait for one such part for each 512 (the
// size of events) of them at most. The kernel reports again a connection that has more, after the
// others. True: look has something for run to do.
func (p *poller) serve(events []syscall.EpollEvent) (awake bool) {
	s := p.shard
	s.mu.Lock()
	now := s.awake.Now()
	s.advance()
	s.polling.Store(int64(now))
	for i := range events {
		switch l := p.links[events[i].Fd]; {
		case l == nil: // somebody else closed it, and kept a copy
		case l.parked != nil && l.parked.busy && !p.overhear(l):
		case !l.heavy:
			p.ready = append(p.ready, l)
		case !l.waits:
			l.waits = true
			p.heavy = append(p.heavy, l)
		}
	}
	size, began, late := 0, time.Now(), false
	p.alone = len(p.ready)+len(p.heavy) == 1
	for i, l := range p.ready {
		p.ready[i] = nil
		if late && l.isRationed() {
			l.heavy, l.waits = true, true
			p.heavy = append(p.heavy, l)
			continue
		}
		if size = p.take(l, size); i%manyOnce == manyOnce-1 {
			s.flush(&p.turn)
			size = 0
		}
		if i%lookEach == lookEach-1 && !late {
			late = time.Since(began) >= lightTurn
		}
	}
	p.ready = p.ready[:0]
	if len(p.heavy) > 0 {
		s.flush(&p.turn)
		p.takeHeavy()
	}
	s.flush(&p.turn)
	awake = p.awake
	s.mu.Unlock()
	p.closeGone()
	s.polling.Store(0)
	return awake
}

// takeHeavy is the part of a turn of the heavy ones. mu is held.
func (p *poller) takeHeavy() {
	began, size, n := time.Now(), 0, 0
	for ; n < len(p.heavy) && (n == 0 || time.Since(began) < heavyTurn); n++ {
		l := p.heavy[n]
		l.waits = false
		if p.links[l.slot] == l { // else it was closed
			size = p.take(l, size)
		}
	}
	p.heavy = slices.Delete(p.heavy, 0, n)
	p.turns += turnsOnce / 2 // a millisecond of this is as long as many turns without
}

// take reads from a connection and gives the bytes to the forwarder. size counts the bytes read since
// the last flush; take returns the new count. mu is held.
func (p *poller) take(l *link, size int) int {
	s := p.shard
	switch p.room = readSize; {
	case p.alone:
	case l.isRationed() && !l.heavy:
		p.room = heavySize // it becomes heavy if it has more
	case l.much:
		p.room = fairSize
	}
	if l.most > 0 {
		p.room = min(p.room, l.most)
	}
	if k := l.parked; k != nil {
		if k.over || k.gone || k.busy {
			return size
		}
		k.read = true
	}
	s.mu.Unlock()
	if l.raw.sys.Control(p.readFn) != nil { // somebody else closed it
		p.n, p.err = 0, 0
	}
	l.much, l.heavy = p.n == p.room && p.room > heavySize, l.isRationed() && (p.n >= heavySize || p.n == p.room)
	var began time.Time
	if l.client && l.heavy {
		began = time.Now()
	}
	came, over := p.buf[:max(p.n, 0)], p.n <= 0 && p.err != syscall.EAGAIN
	if l.tls != nil && p.n > 0 {
		came, over = p.open(l)
	}
	s.mu.Lock()
	if l.parked != nil {
		over = l.parked.hear(came, over)
	} else if len(came) > 0 {
		s.receive(l, came)
	}
	if l.most = 0; !began.IsZero() {
		l.most = p.paced(p.n, time.Since(began))
	}
	if size += len(came); size >= turnSize {
		s.flush(&p.turn)
		size = 0
	}
	if over {
		p.gone = append(p.gone, l)
	}
	return size
}

// inATurn is how many bytes take heavyTurn if n of them took that time. Bytes of messages are passed
// on at some hundred a microsecond, but a call can be 25 bytes and take 10 us, so that 64 KB of such
// calls held their shard for 20 ms.
func inATurn(n int, took time.Duration) int {
	return int(min(max(int64(n)*int64(heavyTurn)/max(int64(took), 1), leastSize), readSize))
}

// overhear deals with what has come over a parked connection that is busy. True: it rests now, and may
// be read. Else it is watched no longer: it would be reported again and again. mu is held.
func (p *poller) overhear(l *link) bool {
	k := l.parked
	switch k.sends.Load() {
	case sent:
		if k.rested() {
			p.gone = append(p.gone, l)
			return false
		}
		return true
	case sending:
		k.aside = true
		p.leave(l)
		return false
	}
	p.leave(l)
	k.deaf = true
	var b [1]byte
	var n int
	var err error
	if l.raw.sys.Control(func(fd uintptr) { n, _, err = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT) }) != nil {
		return false // it was closed here
	}
	if n <= 0 && err != syscall.EAGAIN && err != syscall.EINTR {
		k.ended = true
		defer p.shard.mend()
		k.handler.Left()
	}
	return false
}

// open returns what TLS makes of what was read. over: it is the last, or none. What there is no room for was read
// ahead before, and is dealt with first.
func (p *poller) open(l *link) (came []byte, over bool) {
	n, err := l.sealed.open(p.buf[:p.n], p.plain[:])
	for err == nil { // there is more
		p.shard.mu.Lock()
		p.shard.receive(l, p.plain[:n])
		p.shard.mu.Unlock()
		n, err = l.sealed.open(l.sealed.in, p.plain[:])
	}
	return p.plain[:n], err != errDry
}

func (p *poller) closeGone() {
	for i, l := range p.gone {
		p.gone[i] = nil
		if l.parked != nil {
			l.parked.tell()
		} else {
			l.close()
		}
	}
	p.gone = p.gone[:0]
}
