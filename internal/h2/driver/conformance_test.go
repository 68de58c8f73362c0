package driver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/conformance"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
func serve(t testing.TB, l net.Listener, options ...grpc.ServerOption) *conformance.Server {
	s := conformance.NewServer()
	g := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(conformance.MaxMessage))...)
	testpb.RegisterTestServiceServer(g, s)
	var wg sync.WaitGroup
	wg.Go(func() { g.Serve(l) })
	t.Cleanup(func() { g.Stop(); wg.Wait() })
	return s
}

// accept gives a shard its clients until the listener is closed.
func accept(s *Shard, l net.Listener, secure *tls.Config) {
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		s.Accept(nc, secure)
	}
}

// forward runs a shard in front of upstreams and returns its address.
func forward(t testing.TB, secure *tls.Config, upstreams func(*Shard) []*Upstream) (addr string, s *Shard, r *toUpstreams) {
	r = &toUpstreams{}
	s = New(patient(), r)
	r.all = upstreams(s)
	ctx, stop := context.WithCancel(context.Background())
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() { accept(s, l, secure) })
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { l.Close(); stop(); wg.Wait() })
	return l.Addr().String(), s, r
}

func dialTCP(addr string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) }
}

func connect(t testing.TB, addr string, creds credentials.TransportCredentials) testpb.TestServiceClient {
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(conformance.MaxMessage)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return testpb.NewTestServiceClient(c)
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

	for name, run := range conformance.Cases {
		t.Run(name, func(t *testing.T) {
			large := name == "large_unary" && testing.Short() // once, over one of them: server_stream has a message of 3 MiB
			var want conformance.Result
			run(t.Context(), direct, &want)
			for kind, c := range map[string]testpb.TestServiceClient{
				"plain": connect(t, plainAddr, insecure.NewCredentials()),
				"tls":   connect(t, tlsAddr, credentials.NewTLS(clientTLS)),
				"local": connect(t, localAddr, insecure.NewCredentials()),
			} {
				if large && kind != "plain" {
					continue
				}
				for range 2 {
					var got conformance.Result
					run(t.Context(), c, &got)
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s differs from direct:\n%.2000s", kind, diff)
					}
					if large {
						break
					}
				}
			}
		})
	}
	for _, s := range []*conformance.Server{plain, secured, inside} {
		for len(s.Cancelled) > 0 {
			<-s.Cancelled
		}
	}
	for _, s := range []*Shard{plainShard, tlsShard, localShard} {
		rests(t, s)
	}
}

// rests waits until nothing is kept of calls, of which the last may have been cancelled just now, and checks
// that no abuse was seen.
func rests(t *testing.T, s *Shard) {
	t.Helper()
	await.True(t, "nothing is kept of calls", func() bool { st := s.Stats(); return st.Buffered == 0 && st.Held == 0 })
	if st := s.Stats(); st.Abuses != (h2.Stats{}).Abuses {
		t.Errorf("%+v", st)
	}
}

func TestCancellationReachesTheNode(t *testing.T) {
	l := listen(t)
	node := serve(t, l)
	addr, _, _ := forward(t, nil, func(s *Shard) []*Upstream { return []*Upstream{s.Upstream(dialTCP(l.Addr().String()), nil)} })
	c := connect(t, addr, insecure.NewCredentials())
	ctx, cancel := context.WithCancel(t.Context())
	s, err := c.StreamingOutputCall(
		ctx,
		&testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 1}, {IntervalUs: -1}}},
	)
	if err == nil {
		_, err = s.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-node.Cancelled
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
	calls := short.Of(25, 6)
	var wg sync.WaitGroup
	for range 4 {
		c := connect(t, addr, insecure.NewCredentials())
		for i := range 32 {
			wg.Go(func() {
				for k := range calls {
					n := int32(i*k*37%90000 + 1)
					a, err := c.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: n, Payload: conformance.Payload(n / 2)})
					if err != nil || !bytes.Equal(a.Payload.Body, conformance.Payload(n).Body) {
						t.Errorf("call %d/%d: %v", i, k, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if s := shard.Stats(); s.Calls != uint64(4*32*calls) || r.done.Load() != int64(4*32*calls) || s.Buffered != 0 {
		t.Errorf("%d calls, %d done, %+v", s.Calls, r.done.Load(), s)
	}
}

func TestNodeThatIsNotThere(t *testing.T) {
	const nobody = "127.0.0.1:1" // a port that was free may be another test's by now
	addr, _, _ := forward(t, nil, func(s *Shard) []*Upstream { return []*Upstream{s.Upstream(dialTCP(nobody), nil)} })
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
		err = s.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: conformance.Output(1)})
	}
	if err == nil {
		_, err = s.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan error)
	go func() { drained <- shard.Drain(t.Context(), nil) }()
	// The call goes on while its connection drains.
	for range 3 {
		if err := s.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: conformance.Output(1000)}); err != nil {
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
	for range short.Of(60, 20) {
		sizes = append(sizes, 1<<20)
	}
	s, err := c.StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{ResponseParameters: conformance.Output(sizes...)})
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
