package systemtest

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ydb-sidecar/sidecar/proof/contract"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// told is all that a caller is told, except what differs from call to call.
type told struct {
	Answer   proto.Message
	Code     codes.Code
	Message  string
	Details  []proto.Message
	Trailers []string
}

// answerTo is the method, of those whose calls may be turns, of a request, and what to read its answer into.
func answerTo(req proto.Message) (path string, answer interface {
	proto.Message
	GetInfo() *sidecarv1.Info
}) {
	switch req.(type) {
	case *sidecarv1.ExecuteRequest:
		return sidecarv1.Sidecar_Execute_FullMethodName, new(sidecarv1.ExecuteResponse)
	case *sidecarv1.BeginRequest:
		return sidecarv1.Sidecar_Begin_FullMethodName, new(sidecarv1.BeginResponse)
	case *sidecarv1.CommitRequest:
		return sidecarv1.Sidecar_Commit_FullMethodName, new(sidecarv1.CommitResponse)
	case *sidecarv1.RollbackRequest:
		return sidecarv1.Sidecar_Rollback_FullMethodName, new(sidecarv1.RollbackResponse)
	case *sidecarv1.KvGetRequest:
		return sidecarv1.KeyValue_Get_FullMethodName, new(sidecarv1.KvGetResponse)
	case *sidecarv1.KvBatchGetRequest:
		return sidecarv1.KeyValue_BatchGet_FullMethodName, new(sidecarv1.KvBatchGetResponse)
	case *sidecarv1.KvPutRequest:
		return sidecarv1.KeyValue_Put_FullMethodName, new(sidecarv1.KvPutResponse)
	}
	return sidecarv1.KeyValue_Delete_FullMethodName, new(sidecarv1.KvDeleteResponse)
}

// someNode finds the number of a node in an error: any node may serve a call without a session.
var someNode = regexp.MustCompile(`(\bnode )\d+`)

// ask makes a call and returns what came of it.
func ask(ctx context.Context, conn *grpc.ClientConn, req proto.Message, packed bool) (out told) {
	var trailer metadata.MD
	options := []grpc.CallOption{grpc.Trailer(&trailer)}
	if packed {
		options = append(options, grpc.UseCompressor(gzip.Name))
	}
	path, answer := answerTo(req)
	err := conn.Invoke(ctx, path, req, answer, options...)
	st := status.Convert(err)
	out.Code, out.Message = st.Code(), someNode.ReplaceAllString(st.Message(), "$1")
	for _, d := range st.Details() {
		if e, ok := d.(*sidecarv1.Error); ok {
			e.Message = someNode.ReplaceAllString(e.Message, "$1")
		}
		out.Details = append(out.Details, d.(proto.Message))
	}
	for name := range trailer {
		out.Trailers = append(out.Trailers, name)
	}
	slices.Sort(out.Trailers)
	if err == nil {
		i := answer.GetInfo()
		i.NodeId, i.QueueMs, i.AcquireMs, i.HopMs, i.ServerMs = 0, 0, 0, 0, 0
		if e, ok := answer.(*sidecarv1.ExecuteResponse); ok && e.Stats != nil {
			e.Stats = &sidecarv1.Stats{Tables: e.Stats.Tables}
		}
		out.Answer = answer
	}
	return out
}

func textValue(s string) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: s}}
}

func intValue(n int64) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: n}}
}

func kvID(n int64) *sidecarv1.KvId { return &sidecarv1.KvId{Columns: []*sidecarv1.Value{intValue(n)}} }

// fillTurns makes the tables of the calls that are compared, and a table with many rows.
func fillTurns(ctx context.Context, t *testing.T, client sidecarv1.SidecarClient) {
	t.Helper()
	if _, err := client.Execute(
		ctx,
		&sidecarv1.ExecuteRequest{Sql: "CREATE TABLE turns (id Int64, body Utf8, PRIMARY KEY (id))", Timeout: "20s"},
	); err != nil {
		t.Fatal(err)
	}
	for _, sql := range contract.TurnSQL {
		if _, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: sql, Timeout: "20s"}); err != nil {
			t.Fatal(err)
		}
	}
	var many strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&many, ",(%d,'a body of some length')", i)
	}
	if _, err := client.Execute(
		ctx, &sidecarv1.ExecuteRequest{Sql: "UPSERT INTO turns (id, body) VALUES " + many.String()[1:], Timeout: "20s"},
	); err != nil {
		t.Fatal(err)
	}
}

// A statement that is sent in the turn of a shard, and one that a goroutine waits for, are answered
// alike. ydb.client=grpc has only the latter.
func TestATurnAndAGoroutineAnswerAlike(t *testing.T) {
	c := startCluster(t, nil)
	clients, conns := map[string]sidecarv1.SidecarClient{}, map[string]*grpc.ClientConn{}
	for _, client := range []string{"h2", "grpc"} {
		s := startSidecar(t, c, nil, "ydb.client="+client, "pool.min=2", contract.TurnTables)
		conns[client], clients[client] = dial(t, s.GRPC)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	fillTurns(ctx, t, clients["grpc"])
	for _, client := range clients { // the connections to nodes are there then, without which there are no turns
		for range 30 {
			if _, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	const point = "DECLARE $id AS Int64; SELECT id, body FROM turns WHERE id = $id"
	params := map[string]*sidecarv1.Value{"id": intValue(7)}
	newer := &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}
	newer.ProtoReflect().SetUnknown([]byte("\xf8\x7f\x01"))
	for _, one := range []struct {
		name   string
		req    proto.Message
		header []string
		fault  map[string]any // of ExecuteQuery at each node
		packed bool
	}{
		{name: "a_number", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1 AS a"}},
		{name: "a_point_read", req: &sidecarv1.ExecuteRequest{Sql: point, Params: params}},
		{name: "no_row", req: &sidecarv1.ExecuteRequest{Sql: point, Params: map[string]*sidecarv1.Value{"$id": intValue(-7)}}},
		{name: "a_write", req: &sidecarv1.ExecuteRequest{Sql: "UPSERT INTO turns (id, body) VALUES (1, 'b')", Mode: "serializable_rw"}},
		{name: "two_sets", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1 AS a; SELECT 2 AS b"}},
		{name: "many_rows", req: &sidecarv1.ExecuteRequest{Sql: "SELECT id, body FROM turns ORDER BY id", Mode: "snapshot_ro"}},
		{name: "limited",
			req: &sidecarv1.ExecuteRequest{Sql: "SELECT id, body FROM turns ORDER BY id", Limits: &sidecarv1.Limits{Rows: 10}}},
		{name: "statistics", req: &sidecarv1.ExecuteRequest{Sql: point, Params: params, Stats: "basic"}},
		{name: "wrong_type", req: &sidecarv1.ExecuteRequest{Sql: point, Params: map[string]*sidecarv1.Value{"id": textValue("x")}}},
		{name: "named_type",
			req: &sidecarv1.ExecuteRequest{Sql: "SELECT $p AS p", Params: map[string]*sidecarv1.Value{"p": intValue(3)},
				Types: map[string]string{"p": "Uint8"}}},
		{name: "no_statement", req: &sidecarv1.ExecuteRequest{}},
		{name: "not_sql", req: &sidecarv1.ExecuteRequest{Sql: "SELEC 1"}},
		{name: "no_table", req: &sidecarv1.ExecuteRequest{Sql: "SELECT * FROM nothing"}},
		{name: "no_mode", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Mode: "x"}},
		{name: "no_duration", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "x"}},
		{name: "no_class", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Priority: "x"}},
		{name: "no_class_in_a_header", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}, header: []string{"x-ydb-priority", "x"}},
		{name: "batch", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1"},
			header: []string{"x-ydb-priority", "batch", "x-sidecar-app", "someone"}},
		{name: "not_an_app", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}, header: []string{"x-sidecar-app", strings.Repeat("a", 1000)}},
		{name: "traced", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1"},
			header: []string{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
		{name: "newer", req: newer},
		{name: "compressed", req: &sidecarv1.ExecuteRequest{Sql: point, Params: params}, packed: true},
		{name: "large_headers", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}, header: []string{"x-large", strings.Repeat("a", 40<<10)}},
		{name: "a_large_request",
			req: &sidecarv1.ExecuteRequest{Sql: "SELECT $p AS p",
				Params: map[string]*sidecarv1.Value{"p": textValue(strings.Repeat("x", 100<<10))}}},
		{name: "refused_until_the_time_is_up",
			req:   &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Idempotent: true, Timeout: "300ms"},
			fault: map[string]any{"status": "UNAVAILABLE"}},
		{name: "lost_in_doubt", req: &sidecarv1.ExecuteRequest{Sql: "UPSERT INTO turns (id, body) VALUES (2, 'b')"},
			fault: map[string]any{"status": "UNDETERMINED", "after": true}},
		{name: "refused",
			req:   &sidecarv1.ExecuteRequest{Sql: "UPSERT INTO turns (id, body) VALUES (3, 'b')", Timeout: "300ms"},
			fault: map[string]any{"status": "PRECONDITION_FAILED"}},
		{name: "an_error_of_grpc", req: &sidecarv1.ExecuteRequest{Sql: "UPSERT INTO turns (id, body) VALUES (4, 'b')"},
			fault: map[string]any{"status": "grpc:INTERNAL", "after": true}},
		{name: "get", req: &sidecarv1.KvGetRequest{Table: "rows", Id: kvID(1)}},
		{name: "get_null", req: &sidecarv1.KvGetRequest{Table: "rows", Id: kvID(2)}},
		{name: "get_none", req: &sidecarv1.KvGetRequest{Table: "rows", Id: kvID(3)}},
		{name: "get_version", req: &sidecarv1.KvGetRequest{Table: "versions", Id: kvID(1)}},
		{name: "get_known_version",
			req: &sidecarv1.KvGetRequest{Table: "versions", Id: kvID(1), Condition: &sidecarv1.KvCondition{NoneMatch: []string{"5"}}}},
		{name: "get_other_version",
			req: &sidecarv1.KvGetRequest{Table: "versions", Id: kvID(1), Condition: &sidecarv1.KvCondition{Match: []string{"4"}}}},
		{name: "get_of_a_missing_table", req: &sidecarv1.KvGetRequest{Table: "none", Id: kvID(1)}},
		{name: "get_of_a_closed_table", req: &sidecarv1.KvGetRequest{Table: "turns", Id: kvID(1)}},
		{name: "get_without_an_id", req: &sidecarv1.KvGetRequest{Table: "rows"}},
		{name: "get_wrong_type",
			req: &sidecarv1.KvGetRequest{Table: "rows", Id: &sidecarv1.KvId{Columns: []*sidecarv1.Value{textValue("x")}}}},
		{name: "get_refused", req: &sidecarv1.KvGetRequest{Table: "rows", Id: kvID(1), Timeout: "300ms"},
			fault: map[string]any{"status": "PRECONDITION_FAILED"}},
		{name: "get_no_duration", req: &sidecarv1.KvGetRequest{Table: "rows", Id: kvID(1), Timeout: "x"}},
		{name: "get_compressed", req: &sidecarv1.KvGetRequest{Table: "rows", Id: kvID(1)}, packed: true},
		{name: "get_many", req: &sidecarv1.KvBatchGetRequest{Table: "rows", Ids: []*sidecarv1.KvId{kvID(2), kvID(7), kvID(1), kvID(2)}}},
		{name: "get_many_of_none", req: &sidecarv1.KvBatchGetRequest{Table: "rows"}},
		{name: "get_many_with_a_bad_one", req: &sidecarv1.KvBatchGetRequest{Table: "rows", Ids: []*sidecarv1.KvId{kvID(2), {}}}},
		{name: "put", req: &sidecarv1.KvPutRequest{Table: "rows", Id: kvID(10), Value: []byte("ten")}},
		{name: "put_not_utf8", req: &sidecarv1.KvPutRequest{Table: "rows", Id: kvID(10), Value: []byte("\xff")}},
		{name: "put_if_absent_and_it_is_there",
			req: &sidecarv1.KvPutRequest{Table: "rows", Id: kvID(1), Value: []byte("x"),
				Condition: &sidecarv1.KvCondition{NoneMatch: []string{"*"}}}},
		{name: "put_if_another_version",
			req: &sidecarv1.KvPutRequest{Table: "versions", Id: kvID(1), Value: []byte("x"),
				Condition: &sidecarv1.KvCondition{Match: []string{"4"}}}},
		{name: "put_into_a_table_to_read", req: &sidecarv1.KvPutRequest{Table: "seen", Id: kvID(1), Value: []byte("x")}},
		{name: "put_in_doubt",
			req: &sidecarv1.KvPutRequest{Table: "rows", Id: kvID(11), Value: []byte("x"),
				Condition: &sidecarv1.KvCondition{NoneMatch: []string{"*"}}},
			fault: map[string]any{"status": "UNDETERMINED"}},
		{name: "delete", req: &sidecarv1.KvDeleteRequest{Table: "rows", Id: kvID(10)}},
		{name: "delete_none", req: &sidecarv1.KvDeleteRequest{Table: "rows", Id: kvID(12)}},
		{name: "delete_if_another_version",
			req: &sidecarv1.KvDeleteRequest{Table: "versions", Id: kvID(1), Condition: &sidecarv1.KvCondition{Match: []string{"4"}}}},
		{name: "bad_session", req: &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "300ms"},
			fault: map[string]any{"status": "BAD_SESSION"}},
	} {
		t.Run(one.name, func(t *testing.T) {
			got := map[string]told{}
			for name, conn := range conns {
				if one.fault != nil {
					fault := map[string]any{"share": 1, "methods": []string{"ExecuteQuery"}}
					for k, v := range one.fault {
						fault[k] = v
					}
					c.everywhere(t, "errors", fault)
				}
				got[name] = ask(metadata.AppendToOutgoingContext(ctx, one.header...), conn, proto.Clone(one.req), one.packed)
				if one.fault != nil {
					c.everywhere(t, "clear", nil)
				}
			}
			if diff := cmp.Diff(got["grpc"], got["h2"], protocmp.Transform(),
				protocmp.IgnoreFields(&errdetails.RetryInfo{}, "retry_delay")); diff != "" {
				t.Errorf("a goroutine (-) and a turn (+): %s", diff)
			}
		})
	}
}

// Steps of transactions are answered alike in a turn and by a goroutine, and so are the steps after one that failed.
func TestStepsInATurnAreAnsweredAlike(t *testing.T) {
	c := startCluster(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	conns := map[string]*grpc.ClientConn{}
	for _, client := range []string{"h2", "grpc"} {
		s := startSidecar(t, c, nil, "ydb.client="+client, "pool.min=6")
		conn, api := dial(t, s.GRPC)
		conns[client] = conn
		if client == "h2" {
			if _, err := api.Execute(
				ctx, &sidecarv1.ExecuteRequest{Sql: "CREATE TABLE steps (id Int64, PRIMARY KEY (id))", Timeout: "20s"},
			); err != nil {
				t.Fatal(err)
			}
		}
		for range 30 { // the connections to nodes are there then
			if _, err := api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, one := range []struct {
		steps   string
		mode    string
		timeout string         // of begin, commit and rollback
		fault   map[string]any // of the methods below, at the steps in capitals
	}{
		{steps: "begin commit"},
		{steps: "begin rollback"},
		{steps: "begin commit commit rollback"},
		{steps: "begin rollback rollback commit"},
		{steps: "begin write commit", mode: "snapshot_rw"},
		{steps: "begin read rollback read", mode: "snapshot_ro"},
		{steps: "begin", mode: "nonsense"},
		{steps: "begin", mode: "implicit"},
		{steps: "begin", timeout: "nonsense"},
		{steps: "commit rollback"}, // of no transaction
		{steps: "BEGIN", timeout: "300ms", fault: map[string]any{"status": "UNAVAILABLE"}},
		{steps: "BEGIN", timeout: "300ms", fault: map[string]any{"status": "PRECONDITION_FAILED"}},
		{steps: "BEGIN", timeout: "300ms", fault: map[string]any{"status": "BAD_SESSION"}},
		{steps: "BEGIN", timeout: "300ms", fault: map[string]any{"status": "grpc:INTERNAL", "after": true}},
		{steps: "begin COMMIT commit rollback", fault: map[string]any{"status": "ABORTED"}},
		{steps: "begin write COMMIT commit", fault: map[string]any{"status": "UNDETERMINED", "after": true}},
		{steps: "begin write COMMIT rollback", fault: map[string]any{"status": "grpc:CANCELLED", "after": true}},
		{steps: "begin read COMMIT", fault: map[string]any{"status": "grpc:CANCELLED", "after": true}},
		{steps: "begin COMMIT commit", fault: map[string]any{"status": "BAD_SESSION"}},
		{steps: "begin COMMIT commit", fault: map[string]any{"status": "NOT_FOUND"}},
		{steps: "begin ROLLBACK rollback commit", fault: map[string]any{"status": "NOT_FOUND"}},
		{steps: "begin ROLLBACK rollback", fault: map[string]any{"status": "BAD_SESSION"}},
		{steps: "begin ROLLBACK rollback", fault: map[string]any{"status": "UNAVAILABLE"}},
		{steps: "begin ROLLBACK", fault: map[string]any{"status": "grpc:INTERNAL", "after": true}},
	} {
		t.Run(one.steps+" "+one.mode+fmt.Sprint(one.fault["status"]), func(t *testing.T) {
			got := map[string][]told{}
			for name, conn := range conns {
				id := "none"
				for _, step := range strings.Fields(one.steps) {
					faulty := step == strings.ToUpper(step)
					if faulty {
						fault := map[string]any{"share": 1,
							"methods": []string{"BeginTransaction", "CommitTransaction", "RollbackTransaction"}}
						for k, v := range one.fault {
							fault[k] = v
						}
						c.everywhere(t, "errors", fault)
					}
					answer := ask(ctx, conn, stepRequest(step, id, one.mode, one.timeout), false)
					if faulty {
						c.everywhere(t, "clear", nil)
					}
					if a, ok := answer.Answer.(interface{ GetTx() *sidecarv1.Tx }); ok && a.GetTx() != nil {
						id = a.GetTx().Id
						a.GetTx().Id, a.GetTx().ExpiresMs = "", 0
					}
					got[name] = append(got[name], answer)
				}
			}
			if diff := cmp.Diff(got["grpc"], got["h2"], protocmp.Transform(),
				protocmp.IgnoreFields(&errdetails.RetryInfo{}, "retry_delay")); diff != "" {
				t.Errorf("a goroutine (-) and a turn (+): %s", diff)
			}
		})
	}
}

// stepRequest returns the request of one step of the transaction with this id. Steps in capitals meet a fault.
func stepRequest(step, id, mode, timeout string) proto.Message {
	switch tx := (&sidecarv1.TxSelector{Id: id}); strings.ToLower(step) {
	case "begin":
		return &sidecarv1.BeginRequest{Mode: mode, Timeout: timeout}
	case "commit":
		return &sidecarv1.CommitRequest{Id: id, Timeout: timeout}
	case "rollback":
		return &sidecarv1.RollbackRequest{Id: id, Timeout: timeout}
	case "read":
		return &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Tx: tx}
	default:
		return &sidecarv1.ExecuteRequest{Sql: "UPSERT INTO steps (id) VALUES (1)", Tx: tx}
	}
}
