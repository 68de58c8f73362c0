package pool

import (
	"math/bits"
	"sync/atomic"
)

// fewNodes is how many nodes a choice looks at one after the other. Of more it asks an index.
const fewNodes = 64

// word has a bit for each of 64 nodes: set if there are idle sessions on the node's stack.
//
// A goroutine that lays a session on an empty stack sets the bit afterwards, before it looks at the gate.
// One that takes the last session clears it and then looks at the stack again: a session that was laid
// there meanwhile sets it once more, and Run looks for callers who missed it in between. So a bit
// may be set although the stack is empty, but is not clear for long although it is not.
type word struct {
	atomic.Uint64
	_ [56]byte // others are written to at the same time
}

// stock numbers the nodes of a pool that has many. Guarded by Pool.mu. A number belongs to a node
// while the pool knows it. Only a goroutine that has a session of a node clears its bit.
type stock struct {
	words []*word
	made  int   // numbers that were ever in use
	free  []int // numbers that were in use and are not
}

// number gives a node its bit.
func (k *stock) number(n *node) {
	if n.word.Load() != nil {
		return
	}
	if last := len(k.free) - 1; last >= 0 {
		n.number, k.free = k.free[last], k.free[:last]
	} else {
		n.number = k.made
		k.made++
		if n.number/64 == len(k.words) {
			k.words = append(k.words, new(word))
		}
	}
	w := k.words[n.number/64]
	n.word.Store(w)
	if n.idle.len() > 0 { // a session that is laid down from now on finds the word
		w.Or(n.bit())
	}
}

// forget takes back the bit of a node that has no session.
func (k *stock) forget(n *node) {
	if n.word.Load() != nil {
		k.free = append(k.free, n.number)
	}
}

func (n *node) bit() uint64 { return 1 << (n.number % 64) }

// push lays a session on the node's stack.
func (n *node) push(i uint16) {
	if n.idle.push(&n.shelf.cells, i) {
		if w := n.word.Load(); w != nil {
			w.Or(n.bit())
		}
	}
}

// emptied is called after taking the last session off the node's stack.
func (n *node) emptied() {
	w := n.word.Load()
	if w == nil {
		return
	}
	w.And(^n.bit())
	n.restock(w)
}

// restock sets the bit if there are sessions again.
func (n *node) restock(w *word) {
	if n.idle.len() == 0 {
		return
	}
	w.Or(n.bit())
	if p := n.shelf; p.gate.Load() != gateOpen {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// index finds those of many nodes that have idle sessions. Immutable, except the bits.
type index struct {
	words []*word
	at    []*choice // by number; nil: not among the choices
}

// newIndex returns that of nodes to choose from; the empty one if they have no numbers.
func newIndex(words []*word, from []choice) (x index) {
	if len(from) <= fewNodes {
		return x
	}
	x = index{words, make([]*choice, 64*len(words))}
	for i := range from {
		x.at[from[i].number] = &from[i]
	}
	return x
}

// stocked returns the first node from number i on, going round, that has a session on its stack and
// is not other.
func (x *index) stocked(i int, other *choice) *choice {
	first, below := i/64, uint64(1)<<(i%64)-1
	for k := range len(x.words) + 1 {
		w := (first + k) % len(x.words)
		set := x.words[w].Load()
		switch k {
		case 0:
			set &^= below
		case len(x.words):
			set &= below
		}
		for ; set != 0; set &= set - 1 {
			if c := x.at[w*64+bits.TrailingZeros64(set)]; c != nil && c != other && c.idle.len() > 0 {
				return c
			}
		}
	}
	return nil
}

// idle counts the sessions on the stacks of the nodes to choose from.
func (x *index) idle(from []choice) (sum int) {
	if len(x.words) == 0 {
		for i := range from {
			sum += from[i].idle.len()
		}
		return sum
	}
	for w := range x.words {
		for set := x.words[w].Load(); set != 0; set &= set - 1 {
			if c := x.at[w*64+bits.TrailingZeros64(set)]; c != nil {
				sum += c.idle.len()
			}
		}
	}
	return sum
}
