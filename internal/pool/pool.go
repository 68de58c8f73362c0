package pool

import (
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Pool is a pool of sessions. All its methods may be called from any goroutine.
type Pool struct {
	front // what every Acquire and Release reads

	cfg    Config
	opener Opener
	log    *slog.Logger
	began  time.Time // of the pool's clock, see clock
	// waiters recycles those of Acquire. It belongs to the pool because their
	// channels belong to the pool's synctest bubble, if any.
	waiters sync.Pool
	wake    chan struct{} // for Run: something is due earlier than it thought
	tasks   sync.WaitGroup

	mu sync.Mutex // guards all that follows, and what its types say
	ledger
}

// front is read by every Acquire and Release, and written to seldom.
type front struct {
	_     [64]byte
	gate  atomic.Int32 // waiters in line, plus gateClosed once Close was called
	fair  atomic.Int32 // see table.fairLoad
	table atomic.Pointer[table]
	cells []cell
	slots []slot // a power of two of them
	_     [64]byte
}

const gateClosed = 1 << 30

// slot holds one idle session in front of the stacks.
type slot struct {
	session atomic.Pointer[Session]
	_       [120]byte // away from the next one and from its prefetch
}

// ledger is the state of the pool that only the slow paths know.
type ledger struct {
	line     line
	nodes    map[cluster.NodeID]*node // in the view, or with sessions left
	order    []*node                  // the same, in order of ID
	free     []uint16                 // cells
	openings map[*opening]struct{}
	size     int // sessions being opened, live and closing
	stalled  int // of the openings, those that take too long
	closing  int
	// strangers is false if no session lives on a node that is not eligible.
	strangers bool
	pace      pace  // of all nodes, while every one fails
	lastOpen  error // last failure
	failedAt  time.Duration
	openOK    bool // the last opening succeeded
	warm      bool // the minimum was reached
	closed    bool
	empty     chan struct{} // closed when the pool is closed and size 0
	timed     uint64        // waiters whose context ended
	refused   uint64        // callers told ErrQueueFull
	sweepAt   time.Time     // next expiry
	moveAt    time.Time     // next move towards an even spread
	due       time.Time     // when Run looks at the pool next
	past      Counts        // events on nodes that are forgotten
	scratch   []uint16
}

// New returns an empty pool. It starts nothing: sessions are opened once SetView
// has named nodes, and what depends on time needs Run. cfg must be valid. log
// may be nil.
func New(cfg Config, opener Opener, log *slog.Logger) *Pool {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Pool{cfg: cfg, opener: opener, log: log, began: time.Now(), wake: make(chan struct{}, 1)}
	p.waiters.New = func() any { return &Waiter{ch: make(chan *Session, 1)} }
	p.table.Store(newTable(nil))
	p.fair.Store(1 << 30)
	p.cells = make([]cell, cfg.Max)
	p.free = make([]uint16, cfg.Max)
	for i := range p.free {
		p.free[i] = uint16(cfg.Max - 1 - i)
	}
	// At most a quarter of the sessions rest where the choice by load does not see them.
	slots := 1
	for slots < runtime.GOMAXPROCS(0) && slots*8 <= cfg.Max {
		slots *= 2
	}
	p.slots = make([]slot, slots)
	p.line = newLine(cfg)
	p.nodes = make(map[cluster.NodeID]*node)
	p.openings = make(map[*opening]struct{})
	p.empty = make(chan struct{})
	return p
}

// clock is the time since New. Readings are cheaper than time.Now.
func (p *Pool) clock() time.Duration { return time.Since(p.began) }

func (p *Pool) slot() *atomic.Pointer[Session] {
	return &p.slots[processor()&uint(len(p.slots)-1)].session
}

// Warm reports whether the minimum of sessions has been open once.
func (p *Pool) Warm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.warm || p.cfg.Min == 0
}
