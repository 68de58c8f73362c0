package memguard

import (
	"container/list"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// noLimit is what the memory limit counts as where there is none, in bytes.
const noLimit = 4 << 30

// patience is how long a request may take to come until it has to make room for others.
const patience = time.Second

// Budget bounds what requests take in memory while they come, are decoded and are under way, in bytes. Past it, those that
// have been coming for long are ended, the largest first; where there are none, who asks is refused. A group, which is an app, has
// half of it at most. It is safe for concurrent use; a nil one has no end.
type Budget struct {
	most    int64
	held    atomic.Int64
	refused atomic.Uint64
	ended   atomic.Uint64

	mu     sync.Mutex
	coming list.List // of *Share, the oldest first
}

// Group is what the requests of one app have of a Budget, in bytes.
type Group = atomic.Int64

// NewBudget returns a budget of Config.Requests percent of the memory limit that the runtime has.
func NewBudget(c Config) *Budget {
	limit, ok := Limit()
	if !ok {
		limit = noLimit
	}
	return OfBytes(limit / 100 * int64(c.Requests))
}

// OfBytes returns a budget of so many bytes.
func OfBytes(n int64) *Budget { return &Budget{most: n} }

// Limit is the memory limit that the runtime has, in bytes.
func Limit() (bytes int64, ok bool) {
	limit := debug.SetMemoryLimit(-1)
	return limit, limit != math.MaxInt64
}

// Share is what one request has of a Budget. The zero Share has nothing. Its methods are for one goroutine at a time.
type Share struct {
	budget *Budget
	group  *Group
	held   int64 // guarded by budget.mu while place is set

	// For a request that is coming, all guarded by budget.mu.
	place *list.Element // in budget.coming, by moved; nil: it is not coming, or was ended
	began time.Time
	moved time.Time // when it last took more, for what had come
	end   func()
	over  bool // it was ended
}

// Begin says whose the share is. Nothing may have been taken. group may be nil.
func (s *Share) Begin(b *Budget, group *Group) { s.budget, s.group = b, group }

// Coming says that the request is still coming: from now on it may have to make room for others. Then end is called, once,
// and what the share had is the others'. It must not block or use the share.
func (s *Share) Coming(end func()) {
	if s.budget == nil {
		return
	}
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	s.end, s.began = end, time.Now()
	s.moved = s.began
	s.place = s.budget.coming.PushBack(s)
}

// Came says that the whole request is here. False: it was ended before.
func (s *Share) Came() bool {
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

func (s *Share) leaveLocked() {
	if s.place != nil {
		s.budget.coming.Remove(s.place)
		s.place = nil
	}
}

// Take takes n bytes more, or says why there are none for this request. Fewer than none are given back, always.
func (s *Share) Take(n int) (why string) { return s.ask(n, 1) }

// TakeAgain is Take for a request that was refused and waits: it does not count as refused again.
func (s *Share) TakeAgain(n int) (why string) { return s.ask(n, 0) }

func (s *Share) ask(n int, refusal uint64) (why string) {
	b := s.budget
	if b == nil {
		return ""
	}
	if s.end == nil && b.take(s.group, int64(n)) == taken {
		s.held += int64(n)
		return ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for !s.over {
		bound := b.take(s.group, int64(n))
		if bound == taken {
			s.held += int64(n)
			if s.place != nil && n > 0 {
				s.moved = time.Now()
				b.coming.MoveToBack(s.place)
			}
			return ""
		}
		if !b.makeRoomLocked(s, bound) {
			b.refused.Add(refusal)
			return fmt.Sprintf("requests hold %d MiB of memory, and %d MiB may be held (memory.requests percent of the memory limit; half of that by one app): try again, send less at a time, or raise the memory limit of the sidecar (GOMEMLIMIT, or its container's)",
				b.held.Load()>>20, b.most>>20)
		}
	}
	return "the request came so slowly that it had to make room for others, while requests held as much memory as they may (memory.requests): send it again"
}

// bound is what keeps a request from taking more.
type bound uint8

const (
	taken     bound = iota // nothing
	full                   // the budget
	groupFull              // the half of it that its group may have
)

func (b *Budget) take(group *Group, n int64) bound {
	if b.held.Add(n) > b.most && n > 0 { // others may have more for a moment, until they are refused
		b.held.Add(-n)
		return full
	}
	if group != nil && group.Add(n) > b.most/2 && n > 0 {
		group.Add(-n)
		b.held.Add(-n)
		return groupFull
	}
	return taken
}

// makeRoomLocked ends a request that has been coming for long, for another: the one that has most of those that have taken no more for
// as long, else of all. False: there is none.
func (b *Budget) makeRoomLocked(asks *Share, bound bound) bool {
	var most *Share
	now, stalled := time.Now(), true
	for e := b.coming.Front(); e != nil; e = e.Next() {
		s := e.Value.(*Share)
		if stalled && now.Sub(s.moved) < patience { // so have those behind it
			if most != nil {
				break
			}
			stalled = false
		}
		if s != asks && s.held > 0 && now.Sub(s.began) >= patience && (bound == full || s.group == asks.group) && (most == nil || s.held > most.held) {
			most = s
		}
	}
	if most == nil {
		return false
	}
	most.give()
	most.over = true
	most.leaveLocked()
	b.ended.Add(1)
	most.end()
	return true
}

func (s *Share) give() {
	s.budget.held.Add(-s.held)
	if s.group != nil {
		s.group.Add(-s.held)
	}
	s.held = 0
}

// Release gives everything back. The share may begin again.
func (s *Share) Release() {
	if s.budget == nil {
		return
	}
	if s.end != nil {
		s.budget.mu.Lock()
		s.leaveLocked()
		s.budget.mu.Unlock()
	}
	s.give()
	*s = Share{}
}

// BudgetState is what there is to know of a Budget.
type BudgetState struct {
	Held    int64  `json:"held"`    // bytes
	Most    int64  `json:"most"`    // bytes
	Refused uint64 `json:"refused"` // requests, for want of room
	Ended   uint64 `json:"ended"`   // requests that came slowly, to make room for others
}

// State returns the state of the budget.
func (b *Budget) State() BudgetState {
	if b == nil {
		return BudgetState{}
	}
	return BudgetState{Held: b.held.Load(), Most: b.most, Refused: b.refused.Load(), Ended: b.ended.Load()}
}
