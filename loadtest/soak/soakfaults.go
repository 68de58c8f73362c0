package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

// faultClock knows when something was broken.
type faultClock struct {
	mu     sync.Mutex // guards all
	active int
	ended  time.Time // the last fault
	count  map[string]int
}

func (c *faultClock) begin(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = map[string]int{}
	}
	c.active++
	c.count[what]++
}

func (c *faultClock) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	c.ended = time.Now()
}

// broken tells that a call that began then may have met a fault.
func (c *faultClock) broken(begun time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active > 0 || !c.ended.IsZero() && begun.Before(c.ended.Add(soakSettle))
}

// soakFault is one thing that happens to a node.
type soakFault struct {
	what string
	body map[string]any
	undo string // "" if it ends by itself
}

var soakFaults = []soakFault{
	{"kill", nil, "start"},
	{"stop", nil, "start"},
	{"drain", map[string]any{"mode": "streams", "soft": "1s", "hard": "2s"}, "start"},
	{"drain", map[string]any{"mode": "silent", "soft": "1s", "hard": "2s"}, "start"},
	{"drain", map[string]any{"mode": "hints", "soft": "1s", "hard": "2s"}, "start"},
	{"refuse", nil, "clear"},
	{"blackhole", nil, "clear"},
	{"delay", map[string]any{"delay": "100ms"}, "clear"},
	{"delay", map[string]any{"delay": "300ms", "share": 0.2}, "clear"},
	{"throttle", map[string]any{"bytes_per_second": 200000}, "clear"},
	{"errors", map[string]any{"status": "OVERLOADED"}, "clear"},
	{"errors", map[string]any{"status": "UNAVAILABLE", "share": 0.2}, "clear"},
	{"errors",
		map[string]any{"status": "UNDETERMINED", "share": 0.1, "after": true, "methods": []string{"ExecuteQuery", "CommitTransaction"}},
		"clear"},
	{"errors", map[string]any{"status": "BAD_SESSION", "share": 0.2, "methods": []string{"ExecuteQuery"}}, "clear"},
	{"cut", map[string]any{"share": 0.05}, "clear"},
	{"limit", map[string]any{"sessions": 3}, "clear"},
	{"hint", nil, ""}, // for every session of the node
}

func (f soakFault) String() string {
	name := f.what
	for _, key := range []string{"status", "delay", "mode", "share"} {
		if v, ok := f.body[key]; ok {
			name += fmt.Sprintf(" %s=%v", key, v)
		}
	}
	return name
}

// breakThings breaks one node at a time until the time is over.
func (k *Soaking) breakThings(ctx context.Context, duration time.Duration, seed uint64) error {
	random, end := rand.New(rand.NewPCG(seed, 0)), time.Now().Add(duration)
	unit := lab.At(k.l, 100*time.Millisecond, time.Second, time.Second)
	for {
		gap, hold := 3*unit+time.Duration(random.Int64N(int64(7*unit))), unit+time.Duration(random.Int64N(int64(3*unit)))
		f, node := soakFaults[random.IntN(len(soakFaults))], k.cluster.Nodes[random.IntN(len(k.cluster.Nodes))].ID
		if time.Now().Add(gap + hold).After(end) {
			return nil
		}
		if err := traffic.Pause(ctx, gap); err != nil {
			return err
		}
		if err := k.breakOne(ctx, f, node, hold); err != nil {
			return fmt.Errorf("%s, node %d: %w", f, node, err)
		}
	}
}

func (k *Soaking) breakOne(ctx context.Context, f soakFault, node uint32, hold time.Duration) error {
	k.faults.begin(f.String())
	defer k.faults.end()
	control := k.cluster.Control
	if f.what == "hint" {
		sessions, err := control.Sessions(ctx)
		if err != nil {
			return err
		}
		for _, s := range sessions {
			if s.NodeID == node {
				// One that is gone by now needs none.
				_ = control.Do(ctx, node, "hint", map[string]string{"session": s.ID})
			}
		}
		return traffic.Pause(ctx, hold)
	}
	if err := control.Do(ctx, node, f.what, f.body); err != nil {
		return err
	}
	if err := traffic.Pause(ctx, hold); err != nil {
		return err
	}
	if err := control.Do(ctx, node, f.undo, nil); err != nil {
		return err
	}
	return nil
}
