package facade

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// TestOldStatuses: a deployment whose clients go by the statuses of the version before keeps them with one setting,
// wherever an error may come: as the answer, in a batch and as the end of a stream.
func TestOldStatuses(t *testing.T) {
	for setting, want := range map[string]struct {
		http map[string]int
		grpc map[string]codes.Code
	}{
		"current": {map[string]int{"scheme": 400, "exists": 409, "overloaded": 429, "unauthorized": 502, "describe": 404},
			map[string]codes.Code{"scheme": codes.FailedPrecondition, "exists": codes.AlreadyExists, "overloaded": codes.ResourceExhausted,
				"unauthorized": codes.FailedPrecondition, "describe": codes.NotFound}},
		"old": {map[string]int{"scheme": 404, "exists": 412, "overloaded": 503, "unauthorized": 403, "describe": 404},
			map[string]codes.Code{"scheme": codes.NotFound, "exists": codes.FailedPrecondition, "overloaded": codes.Unavailable,
				"unauthorized": codes.PermissionDenied, "describe": codes.NotFound}},
	} {
		failed := func(s Ydb.StatusIds_StatusCode) error { return facadetest.Failed(cluster.CallExecute, s) }
		fails := map[string]error{"scheme": failed(Ydb.StatusIds_SCHEME_ERROR), "exists": facadetest.Exists(),
			"overloaded": failed(Ydb.StatusIds_OVERLOADED), "unauthorized": failed(Ydb.StatusIds_UNAUTHORIZED)}
		var fail error
		f := &facadetest.Driver{
			Answer: func(
				context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest,
			) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
				return nil, fail
			},
			Table: func(string) (*Ydb_Table.DescribeTableResult, error) { return nil, failed(Ydb.StatusIds_SCHEME_ERROR) },
		}
		c := small()
		c.API.Statuses = setting
		b := start(t, c, f)
		t.Run(setting, func(t *testing.T) {
			b.each(t, func(t *testing.T, face contract.Client) {
				check := func(what string, err error) {
					e, ok := errors.AsType[*contract.Error](err)
					transport := want.grpc[what].String()
					if face.Name() == "http" {
						transport = fmt.Sprint(want.http[what])
					}
					if !ok || e.Status != want.http[what] || e.Transport != "" && e.Transport != transport {
						t.Errorf("%s: %v, %+v; want %s and %d", what, err, e, transport, want.http[what])
					}
				}
				for what, fails := range fails {
					fail = fails
					_, err := face.Execute(t.Context(), contract.Statement{SQL: "S"})
					check(what, err)
					_, err = face.Stream(t.Context(), contract.Statement{SQL: "S"})
					check(what, err)
					results, err := face.Batch(t.Context(), []contract.Statement{{SQL: "S"}})
					if err != nil || results[0].Error == nil {
						t.Fatalf("a batch: %+v, %v", results, err)
					}
					check(what, results[0].Error)
				}
				_, err := face.Describe(t.Context(), "nothing")
				check("describe", err)
			})
		})
	}
	c := small()
	c.API.Statuses = "older"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "api.statuses") {
		t.Errorf("a value that there is not: %v", err)
	}
}

// TestPausedByAnOperator: whatever has become of a call that gets no session of a paused pool, it is told of the pause, and
// neither side is sent to look for more sessions.
func TestPausedByAnOperator(t *testing.T) {
	late := func(cause error) *pool.WaitError {
		return &pool.WaitError{Waited: time.Second, Busy: 1, Max: 50, Nodes: 3, Cause: cause, Paused: true}
	}
	for name, c := range map[string]struct {
		err  error
		code string
		says bool
	}{
		"no session in time": {late(context.DeadlineExceeded), "POOL_TIMEOUT", true},
		"shed at the head":   {&pool.ShedError{Why: pool.ShedDeadline, Waited: time.Second, Paused: true}, "SHED_DEADLINE", true},
		"waited for long":    {&pool.ShedError{Why: pool.ShedAge, Waited: time.Minute, Paused: true}, "SHED_DELAY", true},
		"too little time":    {&pool.ShedError{Why: pool.ShedDeadline, Needs: time.Second, Paused: true}, "SHED_DEADLINE", false},
		"the caller left":    {late(context.Canceled), "CANCELLED", false},
		"stopping":           {late(core.ErrCut), "DRAINING", false},
	} {
		f := core.FaultOf(fmt.Errorf("acquire: %w", c.err), core.Deed{})
		p := f.Proto("")
		if f.Code.Name != c.code || strings.Contains(p.Message, "paused by an operator") != c.says ||
			strings.Contains(p.OperatorHint, "sidecar resume") != c.says || strings.Contains(p.Hint, "operator paused") != c.says {
			t.Errorf("%s: %s: %s; hints %q and %q", name, f.Code.Name, p.Message, p.Hint, p.OperatorHint)
		}
		if c.says && (!f.Safe || f.After < time.Second) {
			t.Errorf("%s: safe %t, after %v; want a pause before it is sent again", name, f.Safe, f.After)
		}
	}
}

// TestCredentialsStayWithTheOperator: what the sidecar asks for its credentials, such as the URL of their provider, is for
// its log.
func TestCredentialsStayWithTheOperator(t *testing.T) {
	for _, s := range []ydbstatus.Signs{
		{Code: codes.Unauthenticated, NotSent: true, NoTicket: true}, {Code: codes.Unauthenticated, NotSent: true},
	} {
		s.Kind = cluster.CallExecute
		e := &upstream.Error{Op: "ExecuteQuery", Code: codes.Unauthenticated, NoTicket: true, Verdict: ydbstatus.Judge(s)}
		f := core.FaultOf(fmt.Errorf("get credentials: https://iam.example/token refused: %w", e), core.Deed{})
		if f.Code.HTTP != http.StatusBadGateway || strings.Contains(f.Error(), "iam.example") {
			t.Errorf("%v, %d; want 502 without the provider", f, f.Code.HTTP)
		}
	}
}
