// Package latency counts durations in buckets: four to each doubling, from 1 µs
// to about two minutes, so that the middle of a bucket is within an eighth of all
// that is in it.
//
// What always holds: adding is one atomic operation without an allocation; counts
// only grow, and wrap.
package latency

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets is their number.
const Buckets = 104

// Histogram counts. Any goroutine may add and read.
type Histogram [Buckets]atomic.Uint32

// Counts are what a histogram held at some time.
type Counts [Buckets]uint32

// Add counts one duration.
func (h *Histogram) Add(d time.Duration) { h[BucketOf(d)].Add(1) }

// AddTo adds what was counted to c.
func (h *Histogram) AddTo(c *Counts) {
	for i := range h {
		c[i] += h[i].Load()
	}
}

// BucketOf returns the bucket of a duration; what is longer than all goes to the last.
func BucketOf(d time.Duration) int {
	us := min(max(d.Microseconds(), 0), 1<<27-1)
	if us < 4 {
		return int(us)
	}
	octave := bits.Len64(uint64(us)) - 1
	return (octave-1)*4 + int(us>>(octave-2)&3)
}

// Floor is the least duration of a bucket.
func Floor(bucket int) time.Duration {
	if bucket < 4 {
		return time.Duration(bucket) * time.Microsecond
	}
	return time.Duration(4+bucket%4) << (bucket/4 - 1) * time.Microsecond
}

// Middle is the middle of a bucket.
func Middle(bucket int) time.Duration { return (Floor(bucket) + Floor(bucket+1)) / 2 }

// Since returns what was counted since old was read. A histogram that took the
// place of another one counts from its beginning.
func (c *Counts) Since(old *Counts) (diff Counts, sum int) {
	for i := range c {
		if diff[i] = c[i] - old[i]; diff[i] > 1<<31 { // it is another one
			diff[i] = c[i]
		}
		sum += int(diff[i])
	}
	return diff, sum
}

// Quantile returns the middle of the bucket below which the given part of all
// lies; 0 if there is none. sum is of all counts.
func (c *Counts) Quantile(part float64, sum int) time.Duration {
	rank := max(1, int(part*float64(sum)+0.5))
	for i, n := range c {
		if rank -= int(n); rank <= 0 {
			return Middle(i)
		}
	}
	return 0
}
