package upstream

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

func TestPausesGrowWithFullJitter(t *testing.T) {
	for _, c := range []struct {
		kind ydbstatus.Backoff
		slot time.Duration
	}{{ydbstatus.BackoffFast, fastSlot}, {ydbstatus.BackoffSlow, slowSlot}} {
		for n := range 10 {
			top := c.slot << min(n, maxDoubling)
			var least, most, sum time.Duration = math.MaxInt64, 0, 0
			const draws = 2000
			for range draws {
				var p pauses
				for range n {
					p.next(c.kind)
				}
				d := p.next(c.kind)
				least, most, sum = min(least, d), max(most, d), sum+d
			}
			if most > top || most < top*9/10 || least > top/10 {
				t.Errorf("%v, pause %d: %v to %v; want 0 to %v", c.kind, n, least, most, top)
			}
			if mean := sum / draws; mean < top*4/10 || mean > top*6/10 {
				t.Errorf("%v, pause %d: mean %v of at most %v", c.kind, n, mean, top)
			}
		}
	}
}

func TestInstantRetriesRunOut(t *testing.T) {
	for range 100 {
		var p pauses
		var sum time.Duration
		for range maxInstant {
			sum += p.next(ydbstatus.BackoffNone)
		}
		if sum != 0 {
			t.Fatalf("paused %v before an instant retry", sum)
		}
		for range 10 {
			sum += p.next(ydbstatus.BackoffNone)
		}
		if sum == 0 {
			t.Fatal("instant retries never end")
		}
	}
}

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(RetryConfig{Share: 0.2, PerSecond: 10, Burst: 50})
		drain := func() (n int) {
			for b.take() {
				n++
			}
			return n
		}
		if n := drain(); n != 50 {
			t.Errorf("%d at the start; want the burst of 50", n)
		}
		b.calls.Add(100)
		if n := drain(); n != 20 {
			t.Errorf("%d after 100 calls; want 20", n)
		}
		time.Sleep(2 * time.Second)
		if n := drain(); n != 20 {
			t.Errorf("%d after 2 seconds; want 20", n)
		}
		time.Sleep(time.Hour)
		b.calls.Add(1_000_000)
		if n := drain(); n != 50 {
			t.Errorf("%d after a long time; want no more than the burst of 50", n)
		}
	})
}

func TestBudgetIsSharedSafely(t *testing.T) {
	b := newBudget(RetryConfig{Burst: 100})
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				b.calls.Add(1)
				if b.take() {
					taken.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if taken.Load() != 100 {
		t.Errorf("%d taken of 100", taken.Load())
	}
}

func TestRetryConfig(t *testing.T) {
	if err := DefaultRetry().Validate(); err != nil {
		t.Errorf("the default is not valid: %v", err)
	}
	err := RetryConfig{Share: 2, PerSecond: math.NaN(), Burst: -1}.Validate()
	for _, name := range []string{"share", "per_second", "burst"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
}
