package adaptive

import (
	"testing"
	"testing/synctest"
	"time"
)

// idlePool is a pool that nobody uses. It notes its limit.
type idlePool struct{ limit, asked int }

func (p *idlePool) SetLimit(limit int) { p.limit = limit }
func (p *idlePool) Use() (int, bool)   { p.asked++; return 0, false }
func (p *idlePool) is(limit int) bool  { return p.limit == limit }
func fixed(limit int) func() Config    { return func() Config { return Default(limit, limit) } }
func sum(changes [Reasons]uint64) uint64 {
	return changes[Grown] + changes[Latency] + changes[Refused] + changes[Unused]
}

// Bounds reach the pools that they are meant for, and what a closed pool changed still counts.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := NewLimits(Default(50, 50))
		var own, other idlePool
		a, b := ls.Add(&own, fixed(40)), ls.Add(&other, nil)
		if !own.is(40) || !other.is(50) {
			t.Errorf("limits %d and %d; want 40, which the pool brought along, and 50", own.limit, other.limit)
		}
		ls.Resize(Default(20, 20))
		if !own.is(20) || !other.is(50) {
			t.Errorf("limits %d and %d after Resize; want 20 and 50", own.limit, other.limit)
		}
		ls.Reconfigure(Default(30, 30))
		if !own.is(30) || !other.is(30) {
			t.Errorf("limits %d and %d after Reconfigure; want 30", own.limit, other.limit)
		}
		if _, limit := ls.Sums(a); limit != 30 {
			t.Errorf("the limits of all pools but one come to %v; want 30", limit)
		}

		for range 100 {
			time.Sleep(time.Second)
			if pause := ls.step(); pause > time.Second {
				t.Fatalf("the next step is in %v", pause)
			}
		}
		if own.asked == 0 || other.asked == 0 {
			t.Errorf("the pools were asked %d and %d times", own.asked, other.asked)
		}
		ls.Reconfigure(Default(1, 1000))
		a.law.limit = 1000 // far above what is used: it falls
		for range 100 {
			time.Sleep(time.Second)
			ls.step()
		}
		before, _ := ls.Sums(nil)
		ls.Remove(a)
		ls.Remove(a)
		if after, limit := ls.Sums(nil); sum(before) == 0 || after != before || limit != ls.StateOf(b).Limit {
			t.Errorf("changes %v before and %v after a pool was closed; limit %v", before, after, limit)
		}
	})
}

func TestNoLimits(t *testing.T) {
	var ls *Limits
	ls.Reconfigure(Default(1, 2))
	ls.Resize(Default(1, 2))
	if st := ls.StateOf(nil); st != nil {
		t.Errorf("%+v; want nil", st)
	}
}
