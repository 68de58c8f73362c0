package restart

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ydb-sidecar/sidecar/internal/listen"
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
		answer := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			late.Store(true)
			return wrapperspb.Bytes(make([]byte, 1<<20)), decode(new(emptypb.Empty))
		}
		p.grpc.RegisterService(&grpc.ServiceDesc{
			ServiceName: "test", HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{{MethodName: "Answer", Handler: answer}},
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
