package main

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

	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The load is a point read of a row of 100 bytes by its key.
const (
	rows   = 1000
	create = `CREATE TABLE IF NOT EXISTS bench (id Uint64, payload Utf8, PRIMARY KEY (id))`
	read   = `DECLARE $id AS Uint64; SELECT id, payload FROM bench WHERE id = $id`
)

// call makes one call and says what went wrong.
type call func(ctx context.Context) error

func randomID() uint64 { return rand.Uint64N(rows) }

// fill creates the table and its rows through a sidecar.
func fill(ctx context.Context, client sidecarv1.SidecarClient) error {
	if _, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: create, Timeout: "20s"}); err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	payload := strings.Repeat("x", 100)
	request := &sidecarv1.BulkUpsertRequest{Table: "bench", Timeout: "20s"}
	for id := range uint64(rows) {
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

// overSidecar reads a random row through the plain gRPC API.
func overSidecar(client sidecarv1.SidecarClient) call {
	return func(ctx context.Context) error {
		answer, err := plainAnswer(ctx, client, randomID())
		if err == nil && len(answer.Rows) != 1 {
			err = fmt.Errorf("got %d rows; want 1", len(answer.Rows))
		}
		return err
	}
}

// plainAnswer asks for the row of a key through the plain gRPC API.
func plainAnswer(ctx context.Context, client sidecarv1.SidecarClient, key uint64) (*sidecarv1.ExecuteResponse, error) {
	return client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: read, Params: map[string]*sidecarv1.Value{"id": unsigned(key)}})
}

// direct is the best a client without a sidecar can do: sessions on every
// node, ready before the load begins, each called on its own node.
type direct struct {
	conns    []*grpc.ClientConn
	sessions chan directSession
	cancel   context.CancelFunc // ends the attach streams, and with them the sessions
}

type directSession struct {
	client Ydb_Query_V1.QueryServiceClient
	id     string
}

// dialNodes opens sessions on all nodes alike.
func dialNodes(ctx context.Context, nodes []stand.Node, sessions int) (*direct, error) {
	ctx, cancel := context.WithCancel(ctx)
	d := &direct{sessions: make(chan directSession, sessions), cancel: cancel}
	for _, node := range nodes {
		target := node.Address
		if !strings.HasPrefix(target, "unix:") {
			target = "passthrough:///" + target
		}
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			d.close()
			return nil, fmt.Errorf("dial node %d: %w", node.ID, err)
		}
		d.conns = append(d.conns, conn)
	}
	for i := range sessions {
		if err := d.open(ctx, Ydb_Query_V1.NewQueryServiceClient(d.conns[i%len(d.conns)])); err != nil {
			d.close()
			return nil, err
		}
	}
	return d, nil
}

func (d *direct) open(ctx context.Context, client Ydb_Query_V1.QueryServiceClient) error {
	ctx = withDatabase(ctx)
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
	d.sessions <- directSession{client, session.SessionId}
	return nil
}

func (d *direct) close() {
	d.cancel()
	for _, conn := range d.conns {
		_ = conn.Close() // nothing is in flight
	}
}

// read reads a random row on a session that nobody uses.
func (d *direct) read(ctx context.Context) error {
	found, err := d.execute(ctx, request{sql: read, params: map[string]value{"id": unsignedValue(randomID())}})
	if err == nil && found != 1 {
		err = fmt.Errorf("got %d rows; want 1", found)
	}
	return err
}

// execute sends a statement once, on a session that nobody uses, and counts the rows of its answer.
func (d *direct) execute(ctx context.Context, r request) (found int, err error) {
	var session directSession
	select {
	case session = <-d.sessions:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { d.sessions <- session }()
	parameters := make(map[string]*Ydb.TypedValue, len(r.params))
	for name, v := range r.params {
		parameters["$"+name] = v.typed
	}
	parts, err := session.client.ExecuteQuery(withDatabase(ctx), &Ydb_Query.ExecuteQueryRequest{
		SessionId: session.id,
		ExecMode:  Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{
			Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: r.sql}},
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
			return found, &ydbError{part.Status, fmt.Sprint(part.Issues)}
		}
		found += len(part.GetResultSet().GetRows())
	}
}

func withDatabase(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-ydb-database", "/local")
}

func unsigned(v uint64) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: v}}
}

func text(v string) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: v}}
}

// octets is the codec of messages that were encoded before; others it encodes.
type octets struct{ encoding.CodecV2 }

func (o octets) Marshal(v any) (mem.BufferSlice, error) {
	if data, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(data)}, nil
	}
	return o.CodecV2.Marshal(v)
}

// must encodes a message of ours, which cannot fail: it is complete and its texts are UTF-8.
func must(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return data
}

func kvID(n uint64) *sidecarv1.KvId { return &sidecarv1.KvId{Columns: []*sidecarv1.Value{unsigned(n)}} }
