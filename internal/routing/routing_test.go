package routing

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

func topology(ids ...cluster.NodeID) cluster.Topology {
	nodes := make([]cluster.Node, len(ids))
	for i, id := range ids {
		nodes[i] = cluster.Node{ID: id, Address: fmt.Sprintf("node-%d:2136", id)}
	}
	return cluster.NewTopology(nodes, "")
}

var (
	soft    = cluster.Condition{Health: cluster.Ejected}
	hard    = cluster.Condition{Health: cluster.Ejected, Unreachable: true}
	probed  = cluster.Condition{Health: cluster.Probing, Unreachable: true}
	suspect = cluster.Condition{Health: cluster.Suspect, Unreachable: true}
	leaving = cluster.Condition{Draining: true}
	banned  = cluster.Condition{Banned: true}
	lost    = cluster.Condition{Banned: true, Health: cluster.Ejected, Unreachable: true}
)

func TestUse(t *testing.T) {
	for _, tc := range []struct {
		name     string
		verdicts cluster.Conditions // of nodes 1..4
		want     string
		panics   bool
	}{
		{name: "all_healthy", want: "new new new new"},
		{name: "suspects_stay_in_use", verdicts: cluster.Conditions{1: suspect}, want: "new new new new"},
		{name: "soft_ejection_lets_open_work_finish", verdicts: cluster.Conditions{1: soft}, want: "open new new new"},
		{name: "unreachable_gets_nothing", verdicts: cluster.Conditions{1: hard, 2: probed}, want: "none none new new"},
		{name: "leaving_lets_open_work_finish", verdicts: cluster.Conditions{4: leaving}, want: "new new new open"},
		{name: "half_ejected_is_no_panic", verdicts: cluster.Conditions{1: soft, 2: soft}, want: "open open new new"},
		{name: "more_than_half_ejected_ignores_soft_ejections", verdicts: cluster.Conditions{1: soft, 2: soft, 3: hard},
			want: "new new none new", panics: true},
		{name: "unreachable_nodes_wait_while_one_answers", verdicts: cluster.Conditions{1: hard, 2: hard, 3: hard},
			want: "none none none new", panics: true},
		{name: "a_refusing_node_comes_before_unreachable_ones",
			verdicts: cluster.Conditions{1: hard, 2: hard, 3: hard, 4: soft}, want: "none none none new", panics: true},
		{name: "a_leaving_node_comes_before_unreachable_ones",
			verdicts: cluster.Conditions{1: hard, 2: hard, 3: hard, 4: leaving}, want: "none none none new",
			panics: true},
		{name: "a_refusing_node_comes_before_a_leaving_one",
			verdicts: cluster.Conditions{1: soft, 2: leaving, 3: leaving, 4: leaving}, want: "new open open open"},
		{name: "none_answers_so_any_is_tried", verdicts: cluster.Conditions{1: hard, 2: hard, 3: probed, 4: hard},
			want: "new new new new", panics: true},
		{name: "all_refuse_so_all_are_used", verdicts: cluster.Conditions{1: soft, 2: soft, 3: soft, 4: soft},
			want: "new new new new", panics: true},
		{name: "a_banned_node_lets_open_work_finish", verdicts: cluster.Conditions{1: banned}, want: "open new new new"},
		{name: "a_ban_outlives_trouble_elsewhere", verdicts: cluster.Conditions{1: banned, 2: hard, 3: hard, 4: hard},
			want: "open new new new", panics: true},
		{name: "a_ban_outlives_panic",
			verdicts: cluster.Conditions{1: {Banned: true, Health: cluster.Ejected}, 2: soft, 3: soft, 4: soft},
			want:     "open new new new", panics: true},
		{name: "banned_nodes_do_not_count_for_panic",
			verdicts: cluster.Conditions{1: {Banned: true, Health: cluster.Ejected}, 2: {Banned: true, Health: cluster.Ejected}, 3: soft},
			want:     "open open open new"},
		{name: "the_last_node_is_never_cut_off", verdicts: cluster.Conditions{1: banned, 2: banned, 3: lost, 4: lost},
			want: "new new none none"},
		{name: "not_even_if_it_is_banned_and_lost", verdicts: cluster.Conditions{1: lost, 2: lost, 3: lost, 4: lost},
			want: "new new new new"},
		{name: "all_leave_so_all_are_used", verdicts: cluster.Conditions{1: leaving, 2: leaving, 3: leaving, 4: leaving},
			want: "new new new new"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New(Default())
			r.SetTopology(topology(4, 2, 1, 3))
			r.SetConditions(tc.verdicts)
			view := r.View()
			got := ""
			for _, n := range view.Nodes {
				got += n.Use.String() + " "
			}
			if want := tc.want + " "; got != want {
				t.Errorf("uses %q; want %q", got, want)
			}
			if view.Panic != tc.panics {
				t.Errorf("Panic = %v; want %v", view.Panic, tc.panics)
			}
		})
	}
}

// Whatever the verdicts are, new work has somewhere to go, a worse node never
// gets it before a better one, and no order of events changes the outcome.
func TestUseInvariants(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range short.Of(5000, 1000) {
		n := 1 + random.IntN(6)
		ids := make([]cluster.NodeID, n)
		verdicts := cluster.Conditions{}
		for i := range ids {
			ids[i] = cluster.NodeID(i + 1)
			verdicts[ids[i]] = cluster.Condition{
				Health:      cluster.Health(random.IntN(4)),
				Draining:    random.IntN(3) == 0,
				Unreachable: random.IntN(2) == 0,
				Banned:      random.IntN(4) == 0,
				Ramp:        float32(random.IntN(2)) / 4,
			}
		}
		r, other := New(Default()), New(Default())
		r.SetTopology(topology(ids...))
		r.SetConditions(verdicts)
		other.SetConditions(verdicts)
		other.SetTopology(topology(ids...))
		view := r.View()
		if !reflect.DeepEqual(view, other.View()) {
			t.Fatalf("the order of events matters:\n%v\n%v", view, other.View())
		}
		best, reachable := rankGone, false
		for _, node := range view.Nodes {
			if node.Use == cluster.UseNew {
				best = min(best, rankOf(node))
			}
			reachable = reachable || !unreachable(node.Condition)
		}
		if best == rankGone {
			t.Fatalf("no node may be used: %v", verdicts)
		}
		for _, node := range view.Nodes {
			rank := rankOf(node)
			if rank < best {
				t.Fatalf("node %d is better than those in use: %v", node.ID, view.Nodes)
			}
			if unreachable(node.Condition) && rank != best && node.Use != cluster.UseNone {
				t.Fatalf("node %d is unreachable and has use %v; another is better", node.ID, node.Use)
			}
			if unreachable(node.Condition) && !reachable && !node.Condition.Banned && node.Use != cluster.UseNew {
				t.Fatalf("node %d has use %v, though none answers", node.ID, node.Use)
			}
			want := float32(0)
			if node.Use == cluster.UseNew {
				want = float32(rampOf(node.Condition))
			}
			if node.Weight != want || node.Load == nil {
				t.Fatalf("node %d has weight %v; want %v: %v", node.ID, node.Weight, want, node)
			}
		}
	}
}

// Calls enter and leave while nodes come, leave and are forgotten, and some leave that were counted
// elsewhere: whenever all have left a node, it has no call open, and never less than none.
func TestCountsWhileNodesComeAndGo(t *testing.T) {
	r := New(Default())
	const moving = 4 // nodes that come and go
	var stay []cluster.NodeID
	for id := range cluster.NodeID(maxLoads + 1) {
		stay = append(stay, moving+id+1)
	}
	all, rest, leaves := topology(append(upTo(moving), stay...)...), topology(stay...), cluster.Conditions{}
	for _, id := range upTo(moving) {
		leaves[id] = cluster.Condition{Draining: true}
	}
	r.SetTopology(all)
	var calls, news sync.WaitGroup
	for _, id := range upTo(2 * moving) {
		calls.Go(func() {
			for range 10000 {
				if r.Enter(id) {
					r.Leave(cluster.Outcome{Node: id})
				}
				if n := r.open(id); n != 0 {
					t.Errorf("node %d has %d calls open; want none", id, n)
					return
				}
			}
		})
		calls.Go(func() {
			for range 10000 {
				r.Leave(cluster.Outcome{Node: id}) // it was counted by a counter that is forgotten
			}
		})
	}
	done := make(chan struct{})
	news.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			r.SetTopology(rest)
			r.SetConditions(leaves)
			r.SetConditions(nil)
			r.SetTopology(all)
		}
	})
	calls.Wait()
	close(done)
	news.Wait()
	for id, l := range r.builder.loads {
		if n := l.calls.Load(); n != 0 {
			t.Errorf("node %d has %d calls open after all have left", id, n)
		}
	}
}

// open returns how many calls to a node are counted now.
func (r *Router) open(id cluster.NodeID) int64 {
	v := r.current.Load()
	i, ok := v.index(id)
	if !ok {
		return 0
	}
	return v.loads[i].calls.Load()
}

func TestPickPrefersTheLessLoadedOfTwo(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2, 3, 4))
	r.SetConditions(cluster.Conditions{4: soft})
	for range 3000 {
		n, err := r.Pick()
		if err != nil {
			t.Fatal(err)
		}
		if n.ID == 4 {
			t.Fatal("picked an ejected node")
		}
		if !r.Enter(n.ID) {
			t.Fatalf("node %d is full", n.ID)
		}
	}
	for _, n := range r.Stats().Nodes[:3] {
		if n.Calls < 980 || n.Calls > 1020 {
			t.Errorf("node %d has %d calls; want about 1000", n.Node.ID, n.Calls)
		}
	}
}

func TestPickPassesOverFullNodes(t *testing.T) {
	config := Default()
	config.MaxCallsPerNode = 2
	r := New(config)
	if _, err := r.Pick(); !errors.Is(err, ErrNoNode) {
		t.Fatalf("Pick without nodes = %v; want ErrNoNode", err)
	}
	r.SetTopology(topology(1, 2, 3, 4, 5))
	for _, id := range []cluster.NodeID{1, 1, 2, 2, 3, 3, 5, 5} {
		if !r.Enter(id) {
			t.Fatalf("Enter(%d) refused", id)
		}
	}
	if r.Enter(3) {
		t.Error("Enter admitted a third call")
	}
	if r.Enter(9) {
		t.Error("Enter admitted a call to an unknown node")
	}
	for range 100 {
		if n, err := r.Pick(); err != nil || n.ID != 4 {
			t.Fatalf("Pick = %d, %v; want the one node with room", n.ID, err)
		}
	}
	r.Enter(4)
	r.Enter(4)
	if _, err := r.Pick(); !errors.Is(err, ErrBusy) {
		t.Errorf("Pick with all full = %v; want ErrBusy", err)
	}
	r.Leave(cluster.Outcome{Node: 2})
	if n, err := r.Pick(); err != nil || n.ID != 2 {
		t.Errorf("Pick after Leave(2) = %d, %v; want 2", n.ID, err)
	}
	if got := r.Stats().Nodes[2].Refused; got != 1 {
		t.Errorf("node 3 refused %d; want 1", got)
	}
}

// What does not change the view is no news.
func TestSubscribersHearOfChangesOnly(t *testing.T) {
	r := New(Default())
	heard := 0
	r.Subscribe(func(cluster.View) { heard++ })
	step := func(name string, news bool, change func()) {
		t.Helper()
		before := heard
		change()
		if (heard > before) != news {
			t.Errorf("%s: news is %v; want %v", name, heard > before, news)
		}
	}
	since := time.Now()
	quarter := cluster.Condition{Health: cluster.Suspect, Ramp: 0.25, Since: since, Reason: "returns"}
	half := quarter
	half.Ramp = 0.5
	step("the first topology", true, func() { r.SetTopology(topology(1, 2)) })
	step("the same one", false, func() { r.SetTopology(topology(1, 2)) })
	step("no verdicts", false, func() { r.SetConditions(nil) })
	step("a verdict", true, func() { r.SetConditions(cluster.Conditions{1: quarter}) })
	step("the same one, made anew", false, func() { r.SetConditions(cluster.Conditions{1: quarter, 2: {}}) })
	step("a larger share", true, func() { r.SetConditions(cluster.Conditions{1: half}) })
	step("a load", false, func() {
		r.Enter(1)
		r.Leave(cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: time.Second})
		r.SetConditions(cluster.Conditions{1: half})
	})
	step("another zone of the node that answered, which counts for nothing here", false, func() {
		again := topology(1, 2)
		again.Zone = "b"
		r.SetTopology(again)
	})
	step("a node that left", true, func() { r.SetTopology(topology(1)) })
	step("that pessimize heard of, too", false, func() { r.SetConditions(cluster.Conditions{1: half, 2: leaving}) })
	step("leaving nodes", true, func() {
		r.SetTopology(topology(1, 2, 3, 4))
		r.SetConditions(cluster.Conditions{1: hard, 2: hard, 4: leaving})
	})
	step("panic, though no node changed", true, func() { r.SetTopology(topology(1, 2, 3)) })
	late := 0
	r.Subscribe(func(cluster.View) { late++ })
	if late != 1 {
		t.Errorf("a late subscriber heard of %d views; want the current one", late)
	}
}

// Only statements that a node carried out show how long it takes, and what they
// showed outlives views.
func TestLeaveObservesSuccess(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2))
	leave := func(k cluster.CallKind, b cluster.Blame, latency time.Duration) {
		r.Enter(1)
		r.Leave(cluster.Outcome{Node: 1, Kind: k, Blame: b, Latency: latency})
	}
	latency := func() time.Duration { return r.View().Nodes[0].Load.Latency() }
	for _, b := range []cluster.Blame{cluster.BlameNone, cluster.BlameRefusal, cluster.BlameTransport, cluster.BlameDraining} {
		leave(cluster.CallExecute, b, time.Microsecond)
	}
	for _, k := range []cluster.CallKind{cluster.CallOpen, cluster.CallCommit, cluster.CallControl, cluster.CallProbe} {
		leave(k, cluster.BlameSuccess, time.Microsecond)
	}
	for _, o := range []cluster.Outcome{{Blame: cluster.BlameSuccess, Latency: time.Minute}, {Waited: time.Minute}} {
		o.Node, o.Kind, o.Waits = 1, cluster.CallExecute, true // it may have been a shard's
		r.Enter(1)
		r.Leave(o)
	}
	if got := latency(); got != 0 {
		t.Errorf("latency %v; want none: no statement was carried out", got)
	}
	leave(cluster.CallExecute, cluster.BlameSuccess, 8*time.Millisecond)
	leave(cluster.CallExecute, cluster.BlameRefusal, time.Microsecond)
	silent := func(waited time.Duration) {
		r.Enter(1)
		r.Leave(cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Waited: waited})
	}
	silent(7 * time.Millisecond) // the caller had no patience: the node may be as fast as ever
	if got := latency(); got != 8*time.Millisecond {
		t.Errorf("latency %v after a short wait; want 8ms", got)
	}
	silent(16 * time.Millisecond)
	if got := latency(); got != 9*time.Millisecond {
		t.Errorf("latency %v after a long wait without an answer; want 9ms", got)
	}
	silent(time.Millisecond)
	r.SetConditions(cluster.Conditions{1: suspect})
	r.SetTopology(topology(1, 2, 3))
	if got := latency(); got != 9*time.Millisecond {
		t.Errorf("latency %v; want 9ms, also in later views", got)
	}
}

// The cluster's load factor is a node's load average by its processors.
func TestLoadFactorCounts(t *testing.T) {
	r := New(Default())
	nodes := topology(1, 2).Nodes
	nodes[1].LoadFactor = 1
	r.SetTopology(cluster.Topology{Nodes: nodes})
	for id := range cluster.NodeID(2) {
		r.Enter(id + 1)
		r.Leave(cluster.Outcome{Node: id + 1, Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: time.Millisecond})
	}
	if idle, busy := r.View().Nodes[0].Load.Cost(), r.View().Nodes[1].Load.Cost(); busy != 2*idle {
		t.Errorf("a node with load factor 1 costs %d; want twice the %d of an idle one", busy, idle)
	}
}

func TestSubscribersSeeViewsInOrder(t *testing.T) {
	r := New(Default())
	var mu sync.Mutex // proves that calls never overlap
	seen := map[string][]int{}
	subscribe := func(name string) {
		r.Subscribe(func(v cluster.View) {
			if !mu.TryLock() {
				t.Error("two calls at a time")
				return
			}
			defer mu.Unlock()
			seen[name] = append(seen[name], len(v.Nodes))
		})
	}
	subscribe("early")
	if len(seen["early"]) != 0 {
		t.Error("told of a view before there was one")
	}
	r.SetTopology(topology(1))
	subscribe("late")
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for i := range 200 {
				r.SetConditions([]cluster.Conditions{nil, {1: suspect}}[i%2])
			}
		})
	}
	wait.Wait()
	r.SetTopology(topology(1, 2, 3))
	for name, counts := range seen {
		if !slices.IsSorted(counts) || counts[0] != 1 || counts[len(counts)-1] != 3 {
			t.Errorf("%s saw %v nodes; want 1 ... 3", name, counts)
		}
	}
}

func TestSubscriberMayCallTheRouter(t *testing.T) {
	r := New(Default())
	changed := false
	r.Subscribe(func(v cluster.View) {
		if !changed {
			changed = true
			r.SetConditions(cluster.Conditions{1: hard})
		}
	})
	r.SetTopology(topology(1, 2))
	if n, _ := r.View().Find(1); n.Use != cluster.UseNone {
		t.Errorf("use %v; want none: the change made by the subscriber", n.Use)
	}
}

func TestNoAllocation(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2, 3))
	if got := testing.AllocsPerRun(1000, func() { oneCall(r) }); got != 0 {
		t.Errorf("%v allocations per call; want 0", got)
	}
}

func oneCall(r *Router) {
	if n, err := r.Pick(); err == nil {
		if id, err := r.Target(n.ID, false); err == nil {
			carriedOut(r, id, time.Millisecond)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	r := New(Default())
	r.SetTopology(topology(1, 2, 3))
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			oneCall(r)
		}
	})
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	if err := (Config{OwnerUnreachable: "maybe", ForwardSilence: -1}).Validate(); err == nil ||
		len(err.(interface{ Unwrap() []error }).Unwrap()) != 4 {
		t.Errorf("Validate = %v; want four faults", err)
	}
	for zone, valid := range map[string]bool{
		"any": true, "local": true, "nearest": true, "a": true, "a,b": true, "a, b": true,
		"": false, "a,": false, ",": false, "a,any": false, "local,a": false,
	} {
		c := Default()
		c.Zone = zone
		if err := c.Validate(); (err == nil) != valid {
			t.Errorf("zone %q: %v", zone, err)
		}
	}
}

// upTo returns the ids from 1 to n.
func upTo(n int) (ids []cluster.NodeID) {
	for id := range cluster.NodeID(n) {
		ids = append(ids, id+1)
	}
	return ids
}

// An update looks at each node a few times, however many nodes there are.
func TestUpdatesAreLinear(t *testing.T) {
	const most = 12 // times that a node is looked at
	for _, count := range []int{50, 5000} {
		r := New(Default())
		r.KeepWhile(func(cluster.NodeID) bool { return true })
		all := topology(upTo(count)...)
		half := topology(upTo(count / 2)...)
		verdicts := cluster.Conditions{}
		for _, id := range upTo(count) {
			verdicts[id] = cluster.Condition{Draining: int(id) > count/2}
		}
		for name, do := range map[string]func(){
			"all nodes":     func() { r.SetTopology(all) },
			"half of them":  func() { r.SetTopology(half) },
			"verdicts":      func() { r.SetConditions(verdicts) },
			"none any more": func() { r.SetConditions(nil) },
		} {
			r.SetTopology(all)
			before := r.builder.walked
			do()
			if n := r.builder.walked - before; n == 0 || n > most*count {
				t.Errorf("%s: %d nodes are looked at %d times; want at most %d", name, count, n, most*count)
			}
		}
	}
}
