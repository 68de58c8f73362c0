package queue

import (
	"time"
)

// Waiter stands in the queue for a caller that does not block. It may be used
// again once it was told or cancelled, not before.
//
// With three words of Handover it is a cache line and two words.
type Waiter[T any] struct {
	Handover T             // the pool's; the queue does not look at it
	since    time.Duration // on the pool's clock; once it has left the queue to be told: how long it waited
	deadline time.Duration // on the pool's clock, 0: none; once it was refused: how long it had left

	// Guarded by Pool.mu.
	prev, next *Waiter[T]
	needs      uint32 // Ask.Needs in microseconds
	class      Class
	app        uint8
	queued     bool
	why        Reason
	from       uint64 // Ask.From

	conn *Conn // once it was served: connection for which its session counts, see Queue.connections; nil: none
}

// Begin makes w ready to join the queue.
func (w *Waiter[T]) Begin(class Class, app uint8, from uint64, needs, left, now time.Duration) {
	w.class, w.app, w.from, w.since, w.deadline = Class(class.index()), app, from, now, 0
	w.needs = uint32(min(max(needs, 0), costMost*time.Microsecond) / time.Microsecond)
	if left > 0 {
		w.deadline = now + left
	}
}

// Waited returns how long w waited, once it has left the queue to be told.
func (w *Waiter[T]) Waited() time.Duration { return w.since }

// Left returns how long w had left until its deadline, once it was refused; 0: it has none.
func (w *Waiter[T]) Left() time.Duration { return w.deadline }

// Needs returns how long the work needs a session; 0: unknown.
func (w *Waiter[T]) Needs() time.Duration { return time.Duration(w.needs) * time.Microsecond }

// Queued reports whether w is in the queue.
func (w *Waiter[T]) Queued() bool { return w.queued }

// Class returns the class in which w waits.
func (w *Waiter[T]) Class() Class { return w.class }

// Since returns when w joined the queue.
func (w *Waiter[T]) Since() time.Duration { return w.since }

// Why returns why w gets no session.
func (w *Waiter[T]) Why() Reason { return w.why }

// TakeNext takes the waiter that follows w off the list of those that Pop, Overdue or Clear took out; nil: none.
func (w *Waiter[T]) TakeNext() *Waiter[T] {
	next := w.next
	w.next = nil
	return next
}

// Next returns the waiter that follows w in the list of those that Pop, Overdue or Clear took out; nil: none.
func (w *Waiter[T]) Next() *Waiter[T] { return w.next }

// TakeConn returns where the session of w counts, once; nil: nowhere.
func (w *Waiter[T]) TakeConn() *Conn {
	h := w.conn
	w.conn = nil
	return h
}

// Reason is why a waiter gets no session.
type Reason uint8

const (
	None   Reason = iota // it gets one, or the pool is closed
	Full                 // the queue is full, or became full of callers that go first
	Late                 // the work could not be done in time
	Old                  // it waited for longer than Config.Age
	Slow                 // it waited for longer than Config.Target in a queue that stands, or would in an overload
	Denied               // a right is missing
)

// Queue is the bounded queue of all callers that wait: in each class a queue for each app. It does no
// locking.
//
// Which class a session goes to: each class that waits earns its share, in percent,
// of every session given; one that earned a whole session is served first. Else the
// highest class is. So a class with share h is served at least h times in a
// hundred while it waits, and a flood of low ones costs the highest no more than
// their shares.
//
// Which app in the class: start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 96).
// What an app is given costs it virtual time, what the work needs over the app's
// weight, and the app that has used least of it goes first. An app that was away begins
// where the one is that was served last: it has saved nothing and owes nothing but
// what it just got. What an app does not use is everybody else's at once.
//
// Which connection of the app: they take turns, each with up to perTurn callers, since a connection may stand for many. One that
// holds its part of the sessions, and perTurn at least, passes its turn on while others wait: calls that take long would keep
// those of others waiting for rounds.
type Queue[T any] struct {
	n      int
	joined uint64 // callers that have joined it so far
	size   int
	rules  rules
	shares [ClassSize]int
	class  [ClassSize]ranks[T]
	earned [ClassSize]int // in hundredths of a session
	rhythm rhythm         // of all queues
	inTurn int            // perTurn
	serves int            // sessions that serve the queue, as of the last call of came

	connections map[uint64]*Conn // sessions that callers of a connection got in the queue, and have; by connection
	kept        int              // the size of connections at which those without sessions are removed
	spare       *connQueue[T]    // some that are free, linked by next; at most as many as were ever in use at a time
}

// rules say which callers are rejected at the head of the queue.
type rules struct {
	deadline bool          // see Config.Deadline
	age      time.Duration // see Config.Age
	target   time.Duration // see Config.Target
}

// Config is how many may wait, and which callers are rejected.
type Config struct {
	Size     int            // callers that wait at a time, all classes
	Shares   [ClassSize]int // percent of the sessions that a class gets at least while it waits
	Deadline bool           // work that cannot be done in time is refused, and callers that would wait for long in an overload
	Age      time.Duration  // longest wait; 0: no limit
	Target   time.Duration  // callers that waited for longer are refused while the queue stands; 0: off
}

// rhythm is how often a caller is served while others wait.
type rhythm struct {
	last time.Duration // when a caller was last served; 0: none since callers wait
	seen uint8         // how many times between two were seen, up to paceOf
	pace time.Duration // their mean, an exponential one beyond paceOf
}

// served notes that one is served.
func (r *rhythm) served(now time.Duration) {
	if r.last > 0 { // else nothing says since when it could have been
		r.seen = min(r.seen+1, paceOf)
		r.pace += (now - r.last - r.pace) / time.Duration(r.seen)
	}
	r.last = now
}

// wait is how long it takes until n are served; 0: unknown.
func (r *rhythm) wait(n int) time.Duration {
	if r.seen < PaceLeast {
		return 0
	}
	return time.Duration(n) * r.pace
}

// losses are how many of the callers that came to wait in a queue got no session: they were
// rejected, for whatever reason, or gave up. They last once many were lost in
// intervals enough, and until none was in as many. What happens within one interval,
// or two that meet, is a burst.
type losses struct {
	since      time.Duration // the interval that is counted
	came, lost int           // in it
	level      uint8         // up to enough: goes up with each interval with losses, down with others
	last       bool
}

const (
	LostShare = 8 // one in eight is lost
	enough    = 4 // intervals
)

// look ends the interval if it is over.
func (l *losses) look(now, interval time.Duration) {
	passed := (now - l.since) / interval
	if passed < 1 {
		return
	}
	if l.lost > 0 && (l.last || l.lost*LostShare >= l.came) {
		l.level = min(l.level+1, enough)
		passed--
	}
	l.level -= uint8(min(time.Duration(l.level), passed))
	l.last = l.level == enough || l.last && l.level > 0
	l.since, l.came, l.lost = now, 0, 0
}

const (
	// Standing is for how long a caller must have waited for the queue to be one that
	// does not go away by itself: the interval of CoDel (RFC 8289).
	Standing = 100 * time.Millisecond

	// The pace of a queue is that of the last paceOf: one stall, of a node or of this machine,
	// must not foretell a wait of seconds to everybody who comes next.
	paceOf = 32
	// PaceLeast is how many tell a pace at least. What the first ones wait for is often
	// sessions that are opened, not others who are done.
	PaceLeast = 8

	costUnknown = 1000       // microseconds: of work whose needs are unknown
	costLeast   = 100        // a session changes hands, whatever it is for
	costMost    = 10_000_000 // or one long call would keep an app away for as long

	// perTurn is how many callers a connection has served before the next one's turn. One connection of HTTP/2 may stand for
	// hundreds of callers beside as many of HTTP/1.1 with one each: it gets several times the part of one of these.
	perTurn = 8

	passes    = 8    // connections that are looked at for one that does not hold its part
	mostConns = 1024 // connections that are kept before those without sessions are forgotten

	clockMax = 1 << 62 // virtual time, see rewind; far more than the cost of a call below the end of 64 bits
)

// New returns an empty Queue.
func New[T any](c Config) Queue[T] {
	l := Queue[T]{inTurn: perTurn, kept: mostConns}
	l.Configure(c)
	return l
}

// Len returns how many wait.
func (l *Queue[T]) Len() int { return l.n }

// Joined returns how many callers have joined the queue so far.
func (l *Queue[T]) Joined() uint64 { return l.joined }

// Conns returns where sessions count, by connection.
func (l *Queue[T]) Conns() map[uint64]*Conn { return l.connections }

// Configure puts another configuration into force. Waiters keep their places.
func (l *Queue[T]) Configure(c Config) {
	l.size, l.shares = c.Size, c.Shares
	l.rules = rules{deadline: c.Deadline, age: c.Age, target: c.Target}
}

// RefusesLate reports whether work that cannot be done in time is refused.
func (l *Queue[T]) RefusesLate() bool { return l.rules.deadline }

// Age is the longest wait; 0: there is no limit.
func (l *Queue[T]) Age() time.Duration { return l.rules.age }

// ahead estimates the wait of a caller of a connection that joins the queue now, from the pace at which the queue was served
// while it was not empty. 0: no estimate.
func (l *Queue[T]) ahead(q *appQueue[T], from uint64) time.Duration {
	return q.rhythm.wait(l.before(q, from))
}

// Arrive counts w, a caller that comes to wait, while a number of sessions serve the queue. It returns why the caller
// is to be refused at once, and for how long it would have to wait; None: Push may follow.
func (l *Queue[T]) Arrive(w *Waiter[T], sessions int, needs, left time.Duration) (why Reason, ahead time.Duration) {
	q := l.class[w.class].of(w.app)
	vain, ahead := l.came(q, w, sessions)
	if left > 0 && l.rules.deadline {
		// In an overload every caller that is let in waits almost as long as its deadline allows. Without 25 %
		// to spare, half of them would finish a little too late, and each would have used a session for nothing.
		wait := l.ahead(q, w.from)
		if estimate := wait + needs; wait > 0 && estimate+estimate/4 > left {
			q.losses.lost++
			return Late, wait
		}
	}
	if vain {
		q.losses.lost++
		return Slow, ahead
	}
	return None, 0
}

// came counts w, a caller that is about to join q, and estimates its wait (ahead). sessions is how many sessions serve the queue.
// vain reports that the caller is to be rejected.
//
// While many of a queue's callers have been lost for some time, waiting longer serves no more of them, only later. Then a
// wait is at most one round, in which every session changes hands once. While all waiting callers are served in the
// end, and while there is no session at all, they may wait. Class batch always may.
func (l *Queue[T]) came(q *appQueue[T], w *Waiter[T], sessions int) (vain bool, ahead time.Duration) {
	l.serves = sessions
	round := l.rhythm.wait(sessions)
	q.losses.look(w.since, max(Standing/2, round))
	q.losses.came++
	ahead = q.rhythm.wait(l.before(q, w.from) + 1)
	return l.rules.deadline && q.losses.last && w.class != Batch && round > 0 && ahead > round, ahead
}

// Push appends w to the queue of its app. If the queue is full, it removes another waiter and returns it, or returns w itself.
// The one to be removed is the youngest:
//
//   - of a lower class, or of any class while w's class has less than its share of the queue; never of a class within
//     its share;
//   - else, in w's class, of the app with the most waiters for its weight, if w's app has fewer;
//   - else, in w's app, of the connection with the most waiters.
//
// The youngest of an app is that of its connection with the most waiters.
func (l *Queue[T]) Push(w *Waiter[T], weight uint16) (turned *Waiter[T]) {
	r := &l.class[w.class]
	q := r.of(w.app)
	if q.n == 0 {
		q.weight = max(1, uint32(weight))
	}
	if l.n >= l.size {
		turned = l.yielding(int(w.class), w.app, w.from)
		if turned == nil {
			w.why = Full
			q.losses.lost++
			return w
		}
		turned.why = Full
		l.Lose(turned)
	}
	if q.n == 0 {
		q.start = max(r.now, q.finish)
		q.rhythm.last = 0
		if !q.losses.last {
			q.rhythm.seen = 0
		}
		// A queue that was busy for long is empty only because its callers were rejected. If the next one
		// comes within rules.target, the queue has been busy all the time.
		if q.moved-q.busy <= Standing || w.since-q.moved > l.rules.target {
			q.busy = w.since
		}
		r.join(w.app)
	}
	t := l.take(q, w.from)
	w.prev, w.next, w.queued, w.why = t.last, nil, true, None
	if t.last == nil {
		t.first = w
	} else {
		t.last.next = w
	}
	t.last = w
	if t.n++; t.n <= l.inTurn {
		q.round++
	}
	if l.n == 0 {
		l.rhythm.last = 0
	}
	q.n++
	r.n++
	l.n++
	l.joined++
	return turned
}

func (l *Queue[T]) room(class int) int { return l.size * l.shares[class] / 100 }

func (l *Queue[T]) yielding(to int, app uint8, from uint64) *Waiter[T] {
	short := l.class[to].n < l.room(to)
	for i := ClassSize - 1; i >= 0; i-- {
		c := int(order[i])
		if c != to && (i > rank[to] || short) && l.class[c].n > l.room(c) {
			return l.class[c].longest().longest().last
		}
	}
	r := &l.class[to]
	q := &r.queues[app]
	weights := r.weights
	if q.n == 0 {
		weights += int(q.weight)
	}
	if q.n*weights < r.n*int(q.weight) { // else it has its part: the usual case in a flood, which must cost little
		if most := r.longest(); (q.n+1)*int(most.weight) < most.n*int(q.weight) {
			return most.longest().last
		}
	}
	n, turns := q.waiting(from), q.conns
	if n == 0 {
		turns++
	}
	if n*turns >= q.n || q.n == q.conns { // so has the connection, or each has one
		return nil
	}
	if most := q.longest(); max(n+1, l.inTurn) < most.n {
		return most.last
	}
	return nil
}

// forAll is a time of pop at which no caller is rejected.
const forAll = time.Duration(-1)

// Pop removes the waiter to be served now, a time on the pool's clock, and returns it; nil: none. Waiters in front of it that
// a session can no longer help are removed, too, and returned as gone, linked by next.
func (l *Queue[T]) Pop(now time.Duration) (w, gone *Waiter[T]) {
	for earn := true; l.n > 0; earn = false {
		class := l.choose(earn)
		r := &l.class[class]
		q := &r.queues[r.order[0]]
		l.pass(q)
		w = q.first()
		if now != forAll {
			if why := l.reasonFor(q, w, now); why != None {
				l.reject(w, why, now)
				w.next, gone = gone, w
				continue
			}
			q.moved = now
			q.rhythm.served(now)
			l.rhythm.served(now)
		}
		l.earned[class] = max(0, l.earned[class]-100)
		r.charge(q, w)
		t := q.current
		if t.served+1 < l.inTurn {
			t.served++
		} else {
			t.served, q.current = 0, t.next
		}
		if w.conn = t.conn; w.conn != nil && now != forAll { // else there is no session
			w.conn.sessions.Add(1)
		}
		l.remove(w)
		if now != forAll {
			w.since = now - w.since
		}
		return w, gone
	}
	return nil, gone
}

// Drain takes out everybody, in the order in which they would be served.
func (l *Queue[T]) Drain() (all []*Waiter[T]) {
	for w, _ := l.Pop(forAll); w != nil; w, _ = l.Pop(forAll) {
		all = append(all, w)
	}
	return all
}

// choose returns the class to be served. A caller must wait.
func (l *Queue[T]) choose(earn bool) int {
	next := -1
	for _, class := range order {
		c := int(class)
		if l.class[c].n == 0 {
			continue
		}
		if l.class[c].n == l.n { // no other class waits
			return c
		}
		if earn {
			l.earned[c] += l.shares[c]
		}
		if next < 0 || l.earned[c] >= 100 && l.earned[c] > l.earned[next] {
			next = c
		}
	}
	return next
}

// reasonFor says why the first of a queue is not to be served.
func (l *Queue[T]) reasonFor(q *appQueue[T], w *Waiter[T], now time.Duration) Reason {
	u := &l.rules
	waited := now - w.since
	switch {
	case u.deadline && w.deadline > 0 && now+time.Duration(w.needs+w.needs/4)*time.Microsecond > w.deadline: // see Arrive
		return Late
	case u.age > 0 && waited > u.age:
		return Old
	case u.target > 0 && waited > u.target && now-q.busy > Standing && w.class != Batch:
		return Slow
	}
	return None
}

// reject takes out a waiter that gets no session.
func (l *Queue[T]) reject(w *Waiter[T], why Reason, now time.Duration) {
	q := &l.class[w.class].queues[w.app]
	q.moved = now
	l.remove(w)
	if why != Late && why != Denied { // in a burst its deadline may have passed long before; a missing right is no loss
		q.losses.lost++
	}
	w.why = why
	if w.deadline > 0 {
		w.deadline = max(1, w.deadline-now)
	}
	w.since = now - w.since
}

// Overdue takes out those who have waited for longer than the rules allow, also if
// nobody is served. next is when to look again; 0: not before somebody comes.
func (l *Queue[T]) Overdue(now time.Duration) (gone *Waiter[T], next time.Duration) {
	if l.rules.age <= 0 {
		return nil, 0
	}
	for c := range l.class {
		r := &l.class[c]
		for i := 0; i < len(r.order); {
			q := &r.queues[r.order[i]]
			for t, left := q.current, q.conns; left > 0; left-- { // of a connection the first is the oldest
				after, n := t.next, t.n // a connQueue without waiters is used again
				for ; n > 0 && now > t.first.since+l.rules.age; n-- {
					w := t.first
					l.reject(w, Old, now)
					w.next, gone = gone, w
				}
				if n > 0 {
					if until := t.first.since + l.rules.age + 1; next == 0 || until < next {
						next = until
					}
				}
				t = after
			}
			if q.n > 0 { // else another queue takes its place in order
				i++
			} else {
				i = 0
			}
		}
	}
	return gone, next
}

// Clear takes out everybody.
func (l *Queue[T]) Clear(why Reason, now time.Duration) (gone *Waiter[T]) {
	for c := range l.class {
		for r := &l.class[c]; r.n > 0; {
			w := r.queues[r.order[0]].first()
			l.reject(w, why, now)
			w.next, gone = gone, w
		}
	}
	return gone
}

// Lose takes out a waiter who gets no session.
func (l *Queue[T]) Lose(w *Waiter[T]) {
	l.class[w.class].queues[w.app].losses.lost++
	l.remove(w)
}

// remove takes out a waiter that is in the queue.
func (l *Queue[T]) remove(w *Waiter[T]) {
	r := &l.class[w.class]
	q := &r.queues[w.app]
	t := q.find(w.from)
	switch {
	case t.first != w:
		w.prev.next = w.next
		if w.next != nil {
			w.next.prev = w.prev
		} else {
			t.last = w.prev
		}
	case w.next != nil:
		// prev of the first is not looked at, so the next one's cache line, which
		// belongs to another core, is not touched.
		t.first = w.next
	default:
		l.drop(q, t)
		if q.current == nil {
			r.leave(w.app)
		}
	}
	if t.n--; t.n < l.inTurn {
		q.round--
	}
	w.prev, w.next, w.queued = nil, nil, false
	q.n--
	r.n--
	l.n--
}
