package history

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/internal/latency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run starts a recorder in a bubble and stops it when f returns.
func run(t *testing.T, read func(*Reading), f func(*Recorder, *Meter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := New(read)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		f(r, r.NewMeter())
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// source is what is read, in a form that tests may change.
type source struct {
	mu sync.Mutex
	in Reading
}

func (s *source) read(in *Reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*in = s.in
}

func (s *source) set(in Reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in = in
}

// step lets one point be made.
func step() {
	time.Sleep(Step)
	synctest.Wait()
}

func TestPoint(t *testing.T) {
	node := NodeReading{ID: 7, Used: 3}
	now := Reading{Used: 3, Limit: 10, Waiting: 2, Nodes: []NodeReading{node}}
	from := &source{in: now}
	run(t, from.read, func(r *Recorder, m *Meter) {
		step()
		for range 20 {
			m.Add(
				&Call{Took: 10 * time.Millisecond, Queue: time.Millisecond, Acquire: 2 * time.Millisecond,
					Hop: 6 * time.Millisecond, Server: 4 * time.Millisecond},
			)
			node.Took[latency.BucketOf(5*time.Millisecond)]++
		}
		m.Add(&Call{Took: 10 * time.Millisecond, Status: "QUEUE_FULL"})
		m.Add(&Call{Took: 10 * time.Millisecond, Status: "QUEUE_FULL"})
		node.Bad = 4
		now.Nodes = []NodeReading{node}
		from.set(now)
		step()
		h := r.Since(1)
		if h.First != 2 || h.Last != 2 {
			t.Fatalf("points %d to %d; want 2 to 2", h.First, h.Last)
		}
		for name, want := range map[string]float32{
			"calls": 11, "failed": 1, "p50": 10, "p99": 10, "used": 3, "limit": 10, "waiting": 2,
			"queue": 20. / 22, "acquire": 40. / 22, "hop": 40. / 22, "server": 80. / 22, "rest": 10 - 180./22,
		} {
			if got := h.All[name][0]; got < want*0.87 || got > want*1.13 {
				t.Errorf("%s = %v; want %v", name, got, want)
			}
		}
		if got := h.Errors["QUEUE_FULL"]; !slices.Equal(got, Series{1}) {
			t.Errorf("errors: %v; want 1 a second", got)
		}
		for name, want := range map[string]float32{"calls": 10, "bad": 2, "p50": 5, "p99": 5, "used": 3} {
			if got := h.Nodes[7][name][0]; got < want*0.87 || got > want*1.13 {
				t.Errorf("%s of the node = %v; want %v", name, got, want)
			}
		}
	})
}

func TestSince(t *testing.T) {
	waiting := 0
	run(t, func(in *Reading) { waiting++; in.Waiting = waiting }, func(r *Recorder, _ *Meter) {
		if h := r.Since(0); h.First != 1 || h.Last != 0 || len(h.All["waiting"]) != 0 {
			t.Errorf("before the first point: %d to %d", h.First, h.Last)
		}
		for range Points + 5 {
			step()
		}
		for _, c := range []struct{ after, first uint64 }{
			{0, 6}, {4, 6}, {5, 6}, {6, 7}, {Points + 4, Points + 5}, {Points + 5, Points + 6},
			{Points + 6, 6}, {1 << 63, 6}, {1<<64 - 1, 6}, // of another process
		} {
			h := r.Since(c.after)
			if h.First != c.first || h.Last != Points+5 {
				t.Errorf("after %d: %d to %d; want %d to %d", c.after, h.First, h.Last, c.first, Points+5)
			}
			for i, v := range h.All["waiting"] {
				if uint64(v) != h.First+uint64(i) {
					t.Fatalf("after %d: point %d is %v", c.after, h.First+uint64(i), v)
				}
			}
		}
	})
}

// A node that is away has no points, and one that comes back does not show old ones.
func TestNodeAway(t *testing.T) {
	from := new(source)
	run(t, from.read, func(r *Recorder, _ *Meter) {
		here, away := Reading{Nodes: []NodeReading{{ID: 1, Used: 5}}}, Reading{}
		points := func() Series { return r.Since(0).Nodes[1]["used"] }
		step()
		from.set(here)
		step()
		step()
		from.set(away)
		step()
		if got, want := points(), (Series{0, 5, 5, 0}); !slices.Equal(got, want) {
			t.Errorf("the node left: %v; want %v", got, want)
		}
		from.set(here)
		step()
		if got, want := points(), (Series{0, 5, 5, 0, 5}); !slices.Equal(got, want) {
			t.Errorf("the node is back: %v; want %v", got, want)
		}
		from.set(away)
		for range Points {
			step()
		}
		if got := points(); got != nil {
			t.Errorf("ten minutes later: %v; want nothing", got)
		}
	})
}

func TestBounds(t *testing.T) {
	var nodes []NodeReading
	for id := range uint32(10 * maxNodes) {
		nodes = append(nodes, NodeReading{ID: id + 1})
	}
	run(t, func(in *Reading) { in.Nodes = nodes }, func(r *Recorder, m *Meter) {
		for i := range 100_000 {
			m.Add(&Call{Name: fmt.Sprint(i), Status: fmt.Sprint(i), Caller: i%2 == 0, Took: time.Duration(i)})
		}
		step()
		h := r.Since(0)
		if len(h.Nodes) != maxNodes || len(h.Errors) != maxErrors {
			t.Errorf("%d nodes and %d kinds of error; want %d and %d", len(h.Nodes), len(h.Errors), maxNodes, maxErrors)
		}
		sum := float32(0)
		for _, s := range h.Errors {
			sum += s[0]
		}
		if want := float32(100_000 / Step.Seconds()); sum != want || h.All["failed"][0] != want {
			t.Errorf("%v errors a second, %v in all; want %v", sum, h.All["failed"], want)
		}
		text, err := json.Marshal(h.All)
		if err != nil || !json.Valid(text) {
			t.Errorf("%s: %v", text, err)
		}
	})
}

// Of more nodes than have points, those with bad signs have some: they take the places of nodes that had none for a
// minute, and nobody's who had one since.
func TestBadNodesHavePoints(t *testing.T) {
	nodes := make([]NodeReading, 3*maxNodes)
	for i := range nodes {
		nodes[i].ID = uint32(i + 1)
	}
	var mu sync.Mutex // guards nodes
	bad := func(from, to int) {
		mu.Lock()
		defer mu.Unlock()
		for i := from; i < to; i++ {
			nodes[i].Bad += 4
		}
	}
	run(t, func(in *Reading) {
		mu.Lock()
		defer mu.Unlock()
		in.Nodes = slices.Clone(nodes)
	}, func(r *Recorder, _ *Meter) {
		has := func(i int) bool { return r.Since(0).Nodes[uint32(i+1)] != nil }
		step()
		if has(maxNodes) {
			t.Fatal("more nodes have points than may")
		}
		bad(0, maxNodes-10)
		step()
		bad(maxNodes, maxNodes+20) // ten of them have room
		step()
		kept, came := 0, 0
		for i := range maxNodes {
			if has(i) {
				kept++
			}
		}
		for i := range 20 {
			if has(maxNodes + i) {
				came++
			}
		}
		if kept != maxNodes-10 || came != 10 {
			t.Errorf("%d nodes were kept and %d came; want %d and 10", kept, came, maxNodes-10)
		}
		h := r.Since(0).Nodes
		for i := range 20 {
			if s := h[uint32(maxNodes+i+1)]; s != nil && s["bad"][len(s["bad"])-1] != float32(4/Step.Seconds()) {
				t.Errorf("node %d: bad signs %v; want 2 a second", maxNodes+i+1, s["bad"])
			}
		}
		for range calm {
			step()
		}
		bad(2*maxNodes, 2*maxNodes+1)
		step()
		if !has(2 * maxNodes) {
			t.Error("a node with bad signs has no points, though that of others is a minute ago")
		}
	})
}

func TestSlowest(t *testing.T) {
	run(t, func(*Reading) {}, func(r *Recorder, m *Meter) {
		step()
		for i := range 1000 { // neither in order nor in reverse
			m.Add(&Call{Took: time.Duration(i*617%1000+1) * time.Microsecond})
		}
		took := func(most int) (all []time.Duration) {
			for _, s := range r.slow.sorted() {
				all = append(all, s.Took/time.Microsecond)
			}
			return all[:min(len(all), most)]
		}
		if got := took(3); !slices.Equal(got, []time.Duration{1000, 999, 998}) {
			t.Errorf("slowest %v; want 1000, 999, 998", got)
		}
		if got := took(1000); len(got) != perMinute || got[perMinute-1] != 1001-perMinute {
			t.Errorf("slowest %v; want %d, down to %d", got, perMinute, 1001-perMinute)
		}
		if got, want := time.Duration(r.slow.least.Load()), (1001-perMinute)*time.Microsecond; got != want {
			t.Errorf("calls of up to %v take no lock; want up to %v", got, want)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		m.Add(&Call{Took: time.Microsecond}) // in a new minute it is the slowest
		if got := took(1000); len(got) != perMinute+1 || got[perMinute] != 1 {
			t.Errorf("a minute later %v; want one more, of 1", got)
		}
		time.Sleep(minutes * time.Minute)
		synctest.Wait()
		if got := took(1000); len(got) != 0 {
			t.Errorf("ten minutes later %v; want nothing", got)
		}
	})
}

func TestAddAllocates(t *testing.T) {
	r := New(func(*Reading) {})
	m := r.NewMeter()
	for range 2 * perMinute {
		m.Add(&Call{Took: time.Hour})
	}
	m.Add(&Call{Status: "ABORTED"})
	if n := testing.AllocsPerRun(1000, func() {
		m.Add(&Call{Took: time.Millisecond, Queue: 1, Acquire: 1, Hop: 1, Server: 1, Status: "ABORTED"})
	}); n != 0 {
		t.Errorf("a call allocates %v times; want 0", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	m := New(func(*Reading) {}).NewMeter()
	for range perMinute {
		m.Add(&Call{Took: time.Hour})
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Add(&Call{Took: time.Millisecond, Queue: 1, Hop: time.Millisecond})
	}
}

// One stall does not fill the list: its slowest calls stand for it.
func TestSlowestOfAStall(t *testing.T) {
	run(t, func(*Reading) {}, func(r *Recorder, m *Meter) {
		step()
		m.Add(&Call{Took: 30 * time.Millisecond, App: "before"})
		time.Sleep(2 * together)
		for i := range 12 {
			m.Add(&Call{Took: 2*time.Second + time.Duration(i)*time.Millisecond, App: "stall"})
		}
		time.Sleep(2 * together)
		m.Add(&Call{Took: 20 * time.Millisecond, App: "after"})
		type row struct {
			app    string
			took   time.Duration
			others int
		}
		list := func(most int) (all []row) {
			for _, s := range r.Slowest(most) {
				all = append(all, row{s.App, s.Took / time.Millisecond, s.Others})
			}
			return all
		}
		want := []row{{"stall", 2011, 9}, {"stall", 2010, 0}, {"stall", 2009, 0}, {"before", 30, 0}, {"after", 20, 0}}
		if got := list(15); !slices.Equal(got, want) {
			t.Errorf("slowest calls %v; want %v", got, want)
		}
		if got := list(4); !slices.Equal(got, want[:4]) {
			t.Errorf("the four slowest calls %v; want %v", got, want[:4])
		}
	})
}

// Errors of callers are counted apart from those of the service, and repeats of calls as well.
func TestWhoseErrors(t *testing.T) {
	run(t, func(*Reading) {}, func(r *Recorder, m *Meter) {
		step()
		for range 6 {
			m.Add(&Call{Status: "YDB_SCHEME_ERROR", Caller: true, Attempts: 1})
		}
		m.Add(&Call{Status: "NO_HEALTHY_NODE", Attempts: 3})
		m.Add(&Call{Attempts: 2})
		step()
		h := r.Since(1)
		per := func(n float64) float32 { return float32(n / Step.Seconds()) }
		for name, want := range map[string]float32{"calls": per(8), "failed": per(7), "caller": per(6), "retries": per(3)} {
			if got := h.All[name]; len(got) != 1 || got[0] != want {
				t.Errorf("%s is %v; want %v", name, got, want)
			}
		}
		if want := []string{"YDB_SCHEME_ERROR"}; !slices.Equal(h.Caller, want) {
			t.Errorf("errors of callers are %v; want %v", h.Caller, want)
		}
		for i := range 2 * maxErrors { // more kinds than are told apart
			m.Add(&Call{Status: fmt.Sprint("kind ", i), Caller: i%2 == 0})
		}
		step()
		h = r.Since(2)
		if len(h.Errors) > maxErrors || h.Errors[Other] == nil || h.Errors[OtherCaller] == nil ||
			!slices.Contains(h.Caller, OtherCaller) || slices.Contains(h.Caller, Other) {
			t.Errorf("%d kinds: %v, of callers %v; want at most %d, with %s and %s", len(h.Errors), h.Errors, h.Caller,
				maxErrors, Other, OtherCaller)
		}
		if got := h.All["caller"][0]; got != per(maxErrors) {
			t.Errorf("errors of callers: %v a second; want %v", got, per(maxErrors))
		}
	})
}
