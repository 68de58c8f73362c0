package upstream

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const dialTimeout = 5 * time.Second

// dialCase is a name that leads to some addresses, and how dialling them ends.
type dialCase struct {
	name  string
	found []string // dead: never accepts; shut: refuses; slow: accepts after 400 ms; good: at once
	want  string   // "" for none
	took  time.Duration
	tried int
}

func TestDialAny(t *testing.T) {
	for _, tc := range []dialCase{
		{name: "one", found: []string{"good1"}, want: "good1", tried: 1},
		{name: "the_first_if_it_is_good", found: []string{"good1", "good2"}, want: "good1", tried: 1},
		{name: "the_next_at_once_after_a_refusal", found: []string{"shut1", "good1"}, want: "good1", tried: 2},
		{name: "the_next_after_the_stagger", found: []string{"dead1", "good1"}, want: "good1", took: stagger, tried: 2},
		{name: "each_costs_the_stagger", found: []string{"dead1", "dead2", "shut1", "good1", "good2"}, want: "good1",
			took: 2 * stagger, tried: 4},
		{name: "the_first_may_still_win", found: []string{"slow1", "dead1", "dead2"}, want: "slow1",
			took: 400 * time.Millisecond, tried: 2},
		{name: "all_refuse", found: []string{"shut1", "shut2"}, tried: 2},
		{name: "all_dead", found: []string{"dead1", "dead2"}, took: dialTimeout, tried: 2},
		{name: "no_such_name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, tc.dial)
		})
	}
}

// dial checks which connection is made, and when.
func (tc dialCase) dial(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), dialTimeout)
	defer cancel()
	var mu sync.Mutex // guards the two below
	var tried []string
	var winner net.Conn
	start := time.Now()
	c, err := dialAny(ctx, "name:2136",
		func(context.Context, string) ([]string, error) {
			if tc.found == nil {
				return nil, errors.New("no such host")
			}
			return tc.found, nil
		},
		func(ctx context.Context, address string) (net.Conn, error) {
			mu.Lock()
			tried = append(tried, address)
			mu.Unlock()
			var accepts <-chan time.Time
			switch address[:4] {
			case "shut":
				return nil, errors.New(address + ": refused")
			case "slow":
				accepts = time.After(400 * time.Millisecond)
			case "good":
				accepts = time.After(0)
			}
			select {
			case <-accepts:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			c, _ := net.Pipe()
			if address == tc.want+":2136" {
				mu.Lock()
				winner = c
				mu.Unlock()
			}
			return c, nil
		})
	if (err == nil) != (tc.want != "") || tc.want != "" && c != winner {
		t.Errorf("%v, %v; want %q", c, err, tc.want)
	}
	if took := time.Since(start); took != tc.took || len(tried) != tc.tried {
		t.Errorf("tried %v in %v; want %d in %v", tried, took, tc.tried, tc.took)
	}
	for i, a := range tried {
		if want := tc.found[i] + ":2136"; a != want {
			t.Errorf("tried %v in another order", tried)
		}
		if err != nil && strings.HasPrefix(a, "shut") && !strings.Contains(err.Error(), a) {
			t.Errorf("%v does not name %s", err, a)
		}
	}
}

// What comes too late is given back, and nothing is left behind.
func TestRaceGivesBackLateResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int32
		var lost []int
		i, value, err := race(t.Context(), 3, func(int) time.Duration { return stagger },
			func(ctx context.Context, i int) (int, error) {
				open.Add(1)
				defer open.Add(-1)
				if i == 2 {
					return 12, nil
				}
				<-ctx.Done() // succeeds all the same
				return 10 + i, nil
			},
			func(v int) { lost = append(lost, v) })
		slices.Sort(lost)
		if i != 2 || value != 12 || err != nil || !slices.Equal(lost, []int{10, 11}) || open.Load() != 0 {
			t.Errorf("%d, %d, %v; lost %v, %d open", i, value, err, lost, open.Load())
		}
	})
}
