package main

import (
	"context"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// result is what one run saw.
type result struct {
	Calls     int64         `json:"calls"`
	Failed    int64         `json:"failed"`
	FirstFail string        `json:"first_failure,omitempty"`
	PerSecond float64       `json:"calls_per_second"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	Max       time.Duration `json:"max_ns"`
}

// recorder collects latencies of many goroutines.
type recorder struct {
	mu     sync.Mutex // guards all
	hist   *hdrhistogram.Histogram
	failed int64
	first  string
}

func newRecorder() *recorder {
	return &recorder{hist: hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3)}
}

func (r *recorder) add(took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A latency beyond the histogram's minute cannot happen: every call has a deadline of less.
	_ = r.hist.RecordValue(max(1, took.Microseconds()))
	if err != nil {
		r.failed++
		if r.first == "" {
			r.first = err.Error()
		}
	}
}

func (r *recorder) result(took time.Duration) result {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := func(p float64) time.Duration { return time.Duration(r.hist.ValueAtQuantile(p)) * time.Microsecond }
	return result{Calls: r.hist.TotalCount(), Failed: r.failed, FirstFail: r.first,
		PerSecond: float64(r.hist.TotalCount()) / took.Seconds(), P50: at(50), P99: at(99), Max: at(100)}
}

// openLoop sends calls at a constant rate whatever becomes of them, and counts
// latency from the instant at which a call was due: a server that falls behind
// cannot hide it by slowing the load down.
func openLoop(ctx context.Context, rate int, duration time.Duration, c call) result {
	ctx, cancel := context.WithTimeout(ctx, duration+20*time.Second)
	defer cancel()
	r, begun := newRecorder(), time.Now()
	var calls sync.WaitGroup
	interval := time.Second / time.Duration(rate)
	for due := begun; due.Before(begun.Add(duration)) && ctx.Err() == nil; due = due.Add(interval) {
		time.Sleep(time.Until(due))
		calls.Go(func() {
			err := c(ctx)
			r.add(time.Since(due), err)
		})
	}
	calls.Wait()
	return r.result(time.Since(begun))
}

// closedLoop keeps a constant number of calls in flight.
func closedLoop(ctx context.Context, inFlight int, duration time.Duration, c call) result {
	ctx, cancel := context.WithTimeout(ctx, duration+20*time.Second)
	defer cancel()
	r, begun := newRecorder(), time.Now()
	var workers sync.WaitGroup
	for range inFlight {
		workers.Go(func() {
			for time.Since(begun) < duration && ctx.Err() == nil {
				start := time.Now()
				err := c(ctx)
				r.add(time.Since(start), err)
			}
		})
	}
	workers.Wait()
	return r.result(time.Since(begun))
}
