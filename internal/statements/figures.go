package statements

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/latency"
)

// Call is one call of a statement that ended.
type Call struct {
	App     string // "": nobody's
	Status  string // name of what went wrong; "": it did its work
	Retries int
	Rows    uint64 // of the answer; 0 if nobody counted them
	Bytes   uint64 // of the answer

	Acquire, Hop, Took time.Duration // Took is the time of the whole call
}

// Sums are the figures that add up.
type Sums struct {
	Calls, Failed, Retries, Rows, Bytes uint64
	Acquire, Hop, Took                  time.Duration
}

func (s *Sums) add(o *Sums) {
	s.Calls += o.Calls
	s.Failed += o.Failed
	s.Retries += o.Retries
	s.Rows += o.Rows
	s.Bytes += o.Bytes
	s.Acquire += o.Acquire
	s.Hop += o.Hop
	s.Took += o.Took
}

// figures are those of one digest in some time.
type figures struct {
	Sums
	hop, took latency.Counts
	errors    failures
}

// count adds one call.
func (f *figures) count(c *Call) {
	f.Calls++
	f.Retries += uint64(c.Retries)
	f.Rows += c.Rows
	f.Bytes += c.Bytes
	f.Acquire += c.Acquire
	f.Hop += c.Hop
	f.Took += c.Took
	f.hop[latency.BucketOf(c.Hop)]++
	f.took[latency.BucketOf(c.Took)]++
	if c.Status != "" {
		f.Failed++
		f.errors.add(c.Status, 1)
	}
}

func (f *figures) add(o *figures) {
	f.Sums.add(&o.Sums)
	for i := range o.hop {
		f.hop[i] += o.hop[i]
		f.took[i] += o.took[i]
	}
	for i, name := range o.errors.names {
		if name != "" {
			f.errors.add(name, o.errors.counts[i])
		}
	}
	f.errors.counts[maxStatuses] += o.errors.counts[maxStatuses]
}

// maxStatuses is how many statuses of failed calls are told apart.
const maxStatuses = 5

// Other is the status of failed calls with none of the statuses that are told apart.
const Other = "OTHER"

// failures counts statuses, the first ones by name.
type failures struct {
	names  [maxStatuses]string
	counts [maxStatuses + 1]uint64 // the last one: of all others
}

func (f *failures) add(name string, n uint64) {
	at := 0
	for at < maxStatuses && f.names[at] != name && f.names[at] != "" {
		at++
	}
	if at < maxStatuses {
		f.names[at] = name
	}
	f.counts[at] += n
}

// byName returns the counts; nil if there are none.
func (f *failures) byName() map[string]uint64 {
	var all map[string]uint64
	for i, n := range f.counts {
		if n == 0 {
			continue
		}
		if all == nil {
			all = map[string]uint64{}
		}
		name := Other
		if i < maxStatuses {
			name = f.names[i]
		}
		all[name] += n
	}
	return all
}
