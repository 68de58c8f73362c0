package findings

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The app that holds the sessions is to blame, and not the app whose calls are rejected for want of them.
func TestHolderAndRejected(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(p *Picture)
		want   string // a part of the text; $ is its end
	}{
		"others wait": {func(p *Picture) { p.Apps = []App{{Name: "reports"}, {Name: "shop", Waiting: 7}} },
			"app reports holds 18 of 20 sessions in open transactions, the longest for 9.0 s on node 3, and no call runs in it " +
				"(trace 0af7); 7 callers wait, the first for 1.2 s; 100 % of these calls are of app shop, which is not to blame$"},
		"it waits itself": {func(p *Picture) { p.Apps = []App{{Name: "reports", Waiting: 7}, {Name: "shop"}} },
			"; 100 % of these calls are its own$"},
		"one app":     {func(*Picture) {}, "the first for 1.2 s$"},
		"a call runs": {func(p *Picture) { p.SessionUses[3].Busy = true }, "the longest for 9.0 s on node 3 (trace 0af7); 7 callers"},
		"it shrinks":  {func(p *Picture) { p.Pool.Max, p.Pool.Limit = 5, 5 }, "holds 18 of 20 sessions (shrinking to pool.max, 5) in open"},
	} {
		t.Run(name, func(t *testing.T) {
			_, w := told(25, func(i int, p *Picture) {
				if i < 15 {
					return
				}
				full(p)
				hold(p, "reports", 18, 5*time.Second)
				p.SessionUses[3].Held, p.SessionUses[3].Node, p.SessionUses[3].Trace = 9*time.Second, 3, "0af7"
				tc.change(p)
			})
			f := w.Report().Findings[0]
			if f.Code != SessionsHeld || f.App != "reports" || f.Trace != "0af7" || !strings.Contains(f.Text+"$", tc.want) {
				t.Errorf("%+v; want %q", f, tc.want)
			}
		})
	}
}

// Callers that wait because an app held the sessions wait on for a moment when it has gone: the pool is large enough.
func TestPoolIsNotSmallAfterSessionsWereHeld(t *testing.T) {
	for name, tc := range map[string]struct {
		waits int // seconds for which callers wait on
		small bool
	}{"at once": {0, false}, "for a moment": {2, false}, "for long": {9, true}} {
		t.Run(name, func(t *testing.T) {
			all, _ := told(45, func(i int, p *Picture) {
				if i >= 10 && i < 25+tc.waits {
					full(p)
				}
				if i >= 10 && i < 25 {
					hold(p, "reports", 18, time.Duration(i-9)*time.Second)
				}
			})
			small := slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, "began POOL_SMALL") })
			if small != tc.small || !slices.Contains(all, "25 ended SESSIONS_HELD") {
				t.Errorf("told %q; want POOL_SMALL: %t", all, tc.small)
			}
		})
	}
}

// A pool whose pool.max was lowered says that it shrinks, and not that it has more sessions than it may.
func TestShrinkingPool(t *testing.T) {
	_, w := told(25, func(i int, p *Picture) {
		if i >= 15 {
			full(p)
			p.Pool.Max, p.Pool.Limit = 5, 5
		}
	})
	want := "20 sessions are in use, and the pool is shrinking from 20 to 5 (pool.max) while the nodes are fast"
	if f := w.Report().Findings; len(f) != 1 || f[0].Code != PoolSmall || !strings.HasPrefix(f[0].Text, want) {
		t.Errorf("%+v; want %q", f, want)
	}
}
