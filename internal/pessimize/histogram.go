package pessimize

import (
	"math"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/latency"
)

// The kinds of call whose latencies are compared: those that a node serves all
// the time. Opening a session is rare, and dials; probes are compared apart.
const (
	firstTimed = cluster.CallExecute
	timedKinds = int(cluster.CallControl-cluster.CallExecute) + 1
)

// slot is what came in between two beats.
type slot struct {
	began  time.Time
	total  int
	counts []bucketCount // in order of bucket
}

type bucketCount struct{ bucket, n int }

// recent is the newest latencies of one node for one kind of call: as many slots
// as it takes to hold Config.LatencyMin of them, none older than
// Config.LatencyWindow. A busy node is so judged by its last quarter of a
// second, an idle one by its last seconds. Only Run touches it.
type recent struct {
	last  latency.Counts // counters at the last beat
	slots []slot         // oldest first
	sum   summary        // of the slots
	timed uint64         // latencies that came so far
}

// summary is what the newest latencies of a node say.
type summary struct {
	total  int
	span   time.Duration // over which they came
	median time.Duration
	// The true median lies between these, except about once in a thousand times
	// at each end: see ranks. Zero and "for ever" with too few samples.
	lower, upper time.Duration
	busy         float64 // calls under way at a time, on average
}

// take reads what came since the last beat.
func (r *recent) take(h *latency.Histogram, began time.Time) {
	s := slot{began: began}
	for i := range h {
		at := h[i].Load()
		if n := int(at - r.last[i]); n != 0 {
			s.counts = append(s.counts, bucketCount{i, n})
			s.total += n
			r.last[i] = at
		}
	}
	r.timed += uint64(s.total)
	if s.total > 0 {
		r.slots = append(r.slots, s)
	}
}

// keep drops the slots that are too old or no longer needed.
func (r *recent) keep(now time.Time, c Config) {
	if len(r.slots) == 0 {
		r.sum = summary{}
		return
	}
	keep, total := len(r.slots), 0
	for keep > 0 && total < c.LatencyMin && now.Sub(r.slots[keep-1].began) <= c.LatencyWindow {
		keep--
		total += r.slots[keep].total
	}
	r.slots = append(r.slots[:0:0], r.slots[keep:]...)
	r.sum = r.summarize(now)
}

// forget drops what was seen so far.
func (r *recent) forget() { r.slots, r.sum = nil, summary{} }

func (r *recent) summarize(now time.Time) summary {
	if len(r.slots) == 0 {
		return summary{}
	}
	var all [latency.Buckets]int
	s := summary{span: now.Sub(r.slots[0].began)}
	var took time.Duration
	for _, slot := range r.slots {
		s.total += slot.total
		for _, c := range slot.counts {
			all[c.bucket] += c.n
			took += time.Duration(c.n) * latency.Middle(c.bucket)
		}
	}
	s.busy = took.Seconds() / max(s.span.Seconds(), 0.001)
	low, high := ranks(s.total)
	s.median = latency.Middle(bucketAt(&all, (s.total+1)/2))
	s.upper = math.MaxInt64
	if low > 0 {
		s.lower, s.upper = latency.Floor(bucketAt(&all, low)), latency.Floor(bucketAt(&all, high)+1)
	}
	return s
}

// bucketAt returns the bucket that holds the sample of the given rank, from 1.
func bucketAt(counts *[latency.Buckets]int, rank int) int {
	for i, n := range counts {
		if rank -= n; rank <= 0 {
			return i
		}
	}
	return latency.Buckets - 1
}

// sigmas is how far the ranks that bound a median lie from its middle, in
// standard deviations of how many of n samples fall below the true median.
const sigmas = 3

// ranks returns the ranks, from 1, of the samples that bound the true median
// from below and above, whatever the distribution; 0 if n is too small. A mix of
// fast and slow statements makes the median jump by chance; its bounds do not.
func ranks(n int) (low, high int) {
	low = int(math.Floor(float64(n)/2 - sigmas*math.Sqrt(float64(n))/2))
	if low < 1 {
		return 0, 0
	}
	return low, n - low + 1
}
