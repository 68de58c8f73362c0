package memguard

import (
	"container/heap"
	"container/list"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Assumed is what the memory limit of a process counts as where there is none, in bytes.
const Assumed = 4 << 30

// patience is how long a request may take to come until it has to make room for others, unless its connection has most of those
// that come.
const patience = time.Second

// looks is how many requests, and connections, are looked at to make room once, besides ten times as many requests that cannot make any.
const looks = 250

// Budget bounds, in bytes, the memory of requests while they arrive, are decoded and run. A request that exceeds it makes room
// in this order:
//
//  1. the largest of the requests that have been arriving for patience is ended;
//  2. else the newest request of the connection from which most are arriving;
//  3. if no connection has more than its own, the request is refused.
//
// A group, which is an app, has half of it at most, and the last eighth of both is for requests that hold up to 64 KiB.
// Budget is safe for concurrent use; a nil one has no bound.
type Budget struct {
	most    int64
	held    atomic.Int64
	refused atomic.Uint64
	ended   atomic.Uint64

	mu     sync.Mutex           // guards what follows
	coming list.List            // of *Reservation, the one first that has taken no more for the longest time
	from   map[uint64]*incoming // the connections of these, by number; without those of no number
	by     mostFirst            // the connections in from
}

// incoming is what is coming on one connection. Guarded by Budget.mu.
type incoming struct {
	number   uint64
	requests list.List // of *Reservation, in the order of their coming; never empty
	at       int       // in mostFirst
}

// mostFirst is a heap of connections, by how many requests are coming on them.
type mostFirst []*incoming

func (m mostFirst) Len() int           { return len(m) }
func (m mostFirst) Less(i, k int) bool { return m[i].requests.Len() > m[k].requests.Len() }
func (m mostFirst) Swap(i, k int)      { m[i], m[k] = m[k], m[i]; m[i].at, m[k].at = i, k }

// Push implements heap.Interface.
func (m *mostFirst) Push(x any) {
	c := x.(*incoming)
	c.at = len(*m)
	*m = append(*m, c)
}

// Pop implements heap.Interface.
func (m *mostFirst) Pop() any {
	last := len(*m) - 1
	c := (*m)[last]
	(*m)[last] = nil
	*m = (*m)[:last]
	return c
}

// Group is what the requests of one app have of a Budget, in bytes.
type Group = atomic.Int64

// NewBudget returns a budget of Config.Requests percent of the memory limit that the runtime has.
func NewBudget(c Config) *Budget {
	limit, ok := Limit()
	if !ok {
		limit = Assumed
	}
	return OfBytes(limit / 100 * int64(c.Requests))
}

// OfBytes returns a budget of n bytes.
func OfBytes(n int64) *Budget { return &Budget{most: n} }

// Limit is the memory limit that the runtime has, in bytes.
func Limit() (bytes int64, ok bool) {
	limit := debug.SetMemoryLimit(-1)
	return limit, limit != math.MaxInt64
}

// Reservation is what one request has of a Budget. The zero Reservation has nothing. Its methods are for one goroutine at a time.
type Reservation struct {
	budget *Budget
	group  *Group
	number uint64 // of the connection; 0: it has none
	held   int64  // guarded by budget.mu while place is set

	// For a request that is coming, all guarded by budget.mu.
	elem  *list.Element // in budget.coming, by moved; nil: it is not coming, or was ended
	on    *incoming     // nil: a connection without a number
	among *list.Element // in on.shares
	began time.Time
	moved time.Time // when it last took more, for what had come
	end   func()
	over  bool // it was ended
}

// Begin says whose the reservation is, and the number of the connection that the request comes on; 0:
// it stands for itself. Nothing may have been taken. group may be nil.
func (s *Reservation) Begin(b *Budget, group *Group, connection uint64) {
	s.budget, s.group, s.number = b, group, connection
}

// Coming says that the request is still coming: from now on it may have to make room for others. Then end is called, once,
// and what the reservation had is the others'. It must not block or use the reservation.
func (s *Reservation) Coming(end func()) {
	if s.budget == nil {
		return
	}
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	s.end, s.began = end, time.Now()
	s.moved = s.began
	b := s.budget
	s.elem = b.coming.PushBack(s)
	if s.number == 0 {
		return
	}
	c := b.from[s.number]
	if c == nil {
		c = &incoming{number: s.number}
		if b.from == nil {
			b.from = make(map[uint64]*incoming)
		}
		b.from[s.number] = c
		heap.Push(&b.by, c)
	}
	s.on, s.among = c, c.requests.PushBack(s)
	heap.Fix(&b.by, c.at)
}

// Came says that the whole request is here. False: it was ended before.
func (s *Reservation) Came() bool {
	if s.budget == nil {
		return true
	}
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	s.leaveLocked()
	if !s.over {
		s.end = nil
	}
	return !s.over
}

func (s *Reservation) leaveLocked() {
	if s.elem == nil {
		return
	}
	b := s.budget
	b.coming.Remove(s.elem)
	s.elem = nil
	c := s.on
	if c == nil {
		return
	}
	c.requests.Remove(s.among)
	s.on, s.among = nil, nil
	if c.requests.Len() > 0 {
		heap.Fix(&b.by, c.at)
		return
	}
	heap.Remove(&b.by, c.at)
	delete(b.from, c.number)
}

// Take takes n bytes more, or says why there are none for this request. Fewer than none are given back, always.
func (s *Reservation) Take(n int) (why string) { return s.ask(n, 1) }

// TakeAgain is Take for a request that was refused and waits: it does not count as refused again.
func (s *Reservation) TakeAgain(n int) (why string) { return s.ask(n, 0) }

// Fits reports whether there would be n bytes more if no other request held any.
func (s *Reservation) Fits(n int) bool {
	if s.budget == nil {
		return true
	}
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	return s.held+int64(n) <= s.most(n)
}

// most is how many bytes this request alone could hold, with n more.
func (s *Reservation) most(n int) int64 {
	most := s.budget.mostFor(s.held + int64(n))
	if s.group != nil {
		most /= 2
	}
	return most
}

func (s *Reservation) ask(n int, refusal uint64) (why string) {
	b := s.budget
	if b == nil {
		return ""
	}
	if s.end == nil && b.take(s, int64(n)) == taken {
		s.held += int64(n)
		return ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for !s.over {
		bound := b.take(s, int64(n))
		if bound == taken {
			s.held += int64(n)
			if s.elem != nil && n > 0 {
				s.moved = time.Now()
				b.coming.MoveToBack(s.elem)
			}
			return ""
		}
		if one := s.most(n); s.held+int64(n) > one {
			b.refused.Add(refusal)
			return fmt.Sprintf("this request needs more than %d KiB of memory, which is all that one may hold "+
				"(%s): send less at a time, or raise the memory limit of the sidecar (GOMEMLIMIT, or its container's)", one>>10, budgetOf)
		}
		if !b.makeRoomLocked(s, bound, s.held+int64(n)) {
			b.refused.Add(refusal)
			most := b.mostFor(s.held + int64(n))
			if bound == groupFull {
				return fmt.Sprintf("requests of this app hold %d MiB of memory, and one app may hold %d MiB (%s): "+tryAgain,
					s.group.Load()>>20, most/2>>20, budgetOf)
			}
			return fmt.Sprintf("requests hold %d MiB of memory, and %d MiB may be held (%s): "+tryAgain, b.held.Load()>>20,
				most>>20, budgetOf)
		}
	}
	return "the request came slowly, or with most others on its connection, and had to make room for others while " +
		"requests held as much memory as they may (memory.requests): send it again, or fewer at a time"
}

const (
	budgetOf = "memory.requests percent of the memory limit, an eighth of that only for small requests; half of it by one app"
	tryAgain = "try again, send less at a time, or raise the memory limit of the sidecar (GOMEMLIMIT, or its container's)"
)

// bound is what keeps a request from taking more.
type bound uint8

const (
	taken     bound = iota // nothing
	full                   // the budget
	groupFull              // the half of it that its group may have
)

func (b *Budget) take(s *Reservation, n int64) bound {
	most := b.mostFor(s.held + n)
	if s.group != nil && !add(s.group, n, most/2) {
		return groupFull
	}
	if !add(&b.held, n, most) {
		if s.group != nil {
			s.group.Add(-n)
		}
		return full
	}
	return taken
}

// mostFor is how full the budget may get by a reservation that then holds that many bytes. The last eighth is for small ones, so that
// large ones alone cannot have them refused.
func (b *Budget) mostFor(held int64) int64 {
	if held > smallRequest {
		return b.most - b.most/8
	}
	return b.most
}

// smallRequest is up to how many bytes a reservation is small.
const smallRequest = 64 << 10

// add adds n to a sum that may be so much. False: it would be more, and n is above 0. So the sum is never above that because of n.
func add(sum *atomic.Int64, n, most int64) bool {
	for {
		is := sum.Load()
		if n > 0 && is+n > most {
			return false
		}
		if sum.CompareAndSwap(is, is+n) {
			return true
		}
	}
}

// makeRoomLocked ends a request that is coming, for another that wants to hold that much. For a large
// one, small ones go last: they may have room that it has not. False: there is none that has to go.
func (b *Budget) makeRoomLocked(asks *Reservation, bound bound, wants int64) bool {
	var s *Reservation
	if wants > smallRequest {
		s = b.toEndLocked(asks, bound, smallRequest)
	}
	if s == nil {
		s = b.toEndLocked(asks, bound, 0)
	}
	if s == nil {
		return false
	}
	s.give()
	s.over = true
	s.leaveLocked()
	b.ended.Add(1)
	s.end()
	return true
}

// toEndLocked is the request that has to go first, of those that hold more than that.
func (b *Budget) toEndLocked(asks *Reservation, bound bound, above int64) *Reservation {
	if s := b.slowestLocked(asks, bound, above); s != nil {
		return s
	}
	return b.crowdedLocked(asks, bound, above)
}

// mayEnd reports whether the end of s, if it holds more than that, is of use to another.
func (s *Reservation) mayEnd(asks *Reservation, bound bound, above int64) bool {
	return s != asks && s.held > above && (bound == full || s.group == asks.group)
}

// slowestLocked is the request that holds most of those that have been coming for patience. Those that
// have taken no more for as long go first.
func (b *Budget) slowestLocked(asks *Reservation, bound bound, above int64) (most *Reservation) {
	now, stalled := time.Now(), true
	seen, others := 0, 0
	for e := b.coming.Front(); e != nil && seen < looks && others < 10*looks; e = e.Next() {
		s := e.Value.(*Reservation)
		if !s.mayEnd(asks, bound, above) {
			others++
			continue
		}
		seen++
		if stalled && now.Sub(s.moved) < patience { // so have those behind it
			if most != nil {
				break
			}
			stalled = false
		}
		if now.Sub(s.began) >= patience && (most == nil || s.held > most.held) {
			most = s
		}
	}
	return most
}

// newest is the newest request of the connection, of the last few that hold more than above; nil: its end is of no use.
func (c *incoming) newest(asks *Reservation, bound bound, above int64) *Reservation {
	for e, n := c.requests.Back(), 0; e != nil && n < looks; e, n = e.Prev(), n+1 {
		s := e.Value.(*Reservation)
		if s.mayEnd(asks, bound, above) {
			return s
		}
		if s == asks || above == 0 || s.held > above {
			return nil
		}
	}
	return nil
}

// crowdedLocked is the newest request of the connection from which most are coming, if those are more than will come from the connection
// of the request that asks.
func (b *Budget) crowdedLocked(asks *Reservation, bound bound, above int64) *Reservation {
	has := 1
	if c := b.from[asks.number]; c != nil {
		has = c.requests.Len()
		if asks.elem == nil {
			has++
		}
	}
	var most *Reservation
	for i, c := range b.by[:min(len(b.by), looks)] {
		if c.requests.Len() <= has {
			continue
		}
		if s := c.newest(asks, bound, above); s != nil {
			most, has = s, c.requests.Len()
			if i == 0 {
				break // it has most; the others are in no order
			}
		}
	}
	return most
}

func (s *Reservation) give() {
	s.budget.held.Add(-s.held)
	if s.group != nil {
		s.group.Add(-s.held)
	}
	s.held = 0
}

// Release gives everything back. The reservation may begin again.
func (s *Reservation) Release() {
	if s.budget == nil {
		return
	}
	if s.end != nil {
		s.budget.mu.Lock()
		s.leaveLocked()
		s.budget.mu.Unlock()
	}
	s.give()
	*s = Reservation{}
}

// BudgetState is what there is to know of a Budget.
type BudgetState struct {
	Held    int64  `json:"held"`    // bytes
	Most    int64  `json:"most"`    // bytes
	Refused uint64 `json:"refused"` // requests, for want of room
	Ended   uint64 `json:"ended"`   // requests that came slowly, or with most others on their connection, to make room for others
}

// State returns the state of the budget.
func (b *Budget) State() BudgetState {
	if b == nil {
		return BudgetState{}
	}
	return BudgetState{Held: b.held.Load(), Most: b.most, Refused: b.refused.Load(), Ended: b.ended.Load()}
}
