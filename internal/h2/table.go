package h2

// streams is a table of a connection's open streams by id. Ids ascend, so a slot
// chosen by the low bits is nearly always free, and nothing is hashed.
type streams struct {
	slots []*stream // a power of two; linear probing, kept at most half full
	n     int
}

func (t *streams) home(id uint32) int { return int(id>>1) & (len(t.slots) - 1) }

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
	t.slots[i] = nil
}

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
