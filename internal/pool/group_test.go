package pool

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
)

// startGroup is startFamily with pools that are in a group, each with a weight.
func startGroup(t *testing.T, limit, most int, weights ...int) *family {
	y := startFamily(t, limit, 0, nil)
	for _, weight := range weights {
		y.join(most, "group", weight)
	}
	return y
}

// join adds a pool of a group.
func (y *family) join(most int, group string, weight int) {
	y.Helper()
	f := y.nodes()
	y.add(startPool(y, f, f, view(1, 2), config(most), func(p *Pool) *Pool {
		return p.WithinGroup(y.Budget, group, func() int { return weight })
	}))
}

// The pools of a group have together what one pool may have, by their weights; another pool beside
// them has what it may.
func TestGroupIsShared(t *testing.T) {
	tests := map[string]struct {
		limit   int
		weights []int
		callers []int
		want    []int
	}{
		"one":               {40, []int{1}, []int{50}, []int{12}},
		"two equals":        {40, []int{1, 1}, []int{50, 50}, []int{6, 6}},
		"by weight":         {40, []int{1, 3}, []int{50, 50}, []int{3, 9}},
		"one wants little":  {40, []int{1, 1}, []int{50, 2}, []int{10, 2}},
		"a heavy one first": {40, []int{1000, 1}, []int{50, 50}, []int{11, 1}},
		"a small budget":    {9, []int{1, 1}, []int{50, 50}, []int{3, 3}}, // the third are of the other pool
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := startGroup(t, tt.limit, 12, tt.weights...)
				y.join(12, "", 1)
				var wg sync.WaitGroup
				y.load(&wg, len(tt.weights), 50, 7*time.Millisecond, 6*time.Second)
				for i, callers := range tt.callers {
					y.load(&wg, i, callers, 7*time.Millisecond, 6*time.Second)
					time.Sleep(time.Second)
				}
				time.Sleep(3 * time.Second)
				synctest.Wait()
				y.check()
				got := y.sizes()
				for i, want := range tt.want {
					if got[i] < want-1 || got[i] > want+1 || got[i] == 0 {
						t.Errorf("sessions by pool %v; want about %v", got, tt.want)
					}
				}
				if beside := got[len(got)-1]; tt.limit == 40 && beside != 12 {
					t.Errorf("the pool beside the group has %d sessions; want 12", beside)
				}
				wg.Wait()
			})
		})
	}
}

// What a pool of a full group hardly uses serves the callers of another one at once, also beyond equal
// parts; what it uses by turns does not.
func TestGroupIdleServesAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		busy   int // sessions of the first pool in use
		within time.Duration
		want   []int
	}{
		"unused":      {0, 80 * time.Millisecond, []int{2, 18}},
		"hardly used": {2, 80 * time.Millisecond, []int{4, 16}},
		"half used":   {9, 80 * time.Millisecond, []int{10, 10}},
		"in the end":  {9, 3 * time.Second, []int{9, 11}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := startGroup(t, 40, 20, 1, 1)
				checkOut(t, y.pools[0], 20)()
				time.Sleep(budget.KeepFor)
				defer checkOut(t, y.pools[0], c.busy)()
				var told [18]*Session
				var waiters [18]*Waiter
				for i := range told {
					waiters[i] = NewWaiter(func(g Grant, err error) { told[i] = g.Session })
					if g, err := y.pools[1].Wait(waiters[i], Ask{Class: Normal}); g.Session != nil || err != nil {
						t.Fatal(g, err)
					}
				}
				time.Sleep(c.within)
				synctest.Wait()
				y.check()
				if got := y.sizes(); got[0] != c.want[0] || got[1] != c.want[1] {
					t.Errorf("sessions by pool %v; want %v", got, c.want)
				}
				for i, w := range waiters {
					if told[i] == nil {
						y.pools[1].Cancel(w)
					}
				}
				for _, s := range told {
					if s != nil {
						y.pools[1].Release(s)
					}
				}
			})
		})
	}
}

// Pools of a full group whose callers come by turns do not open sessions for each turn.
func TestGroupByTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startGroup(t, 40, 20, 1, 1)
		for _, p := range y.pools {
			checkOut(t, p, 10)()
		}
		var wg sync.WaitGroup
		for turn := range 500 { // 10 s
			for range 18 {
				wg.Go(func() { useFor(t, y.pools[turn%2], 5*time.Millisecond) })
			}
			time.Sleep(20 * time.Millisecond)
		}
		wg.Wait()
		y.check()
		if shed := y.Stats().Yielded; shed > 200 { // ten a second for each; more than 4000 if nothing held them back
			t.Errorf("%d sessions were closed for the sake of the other pool", shed)
		}
	})
}

// A pool of a full group is not served by a pool of another group.
func TestGroupTakesFromItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startGroup(t, 40, 4, 1, 1)
		y.join(12, "", 1)
		checkOut(t, y.pools[2], 12)() // idle
		checkOut(t, y.pools[0], 4)()
		defer checkOut(t, y.pools[1], 3)()
		synctest.Wait()
		y.check()
		if got := y.sizes(); got[0] != 1 || got[1] != 3 || got[2] != 12 {
			t.Errorf("sessions by pool %v; want 1, 3 and 12", got)
		}
	})
}

// A limit that is lowered holds as soon as sessions are released; one that is raised, at once.
func TestGroupReconfigure(t *testing.T) {
	for name, busy := range map[string]bool{"in use": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := startGroup(t, 40, 6, 1, 1)
				var wg sync.WaitGroup
				if busy {
					y.load(&wg, 0, 20, 7*time.Millisecond, 16*time.Second)
					y.load(&wg, 1, 20, 7*time.Millisecond, 16*time.Second)
				} else {
					checkOut(t, y.pools[0], 3)()
					checkOut(t, y.pools[1], 3)()
				}
				sum := func(after time.Duration, want int) {
					t.Helper()
					time.Sleep(after)
					synctest.Wait()
					y.check()
					if got := y.sizes(); got[0]+got[1] != want {
						t.Errorf("sessions by pool %v; want %d in all", got, want)
					}
				}
				sum(5*time.Second, 6)
				y.lowered = true
				y.Budget.Reconfigure(config(2), nil)
				sum(5*time.Second, 2)
				y.lowered = false
				if busy {
					y.Budget.Reconfigure(config(10), nil)
					sum(5*time.Second, 10)
				}
				wg.Wait()
			})
		})
	}
}

// A caller that waits for a session of a full group hears which limit that is.
func TestGroupSaysWhatIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startGroup(t, 40, 4, 1, 1)
		held := get(t, y.pools[1])
		defer y.pools[1].Release(held)
		defer checkOut(t, y.pools[0], 3)()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := y.pools[1].Acquire(ctx, Ask{Class: Normal})
		if want := "all 4 sessions of the pools of this identity's apps taken"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	})
}
