package latency

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// Maker makes a histogram that is exported. Without bounds it has those of all histograms of times. What has another
// unit than "s" counts numbers: n as n seconds. nil: nobody sees them.
type Maker func(name, unit, description string, bounds ...float64) *Durations

// Make calls m, if there is one.
func (m Maker) Make(name, unit, description string, bounds ...float64) *Durations {
	if m == nil {
		return NewDurations(nil)
	}
	return m(name, unit, description, bounds...)
}

// idleAfter is how long a cell must have counted nothing to make room for another one.
const idleAfter = 3 * time.Minute

// Series are the cells of a histogram by what its callers tell them apart by, each made when it is first needed.
// Safe for concurrent use.
type Series[K comparable] struct {
	of         *Durations
	most       int
	attributes func(K) []attribute.KeyValue
	rest       func(K) K

	mu      sync.Mutex // serialises writers of cells
	cells   atomic.Pointer[map[K]*Cell]
	lookAt  atomic.Int64 // no look for idle cells before, in nanoseconds of Unix time
	counted map[K]uint64 // what the cells had counted at the last look; guarded by mu
}

// NewSeries returns the series of a histogram. When there are most of them, those that counted nothing for idleAfter
// or longer make room: what they counted counts as the rest of their keys. A new key for which there is no room counts as
// the rest of it. There must be few of these, and each must be its own rest.
func NewSeries[K comparable](of *Durations, most int, attributes func(K) []attribute.KeyValue, rest func(K) K) *Series[K] {
	s := &Series[K]{of: of, most: most, attributes: attributes, rest: rest}
	s.cells.Store(&map[K]*Cell{})
	return s
}

// Add counts one duration. It allocates nothing and takes no lock, unless its key is new.
func (s *Series[K]) Add(k K, took time.Duration) { s.cell(k).Add(took) }

// cell returns the cell in which a key counts.
func (s *Series[K]) cell(k K) *Cell {
	cells := *s.cells.Load()
	c := cells[k]
	if c == nil && len(cells) >= s.most && time.Now().UnixNano() < s.lookAt.Load() {
		c = cells[s.rest(k)]
	}
	if c == nil {
		c = s.more(k)
	}
	return c
}

// more returns the cell of a key that is new.
func (s *Series[K]) more(k K) *Cell {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.cells.Load()
	if old[k] == nil && len(old) >= s.most {
		if old = s.fold(old); len(old) >= s.most {
			k = s.rest(k)
		}
	}
	if c := old[k]; c != nil { // another goroutine made it
		return c
	}
	next := maps.Clone(old)
	next[k] = s.of.NewCell(attribute.NewSet(s.attributes(k)...))
	s.cells.Store(&next)
	return next[k]
}

// fold folds cells that counted nothing since the last look, if that is long ago, and returns those that are left.
func (s *Series[K]) fold(old map[K]*Cell) map[K]*Cell {
	now := time.Now()
	if now.UnixNano() < s.lookAt.Load() {
		return old
	}
	s.lookAt.Store(now.Add(idleAfter).UnixNano())
	counted, next, idle := make(map[K]uint64, len(old)), maps.Clone(old), make(map[*Cell]*Cell)
	for k, c := range old {
		rest := s.rest(k)
		if rest == k {
			continue
		}
		n := c.total()
		if was, known := s.counted[k]; !known || was != n {
			counted[k] = n
			continue
		}
		if next[rest] == nil {
			next[rest] = s.of.NewCell(attribute.NewSet(s.attributes(rest)...))
		}
		idle[c] = next[rest]
		delete(next, k)
	}
	s.counted = counted
	if len(idle) == 0 {
		return old
	}
	s.cells.Store(&next)
	s.of.Fold(idle)
	return next
}

// FoldInto ends the series: what they counted counts for those of the same keys in another one of the same histogram, which must have
// the room or a rest for them. Nobody may add to them any more.
func (s *Series[K]) FoldInto(other *Series[K]) {
	into := make(map[*Cell]*Cell)
	for k, c := range *s.cells.Load() {
		into[c] = other.cell(k)
	}
	s.of.Fold(into)
}
