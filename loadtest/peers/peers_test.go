package peers

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"go.uber.org/goleak"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	f = &field{options: Options{Conns: 1}, dir: t.TempDir(), nodes: map[bool][]string{}}
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
	straight := &target{routes: true,
		endpoints: map[sides]*endpoint{nowhere: {addresses: f.nodes[false]}, both: {addresses: f.nodes[true]}}}
	mixed := &target{routes: true,
		endpoints: map[sides]*endpoint{nowhere: {addresses: []string{f.nodes[false][1], f.nodes[false][2], f.nodes[false][0]}}}}
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
		"must be at most": func(c *caller) {
			c.request = must(request(Scenario{Stream: true, Size: maxSize + 1, Parts: 1}, ""))
		},
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
		var message proto.Message = &Ydb_Table.ExecuteDataQueryResponse{
			Operation: &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_OVERLOADED},
		}
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

func TestOwnIsACommandLine(t *testing.T) {
	lines := []string{"bin/sidecar", "GOMAXPROCS=1 old/h2forward -x a=b", "h2forward"}
	if got := []string{
		ownName(lines, 0), ownName(lines, 1), ownName(lines, 2),
	}; !slices.Equal(got, []string{"sidecar", "h2forward-1", "h2forward-2"}) {
		t.Errorf("got the names %v", got)
	}
	f := &field{dir: "/d", nodes: map[bool][]string{false: {"h:1", "h:2", "h:3"}}}
	got, err := own("x", lines[1], true)[0].command(f, "/p", "l:1", nowhere)
	if want := (stand.Spec{Path: "/p", Args: strings.Fields("-listen l:1 -nodes h:1,h:2,h:3 -x a=b"),
		Env: []string{"GOMAXPROCS=1"}}); err != nil || !slices.Equal(got.Args, want.Args) || !slices.Equal(got.Env, want.Env) {
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

// measured makes results in which each target has the given CPU time in unary100-c16,
// and half of it in stream500-c16.
func measured(cpu map[string]float64) results {
	r := results{tables: map[string]*lab.Table{}}
	for _, s := range Scenarios() {
		if s.Name == "unary100-c16" || s.Name == "stream500-c16" {
			r.scenarios = append(r.scenarios, s)
		}
	}
	for i, s := range r.scenarios {
		var c lab.Case
		var runs [][]lab.Run
		for name, x := range cpu {
			x /= float64(1 + i)
			c.Variants = append(c.Variants, lab.Variant{Name: name})
			runs = append(runs, []lab.Run{{Calls: 10, Figures: lab.Figures{lab.CPU: x, lab.P50: x, lab.P99: x, lab.PerSecond: x}}})
		}
		r.tables[s.Name] = lab.NewTable(c, runs)
	}
	return r
}

// verdicts judges the goals of the target own and returns those whose text begins so: of the goal, and of the stretch.
func verdicts(r results, of api, measure string) (all []*lab.Verdict) {
	t := lab.NewTable(lab.Case{}, nil)
	for _, g := range goals(of) {
		g.judge(r, "own", t)
	}
	for _, v := range t.Claims {
		if strings.HasPrefix(v.Text, measure) {
			all = append(all, v)
		}
	}
	return all
}

func TestGoals(t *testing.T) {
	const met, missed, unknown = "met", "missed", "not measured"
	for _, tc := range []struct {
		name          string
		cpu           map[string]float64
		measure       string
		want, stretch string
		worst         float64
	}{
		{"met", map[string]float64{"own": 50, haproxy: 100}, "CPU per call, 16 in flight, of haproxy-1", met, missed, 0.5},
		{"at the goal", map[string]float64{"own": 55, haproxy: 100}, "CPU per call, 16 in flight, of haproxy-1", met, missed, 0.55},
		{"missed", map[string]float64{"own": 56, haproxy: 100}, "CPU per call, 16 in flight, of haproxy-1", missed, missed, 0.56},
		{"stretch", map[string]float64{"own": 45, haproxy: 100}, "CPU per call, 16 in flight, of haproxy-1", met, met, 0.45},
		{"no peer", map[string]float64{"own": 60}, "CPU per call, 16 in flight, of haproxy-1", unknown, unknown, 0},
		{"no scenario", map[string]float64{"own": 60, haproxy: 100}, "CPU per call, 64 in flight, of haproxy-1", unknown, unknown, 0},
		{"added", map[string]float64{"own": 240, haproxyTCP: 200, direct: 100},
			"added p50 over direct, of what haproxy-tcp adds", missed, missed, 1.4},
		{"added where copying adds nothing", map[string]float64{"own": 240, haproxyTCP: 104, direct: 100},
			"added p50 over direct, of what haproxy-tcp adds", unknown, unknown, 0},
	} {
		all := verdicts(measured(tc.cpu), ydbAPI, tc.measure)
		if len(all) != 2 {
			t.Fatalf("%d goals are %q; want it and its stretch", len(all), tc.measure)
		}
		if all[0].Verdict != tc.want || all[1].Verdict != tc.stretch || all[0].Value.Median != tc.worst {
			t.Errorf("%s: got %+v, %+v; want %q, %q, worst %v", tc.name, all[0], all[1], tc.want, tc.stretch, tc.worst)
		}
	}
	more := goal{measure: "more", goal: 0.75, stretch: 0.82, atLeast: true, applies: func(Scenario) bool { return true },
		value: func(_ results, s Scenario, _ string) (float64, bool) {
			return map[bool]float64{true: 0.7, false: 0.9}[s.Stream], true
		}}
	table := lab.NewTable(lab.Case{}, nil)
	more.judge(measured(nil), "own", table)
	if v := table.Claims[0]; v.Verdict != missed || v.Value.Median != 0.7 || !strings.Contains(v.Text, "stream500-c16 0.70") {
		t.Errorf("got %+v; want a miss by the stream", v)
	}
}

// Failures of other projects' proxies are shown, and are theirs.
func TestFailuresOfOthersDoNotCount(t *testing.T) {
	f := &field{lab: &lab.Lab{}}
	for _, tc := range []struct {
		target target
		want   bool
	}{{target{Name: haproxy}, true}, {target{Name: direct}, false}, {target{Name: "own", Own: true}, false}} {
		tc.target.endpoints = map[sides]*endpoint{nowhere: {}}
		if got := (&load{field: f, target: &tc.target}).variant().Foreign; got != tc.want {
			t.Errorf("%s: foreign %t; want %t", tc.target.Name, got, tc.want)
		}
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
