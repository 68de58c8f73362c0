package facade

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/facade/grpcapi"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

// failure is a way in which a call to the cluster fails.
type failure struct {
	name  string
	signs ydbstatus.Signs
	node  cluster.NodeID
	cause error // why the caller's context ended
}

// failures are all statuses of YDB, all codes of gRPC, and what is judged before either.
func failures() (all []failure) {
	for _, s := range slices.Sorted(maps.Keys(Ydb.StatusIds_StatusCode_name)) {
		if s := Ydb.StatusIds_StatusCode(s); s != 0 && s != Ydb.StatusIds_SUCCESS {
			all = append(all, failure{name: "`" + s.String() + "`", signs: ydbstatus.Signs{Status: s}, node: 1})
		}
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		all = append(all, failure{name: "`" + c.String() + "`", signs: ydbstatus.Signs{Code: c}, node: 1})
	}
	return append(all,
		failure{"nothing was sent: no connection", ydbstatus.Signs{Code: codes.Unavailable, NotSent: true}, 1, nil},
		failure{"nothing was sent: this process could not make the call", ydbstatus.Signs{Code: codes.Internal, NotSent: true}, 1, nil},
		failure{"nothing was sent: it exceeds 64,000,000 bytes",
			ydbstatus.Signs{Code: codes.ResourceExhausted, NotSent: true, TooLarge: true}, 1, nil},
		failure{"the answer exceeds 64,000,000 bytes", ydbstatus.Signs{Code: codes.ResourceExhausted, TooLarge: true}, 1, nil},
		failure{"the provider of credentials does not answer",
			ydbstatus.Signs{Code: codes.Unauthenticated, NotSent: true, NoTicket: true}, 1, nil},
		failure{"the provider of credentials refused", ydbstatus.Signs{Code: codes.Unauthenticated, NotSent: true}, 1, nil},
		failure{"no node to send it to", ydbstatus.Signs{Code: codes.Unavailable, Unrouted: true}, 0, nil},
		failure{"the owner of the session cannot be reached", ydbstatus.Signs{Code: codes.Unavailable, HomeNodeLost: true}, 1, nil},
		failure{"`ABORTED` with issue 200509", ydbstatus.Signs{Status: Ydb.StatusIds_ABORTED, Repeats: true}, 1, nil},
		failure{"the deadline ended before it was sent",
			ydbstatus.Signs{Code: codes.DeadlineExceeded, CallerGone: true, NotSent: true}, 1, context.DeadlineExceeded},
		failure{"the deadline ended while it ran", ydbstatus.Signs{Code: codes.DeadlineExceeded, CallerGone: true}, 1,
			context.DeadlineExceeded},
		failure{"the caller left while it ran", ydbstatus.Signs{Code: codes.Canceled, CallerGone: true}, 1, context.Canceled},
	)
}

// stakes are the kinds of calls whose failures mean different things.
var stakes = []struct {
	name   string
	undone bool // nothing of it is kept
	parts  bool // a part of it may be
	schema bool // YDB may go on with it after an error
	deed   core.Deed
}{
	{"a read; a statement of an open transaction", true, false, false, core.Deed{}},
	{"any other statement, a commit", false, false, false, core.Deed{}},
	{"the same, idempotent", false, false, false, core.Deed{Harmless: true}},
	{"the same, after an attempt that may have run", false, false, false, core.Deed{Harmless: true, Unsure: true}},
	{"a text in parts", false, true, false, core.Deed{}},
	{"a change of the schema alone", false, false, true, core.Deed{}},
}

// err is the error of the driver, for a call with so much at stake.
func (f failure) err(undone, parts, schema bool) error {
	f.signs.Kind, f.signs.Undone, f.signs.InParts, f.signs.Schema = cluster.CallExecute, undone, parts, schema
	v := ydbstatus.Judge(f.signs)
	e := &upstream.Error{Op: "ExecuteQuery", Node: f.node, Status: f.signs.Status, Code: f.signs.Code,
		TooLarge: f.signs.TooLarge, Verdict: v, Sent: v.Unknown}
	if f.cause != nil {
		return fmt.Errorf("%w: %w", e, f.cause)
	}
	return e
}

// TestDocsHaveTheAnswers: docs/reference/api.md shows what callers are told of every failure, whatever
// was at stake. What it shows keeps the rules that callers rely on.
func TestDocsHaveTheAnswers(t *testing.T) {
	var b strings.Builder
	head, rule := "| failure |", "|---|"
	for _, s := range stakes {
		head, rule = head+" "+s.name+" |", rule+"---|"
	}
	b.WriteString(head + "\n" + rule + "\n")
	for _, failure := range failures() {
		b.WriteString("| " + failure.name + " |")
		for _, s := range stakes {
			err := failure.err(s.undone, s.parts, s.schema)
			f := core.FaultOf(err, s.deed)
			checkAnswer(t, failure, s.name, err, s.deed, f)
			fmt.Fprintf(&b, " `%s`", f.Code.Name)
			if f.Safe {
				b.WriteString(", safe")
			}
			if f.Unknown {
				b.WriteString(", unknown")
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	const begin, end = "<!-- answers: compared with the code by `go test ./internal/facade -run TestDocs`, written " +
		"with -update -->\n", "<!-- /answers -->"
	doctable.Part(t, *update, docs, begin, end, b.String())
}

func checkAnswer(t *testing.T, failure failure, stake string, err error, d core.Deed, f *core.Fault) {
	t.Helper()
	name := failure.name + " of " + stake
	e, ok := errors.AsType[*upstream.Error](err)
	if !ok {
		t.Fatalf("%s: %v is no error of the driver", name, err)
	}
	v := e.Verdict
	again := v.Retry != ydbstatus.RetryNever || failure.cause != nil
	if want := again && (!v.Unknown || d.Harmless); f.Safe != want {
		t.Errorf("%s: safe %t; want %t by %+v", name, f.Safe, want, v)
	}
	if want := v.Unknown || d.Unsure; f.Unknown != want {
		t.Errorf("%s: unknown %t; want %t by %+v", name, f.Unknown, want, v)
	}
	if f.Unknown && strings.HasPrefix(f.Proto("").Hint, "Nothing was") {
		t.Errorf("%s: it is unknown, and the hint is %q", name, f.Proto("").Hint)
	}
	if f.Safe && strings.Contains(f.Proto("").Hint, "idempotent") {
		t.Errorf("%s: it may be sent again as it is, and the hint is %q", name, f.Proto("").Hint)
	}
	if f.After > 0 && !f.Safe {
		t.Errorf("%s: a pause of %v before a call that must not be repeated", name, f.After)
	}
	p, st := f.Proto(""), status.Convert(grpcapi.StatusOf(f, ""))
	if p.Status != uint32(f.Code.HTTP) || st.Code() != f.Code.GRPC || p.SafeToRetry != f.Safe || p.OutcomeUnknown != f.Unknown {
		t.Errorf("%s: HTTP %d, gRPC %v; want those of %s", name, p.Status, st.Code(), f.Code.Name)
	}
	if !slices.Contains(core.Codes(), *f.Code) {
		t.Errorf("%s: %s is in no table", name, f.Code.Name)
	}
}

// TestWhatIsRefusedForGood: callers that repeat while safe_to_retry says so come to an end.
func TestWhatIsRefusedForGood(t *testing.T) {
	var now failure
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return nil, now.err(false, false, false)
		},
	}
	b := start(t, small(), f)
	for _, c := range []struct {
		signs   ydbstatus.Signs
		code    string
		unknown bool
	}{
		{ydbstatus.Signs{Code: codes.InvalidArgument}, "UPSTREAM_REFUSED", false},
		{ydbstatus.Signs{Code: codes.Unimplemented}, "UPSTREAM_REFUSED", false},
		{ydbstatus.Signs{Code: codes.NotFound}, "UPSTREAM_REFUSED", false},
		{ydbstatus.Signs{Code: codes.AlreadyExists}, "UPSTREAM_REFUSED", false},
		{ydbstatus.Signs{Code: codes.OutOfRange}, "UPSTREAM_REFUSED", false},
		{ydbstatus.Signs{Code: codes.FailedPrecondition}, "UPSTREAM_REFUSED", false},
		{ydbstatus.Signs{Code: codes.Internal, NotSent: true}, "UPSTREAM_REFUSED", false},
		{ydbstatus.Signs{Code: codes.ResourceExhausted, NotSent: true, TooLarge: true}, "LIMIT_EXCEEDED", false},
		{ydbstatus.Signs{Code: codes.ResourceExhausted, TooLarge: true}, "OUTCOME_UNKNOWN", true},
		{ydbstatus.Signs{Code: codes.DataLoss}, "OUTCOME_UNKNOWN", true},
		{ydbstatus.Signs{Status: Ydb.StatusIds_INTERNAL_ERROR}, "YDB_INTERNAL_ERROR", true},
	} {
		now = failure{signs: c.signs, node: 1}
		for _, idempotent := range []bool{false, true} {
			b.each(t, func(t *testing.T, face contract.Client) {
				_, err := face.Execute(t.Context(), contract.Statement{SQL: "S", Idempotent: idempotent})
				refused(t, err, c.code, false, c.unknown)
				tx, err := face.Begin(t.Context(), "")
				if err != nil {
					t.Fatal(err)
				}
				if _, err = face.Execute(t.Context(), contract.Statement{SQL: "S", Tx: &contract.TxSelector{ID: tx.ID}}); err == nil {
					t.Fatal("a statement of a transaction succeeded")
				}
				_ = face.Rollback(t.Context(), tx.ID)
			})
		}
	}
}
