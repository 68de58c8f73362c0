package unary

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const checkPath = "/grpc.health.v1.Health/Check"

// served is a shard on which check is served.
type served struct {
	server Server
	shard  *driver.Shard
	port   *Port
	conn   *grpc.ClientConn
	client healthv1.HealthClient
	check  atomic.Pointer[check]
	begins atomic.Pointer[func(*callctx.Context) InlineCall] // nil: calls are served
	open   atomic.Int64                                      // calls that were taken and are not over
	stop   func()                                            // the shard and the server; once
}

type check func(ctx context.Context, r *healthv1.HealthCheckRequest) (any, error)

// on says what check does.
func (s *served) on(c check) { s.check.Store(&c) }

func newServed(t testing.TB) *served { return newServedWith(t, h2.Default()) }

func newServedWith(t testing.TB, engine h2.Config) *served {
	t.Helper()
	s := &served{}
	s.shard = driver.New(engine, s)
	s.port = s.server.Port(s.shard, engine.Buffered)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.shard.Run(ctx) })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.shard.Accept(conn, nil)
		}
	})
	s.stop = sync.OnceFunc(func() { l.Close(); cancel(); wg.Wait(); s.server.Close() })
	t.Cleanup(s.stop)
	if s.conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close() })
	s.client = healthv1.NewHealthClient(s.conn)
	return s
}

// elsewhere is what a call gets that is not taken.
var elsewhere = &h2.Status{Code: int(codes.DataLoss), Message: "elsewhere"}

// Route implements h2.Router.
func (s *served) Route(c *h2.Call) (*h2.Conn, error) {
	if begin := s.begins.Load(); begin != nil {
		v := s.port.Begin(c, *begin, func() bool { return false })
		c.Data = v
		s.open.Add(1)
		v.Go()
		return nil, h2.ErrMine
	}
	v, err := s.port.Take(c, func(ctx context.Context, decode func(any) error) (any, error) {
		var r healthv1.HealthCheckRequest
		if err := decode(&r); err != nil {
			return nil, err
		}
		return (*s.check.Load())(ctx, &r)
	})
	if err == ErrElsewhere {
		return nil, elsewhere
	}
	if v != nil {
		c.Data = v
		s.open.Add(1)
	}
	return nil, err
}

// Answer implements h2.Router.
func (s *served) Answer(*h2.Call) {}

// Done implements h2.Router.
func (s *served) Done(c *h2.Call, _ *h2.Outcome) {
	if v, ok := c.Data.(*Call); ok {
		v.Cancel()
		s.open.Add(-1)
	}
}

func TestWhatIsTaken(t *testing.T) {
	s := newServed(t)
	long := strings.Repeat("x", MaxRequest)
	for _, tc := range []struct {
		name    string
		service string
		header  string
		options []grpc.CallOption
		code    codes.Code
	}{
		{name: "small"},
		{name: "almost too large", service: long[:MaxRequest-8]},
		{name: "not copied", service: long},
		{name: "large", service: strings.Repeat(long, 40)},
		{name: "compressed", service: "x", options: []grpc.CallOption{grpc.UseCompressor(gzip.Name)}, code: codes.DataLoss},
		{name: "with a binary header", header: "x-bin", code: codes.DataLoss},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.on(func(_ context.Context, r *healthv1.HealthCheckRequest) (any, error) {
				if r.Service != tc.service {
					t.Errorf("got a service of %d bytes; want %d", len(r.Service), len(tc.service))
				}
				return &healthv1.HealthCheckResponse{}, nil
			})
			ctx := t.Context()
			if tc.header != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, tc.header, "x")
			}
			if _, err := s.client.Check(
				ctx, &healthv1.HealthCheckRequest{Service: tc.service}, tc.options...,
			); status.Code(err) != tc.code {
				t.Errorf("got %v; want %v", err, tc.code)
			}
		})
	}
}

func TestACallServedHereHasWhatACallOfGRPCHas(t *testing.T) {
	s := newServed(t)
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
				if err := errors.Join(grpc.SetHeader(ctx, metadata.Pairs("x-head", "h", "x-head-bin", "\x00\xff")),
					grpc.SetTrailer(ctx, metadata.Pairs("x-tail", "t"))); err != nil {
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
			} else if st := status.Convert(err); st.Code() != tc.want.Code() || st.Message() != tc.want.Message() ||
				len(st.Details()) != len(tc.want.Details()) {
				t.Errorf("got %v; want %v", st, tc.want)
			}
			if tail := trailer.Get("x-tail"); len(tail) != 1 || tail[0] != "t" {
				t.Errorf("got the trailers %v", trailer)
			}
		})
	}
}

// A caller that leaves, whose time is up, or who is sent away ends the call's context.
func TestACallServedHereEndsWithItsCall(t *testing.T) {
	for name, leave := range map[string]func(s *served, cancel func()){
		"the caller leaves":  func(_ *served, cancel func()) { cancel() },
		"the server is over": func(s *served, _ func()) { go s.stop() },
		"its time is up":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newServed(t)
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
func TestACallServedHereThatPanics(t *testing.T) {
	panics.LogTo(slog.New(slog.DiscardHandler))
	before := panics.Stats().Count
	s := newServed(t)
	for range 3 {
		s.on(func(context.Context, *healthv1.HealthCheckRequest) (any, error) { panic("broken method") })
		if _, err := s.client.Check(t.Context(), &healthv1.HealthCheckRequest{}); status.Code(err) != codes.Internal {
			t.Errorf("got %v; want Internal", err)
		}
		s.on(func(context.Context, *healthv1.HealthCheckRequest) (any, error) {
			return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_UNKNOWN}, nil
		})
		if r, err := s.client.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil ||
			r.Status != healthv1.HealthCheckResponse_UNKNOWN {
			t.Errorf("the next call: %v, %v", r, err)
		}
	}
	if n := panics.Stats().Count - before; n != 3 {
		t.Errorf("%d panics were counted; want 3", n)
	}
	stopped := make(chan struct{})
	go func() { s.stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Error("the stop does not end")
	}
}

// Many calls at once, with answers of all sizes: each gets its own.
func TestManyCallsServedHere(t *testing.T) {
	s := newServed(t)
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
					t.Errorf("got %d bytes; want %d of %q", len(got.Service), len(want), word[:1])
				}
			}
		})
	}
	wg.Wait()
}

// Large answers that are there at once, of which all together are more than may wait for
// clients: each waits for its turn, and gets it when those before are read or given up.
func TestLargeAnswersWaitForTheirTurn(t *testing.T) {
	for name, begun := range map[string]bool{"served": false, "begun in a turn": true} {
		t.Run(name, func(t *testing.T) { largeAnswers(t, begun) })
	}
}

// checkStream begins a call whose answer is read by hand.
func (s *served) checkStream(t *testing.T) (grpc.ClientStream, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, checkPath)
	if err == nil {
		err = errors.Join(stream.SendMsg(&healthv1.HealthCheckRequest{}), stream.CloseSend())
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream, cancel
}

func largeAnswers(t *testing.T, begun bool) {
	const size, calls = 1 << 20, 12
	engine := h2.Default()
	engine.Buffered = 4 << 20
	s := newServedWith(t, engine)
	answer := &healthv1.HealthCheckRequest{Service: strings.Repeat("x", size)} // as good a message
	var together sync.WaitGroup
	together.Add(calls)
	goOn := make(chan struct{})
	if begun {
		begin := func(*callctx.Context) InlineCall {
			return &begunTurn{answer: answer, resume: func() { together.Done(); <-goOn }}
		}
		s.begins.Store(&begin)
	}
	s.on(func(context.Context, *healthv1.HealthCheckRequest) (any, error) {
		together.Done()
		<-goOn
		return answer, nil
	})
	// Read by hand: so nothing is taken but what the window has room for.
	var streams [calls]grpc.ClientStream
	var cancels [calls]context.CancelFunc
	for i := range streams {
		streams[i], cancels[i] = s.checkStream(t)
	}
	together.Wait()
	s.shard.Do(func(*h2.Forwarder) {
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
		if waits := s.shard.Stats().Buffered; waits > engine.Buffered/2+size+64 {
			t.Errorf("with %d answers begun %d bytes wait for clients; want one answer beyond %d at most", n+1, waits, engine.Buffered/2)
		}
		if n == 0 {
			cancels[i]() // its place is free, too
			continue
		}
		var got healthv1.HealthCheckRequest
		if err := streams[i].RecvMsg(&got); err != nil || len(got.Service) != size {
			t.Errorf("answer %d: got %d bytes, %v", i, len(got.Service), err)
		}
	}
	if n := answered.Load(); n != calls {
		t.Errorf("%d of %d calls were answered", n, calls)
	}
}

// What a client sends as a request reaches the method as gRPC's own server decodes it, or ends the call: nothing else.
func FuzzRequest(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 3, 0x0a, 1, 'a'}, "x-a", "1")
	f.Add([]byte{1, 0, 0, 0, 1, 0}, "x-a-bin", "AA")
	f.Add([]byte{0, 0, 0, 0, 9, 0x0a}, "grpc-timeout", "1S")
	f.Add([]byte{0, 0, 0, 0, 1, 0xff}, "content-type", "application/json")
	s := newServed(f)
	s.on(func(ctx context.Context, r *healthv1.HealthCheckRequest) (any, error) {
		if md, ok := metadata.FromIncomingContext(ctx); !ok || len(md.Get("grpc-timeout")) > 0 {
			return nil, errors.New("no headers, or gRPC's own")
		}
		return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
	})
	f.Fuzz(func(t *testing.T, body []byte, name, value string) {
		conn, err := net.Dial("tcp", s.conn.Target())
		if err != nil {
			t.Skip(err)
		}
		defer conn.Close()
		var out bytes.Buffer
		out.WriteString(http2.ClientPreface)
		fr := http2.NewFramer(&out, nil)
		_ = fr.WriteSettings()
		var block bytes.Buffer
		e := hpack.NewEncoder(&block)
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", checkPath},
			{":authority", "x"}, {"content-type", "application/grpc"}, {name, value}} {
			_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
		_ = fr.WriteData(1, true, body[:min(len(body), 16<<10)])
		_ = fr.WritePing(false, [8]byte{7})
		if _, err := conn.Write(out.Bytes()); err != nil {
			return
		}
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		in := http2.NewFramer(nil, conn)
		for ended, ponged := false, false; !ended || !ponged; {
			frame, err := in.ReadFrame()
			if err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("no end of the call: %q %q %q", body, name, value)
				}
				break // the connection was ended for it
			}
			switch frame := frame.(type) {
			case *http2.PingFrame:
				ponged = true
			case *http2.HeadersFrame:
				ended = ended || frame.StreamEnded()
			case *http2.DataFrame:
				ended = ended || frame.StreamEnded()
			case *http2.RSTStreamFrame:
				ended = true
			}
		}
	})
}

func BenchmarkCall(b *testing.B) {
	s := newServed(b)
	answer := &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}
	s.on(func(context.Context, *healthv1.HealthCheckRequest) (any, error) { return answer, nil })
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.client.Check(b.Context(), &healthv1.HealthCheckRequest{Service: "x"}); err != nil {
			b.Fatal(err)
		}
	}
}

// begunTurn is an InlineCall whose answer is large, and whose context ends with its work, before the answer is out.
type begunTurn struct {
	work   callctx.Context
	answer proto.Message
	resume func()
}

func (b *begunTurn) Context() *callctx.Context { return &b.work }
func (b *begunTurn) Here([]byte) bool          { return false }
func (b *begunTurn) Resume(room []byte) ([]byte, []string, error) {
	b.resume()
	b.work.Cancel(nil)
	answer, err := proto.MarshalOptions{}.MarshalAppend(room, b.answer)
	return answer, nil, err
}
