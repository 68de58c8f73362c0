package chaos

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// sampleEvery is the grain of the timeline.
const sampleEvery = 100 * time.Millisecond

// Tick is the state of things at one moment.
type Tick struct {
	At       float64           `json:"at_s"`
	Nodes    map[uint32]string `json:"nodes"`    // what the sidecar thinks: health, or "leaving"; absent: unknown to it
	Sessions map[uint32]int    `json:"sessions"` // as the sidecar counts them
	Creating map[uint32]int    `json:"creating"` // sessions being opened, as the sidecar counts them
	Moved    int64             `json:"moved"`    // sessions let go so far for the sake of another node, as the sidecar counts them
	Created  int64             `json:"created"`  // sessions opened on all nodes so far, as the nodes count them
}

// timeline watches the sidecar and the nodes.
type timeline struct {
	stack    *stack
	recorder *recorder

	mu        sync.Mutex // guards the fields below
	sidecar   *sidecar   // nil while there is none to ask
	ticks     []Tick
	created   tally
	forwarded tally
	events    []Event
}

// Event is something that the harness did.
type Event struct {
	At   float64 `json:"at_s"`
	What string  `json:"what"`
}

// tally adds up a counter of the nodes over their lives: each begins at zero.
type tally struct {
	total int64
	last  map[int]int64 // by process
}

func (t *tally) add(node stand.Node, counter string) {
	if node.Pid == 0 || len(node.Counters) == 0 {
		return
	}
	if t.last == nil {
		t.last = map[int]int64{}
	}
	if now := node.Counters[counter]; now > t.last[node.Pid] { // zero while a node cannot tell
		t.total += now - t.last[node.Pid]
		t.last[node.Pid] = now
	}
}

func (t *timeline) event(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, Event{t.recorder.now().Seconds(), what})
}

// watch follows another sidecar from now on; nil none.
func (t *timeline) watch(c *sidecar) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sidecar = c
}

// run samples until ctx ends.
func (t *timeline) run(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		t.sample(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (t *timeline) sample(ctx context.Context) {
	now := Tick{At: t.recorder.now().Seconds(), Nodes: map[uint32]string{}, Sessions: map[uint32]int{}, Creating: map[uint32]int{}}
	t.mu.Lock()
	c := t.sidecar
	t.mu.Unlock()
	if c != nil {
		nodes, err := c.nodes(ctx) // fails while the sidecar ends; then nothing is known
		if err == nil {
			for _, n := range nodes {
				now.Nodes[n.ID], now.Sessions[n.ID], now.Creating[n.ID] = n.Health, n.Sessions, n.Creating
				if n.Leaving {
					now.Nodes[n.ID] = "leaving"
				}
			}
		}
	}
	if c != nil {
		done, _ := c.pool(ctx) // fails with it
		now.Moved = done.Moved
	}
	nodes, err := t.stack.control.Nodes(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		for _, n := range nodes {
			t.created.add(n, "sessions_created")
			t.forwarded.add(n, "forwarded")
		}
	}
	now.Created = t.created.total
	t.ticks = append(t.ticks, now)
}

// sums returns how many sessions were created and calls forwarded so far.
func (t *timeline) sums() (created, forwarded int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.created.total, t.forwarded.total
}

func created(t Tick) int64 { return t.Created }

func moved(t Tick) int64 { return t.Moved }

// pace returns by how much a count grew at most within a second in [from, to).
func (t *timeline) pace(from, to time.Duration, count func(Tick) int64) (most int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, a := range t.ticks {
		if a.At < from.Seconds()-sampleEvery.Seconds() {
			continue
		}
		for _, b := range t.ticks[i:] {
			if b.At-a.At > 1 || b.At > to.Seconds() {
				break
			}
			most = max(most, count(b)-count(a))
		}
	}
	return most
}

// creating returns the most sessions that were being opened at a time, on one node and in all.
func (t *timeline) creating(from, to time.Duration) (node, all int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range t.ticks {
		if one.At < from.Seconds() || one.At > to.Seconds() {
			continue
		}
		sum := 0
		for _, n := range one.Creating {
			node, sum = max(node, n), sum+n
		}
		all = max(all, sum)
	}
	return node, all
}

func (t *timeline) copy() ([]Tick, []Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ticks := make([]Tick, 0, len(t.ticks))
	for _, one := range t.ticks {
		one.Nodes, one.Sessions, one.Creating = maps.Clone(one.Nodes), maps.Clone(one.Sessions), maps.Clone(one.Creating)
		ticks = append(ticks, one)
	}
	return ticks, append([]Event{}, t.events...)
}
