package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
)

// fleet is a cluster without a network: it lists nodes, answers probes and has sessions.
type fleet struct {
	mu       sync.Mutex
	listed   func(question int) []cluster.NodeID
	asked    int
	dead     map[cluster.NodeID]bool
	sessions map[cluster.NodeID]int
	deleted  int
}

func (f *fleet) Database() string { return "/local" }

func (f *fleet) ListEndpoints(context.Context) (cluster.Topology, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	var nodes []cluster.Node
	for _, id := range f.listed(f.asked) {
		nodes = append(nodes, cluster.Node{ID: id, Address: fmt.Sprintf("node-%d:2136", id)})
	}
	return cluster.NewTopology(nodes, ""), nil
}

func (f *fleet) Probe(_ context.Context, id cluster.NodeID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead[id] {
		return errors.New("connection refused")
	}
	return nil
}

func (f *fleet) Open(_ context.Context, id cluster.NodeID, _ func(string)) (pool.Resource, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sessions[id]++
	return fleetSession{f, id}, nil
}

func (f *fleet) SetView(cluster.View) {}

func (f *fleet) Uses(id cluster.NodeID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions[id] > 0
}

func (f *fleet) deletions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deleted
}

type fleetSession struct {
	*fleet
	node cluster.NodeID
}

func (s fleetSession) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[s.node]--
	s.deleted++
	return nil
}

func newFleet(listed func(question int) []cluster.NodeID) *fleet {
	return &fleet{listed: listed, dead: map[cluster.NodeID]bool{}, sessions: map[cluster.NodeID]int{}}
}

// run runs the parts that know of nodes, joined as in a sidecar, until stop is called.
func (f *fleet) run(t *testing.T, c pool.Config) (k *core, stop func()) {
	log := slog.New(slog.DiscardHandler)
	k = &core{router: routing.New(routing.Default()), detector: pessimize.New(pessimize.Default(), f, log)}
	k.discovery = discovery.New(discovery.Default(), f, log)
	k.attention = discovery.NewAttention(k.discovery.Refresh)
	k.pool = pool.New(c, f, log)
	k.join(f)
	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{k.detector.Run, k.discovery.Run, k.attention.Run, k.pool.Run} {
		parts.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	synctest.Wait()
	return k, func() {
		cancel()
		parts.Wait()
	}
}

func ids(first, last cluster.NodeID) (all []cluster.NodeID) {
	for id := first; id <= last; id++ {
		all = append(all, id)
	}
	return all
}

// inFleet runs a fleet with a pool of two sessions on each of 200 nodes until test
// returns. One of the two is leased, as if for a transaction.
func inFleet(t *testing.T, listed func(question int) []cluster.NodeID, test func(t *testing.T, f *fleet, k *core, open []*pool.Session)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(listed)
		c := pool.Default()
		c.Max, c.MaxPerNode, c.Min = 400, 2, 0
		k, stop := f.run(t, c)
		var all []*pool.Session
		for range 400 {
			g, err := k.pool.Acquire(t.Context(), pool.Ask{Class: pool.Normal})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, g.Session)
		}
		var open []*pool.Session
		held := map[cluster.NodeID]bool{}
		for _, s := range all {
			if held[s.Node()] {
				k.pool.Release(s)
				continue
			}
			held[s.Node()] = true
			open = append(open, s)
		}
		if len(open) != 200 {
			t.Fatalf("sessions on %d nodes; want 200", len(open))
		}
		test(t, f, k, open)
		for _, s := range open {
			k.pool.Release(s)
		}
		stop()
		if err := k.pool.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestNodesThatVanishForOneAnswerLoseNothing(t *testing.T) {
	var bad int // the question with the bad answer; 0: not yet
	inFleet(t, func(question int) []cluster.NodeID {
		if question == bad {
			return ids(1, 20)
		}
		return ids(1, 200)
	}, func(t *testing.T, f *fleet, k *core, open []*pool.Session) {
		deleted := f.deletions()
		f.mu.Lock()
		bad = f.asked + 1
		f.mu.Unlock()
		missing := 0
		for range 2000 { // 20 s
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			missing = max(missing, k.discovery.State().Missing)
			for _, s := range open {
				if _, err := k.router.Target(s.Node(), true); err != nil {
					t.Fatalf("the transaction on node %d: %v", s.Node(), err)
				}
			}
		}
		if missing != 180 {
			t.Errorf("%d nodes were missing; want 180", missing)
		}
		if n := f.deletions() - deleted; n != 0 {
			t.Errorf("%d sessions were deleted; want none", n)
		}
		for _, n := range k.router.View().Nodes {
			if n.Missing || n.Use != cluster.UseNew || n.Weight != 1 || n.Condition.Health != cluster.Healthy || n.Condition.Draining {
				t.Errorf("node %d is not as it was: %+v", n.ID, n)
			}
		}
	})
}

// 180 of 200 nodes are replaced by others: some are dead, some run on unlisted.
func TestNodesThatAreReplacedDepart(t *testing.T) {
	var from int
	inFleet(t, func(question int) []cluster.NodeID {
		if from > 0 && question >= from {
			return append(ids(1, 20), ids(301, 480)...)
		}
		return ids(1, 200)
	}, func(t *testing.T, f *fleet, k *core, open []*pool.Session) {
		f.mu.Lock()
		from = f.asked + 1
		for id := range cluster.NodeID(90) {
			f.dead[21+id] = true
		}
		f.mu.Unlock()
		since := time.Now()
		for k.discovery.State().Missing == 0 {
			if time.Since(since) > 10*time.Second {
				t.Fatal("no node is missing")
			}
			time.Sleep(10 * time.Millisecond)
		}
		since = time.Now()
		for k.discovery.State().Missing > 90 {
			if time.Since(since) > 11*time.Second {
				t.Fatalf("%d nodes are missing %v after they vanished; want those that refuse connections to be gone",
					k.discovery.State().Missing, time.Since(since))
			}
			time.Sleep(10 * time.Millisecond)
		}
		for k.discovery.State().Missing > 0 {
			if time.Since(since) > 25*time.Second {
				t.Fatalf("%d nodes are missing %v after they vanished; want none after the grace",
					k.discovery.State().Missing, time.Since(since))
			}
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(since); took < 15*time.Second {
			t.Errorf("nodes that answer departed after %v; want the grace of 15 s", took)
		}
		synctest.Wait()
		for _, n := range k.router.View().Nodes {
			if want := n.ID <= 20 || n.ID > 300; want != (n.Use == cluster.UseNew) {
				t.Errorf("node %d has use %v", n.ID, n.Use)
			}
		}
		for _, s := range open { // what is open on nodes that run may still finish
			if _, err := k.router.Target(s.Node(), true); err != nil && s.Node() > 110 {
				t.Errorf("the transaction on node %d: %v", s.Node(), err)
			}
		}
		time.Sleep(30 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		for id := range cluster.NodeID(200) {
			if n := f.sessions[id+1]; id+1 > 20 && n > 1 {
				t.Errorf("node %d has %d sessions; want at most the leased one", id+1, n)
			}
		}
	})
}
