package officialtest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/config"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/clustertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// startCluster runs a cluster in this process for the length of the test.
func startCluster(t testing.TB, change func(*devcluster.Config)) *devcluster.Cluster {
	t.Helper()
	return clustertest.Start(t, change)
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// open connects the official client as an application would.
func open(t testing.TB, endpoint string, options ...ydb.Option) *ydb.Driver {
	t.Helper()
	db, err := ydb.Open(testContext(t), endpoint, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := db.Close(ctx); err != nil {
			t.Errorf("close the driver: %v", err)
		}
	})
	return db
}

// execute runs a statement that must succeed.
func execute(t testing.TB, db *ydb.Driver, sql string, options ...query.ExecuteOption) {
	t.Helper()
	if err := db.Query().Exec(testContext(t), sql, options...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// one reads the only value of the only row.
func one[T any](t testing.TB, db *ydb.Driver, sql string, options ...query.ExecuteOption) T {
	t.Helper()
	var value T
	row, err := db.Query().QueryRow(testContext(t), sql, options...)
	if err == nil {
		err = row.Scan(&value)
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// wantStatus checks that err is the YDB status, and no transport error.
func wantStatus(t testing.TB, what string, err error, want Ydb.StatusIds_StatusCode) {
	t.Helper()
	if !ydb.IsOperationError(err, want) || ydb.IsTransportError(err) {
		t.Errorf("%s: %v; want the status %v", what, err, want)
	}
}

// recorder sees what goes over the official client's wire.
type recorder struct {
	mu     sync.Mutex // guards events
	events []event
}

// event is one message of one call, or its end.
type event struct {
	method  string
	message proto.Message // nil at the end
	sent    bool
	err     error // at the end; nil or io.EOF are good
}

func (r *recorder) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// of returns the events of a method, named without its service.
func (r *recorder) of(method string) []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []event
	for _, e := range r.events {
		if strings.HasSuffix(e.method, "/"+method) {
			list = append(list, e)
		}
	}
	return list
}

// option makes a driver record.
func (r *recorder) option() ydb.Option {
	return ydb.With(config.WithGrpcOptions(
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, response any,
			cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			r.add(event{method: method, message: request.(proto.Message), sent: true})
			err := invoke(ctx, method, request, response, cc, options...)
			if err == nil {
				r.add(event{method: method, message: proto.Clone(response.(proto.Message))})
			}
			r.add(event{method: method, err: err})
			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			stream grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := stream(ctx, d, cc, method, options...)
			return &recordedStream{s, r, method}, err
		}),
	))
}

type recordedStream struct {
	grpc.ClientStream
	r      *recorder
	method string
}

func (s *recordedStream) SendMsg(m any) error {
	s.r.add(event{method: s.method, message: proto.Clone(m.(proto.Message)), sent: true})
	return s.ClientStream.SendMsg(m)
}

func (s *recordedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.r.add(event{method: s.method, err: err})
		return err
	}
	s.r.add(event{method: s.method, message: proto.Clone(m.(proto.Message))})
	return nil
}
