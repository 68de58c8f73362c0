package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type text = wrapperspb.StringValue

func say(s string) *text { return wrapperspb.String(s) }

// service answers the calls of tests, on a real server of gRPC.
type service struct {
	unary  func(ctx context.Context, in string) (string, error)
	stream func(in string, s grpc.ServerStream) error
}

// onTCP serves over a socket, and returns its address.
func (v *service) onTCP(t testing.TB, options ...grpc.ServerOption) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v.on(t, lis, options...)
	return lis.Addr().String()
}

func (v *service) on(t testing.TB, lis net.Listener, options ...grpc.ServerOption) {
	s := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20))...)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.S", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Unary",
				Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
					in := new(text)
					if err := decode(in); err != nil {
						return nil, err
					}
					out, err := v.unary(ctx, in.Value)
					return say(out), err
				}},
		},
		Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			in := new(text)
			if err := s.RecvMsg(in); err != nil {
				return err
			}
			return v.stream(in.Value, s)
		}}},
	}, v)
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
}

func connect(t testing.TB, change func(*h2.Config), target Target) *Conn {
	t.Helper()
	config := h2.Default()
	if change != nil {
		change(&config)
	}
	c := New(config)
	t.Cleanup(c.Close)
	target.Authority, target.UserAgent = "node", "test"
	if target.Message == 0 {
		target.Message = 64_000_000
	}
	return c.Connect(target)
}

func dialTCP(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}
}

// start connects to a service.
func start(t testing.TB, v *service) *Conn {
	return connect(t, nil, Target{Dial: dialTCP(v.onTCP(t))})
}

const (
	unary     = "/test.S/Unary"
	streaming = "/test.S/Stream"
)

// read reads a stream to its end.
func read(
	ctx context.Context, c grpc.ClientConnInterface, in string, opts ...grpc.CallOption,
) (all []string, s grpc.ClientStream, err error) {
	if s, err = c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, streaming, opts...); err != nil {
		return nil, nil, err
	}
	if err = s.SendMsg(say(in)); err != nil {
		return nil, s, err
	}
	if err = s.CloseSend(); err != nil {
		return nil, s, err
	}
	for {
		out := new(text)
		if err = s.RecvMsg(out); err != nil {
			return all, s, err
		}
		all = append(all, out.Value)
	}
}

func TestUnary(t *testing.T) {
	v := &service{unary: func(ctx context.Context, in string) (string, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-head", "1"))
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-units", "7", "x-raw-bin", "\x00\xff"))
		if in == "fail" {
			st, _ := status.New(codes.FailedPrecondition, "no: 100% \n").WithDetails(say("why"))
			return "", st.Err()
		}
		_, limited := ctx.Deadline()
		return strings.Join(
			[]string{in, strings.Join(md["x-more"], ","), strings.Join(md["user-agent"], ","), map[bool]string{true: "limited"}[limited]},
			"|",
		), nil
	}}
	c := start(t, v)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-more", "a", "x-more", "b")
	var header, trailer metadata.MD
	var p peer.Peer
	out := new(text)
	if err := c.Invoke(
		ctx, unary, say("hello"), out, grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&p),
	); err != nil || out.Value != "hello|a,b|test|" {
		t.Errorf("%q, %v", out.Value, err)
	}
	if header.Get("x-head")[0] != "1" || trailer.Get("x-units")[0] != "7" || trailer.Get("x-raw-bin")[0] != "\x00\xff" || p.Addr == nil {
		t.Errorf("header %v, trailer %v, peer %v", header, trailer, p.Addr)
	}
	limited, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	more := &Headers{Fields: h2.NewFields("x-more", "c"), Once: []string{"x-more", "d"}}
	if err := c.Invoke(limited, unary, say("hello"), out, more); err != nil || out.Value != "hello|c,d|test|limited" {
		t.Errorf("%q, %v", out.Value, err)
	}
	err := c.Invoke(t.Context(), unary, say("fail"), out, grpc.Trailer(&trailer))
	st := status.Convert(err)
	if st.Code() != codes.FailedPrecondition || st.Message() != "no: 100% \n" || len(st.Details()) != 1 ||
		trailer.Get("x-units")[0] != "7" {
		t.Errorf("%v %q %v, trailer %v", st.Code(), st.Message(), st.Details(), trailer)
	}
	if err := c.Invoke(t.Context(), "/test.S/None", say(""), out); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that is not there: %v", err)
	}
}

func TestStream(t *testing.T) {
	v := &service{stream: func(in string, s grpc.ServerStream) error {
		for i := range 1000 {
			if err := s.SendMsg(say(strings.Repeat(in, i%7*100))); err != nil {
				return err
			}
		}
		s.SetTrailer(metadata.Pairs("x-units", "9"))
		if in == "f" {
			return status.Error(codes.Aborted, "at the end")
		}
		return nil
	}}
	c := start(t, v)
	for _, in := range []string{"a", "f"} {
		all, s, err := read(t.Context(), c, in)
		if len(all) != 1000 || s.Trailer().Get("x-units")[0] != "9" {
			t.Errorf("%s: %d messages, trailer %v", in, len(all), s.Trailer())
		}
		for i, m := range all {
			if m != strings.Repeat(in, i%7*100) {
				t.Fatalf("%s: message %d has %d bytes", in, i, len(m))
			}
		}
		if want := map[string]codes.Code{"a": codes.OK, "f": codes.Aborted}[in]; want == codes.OK && err != io.EOF ||
			want != codes.OK && status.Code(err) != want {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// A stream whose answer is one message is read with it, trailers included, and ends as a call of Invoke does.
func TestAStreamOfOneMessage(t *testing.T) {
	v := &service{stream: func(in string, s grpc.ServerStream) error {
		s.SetTrailer(metadata.Pairs("x-units", "9"))
		for _, part := range strings.Fields(in) {
			if err := s.SendMsg(say(part)); err != nil {
				return err
			}
		}
		if strings.HasSuffix(in, "failed") {
			return status.Error(codes.Aborted, "at the end")
		}
		return nil
	}}
	c := start(t, v)
	for in, want := range map[string]codes.Code{"one": codes.OK, "": codes.Internal, "one two": codes.Internal, "failed": codes.Aborted} {
		s, err := c.NewStream(t.Context(), &grpc.StreamDesc{}, streaming)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SendMsg(say(in)); err != nil {
			t.Fatal(err)
		}
		out := new(text)
		err = s.RecvMsg(out)
		if status.Code(err) != want || want == codes.OK && (out.Value != in || s.Trailer().Get("x-units") == nil) {
			t.Errorf("%q: %q, %v, trailer %v; want %s", in, out.Value, err, s.Trailer(), want)
		}
		if invoked := c.Invoke(t.Context(), streaming, say(in), out); status.Code(invoked) != want ||
			want != codes.OK && invoked.Error() != err.Error() {
			t.Errorf("%q: %v; Invoke: %v", in, err, invoked)
		}
	}
}

// Messages that are longer than any window come whole, both ways.
func TestLargeMessages(t *testing.T) {
	v := &service{
		unary: func(_ context.Context, in string) (string, error) { return in + in, nil },
		stream: func(in string, s grpc.ServerStream) error {
			for range 3 {
				if err := s.SendMsg(say(in)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c := start(t, v)
	large := strings.Repeat("0123456789abcdef", 600<<10/16*short.Of(10, 3)) // 6 MB
	out := new(text)
	if err := c.Invoke(t.Context(), unary, say(large), out); err != nil || out.Value != large+large {
		t.Errorf("%d bytes, %v", len(out.Value), err)
	}
	all, _, err := read(t.Context(), c, large)
	if err != io.EOF || len(all) != 3 || all[2] != large {
		t.Errorf("%d messages, %v", len(all), err)
	}
	if st := c.client.shard.Stats(); st.Buffered != 0 {
		t.Errorf("%d bytes are kept", st.Buffered)
	}
}

// What was read of a stream that stays open does not count as waiting, however little that is.
func TestNothingOfAStreamThatLastsIsKept(t *testing.T) {
	short.Skip(t, "what was read is let go half a minute later")
	over := make(chan struct{})
	v := &service{stream: func(in string, s grpc.ServerStream) error {
		err := s.SendMsg(say(in))
		<-over
		return err
	}}
	c := start(t, v)
	defer close(over)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, streaming, Lasts{})
	if err == nil {
		err = s.SendMsg(say("attached"))
	}
	if err == nil {
		err = s.CloseSend()
	}
	out := new(text)
	if err == nil {
		err = s.RecvMsg(out)
	}
	if err != nil || out.Value != "attached" {
		t.Fatalf("%q, %v", out.Value, err)
	}
	await.True(t, "nothing is kept", func() bool { return c.client.shard.Stats().Buffered == 0 })
}

// A reader that does not read holds its own stream back, and no other.
func TestASlowReaderHoldsBackItsOwnStream(t *testing.T) {
	var sent atomic.Int64
	pieces, piece := short.Of(1000, 300), strings.Repeat("x", 32<<10)
	v := &service{
		unary: func(_ context.Context, in string) (string, error) { return in, nil },
		stream: func(_ string, s grpc.ServerStream) error {
			for range pieces {
				if err := s.SendMsg(say(piece)); err != nil {
					return err
				}
				sent.Add(1)
			}
			return nil
		},
	}
	c := start(t, v)
	s, err := c.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, streaming)
	if err != nil || s.SendMsg(say("go")) != nil {
		t.Fatal(err)
	}
	for last := int64(-1); last != sent.Load() || last == 0; time.Sleep(50 * time.Millisecond) { // until the server waits
		last = sent.Load()
	}
	if n := sent.Load(); n > 100 {
		t.Errorf("%d messages of 32 KB were sent to a reader that reads none", n)
	}
	if err := c.Invoke(t.Context(), unary, say("hello"), new(text)); err != nil {
		t.Errorf("beside it: %v", err)
	}
	n := 0
	for ; err == nil; n++ {
		err = s.RecvMsg(new(text))
	}
	if n-1 != pieces || err != io.EOF {
		t.Errorf("%d messages, %v", n-1, err)
	}
}

func TestTheCallersEndReachesTheNode(t *testing.T) {
	ended := make(chan struct{}, 4)
	wait := func(ctx context.Context) error { <-ctx.Done(); ended <- struct{}{}; return ctx.Err() }
	v := &service{
		unary:  func(ctx context.Context, _ string) (string, error) { return "", wait(ctx) },
		stream: func(_ string, s grpc.ServerStream) error { return wait(s.Context()) },
	}
	c := start(t, v)
	for name, call := range map[string]func(context.Context) error{
		"unary":  func(ctx context.Context) error { return c.Invoke(ctx, unary, say(""), new(text)) },
		"stream": func(ctx context.Context) error { _, _, err := read(ctx, c, ""); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := call(ctx)
		cancel()
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%s, out of time: %v", name, err)
		}
		<-ended
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		if err = call(ctx); status.Code(err) != codes.Canceled {
			t.Errorf("%s, cancelled: %v", name, err)
		}
		<-ended
		if e, ok := errors.AsType[*Error](call(ctx)); !ok || !e.NotSent {
			t.Errorf("%s with a context that is over: %v", name, e)
		}
	}
}

func TestSizes(t *testing.T) {
	v := &service{unary: func(_ context.Context, in string) (string, error) { return strings.Repeat("x", 2000), nil }}
	c := connect(t, nil, Target{Dial: dialTCP(v.onTCP(t)), Message: 1000})
	for name, in := range map[string]string{"request": strings.Repeat("x", 1001), "answer": "x"} {
		err := c.Invoke(t.Context(), unary, say(in), new(text))
		if e, ok := errors.AsType[*Error](
			err,
		); !ok || e.Code() != codes.ResourceExhausted || !strings.Contains(e.Error(), "larger than max") ||
			e.NotSent != (name == "request") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := c.client.shard.Stats().Kept; n != 0 {
		t.Errorf("%d calls kept", n)
	}
}

// Without a connection a call fails at once, surely not sent; one that waits for it gets it.
func TestNoConnection(t *testing.T) {
	v := &service{unary: func(_ context.Context, in string) (string, error) { return in, nil }}
	address := v.onTCP(t)
	var up atomic.Bool
	c := connect(t, nil, Target{Dial: func(ctx context.Context) (net.Conn, error) {
		if !up.Load() {
			return nil, errors.New("no way")
		}
		return dialTCP(address)(ctx)
	}})
	for range 3 {
		err := c.Invoke(t.Context(), unary, say(""), new(text))
		if e, ok := errors.AsType[*Error](err); !ok || e.Code() != codes.Unavailable || !e.NotSent ||
			!strings.Contains(err.Error(), "no way") && !strings.Contains(err.Error(), "did not take") {
			t.Errorf("%v", err)
		}
	}
	time.AfterFunc(100*time.Millisecond, func() { up.Store(true) })
	if err := c.Invoke(t.Context(), unary, say("hello"), new(text), grpc.WaitForReady(true)); err != nil {
		t.Errorf("waiting: %v", err)
	}
}

// A call whose caller leaves while it waits for its connection was surely not sent, and is not sent later.
func TestWhoLeavesBeforeThereIsAConnection(t *testing.T) {
	var served atomic.Int64
	v := &service{unary: func(_ context.Context, in string) (string, error) { served.Add(1); return in, nil }}
	address, up := v.onTCP(t), make(chan struct{})
	c := connect(t, nil, Target{Dial: func(ctx context.Context) (net.Conn, error) { <-up; return dialTCP(address)(ctx) }})
	for name, call := range map[string]func(context.Context) error{
		"unary":  func(ctx context.Context) error { return c.Invoke(ctx, unary, say(""), new(text)) },
		"stream": func(ctx context.Context) error { _, _, err := read(ctx, c, ""); return err },
		"cancelled": func(context.Context) error {
			var h Headers
			h.Cancel()
			return c.Invoke(t.Context(), unary, say(""), new(text), &h)
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := call(ctx)
		cancel()
		if e, ok := errors.AsType[*Error](err); !ok || !e.NotSent {
			t.Errorf("%s: %v; want surely not sent", name, err)
		}
	}
	close(up)
	if err := c.Invoke(t.Context(), unary, say("hello"), new(text), grpc.WaitForReady(true)); err != nil || served.Load() != 1 {
		t.Errorf("%v; the node served %d calls, want the last one", err, served.Load())
	}
}

// A connection that is lost is made again; calls that are cut off are told so.
func TestLostConnections(t *testing.T) {
	lis := bufconn.Listen(1 << 20)
	begun := make(chan struct{}, 1)
	v := &service{unary: func(ctx context.Context, in string) (string, error) {
		if in == "wait" {
			begun <- struct{}{}
			<-ctx.Done()
		}
		return in, nil
	}}
	v.on(t, lis)
	var mu sync.Mutex
	var last net.Conn
	c := connect(t, nil, Target{Dial: func(ctx context.Context) (net.Conn, error) {
		conn, err := lis.DialContext(ctx)
		mu.Lock()
		defer mu.Unlock()
		last = conn
		return conn, err
	}})
	for range 3 {
		if err := c.Invoke(t.Context(), unary, say("hello"), new(text), grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- c.Invoke(t.Context(), unary, say("wait"), new(text)) }()
		<-begun
		mu.Lock()
		last.Close()
		mu.Unlock()
		err := <-done
		if e, ok := errors.AsType[*Error](err); !ok || e.Code() != codes.Unavailable || e.NotSent || e.Here {
			t.Errorf("%v", err)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	v := &service{
		unary: func(_ context.Context, in string) (string, error) { return in, nil },
		stream: func(in string, s grpc.ServerStream) error {
			for range 3 {
				_ = s.SendMsg(say(in))
			}
			return nil
		},
	}
	c := start(t, v)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range short.Of(100, 30) {
				in := strings.Repeat(string(rune('a'+i%26)), j)
				out := new(text)
				if err := c.Invoke(t.Context(), unary, say(in), out); err != nil || out.Value != in {
					t.Errorf("%q: %q, %v", in, out.Value, err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				if j%10 == 0 {
					cancel()
				}
				if all, _, err := read(ctx, c, in); j%10 != 0 && (err != io.EOF || len(all) != 3 || all[2] != in) {
					t.Errorf("%q: %q, %v", in, all, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if st := c.client.shard.Stats(); st.Buffered != 0 || st.Held != 0 {
		t.Errorf("kept: %+v", st)
	}
}

// Close ends what is open.
func TestClose(t *testing.T) {
	begun := make(chan struct{}, 1)
	v := &service{unary: func(ctx context.Context, _ string) (string, error) { begun <- struct{}{}; <-ctx.Done(); return "", nil }}
	c := start(t, v)
	done := make(chan error)
	go func() { done <- c.Invoke(t.Context(), unary, say(""), new(text)) }()
	<-begun
	c.Close()
	if err := <-done; status.Code(err) != codes.Unavailable {
		t.Errorf("the open call: %v", err)
	}
	if err := c.Invoke(t.Context(), unary, say(""), new(text)); status.Code(err) != codes.Unavailable {
		t.Errorf("a call after it: %v", err)
	}
}

// rawText is a message that reads itself.
type rawText struct{ b []byte }

func (r *rawText) AppendMessage(b []byte) ([]byte, error) { return append(b, r.b...), nil }
func (r *rawText) ReadMessage(p []byte) error             { r.b = bytes.Clone(p); return nil }

func TestMessagesThatReadThemselves(t *testing.T) {
	v := &service{unary: func(_ context.Context, in string) (string, error) { return in + "!", nil }}
	c := start(t, v)
	in, _ := proto.Marshal(say("hello"))
	want, _ := proto.Marshal(say("hello!"))
	out := new(rawText)
	if err := c.Invoke(t.Context(), unary, &rawText{in}, out); err != nil || !bytes.Equal(out.b, want) {
		t.Errorf("%q, %v", out.b, err)
	}
}

func BenchmarkUnary(b *testing.B) {
	v := &service{unary: func(_ context.Context, in string) (string, error) { return in, nil }}
	address := v.onTCP(b)
	c := connect(b, nil, Target{Dial: dialTCP(address)})
	in, out := say(strings.Repeat("x", 100)), new(text)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Invoke(b.Context(), unary, in, out); err != nil {
			b.Fatal(err)
		}
	}
}
