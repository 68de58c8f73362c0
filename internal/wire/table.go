package wire

import "encoding/binary"

// table finds virtual sessions by their ids. These are random, and made here, so that their
// own octets do for a hash; it is in parts so that none takes long to grow.
type table struct {
	parts [16]part
	n     int
}

// part holds sessions by linear probing, at most half full.
type part struct {
	slots []*virtual // a power of two
	n     int
}

func (id *virtualID) home() int { return int(binary.LittleEndian.Uint32(id[1:])) }

// get returns the session with an id, or nil.
func (t *table) get(id virtualID) *virtual {
	p := &t.parts[id[0]&15]
	if p.n == 0 {
		return nil
	}
	for i := id.home(); ; i++ {
		if v := p.slots[i&(len(p.slots)-1)]; v == nil || v.id == id {
			return v
		}
	}
}

// put adds a session, whose id is not there yet.
func (t *table) put(v *virtual) {
	t.n++
	p := &t.parts[v.id[0]&15]
	if 2*(p.n+1) > len(p.slots) {
		old := p.slots
		p.slots = make([]*virtual, max(4, 2*len(old)))
		for _, v := range old {
			if v != nil {
				p.slots[p.free(v)] = v
			}
		}
	}
	p.slots[p.free(v)] = v
	p.n++
}

// free returns the slot for a session.
func (p *part) free(v *virtual) int {
	i := v.id.home()
	for p.slots[i&(len(p.slots)-1)] != nil {
		i++
	}
	return i & (len(p.slots) - 1)
}

// remove takes out a session that is there, and moves up those behind it that were pushed off their slot.
func (t *table) remove(v *virtual) {
	t.n--
	p := &t.parts[v.id[0]&15]
	mask := len(p.slots) - 1
	i := v.id.home() & mask
	for p.slots[i] != v {
		i = (i + 1) & mask
	}
	for j := i; ; {
		j = (j + 1) & mask
		next := p.slots[j]
		if next == nil {
			break
		}
		if (j-next.id.home())&mask >= (j-i)&mask {
			p.slots[i], i = next, j
		}
	}
	p.slots[i] = nil
	if p.n--; p.n == 0 && len(p.slots) > 64 {
		p.slots = nil
	}
}

// all yields every session. The table must not change meanwhile.
func (t *table) all(yield func(*virtual) bool) {
	for i := range t.parts {
		for _, v := range t.parts[i].slots {
			if v != nil && !yield(v) {
				return
			}
		}
	}
}
