package pool

import (
	"slices"
	"testing"
)

// stackOf has cells on it, the first one on top.
func stackOf(cells *arena, list ...uint16) *stack {
	k := &stack{}
	for _, i := range slices.Backward(list) {
		if chunk := &cells[i/chunkSize]; *chunk == nil {
			*chunk = new([chunkSize]cell)
		}
		k.push(cells, i)
	}
	return k
}

// A head is never seen again: whoever looked at the cell below the top one, and is late, may not take that for the new
// top, for it may be elsewhere by now.
func TestStackHeadIsNeverTheSame(t *testing.T) {
	for name, meanwhile := range map[string]func(k *stack, cells *arena){
		"the_top_goes_and_comes": func(k *stack, cells *arena) {
			i, _ := k.pop(cells)
			k.push(cells, i)
		},
		"another_one_is_below": func(k *stack, cells *arena) {
			k.pop(cells)
			k.pop(cells)
			k.push(cells, 4)
			k.push(cells, 1)
		},
		"all_are_taken_and_laid_down": func(k *stack, cells *arena) {
			for _, i := range slices.Backward(k.takeAll(cells, nil)) {
				k.push(cells, i)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var cells arena
			k := stackOf(&cells, 1, 2, 3)
			before := k.head.Load()
			meanwhile(k, &cells)
			after := k.head.Load()
			if uint32(before) != uint32(after) {
				t.Fatalf("head %#x, then %#x: the number of cells and the top should be the same", before, after)
			}
			if before == after {
				t.Errorf("the head is %#x again", after)
			}
		})
	}
}

// The tag begins again after 2^32 steps; the count and the top of the stack are none of its.
func TestStackTagWraps(t *testing.T) {
	for _, last := range []uint16{1, maxSessions - 1} {
		var cells arena
		k := stackOf(&cells, 7, last)
		wrap := func() { k.head.Store(k.head.Load() | tagBits) } // the next step is that to 0
		check := func(what string, top uint16, n int) {
			t.Helper()
			h := k.head.Load()
			if h>>32 != 0 || k.len() != n || uint16(h&headTop) != top {
				t.Errorf("%s: head %#x; want tag 0, %d cells, top %d", what, h, n, top)
			}
		}
		wrap()
		k.push(&cells, 5)
		check("push", 6, 3)
		wrap()
		if i, ok := k.pop(&cells); i != 5 || !ok {
			t.Errorf("pop: %d, %t", i, ok)
		}
		check("pop", 8, 2)
		wrap()
		if all := k.takeAll(&cells, nil); !slices.Equal(all, []uint16{7, last}) {
			t.Errorf("all: %v", all)
		}
		check("take all", 0, 0)
	}
}
