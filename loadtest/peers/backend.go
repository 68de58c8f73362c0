package peers

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// Garbage is the GC percentage of load and backends: they shall take little of the
// machine that they share with the proxy.
const Garbage = 800

// listenerName is the name of a backend's address in the ready line.
func listenerName(node int, secure bool) string {
	name := "node_" + strings.Repeat("i", node)
	if secure {
		name += "_tls"
	}
	return name
}

// Backends serves as the three nodes, plain and with the certificate in dir, on free
// ports of the loopback interface, until ctx ends. The addresses are in the ready line.
func Backends(ctx context.Context, out io.Writer, dir string) error {
	debug.SetGCPercent(Garbage)
	certificate, err := tls.LoadX509KeyPair(certFile(dir), keyFile(dir))
	if err != nil {
		return fmt.Errorf("backends: %w", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}}
	var servers []*grpc.Server
	var serving sync.WaitGroup
	defer serving.Wait()
	defer func() {
		for _, s := range servers {
			s.Stop()
		}
	}()
	ready := "ready"
	for node := 1; node <= nodes; node++ {
		n := &backend{node: node}
		for _, secure := range []bool{false, true} {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return fmt.Errorf("backends: %w", err)
			}
			var options []grpc.ServerOption
			if secure {
				options = append(options, grpc.Creds(credentials.NewTLS(config)))
			}
			s := grpc.NewServer(options...)
			Ydb_Table_V1.RegisterTableServiceServer(s, &tables{backend: n})
			Ydb_Query_V1.RegisterQueryServiceServer(s, &queries{backend: n})
			servers = append(servers, s)
			serving.Go(func() { _ = s.Serve(listener) }) // ends with Stop
			ready += fmt.Sprintf(" %s=%s", listenerName(node, secure), listener.Addr())
		}
	}
	fmt.Fprintln(out, ready)
	<-ctx.Done()
	return nil
}

// backend is one node. Its answers are built once.
type backend struct {
	node     int
	answers  sync.Map // of answerKey to the message
	sessions atomic.Int64
}

type answerKey struct {
	stream, last     bool
	size, part, rows int
}

// wanted reads what a request asks for.
func wanted(parameters map[string]*Ydb.TypedValue) (size, parts, rows int, err error) {
	number := func(name string) int { return int(parameters[name].GetValue().GetUint64Value()) }
	size, parts, rows = number(sizeParameter), number(partsParameter), number(rowsParameter)
	if size < 0 || size > maxSize || parts < 1 || parts > maxParts || rows < 0 || rows > maxRows ||
		rows > 0 && (size < 10 || size*rows > maxSize) {
		return 0, 0, 0, status.Errorf(codes.InvalidArgument,
			"%d parts of %d bytes in %d rows; must be at most %d of %d in %d, and at least 10 bytes in each row",
			parts, size, rows, maxParts, maxSize, maxRows)
	}
	return size, parts, rows, nil
}

type tables struct {
	Ydb_Table_V1.UnimplementedTableServiceServer
	*backend
}

func (t *tables) ExecuteDataQuery(_ context.Context, r *Ydb_Table.ExecuteDataQueryRequest) (*Ydb_Table.ExecuteDataQueryResponse, error) {
	size, _, _, err := wanted(r.GetParameters())
	if err != nil {
		return nil, err
	}
	key := answerKey{size: size}
	if answer, ok := t.answers.Load(key); ok {
		return answer.(*Ydb_Table.ExecuteDataQueryResponse), nil
	}
	answer, err := dataQueryAnswer(t.node, size)
	if err == nil {
		t.answers.Store(key, answer)
	}
	return answer, err
}

type queries struct {
	Ydb_Query_V1.UnimplementedQueryServiceServer
	*backend
}

// Sessions are what a sidecar asks for to see whether a node that is out of use works.

func (q *queries) CreateSession(context.Context, *Ydb_Query.CreateSessionRequest) (*Ydb_Query.CreateSessionResponse, error) {
	return &Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_SUCCESS,
		SessionId: sessionID(q.node, int(q.sessions.Add(1))), NodeId: int64(q.node)}, nil
}

func (q *queries) DeleteSession(context.Context, *Ydb_Query.DeleteSessionRequest) (*Ydb_Query.DeleteSessionResponse, error) {
	return &Ydb_Query.DeleteSessionResponse{Status: Ydb.StatusIds_SUCCESS}, nil
}

func (q *queries) AttachSession(_ *Ydb_Query.AttachSessionRequest, stream Ydb_Query_V1.QueryService_AttachSessionServer) error {
	if err := stream.Send(&Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (q *queries) ExecuteQuery(r *Ydb_Query.ExecuteQueryRequest, stream Ydb_Query_V1.QueryService_ExecuteQueryServer) error {
	size, parts, rows, err := wanted(r.GetParameters())
	if err != nil {
		return err
	}
	for part := range parts {
		key := answerKey{stream: true, last: part == parts-1, size: size, part: part, rows: rows}
		answer, ok := q.answers.Load(key)
		if !ok {
			answer = queryAnswer(q.node, size, part, rows, key.last)
			q.answers.Store(key, answer)
		}
		if err := stream.Send(answer.(*Ydb_Query.ExecuteQueryResponsePart)); err != nil {
			return err
		}
	}
	return nil
}
