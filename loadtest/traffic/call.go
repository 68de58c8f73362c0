// Package traffic makes the calls that several experiments send: point reads, statements and records,
// over YDB's own protocol, the plain API over gRPC and over HTTP, with or without a sidecar between.
//
// What always holds: an answer is looked at, and a wrong one is an error. Nothing here measures.
package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The load is a point read of a row of 100 bytes by its key.
const (
	Rows   = 1000
	create = `CREATE TABLE IF NOT EXISTS bench (id Uint64, payload Utf8, PRIMARY KEY (id))`
	Read   = `DECLARE $id AS Uint64; SELECT id, payload FROM bench WHERE id = $id`
)

// RandomID returns the key of one of the rows that Fill makes.
func RandomID() uint64 { return rand.Uint64N(Rows) }

// Fill creates the table and its rows through a sidecar.
func Fill(ctx context.Context, client sidecarv1.SidecarClient) error {
	if _, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: create, Timeout: "20s"}); err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	payload := strings.Repeat("x", 100)
	request := &sidecarv1.BulkUpsertRequest{Table: "bench", Timeout: "20s"}
	for id := range uint64(Rows) {
		request.Rows = append(request.Rows, &sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{
			"id":      {Kind: &sidecarv1.Value_Uint64Value{Uint64Value: id}},
			"payload": {Kind: &sidecarv1.Value_TextValue{TextValue: payload}},
		}})
	}
	if _, err := client.BulkUpsert(ctx, request); err != nil {
		return fmt.Errorf("fill the table: %w", err)
	}
	return nil
}

// OverSidecar reads a random row through the plain gRPC API.
func OverSidecar(client sidecarv1.SidecarClient) lab.Call {
	return func(ctx context.Context) error {
		answer, err := PlainAnswer(ctx, client, RandomID())
		if err == nil && len(answer.Rows) != 1 {
			err = fmt.Errorf("got %d rows; want 1", len(answer.Rows))
		}
		return err
	}
}

// PlainAnswer asks for the row of a key through the plain gRPC API.
func PlainAnswer(ctx context.Context, client sidecarv1.SidecarClient, key uint64) (*sidecarv1.ExecuteResponse, error) {
	return client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: Read, Params: map[string]*sidecarv1.Value{"id": Unsigned(key)}})
}

// Direct is the best a client without a sidecar can do: sessions on every
// node, ready before the load begins, each called on its own node.
type Direct struct {
	Conns    []*grpc.ClientConn
	Sessions chan DirectSession
	Cancel   context.CancelFunc // ends the attach streams, and with them the sessions
}

// DirectSession is a session on a node.
type DirectSession struct {
	Client Ydb_Query_V1.QueryServiceClient
	ID     string
}

// DialNodes opens sessions on all nodes alike.
func DialNodes(ctx context.Context, nodes []stand.Node, sessions int) (*Direct, error) {
	ctx, cancel := context.WithCancel(ctx)
	d := &Direct{Sessions: make(chan DirectSession, sessions), Cancel: cancel}
	for _, node := range nodes {
		target := node.Address
		if !strings.HasPrefix(target, "unix:") {
			target = "passthrough:///" + target
		}
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("dial node %d: %w", node.ID, err)
		}
		d.Conns = append(d.Conns, conn)
	}
	for i := range sessions {
		if err := d.Open(ctx, Ydb_Query_V1.NewQueryServiceClient(d.Conns[i%len(d.Conns)])); err != nil {
			d.Close()
			return nil, err
		}
	}
	return d, nil
}

// Open makes a session, attaches to it and keeps it for calls.
func (d *Direct) Open(ctx context.Context, client Ydb_Query_V1.QueryServiceClient) error {
	ctx = WithDatabase(ctx)
	session, err := client.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
	if err != nil || session.Status != Ydb.StatusIds_SUCCESS {
		return fmt.Errorf("create a session: %w, %v", err, session.GetIssues())
	}
	attached, err := client.AttachSession(ctx, &Ydb_Query.AttachSessionRequest{SessionId: session.SessionId})
	if err != nil {
		return fmt.Errorf("attach to a session: %w", err)
	}
	if state, err := attached.Recv(); err != nil || state.Status != Ydb.StatusIds_SUCCESS {
		return fmt.Errorf("attach to a session: %w, %v", err, state.GetIssues())
	}
	d.Sessions <- DirectSession{client, session.SessionId}
	return nil
}

// Close ends the sessions and closes the connections.
func (d *Direct) Close() {
	d.Cancel()
	for _, conn := range d.Conns {
		_ = conn.Close() // nothing is in flight
	}
}

// Read reads a random row on a session that is not in use.
func (d *Direct) Read(ctx context.Context) error {
	found, err := d.execute(ctx, Request{SQL: Read, Params: map[string]Value{"id": UnsignedValue(RandomID())}})
	if err == nil && found != 1 {
		err = fmt.Errorf("got %d rows; want 1", found)
	}
	return err
}

// execute sends a statement once, on a session that is not in use, and counts the rows of its answer.
func (d *Direct) execute(ctx context.Context, r Request) (found int, err error) {
	var session DirectSession
	select {
	case session = <-d.Sessions:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { d.Sessions <- session }()
	parameters := make(map[string]*Ydb.TypedValue, len(r.Params))
	for name, v := range r.Params {
		parameters["$"+name] = v.Typed
	}
	parts, err := session.Client.ExecuteQuery(WithDatabase(ctx), &Ydb_Query.ExecuteQueryRequest{
		SessionId: session.ID,
		ExecMode:  Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{
			Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: r.SQL}},
		TxControl:  r.control(),
		Parameters: parameters,
	})
	if err != nil {
		return 0, err
	}
	for {
		part, err := parts.Recv()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		if part.Status != Ydb.StatusIds_SUCCESS {
			return found, &YDBError{part.Status, fmt.Sprint(part.Issues)}
		}
		found += len(part.GetResultSet().GetRows())
	}
}

// WithDatabase adds the header that names the database.
func WithDatabase(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-ydb-database", "/local")
}

// Unsigned returns a Uint64 of the plain API.
func Unsigned(v uint64) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: v}}
}

// Text returns a Utf8 of the plain API.
func Text(v string) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: v}}
}

// Encoded is the codec of messages that were encoded before; others it encodes.
type Encoded struct{ encoding.CodecV2 }

// Marshal returns bytes as they are, and encodes anything else.
func (o Encoded) Marshal(v any) (mem.BufferSlice, error) {
	if data, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(data)}, nil
	}
	return o.CodecV2.Marshal(v)
}

// Must encodes a message of ours, which cannot fail: it is complete and its texts are UTF-8.
func Must(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return data
}

// KVID returns the id of a row of the key-value API whose key is one Uint64.
func KVID(n uint64) *sidecarv1.KvId { return &sidecarv1.KvId{Columns: []*sidecarv1.Value{Unsigned(n)}} }
