package virtual

import (
	"encoding/binary"
	"math/rand/v2"
)

// table finds sessions by their ids, by linear probing, at most half full. Ids are
// random, and made here, so that their own bytes do for a hash. It is beside the session, so
// that neither other sessions are touched when one is looked for, nor any while the table grows.
type table struct {
	slots []slot // a power of two
	n     int    // sessions
}

type slot struct {
	hash uint64
	*Session
}

// fewSlots are not made fewer, however few sessions there are.
const fewSlots = 64

// hash is of what no stripe has in common.
func (id *ID) hash() uint64 { return binary.LittleEndian.Uint64(id[8:]) }

// get returns the session with an id, or nil.
func (t *table) get(id ID) *Session {
	if t.n == 0 {
		return nil
	}
	hash, mask := id.hash(), uint64(len(t.slots)-1)
	for i := hash; ; i++ {
		if s := &t.slots[i&mask]; s.Session == nil || s.hash == hash && s.id == id {
			return s.Session
		}
	}
}

// put adds a session, whose id is not there yet.
func (t *table) put(v *Session) {
	if 2*(t.n+1) > len(t.slots) {
		t.resize(max(4, 2*len(t.slots)))
	}
	t.add(slot{v.id.hash(), v})
	t.n++
}

// resize gives it so many slots, which must be more than there are sessions.
func (t *table) resize(slots int) {
	old := t.slots
	t.slots = make([]slot, slots)
	for _, s := range old {
		if s.Session != nil {
			t.add(s)
		}
	}
}

// add puts a session where there is room for it.
func (t *table) add(s slot) {
	mask := uint64(len(t.slots) - 1)
	i := s.hash & mask
	for t.slots[i].Session != nil {
		i = (i + 1) & mask
	}
	t.slots[i] = s
}

// remove takes out a session that is there, and moves up those behind it that were pushed off their slot.
func (t *table) remove(v *Session) {
	mask := uint64(len(t.slots) - 1)
	i := v.id.hash() & mask
	for t.slots[i].Session != v {
		i = (i + 1) & mask
	}
	for j := i; ; {
		j = (j + 1) & mask
		next := t.slots[j]
		if next.Session == nil {
			break
		}
		if (j-next.hash)&mask >= (j-i)&mask {
			t.slots[i], i = next, j
		}
	}
	t.slots[i] = slot{}
	if t.n--; len(t.slots) > fewSlots && 8*t.n < len(t.slots) { // a crowd has gone
		t.resize(len(t.slots) / 4)
	}
}

// all yields every session. The table must not change meanwhile.
func (t *table) all(yield func(*Session) bool) {
	for _, s := range t.slots {
		if s.Session != nil && !yield(s.Session) {
			return
		}
	}
}

// any returns a session at random; nil: there is none where it looked, which is where few are left of many.
func (t *table) any() *Session {
	if t.n == 0 {
		return nil
	}
	const far = 16
	at, mask := rand.Uint64(), uint64(len(t.slots)-1)
	for i := range uint64(far) {
		if v := t.slots[(at+i)&mask].Session; v != nil {
			return v
		}
	}
	return nil
}
