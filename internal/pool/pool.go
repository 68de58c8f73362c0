package pool

import (
	"context"
	"iter"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
)

// Pool is a pool of sessions. All its methods may be called from any goroutine.
type Pool struct {
	shelf // what every Acquire and Release reads

	opener Opener
	// waiters recycles those of Acquire. It belongs to the pool because their
	// channels belong to the pool's synctest bubble, if any.
	waiters sync.Pool
	offer   <-chan struct{} // for Run: the budget has a permit for the pool; nil: without one
	life    context.Context // of sessions that recover; ends with Close
	end     context.CancelFunc

	// For those who are refused, often many at once, and need no lock for it.
	inForce atomic.Pointer[Config]

	mu sync.Mutex // guards state, and what its types say
	state
}

// shelf is where sessions rest. It is read by every Acquire and Release, and written to seldom.
type shelf struct {
	_     [64]byte
	gate  atomic.Uint32 // not 0 while a caller waits in the queue or too many sessions are in use, and once Close was called
	table atomic.Pointer[table]
	slots []slot        // a power of two of them
	wake  chan struct{} // for Run: something is due earlier than it thought
	cells arena
	_     [64]byte

	// Guarded by Pool.mu.
	made    int      // cells that were ever in use: the first ones
	free    []uint16 // cells that were in use and are not
	scratch []uint16 // of a look at a stack
	walked  int      // nodes, slots, sessions and openings that were looked at under Pool.mu; tests count them
}

// slot holds one idle session in front of the stacks: number+1 of its cell, 0 for
// none. A number because the exchange of pointers is a call, not an instruction.
type slot struct {
	atomic.Uint32
	_ [124]byte // away from the next one and from its prefetch
}

// in returns the session whose number+1 was in a slot.
func (p *shelf) in(number uint32) *Session { return p.cells.at(uint16(number - 1)).session }

// state is what only the slow paths know, and how it changes. Pool.mu is held in its methods, except in
// clock and resting.
type state struct {
	*shelf
	cfg    Config
	queue  queue.Queue[handover]
	limit  limit
	log    *slog.Logger
	worker worker         // the pool
	member *budget.Member // the pool in its budget; nil: it has every permit
	tasks  sync.WaitGroup
	sums
	roster
	growth
	agenda
	switches
	refusals
	counted
}

// sums are counts of sessions, those of all nodes together.
type sums struct {
	size       int    // being opened, live and closing
	stalled    int    // of the openings, those that take too long
	closing    int    // given up, not deleted yet
	going      int    // live and retired
	recovering int    // in use, and the last call was given up, see Recover
	recovered  uint64 // idle again after that
}

// roster is the nodes. SetView changes it, and the end of a node's last session.
type roster struct {
	viewed cluster.View             // the last one
	nodes  map[cluster.NodeID]*node // in the view, or with sessions left
	order  []*node                  // all nodes, in order of ID
	past   Counts                   // events on nodes that are forgotten
	stock  stock
}

// growth is how sessions are opened: what is under way, and what came of it.
type growth struct {
	openings map[*opening]struct{}
	targets  targets
	pace     pace  // of all nodes, while every one fails
	lastOpen error // last failure
	failedAt time.Duration
	openOK   bool // the last opening succeeded
	denied   denial
	lacks    atomic.Pointer[DeniedError] // the last one; needs no lock
	begun    bool                        // some node was eligible once
	warm     bool                        // the minimum was reached
	warmAt   time.Time                   // next opening for which no caller waits
	evicted  []eviction                  // sessions of the minimum that are not opened again yet
}

// agenda is what Run does, and when.
type agenda struct {
	began  time.Time // of the pool's clock, see clock; constant
	due    time.Time // when Run looks at the pool next
	sweep  sweep
	spread spread
}

// switches are what Close, Quiet and Pause have set.
type switches struct {
	closed   bool
	closedAt time.Time
	quiet    bool          // see Quiet
	paused   atomic.Bool   // see Pause; changes under the lock
	empty    chan struct{} // closed when the pool is closed and size 0
}

// refusals count callers that got no session.
type refusals struct {
	timed   uint64 // waiters whose context ended
	refused uint64 // callers told ErrQueueFull
	shed    [shedSize]uint64
}

// counted is what a look at all sessions has found.
type counted struct {
	idle      int           // sessions, at the last count
	idleUntil time.Duration // when the count is too old, see idleLatelyLocked
	breathes  func()        // of tests: Pool.mu is let go of in the midst of a look
}

// worker is what the pool does on goroutines of its own, without Pool.mu.
type worker interface {
	open(ctx context.Context, o *opening)
	deleteAll(n *node, e ended)
}

// New returns an empty pool. It starts nothing: sessions are opened once SetView
// has named nodes, and what depends on time needs Run. cfg must be valid. log
// may be nil.
func New(cfg Config, opener Opener, log *slog.Logger) *Pool {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Pool{opener: opener}
	p.wake = make(chan struct{}, 1)
	p.state.shelf, p.log, p.began = &p.shelf, log, time.Now()
	p.worker = p
	p.life, p.end = context.WithCancel(context.Background())
	p.waiters.New = func() any { return &Waiter{Handover: handover{done: make(chan struct{}, 1)}} }
	p.table.Store(newTable(nil, nil))
	p.cfg = cfg
	p.inForce.Store(&cfg)
	// At most a quarter of the sessions rest where the choice by load does not see them.
	slots := 1
	for slots < runtime.GOMAXPROCS(0) && slots*8 <= cfg.Max {
		slots *= 2
	}
	p.slots = make([]slot, slots)
	p.queue = queue.New[handover](cfg.queue())
	p.limit.most = cfg.Max
	p.nodes = make(map[cluster.NodeID]*node)
	p.openings = make(map[*opening]struct{})
	p.empty = make(chan struct{})
	return p
}

// cellLocked returns a cell for one more live session. There is always one: no more
// sessions are live than some Config.Max allowed, which is at most maxSessions.
func (p *shelf) cellLocked() (i uint16) {
	if last := len(p.free) - 1; last >= 0 {
		i, p.free = p.free[last], p.free[:last]
		return i
	}
	i = uint16(p.made)
	if chunk := &p.cells[i/chunkSize]; *chunk == nil {
		*chunk = new([chunkSize]cell)
	}
	p.made++
	return i
}

// liveLocked returns the sessions that have a cell: the live ones, and those that Close
// took from their holders.
func (p *shelf) liveLocked() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		p.walked += p.made
		for i := range p.made {
			if s := p.cells.at(uint16(i)).session; s != nil && !yield(s) {
				return
			}
		}
	}
}

// setGateLocked follows a change of the queue, or precedes a look for sessions by
// one who wants to join it. It writes seldom: everybody reads the gate.
func (p *state) setGateLocked(joining int) {
	shut := uint32(gateOpen)
	switch {
	case p.closed || p.paused.Load() || p.queue.Len()+joining > 0:
		shut = gateQueue
	case p.limitedLocked() && p.surplusLocked() > 0:
		shut = gateLimit
	}
	if p.gate.Load() != shut {
		p.gate.Store(shut)
	}
	p.fedLocked()
}

// usableLocked counts open sessions, in use or idle, without those that are parked.
func (p *state) usableLocked() int {
	return p.size - len(p.openings) - p.closing - int(p.limit.parked.Load())
}

// clock is the time since New. Readings are cheaper than time.Now.
func (p *state) clock() time.Duration { return time.Since(p.began) }

// slot returns the number of the slot of the P that runs the caller. If the
// goroutine moves to another P afterwards it shares a slot with others, no more.
func (p *shelf) slot() uint {
	i := procPin()
	procUnpin()
	return uint(i) & uint(len(p.slots)-1)
}

// Warm reports whether the minimum of sessions has been open once.
func (p *Pool) Warm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.warm || p.cfg.Min == 0
}
