package pool

import "sync/atomic"

// cell holds a live session in the pool's arena. Its number stands for
// the session in the stacks, so that a stack's head fits a word. Several share a line of the cache:
// a goroutine that takes one off a stack needs the line from the one that laid it there anyway.
type cell struct {
	next    atomic.Uint32 // number+1 of the cell below; 0: bottom
	session *Session      // changed under Pool.mu, while the number is in no slot or stack
}

// arena is the cells of a pool, by number. It grows by chunks that stay where they are:
// a goroutine that finds a number in a slot or stack reads its cell without a lock, for the chunk was
// there before the number.
type arena [chunks]*[chunkSize]cell

// A chunk has as many cells as a byte counts, so that access needs no check of bounds.
const (
	chunkSize = 1 << 8
	chunks    = 1 << 16 / chunkSize
)

func (a *arena) at(i uint16) *cell { return &a[i/chunkSize][uint8(i)] }

// stack is a lock-free stack of cells. Its head is a tag of 32 bits, which
// changes with every step so that a head seen twice is the same head, the number
// of cells in 16, and number+1 of the top cell in 16.
type stack struct{ head atomic.Uint64 }

const (
	headTag   = 1 << 32
	headCount = 1 << 16
	headTop   = headCount - 1
	tagBits   = ^uint64(headTag - 1)
)

func (k *stack) len() int { return int(uint16(k.head.Load() >> 16)) }

// push lays a cell on top and reports whether the stack was empty.
func (k *stack) push(cells *arena, i uint16) bool {
	for {
		h := k.head.Load()
		cells.at(i).next.Store(uint32(h & headTop))
		if k.head.CompareAndSwap(h, (h+headTag+headCount)&^headTop|uint64(i+1)) {
			return h&headTop == 0
		}
	}
}

// pop returns the top cell, which belongs to the caller then.
func (k *stack) pop(cells *arena) (uint16, bool) {
	for {
		h := k.head.Load()
		top := h & headTop
		if top == 0 {
			return 0, false
		}
		// The cell may be another session's by now; the head has another tag then.
		below := cells.at(uint16(top - 1)).next.Load()
		if k.head.CompareAndSwap(h, (h+headTag-headCount)&^headTop|uint64(below)) {
			return uint16(top - 1), true
		}
	}
}

// takeAll empties the stack and appends its cells, top first, to into.
func (k *stack) takeAll(cells *arena, into []uint16) []uint16 {
	for {
		h := k.head.Load()
		if h&headTop == 0 {
			return into
		}
		if k.head.CompareAndSwap(h, (h+headTag)&tagBits) {
			for top := uint32(h & headTop); top != 0; top = cells.at(uint16(top - 1)).next.Load() {
				into = append(into, uint16(top-1))
			}
			return into
		}
	}
}
