package latency

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// Durations are a histogram told apart by attributes, for places that measure so
// often that an instrument of OpenTelemetry, at a quarter of a microsecond each
// time, would be felt. Safe for concurrent use.
type Durations struct {
	bounds []time.Duration // of the buckets, the upper ones; ascending

	mu    sync.Mutex // guards cells
	cells []*Cell
}

// NewDurations returns a histogram with such upper bounds of its buckets,
// ascending; they must not be changed any more.
func NewDurations(bounds []time.Duration) *Durations { return &Durations{bounds: bounds} }

// Cell counts durations of one set of attributes. There may be several of a set:
// one for each place that would wait for the memory of the others.
type Cell struct {
	set    attribute.Set
	bounds []time.Duration
	counts []atomic.Uint64 // of each bucket and of what is above all
	sum    atomic.Int64    // nanoseconds
}

// NewCell returns a cell that counts as long as the histogram lives. Whoever makes
// cells bounds how many.
func (d *Durations) NewCell(set attribute.Set) *Cell {
	c := &Cell{set: set, bounds: d.bounds, counts: make([]atomic.Uint64, len(d.bounds)+1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cells = append(d.cells, c)
	return c
}

// Add counts one duration. It allocates nothing.
func (c *Cell) Add(took time.Duration) {
	low, high := 0, len(c.bounds) // the least i with took <= bounds[i]
	for low < high {
		if middle := (low + high) / 2; took <= c.bounds[middle] {
			high = middle
		} else {
			low = middle + 1
		}
	}
	c.counts[low].Add(1)
	c.sum.Add(int64(took))
}

// Counted is what was counted since the start for one set of attributes.
type Counted struct {
	Set    attribute.Set
	Counts []uint64 // by bucket, the last one above all bounds
	Sum    time.Duration
}

// Read returns what was counted, each set once.
func (d *Durations) Read() []Counted {
	d.mu.Lock()
	cells := slices.Clone(d.cells)
	d.mu.Unlock()
	at := make(map[attribute.Distinct]int, len(cells))
	var all []Counted
	for _, c := range cells {
		i, ok := at[c.set.Equivalent()]
		if !ok {
			i = len(all)
			at[c.set.Equivalent()] = i
			all = append(all, Counted{Set: c.set, Counts: make([]uint64, len(c.counts))})
		}
		for j := range c.counts {
			all[i].Counts[j] += c.counts[j].Load()
		}
		all[i].Sum += time.Duration(c.sum.Load())
	}
	return all
}
