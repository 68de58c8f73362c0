package facade

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// unsure is a driver whose calls failed once before, with an unknown outcome.
type unsure struct{ core.Driver }

func (u unsure) Do(ctx context.Context, call upstream.Call, do func(context.Context, core.Session) error) (upstream.Report, error) {
	r, err := u.Driver.Do(ctx, call, do)
	r.Unsure = call.Idempotent
	return r, err
}

// TestAnEarlierAttemptMayHaveBeenKept: the last attempt of an idempotent call
// says for itself that nothing was kept, and an earlier one may have been.
func TestAnEarlierAttemptMayHaveBeenKept(t *testing.T) {
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return nil, facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_PRECONDITION_FAILED)
		},
	}
	b := start(t, small(), f, func(d *core.Deps) { d.Driver = unsure{d.Driver} })
	b.each(t, func(t *testing.T, c contract.Client) {
		for _, idempotent := range []bool{false, true} {
			_, err := c.Execute(t.Context(), contract.Statement{SQL: "S", Idempotent: idempotent})
			refused(t, err, "YDB_PRECONDITION_FAILED", false, idempotent)
		}
	})
}

// TestExpectationAfterAnUnsureAttempt: the rows may differ because an attempt before was committed, so neither
// message nor hint says that nothing was kept.
func TestExpectationAfterAnUnsureAttempt(t *testing.T) {
	b := start(t, small(), facadetest.Numbered(t), func(d *core.Deps) { d.Driver = unsure{d.Driver} })
	b.each(t, func(t *testing.T, c contract.Client) {
		for _, idempotent := range []bool{false, true} {
			_, err := c.Transact(t.Context(), contract.Transaction{
				Statements: []contract.Statement{expecting("DELETE FROM t WHERE id = 1 RETURNING id", 0)}, Idempotent: idempotent})
			e := refused(t, err, "EXPECTATION_FAILED", false, idempotent)
			if contains(e.Hint, "Nothing was kept") == idempotent || contains(e.Message, "an earlier attempt") != idempotent {
				t.Errorf("idempotent %t: %s; %s", idempotent, e.Message, e.Hint)
			}
		}
	})
}

// TestRowsWithoutAForm: a statement whose rows cannot be handed on may have
// been kept, unless it only reads.
func TestRowsWithoutAForm(t *testing.T) {
	strange := &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: 0x7777}}
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return []*Ydb_Query.ExecuteQueryResponsePart{{Status: Ydb.StatusIds_SUCCESS, ResultSet: &Ydb.ResultSet{
				Columns: []*Ydb.Column{{Name: "x", Type: strange}}, Rows: []*Ydb.Value{{Items: []*Ydb.Value{facadetest.Text("?")}}},
			}}}, nil
		},
	}
	var log lockedText
	b := start(t, small(), f, func(d *core.Deps) { d.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	b.each(t, func(t *testing.T, c contract.Client) {
		_, err := c.Execute(t.Context(), contract.Statement{SQL: "S"})
		refused(t, err, "INTERNAL", false, true)
		_, err = c.Execute(t.Context(), contract.Statement{SQL: "S", Mode: "snapshot_ro"})
		refused(t, err, "INTERNAL", false, false)
		_, err = c.Execute(t.Context(), contract.Statement{SQL: "S", Tx: &contract.TxSelector{Begin: true}})
		refused(t, err, "INTERNAL", false, false) // it is rolled back
		_, err = c.Execute(t.Context(), contract.Statement{SQL: "S", Tx: &contract.TxSelector{Begin: true, Commit: true}})
		refused(t, err, "INTERNAL", false, true)
		for sql, unknown := range map[string]bool{"S": true, "SELECT 1": false} {
			tx, err := c.Begin(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Execute(t.Context(), contract.Statement{SQL: sql, Tx: &contract.TxSelector{ID: tx.ID, Commit: true}})
			refused(t, err, "INTERNAL", false, unknown)
		}
	})
	for body, unknown := range map[string]string{
		`{"statements":[{"sql":"S"}]}`: "true", `{"statements":[{"sql":"S"},{"sql":"S"}]}`: "false",
		`{"statements":[{"sql":"SELECT 1"}]}`: "false",
	} {
		if status, _, got := facadetest.Send(t, "POST", b.base+"/v1/tx", body, nil); status != 500 ||
			!contains(got, `"outcome_unknown":`+unknown) {
			t.Errorf("%s: %d %s; want outcome_unknown %s", body, status, got, unknown)
		}
	}
	if text := log.String(); !contains(text, "does not fit its columns") || contains(text, "<nil>") {
		t.Errorf("log: %s; want the reason", text)
	}
}

// lockedText is what several goroutines write.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestBulkThatStoppedHalfWay: the rows of the first group are written when those
// of the second are refused.
func TestBulkThatStoppedHalfWay(t *testing.T) {
	f := &facadetest.Driver{Table: func(string) (*Ydb_Table.DescribeTableResult, error) { return facadetest.Items(t), nil }}
	calls := 0
	f.Bulk = func(*Ydb_Table.BulkUpsertRequest) error {
		if calls++; calls%2 == 0 {
			return facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_UNAUTHORIZED)
		}
		return nil
	}
	b := start(t, small(), f)
	status, _, got := facadetest.Send(t, "POST", b.base+"/v1/bulk", `{"table":"items","rows":[{"id":1,"name":"a"},{"id":2}]}`, nil)
	if status != 502 || !contains(got, `"outcome_unknown":true`) {
		t.Errorf("%d %s; want that some rows may be written", status, got)
	}
}

// TestPathsAreText: what is no UTF-8 never reaches a node, which would be blamed for it.
func TestPathsAreText(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{})
	for _, c := range [][3]string{{"GET", "/v1/schema/%ff", ""}, {"POST", "/v1/bulk?table=%ff", `{"id":1}`}} {
		status, _, got := facadetest.Send(
			t, c[0], b.base+c[1], c[2], facadetest.Header("Content-Type", map[bool]string{true: mediaNDJSON}[c[2] != ""]),
		)
		if status != 400 || !contains(got, "UTF-8") {
			t.Errorf("%s %s: %d %s; want 400", c[0], c[1], status, got)
		}
	}
}

// TestAHalfSentBodyHoldsUpNoStop: the call is open while its body comes, and ends when it is cut off.
func TestAHalfSentBodyHoldsUpNoStop(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The server asks for the body when the handler begins to read it.
	_, _ = io.WriteString(
		conn,
		"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "+
			"100\r\nExpect: 100-continue\r\n\r\n",
	)
	replies := bufio.NewReader(conn)
	if line, err := replies.ReadString('\n'); !contains(line, "100 Continue") {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = io.WriteString(conn, `{"sql":`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if err := b.s.Drain(ctx); !wasCut(err, 1, 0) {
		t.Errorf("Drain: %v; want that one call was cut off", err)
	}
	_, _ = replies.ReadString('\n') // the empty line after 100
	line, err := replies.ReadString('\n')
	if !contains(line, "503") && time.Since(began) < core.CutLimit/2 { // a call that is later than that does not send its answer
		t.Errorf("%q, %v; want 503 DRAINING", line, err)
	}
}

// TestTheDeadlineOfTheBodyEndsWithIt: the deadline of the body is not that of the call.
func TestTheDeadlineOfTheBodyEndsWithIt(t *testing.T) {
	cfg := small()
	s, err := New(cfg, core.Deps{Driver: &facadetest.Driver{Answer: facadetest.Echo}, Database: "/local"})
	if err != nil {
		t.Fatal(err)
	}
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequest("POST", "http://localhost/v1/query", strings.NewReader(`{"sql":"S"}`))
	r.Header.Set("Content-Type", core.MediaJSON)
	s.Handler().ServeHTTP(w, r)
	if w.Code != 200 || len(w.set) != 2 || w.set[0].IsZero() || !w.set[1].IsZero() {
		t.Errorf("%d; read deadlines %v; want one, and then none", w.Code, w.set)
	}
}

// deadlines notes what deadlines a handler sets for reading.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.set = append(d.set, at)
	return nil
}

// TestTheShortestTimeoutCounts, whether it stands in the message or in a header.
func TestTheShortestTimeoutCounts(t *testing.T) {
	var left time.Duration
	b := start(t, small(),
		&facadetest.Driver{
			Answer: func(
				ctx context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
			) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
				end, _ := ctx.Deadline()
				left = time.Until(end)
				return facadetest.Echo(ctx, s, req)
			},
		})
	for _, accept := range []string{core.MediaJSON, mediaNDJSON} {
		for _, c := range [][2]string{{"", "30s"}, {"30s", ""}, {"30s", "50m"}, {"50m", "30s"}} {
			status, _, got := facadetest.Send(
				t, "POST", b.base+"/v1/query", `{"sql":"S","timeout":"`+c[0]+`"}`,
				facadetest.Header("Request-Timeout", c[1], "Accept", accept),
			)
			if status != 200 || left > 30*time.Second || left < 20*time.Second {
				t.Errorf("message %q, header %q: %d %s; %v left; want 30s", c[0], c[1], status, got, left)
			}
		}
	}
}

// TestMessagesNameTheField, in the caller's words.
func TestMessagesNameTheField(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	for body, want := range map[string]string{
		`[]`:                            `the body: a JSON array does not fit here`,
		`{"sql":1}`:                     `sql: a JSON number does not fit here`,
		`{"sql":"S","tx":{"seq":-1}}`:   `tx.seq: a JSON number -1 does not fit here`,
		`{"sql":"S","limits":[]}`:       `limits: a JSON array does not fit here`,
		`{"sql":"S","idempotent":"no"}`: `idempotent: a JSON string does not fit here`,
		`{"sql":"S","params":{"a":1},"types":{"a":"Int32","$a":"Int64"}}`: `types: \"a\" is given twice`,
	} {
		if status, _, got := facadetest.Send(t, "POST", b.base+"/v1/query", body, nil); status != 400 ||
			!contains(got, `"message":"`+want) {
			t.Errorf("%s: %d %s; want %s", body, status, got, want)
		}
	}
}

// TestAnswersOfTransactionsAreNotLate: the clean-up on a node that does not
// answer must not hold up what the caller waits for.
func TestAnswersOfTransactionsAreNotLate(t *testing.T) {
	f := &facadetest.Driver{DeafNode: true,
		Answer: func(
			ctx context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
		) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			switch req.GetQueryContent().GetText() {
			case "HANGS":
				<-ctx.Done()
				return nil, facadetest.Lost(ctx, cluster.CallExecute)
			case "FAILS":
				return nil, facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_GENERIC_ERROR)
			}
			return facadetest.Echo(ctx, s, req)
		}}
	b := start(t, small(), f)
	begun := 0
	b.each(t, func(t *testing.T, c contract.Client) {
		answered := func(sql string) (took time.Duration) {
			begun++
			tx, err := c.Begin(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			since := time.Now()
			if sql == "ROLLBACK" {
				_, _, got := facadetest.Send(t, "POST", b.base+"/v1/tx/"+tx.ID+"/rollback", `{"timeout":"50ms"}`, nil)
				if !contains(got, `{"info"`) {
					t.Errorf("rollback: %s", got)
				}
			} else if _, err = c.Execute(
				t.Context(), contract.Statement{SQL: sql, Timeout: "50ms", Tx: &contract.TxSelector{ID: tx.ID, Seq: 1}},
			); err == nil {
				t.Errorf("%s succeeded", sql)
			}
			return time.Since(since)
		}
		for _, sql := range []string{"HANGS", "FAILS", "ROLLBACK"} {
			const most = 50*time.Millisecond + 2*500*time.Millisecond
			took := answered(sql)
			for tries := 1; took > most && tries < 10; tries++ {
				took = min(took, answered(sql)) // the machine may have paused
			}
			if took > most {
				t.Errorf("%s was answered after %v at the soonest; its deadline was 50ms", sql, took)
			}
		}
	})
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if f.Kept != 0 || f.Deleted != begun {
		t.Errorf("%d sessions kept, %d deleted; want 0, %d", f.Kept, f.Deleted, begun)
	}
}
