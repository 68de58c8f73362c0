package peers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"go.uber.org/goleak"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheCalmerRunCounts(t *testing.T) {
	calm, busy, failed := Measured{Others: 0.1}, Measured{Others: 0.9}, Measured{Others: 0.9, Failed: 1}
	for _, tc := range []struct {
		name             string
		one, again, want Measured
	}{
		{"the second", busy, calm, calm},
		{"the first", calm, busy, calm},
		{"not when calls of the first failed", failed, calm, failed},
		{"nor of the second", calm, failed, failed},
	} {
		got := calmer(tc.one, tc.again)
		tc.want.Again = true
		if got != tc.want {
			t.Errorf("%s: got %+v; want %+v", tc.name, got, tc.want)
		}
	}
}

func TestABodyMustBeANodesOwn(t *testing.T) {
	a := answer{want: [nodes][]byte{[]byte("one"), []byte("two two"), []byte("three")}}
	split := func(parts ...string) (all mem.BufferSlice) {
		for _, part := range parts {
			all = append(all, mem.SliceBuffer(part))
		}
		return all
	}
	for _, tc := range []struct {
		data mem.BufferSlice
		from int
	}{
		{split("one"), 1}, {split("two", "", " two"), 2}, {split("th", "r", "ee"), 3},
		{split("onE"), 0}, {split("one", "o"), 0}, {split(), 0}, {split("two two two"), 0}, {split("twotwo "), 0},
	} {
		a.from = 0
		err := checking{}.Unmarshal(tc.data, &a)
		if a.from != tc.from || (err == nil) != (tc.from > 0) {
			t.Errorf("%q: got node %d, %v; want %d", tc.data, a.from, err, tc.from)
		}
	}
}

// stage serves as the backends and as the proxy made of grpc-go, in this process.
func stage(t *testing.T) (f *field, proxy string) {
	t.Helper()
	f = &field{options: Options{Conns: 1, Log: io.Discard}, dir: t.TempDir(), nodes: map[bool][]string{}}
	if err := certify(f.dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, out := io.Pipe()
	done := make(chan error, 2)
	go func() { done <- Backends(ctx, out, f.dir) }()
	line := make([]byte, 1000)
	n, err := ready.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	for i, field := range strings.Fields(string(line[:n]))[1:] {
		_, address, _ := strings.Cut(field, "=")
		f.nodes[i%2 == 1] = append(f.nodes[i%2 == 1], address)
	}
	if proxy, err = stand.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	go func() { done <- Forward(ctx, proxy, f.nodes[false]) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	limit, stop := context.WithTimeout(t.Context(), startUp)
	defer stop()
	for f.probe(limit, &target{endpoints: map[sides]*endpoint{nowhere: {addresses: []string{proxy}}}}, nowhere) != nil {
		if limit.Err() != nil {
			t.Fatal("the proxy does not serve")
		}
	}
	return f, proxy
}

func calls(t *testing.T, f *field, to *target, s Scenario) error {
	t.Helper()
	all, hangUp, err := f.callers(t.Context(), to, s, 2*nodes)
	defer hangUp()
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(t.Context(), headers), startUp)
	defer cancel()
	for _, c := range all { // two calls each: a proxy that takes the nodes in turn cannot be right by chance
		err = errors.Join(err, c.call(ctx), c.call(ctx))
	}
	return err
}

func TestCallsAreCheckedByBodyAndOwner(t *testing.T) {
	f, proxy := stage(t)
	unary, stream := Scenario{Size: 100, Parts: 1}, Scenario{Stream: true, Size: 30_000, Parts: 4}
	rows := Scenario{Stream: true, Size: 12, Rows: 7, Parts: 3}
	secure := unary
	secure.TLS = both
	straight := &target{routes: true, endpoints: map[sides]*endpoint{nowhere: {addresses: f.nodes[false]}, both: {addresses: f.nodes[true]}}}
	mixed := &target{routes: true, endpoints: map[sides]*endpoint{nowhere: {addresses: []string{f.nodes[false][1], f.nodes[false][2], f.nodes[false][0]}}}}
	inTurn := &target{endpoints: map[sides]*endpoint{nowhere: {addresses: []string{proxy}}}}
	wrongly := &target{routes: true, endpoints: inTurn.endpoints}
	for _, tc := range []struct {
		name string
		to   *target
		s    Scenario
		want string
	}{
		{"straight to the owners", straight, unary, ""},
		{"streams straight to the owners", straight, stream, ""},
		{"with TLS straight to the owners", straight, secure, ""},
		{"many rows straight to the owners", straight, rows, ""},
		{"many rows straight to others", mixed, rows, "node 2 answered a call on a session of node 1"},
		{"through a proxy that need not know the owner", inTurn, unary, ""},
		{"streams through it", inTurn, stream, ""},
		{"through it, as if it did", wrongly, unary, "answered a call on a session of node"},
		{"streams straight to others", mixed, stream, "node 2 answered a call on a session of node 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := calls(t, f, tc.to, tc.s)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v; want %q", err, tc.want)
			}
		})
	}
	for want, spoil := range map[string]func(*caller){
		"goes on after its last part": func(c *caller) { c.want = c.want[:3] },
		"EOF":                         func(c *caller) { c.want = append(c.want, c.want[0]) },
		errBody.Error():               func(c *caller) { c.want[0], c.want[1] = c.want[1], c.want[0] },
		"must be at most":             func(c *caller) { c.request = must(request(Scenario{Stream: true, Size: maxSize + 1, Parts: 1}, "")) },
	} {
		all, hangUp, err := f.callers(t.Context(), straight, stream, 1)
		if err != nil {
			t.Fatal(err)
		}
		spoil(all[0])
		if err := all[0].call(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want %q", err, want)
		}
		hangUp()
	}
}

func must(_ string, message []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return message
}

// The sidecar opens a session to see whether a node works.
func TestBackendsHaveSessions(t *testing.T) {
	q := &queries{backend: &backend{node: 2}}
	one, err := q.CreateSession(t.Context(), nil)
	if err != nil || one.Status != Ydb.StatusIds_SUCCESS || one.NodeId != 2 || !strings.Contains(one.SessionId, "node_id=2&") {
		t.Errorf("got %v, %v; want a session of node 2", one, err)
	}
	if two, err := q.CreateSession(t.Context(), nil); err != nil || two.SessionId == one.SessionId {
		t.Errorf("got %v, %v; want another session", two, err)
	}
}

// A refusal says why: the sidecar makes it in place of a node.
func TestRefusalsTellTheirStatus(t *testing.T) {
	for _, stream := range []bool{false, true} {
		var message proto.Message = &Ydb_Table.ExecuteDataQueryResponse{Operation: &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_OVERLOADED}}
		if stream {
			message = &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_OVERLOADED}
		}
		data, err := proto.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		err = checking{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &answer{stream: stream})
		if !errors.Is(err, errBody) || !strings.Contains(err.Error(), "OVERLOADED") {
			t.Errorf("stream %v: got %v; want the status", stream, err)
		}
	}
}

// A call that was due while the run was measuring counts, however late it is; one
// that fails counts as that alone.
func TestWorkCountsWhatWasDue(t *testing.T) {
	f, _ := stage(t)
	all, hangUp, err := f.callers(t.Context(), &target{routes: true, endpoints: map[sides]*endpoint{nowhere: {addresses: f.nodes[false]}}}, Scenario{Size: 1, Parts: 1, Rate: 1}, 1)
	defer hangUp()
	if err != nil {
		t.Fatal(err)
	}
	var phase atomic.Int32
	phase.Store(over)
	schedule := make(chan due, 3)
	schedule <- due{time.Now(), false}
	schedule <- due{time.Now().Add(-time.Minute), true}
	close(schedule)
	var got tally
	all[0].work(t.Context(), &phase, schedule, &got)
	if len(got.latencies) != 1 || got.latencies[0] < time.Minute || got.done != 0 || got.failed != 0 {
		t.Errorf("got %+v; want one latency of more than a minute, none done in time", got)
	}
	all[0].owner = 2
	phase.Store(measuring)
	schedule = make(chan due, 2*tooMany)
	for range cap(schedule) {
		schedule <- due{time.Now(), true}
	}
	close(schedule)
	got = tally{}
	all[0].work(t.Context(), &phase, schedule, &got)
	if len(got.latencies) != 0 || got.done != 0 || got.failed != tooMany || !strings.Contains(got.first, "node 1 answered") {
		t.Errorf("got %+v; want %d failures and no more", got, tooMany)
	}
}

func TestPaceEndsWithTheRun(t *testing.T) {
	var phase atomic.Int32
	phase.Store(measuring)
	schedule := make(chan due)
	go pace(&phase, 1000, schedule)
	one, two := <-schedule, <-schedule
	if gap := two.at.Sub(one.at); gap != time.Millisecond || !one.counts {
		t.Errorf("got %+v, then %v; want calls that count, a millisecond apart", one, gap)
	}
	phase.Store(over)
	for range schedule {
	}
}

func TestCostIsThatOfTheCallsBetween(t *testing.T) {
	begun := time.Now()
	before := snapshot{at: begun, used: stand.Usage{CPU: 2 * time.Second, User: time.Second}, ours: stand.Usage{CPU: 10 * time.Second}, machine: 100 * time.Second}
	after := snapshot{at: begun.Add(2 * time.Second), used: stand.Usage{CPU: 2500 * time.Millisecond, User: 1200 * time.Millisecond}, load: stand.Usage{CPU: time.Second},
		nodes: stand.Usage{CPU: 2 * time.Second}, ours: stand.Usage{CPU: 13 * time.Second}, machine: 104 * time.Second}
	m := Measured{Calls: 1000}
	m.cost(before, after, 1000)
	if m.PerSecond != 500 || m.CPU != 500*time.Microsecond || m.User != 200*time.Microsecond || m.LoadCPU != time.Millisecond || m.NodeCPU != 2*time.Millisecond || m.Others != 0.5 {
		t.Errorf("got %+v", m)
	}
}

func TestQuantile(t *testing.T) {
	all := make([]time.Duration, 100)
	for i := range all {
		all[i] = time.Duration(i + 1)
	}
	for _, tc := range []struct {
		q    float64
		want time.Duration
	}{{0.5, 51}, {0.99, 100}, {1, 100}, {0, 1}} {
		if got := quantile(all, tc.q); got != tc.want {
			t.Errorf("%v: got %d; want %d", tc.q, got, tc.want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("of nothing: got %d", got)
	}
}

func TestOwnIsACommandLine(t *testing.T) {
	lines := []string{"bin/sidecar", "GOMAXPROCS=1 old/h2forward -x a=b", "h2forward"}
	if got := []string{ownName(lines, 0), ownName(lines, 1), ownName(lines, 2)}; !slices.Equal(got, []string{"sidecar", "h2forward-1", "h2forward-2"}) {
		t.Errorf("got the names %v", got)
	}
	f := &field{dir: "/d", nodes: map[bool][]string{false: {"h:1", "h:2", "h:3"}}}
	got, err := own("x", lines[1], true)[0].command(f, "/p", "l:1", nowhere)
	if want := (stand.Spec{Path: "/p", Args: strings.Fields("-listen l:1 -nodes h:1,h:2,h:3 -x a=b"), Env: []string{"GOMAXPROCS=1"}}); err != nil || !slices.Equal(got.Args, want.Args) || !slices.Equal(got.Env, want.Env) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	got, err = own("x", lines[0], true)[0].command(f, "/p", "l:1", nowhere)
	if err != nil || !slices.Contains(got.Args, "discovery.nodes=1=h:1,2=h:2,3=h:3") {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := own("x", "A=B", false)[0].find(f); err == nil {
		t.Error("no program: got no error")
	}
}

// figures makes a report in which each target has the given CPU time in unary100-c16,
// and half of it in stream500-c16.
func figures(cpu map[string]time.Duration) *Report {
	r := &Report{Goals: map[string][]Judged{}}
	for _, s := range Scenarios() {
		if s.Name == "unary100-c16" || s.Name == "stream500-c16" {
			r.Scenarios = append(r.Scenarios, s)
		}
	}
	for i, s := range r.Scenarios {
		for name, d := range cpu {
			d >>= i
			r.add(s, &target{Name: name}, Measured{Calls: 10, CPU: d, P50: d, P99: d, PerSecond: float64(d)})
		}
	}
	for name := range cpu {
		r.Targets = append(r.Targets, &target{Name: name, Own: name == "own"})
	}
	r.summarize()
	return r
}

func TestGoals(t *testing.T) {
	for _, tc := range []struct {
		name    string
		cpu     map[string]time.Duration
		measure string
		want    string
		worst   float64
	}{
		{"met", map[string]time.Duration{"own": 50, haproxy: 100}, "CPU per call, 16 in flight, of haproxy-1", met, 0.5},
		{"at the goal", map[string]time.Duration{"own": 55, haproxy: 100}, "CPU per call, 16 in flight, of haproxy-1", met, 0.55},
		{"missed", map[string]time.Duration{"own": 56, haproxy: 100}, "CPU per call, 16 in flight, of haproxy-1", missed, 0.56},
		{"stretch", map[string]time.Duration{"own": 45, haproxy: 100}, "CPU per call, 16 in flight, of haproxy-1", beyond, 0.45},
		{"no peer", map[string]time.Duration{"own": 60}, "CPU per call, 16 in flight, of haproxy-1", unknown, 0},
		{"no scenario", map[string]time.Duration{"own": 60, haproxy: 100}, "CPU per call, 64 in flight, of haproxy-1", unknown, 0},
		{"added", map[string]time.Duration{"own": 240, haproxyTCP: 200, direct: 100}, "added p50 over direct, of what haproxy-tcp adds", missed, 1.4},
		{"added where copying adds nothing", map[string]time.Duration{"own": 240, haproxyTCP: 104, direct: 100}, "added p50 over direct, of what haproxy-tcp adds", unknown, 0},
	} {
		r := figures(tc.cpu)
		i := slices.IndexFunc(r.Goals["own"], func(j Judged) bool { return j.Measure == tc.measure })
		if i < 0 {
			t.Fatalf("there is no goal %q", tc.measure)
		}
		if j := r.Goals["own"][i]; j.Verdict != tc.want || j.Values[j.Worst] != tc.worst {
			t.Errorf("%s: got %+v; want %q, worst %v", tc.name, j, tc.want, tc.worst)
		}
	}
	more := goal{goal: 0.75, stretch: 0.82, atLeast: true, applies: func(Scenario) bool { return true },
		value: func(_ *Report, s Scenario, _ string) (float64, bool) {
			return map[bool]float64{true: 0.7, false: 0.9}[s.Stream], true
		}}
	if j := more.judge(figures(nil), "own"); j.Verdict != missed || j.Worst != "stream500-c16" {
		t.Errorf("got %+v; want a miss by the stream", j)
	}
}

func TestReportCountsFailuresAndShowsRanges(t *testing.T) {
	r := figures(map[string]time.Duration{"own": 2000, haproxy: 1000})
	own := &target{Name: "own", Own: true}
	r.add(r.Scenarios[0], &target{Name: haproxy}, Measured{Calls: 5, CPU: 1000, Failed: 1, FirstFail: "a peer's"})
	r.add(r.Scenarios[0], own, Measured{Calls: 5, CPU: 1000, Others: 0.5})
	r.add(r.Scenarios[0], own, Measured{Calls: 5, CPU: 4000, Others: 0.5, Failed: 3, FirstFail: "no"})
	for _, one := range r.Series {
		one.summarize()
	}
	text := r.Markdown()
	for _, want := range []string{"2.0* (1.0-4.0)", "2.00", "- own, unary100-c16: 3 of 23, first: no", "first: a peer's"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if r.Failures() != 3 {
		t.Errorf("got %d failures; want 3", r.Failures())
	}
	if data, err := r.json(); err != nil || !bytes.Contains(data, []byte(`"failed": 3`)) {
		t.Errorf("got %v and %s", err, data)
	}
}

func TestNoScenarioHasARequestThatABackendRefuses(t *testing.T) {
	for _, s := range Scenarios() {
		if _, _, _, err := wanted(parameters(s)); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if s.Rate == 0 && s.InFlight < 1 {
			t.Errorf("%s: %d in flight", s.Name, s.InFlight)
		}
	}
	if id := sessionID(2, rand.N(100)); !strings.HasPrefix(id, "ydb://session/3?node_id=2&id=") {
		t.Errorf("got the session id %q", id)
	}
}
