package acquire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func made(t *testing.T, name string, n int) line {
	t.Helper()
	var all []*session
	for i := range n {
		all = append(all, &session{id: fmt.Sprint(i)})
	}
	p, err := makePool(name, all)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

// What is compared must be pools: none lends a session twice or loses one, also when tasks give up.
func TestPoolsLendEachSessionOnce(t *testing.T) {
	for _, shape := range shapes {
		if shape.name == stub {
			continue
		}
		t.Run(shape.name, func(t *testing.T) {
			const sessions, tasks, turns = 3, 20, 200
			p := made(t, shape.name, sessions)
			var held sync.Map // *session -> *atomic.Int32
			var tasksDone sync.WaitGroup
			var got atomic.Int64
			for i := range tasks {
				tasksDone.Go(func() {
					for n := range turns {
						ctx, cancel := context.WithCancel(t.Context())
						if (i+n)%5 == 0 {
							cancel() // it gives up at once if it has to wait
						}
						s, err := p.get(ctx, i)
						cancel()
						if err != nil {
							if !errors.Is(err, context.Canceled) {
								t.Error(err)
							}
							continue
						}
						busy, _ := held.LoadOrStore(s, new(atomic.Int32))
						if now := busy.(*atomic.Int32).Add(1); now != 1 {
							t.Errorf("session %s has %d holders", s.id, now)
						}
						got.Add(1)
						busy.(*atomic.Int32).Add(-1)
						p.put(s)
					}
				})
			}
			tasksDone.Wait()
			seen := map[*session]bool{}
			for range sessions { // all are there still
				s, err := p.get(t.Context(), 0)
				if err != nil {
					t.Fatal(err)
				}
				seen[s] = true
			}
			if len(seen) != sessions || got.Load() < tasks*turns/2 {
				t.Errorf("%d sessions are left, %d were lent; want %d and at least %d", len(seen), got.Load(), sessions, tasks*turns/2)
			}
			for s := range seen {
				p.put(s)
			}
		})
	}
}

func TestWhoIsWithoutAPoolHasASessionForGood(t *testing.T) {
	p := made(t, stub, 2)
	a, _ := p.get(t.Context(), 0)
	b, _ := p.get(t.Context(), 1)
	again, _ := p.get(t.Context(), 0)
	if a == b || a != again {
		t.Errorf("got %v, %v, %v; want two sessions, the first again", a, b, again)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := p.get(ctx, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v; want the third task to wait for the end", s, err)
	}
}

// tables is a server with sessions on which one read at a time is allowed.
type tables struct {
	Ydb_Table_V1.UnimplementedTableServiceServer
	made, reads atomic.Int64
	busy        sync.Map
	broken      atomic.Bool
}

func operation(message *Ydb_Table.CreateSessionResult, status Ydb.StatusIds_StatusCode) *Ydb_Operations.Operation {
	result, _ := anypb.New(message)
	return &Ydb_Operations.Operation{Ready: true, Status: status, Result: result}
}

func (s *tables) CreateSession(context.Context, *Ydb_Table.CreateSessionRequest) (*Ydb_Table.CreateSessionResponse, error) {
	return &Ydb_Table.CreateSessionResponse{
		Operation: operation(&Ydb_Table.CreateSessionResult{SessionId: fmt.Sprint("s", s.made.Add(1))}, Ydb.StatusIds_SUCCESS),
	}, nil
}

func (s *tables) ExecuteDataQuery(_ context.Context, r *Ydb_Table.ExecuteDataQueryRequest) (*Ydb_Table.ExecuteDataQueryResponse, error) {
	status := Ydb.StatusIds_SUCCESS
	if _, twice := s.busy.LoadOrStore(r.SessionId, true); twice {
		status = Ydb.StatusIds_SESSION_BUSY
	}
	defer s.busy.Delete(r.SessionId)
	if s.broken.Load() {
		status = Ydb.StatusIds_BAD_SESSION
	}
	s.reads.Add(1)
	return &Ydb_Table.ExecuteDataQueryResponse{Operation: operation(&Ydb_Table.CreateSessionResult{}, status)}, nil
}

func startChild(t *testing.T) (*tables, *httptest.Server) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, service := grpc.NewServer(), &tables{}
	Ydb_Table_V1.RegisterTableServiceServer(server, service)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	child := httptest.NewServer(&child{table: Ydb_Table_V1.NewTableServiceClient(conn)})
	t.Cleanup(child.Close)
	return service, child
}

func TestEachPoolIsMeasuredNextToNone(t *testing.T) {
	service, server := startChild(t)
	address := strings.TrimPrefix(server.URL, "http://")
	m := &measurement{lab: &lab.Lab{}, client: *server.Client(), address: address}
	m.lab.Size = lab.Full // all shapes
	for _, k := range []kind{reads, loop, yielded, threads} {
		figures := map[kind]func(answer) lab.Figures{reads: readFigures, loop: loopFigures, yielded: loopFigures, threads: threadFigures}[k]
		var names []string // all pools
		if k == loop || k == threads || k == reads && testing.Short() {
			names = []string{ours}
		}
		variants := m.variants(order{Kind: k, Tasks: 8, Sessions: 4}, 5, figures, names...)
		if names == nil && len(variants) != len(shapes)-1 {
			t.Fatalf("got %d variants; want one for each pool", len(variants))
		}
		for _, v := range variants {
			var result lab.Result
			// on a busy machine little is done in a short one
			for window := 50 * time.Millisecond; result.Calls < 100 && window < 10*time.Second; window *= 2 {
				var err error
				if result, err = v.Run(t.Context(), window); err != nil || result.Failed > 0 {
					t.Fatalf("%s, %s: %v, %+v", k, v.Name, err, result)
				}
			}
			if result.Calls == 0 {
				t.Fatalf("%s, %s: nothing was done", k, v.Name)
			}
			// The lists allocate at each turn, and only they: it tells that each variant is what it is called.
			if k == yielded && (v.Name == lists) != (result.Figures[allocated] > 1.5) && v.Name != classic &&
				v.Name != puddled && v.Name != "semaphore and stack" {
				t.Errorf("%s allocates %.2f objects an operation", v.Name, result.Figures[allocated])
			}
		}
	}
	if service.made.Load() != 4 || service.reads.Load() == 0 {
		t.Errorf("%d sessions were made for %d reads; want 4", service.made.Load(), service.reads.Load())
	}
	service.broken.Store(true)
	var a answer
	var err error
	for window := 20 * time.Millisecond; err == nil && a.Pool.Failed == 0 && window < 10*time.Second; window *= 2 {
		a, err = ask(t.Context(), server.Client(), address, order{Pool: ours, Kind: reads, Tasks: 4, Sessions: 2, Window: window})
	}
	if err != nil || a.Pool.Failed == 0 || !strings.Contains(a.Pool.First, "BAD_SESSION") {
		t.Errorf("got %v, %+v; want what failed", err, a.Pool)
	}
}

func TestOrdersAreBounded(t *testing.T) {
	_, server := startChild(t)
	for name, o := range map[string]order{
		"no such pool":      {Pool: "none of them", Kind: loop, Tasks: 1, Sessions: 1, Window: time.Millisecond},
		"too many tasks":    {Pool: ours, Kind: loop, Tasks: 1e6, Sessions: 1, Window: time.Millisecond},
		"too many sessions": {Pool: ours, Kind: loop, Tasks: 1, Sessions: 1e6, Window: time.Millisecond},
		"too long":          {Pool: ours, Kind: loop, Tasks: 1, Sessions: 1, Window: time.Hour},
	} {
		if a, err := ask(t.Context(), server.Client(), strings.TrimPrefix(server.URL, "http://"), o); err == nil {
			t.Errorf("%s: got %+v; want an error", name, a)
		}
	}
}

func TestChildEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- serve(ctx, nil) }()
	cancel()
	if err := <-over; err != nil && !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

func TestResultIsWhatHappenedBetween(t *testing.T) {
	w := &window{order: order{Kind: yielded}, tasks: make([]task, 2)}
	w.tasks[0].waits = []time.Duration{3, 1, 2}
	from := time.Now()
	got := w.result(
		state{at: from, cpu: time.Second, objects: 100, operations: []int64{10, 20}},
		state{at: from.Add(time.Second), cpu: 2 * time.Second, objects: 700, operations: []int64{110, 220}})
	if got.Operations != 300 || got.Took != time.Second || got.CPU != 1e9/300.0 || got.Allocated != 2 ||
		got.Evenness != 0.5 || got.P50 != 2 || got.P99 != 3 {
		t.Errorf("got %+v", got)
	}
	w.order.Kind = threads
	if got := w.result(state{operations: []int64{0, 0}}, state{operations: []int64{2, 2}, inThreads: 40}); got.CPU != 10 {
		t.Errorf("got %v ns in threads; want 10", got.CPU)
	}
}

func TestBesideShowsWhatWasNotMeasured(t *testing.T) {
	got := beside([]cost{
		{cores: 2, tasks: 500, old: lab.Estimate{Median: 3000, Low: 2000, High: 4000},
			new: lab.Estimate{Median: 1500, Low: 1000, High: 2000}},
		{cores: 2, tasks: 1000, old: lab.Estimate{Median: 3000, Low: -10, High: 4000},
			new: lab.Estimate{Median: 1500, Low: 1000, High: 2000}},
	})
	for _, want := range []string{
		"| 2 | 500 | 0.31 → 0.236 | 1.3 | 3.0 (2.0–4.0) → 1.5 (1.0–2.0) | 2.0 |",
		"| 2 | 1000 | 2.21 → 0.5 | 4.4 | 3.0 (-0.0–4.0) → 1.5 (1.0–2.0) | - |",
		"| 32 | 5000 | 0.2 → 0.027 | 7.4 | ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s\nwithout %s", got, want)
		}
	}
	if n := strings.Count(got, "\n| ") - 1; n != len(talk) { // the head is one
		t.Errorf("got %d rows; want %d", n, len(talk))
	}
	if all := tasksFor(32); all[2] != 5000 || len(tasksFor(4)) != 3 {
		t.Errorf("got %v, %v", all, tasksFor(4))
	}
}
