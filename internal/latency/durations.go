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
	into   atomic.Pointer[Cell]
}

// NewCell returns a cell that counts as long as the histogram lives, or until it is folded into another one. Whoever makes
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
	if into := c.into.Load(); into != nil {
		c.pour(into)
	}
}

// pour moves what the cell counted into another one.
func (c *Cell) pour(into *Cell) {
	for i := range c.counts {
		if n := c.counts[i].Swap(0); n > 0 {
			into.counts[i].Add(n)
		}
	}
	into.sum.Add(c.sum.Swap(0))
}

// total is how much the cell counted.
func (c *Cell) total() (n uint64) {
	for i := range c.counts {
		n += c.counts[i].Load()
	}
	return n
}

// Fold ends cells: what each of them counted counts for another cell that stays, and so does what
// is added by those who still hold it.
func (d *Durations) Fold(cells map[*Cell]*Cell) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cells = slices.DeleteFunc(d.cells, func(c *Cell) bool { return cells[c] != nil })
	for c, into := range cells {
		c.pour(into)
		c.into.Store(into) // from here on those who add move what they find: no more than was added meanwhile
		c.pour(into)
	}
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
	defer d.mu.Unlock() // nothing is counted twice, or not at all, because cells are folded
	at := make(map[attribute.Distinct]int, len(d.cells))
	var all []Counted
	for _, c := range d.cells {
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
