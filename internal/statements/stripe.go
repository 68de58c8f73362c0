package statements

import (
	"hash/maphash"
	"sync"
)

// The size of what a stripe remembers.
const (
	textSets   = 256     // sets of the texts that a stripe has seen
	textWays   = 4       // texts in each set, the newest first
	allSlots   = 2048    // digests that all stripes have together
	leastSlots = 32      // digests of a stripe, at least
	mostSlots  = 256     // digests of a stripe, at most
	maxKept    = 2 << 10 // bytes of a normal form that are kept
)

// Ref is a statement that is being called, from Stripe.Look to Stripe.Add. The zero Ref is none, and adds nothing.
type Ref struct {
	ID   ID
	text uint64 // hash of the text
	kind string
	is   bool
}

// Unread is a statement whose text nobody here could read. Its digest is 0.
var Unread = Ref{is: true}

// Stripe takes the calls of one place. There are as many as there are places that end calls at the same time, so that
// they do not wait for each other's memory. Safe for concurrent use; nil takes nothing.
type Stripe struct {
	of *Recorder

	mu    sync.Mutex // guards all below
	seen  [textSets][textWays]seenText
	slots []*slot
	byID  map[ID]int32
	hand  int  // where the search for a slot that makes room goes on
	rest  Sums // of digests that made room
	fell  uint64
	_     [64]byte // another stripe's lock is on another line of the cache
}

// seenText is a text that was read, and the slot of its digest. The slot may be another digest's by now.
type seenText struct {
	hash uint64
	id   ID
	at   int32
}

// slot is what a stripe has of a digest: what was counted since the recorder took it last.
type slot struct {
	id     ID
	kind   string
	text   string // the normal form, until the recorder has taken it
	app    string // of the last call
	read   bool   // text was set
	used   bool   // since the hand passed
	counts bool   // there is something to be taken
	figures
	texts textSet
}

// Look finds the digest of a text.
func (s *Stripe) Look(text string) Ref {
	if s == nil {
		return Ref{}
	}
	begin := text[:min(len(text), maxText)]
	hash := maphash.String(s.of.seed, begin)
	if ref, ok := s.find(hash); ok {
		return ref
	}
	return s.read(hash, text)
}

// LookBytes is Look.
func (s *Stripe) LookBytes(text []byte) Ref {
	if s == nil {
		return Ref{}
	}
	hash := maphash.Bytes(s.of.seed, text[:min(len(text), maxText)])
	if ref, ok := s.find(hash); ok {
		return ref
	}
	return s.read(hash, string(text[:min(len(text), maxText+1)]))
}

// find finds a text that was seen.
func (s *Stripe) find(hash uint64) (Ref, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.seenLocked(hash); at != nil && (at.read || !s.of.keep.Load()) {
		return Ref{at.id, hash, at.kind, true}, true
	}
	return Ref{}, false
}

func (s *Stripe) seenLocked(hash uint64) *slot {
	set := &s.seen[hash%textSets]
	for i := range set {
		if is := &set[i]; is.hash == hash && int(is.at) < len(s.slots) && s.slots[is.at].id == is.id {
			return s.slots[is.at]
		}
	}
	return nil
}

// read reads a new text. The lock is not held meanwhile.
func (s *Stripe) read(hash uint64, text string) Ref {
	var room [512]byte
	is, kept := read(room[:0], text), ""
	if s.of.keep.Load() && is.shown {
		kept = string(is.normal[:min(len(is.normal), maxKept)])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	place := s.slotLocked(Ref{ID: is.id, kind: is.kind})
	at := s.slots[place]
	if !at.read && s.of.keep.Load() {
		at.text, at.read, at.counts = kept, true, true
	}
	set := &s.seen[hash%textSets]
	copy(set[1:], set[:])
	set[0] = seenText{hash, is.id, place}
	return Ref{is.id, hash, is.kind, true}
}

// Add counts a call that ended.
func (s *Stripe) Add(ref Ref, c *Call) {
	if s == nil || !ref.is {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.seenLocked(ref.text)
	if at == nil || at.id != ref.ID {
		at = s.slots[s.slotLocked(ref)]
	}
	at.used, at.counts = true, true
	at.count(c)
	if ref.ID != 0 {
		at.texts.add(ref.text)
	}
	if at.app != c.App {
		at.app = c.App
	}
}

// slotLocked returns the number of the slot of a digest; a new one takes the place of one that was not used lately.
func (s *Stripe) slotLocked(ref Ref) int32 {
	if at, ok := s.byID[ref.ID]; ok {
		return at
	}
	at := len(s.slots)
	if at < s.of.slots() {
		s.slots = append(s.slots, nil)
	} else {
		for at = s.hand; s.slots[at].used; at = (at + 1) % len(s.slots) {
			s.slots[at].used = false
		}
		s.hand = (at + 1) % len(s.slots)
		s.rest.add(&s.slots[at].Sums)
		s.fell++
		delete(s.byID, s.slots[at].id)
	}
	s.slots[at] = &slot{id: ref.ID, kind: ref.kind}
	s.byID[ref.ID] = int32(at)
	return int32(at)
}

// forgetTexts has normal forms taken again when they are to be kept again.
func (s *Stripe) forgetTexts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.slots {
		at.text, at.read = "", false
	}
}

// taken is what a recorder takes of a slot.
type taken struct {
	id              ID
	kind, text, app string
	figures
	texts textSet
}

// inOneGo is how many slots are taken while the lock is held.
const inOneGo = 16

// take calls f with what was counted since the last time, and returns what digests had that made room since.
func (s *Stripe) take(f func(*taken)) (rest Sums, fell uint64) {
	room := make([]taken, 0, inOneGo)
	for from, more := 0, true; more; from += inOneGo {
		room = room[:0]
		s.mu.Lock()
		for _, at := range s.slots[min(from, len(s.slots)):min(from+inOneGo, len(s.slots))] {
			if at.counts {
				room = append(room, taken{at.id, at.kind, at.text, at.app, at.figures, at.texts})
				at.text, at.counts, at.figures, at.texts = "", false, figures{}, textSet{}
			}
		}
		if more = from+inOneGo < len(s.slots); !more {
			rest, fell = s.rest, s.fell
			s.rest, s.fell = Sums{}, 0
		}
		s.mu.Unlock()
		for i := range room {
			f(&room[i])
		}
	}
	return rest, fell
}
