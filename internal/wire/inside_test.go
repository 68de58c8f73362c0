package wire

import (
	"context"
	"errors"
	"log/slog"
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
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/routing"
)

const checkPath = "/grpc.health.v1.Health/Check"

// visited is a server whose health is told by check, and by the server in this process
// when calls go there.
type visited struct {
	server *Server
	conn   *grpc.ClientConn
	client healthv1.HealthClient
	check  atomic.Pointer[check]
	stop   func() // the server; once
}

type check func(ctx context.Context, r *healthv1.HealthCheckRequest) (any, error)

// on says what check does.
func (s *visited) on(c check) { s.check.Store(&c) }

func newVisited(t *testing.T) *visited { return newVisitedWith(t, h2.Default()) }

func newVisitedWith(t *testing.T, engine h2.Config) *visited {
	s := &visited{}
	inside := grpc.NewServer()
	state := health.NewServer()
	state.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING) // tells the ways apart
	healthv1.RegisterHealthServer(inside, state)
	unary := map[string]Unary{checkPath: func(ctx context.Context, decode func(any) error) (any, error) {
		var r healthv1.HealthCheckRequest
		if err := decode(&r); err != nil {
			return nil, err
		}
		return (*s.check.Load())(ctx, &r)
	}}
	path := DefaultDataPath()
	var err error
	if s.server, err = New(Config{Mode: ModePassthrough}, path, engine, Deps{Ways: hop.Ways{Router: routing.New(routing.Default()), Judge: &outcomes{}}, Nodes: network{}, Unary: unary}, inside); err != nil {
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
	s.conn = dial(t, l.Addr().String())
	s.client = healthv1.NewHealthClient(s.conn)
	return s
}

// here and there are the answers of check and of the server in this process.
const (
	here  = healthv1.HealthCheckResponse_UNKNOWN
	there = healthv1.HealthCheckResponse_NOT_SERVING
)

func TestUnaryCallsAreServedHere(t *testing.T) {
	s := newVisited(t)
	long := strings.Repeat("x", visitBytes)
	for _, tc := range []struct {
		name    string
		service string
		header  string
		options []grpc.CallOption
		want    healthv1.HealthCheckResponse_ServingStatus
		code    codes.Code
	}{
		{name: "small"},
		{name: "almost too large", service: long[:visitBytes-8]},
		{name: "too large, of which the other knows nothing", service: long, code: codes.NotFound},
		{name: "compressed", service: "x", options: []grpc.CallOption{grpc.UseCompressor(gzip.Name)}, code: codes.NotFound},
		{name: "with a binary header", header: "x-bin", want: there},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.on(func(_ context.Context, r *healthv1.HealthCheckRequest) (any, error) {
				if r.Service != tc.service {
					t.Errorf("got a service of %d octets; want %d", len(r.Service), len(tc.service))
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

func TestAVisitHasWhatACallOfGRPCHas(t *testing.T) {
	s := newVisited(t)
	refusal, err := status.New(codes.NotFound, "es gibt keine ßache").WithDetails(durationpb.New(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		give any
		err  error
		want *status.Status
	}{
		{"an answer", &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil, nil},
		{"a refusal with details", nil, refusal.Err(), refusal},
		{"a context's error", nil, context.DeadlineExceeded, status.New(codes.DeadlineExceeded, context.DeadlineExceeded.Error())},
		{"any error", nil, errors.New("broken"), status.New(codes.Unknown, "broken")},
		{"what is no message", 7, nil, status.New(codes.Internal, "an answer is no int")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.on(func(ctx context.Context, r *healthv1.HealthCheckRequest) (any, error) {
				md, _ := metadata.FromIncomingContext(ctx)
				if got := md.Get("x-one"); len(got) != 2 || got[0] != "1" || got[1] != "2" || len(md) != 1 {
					t.Errorf("got the headers %v; want x-one alone", md)
				}
				if method, _ := grpc.Method(ctx); method != checkPath {
					t.Errorf("got the method %q", method)
				}
				if left, ok := ctx.Deadline(); !ok || time.Until(left) > time.Hour || time.Until(left) < time.Minute {
					t.Errorf("got the deadline %v", left)
				}
				if err := errors.Join(grpc.SetHeader(ctx, metadata.Pairs("x-head", "h", "x-head-bin", "\x00\xff")), grpc.SetTrailer(ctx, metadata.Pairs("x-tail", "t"))); err != nil {
					t.Error(err)
				}
				return tc.give, tc.err
			})
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-one", "1", "x-one", "2"), time.Hour)
			defer cancel()
			var header, trailer metadata.MD
			got, err := s.client.Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
			if tc.want == nil {
				if err != nil || got.GetStatus() != healthv1.HealthCheckResponse_SERVING || header.Get("x-head-bin")[0] != "\x00\xff" {
					t.Errorf("got %v with %v, %v", got, header, err)
				}
			} else if st := status.Convert(err); st.Code() != tc.want.Code() || st.Message() != tc.want.Message() || len(st.Details()) != len(tc.want.Details()) {
				t.Errorf("got %v; want %v", st, tc.want)
			}
			if tail := trailer.Get("x-tail"); len(tail) != 1 || tail[0] != "t" {
				t.Errorf("got the trailers %v", trailer)
			}
		})
	}
}

// A caller that leaves, whose time is up, or who is sent away ends the call's context.
func TestAVisitEndsWithItsCall(t *testing.T) {
	for name, leave := range map[string]func(s *visited, cancel func()){
		"the caller leaves":  func(_ *visited, cancel func()) { cancel() },
		"the server is over": func(s *visited, _ func()) { go s.stop() },
		"its time is up":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newVisited(t)
			began, ended := make(chan struct{}, 100), make(chan struct{}, 100)
			s.on(func(ctx context.Context, _ *healthv1.HealthCheckRequest) (any, error) {
				began <- struct{}{}
				<-ctx.Done()
				ended <- struct{}{}
				return nil, ctx.Err()
			})
			left := time.Hour
			if leave == nil {
				left = 50 * time.Millisecond
			}
			for came := false; !came; left *= 2 { // a short time may be up before the call comes
				ctx, cancel := context.WithTimeout(t.Context(), left)
				defer cancel()
				done := make(chan error, 1)
				go func() {
					_, err := s.client.Check(ctx, &healthv1.HealthCheckRequest{})
					done <- err
				}()
				select {
				case <-began:
				case err := <-done:
					if leave != nil {
						t.Fatal("the call does not come: ", err)
					}
					continue
				}
				if came = true; leave != nil {
					leave(s, cancel)
				}
				<-ended
				if err := <-done; err == nil {
					t.Error("got no error")
				}
			}
		})
	}
}

// A method that panics ends its call, and nothing else: the next ones are served, and a stop ends.
func TestAVisitThatPanics(t *testing.T) {
	panics.LogTo(slog.New(slog.DiscardHandler))
	before := panics.Stats().Count
	s := newVisited(t)
	for range 3 {
		s.on(func(context.Context, *healthv1.HealthCheckRequest) (any, error) { panic("broken method") })
		if _, err := s.client.Check(t.Context(), &healthv1.HealthCheckRequest{}); status.Code(err) != codes.Internal {
			t.Errorf("got %v; want Internal", err)
		}
		s.on(func(context.Context, *healthv1.HealthCheckRequest) (any, error) {
			return &healthv1.HealthCheckResponse{Status: here}, nil
		})
		if r, err := s.client.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil || r.Status != here {
			t.Errorf("the next call: %v, %v", r, err)
		}
	}
	if n := panics.Stats().Count - before; n != 3 {
		t.Errorf("%d panics were counted; want 3", n)
	}
	stopped := make(chan struct{})
	go func() { s.server.GracefulStop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Error("the stop does not end")
	}
}

// A stop waits for what is under way, and its answer is given.
func TestADrainWaitsForVisits(t *testing.T) {
	s := newVisited(t)
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

// Many calls at once, with answers of all sizes: each gets its own.
func TestManyVisits(t *testing.T) {
	s := newVisited(t)
	s.on(func(_ context.Context, r *healthv1.HealthCheckRequest) (any, error) {
		return &healthv1.HealthCheckRequest{Service: strings.Repeat(r.Service, 1+len(r.Service)*7)}, nil // as good a message
	})
	var wg sync.WaitGroup
	for i := range 2 * crewSize {
		wg.Go(func() {
			for j := range 3 {
				word := strings.Repeat(string(rune('a'+(i+j)%26)), 1+(i*37+j)%100)
				var got healthv1.HealthCheckRequest
				if err := s.conn.Invoke(t.Context(), checkPath, &healthv1.HealthCheckRequest{Service: word}, &got); err != nil {
					t.Error(err)
				}
				if want := strings.Repeat(word, 1+len(word)*7); got.Service != want {
					t.Errorf("got %d octets; want %d of %q", len(got.Service), len(want), word[:1])
				}
			}
		})
	}
	wg.Wait()
}

// Large answers that are there at once, of which all together are more than may wait for
// clients: each waits for its turn, and gets it when those before are read or given up.
func TestLargeAnswersWaitForTheirTurn(t *testing.T) {
	const size, calls = 1 << 20, 12
	engine := h2.Default()
	engine.Buffered = 4 << 20
	s := newVisitedWith(t, engine)
	answer := &healthv1.HealthCheckRequest{Service: strings.Repeat("x", size)} // as good a message
	var together sync.WaitGroup
	together.Add(calls)
	goOn := make(chan struct{})
	s.on(func(context.Context, *healthv1.HealthCheckRequest) (any, error) {
		together.Done()
		<-goOn
		return answer, nil
	})
	// Read by hand: so nothing is taken but what the window has room for.
	var streams [calls]grpc.ClientStream
	var cancels [calls]context.CancelFunc
	for i := range streams {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, checkPath)
		if err == nil {
			err = errors.Join(stream.SendMsg(&healthv1.HealthCheckRequest{}), stream.CloseSend())
		}
		if err != nil {
			t.Fatal(err)
		}
		streams[i], cancels[i] = stream, cancel
	}
	together.Wait()
	s.server.shards[0].shard.Do(func(*h2.Forwarder) {
		close(goOn)
		time.Sleep(100 * time.Millisecond) // they all come to this lock meanwhile, and see the same
	})
	var answered atomic.Int32
	headers := make(chan int, calls)
	for i, stream := range streams {
		go func() {
			if _, err := stream.Header(); err == nil {
				answered.Add(1)
			}
			headers <- i
		}()
	}
	for n := range calls {
		i := <-headers // in the order of their turns
		if waits := s.server.shards[0].shard.Stats().Buffered; waits > engine.Buffered/2+size+64 {
			t.Errorf("with %d answers begun %d octets wait for clients; want one answer beyond %d at most", n+1, waits, engine.Buffered/2)
		}
		if n == 0 {
			cancels[i]() // its place is free, too
			continue
		}
		var got healthv1.HealthCheckRequest
		if err := streams[i].RecvMsg(&got); err != nil || len(got.Service) != size {
			t.Errorf("answer %d: got %d octets, %v", i, len(got.Service), err)
		}
	}
	if n := answered.Load(); n != calls {
		t.Errorf("%d of %d calls were answered", n, calls)
	}
}
