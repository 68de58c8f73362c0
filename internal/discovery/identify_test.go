package discovery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// hosts tells ids by address, and notes who was asked.
type hosts struct {
	mu      sync.Mutex
	ids     map[string]cluster.NodeID // 0: it does not tell
	took    time.Duration
	asked   map[string]int
	now     int
	most    int // asked at a time
	changes int
}

func (h *hosts) identify(ctx context.Context, address, _ string) (cluster.NodeID, error) {
	h.mu.Lock()
	if h.asked == nil {
		h.asked = map[string]int{}
	}
	h.asked[address]++
	h.now++
	h.most = max(h.most, h.now)
	took := h.took
	h.mu.Unlock()
	awake.Sleep(ctx, took)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now--
	if h.ids[address] == 0 {
		return 0, errors.New("it is busy")
	}
	return h.ids[address], nil
}

func (h *hosts) set(address string, id cluster.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids[address] = id
}

func (h *hosts) questions(address string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked[address]
}

func (h *hosts) changed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes++
}

// identified runs identities on hosts until the test ends.
func identified(t *testing.T, h *hosts) *identities {
	t.Helper()
	i := newIdentities(h.identify, quiet)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.run(ctx, h.changed)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return i
}

func at(addresses ...string) (nodes []cluster.Node) {
	for _, a := range addresses {
		nodes = append(nodes, cluster.Node{Address: a})
	}
	return nodes
}

func wantNodes(t *testing.T, i *identities, asked []cluster.Node, want map[string]cluster.NodeID) {
	t.Helper()
	nodes, err := i.resolve(t.Context(), asked)
	got := map[string]cluster.NodeID{}
	for _, n := range nodes {
		got[n.Address] = n.ID
	}
	if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (len(want) > 0) {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestANodeIsAskedForItsIDOnceForEachConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{ids: map[string]cluster.NodeID{"a:1": 7, "b:1": 9}}
		i := identified(t, h)
		both := at("a:1", "b:1")
		for range 3 {
			wantNodes(t, i, both, map[string]cluster.NodeID{"a:1": 7, "b:1": 9})
			time.Sleep(24 * time.Hour)
		}
		if h.questions("a:1") != 1 || h.changes != 2 {
			t.Errorf("asked %d times, %d changes; want once, and 2", h.questions("a:1"), h.changes)
		}
		i.Doubt("a:1")
		synctest.Wait()
		wantNodes(t, i, both, map[string]cluster.NodeID{"a:1": 7, "b:1": 9})
		if h.questions("a:1") != 2 || h.questions("b:1") != 1 || h.changes != 2 {
			t.Errorf("after a connection: asked %v, %d changes", h.asked, h.changes)
		}

		// It was started again, as another node, and is slow to say so.
		h.set("a:1", 0)
		i.Doubt("a:1")
		synctest.Wait()
		wantNodes(t, i, both, map[string]cluster.NodeID{"a:1": 7, "b:1": 9})
		h.set("a:1", 8)
		time.Sleep(identifyPause + time.Millisecond)
		synctest.Wait()
		if h.changes != 3 {
			t.Errorf("%d changes; want 3", h.changes)
		}
		wantNodes(t, i, both, map[string]cluster.NodeID{"a:1": 8, "b:1": 9})

		i.Doubt("elsewhere:1")
		wantNodes(t, i, at("b:1"), map[string]cluster.NodeID{"b:1": 9})
		if len(i.known) != 1 {
			t.Errorf("%d addresses are remembered; want the one that is wanted", len(i.known))
		}
		wantNodes(t, i, []cluster.Node{{ID: 3, Address: "c:1"}}, map[string]cluster.NodeID{"c:1": 3})
		if h.questions("c:1") != 0 {
			t.Error("a node was asked whose id the source told")
		}
	})
}

// A connection that is made while the node is being asked may be to the next process.
func TestAConnectionWhileANodeIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{ids: map[string]cluster.NodeID{"a:1": 7}, took: 100 * time.Millisecond}
		i := identified(t, h)
		i.want(at("a:1"))
		time.Sleep(50 * time.Millisecond)
		i.Doubt("a:1")
		time.Sleep(time.Second)
		if n := h.questions("a:1"); n != 2 {
			t.Errorf("asked %d times; want again after the connection", n)
		}
	})
}

func TestANodeThatDoesNotTellHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{ids: map[string]cluster.NodeID{"a:1": 7}, took: 3 * time.Second}
		i := identified(t, h)
		began := time.Now()
		wantNodes(t, i, at("a:1", "b:1"), map[string]cluster.NodeID{})
		if took := time.Since(began); took != identifyGrace {
			t.Errorf("took %v; want %v", took, identifyGrace)
		}
		time.Sleep(10 * time.Second)
		began = time.Now()
		for range 5 {
			wantNodes(t, i, at("a:1", "b:1"), map[string]cluster.NodeID{"a:1": 7})
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v; want no wait for a node that was asked before", took)
		}
		if left := i.unidentified(); len(left) != 1 || left[0].Address != "b:1" || left[0].Err == nil {
			t.Errorf("unidentified: %v", left)
		}
		before := h.questions("b:1")
		time.Sleep(time.Hour)
		if n, most := h.questions("b:1")-before, int(time.Hour/identifyPauseMax); n < most/2 || n > most {
			t.Errorf("asked %d times in an hour; want with pauses that double to %v", n, identifyPauseMax)
		}
	})
}

// Both addresses of a machine with two, or the former and the new one of a node that moved.
func TestTheAddressThatToldLastComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{ids: map[string]cluster.NodeID{"old:1": 5, "new:1": 5}}
		i := identified(t, h)
		wantNodes(t, i, at("old:1"), map[string]cluster.NodeID{"old:1": 5})
		time.Sleep(time.Second)
		nodes, err := i.resolve(t.Context(), at("old:1", "new:1"))
		if want := []cluster.Node{{ID: 5, Address: "new:1"}}; err != nil || cmp.Diff(want, cluster.NewTopology(nodes, "").Nodes) != "" {
			t.Errorf("%v, %v; want %v", nodes, err, want)
		}
	})
}

func TestNotAllAreAskedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{ids: map[string]cluster.NodeID{}, took: 10 * time.Millisecond}
		var addresses []string
		for k := range 1000 {
			addresses = append(addresses, fmt.Sprint("h", k, ":1"))
			h.ids[addresses[k]] = cluster.NodeID(k + 1)
		}
		i := identified(t, h)
		nodes, err := i.resolve(t.Context(), at(addresses...))
		if err != nil || len(nodes) != 1000 || h.most != identifyAtOnce {
			t.Errorf("%d nodes, %v; %d asked at a time, want %d", len(nodes), err, h.most, identifyAtOnce)
		}
	})
}
