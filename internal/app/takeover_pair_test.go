package app

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/takeover"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// lateReader reads on only when it may.
type lateReader struct {
	net.Conn
	late *atomic.Bool
	may  chan struct{}
}

func (c lateReader) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.late.Load() {
		<-c.may
	}
	return n, err
}

// A process that was replaced does not end before the other one has the answers to
// the calls that it handed over, however late it reads them.
func TestPairFinishesAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late atomic.Bool
		p := &pair{grpc: grpc.NewServer(), http: new(http.Server)}
		p.grpc.RegisterService(&grpc.ServiceDesc{
			ServiceName: "test", HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{{MethodName: "Answer", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				late.Store(true)
				return wrapperspb.Bytes(make([]byte, 1<<20)), decode(new(emptypb.Empty))
			}}},
		}, nil)
		h := listen.NewChannel()
		serving := make(chan error, 1)
		go func() { serving <- p.grpc.Serve(h) }()

		near, far := net.Pipe()
		if !h.Pass(far) {
			t.Fatal("nobody accepts")
		}
		conns := make(chan net.Conn, 1)
		may := make(chan struct{})
		conns <- lateReader{near, &late, may}
		conn, err := grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				select {
				case conn := <-conns:
					return conn, nil
				default:
					return nil, net.ErrClosed
				}
			}))
		if err != nil {
			t.Fatal(err)
		}
		called := make(chan error, 1)
		go func() {
			called <- conn.Invoke(t.Context(), "/test/Answer", new(emptypb.Empty), new(wrapperspb.BytesValue))
		}()
		synctest.Wait() // the handler is over, and its answer is on its way
		if !late.Load() {
			t.Fatal("the call did not arrive")
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.finish(t.Context())
			p.grpc.Stop()
		}()
		synctest.Wait()
		close(may)
		if err := <-called; err != nil {
			t.Errorf("the answer was lost: %v", err)
		}
		<-ended
		if err := <-serving; err != nil {
			t.Error(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A process that asks to take over and then hangs keeps nobody else from it.
func TestAProcessThatHangsWhileItTakesOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := start(t, newCluster(t).Endpoint(), "takeover.socket="+path)
	s.restart.SetLimit(time.Millisecond)
	for range 3 {
		link, err := takeover.Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if who, left, err := link.Ask(takeover.Process{PID: os.Getpid()}); err != nil || len(left) == 0 {
			t.Fatalf("%+v offers %d listeners, %v", who, len(left), err)
		} else {
			for _, l := range left {
				_ = l.Close()
			}
		}
		// It hangs until it is told that it is too late.
		err = link.Receive(func(string, net.Conn) {})
		if !Refused(err) {
			t.Errorf("it was told %v; want a refusal", err)
		}
		if err := link.Receive(func(string, net.Conn) {}); err != nil { // the end of the link: the next one may ask
			t.Error(err)
		}
		_ = link.Close()
	}
	if s.restart.Replaced() {
		t.Error("it was replaced")
	}
	if _, err := s.client.Status(t.Context(), new(sidecarv1.StatusRequest)); err != nil {
		t.Errorf("it does not serve on: %v", err)
	}
}

// A process that takes over knows the nodes that operators have banned and drained.
func TestOrdersSurviveATakeover(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	url := newCluster(t).Endpoint()
	old := start(t, url, "takeover.socket="+path)
	old.core.judge.Adopt([]pessimize.Order{{Node: 1, Banned: true, Until: time.Now().Add(time.Hour).UTC(), Reason: "a disk"}, {Node: 2, Drained: true}})
	c, set, err := (&Origin{Assignments: []Assignment{
		{"ydb.url=" + url, "test"}, {"grpc.listen=127.0.0.1:0", "test"}, {"http.listen=127.0.0.1:0", "test"}, {"admin.listen=127.0.0.1:0", "test"}, {"takeover.socket=" + path, "test"},
	}}).Load()
	if err != nil {
		t.Fatal(err)
	}
	next, err := Replace(c, set, "1.2.4", new(lines))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	defer next.grpc.Stop() // which Run would do
	if diff := cmp.Diff(old.core.judge.Orders(), next.core.judge.Orders()); diff != "" || len(next.core.judge.Orders()) != 2 {
		t.Error(diff)
	}
	var many []pessimize.Order
	for id := range cluster.NodeID(1000) {
		many = append(many, pessimize.Order{Node: id + 1, Banned: true, Reason: strings.Repeat("\"", 200)})
	}
	old.core.judge.Adopt(many)
	if n := len(old.notes()); n < takeover.MaxNotes/4 || n > takeover.MaxNotes {
		t.Errorf("notes of %d bytes; want as many orders as have room in %d", n, takeover.MaxNotes)
	}
}
