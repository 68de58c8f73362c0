package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestThePaceOfTheCollectorFallsWithWhatLives(t *testing.T) {
	for marked, want := range map[uint64]int{0: 300, 8 << 20: 300, 12 << 20: 250, 16 << 20: 200, 31 << 20: 100,
		200 << 20: 100, 1 << 60: 100} {
		if got := paceFor(marked); got != want {
			t.Errorf("%d MiB: %d %%; want %d", marked>>20, got, want)
		}
	}
}

func TestThePaceFollowsWhatLives(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	keepPace()
	await := func(want uint64) {
		t.Helper()
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		for deadline := time.Now().Add(time.Minute); ; runtime.GC() { // the finalizer runs after it
			if metrics.Read(sample); sample[0].Value.Uint64() == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the percentage is %d; want %d", sample[0].Value.Uint64(), want)
			}
		}
	}
	large := make([]byte, 128<<20)
	await(leastPercent)
	runtime.KeepAlive(large)
	await(gcPercent)
}
