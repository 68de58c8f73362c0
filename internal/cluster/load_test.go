package cluster

import (
	"math"
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	var none *Load
	none.Observe(time.Second)
	none.SetFactor(1)
	none.Forget()
	if none.Cost() != 1 || none.Latency() != 0 {
		t.Error("a nil Load costs something")
	}
	fast, slow := new(Load), new(Load)
	if fast.Cost() != 1 {
		t.Errorf("unseen: %d", fast.Cost())
	}
	for range 100 {
		fast.Observe(time.Millisecond)
		slow.Observe(50 * time.Millisecond)
	}
	if got := fast.Latency(); got < 990*time.Microsecond || got > time.Millisecond {
		t.Errorf("settles at %v; want 1ms", got)
	}
	if slow.Cost() < 32*fast.Cost() {
		t.Errorf("50 times slower costs %d against %d", slow.Cost(), fast.Cost())
	}
	before := fast.Cost()
	fast.Observe(0)
	fast.Observe(-1)
	if fast.Cost() != before {
		t.Error("a call without a latency counts")
	}
	fast.SetFactor(3)
	if fast.Cost() <= before {
		t.Error("the cluster's load factor does not count")
	}
	fast.SetFactor(float32(math.NaN()))
	if fast.Cost() != before {
		t.Error("a load factor that is no number counts")
	}
	for range 200 {
		slow.Observe(time.Millisecond)
	}
	if slow.Cost() != before {
		t.Errorf("the past is not forgotten: %d; want %d", slow.Cost(), before)
	}
	slow.Forget()
	if slow.Cost() != 1 || slow.Latency() != 0 {
		t.Errorf("after Forget: %v at cost %d", slow.Latency(), slow.Cost())
	}
}

func BenchmarkObserve(b *testing.B) {
	l := new(Load)
	for b.Loop() {
		l.Observe(time.Millisecond)
	}
}
