package driver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const maxMessage = 64 << 20

// server is the server of gRPC's interoperability cases.
type server struct {
	testpb.UnimplementedTestServiceServer
	cancelled chan struct{} // told when a stream's context ends early
}

func echo(ctx context.Context) {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get("x-grpc-test-echo-initial"); len(v) > 0 {
		grpc.SetHeader(ctx, metadata.Pairs("x-grpc-test-echo-initial", v[0]))
	}
	if v := md.Get("x-grpc-test-echo-trailing-bin"); len(v) > 0 {
		grpc.SetTrailer(ctx, metadata.Pairs("x-grpc-test-echo-trailing-bin", v[0]))
	}
}

func (s *server) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return &testpb.Empty{}, nil
}

func payload(n int32) *testpb.Payload {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return &testpb.Payload{Body: b}
}

func (s *server) UnaryCall(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	echo(ctx)
	if st := r.GetResponseStatus(); st.GetCode() != 0 {
		return nil, status.Error(codes.Code(st.Code), st.Message)
	}
	if r.GetPayload() != nil && !bytes.Equal(r.Payload.Body, payload(int32(len(r.Payload.Body))).Body) {
		return nil, status.Error(codes.DataLoss, "the payload is damaged")
	}
	return &testpb.SimpleResponse{Payload: payload(r.ResponseSize)}, nil
}

func (s *server) StreamingOutputCall(r *testpb.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for _, p := range r.ResponseParameters {
		if p.IntervalUs < 0 { // until the caller goes
			<-stream.Context().Done()
			s.cancelled <- struct{}{}
			return stream.Context().Err()
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: payload(p.Size)}); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) StreamingInputCall(stream grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	sum := int32(0)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: sum})
		}
		if err != nil {
			s.cancelled <- struct{}{}
			return err
		}
		sum += int32(len(r.Payload.Body))
	}
}

func (s *server) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	echo(stream.Context())
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			s.cancelled <- struct{}{}
			return err
		}
		if st := r.GetResponseStatus(); st.GetCode() != 0 {
			return status.Error(codes.Code(st.Code), st.Message)
		}
		for _, p := range r.ResponseParameters {
			if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: payload(p.Size)}); err != nil {
				return err
			}
		}
	}
}

// toUpstreams sends calls to upstreams in turn.
type toUpstreams struct {
	all  []*Upstream
	next int
	done atomic.Int64
}

func (r *toUpstreams) Route(*h2.Call) (*h2.Conn, error) {
	r.next++
	return r.all[r.next%len(r.all)].Conn()
}
func (r *toUpstreams) Answer(*h2.Call)            {}
func (r *toUpstreams) Done(*h2.Call, *h2.Outcome) { r.done.Add(1) }

func listen(t testing.TB) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve runs a gRPC server and returns it.
func serve(t testing.TB, l net.Listener, options ...grpc.ServerOption) *server {
	s := &server{cancelled: make(chan struct{}, 1024)}
	g := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(maxMessage))...)
	testpb.RegisterTestServiceServer(g, s)
	var wg sync.WaitGroup
	wg.Go(func() { g.Serve(l) })
	t.Cleanup(func() { g.Stop(); wg.Wait() })
	return s
}

// forward runs a shard in front of upstreams and returns its address.
func forward(t testing.TB, secure *tls.Config, upstreams func(*Shard) []*Upstream) (addr string, s *Shard, r *toUpstreams) {
	r = &toUpstreams{}
	s = New(h2.Default(), r)
	r.all = upstreams(s)
	ctx, stop := context.WithCancel(context.Background())
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(l, secure) })
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { l.Close(); stop(); wg.Wait() })
	return l.Addr().String(), s, r
}

func dialTCP(addr string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) }
}

func connect(t testing.TB, addr string, creds credentials.TransportCredentials) testpb.TestServiceClient {
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return testpb.NewTestServiceClient(c)
}

// result is what a caller saw.
type result struct {
	Bodies          [][sha256.Size]byte // hashes
	Sum             int32
	Header, Trailer metadata.MD
	Code            codes.Code
	Message         string
}

func (r *result) end(err error) {
	if errors.Is(err, io.EOF) {
		err = nil
	}
	r.Code, r.Message = status.Code(err), status.Convert(err).Message()
	for _, name := range []string{"content-type", "date"} {
		delete(r.Header, name)
	}
}

func output(sizes ...int32) (all []*testpb.ResponseParameters) {
	for _, n := range sizes {
		all = append(all, &testpb.ResponseParameters{Size: n})
	}
	return all
}

var cases = map[string]func(ctx context.Context, c testpb.TestServiceClient, r *result){
	"empty": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		_, err := c.EmptyCall(ctx, &testpb.Empty{}, grpc.Header(&r.Header), grpc.Trailer(&r.Trailer))
		r.end(err)
	},
	"large_unary": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		a, err := c.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 16 << 20, Payload: payload(16 << 20)})
		r.Bodies = append(r.Bodies, sha256.Sum256(a.GetPayload().GetBody()))
		r.end(err)
	},
	"compressed": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		a, err := c.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 100000, Payload: payload(100000)}, grpc.UseCompressor(gzip.Name))
		r.Bodies = append(r.Bodies, sha256.Sum256(a.GetPayload().GetBody()))
		r.end(err)
	},
	"client_stream": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		s, err := c.StreamingInputCall(ctx)
		for _, n := range []int32{27182, 8, 1828, 45904, 300000} {
			if err == nil {
				err = s.Send(&testpb.StreamingInputCallRequest{Payload: payload(n)})
			}
		}
		if err == nil {
			var a *testpb.StreamingInputCallResponse
			a, err = s.CloseAndRecv()
			r.Sum = a.GetAggregatedPayloadSize()
		}
		r.end(err)
	},
	"server_stream": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		s, err := c.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{ResponseParameters: output(31415, 9, 2653, 58979, 3<<20, 0)})
		for err == nil {
			var a *testpb.StreamingOutputCallResponse
			if a, err = s.Recv(); err == nil {
				r.Bodies = append(r.Bodies, sha256.Sum256(a.GetPayload().GetBody()))
			}
		}
		r.end(err)
	},
	"ping_pong": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		s, err := c.FullDuplexCall(ctx)
		for _, n := range []int32{31415, 9, 2653, 58979} {
			if err == nil {
				err = s.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: output(n), Payload: payload(n / 2)})
			}
			if err == nil {
				var a *testpb.StreamingOutputCallResponse
				a, err = s.Recv()
				r.Bodies = append(r.Bodies, sha256.Sum256(a.GetPayload().GetBody()))
			}
		}
		if err == nil {
			s.CloseSend()
			_, err = s.Recv()
		}
		r.end(err)
	},
	"empty_stream": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		s, err := c.FullDuplexCall(ctx)
		if err == nil {
			s.CloseSend()
			_, err = s.Recv()
		}
		r.end(err)
	},
	"cancel_after_begin": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		ctx, cancel := context.WithCancel(ctx)
		s, err := c.StreamingInputCall(ctx)
		cancel()
		if err == nil {
			_, err = s.CloseAndRecv()
		}
		r.end(err)
	},
	"cancel_after_first_answer": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		ctx, cancel := context.WithCancel(ctx)
		s, err := c.FullDuplexCall(ctx)
		if err == nil {
			err = s.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: output(31415), Payload: payload(27182)})
		}
		if err == nil {
			_, err = s.Recv()
		}
		cancel()
		if err == nil {
			_, err = s.Recv()
		}
		r.end(err)
	},
	"timeout_on_sleeping_server": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		s, err := c.FullDuplexCall(ctx)
		if err == nil {
			_, err = s.Recv()
		}
		r.end(err)
		r.Message = "" // either side may be the first to notice
	},
	"custom_metadata": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-grpc-test-echo-initial", "test_initial_metadata_value",
			"x-grpc-test-echo-trailing-bin", "\x00\xab\xab\xff\x01", "x-long", strings.Repeat("long ", 3000))
		_, err := c.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 1}, grpc.Header(&r.Header), grpc.Trailer(&r.Trailer))
		r.end(err)
	},
	"unimplemented": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		_, err := c.UnimplementedCall(ctx, &testpb.Empty{}, grpc.Trailer(&r.Trailer))
		r.end(err)
	},
	"special_status_message": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		_, err := c.UnaryCall(ctx, &testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: 2, Message: "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"}})
		r.end(err)
	},
	"status_after_begin": func(ctx context.Context, c testpb.TestServiceClient, r *result) {
		s, err := c.FullDuplexCall(ctx)
		if err == nil {
			err = s.Send(&testpb.StreamingOutputCallRequest{ResponseStatus: &testpb.EchoStatus{Code: 2, Message: "test status message"}})
		}
		if err == nil {
			_, err = s.Recv()
		}
		r.end(err)
	},
}

func TestCallsThroughEqualDirectOnes(t *testing.T) {
	certificate, pool := selfSigned(t)
	serverTLS := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}
	clientTLS := &tls.Config{RootCAs: pool, ServerName: "localhost"}
	plainListener, tlsListener, local := listen(t), listen(t), NewLocal()
	plain, secured, inside := serve(t, plainListener), serve(t, tlsListener, grpc.Creds(credentials.NewTLS(serverTLS))), serve(t, local)
	direct := connect(t, plainListener.Addr().String(), insecure.NewCredentials())

	plainAddr, plainShard, _ := forward(t, nil, func(s *Shard) []*Upstream {
		return []*Upstream{s.Upstream(dialTCP(plainListener.Addr().String()), nil)}
	})
	tlsAddr, tlsShard, _ := forward(t, serverTLS, func(s *Shard) []*Upstream {
		return []*Upstream{s.Upstream(dialTCP(tlsListener.Addr().String()), clientTLS)}
	})
	localAddr, localShard, _ := forward(t, nil, func(s *Shard) []*Upstream { return []*Upstream{s.Upstream(local.Dial, nil)} })

	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			var want result
			run(t.Context(), direct, &want)
			for kind, c := range map[string]testpb.TestServiceClient{
				"plain": connect(t, plainAddr, insecure.NewCredentials()),
				"tls":   connect(t, tlsAddr, credentials.NewTLS(clientTLS)),
				"local": connect(t, localAddr, insecure.NewCredentials()),
			} {
				for range 2 {
					var got result
					run(t.Context(), c, &got)
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s differs from direct:\n%.2000s", kind, diff)
					}
				}
			}
		})
	}
	for _, s := range []*server{plain, secured, inside} {
		for len(s.cancelled) > 0 {
			<-s.cancelled
		}
	}
	for name, s := range map[string]*Shard{"plain": plainShard, "tls": tlsShard, "local": localShard} {
		if got := s.Stats(); got.Buffered != 0 || got.Held != 0 || got.Abuses != (h2.Stats{}).Abuses {
			t.Errorf("%s: after the last call: %+v", name, got)
		}
	}
}

func TestCancellationReachesTheNode(t *testing.T) {
	l := listen(t)
	node := serve(t, l)
	addr, _, _ := forward(t, nil, func(s *Shard) []*Upstream { return []*Upstream{s.Upstream(dialTCP(l.Addr().String()), nil)} })
	c := connect(t, addr, insecure.NewCredentials())
	ctx, cancel := context.WithCancel(t.Context())
	s, err := c.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 1}, {IntervalUs: -1}}})
	if err == nil {
		_, err = s.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-node.cancelled
}

func TestManyCallsAtOnce(t *testing.T) {
	var listeners []net.Listener
	for range 3 {
		l := listen(t)
		serve(t, l, grpc.MaxConcurrentStreams(20))
		listeners = append(listeners, l)
	}
	addr, shard, r := forward(t, nil, func(s *Shard) (all []*Upstream) {
		for _, l := range listeners {
			all = append(all, s.Upstream(dialTCP(l.Addr().String()), nil))
		}
		return all
	})
	var wg sync.WaitGroup
	for range 4 {
		c := connect(t, addr, insecure.NewCredentials())
		for i := range 32 {
			wg.Go(func() {
				for k := range 25 {
					n := int32(i*k*37%90000 + 1)
					a, err := c.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: n, Payload: payload(n / 2)})
					if err != nil || !bytes.Equal(a.Payload.Body, payload(n).Body) {
						t.Errorf("call %d/%d: %v", i, k, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if s := shard.Stats(); s.Calls != 4*32*25 || r.done.Load() != 4*32*25 || s.Buffered != 0 {
		t.Errorf("%d calls, %d done, %+v", s.Calls, r.done.Load(), s)
	}
}

func TestNodeThatIsNotThere(t *testing.T) {
	l := listen(t)
	l.Close()
	addr, _, _ := forward(t, nil, func(s *Shard) []*Upstream { return []*Upstream{s.Upstream(dialTCP(l.Addr().String()), nil)} })
	c := connect(t, addr, insecure.NewCredentials())
	_, err := c.EmptyCall(t.Context(), &testpb.Empty{})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
}

func TestDrain(t *testing.T) {
	l := listen(t)
	serve(t, l)
	addr, shard, _ := forward(t, nil, func(s *Shard) []*Upstream { return []*Upstream{s.Upstream(dialTCP(l.Addr().String()), nil)} })
	c := connect(t, addr, insecure.NewCredentials())
	s, err := c.FullDuplexCall(t.Context())
	if err == nil {
		err = s.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: output(1)})
	}
	if err == nil {
		_, err = s.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan error)
	go func() { drained <- shard.Drain(t.Context()) }()
	// The call goes on while its connection drains.
	for range 3 {
		if err := s.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: output(1000)}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	s.CloseSend()
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

func TestSlowReaderOfALargeStream(t *testing.T) {
	l := listen(t)
	serve(t, l)
	addr, shard, _ := forward(t, nil, func(s *Shard) []*Upstream { return []*Upstream{s.Upstream(dialTCP(l.Addr().String()), nil)} })
	c := connect(t, addr, insecure.NewCredentials())
	var sizes []int32
	for range 60 {
		sizes = append(sizes, 1<<20)
	}
	s, err := c.StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{ResponseParameters: output(sizes...)})
	if err != nil {
		t.Fatal(err)
	}
	other := connect(t, addr, insecure.NewCredentials())
	for i := range sizes {
		if i < 5 { // others get on while it does not read
			if _, err := other.EmptyCall(t.Context(), &testpb.Empty{}); err != nil {
				t.Fatal(err)
			}
			if got := shard.Stats().Buffered; got > h2.Default().MaxWindow {
				t.Errorf("%d bytes wait for one stream", got)
			}
		}
		if a, err := s.Recv(); err != nil || len(a.Payload.Body) != 1<<20 {
			t.Fatal(i, err)
		}
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
