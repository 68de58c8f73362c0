package apps

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// bucket holds what is left of a rate: a token bucket in one number, by the generic
// cell rate algorithm (ITU-T I.371). The number is the time at which it is full.
type bucket struct{ full atomic.Int64 } // nanoseconds on the registry's clock

// priceMost bounds what an app may get ahead of itself.
const priceMost = int64(time.Hour)

// price is the time in which so much of a rate comes, at most priceMost.
func (r rate) price(n int64) int64 {
	high, low := bits.Mul64(uint64(n), uint64(time.Second))
	if high >= uint64(r.perSecond) {
		return priceMost
	}
	q, _ := bits.Div64(high, low, uint64(r.perSecond))
	return int64(min(q, uint64(priceMost)))
}

// take takes n, or returns when there will be so many.
func (b *bucket) take(r rate, now time.Duration, n int64) (wait time.Duration) {
	if r.perSecond == 0 {
		return 0
	}
	cost, depth := r.price(n), r.price(r.burst)
	for {
		was := b.full.Load()
		next := max(was, int64(now)) + cost
		if over := next - int64(now) - depth; over > 0 {
			return time.Duration(over)
		}
		if b.full.CompareAndSwap(was, next) {
			return 0
		}
	}
}

// debt is how long it takes until what was spent beyond the burst has come.
func (b *bucket) debt(r rate, now time.Duration) time.Duration {
	if r.perSecond == 0 {
		return 0
	}
	return max(0, time.Duration(b.full.Load()-int64(now)-r.price(r.burst)))
}

// spend takes n though there may be less.
func (b *bucket) spend(r rate, now time.Duration, n int64) {
	cost := r.price(n)
	for {
		was := b.full.Load()
		if b.full.CompareAndSwap(was, min(max(was, int64(now))+cost, int64(now)+2*priceMost)) {
			return
		}
	}
}

// works remembers how long work took: a table of a fixed size, in which what is new
// takes the place of what falls on the same entry.
type works struct {
	second  atomic.Uint32 // kept by Registry.Run
	entries [1 << 12]work
}

// work is one entry: a decayed mean and a decayed deviation from it, as TCP has them
// of its round trips (RFC 6298), in microseconds.
type work struct {
	key   atomic.Uint64
	times atomic.Uint64 // the mean in the upper half
	at    atomic.Uint32 // second of the last time
}

// trustFor is for how many seconds times are believed that nobody confirms: then one
// call is let through to see.
const trustFor = 5

func (w *works) entry(key uint64) *work { return &w.entries[key%uint64(len(w.entries))] }

// needs is the mean less the deviation: most work takes longer.
func (w *works) needs(key uint64) time.Duration {
	e := w.entry(key)
	if e.key.Load() != key {
		return 0
	}
	if now, at := w.second.Load(), e.at.Load(); now-at > trustFor && e.at.CompareAndSwap(at, now) {
		return 0
	}
	times := e.times.Load()
	return time.Duration(max(0, int64(times>>32)-int64(uint32(times)))) * time.Microsecond
}

func (w *works) took(key uint64, d time.Duration) {
	e, us := w.entry(key), min(max(int64(d/time.Microsecond), 1), 1<<31)
	was := e.times.Load()
	mean, off := int64(was>>32), int64(uint32(was))
	if e.key.Load() != key {
		e.key.Store(key)
		mean, off = us, us/2
	} else {
		err := us - mean
		mean += err / 8
		off += (max(err, -err) - off) / 4
	}
	// Of two that end at the same time one may be lost.
	e.times.Store(uint64(mean)<<32 | uint64(uint32(off)))
	if now := w.second.Load(); e.at.Load() != now {
		e.at.Store(now)
	}
}

// window counts durations of the last minute, less up to a half: those of this part
// of it and those of the part before.
type window struct {
	turns sync.Mutex    // guards past, and keeps sum from seeing half a turn
	past  uint64        // durations of the parts before these
	part  atomic.Uint32 // which of the two is this one
	count [2][buckets]atomic.Uint32
}

// buckets are four to a power of two, of microseconds up to about a minute.
const buckets = 4 * 26

func bucketOf(d time.Duration) int {
	us := uint64(max(0, d.Microseconds()))
	if us < 4 {
		return int(us)
	}
	e := bits.Len64(us) - 1
	return min((e-1)*4+int(us>>(e-2)&3), buckets-1)
}

// bound is the longest duration in a bucket, or a little less.
func bound(i int) time.Duration {
	i++
	if i < 4 {
		return time.Duration(i) * time.Microsecond
	}
	e := i/4 + 1
	return time.Duration(4|i&3) << (e - 2) * time.Microsecond
}

func (w *window) add(d time.Duration) { w.count[w.part.Load()][bucketOf(d)].Add(1) }

// rotate begins another part.
func (w *window) rotate() {
	w.turns.Lock()
	defer w.turns.Unlock()
	next := 1 - w.part.Load()
	for i := range w.count[next] {
		w.past += uint64(w.count[next][i].Swap(0))
	}
	w.part.Store(next)
}

// sum is how many there were, ever.
func (w *window) sum() uint64 {
	w.turns.Lock()
	defer w.turns.Unlock()
	n := w.past
	for part := range w.count {
		for i := range w.count[part] {
			n += uint64(w.count[part][i].Load())
		}
	}
	return n
}

// addTo adds the durations of the last minute to all.
func (w *window) addTo(all *[buckets]uint64) {
	for i := range all {
		all[i] += uint64(w.count[0][i].Load()) + uint64(w.count[1][i].Load())
	}
}

// quantiles returns the durations that the given parts of all are not above; 0 if
// there is none. parts must ascend.
func quantiles(all *[buckets]uint64, parts ...float64) []time.Duration {
	sum := uint64(0)
	for _, n := range all {
		sum += n
	}
	out := make([]time.Duration, len(parts))
	seen, next := uint64(0), 0
	for i := range all {
		seen += all[i]
		for next < len(parts) && sum > 0 && float64(seen) >= parts[next]*float64(sum) {
			if out[next] = bound(i); i == 0 {
				out[next] = 0
			}
			next++
		}
	}
	return out
}
