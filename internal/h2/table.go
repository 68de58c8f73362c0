package h2

import (
	"math/bits"
	"math/rand/v2"
	"time"
)

// streams is a table of a connection's open streams by id.
type streams struct {
	slots []*stream // a power of two; linear probing, kept at most half full
	shift uint8     // 32 less the bits of an index
	n     int
	at    int // where any looks first: streams only leave once it is asked
}

// spread keeps clients, who choose the ids, from choosing the slots.
var spread = rand.Uint32() | 1

// home mixes as the end of MurmurHash3 does: ids in a row times a number alone come to lie together for some numbers.
func (t *streams) home(id uint32) int {
	h := id >> 1 * spread
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return int((h ^ h>>16) >> t.shift)
}

func (t *streams) get(id uint32) *stream {
	if t.n == 0 {
		return nil
	}
	for i := t.home(id); ; i = (i + 1) & (len(t.slots) - 1) {
		if s := t.slots[i]; s == nil || s.id == id {
			return s
		}
	}
}

func (t *streams) put(s *stream) {
	if 2*t.n >= len(t.slots) {
		old := t.slots
		t.slots, t.n = make([]*stream, max(8, 2*len(old))), 0
		t.shift = uint8(33 - bits.Len(uint(len(t.slots))))
		for _, s := range old {
			if s != nil {
				t.put(s)
			}
		}
	}
	i := t.home(s.id)
	for t.slots[i] != nil {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = s
	t.n++
}

// any returns one of the streams, of which there must be some. It begins where it found the last one.
func (t *streams) any() *stream {
	for ; t.slots[t.at] == nil; t.at = (t.at + 1) & (len(t.slots) - 1) {
	}
	return t.slots[t.at]
}

// remove takes s out and moves up those behind it that were pushed off their slot.
func (t *streams) remove(s *stream) {
	mask := len(t.slots) - 1
	i := t.home(s.id)
	for t.slots[i] != s {
		if t.slots[i] == nil {
			return
		}
		i = (i + 1) & mask
	}
	t.n--
	for j := i; ; {
		j = (j + 1) & mask
		next := t.slots[j]
		if next == nil {
			break
		}
		if home := t.home(next.id); (j-home)&mask >= (j-i)&mask {
			t.slots[i] = next
			i = j
		}
	}
	if t.slots[i] = nil; t.n == 0 && len(t.slots) > keptSlots {
		t.slots = nil
	}
}

// keptSlots is the most that a table without streams keeps.
const keptSlots = 1024

// queue is a list of streams, first in first out, that a stream can leave.
type queue struct{ first, last *stream }

func (q *queue) push(s *stream) {
	if s.queued {
		return
	}
	s.queued = true
	s.prev, s.next = q.last, nil
	if q.last != nil {
		q.last.next = s
	} else {
		q.first = s
	}
	q.last = s
}

func (q *queue) remove(s *stream) {
	if !s.queued {
		return
	}
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		q.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		q.last = s.prev
	}
	s.queued, s.prev, s.next = false, nil, nil
}

// pieces is a queue of buffers, none of them empty.
type pieces struct {
	all  [][]byte
	at   int // what is before it is taken
	size int // bytes in the others
}

func (q *pieces) push(b []byte) {
	if q.at > 0 && len(q.all) == cap(q.all) {
		n := copy(q.all, q.all[q.at:])
		clear(q.all[n:])
		q.all, q.at = q.all[:n], 0
	}
	q.all, q.size = append(q.all, b), q.size+len(b)
}

// pop returns nil if there is none.
func (q *pieces) pop() []byte {
	if q.at == len(q.all) {
		return nil
	}
	b := q.all[q.at]
	q.all[q.at] = nil
	q.size -= len(b)
	if q.at++; q.at == len(q.all) {
		if q.all, q.at = q.all[:0], 0; cap(q.all) > keptPieces {
			q.all = nil
		}
	}
	return b
}

// keptPieces is the most places that an empty queue keeps.
const keptPieces = 16

// fill puts as much of p into the last as goes into it, and returns the rest.
func (q *pieces) fill(p []byte) []byte {
	last := &q.all[len(q.all)-1]
	n := len(p)
	*last, p = fill(*last, p)
	q.size += n - len(p)
	return p
}

// add appends p to the last of them, or to more.
func (q *pieces) add(f *Forwarder, p []byte) {
	for len(p) > 0 {
		last, none := len(q.all)-1, q.at == len(q.all)
		switch {
		case none && len(p) < bufferSize/16:
			q.push(nil)
		case none || len(q.all[last]) >= bufferSize:
			q.push(f.buffer())
		default:
			n := min(bufferSize-len(q.all[last]), len(p))
			q.all[last] = append(q.all[last], p[:n]...)
			q.size += n
			p = p[n:]
		}
	}
}

// unpop puts back what is left of the one that pop returned last.
func (q *pieces) unpop(b []byte) {
	if q.size == 0 {
		q.push(b)
		return
	}
	q.at--
	q.all[q.at] = b
	q.size += len(b)
}

// fill appends to b what there is room for, and returns the rest.
func fill(b, p []byte) (filled, rest []byte) {
	n := min(cap(b)-len(b), len(p))
	return append(b, p[:n]...), p[n:]
}

// wheel ends calls whose time is up. A call waits in the slot of the tick in which that
// is, among those of later turns, so that it costs two list operations and no memory.
type wheel struct {
	slots [wheelSlots]timer // heads of rings
	late  timer             // head of the ring in hand
	tick  time.Duration     // of the time told last
	at    time.Duration     // the slot that is looked at next
}

const wheelSlots = 512 // a turn of 51 s

// timer is one of a call's two places in the wheel.
type timer struct {
	call       *Call
	grows      bool // it is Call.growth
	due        time.Duration
	prev, next *timer // nil: not in the wheel
}

func (w *wheel) init() {
	w.late.prev, w.late.next = &w.late, &w.late
	for i := range w.slots {
		head := &w.slots[i]
		head.prev, head.next = head, head
	}
}

// set has the call expire at the first tick from due on.
func (w *wheel) set(t *timer, due time.Duration) {
	t.stop()
	head := &w.slots[max(due/tick, w.tick)%wheelSlots]
	t.due, t.prev, t.next = due, head.prev, head
	head.prev.next, head.prev = t, t
}

func (t *timer) stop() {
	if t.next != nil {
		t.prev.next, t.next.prev = t.next, t.prev
		t.prev, t.next = nil, nil
	}
}

// end ends the call.
func (t *timer) end() {
	if t.grows {
		t.call.stopGrowing()
		return
	}
	t.call.expire()
}

// advance ends the calls that are due, and reports whether there are more: it ends perTurn of them. Ending one may end or begin others.
func (w *wheel) advance(now time.Duration) (more bool) {
	last := now / tick
	w.tick = last
	for n := 0; ; w.at++ {
		for w.late.next != &w.late {
			if t := w.late.next; t.due > now {
				w.set(t, t.due)
			} else if n++; n > perTurn {
				w.at = min(w.at, last)
				return true
			} else {
				t.stop()
				t.end()
			}
		}
		if w.at = max(w.at, last-wheelSlots+1); w.at > last {
			w.at = last // more may come into it
			return false
		}
		if head := &w.slots[w.at%wheelSlots]; head.next != head { // all of it into the ring in hand
			w.late.next, w.late.prev = head.next, head.prev
			w.late.next.prev, w.late.prev.next = &w.late, &w.late
			head.prev, head.next = head, head
		}
	}
}
