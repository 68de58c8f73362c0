package wire

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

type nobody struct{}

func (nobody) Report(cluster.Outcome) {}

// What it costs to place a call and to tell everybody what came of it, beside the
// engine's own work, and what tracing adds to that, in turns. Health is not in it: see
// BenchmarkReport of internal/pessimize.
func BenchmarkPlaceAndTell(b *testing.B) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(tracing.Generator{}),
		sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(dropped{}))
	with := func(share float64) *tracing.Tracer {
		return tracing.New(provider, func() bool { return true }, tracing.Default(), tracing.Ratio(share))
	}
	names := []string{"off", "0%", "1%", "100%"}
	var calls []func()
	for _, tracer := range []*tracing.Tracer{nil, with(0), with(0.01), with(1)} {
		calls = append(calls, placeAndTell(b, tracer))
	}
	const turn = 500 // calls
	times := make([][]float64, len(calls))
	for b.Loop() {
		for i, once := range calls {
			start := time.Now()
			for range turn {
				once()
			}
			times[i] = append(times[i], float64(time.Since(start))/turn)
		}
	}
	for i, list := range times {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], "ns/call:"+names[i])
	}
}

// dropped is where spans go.
type dropped struct{}

func (dropped) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (dropped) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (dropped) Shutdown(context.Context) error                  { return nil }
func (dropped) ForceFlush(context.Context) error                { return nil }

func placeAndTell(t testing.TB, tracer *tracing.Tracer) (once func()) {
	router := routing.New(routing.Default())
	router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: "a:1"}, {ID: 2, Address: "b:2"}, {ID: 3, Address: "c:3"}}, ""))
	bounds := []time.Duration{10e3, 25e3, 50e3, 100e3, 250e3, 500e3, 1e6, 25e5, 5e6, 1e7, 25e6, 5e7, 1e8, 25e7, 5e8, 1e9,
		25e8, 5e9, 1e10, 3e10}
	deps := Deps{Ways: hop.Ways{Router: router, Health: nobody{}}, Tracer: tracer,
		Histogram: func(string, string, string, ...float64) *latency.Durations { return latency.NewDurations(bounds) }}
	f := &frames{server: &Server{deps: deps}, series: newInstruments(deps.Histogram, statements.New(statements.Config{})).series()}
	k := &call{traced: new(traced)}
	k.method = protocol.Named("/Ydb.Query.V1.QueryService/ExecuteQuery")
	o := &h2.Outcome{Began: time.Second, Forwarded: time.Second, FirstByte: time.Second + time.Millisecond,
		Ended: time.Second + time.Millisecond, Node: new(h2.Conn)}
	o.End = h2.Answered
	message, err := proto.Marshal(&Ydb_Query.ExecuteQueryRequest{SessionId: "ydb://session/3?node_id=2&id=AAAA",
		TxControl: &Ydb_Query.TransactionControl{CommitTx: true}, Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Text: "SELECT id, name FROM users WHERE id = $id AND kind = 1"}}})
	if err != nil {
		t.Fatal(err)
	}
	connected := func() (struct{}, error) { return struct{}{}, nil }
	return func() {
		if tracer != nil {
			k.traced.begin(tracer, nil)
		}
		f.series.look(k, message)
		var err error
		if _, _, err = hop.Reach(&deps.Ways, hop.To{HomeNode: 2}, &k.at, connected); err != nil {
			t.Fatal(err)
		}
		f.tell(k, o, ydbstatus.Signs{Status: success})
		*k.traced = traced{}
	}
}

// TestTracingAllocatesNothingForCallsThatAreNotRecorded is the steady path.
func TestTracingAllocatesNothingForCallsThatAreNotRecorded(t *testing.T) {
	tracer := tracing.New(sdktrace.NewTracerProvider(), func() bool { return true }, tracing.Default(), tracing.Ratio(0))
	once := placeAndTell(t, tracer)
	once()
	if n := testing.AllocsPerRun(1000, once); n != 0 {
		t.Errorf("%v allocations; want none", n)
	}
}

// TestCheckOutAllocatesNothing is the steady path of virtual sessions.
func TestCheckOutAllocatesNothing(t *testing.T) {
	once := checkingOut(t)(0)
	once()
	if n := testing.AllocsPerRun(1000, once); n != 0 {
		t.Errorf("%v allocations; want none", n)
	}
}

// What a virtual session adds to a statement, beside the scans of what passes: see BenchmarkScan.
func BenchmarkLend(b *testing.B) {
	once := checkingOut(b)(0)
	b.ReportAllocs()
	for b.Loop() {
		once()
	}
}

// The same in as many shards as there are processors.
func BenchmarkLendInShards(b *testing.B) {
	shard, next := checkingOut(b), atomic.Uint32{}
	b.RunParallel(func(pb *testing.PB) {
		for once := shard(int(next.Add(1)) % 16); pb.Next(); {
			once()
		}
	})
}

// openSessions has a pool open sessions for all processors.
func openSessions(b testing.TB, p *pool.Pool) {
	var grants []pool.Grant
	for range 2 * runtime.GOMAXPROCS(0) {
		g, err := p.Acquire(b.Context(), pool.Ask{Class: pool.Normal})
		if err != nil {
			b.Fatal(err)
		}
		grants = append(grants, g)
	}
	for _, g := range grants {
		p.Release(g.Session)
	}
}

// checkingOut returns what makes shards, each of which runs statements of one client on one session.
//
// Long: all that it sets up is used by the step that is measured.
func checkingOut(b testing.TB) (shard func(int) (once func())) {
	back := &backend{sessions: map[string]*server{}}
	p := pool.New(pool.Default(), back, nil)
	router := routing.New(routing.Default())
	router.Subscribe(p.SetView)
	router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: "a:1"}}, ""))
	config := Default()
	config.Mode, config.Auth = ModeTransaction, AuthOwn
	vs := virtual.New(virtual.Config{Sessions: config.Sessions, ServerSessions: config.ServerSessions})
	ts := virtual.NewIdentityPools(b.Context(), virtual.PoolsConfig{Own: p, Database: "/local"})
	s := &Server{sessions: vs, identities: ts, deps: Deps{Pool: p}}
	who := &caller{Credentials: virtual.NewCredentials("/local", "")}
	own, err := ts.Of(&who.Credentials, false, nil, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	openSessions(b, p)
	b.Cleanup(func() {
		if st := vs.State(ts); st.InDoubt > 0 || st.Bound > 0 || st.CheckedOut == 0 {
			b.Errorf("%+v", st)
		}
		vs.Close()
		if err := p.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	method := protocol.Named(protocol.QueryService + "ExecuteQuery")
	return func(number int) func() {
		f := &frames{stripe: vs.Stripe(number), server: s}
		f.uses.init()
		v := vs.Create(f.stripe, &who.Credentials, nil, false)
		client := new(h2.Conn)
		if _, err := vs.Attach(v, mailbox{frames: f}, client); err != nil {
			b.Fatal("not attached")
		}
		message := bytesOf(b,
			&Ydb_Query.ExecuteQueryRequest{SessionId: string(v.ID().Append(nil)), ExecMode: 50,
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}})
		request, answer := framedMessage(message), framedMessage(bytesOf(b, &Ydb_Query.ExecuteQueryResponsePart{Status: success}))
		o := &h2.Outcome{Began: time.Second, Forwarded: time.Second, Node: new(h2.Conn)}
		k := &call{use: use{method: method}}
		return func() {
			at, _, _ := f.findSession(method, message, true)
			id, ok := virtual.Parse(at.id)
			if !ok {
				b.Error("not a virtual session")
			}
			l := k.startUse()
			e, refused := vs.Enter(id, &who.Credentials, own, nil, f.seen.HasTx, client)
			if refused != nil {
				b.Error(refused)
			}
			l.Identity, l.Session = own, e.Session
			if l.Server, ok = p.Try(pool.Ask{Class: pool.Normal}); !ok {
				b.Error("no session")
			}
			l.named = true
			l.Request, l.skip = requestOf(&f.seen.Found), uint32(len(request))
			l.answer.Start(method.Answer)
			if k.Observe(true, request) != nil || k.Observe(false, answer) != nil {
				b.Error("refused")
			}
			s := signsOf(method, o)
			k.correct(&s)
			about(&s, method)
			f.checkIn(k, o, ydbstatus.Judge(s))
		}
	}
}

// What the digest of a statement adds to a call: at most 0.3 us when the text was seen.
func BenchmarkCountStatement(b *testing.B) {
	f := &frames{series: newInstruments(nil, statements.New(statements.Config{})).series()}
	k := &call{}
	k.method = methodExecuteQuery
	message, err := proto.Marshal(&Ydb_Query.ExecuteQueryRequest{SessionId: "ydb://session/3?node_id=2&id=AAAA",
		TxControl: &Ydb_Query.TransactionControl{CommitTx: true}, Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Text: "SELECT id, name FROM users WHERE id = $id AND kind = 1"}}})
	if err != nil {
		b.Fatal(err)
	}
	o, d := &h2.Outcome{Answer: 100}, &hop.Done{Took: time.Millisecond, Key: hop.Key{Method: k.method, Status: success}}
	b.ReportAllocs()
	for b.Loop() {
		f.series.look(k, message)
		f.series.count(k, o, d)
	}
}
