package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "peers" { // this program started by itself: see peers_test.go
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// A server that stalls for a second must show in the latency of every call that
// was due in that second, though none of them was sent late by choice.
func TestOpenLoopCountsFromTheInstantACallWasDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		got := openLoop(t.Context(), 100, 2*time.Second, func(context.Context) error {
			time.Sleep(time.Until(begun.Add(time.Second))) // everything waits for the end of the stall
			time.Sleep(time.Millisecond)
			return nil
		})
		if got.Calls != 200 || got.Failed != 0 {
			t.Errorf("got %d calls, %d failed; want 200, 0", got.Calls, got.Failed)
		}
		if got.P50 > 15*time.Millisecond || got.P99 < 900*time.Millisecond || got.Max < 990*time.Millisecond {
			t.Errorf("got p50 %v, p99 %v, max %v; want about 1 ms, nearly a second, a second", got.P50, got.P99, got.Max)
		}
	})
}

func TestClosedLoopKeepsItsCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		got := closedLoop(t.Context(), 4, time.Second, func(context.Context) error {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(100 * time.Millisecond)
			now.Add(-1)
			return errors.New("no")
		})
		if got.Calls != 40 || got.Failed != 40 || most.Load() != 4 || got.FirstFail != "no" {
			t.Errorf("got %+v with %d in flight; want 40 calls, all failed, 4 in flight", got, most.Load())
		}
	})
}

func TestSeriesShowsMediansAndFailures(t *testing.T) {
	one := func(p50 time.Duration, failed int64) measured {
		return measured{result: result{Calls: 10, Failed: failed, P50: p50}, CPU: p50}
	}
	s := series{Name: "x", Runs: []measured{one(3*time.Millisecond, 0), one(1*time.Millisecond, 2), one(2*time.Millisecond, 0)}}
	s.summarize()
	if s.Median.P50 != 2*time.Millisecond || s.Median.Calls != 30 || s.Median.Failed != 2 {
		t.Errorf("got %+v; want p50 2ms, 30 calls, 2 failed", s.Median)
	}
	r := report{Affinity: []*series{&s}}
	if r.failures() != 2 || !strings.Contains(r.markdown(), "| x | 0 | 2000 us | 0 us | 2000 us (1000-3000) | 0.000 | 0.00 | 2 |") {
		t.Errorf("got %d failures and\n%s", r.failures(), r.markdown())
	}
}

func TestRunRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{}, {"attack"}, {"bench", "-repeats", "0"}, {"bench", "-rate", "-1"}, {"bench", "-nonsense"}, {"bench", "-bin", "/nowhere"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}
