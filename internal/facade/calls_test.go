package facade

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/proof/contract"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestParametersGetTheirTypes(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	const declared = "DECLARE $id AS Uint64; DECLARE $d AS Decimal(22,9); SELECT $id"
	cases := []struct {
		name   string
		in     contract.Statement
		params [][]any
	}{
		{"declared_by_the_statement", contract.Statement{SQL: declared, Params: map[string]any{"id": 42, "$d": "1.5"}},
			[][]any{{"$d", "Decimal(22,9)", `"1.5"`}, {"$id", "Uint64", "42"}}},
		{"by_the_plain_rule", contract.Statement{SQL: "S", Params: map[string]any{"i": 42, "t": "x", "f": 1.5, "b": true}},
			[][]any{{"$b", "Bool", "true"}, {"$f", "Double", "1.5"}, {"$i", "Int64", "42"}, {"$t", "Utf8", `"x"`}}},
		{"by_the_request",
			contract.Statement{SQL: "S", Params: map[string]any{"i": 42, "n": nil}, Types: map[string]string{"$i": "Uint8", "n": "Utf8?"}},
			[][]any{{"$i", "Uint8", "42"}, {"$n", "Optional<Utf8>", "null"}}},
		{"by_the_value", contract.Statement{SQL: "S", Params: map[string]any{"v": contract.Typed{Type: "Int16", Value: 7}}},
			[][]any{{"$v", "Int16", "7"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b.each(t, func(t *testing.T, face contract.Client) {
				r, err := face.Execute(t.Context(), c.in)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.params, r.Rows); diff != "" {
					t.Errorf("parameters as they were sent (-want +got):\n%s", diff)
				}
			})
		})
	}
	for _, req := range b.Taken() {
		if text := req.GetQueryContent().GetText(); text != declared && text != "S" {
			t.Errorf("the text that was sent is not the caller's: %q", text)
		}
	}
}

func TestBadRequests(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	many := map[string]any{}
	for _, n := range strings.Split("abcdefghi", "") {
		many[n] = 1
	}
	deep := any(1)
	for range 9 {
		deep = []any{deep}
	}
	cases := []struct {
		name, code, says string
		in               contract.Statement
	}{
		{"no_text", "BAD_REQUEST", "sql is empty", contract.Statement{}},
		{"mode", "BAD_REQUEST", "implicit, serializable_rw, snapshot_ro", contract.Statement{SQL: "S", Mode: "dirty"}},
		{"stats", "BAD_REQUEST", "none, basic, full", contract.Statement{SQL: "S", Stats: "some"}},
		{"timeout", "BAD_REQUEST", "timeout", contract.Statement{SQL: "S", Timeout: "-1s"}},
		{"priority", "BAD_REQUEST", "priority", contract.Statement{SQL: "S", Priority: "urgent"}},
		{"type", "BAD_REQUEST", "types.a", contract.Statement{SQL: "S", Types: map[string]string{"a": "Uint65"}}},
		{"value", "BAD_REQUEST", "params.a", contract.Statement{SQL: "DECLARE $a AS Uint8; S", Params: map[string]any{"a": 256}}},
		{"null", "BAD_REQUEST", "null", contract.Statement{SQL: "S", Params: map[string]any{"a": nil}}},
		{"twice", "BAD_REQUEST", "twice", contract.Statement{SQL: "S", Params: map[string]any{"a": 1, "$a": 1}}},
		{"declaration", "BAD_REQUEST", "1:15", contract.Statement{SQL: "DECLARE $a AS Foo; S", Params: map[string]any{"a": 1}}},
		{"parameters", "LIMIT_EXCEEDED", "api.max_params", contract.Statement{SQL: "S", Params: many}},
		{"depth", "LIMIT_EXCEEDED", "api.max_depth", contract.Statement{SQL: "S", Params: map[string]any{"a": deep}}},
		{"size", "LIMIT_EXCEEDED", "api.max_body", contract.Statement{SQL: strings.Repeat("x", 65<<10)}},
		{"begin_and_id", "BAD_REQUEST", "tx", contract.Statement{SQL: "S", Tx: &contract.TxSelector{Begin: true, ID: "x"}}},
		{"neither_begin_nor_id", "BAD_REQUEST", "tx", contract.Statement{SQL: "S", Tx: &contract.TxSelector{}}},
		{"mode_in_a_transaction", "BAD_REQUEST", "mode",
			contract.Statement{SQL: "S", Mode: "snapshot_ro", Tx: &contract.TxSelector{ID: "x"}}},
		{"two_modes", "BAD_REQUEST", "differ",
			contract.Statement{SQL: "S", Mode: "snapshot_ro", Tx: &contract.TxSelector{Begin: true, Mode: "snapshot_rw"}}},
		{"mode_of_one_statement", "BAD_REQUEST", "mode",
			contract.Statement{SQL: "S", Tx: &contract.TxSelector{Begin: true, Mode: "stale_ro"}}},
		{"first_seq", "BAD_REQUEST", "tx.seq", contract.Statement{SQL: "S", Tx: &contract.TxSelector{Begin: true, Seq: 2}}},
		{"no_token", "BAD_REQUEST", "tx.id", contract.Statement{SQL: "S", Tx: &contract.TxSelector{ID: "tx_1"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b.each(t, func(t *testing.T, face contract.Client) {
				_, err := face.Execute(t.Context(), c.in)
				if e := refused(t, err, c.code, false, false); !strings.Contains(e.Message, c.says) {
					t.Errorf("the message %q does not say %q", e.Message, c.says)
				}
				_, err = face.Stream(t.Context(), c.in)
				refused(t, err, c.code, false, false)
			})
		})
	}
	if n := len(b.Taken()); n > 0 {
		t.Errorf("%d bad requests were sent", n)
	}
}

func TestModes(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	control := func(c *Ydb_Query.TransactionControl) string {
		if c == nil {
			return "none"
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(cmpName(c.GetBeginTx().GetTxMode()), "*Ydb_Query.TransactionSettings_"), " ")
		if !c.GetCommitTx() {
			return name + " open"
		}
		return name
	}
	for mode, want := range map[string]string{
		"": "none", "implicit": "none", "serializable_rw": "SerializableReadWrite", "snapshot_ro": "SnapshotReadOnly",
		"snapshot_rw": "SnapshotReadWrite", "stale_ro": "StaleReadOnly", "online_ro": "OnlineReadOnly",
	} {
		b.each(t, func(t *testing.T, face contract.Client) {
			if _, err := face.Execute(t.Context(), contract.Statement{SQL: "S", Mode: mode}); err != nil {
				t.Fatal(err)
			}
			if got := control(b.Taken()[0].GetTxControl()); got != want {
				t.Errorf("mode %q sent %s; want %s", mode, got, want)
			}
		})
	}
}

func TestLimitsOfResults(t *testing.T) {
	f := &facadetest.Driver{}
	f.Answer = func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		return append(facadetest.RowsOf(t, 100), facadetest.Part(t, 1, []string{"n Int32"}, []string{"1"})), nil
	}
	cfg := small()
	cfg.API.MaxRows = 50
	b := start(t, cfg, f)
	for _, c := range []struct {
		name        string
		rows, bytes uint64
		mode        string
		want, sent  int // rows of the first set: whole reply, stream
	}{
		{"none", 0, 0, "", 50, 100},
		{"rows", 7, 0, "", 7, 7},
		{"rows_at_the_edge_of_a_part", 20, 0, "", 20, 20},
		{"rows_read_only", 7, 0, "snapshot_ro", 7, 7},
		{"bytes", 0, 1200, "", 10, 10},
		{"more_than_allowed", 80, 0, "", 50, 80},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.each(t, func(t *testing.T, face contract.Client) {
				in := contract.Statement{SQL: "S", Rows: c.rows, Bytes: c.bytes, Mode: c.mode}
				r, err := face.Execute(t.Context(), in)
				if err != nil {
					t.Fatal(err)
				}
				if len(r.Rows) != c.want || !r.Truncated {
					t.Errorf("%d rows, truncated %v; want %d, true", len(r.Rows), r.Truncated, c.want)
				}
				r, err = face.Stream(t.Context(), in)
				if err != nil {
					t.Fatal(err)
				}
				if len(r.Rows) != c.sent || r.Truncated != (c.sent < 100) {
					t.Errorf("a stream of %d rows, truncated %v; want %d", len(r.Rows), r.Truncated, c.sent)
				}
			})
		})
	}
	if n := b.Count(&b.Cut); n != 4 {
		t.Errorf("%d calls were cut in mid answer; want only the read-only ones: 4", n)
	}
}

func TestSetsAndStreams(t *testing.T) {
	f := &facadetest.Driver{}
	f.Answer = func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		return []*Ydb_Query.ExecuteQueryResponsePart{
			facadetest.Part(t, 0, []string{"a Int32", "a Utf8?"}, []string{"1", `"x"`}),
			facadetest.Part(t, 0, []string{"a Int32", "a Utf8?"}, []string{"2", "null"}),
			facadetest.Part(t, 1, []string{"b Uint64"}),
		}, nil
	}
	b := start(t, small(), f)
	first := contract.Set{Columns: []contract.Column{{Name: "a", Type: "Int32"}, {Name: "a", Type: "Optional<Utf8>"}},
		Rows: [][]any{{"1", "x"}, {"2", nil}}}
	want := []contract.Set{first, {Columns: []contract.Column{{Name: "b", Type: "Uint64"}}}}
	b.each(t, func(t *testing.T, face contract.Client) {
		if face.Name() == "http" {
			t.Skip("rows as objects rename the second column: see TestHTTPForms")
		}
		r, err := face.Execute(t.Context(), contract.Statement{SQL: "S"})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, r.Sets); diff != "" {
			t.Errorf("sets (-want +got):\n%s", diff)
		}
	})
	b.each(t, func(t *testing.T, face contract.Client) {
		r, err := face.Stream(t.Context(), contract.Statement{SQL: "S"})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, r.Sets); diff != "" {
			t.Errorf("sets of a stream (-want +got):\n%s", diff)
		}
		lines := slices.Compact(r.Lines)
		if diff := cmp.Diff([]string{"columns", "rows", "columns", "end"}, lines); diff != "" {
			t.Errorf("parts of the stream (-want +got):\n%s", diff)
		}
		if r.EndRows != 2 {
			t.Errorf("the end counts %d rows; want 2", r.EndRows)
		}
	})
}

func TestStatementWithoutRows(t *testing.T) {
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return []*Ydb_Query.ExecuteQueryResponsePart{{Status: Ydb.StatusIds_SUCCESS}}, nil
		},
	}
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		r, err := face.Execute(t.Context(), contract.Statement{SQL: "CREATE"})
		if err != nil || len(r.Columns) != 0 || len(r.Rows) != 0 {
			t.Errorf("got %+v, %v; want nothing", r, err)
		}
		if r, err = face.Stream(t.Context(), contract.Statement{SQL: "CREATE"}); err != nil || r.Lines[len(r.Lines)-1] != "end" {
			t.Errorf("stream: %+v, %v; want an end", r, err)
		}
	})
}

// TestFaults is the map from what the driver says to what callers are told.
func TestFaults(t *testing.T) {
	var fail error
	f := &facadetest.Driver{
		Answer: func(
			_ context.Context, _ *facadetest.Session, _ *Ydb_Query.ExecuteQueryRequest,
		) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return nil, fail
		},
	}
	b := start(t, small(), f)
	wait := &pool.WaitError{Waited: time.Second, Busy: 50, Max: 50, Nodes: 3, Cause: context.DeadlineExceeded}
	status := func(s Ydb.StatusIds_StatusCode) error { return facadetest.Failed(cluster.CallExecute, s) }
	for _, c := range []struct {
		name          string
		fail          error
		idempotent    bool
		code          string
		http          int
		grpc          string
		safe, unknown bool
	}{
		{"conflict", status(Ydb.StatusIds_ABORTED), false, "YDB_ABORTED", 409, "Aborted", true, false},
		{"overloaded", status(Ydb.StatusIds_OVERLOADED), false, "YDB_OVERLOADED", 429, "ResourceExhausted", true, false},
		{"bad_text", status(Ydb.StatusIds_GENERIC_ERROR), false, "YDB_GENERIC_ERROR", 400, "InvalidArgument", false, false},
		{"no_table", status(Ydb.StatusIds_SCHEME_ERROR), false, "YDB_SCHEME_ERROR", 400, "FailedPrecondition", false, false},
		{"data_forbids_it", status(Ydb.StatusIds_PRECONDITION_FAILED), false, "YDB_PRECONDITION_FAILED", 400,
			"FailedPrecondition", false, false},
		{"key_exists", facadetest.Exists(), false, "YDB_PRECONDITION_FAILED", 409, "AlreadyExists", false, false},
		{"nothing_of_the_name", status(Ydb.StatusIds_NOT_FOUND), false, "YDB_NOT_FOUND", 400, "NotFound", false, false},
		{"unauthorized", status(Ydb.StatusIds_UNAUTHORIZED), false, "YDB_UNAUTHORIZED", 502, "FailedPrecondition", false, false},
		{"undetermined", status(Ydb.StatusIds_UNDETERMINED), false, "OUTCOME_UNKNOWN", 500, "Unknown", false, true},
		{"undetermined_idempotent", status(Ydb.StatusIds_UNDETERMINED), true, "OUTCOME_UNKNOWN", 500, "Unknown", true, true},
		{"unsupported", status(Ydb.StatusIds_UNSUPPORTED), false, "YDB_UNSUPPORTED", 501, "Unimplemented", false, false},
		{"broken_connection", facadetest.Broke(cluster.CallExecute, false), false, "OUTCOME_UNKNOWN", 500, "Unknown", false, true},
		{"broken_connection_idempotent", facadetest.Broke(cluster.CallExecute, false), true, "OUTCOME_UNKNOWN", 500, "Unknown", true, true},
		{"broken_connection_harmless", facadetest.Broke(cluster.CallExecute, true), false, "UPSTREAM_LOST", 503,
			"Unavailable", true, false},
		{"no_session_in_time", wait, false, "POOL_TIMEOUT", 503, "Unavailable", true, false},
		{"line_full", pool.ErrQueueFull, false, "QUEUE_FULL", 429, "ResourceExhausted", true, false},
		{"no_node", pool.ErrNoNode, false, "NO_HEALTHY_NODE", 503, "Unavailable", true, false},
		{"pool_closed", pool.ErrClosed, false, "DRAINING", 503, "Unavailable", true, false},
		{"a_bug", context.Canceled, false, "CANCELLED", 499, "Canceled", true, false},
		{"no_idea", errBug, false, "INTERNAL", 500, "Internal", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			fail = c.fail
			b.each(t, func(t *testing.T, face contract.Client) {
				_, err := face.Execute(t.Context(), contract.Statement{SQL: "S", Idempotent: c.idempotent})
				e := refused(t, err, c.code, c.safe, c.unknown)
				want := c.grpc
				if face.Name() == "http" {
					want = itoa(c.http)
				}
				if e.Transport != want || e.Status != c.http {
					t.Errorf("%s is %s, status %d; want %s, %d", e.Code, e.Transport, e.Status, want, c.http)
				}
				if strings.HasPrefix(c.code, "YDB_") &&
					(e.YDB != strings.TrimPrefix(c.code, "YDB_") || e.Issues != 1 || e.Message != "because") {
					t.Errorf("%s: ydb %q, %d issues, %q; want the server's words", e.Code, e.YDB, e.Issues, e.Message)
				}
			})
		})
	}
}

// TestEarlierAttemptMayHaveRun: the last error says nothing of the attempt before it.
func TestEarlierAttemptMayHaveRun(t *testing.T) {
	tries := 0
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			if tries++; tries%2 == 1 {
				return nil, facadetest.Broke(cluster.CallExecute, false)
			}
			return nil, facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_PRECONDITION_FAILED)
		},
	}
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		_, err := face.Execute(t.Context(), contract.Statement{SQL: "S", Idempotent: true})
		refused(t, err, "YDB_PRECONDITION_FAILED", false, true)
	})
}

func TestDeadlineAndCancelReachTheNode(t *testing.T) {
	f := &facadetest.Driver{}
	begun, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	f.Answer = func(
		ctx context.Context, _ *facadetest.Session, _ *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return nil, nil
	}
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		for mode, safe := range map[string]bool{"": false, "snapshot_ro": true} {
			_, err := face.Execute(t.Context(), contract.Statement{SQL: "S", Timeout: "20ms", Mode: mode})
			refused(t, err, "DEADLINE_EXCEEDED", safe, true)
			<-begun
			<-ended
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-begun
			cancel() // the caller leaves while its statement runs
		}()
		if _, err := face.Execute(ctx, contract.Statement{SQL: "S", Timeout: "1h"}); err == nil {
			t.Error("a call whose caller left succeeded")
		}
		<-ended // the node was told
	})
}

func cmpName(v any) string { return typeName(v) }

// The rows of every message go out as octets of one field.
func TestRowsHaveOneNumberInEveryMessage(t *testing.T) {
	for _, m := range []proto.Message{&sidecarv1.ExecuteResponse{}, &sidecarv1.ResultSet{}, &sidecarv1.StatementResult{},
		&sidecarv1.BatchResult{}, &sidecarv1.StreamRows{}} {
		d := m.ProtoReflect().Descriptor()
		if f := d.Fields().ByName("rows"); f == nil || f.Number() != 2 || f.Message().Name() != "Row" {
			t.Errorf("%s: rows is %v", d.Name(), f)
		}
	}
}

// What nodes report of the cost of a call, all its attempts and calls to nodes together, is in info; a report of nothing
// is one, and without a report there is no field.
func TestConsumedUnitsAreInInfo(t *testing.T) {
	for _, c := range []struct {
		units  uint64
		priced bool
		want   string
	}{
		{0, false, "none"}, {0, true, "0"}, {7, true, "7"},
	} {
		b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo, Units: c.units, Priced: c.priced})
		shown := func(i contract.Info) string {
			if i.Units == nil {
				return "none"
			}
			return strconv.FormatUint(*i.Units, 10)
		}
		b.each(t, func(t *testing.T, face contract.Client) {
			statement := contract.Statement{SQL: "S"}
			r, err := face.Execute(t.Context(), statement)
			if err != nil || shown(r.Info) != c.want {
				t.Errorf("Execute: %v, %+v; want %s units", err, r, c.want)
			}
			r, err = face.Stream(t.Context(), statement)
			if err != nil || shown(r.Info) != c.want {
				t.Errorf("Stream: %v, %+v; want %s units", err, r, c.want)
			}
			list, err := face.Transact(t.Context(), contract.Transaction{Statements: []contract.Statement{statement, statement}})
			if err != nil || shown(list[0].Info) != c.want {
				t.Errorf("Transact: %v, %+v; want %s units", err, list, c.want)
			}
			list, err = face.Batch(t.Context(), []contract.Statement{statement, statement})
			if err != nil || shown(list[0].Info) != c.want || shown(list[1].Info) != c.want {
				t.Errorf("Batch: %v, %+v; want %s units each", err, list, c.want)
			}
		})
		_, _, body := facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S"}`, nil)
		if has := strings.Contains(body, `"consumed_units":`+c.want); has != c.priced ||
			strings.Contains(body, "consumed_units") != c.priced {
			t.Errorf("%d units, reported %v: %s", c.units, c.priced, body)
		}
	}
}

// A call that asks the driver more than once costs all of it.
func TestConsumedUnitsAddUp(t *testing.T) {
	c := &core.Call{Info: &sidecarv1.Info{}}
	c.Note(upstream.Report{Units: 5, Priced: true})
	c.Note(upstream.Report{})
	c.Note(upstream.Report{Units: 7, Priced: true})
	if c.Info.GetConsumedUnits() != 12 {
		t.Errorf("%d units; want 12", c.Info.GetConsumedUnits())
	}
}
