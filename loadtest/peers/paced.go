package peers

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"google.golang.org/grpc"
)

// Paced serves as one node on a free port of the loopback interface until ctx ends. Each
// statement is answered a constant time after it came, with an answer that was built
// before, however many there are: it has no queue. The address is in the ready line.
func Paced(ctx context.Context, out io.Writer, service time.Duration) error {
	debug.SetGCPercent(Garbage)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("backend: %w", err)
	}
	p := newPause(service)
	s := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, r any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if info.FullMethod == Ydb_Table_V1.TableService_ExecuteDataQuery_FullMethodName {
				p.wait()
			}
			return h(ctx, r)
		}),
		grpc.StreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			if info.FullMethod == Ydb_Query_V1.QueryService_ExecuteQuery_FullMethodName {
				p.wait()
			}
			return h(server, stream)
		}))
	n := &backend{node: 1}
	Ydb_Table_V1.RegisterTableServiceServer(s, &tables{backend: n})
	Ydb_Query_V1.RegisterQueryServiceServer(s, &queries{backend: n})
	var serving sync.WaitGroup
	serving.Go(p.run)
	serving.Go(func() { _ = s.Serve(listener) }) // ends with Stop
	fmt.Fprintf(out, "ready node=%s\n", listener.Addr())
	<-ctx.Done()
	s.Stop() // its calls have left the pause when it returns
	close(p.line)
	serving.Wait()
	return nil
}

// pause keeps callers for a constant time. The timers of Go would not do: of a process that is
// idle they are up to a millisecond late. All wait equally long, so that the line is in the order
// of the instants at which they go, and one thread that sleeps for the first of them is enough.
type pause struct {
	d    time.Duration
	line chan waiting
}

type waiting struct {
	due  time.Time
	gone chan struct{}
}

func newPause(d time.Duration) *pause { return &pause{d: d, line: make(chan waiting, 1<<16)} }

func (p *pause) wait() {
	w := waiting{time.Now().Add(p.d), make(chan struct{})}
	p.line <- w
	<-w.gone
}

// run lets them go until the line is closed.
func (p *pause) run() {
	runtime.LockOSThread() // it ends with the thread: its timer slack is changed
	const setTimerSlack = 29
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 1, 0) // else it may be 50 us late: prctl(2)
	for w := range p.line {
		if left := time.Until(w.due); left > 0 {
			t := syscall.NsecToTimespec(left.Nanoseconds())
			_ = syscall.Nanosleep(&t, nil) // a signal makes one wait shorter
		}
		close(w.gone)
	}
}
