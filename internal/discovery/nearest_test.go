package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// regions is a network in which the nodes of a zone take a time to accept.
type regions struct {
	mu     sync.Mutex
	took   map[string]time.Duration // by zone; none: nobody there ever accepts
	refuse bool                     // nobody accepts, and says so
	dialed map[string]int           // by zone
}

func (r *regions) dial(ctx context.Context, _, address string) (net.Conn, error) {
	zone, _, _ := strings.Cut(address, "-")
	r.mu.Lock()
	r.dialed[zone]++
	took, accepts := r.took[zone]
	refuse := r.refuse
	r.mu.Unlock()
	if refuse {
		return nil, errors.New("refused")
	}
	if !accepts {
		took = time.Hour
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(took):
	}
	near, far := net.Pipe()
	far.Close()
	return near, nil
}

// spread is a topology of n nodes in each zone, answered by one in zone.
func spread(zone string, n int, zones ...string) cluster.Topology {
	var all []cluster.Node
	for _, z := range zones {
		for range n {
			id := cluster.NodeID(len(all) + 1)
			all = append(all, cluster.Node{ID: id, Address: fmt.Sprintf("%s-%d:2136", z, id), Zone: z})
		}
	}
	return cluster.NewTopology(all, zone)
}

func (r *regions) nearest() *nearest {
	return &nearest{dial: r.dial, lookup: func(_ context.Context, host string) ([]string, error) {
		if strings.HasPrefix(host, "unknown") {
			return nil, errors.New("no such host")
		}
		return []string{host}, nil
	}}
}

func TestNearestZone(t *testing.T) {
	const ms = time.Millisecond
	type times map[string]time.Duration
	for _, tc := range []struct {
		name     string
		answered string
		steps    []times // of each measurement
		want     []string
	}{
		{name: "the_first_to_accept", steps: []times{{"a": 5 * ms, "b": ms, "c": 20 * ms}}, want: []string{"b"}},
		{name: "a_tie_goes_to_the_zone_that_answered", answered: "c",
			steps: []times{{"a": ms, "b": ms, "c": 19 * ms / 10}}, want: []string{"c"}},
		{name: "else_to_the_first_by_name", answered: "z",
			steps: []times{{"a": 110 * time.Microsecond, "b": 100 * time.Microsecond, "c": ms / 5}}, want: []string{"a"}},
		{name: "the_margin_makes_a_tie", answered: "b", steps: []times{{"a": ms / 100, "b": ms / 4}}, want: []string{"b"}},
		{name: "beyond_factor_and_margin_is_no_tie", answered: "b", steps: []times{{"a": ms, "b": 2*ms + ms/100}}, want: []string{"a"}},
		{
			name: "noise_changes_nothing",
			steps: []times{{"a": ms, "b": 3 * ms}, {"a": ms, "b": 6 * ms / 10}, {"a": 20 * ms, "b": ms},
				{"a": ms, "b": ms}, {"a": 20 * ms, "b": ms}},
			want: []string{"a", "a", "a", "a", "a"},
		},
		{
			name:  "clearly_nearer_twice_does",
			steps: []times{{"a": ms, "b": 3 * ms}, {"a": 20 * ms, "b": ms}, {"a": 20 * ms, "b": ms, "c": ms}, {"a": ms, "b": ms}},
			want:  []string{"a", "a", "b", "b"},
		},
		{
			name:  "not_two_different_ones",
			steps: []times{{"a": ms}, {"a": 20 * ms, "b": ms}, {"a": 20 * ms, "c": ms}, {"a": 20 * ms, "b": ms}},
			want:  []string{"a", "a", "a", "a"},
		},
		{name: "nobody_accepts", steps: []times{{}, {"a": ms}, {}, {}}, want: []string{"", "a", "a", "a"}},
		{name: "the_nearest_dies", steps: []times{{"a": ms, "b": 5 * ms}, {"b": 5 * ms}, {"b": 5 * ms}}, want: []string{"a", "a", "b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &regions{dialed: map[string]int{}}
				n := r.nearest()
				var got []string
				for _, took := range tc.steps {
					r.took = took
					got = append(got, n.measure(t.Context(), spread(tc.answered, 3, "a", "b", "c")))
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("nearest %q; want %q", got, tc.want)
				}
			})
		})
	}
}

// An address that nodes of several zones share stands for each of them.
func TestZonesOfASharedAddress(t *testing.T) {
	topology := spread("", 1, "a/b", "b", "", "c")
	got := zonesOf(topology)
	for _, addresses := range got {
		slices.Sort(addresses)
	}
	want := map[string][]string{"a": {"a/b-1:2136"}, "b": {"a/b-1:2136", "b-2:2136"}, "c": {"c-4:2136"}}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("zones %v; want %v", got, want)
	}
}

// It costs no more than the nearest zone takes, few connections, and a second at
// the very worst.
func TestMeasuringIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &regions{took: map[string]time.Duration{"a": 2 * time.Millisecond}, dialed: map[string]int{}}
		n := r.nearest()
		measure := func(topology cluster.Topology) (string, time.Duration) {
			start := time.Now()
			zone := n.measure(t.Context(), topology)
			return zone, time.Since(start)
		}
		if zone, took := measure(spread("", 40, "a", "b", "c")); zone != "a" || took != 4*time.Millisecond {
			t.Errorf("%q after %v; want a after twice its 2ms", zone, took)
		}
		for zone, n := range r.dialed {
			if n != nearestNodes {
				t.Errorf("%d connections to zone %s; want %d", n, zone, nearestNodes)
			}
		}
		clear(r.dialed)
		var many []string
		for i := range 100 {
			many = append(many, fmt.Sprintf("z%d", i))
		}
		if zone, took := measure(spread("", 1, many...)); zone != "a" || took != nearestTimeout || len(r.dialed) != nearestZones {
			t.Errorf("%q after %v, %d zones; nobody accepts, want the former one after %v, %d zones", zone, took,
				len(r.dialed), nearestTimeout, nearestZones)
		}
		r.refuse = true
		if zone, took := measure(spread("", 3, "a", "b")); zone != "a" || took != 0 {
			t.Errorf("%q after %v; all refuse, want the former one at once", zone, took)
		}
		clear(r.dialed)
		if zone, took := measure(spread("", 3, "b", "")); zone != "b" || took != 0 || len(r.dialed) != 0 {
			t.Errorf("%q after %v, %d dialled; want the only zone with a name, and no connection", zone, took, len(r.dialed))
		}
		if zone, _ := measure(spread("", 3, "unknown1", "unknown2")); zone != "b" || len(r.dialed) != 0 {
			t.Errorf("%q, %d dialled; no name can be resolved", zone, len(r.dialed))
		}
	})
}

// A name server that does not answer for one name leaves time for the others.
func TestANameThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &regions{took: map[string]time.Duration{"a": 5 * time.Millisecond, "b": time.Millisecond}, dialed: map[string]int{}}
		n := r.nearest()
		lookup := n.lookup
		n.lookup = func(ctx context.Context, host string) ([]string, error) {
			if strings.HasPrefix(host, "c-") {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return lookup(ctx, host)
		}
		start := time.Now()
		if zone := n.measure(t.Context(), spread("", 3, "a", "b", "c")); zone != "b" || time.Since(start) > nearestTimeout {
			t.Errorf("%q after %v; want b", zone, time.Since(start))
		}
	})
}

func TestTheTopologyNamesTheNearestZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &regions{took: map[string]time.Duration{"a": 2 * time.Millisecond, "b": time.Millisecond / 2}, dialed: map[string]int{}}
		s := &source{began: time.Now(), answer: func(int) (cluster.Topology, error) { return spread("a", 3, "a", "b"), nil }}
		d := New(Default(), s, quiet)
		d.MeasureNearest()
		d.nearest.zone = "a"
		d.nearest.dial, d.nearest.lookup = r.dial, r.nearest().lookup
		var heard []string
		d.Subscribe(func(t cluster.Topology) { heard = append(heard, t.Nearest) })
		run(t, d)
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if want := []string{"a", "b"}; !slices.Equal(heard, want) {
			t.Errorf("heard %v; want %v: as it was, then measured", heard, want)
		}
		if got := d.State().Topology.Nearest; got != "b" {
			t.Errorf("State says %q", got)
		}
	})
}

// On the loopback of a developer's machine no zone is nearer than another, and
// the choice stays.
func TestLoopbackIsATie(t *testing.T) {
	var all []cluster.Node
	for i := range 9 {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer lis.Close()
		all = append(all, cluster.Node{ID: cluster.NodeID(i + 1), Address: lis.Addr().String(), Zone: string(rune('a' + i/3))})
	}
	n := newNearest()
	first := n.measure(t.Context(), cluster.NewTopology(all, "b"))
	if first == "" {
		t.Fatal("nothing was measured")
	}
	n.rival = ""
	if second := n.measure(t.Context(), cluster.NewTopology(all, "b")); second != first {
		t.Errorf("%s, then %s", first, second)
	}
}
