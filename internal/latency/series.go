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

// Series are the cells of a histogram by what its callers tell them apart by, each made when it is first needed.
// Safe for concurrent use.
type Series[K comparable] struct {
	of         *Durations
	most       int
	attributes func(K) []attribute.KeyValue
	rest       func(K) K

	mu    sync.Mutex // serialises writers of cells
	cells atomic.Pointer[map[K]*Cell]
}

// NewSeries returns the series of a histogram. When there are most of them, a new key counts as rest of it, of which
// there must be few.
func NewSeries[K comparable](of *Durations, most int, attributes func(K) []attribute.KeyValue, rest func(K) K) *Series[K] {
	s := &Series[K]{of: of, most: most, attributes: attributes, rest: rest}
	s.cells.Store(&map[K]*Cell{})
	return s
}

// Add counts one duration. It allocates nothing and takes no lock, unless its key is new.
func (s *Series[K]) Add(k K, took time.Duration) {
	c := (*s.cells.Load())[k]
	if c == nil {
		c = s.more(k)
	}
	c.Add(took)
}

// more returns the cell of a key that is new.
func (s *Series[K]) more(k K) *Cell {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.cells.Load()
	if old[k] == nil && len(old) >= s.most {
		k = s.rest(k)
	}
	if c := old[k]; c != nil { // another goroutine made it
		return c
	}
	next := maps.Clone(old)
	next[k] = s.of.NewCell(attribute.NewSet(s.attributes(k)...))
	s.cells.Store(&next)
	return next[k]
}
