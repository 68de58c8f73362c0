package latency

import (
	"math"
	"testing"
	"time"
)

func TestBuckets(t *testing.T) {
	for _, d := range []time.Duration{-1, 0, 1, time.Microsecond, 3 * time.Microsecond, 4 * time.Microsecond, 999 * time.Microsecond,
		time.Millisecond, 50 * time.Millisecond, time.Second, 2 * time.Minute} {
		b := BucketOf(d)
		if low, high := Floor(b), Floor(b+1); d >= time.Microsecond && (d < low || d >= high) {
			t.Errorf("%v is in bucket %d, from %v to %v", d, b, low, high)
		}
		if off := math.Abs(float64(Middle(b)-d)) / float64(d); d >= 4*time.Microsecond && off > 0.125 {
			t.Errorf("the middle of the bucket of %v is %v", d, Middle(b))
		}
	}
	for b := range Buckets {
		if got := BucketOf(Floor(b)); got != b {
			t.Errorf("bucket %d begins in bucket %d", b, got)
		}
	}
	if b := BucketOf(math.MaxInt64); b != Buckets-1 {
		t.Errorf("the longest latency is in bucket %d", b)
	}
}

func TestSince(t *testing.T) {
	var h Histogram
	var old, now Counts
	h.Add(time.Millisecond)
	h.AddTo(&old)
	for range 98 {
		h.Add(2 * time.Millisecond)
	}
	h.Add(time.Second)
	h.AddTo(&now)
	diff, sum := now.Since(&old)
	if sum != 99 {
		t.Fatalf("%d were added; want 99", sum)
	}
	for part, want := range map[float64]time.Duration{0.5: 2 * time.Millisecond, 0.98: 2 * time.Millisecond, 1: time.Second} {
		if got := diff.Quantile(part, sum); got < want*7/8 || got > want*9/8 {
			t.Errorf("quantile %v is %v; want about %v", part, got, want)
		}
	}
	anew, was := Counts{3: 1, 50: 2}, Counts{3: 7, 60: 9}
	if diff, sum := anew.Since(&was); diff != anew || sum != 3 {
		t.Errorf("a new histogram has %d more than the old one; want all its 3", sum)
	}
	if _, sum := now.Since(&now); sum != 0 {
		t.Errorf("nothing came, and %d were counted", sum)
	}
	if got := (&Counts{}).Quantile(0.5, 0); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
	wrapped, before := Counts{3: 2}, Counts{3: math.MaxUint32}
	if _, sum := wrapped.Since(&before); sum != 3 {
		t.Errorf("%d came over the wrap; want 3", sum)
	}
}
