package wire

import (
	"context"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/unary"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

const (
	checkPath = "/grpc.health.v1.Health/Check"
	watchPath = "/grpc.health.v1.Health/Watch"
)

// servedHere is a server whose health is told by check, and by the server in this process
// when calls go there.
type servedHere struct {
	server *Server
	addr   string
	conn   *grpc.ClientConn
	client healthv1.HealthClient
	check  atomic.Pointer[check]
	seen   chan metadata.MD // of streams, by the server in this process
	stop   func()           // the server; once
}

type check func(ctx context.Context, r *healthv1.HealthCheckRequest) (any, error)

// on says what check does.
func (s *servedHere) on(c check) { s.check.Store(&c) }

func newServedHere(t *testing.T) *servedHere { return newServedHereWith(t, h2.Default(), Inside{}) }

// newServedHereWith serves the paths of streams where they arrive.
func newServedHereWith(t *testing.T, engine h2.Config, bounds Inside, streams ...string) *servedHere {
	s := &servedHere{seen: make(chan metadata.MD, 1)}
	seen := func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		select {
		case s.seen <- md:
		default:
		}
		return next(srv, stream)
	}
	inside := grpc.NewServer(grpc.StreamInterceptor(seen))
	state := health.NewServer()
	state.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING) // tells the ways apart
	healthv1.RegisterHealthServer(inside, state)
	inside.RegisterService(&echoStreams, nil)
	methods := map[string]unary.Method{checkPath: func(ctx context.Context, decode func(any) error) (any, error) {
		var r healthv1.HealthCheckRequest
		if err := decode(&r); err != nil {
			return nil, err
		}
		return (*s.check.Load())(ctx, &r)
	}}
	for _, path := range streams {
		methods[path] = unary.Streaming(func(stream grpc.ServerStream) error {
			return seen(state, stream, nil, healthv1.Health_ServiceDesc.Streams[0].Handler)
		})
	}
	path := DefaultDataPath()
	var err error
	if s.server, err = New(
		Config{Mode: ModePassthrough}, path, engine,
		Deps{Ways: hop.Ways{Router: routing.New(routing.Default()), Health: &outcomes{}}, Nodes: network{}, Unary: methods, Inside: bounds},
		inside,
	); err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.server.Run(ctx) })
	wg.Go(func() { _ = s.server.Serve(l) })
	wg.Go(func() { _ = inside.Serve(s.server.Local()) })
	s.stop = sync.OnceFunc(func() { l.Close(); cancel(); inside.Stop(); wg.Wait() })
	t.Cleanup(s.stop)
	s.addr = l.Addr().String()
	s.conn = dial(t, s.addr)
	s.client = healthv1.NewHealthClient(s.conn)
	return s
}

// here and there are the answers of check and of the server in this process.
const (
	here  = healthv1.HealthCheckResponse_UNKNOWN
	there = healthv1.HealthCheckResponse_NOT_SERVING
)

func TestUnaryCallsAreServedHere(t *testing.T) {
	s := newServedHere(t)
	long := strings.Repeat("x", unary.MaxRequest)
	for _, tc := range []struct {
		name    string
		service string
		header  string
		options []grpc.CallOption
		want    healthv1.HealthCheckResponse_ServingStatus
		code    codes.Code
	}{
		{name: "small"},
		{name: "almost too large", service: long[:unary.MaxRequest-8]},
		{name: "not copied", service: long},
		{name: "large", service: strings.Repeat(long, 40)},
		{name: "compressed", service: "x", options: []grpc.CallOption{grpc.UseCompressor(gzip.Name)}},
		{name: "compressed, and then not copied", service: long, options: []grpc.CallOption{grpc.UseCompressor(gzip.Name)}},
		{name: "compressed, and then large", service: strings.Repeat(long, 40), options: []grpc.CallOption{grpc.UseCompressor(gzip.Name)}},
		{name: "with a binary header", header: "x-bin", want: there},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.on(func(_ context.Context, r *healthv1.HealthCheckRequest) (any, error) {
				if r.Service != tc.service {
					t.Errorf("got a service of %d bytes; want %d", len(r.Service), len(tc.service))
				}
				return &healthv1.HealthCheckResponse{Status: here}, nil
			})
			ctx := t.Context()
			if tc.header != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, tc.header, "x")
			}
			got, err := s.client.Check(ctx, &healthv1.HealthCheckRequest{Service: tc.service}, tc.options...)
			if got.GetStatus() != tc.want || status.Code(err) != tc.code {
				t.Errorf("got %v, %v; want %v, %v", got, err, tc.want, tc.code)
			}
		})
	}
}

// Nobody writes into a large request while its method has it.
func TestLargeRequestsStayAsTheyAre(t *testing.T) {
	s := newServedHere(t)
	s.on(func(_ context.Context, r *healthv1.HealthCheckRequest) (any, error) {
		first := r.Service[:1]
		for range 3 {
			runtime.Gosched()
			if strings.Count(r.Service, first) != len(r.Service) {
				t.Error("a request has something of another one")
			}
		}
		return &healthv1.HealthCheckResponse{Status: here}, nil
	})
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for n := range short.Of(30, 10) { // each size, compressed and not
				var options []grpc.CallOption
				if n%2 == 0 {
					options = append(options, grpc.UseCompressor(gzip.Name))
				}
				service := strings.Repeat(string(rune('a'+i)), unary.MaxRequest/2<<(n%5))
				if _, err := s.client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service}, options...); err != nil {
					t.Errorf("%d bytes: %v", len(service), err)
				}
			}
		})
	}
	callers.Wait()
	for _, f := range s.server.shards {
		if st := f.shard.Stats(); st.Buffered != 0 {
			t.Errorf("%d bytes count when all is over", st.Buffered)
		}
	}
}

// Calls say which connection they came over: unary ones that are served here, and streams that go to the server in this
// process, whatever their clients say of that.
func TestCallsKnowTheirConnection(t *testing.T) {
	s := newServedHere(t)
	numbers := make(chan uint64, 1)
	s.on(func(ctx context.Context, _ *healthv1.HealthCheckRequest) (any, error) {
		numbers <- grpc.ServerTransportStreamFromContext(ctx).(interface{ Connection() uint64 }).Connection()
		return &healthv1.HealthCheckResponse{}, nil
	})
	var before uint64
	for _, conn := range []*grpc.ClientConn{s.conn, dial(t, strings.TrimPrefix(s.conn.Target(), "passthrough:///"))} {
		client := healthv1.NewHealthClient(conn)
		if _, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		number := <-numbers
		if number == 0 || number == before {
			t.Errorf("connection %d; the other one is %d", number, before)
		}
		before = number
		ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), apps.HeaderOrigin, "7", apps.HeaderOrigin, "8"))
		if _, err := client.Watch(ctx, &healthv1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		if got := (<-s.seen).Get(apps.HeaderOrigin); len(got) != 1 || apps.ParseOrigin(got[0]).Connection != number ||
			!apps.ParseOrigin(got[0]).Remote.Addr().IsLoopback() {
			t.Errorf("a stream is said to come over %q; want %d, and the client's address", got, number)
		}
		cancel()
	}
}

func TestADrainWaitsForCallsServedHere(t *testing.T) {
	s := newServedHere(t)
	began, goOn := make(chan struct{}), make(chan struct{})
	s.on(func(context.Context, *healthv1.HealthCheckRequest) (any, error) {
		close(began)
		<-goOn
		return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := s.client.Check(t.Context(), &healthv1.HealthCheckRequest{})
		done <- err
	}()
	<-began
	stopped := make(chan struct{})
	go func() { s.server.GracefulStop(); close(stopped) }()
	select {
	case <-stopped:
		t.Error("stopped while a call was under way")
	case err := <-done:
		t.Errorf("got %v before the answer was there", err)
	case <-time.After(10 * time.Millisecond): // it has no reason to
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-stopped
}

// watch begins a stream of the server in this process on a connection, and returns what comes of it.
// echoStreams answers each message of a stream of requests by a short one.
var echoStreams = grpc.ServiceDesc{ServiceName: "test.Echo", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{StreamName: "Many", ClientStreams: true, ServerStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			for {
				m := new(healthv1.HealthCheckRequest)
				if err := stream.RecvMsg(m); err != nil {
					return err
				}
				if err := stream.SendMsg(&healthv1.HealthCheckRequest{Service: strconv.Itoa(len(m.Service))}); err != nil {
					return err
				}
			}
		}}}}

// A message of a stream of requests is bounded by less than a request that is one.
func TestMessagesOfStreamsAreBounded(t *testing.T) {
	s := newServedHereWith(t, h2.Default(), Inside{Message: 16 << 20})
	const most = mostPart - 5 // a tag and a length
	for _, tc := range []struct {
		name    string
		options []grpc.CallOption
		code    codes.Code
	}{
		{"not compressed", nil, codes.ResourceExhausted},
		{"compressed", []grpc.CallOption{grpc.UseCompressor(gzip.Name)}, codes.InvalidArgument},
	} {
		stream, err := s.conn.NewStream(t.Context(), &echoStreams.Streams[0], "/test.Echo/Many", tc.options...)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{1, most, most, most + 1} {
			out := new(healthv1.HealthCheckRequest)
			err := stream.SendMsg(&healthv1.HealthCheckRequest{Service: strings.Repeat("x", size)})
			if err == nil || err == io.EOF {
				err = stream.RecvMsg(out)
			}
			if size <= most && (err != nil || out.Service != strconv.Itoa(size)) || size > most && status.Code(err) != tc.code {
				t.Errorf("%s, %d bytes: %v, %v", tc.name, size, out.Service, err)
			}
		}
	}
}

func watch(t *testing.T, conn *grpc.ClientConn, service string, options ...grpc.CallOption) (next func() error, end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	stream, err := healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{Service: service}, options...)
	if err != nil {
		t.Fatal(err)
	}
	return func() error { _, err := stream.Recv(); return err }, cancel
}

// Beyond their bound a stream takes the place of one of the connection that has most of them, and a connection that has most gets no more.
func TestStreamsInsideAreBounded(t *testing.T) {
	for name, here := range map[string][]string{"in the server in this process": nil, "where they arrive": {watchPath}} {
		t.Run(name, func(t *testing.T) { streamsAreBounded(t, here...) })
	}
}

func streamsAreBounded(t *testing.T, here ...string) {
	const most = 4
	s := newServedHereWith(t, h2.Default(), Inside{Streams: most}, here...)
	other := dial(t, s.addr)
	var ends [most]func()
	ended := make(chan error, most)
	var watching sync.WaitGroup
	defer watching.Wait()
	for i := range ends {
		next, end := watch(t, s.conn, "")
		if err := next(); err != nil {
			t.Fatal(err)
		}
		ends[i] = end
		watching.Go(func() { ended <- next() })
	}
	next, end := watch(t, s.conn, "")
	defer end()
	if err := next(); status.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "no connection has more than this one") {
		t.Errorf("the connection that has all of them gets another one: %v", err)
	}
	for range most / 2 {
		next, end := watch(t, other, "")
		defer end()
		if err := next(); err != nil {
			t.Errorf("a stream of another connection: %v", err)
		}
		if err := <-ended; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no connection has more than its own") {
			t.Errorf("the stream that made room: %v", err)
		}
	}
	next, end = watch(t, other, "")
	defer end()
	if err := next(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("both connections have as many, and one gets another: %v", err)
	}
	for _, end := range ends {
		end()
	}
	for range most / 2 {
		<-ended
	}
	for { // the sidecar has heard of it when there is room again
		next, end := watch(t, other, "")
		defer end()
		if next() == nil {
			return
		}
	}
}

// At the bound nobody's only stream makes room for another connection's first.
func TestOnlyStreamsInsideStay(t *testing.T) {
	s := newServedHereWith(t, h2.Default(), Inside{Streams: 1})
	_, end := watch(t, s.conn, "")
	defer end()
	if sent := <-s.seen; sent == nil {
		t.Fatal("the first stream did not begin")
	}
	next, end := watch(t, dial(t, s.addr), "")
	defer end()
	if err := next(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "than this one would have") {
		t.Errorf("a stream of another connection: %v", err)
	}
}

// The one that gives way is found without a look at the others, and the counts follow.
func TestStaysAreCounted(t *testing.T) {
	var s stays
	s.of = map[*h2.Conn]*stayer{}
	random := rand.New(rand.NewPCG(1, 2))
	conns := make([]*h2.Conn, 20)
	for i := range conns {
		conns[i] = new(h2.Conn)
	}
	f := &frames{server: &Server{deps: Deps{Inside: Inside{Streams: 1000}}}}
	var open []*stay
	for range 5000 {
		if random.IntN(2) == 0 {
			call := new(stay)
			if !s.enter(f, conns[min(random.IntN(20), random.IntN(20))], call) {
				t.Fatal("there is no room")
			}
			open = append(open, call)
		} else if len(open) > 0 {
			i := random.IntN(len(open))
			s.leave(open[i])
			s.leave(open[i]) // again
			open = slices.Delete(open, i, i+1)
		}
		counts, most := map[*h2.Conn]int{}, 0
		for _, call := range open {
			counts[call.stayer.conn]++
			if most = max(most, counts[call.stayer.conn]); call.stayer.stays[call.at] != call {
				t.Fatal("a call is not at its place")
			}
		}
		if s.n != len(open) || s.most != most || len(s.of) != len(counts) {
			t.Fatalf("%d calls of %d connections, at most %d of one; want %d, %d, %d", s.n, len(s.of), s.most, len(open), len(counts), most)
		}
		for conn, n := range counts {
			if g := s.of[conn]; len(g.stays) != n || s.by[n][g.at] != g {
				t.Fatalf("a connection has %d calls; want %d", len(g.stays), n)
			}
		}
	}
}

// A compressed message of a stream is inflated before the server in this process has it, and counts.
func TestBombsOfStreamsOfThePlainAPI(t *testing.T) {
	engine := h2.Default()
	engine.Buffered = 1 << 20
	s := newServedHereWith(t, engine, Inside{Message: 4 << 20})
	packed := grpc.UseCompressor(gzip.Name)
	for _, tc := range []struct {
		name string
		size int
		code codes.Code
		text string
	}{
		{name: "small"},
		{name: "large", size: 500_000},
		{name: "more than there is memory for", size: 3 << 20, code: codes.ResourceExhausted,
			text: "there is no memory for the compressed message"},
		{name: wordCostly, code: codes.InvalidArgument, text: "the compressed message cannot be read"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			service, packed := strings.Repeat("x", tc.size), packed
			if tc.name == wordCostly {
				service, packed = wordCostly, grpc.UseCompressor("deflate")
			}
			next, end := watch(t, s.conn, service, packed)
			defer end()
			if err := next(); status.Code(err) != tc.code || err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Error(err)
			}
		})
	}
	s = newServedHereWith(t, h2.Default(), Inside{Message: 1 << 20})
	for name, size := range map[string]int{"compressed": 1 << 20, "not compressed": 1 << 20} {
		var options []grpc.CallOption
		code := codes.ResourceExhausted
		if name == "compressed" {
			options, code = append(options, packed), codes.InvalidArgument
		}
		next, end := watch(t, s.conn, strings.Repeat("x", size), options...)
		defer end()
		if err := next(); status.Code(err) != code {
			t.Errorf("%s, a little too long: %v; want %v", name, err, code)
		}
	}
}
