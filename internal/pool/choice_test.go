package pool

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// testTable makes nodes with sessions live on them, of which some are idle.
func testTable(counts [][2]int) (*table, *arena) {
	cells := new(arena)
	for i := range 4 {
		cells[i] = new([chunkSize]cell)
	}
	var nodes []*node
	next := uint16(0)
	for i, c := range counts {
		n := &node{id: cluster.NodeID(i + 1), guarded: guarded{view: nodeView{weight: 1}}}
		n.live.Store(int32(c[0]))
		for range c[1] {
			n.idle.push(cells, next)
			next++
		}
		nodes = append(nodes, n)
	}
	return newTable(nodes, nil), cells
}

func TestChoose(t *testing.T) {
	tests := []struct {
		name   string
		counts [][2]int // live, idle
		never  []int    // nodes, from 0, that are not chosen
		always []int    // nodes that are, each with about the same frequency
	}{
		{"no_nodes", nil, nil, nil},
		{"none_idle", [][2]int{{5, 0}, {5, 0}}, []int{0, 1}, nil},
		{"single", [][2]int{{5, 1}}, nil, []int{0}},
		{"one_idle", [][2]int{{5, 0}, {9, 1}, {5, 0}}, []int{0, 2}, []int{1}},
		{"equal", [][2]int{{5, 5}, {5, 5}, {5, 5}}, nil, []int{0, 1, 2}},
		{"the_most_loaded_of_all_is_not", [][2]int{{10, 2}, {10, 9}, {10, 8}}, []int{0}, []int{1, 2}},
		{"load_is_not_size", [][2]int{{20, 19}, {2, 0}, {3, 1}}, []int{1, 2}, []int{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab, _ := testTable(tt.counts)
			got := make([]int, len(tt.counts))
			const tries = 3000
			for range tries {
				if n := choose(tab.weighted, &tab.index[0]); n != nil {
					got[n.id-1]++
				}
			}
			for _, i := range tt.never {
				if got[i] > 0 {
					t.Errorf("chosen %v; want never node %d", got, i)
				}
			}
			for _, i := range tt.always {
				if got[i] < tries/len(tt.always)/2 {
					t.Errorf("chosen %v; want node %d about as often as its like", got, i)
				}
			}
		})
	}
}

// Of two nodes the one is chosen whose load times the cost of a call is lower for
// its weight.
func TestChooseByCostAndWeight(t *testing.T) {
	seen := func(latency time.Duration) *cluster.Load {
		l := new(cluster.Load)
		l.Observe(latency)
		return l
	}
	tests := []struct {
		name    string
		out     [2]int
		loads   [2]*cluster.Load
		weights [2]float64
		want    [2]bool // is chosen at times
	}{
		{"slow", [2]int{1, 3}, [2]*cluster.Load{seen(8 * time.Millisecond), seen(time.Millisecond)}, [2]float64{1, 1},
			[2]bool{false, true}},
		{"slow_and_few", [2]int{1, 9}, [2]*cluster.Load{seen(8 * time.Millisecond), seen(time.Millisecond)},
			[2]float64{1, 1}, [2]bool{true, false}},
		{"both_free", [2]int{0, 0}, [2]*cluster.Load{seen(8 * time.Millisecond), seen(time.Millisecond)},
			[2]float64{1, 1}, [2]bool{true, true}},
		{"unknown", [2]int{2, 1}, [2]*cluster.Load{new(cluster.Load), seen(time.Millisecond)}, [2]float64{1, 1}, [2]bool{false, true}},
		{"nil", [2]int{1, 2}, [2]*cluster.Load{nil, seen(time.Millisecond)}, [2]float64{1, 1}, [2]bool{true, false}},
		{"light", [2]int{1, 5}, [2]*cluster.Load{}, [2]float64{0.1, 1}, [2]bool{false, true}},
		{"light_and_few", [2]int{1, 11}, [2]*cluster.Load{}, [2]float64{0.1, 1}, [2]bool{true, false}},
		{"slow_and_heavy", [2]int{1, 1}, [2]*cluster.Load{seen(8 * time.Millisecond), seen(time.Millisecond)},
			[2]float64{1, 0.1}, [2]bool{true, false}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab, _ := testTable([][2]int{{tt.out[0] + 1, 1}, {tt.out[1] + 1, 1}})
			for i, n := range tab.nodes {
				n.view.load, n.view.weight = tt.loads[i], tt.weights[i]
			}
			tab = newTable(tab.nodes, nil)
			var got [2]bool
			for range 200 {
				got[choose(tab.weighted, &tab.index[0]).id-1] = true
			}
			if got != tt.want {
				t.Errorf("chosen %v; want %v", got, tt.want)
			}
		})
	}
}

// Slots are passed over above a node's fair share of the load, and always if it
// has weight 0.
func TestReckon(t *testing.T) {
	slow, fast := new(cluster.Load), new(cluster.Load)
	slow.Observe(4 * time.Millisecond)
	fast.Observe(time.Millisecond)
	tests := []struct {
		name    string
		weights []float64
		loads   []*cluster.Load
		want    []int32 // of 30 sessions out
	}{
		{"equal", []float64{1, 1, 1}, []*cluster.Load{nil, nil, nil}, []int32{12, 12, 12}},
		{"by_weight", []float64{1, 0.5}, []*cluster.Load{nil, nil}, []int32{22, 11}},
		{"by_cost", []float64{1, 1}, []*cluster.Load{slow, fast}, []int32{6, 26}},
		{"unknown_as_the_best", []float64{1, 1, 1}, []*cluster.Load{slow, fast, nil}, []int32{4, 15, 15}},
		{"without_weight", []float64{1, 1, 0}, []*cluster.Load{nil, nil, nil}, []int32{17, 17, -1}},
		{"alone", []float64{1, 0}, []*cluster.Load{slow, fast}, []int32{1 << 30, -1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var nodes []*node
			for i, w := range tt.weights {
				n := &node{guarded: guarded{view: nodeView{weight: w, load: tt.loads[i]}}}
				nodes = append(nodes, n)
			}
			nodes[0].live.Store(30)
			newTable(nodes, nil)
			for i, n := range nodes {
				if got := n.most.Load(); got != tt.want[i] {
					t.Errorf("node %d: %d; want %d", i, got, tt.want[i])
				}
			}
		})
	}
}

// A single caller that always finds a session in its slot still spreads its work.
func TestSlotsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, config(30), newServers(1, 2, 3), view(1, 2, 3))
		checkOut(t, p, 30)()
		served := make(map[cluster.NodeID]int)
		calls := short.Of(300, 100) * slotTurns
		for range calls {
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			served[g.Node()]++
			p.Release(g.Session)
		}
		for id := cluster.NodeID(1); id <= 3; id++ {
			if served[id] < calls/10 {
				t.Errorf("calls by node %v; want each to have a part", served)
			}
		}
	})
}

// A slot is passed over when its node carries more than its share.
func TestSlotOfALoadedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, config(30), newServers(1, 2, 3), view(1, 2, 3))
		checkOut(t, p, 30)()
		// All of node 1 in use, all others idle.
		var one, others []*Session
		for {
			s, ok := p.Try(Ask{Class: Normal})
			if !ok {
				break
			}
			if s.Node() == 1 {
				one = append(one, s)
			} else {
				others = append(others, s)
			}
		}
		for _, s := range others {
			s.inUse = false
			s.node.idle.push(&p.cells, s.index)
		}
		// One of node 1 rests in every slot.
		for i := range p.slots {
			s := one[i]
			s.slot = uint32(i)
			p.Release(s)
		}
		s, ok := p.Try(Ask{Class: Normal})
		if !ok || s.Node() == 1 {
			t.Errorf("a session of node %d, which has %d of its 10 out, the others none", s.Node(), s.node.out())
		}
		p.Release(s)
		for _, s := range one[len(p.slots):] {
			p.Release(s)
		}
	})
}

// A caller that says where it had its last session gets one there again, and spreads its work all
// the same; where the node carries more than its share it does not, nor in another pool.
func TestNear(t *testing.T) {
	for _, callers := range []int{6, 24} {
		t.Run(strconv.Itoa(callers), func(t *testing.T) { near(t, callers) })
	}
}

func near(t *testing.T, callers int) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, config(30), newServers(1, 2, 3), view(1, 2, 3))
		checkOut(t, p, 30)()
		calls := short.Of(300, 100) * slotTurns
		places := make([]Home, callers)
		served, same := make(map[cluster.NodeID]int), 0
		for range calls {
			var held []*Session
			for i := range places {
				s, ok := p.Try(Ask{Class: Normal, Near: places[i]})
				if !ok {
					t.Fatal("no session")
				}
				if places[i] == s.Home() {
					same++
				}
				if i == 0 {
					served[s.Node()]++
				}
				places[i] = s.Home()
				held = append(held, s)
			}
			for _, s := range held {
				p.Release(s)
			}
		}
		if all := calls * len(places); same < all*8/10 {
			t.Errorf("%d of %d sessions were where the last one was", same, all)
		}
		for id := cluster.NodeID(1); id <= 3; id++ {
			if served[id] < calls/20 {
				t.Errorf("calls of one caller by node %v; want each to have a part", served)
			}
		}

		near := Home{p.nodes[1]}
		nearNoMore(t, p, near, max(8, callers/3+slotMargin+1))

		other := start(t, config(30), newServers(1, 2, 3), view(1, 2, 3))
		checkOut(t, other, 30)()
		for range 100 {
			s, ok := other.Try(Ask{Class: Normal, Near: near})
			if !ok || s.Home().node.shelf != &other.shelf {
				t.Fatal("a session of another pool")
			}
			other.Release(s)
		}
	})
}

// nearNoMore checks that of 15 callers that want to be near node 1 no more than most are.
func nearNoMore(t *testing.T, p *Pool, near Home, most int) {
	t.Helper()
	ofOne := 0
	var held []*Session
	for range 15 {
		s, ok := p.Try(Ask{Class: Normal, Near: near})
		if !ok {
			t.Fatal("no session")
		}
		if held = append(held, s); s.Node() == 1 {
			ofOne++
		}
	}
	if ofOne > most {
		t.Errorf("%d of 15 sessions are of node 1; want at most %d: its share of them, or of the load before", ofOne, most)
	}
	for _, s := range held {
		p.Release(s)
	}
}
