package hostile

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a gRPC server with the health service, which counts what it was asked, and returns its address.
func serve(t *testing.T) (address string, asked *atomic.Int64, bytes *atomic.Int64) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked, bytes = new(atomic.Int64), new(atomic.Int64)
	s := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			asked.Add(1)
			bytes.Add(int64(len(in.(*healthpb.HealthCheckRequest).Service)))
			return next(ctx, in)
		}),
	)
	healthpb.RegisterHealthServer(s, health.NewServer())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(listener) // it ends with Stop
	}()
	t.Cleanup(func() { s.Stop(); <-ended })
	return listener.Addr().String(), asked, bytes
}

const checkPath = "/grpc.health.v1.Health/Check"

// A peer is understood by a server that knows nothing of it, also beyond the windows that it begins with.
func TestPeer(t *testing.T) {
	address, asked, bytes := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	p, err := dialPeer(ctx, address, true)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for n, size := range []int{0, 10, 1_000_000} {
		if err := p.unary(ctx, checkPath, "mallory",
			message(&healthpb.HealthCheckRequest{Service: strings.Repeat("x", size)})); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if got := asked.Load(); got != int64(n+1) {
			t.Errorf("%d bytes: the server was asked %d times", size, got)
		}
	}
	if got := bytes.Load(); got != 1_000_010 {
		t.Errorf("the server read %d bytes", got)
	}
	if err := p.unary(ctx, checkPath, "", bomb(&healthpb.HealthCheckRequest{Service: strings.Repeat("x", 100_000)}),
		"grpc-encoding", "gzip"); err != nil {
		t.Error(err)
	}
	if got := bytes.Load(); got != 1_000_010 { // this server inflates nothing: it answers UNIMPLEMENTED
		t.Errorf("the server read %d bytes", got)
	}
}

// What a peer without credit is to be sent stays where it is.
func TestPeerWithoutCredit(t *testing.T) {
	address, asked, _ := serve(t)
	p, err := dialPeer(t.Context(), address, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := p.unary(short, checkPath, "", message(new(healthpb.HealthCheckRequest))); err == nil || asked.Load() != 1 {
		t.Errorf("the server was asked %d times, and its answer came: %v", asked.Load(), err)
	}
}

// An attacker that is told to be idle for most of the time is, and ends when it is told to.
func TestPace(t *testing.T) {
	a := &attacker{share: 0.05, begun: time.Now()}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begun := time.Now()
	a.burn(ctx)
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it went on for %v", took)
	}
	if Main(t.Context(), []string{"a", "b", "c", "0.5", "unheard-of"}) == nil ||
		Main(t.Context(), []string{"a", "b", "c", "much", Burn}) == nil {
		t.Error("nonsense was taken")
	}
}

func TestNamesOfAttacks(t *testing.T) {
	seen := map[string]bool{Burn: true}
	for _, a := range Attacks {
		if seen[a.Name] || a.Text == "" || a.run == nil || strings.ContainsAny(a.Name, " +") {
			t.Errorf("%q", a.Name)
		}
		seen[a.Name] = true
	}
}

// An attacker has no time left over from when it rested, nor has anybody who comes while it makes up for what it took.
func TestShareOfAnAttacker(t *testing.T) {
	begun := time.Now()
	a := &attacker{share: 0.5, begun: begun}
	for i, step := range []struct{ at, cpu, owes time.Duration }{
		{100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond},
		{200 * time.Millisecond, 100 * time.Millisecond, 0},
		{10 * time.Second, 100 * time.Millisecond, -9800 * time.Millisecond}, // of which saved is left
		{10 * time.Second, 200 * time.Millisecond, 200*time.Millisecond - saved},
	} {
		if got := a.owes(begun.Add(step.at), step.cpu); got != step.owes {
			t.Errorf("step %d: it owes %v; want %v", i, got, step.owes)
		}
	}
	a = &attacker{share: 1e-9, begun: time.Now()}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	var all sync.WaitGroup
	all.Go(func() { a.pace(ctx) })
	for a.mu.TryLock() { // it stays so: who comes waits as well
		a.mu.Unlock()
		if ctx.Err() != nil {
			t.Fatal("nobody waits")
		}
		runtime.Gosched()
	}
	cancel()
	all.Wait()
}
