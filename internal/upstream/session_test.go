package upstream

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

type executeStream = Ydb_Query_V1.QueryService_ExecuteQueryServer

func part(s Ydb.StatusIds_StatusCode) *Ydb_Query.ExecuteQueryResponsePart {
	return &Ydb_Query.ExecuteQueryResponsePart{Status: s, Issues: []*Ydb_Issue.IssueMessage{{Message: "because"}}}
}

// asError returns the *Error inside err.
func asError(t *testing.T, err error) *Error {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("got %v (%T); want an *Error", err, err)
	}
	return e
}

func TestAStatementGoesToTheOwnerWithTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3, nil)
		s, _ := b.mustOpen(3)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		parts, err := run(ctx, s, statement("SELECT 1"))
		if err != nil || parts != 1 {
			t.Fatalf("%d parts, %v; want 1", parts, err)
		}
		calls := b.node(3).seen("ExecuteQuery")
		if len(calls) != 1 || calls[0].session != s.ID() || !calls[0].deadline {
			t.Errorf("seen %+v; want one call of the session with a deadline", calls)
		}
		if got := calls[0].md.Get("x-ydb-client-capabilities"); got != nil {
			t.Errorf("a statement announces %q; only CreateSession should", got)
		}
		if got := b.judge.take(); !slices.Equal(got, []string{"3 execute success SUCCESS"}) {
			t.Errorf("reported %q", got)
		}
		if !s.clean() {
			t.Error("the session is not clean after a complete answer")
		}
	})
}

// A session is the driver's from when its pool has it until it is closed.
func TestTheDriverKnowsItsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		if id := []byte(s.ID()); !b.driver.Mine(id) || b.driver.Mine(append(id, 'x')) {
			t.Error("it does not know which sessions it has")
		}
		if err := s.Close(t.Context()); err != nil || b.driver.Mine([]byte(s.ID())) {
			t.Errorf("it has a session that is closed; %v", err)
		}
	})
}

// What each way of failing makes of the session, the error and the report.
func TestFailuresOfAStatement(t *testing.T) {
	always := func(s Ydb.StatusIds_StatusCode) func(n *fakeNode, s executeStream) error {
		return func(_ *fakeNode, stream executeStream) error { return stream.Send(part(s)) }
	}
	for _, c := range []struct {
		name    string
		act     func(n *fakeNode, s executeStream) error
		req     Statement
		status  string
		retry   ydbstatus.Retry
		sent    bool // may have run
		clean   bool
		deletes int
		report  string
	}{
		{"bad_sql", always(Ydb.StatusIds_GENERIC_ERROR), statement("x"), "GENERIC_ERROR", ydbstatus.RetryNever, false,
			true, 1, "1 execute none GENERIC_ERROR"},
		{"overloaded", always(Ydb.StatusIds_OVERLOADED), statement("x"), "OVERLOADED", ydbstatus.RetryAlways, false,
			true, 1, "1 execute none OVERLOADED"},
		{"missing_right", always(Ydb.StatusIds_UNAUTHORIZED), statement("x"), "UNAUTHORIZED", ydbstatus.RetryNever,
			false, true, 1, "1 execute none UNAUTHORIZED"},
		{"another_database", func(_ *fakeNode, s executeStream) error {
			p := part(Ydb.StatusIds_UNAUTHORIZED)
			p.Issues[0].Issues = []*Ydb_Issue.IssueMessage{{Message: "Unexpected node to perform query on database: /local, domain: ..."}}
			return s.Send(p)
		}, inTx(statement("x"), serializable, "", true), "UNAUTHORIZED", ydbstatus.RetryAlways, false, false, 1,
			"1 commit foreign UNAUTHORIZED"},
		{"bad_session", always(Ydb.StatusIds_BAD_SESSION), statement("x"), "BAD_SESSION", ydbstatus.RetryAlways, false,
			false, 0, "1 execute none BAD_SESSION"},
		{"timeout", always(Ydb.StatusIds_TIMEOUT), statement("x"), "TIMEOUT", ydbstatus.RetryIdempotent, true, false, 1,
			"1 execute none TIMEOUT"},
		{"session_busy", always(Ydb.StatusIds_SESSION_BUSY), statement("x"), "SESSION_BUSY", ydbstatus.RetryAlways,
			false, false, 1, "1 execute none SESSION_BUSY"},
		{"undetermined", always(Ydb.StatusIds_UNDETERMINED), inTx(statement("x"), serializable, "", true),
			"UNDETERMINED", ydbstatus.RetryIdempotent, true, true, 1, "1 commit none UNDETERMINED"},
		{"broken", func(*fakeNode, executeStream) error { return status.Error(codes.Unavailable, "cut") },
			statement("x"), "UNAVAILABLE", ydbstatus.RetryIdempotent, true, false, 1, "1 execute transport UNAVAILABLE"},
		{"broken_inside_a_transaction", func(*fakeNode, executeStream) error { return status.Error(codes.Unavailable, "cut") },
			inTx(statement("x"), serializable, "", false), "UNAVAILABLE", ydbstatus.RetryAlways, false, false, 1,
			"1 execute transport UNAVAILABLE"},
		{"broken_at_a_read", func(*fakeNode, executeStream) error { return status.Error(codes.Unavailable, "cut") },
			inTx(statement("x"), snapshot, "", true), "UNAVAILABLE", ydbstatus.RetryAlways, false, false, 1,
			"1 execute transport UNAVAILABLE"},
		{"broken_at_an_inline_commit", func(*fakeNode, executeStream) error { return status.Error(codes.Unavailable, "cut") },
			inTx(statement("x"), serializable, "", true), "UNAVAILABLE", ydbstatus.RetryIdempotent, true, false, 1,
			"1 commit transport UNAVAILABLE"},
		{"too_large", func(*fakeNode, executeStream) error {
			return status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)")
		}, statement("x"), "RESOURCE_EXHAUSTED", ydbstatus.RetryNever, true, false, 1, "1 execute none RESOURCE_EXHAUSTED"},
		{"no_status", func(_ *fakeNode, s executeStream) error { return s.Send(&Ydb_Query.ExecuteQueryResponsePart{}) },
			statement("x"), "UNKNOWN", ydbstatus.RetryIdempotent, true, false, 1, "1 execute transport UNKNOWN"},
		{"aborted_for_ever", func(_ *fakeNode, s executeStream) error {
			p := part(Ydb.StatusIds_ABORTED)
			p.Issues[0].Issues = []*Ydb_Issue.IssueMessage{{IssueCode: 200509}}
			return s.Send(p)
		}, statement("x"), "ABORTED", ydbstatus.RetryNever, false, true, 1, "1 execute none ABORTED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1, nil)
				s, _ := b.mustOpen(1)
				b.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error { return c.act(b.node(1), stream) }
				_, err := run(t.Context(), s, c.req)
				e := asError(t, err)
				if e.StatusName() != c.status || e.Verdict.Retry != c.retry || e.Sent != c.sent || e.Node != 1 || e.Op != "ExecuteQuery" {
					t.Errorf("got %s, retry %v, may have run %t, node %d, op %s; want %s, %v, %t", e.StatusName(),
						e.Verdict.Retry, e.Sent, e.Node, e.Op, c.status, c.retry, c.sent)
				}
				if strings.Contains(e.Error(), "because") || (e.Status != 0 && !strings.Contains(e.Message(), "because")) {
					t.Errorf("Error %q must hide issues, Message %q must show them", e.Error(), e.Message())
				}
				if s.clean() != c.clean {
					t.Errorf("clean: %t; want %t", s.clean(), c.clean)
				}
				if got := b.judge.take(); !slices.Equal(got, []string{c.report}) {
					t.Errorf("reported %q; want %q", got, c.report)
				}
				s.Close(t.Context())
				synctest.Wait()
				if got := len(b.node(1).seen("DeleteSession")); got != c.deletes {
					t.Errorf("%d DeleteSession; want %d", got, c.deletes)
				}
			})
		})
	}
}

func TestADeadNodeIsKnownNotToHaveRunTheStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		b.node(1).kill()
		synctest.Wait()
		b.judge.take()
		_, err := run(t.Context(), s, inTx(statement("x"), serializable, "", true))
		e := asError(t, err)
		if e.Sent || e.Verdict.Retry != ydbstatus.RetryAlways {
			t.Errorf("may have run: %t, retry %v; want surely not, always", e.Sent, e.Verdict.Retry)
		}
		if got := b.judge.take(); !slices.Equal(got, []string{"1 commit transport UNAVAILABLE"}) {
			t.Errorf("reported %q", got)
		}
	})
}

func TestTheCallersEndReachesTheNodeAndBlamesNobody(t *testing.T) {
	for _, c := range []struct {
		name string
		with func(context.Context) (context.Context, context.CancelFunc)
		want error
		code codes.Code
	}{
		{"deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}, context.DeadlineExceeded, codes.DeadlineExceeded},
		{"cancel", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		}, context.Canceled, codes.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1, nil)
				s, _ := b.mustOpen(1)
				ended := make(chan time.Time, 1)
				b.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
					<-stream.Context().Done()
					ended <- time.Now()
					return stream.Context().Err()
				}
				start := time.Now()
				ctx, cancel := c.with(t.Context())
				defer cancel()
				_, err := run(ctx, s, statement("SELECT 1"))
				e := asError(t, err)
				if !errors.Is(err, c.want) || e.Code != c.code || e.Verdict.Retry != ydbstatus.RetryNever || !e.Sent {
					t.Errorf("got %v, code %v, verdict %+v; want %v", err, e.Code, e.Verdict, c.want)
				}
				if at := (<-ended).Sub(start); at > 1100*time.Millisecond {
					t.Errorf("the node learned of it after %v", at)
				}
				if got := b.judge.take(); len(got) != 1 || !strings.HasPrefix(got[0], "1 execute none") {
					t.Errorf("reported %q; want no blame", got)
				}
				if s.clean() {
					t.Error("the session of a call that ended in the dark is clean")
				}
			})
		})
	}
}

// expectTx checks which transaction is open.
func (s *Session) expectTx(t *testing.T, step, tx string) {
	t.Helper()
	if s.TxID() != tx || s.clean() != (tx == "") {
		t.Errorf("after %s: transaction %q, clean %t; want %q", step, s.TxID(), s.clean(), tx)
	}
}

func TestTransactionsAreTracked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		expect := func(step, tx string) { t.Helper(); s.expectTx(t, step, tx) }
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		exec := func(r Statement) {
			t.Helper()
			_, err := run(t.Context(), s, r)
			must(err)
		}
		must(s.Begin(t.Context(), serializable))
		expect("Begin", "tx-begun")
		must(s.Commit(t.Context()))
		expect("Commit", "")
		exec(inTx(statement("x"), serializable, "", false))
		expect("an inline begin", "tx-1")
		exec(inTx(statement("x"), nil, s.TxID(), true))
		expect("an inline commit", "")
		exec(inTx(statement("x"), serializable, "", true))
		expect("begin and commit in one", "")
		must(s.Begin(t.Context(), serializable))
		must(s.Rollback(t.Context()))
		expect("Rollback", "")
		must(s.Rollback(t.Context()))
		if n := len(b.node(1).seen("RollbackTransaction")); n != 1 {
			t.Errorf("%d rollbacks sent; want 1", n)
		}
		if err := s.Commit(t.Context()); !errors.Is(err, errNoTx) {
			t.Errorf("Commit without a transaction: %v", err)
		}
		// A conflict ends the transaction on the node.
		must(s.Begin(t.Context(), serializable))
		b.node(1).onCommit = func(context.Context) (Ydb.StatusIds_StatusCode, error) { return Ydb.StatusIds_ABORTED, nil }
		if e := asError(t, s.Commit(t.Context())); e.Verdict.Retry != ydbstatus.RetryAlways {
			t.Errorf("conflict: %+v", e.Verdict)
		}
		expect("a conflict", "")
		// A commit that got lost does not.
		must(s.Begin(t.Context(), serializable))
		b.node(1).onCommit = func(context.Context) (Ydb.StatusIds_StatusCode, error) {
			return 0, status.Error(codes.Unavailable, "cut")
		}
		if e := asError(t, s.Commit(t.Context())); !e.Sent || e.Verdict.Retry != ydbstatus.RetryIdempotent {
			t.Errorf("lost commit: may have run %t, %+v", e.Sent, e.Verdict)
		}
		if s.clean() {
			t.Error("clean after a commit that got lost")
		}
	})
}

func TestALostCommitOfAReaderIsHarmless(t *testing.T) {
	for _, c := range []struct {
		name    string
		mode    *Ydb_Query.TransactionSettings
		effects yql.Effects
		sent    bool
		retry   ydbstatus.Retry
	}{
		{"in_a_mode_that_reads", snapshot, yql.Whole, false, ydbstatus.RetryAlways},
		{"after_texts_that_read", serializable, yql.Reads, false, ydbstatus.RetryAlways},
		{"after_others", serializable, yql.Whole, true, ydbstatus.RetryIdempotent},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStack(t, 1, nil)
				s.node(1).onCommit = func(context.Context) (Ydb.StatusIds_StatusCode, error) {
					return 0, status.Error(codes.Unavailable, "cut")
				}
				s.node(1).fail(1, breaks)
				for what, commit := range map[string]func(context.Context, *Session) error{
					"Commit": func(ctx context.Context, session *Session) error { return session.Commit(ctx) },
					"a statement": func(ctx context.Context, session *Session) error {
						_, err := run(ctx, session, inTx(plain(), nil, session.TxID(), true))
						return err
					},
				} {
					l, _, err := s.client.BeginTx(within(t, time.Second), Call{}, func(ctx context.Context, session *Session) error {
						return session.Begin(ctx, c.mode)
					})
					if err != nil {
						t.Fatal(err)
					}
					_, err = l.Run(within(t, time.Second), Call{Effects: c.effects}, commit)
					if e := asError(t, err); e.Sent != c.sent || e.Verdict.Retry != c.retry {
						t.Errorf("%s: may have run %t, %+v; want %t, %v", what, e.Sent, e.Verdict, c.sent, c.retry)
					}
					l.Release(false)
				}
			})
		})
	}
}

func TestAMissingTxMetaSpoilsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		b.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			return stream.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS})
		}
		if _, err := run(t.Context(), s, inTx(statement("x"), serializable, "", false)); err != nil {
			t.Fatal(err)
		}
		begun, _ := b.mustOpen(1)
		b.node(1).onBegin = func() (Ydb.StatusIds_StatusCode, error) { return Ydb.StatusIds_SUCCESS, errNoID }
		if err := begun.Begin(t.Context(), serializable); err != nil {
			t.Fatal(err)
		}
		if s.clean() || begun.clean() {
			t.Errorf("a transaction may be open whose id nobody knows, and a session is clean: %t, %t", s.clean(), begun.clean())
		}
	})
}

func TestOneCallAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		stream, err := s.Execute(t.Context(), statement("x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Execute(t.Context(), statement("y")); !errors.Is(err, errInUse) {
			t.Errorf("a second statement: %v; want errInUse", err)
		}
		if err := s.Begin(t.Context(), serializable); !errors.Is(err, errInUse) {
			t.Errorf("Begin: %v; want errInUse", err)
		}
		stream.Close()
		if n := len(b.node(1).seen("ExecuteQuery")); n > 1 {
			t.Errorf("%d statements sent", n)
		}
	})
}

func TestATrailerHintRetiresTheSessionAfterTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		b.node(1).onExecute = func(r *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			stream.SetTrailer(metadata.Pairs("x-ydb-server-hints", "unheard-of", "x-ydb-server-hints", "another, session-close"))
			return b.node(1).answer(r, stream)
		}
		if _, err := run(t.Context(), s, statement("x")); err != nil {
			t.Fatal(err)
		}
		if s.clean() {
			t.Error("the session is clean although the server asked for its end")
		}
	})
}

func TestACallFollowsItsTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, nil)
		s, _ := b.mustOpen(1)
		lost := errors.New("owner unreachable")
		var openTx []bool
		b.router.target = func(owner cluster.NodeID, open bool) (cluster.NodeID, error) {
			openTx = append(openTx, open)
			if open {
				return 2, nil
			}
			return owner, nil
		}
		if err := s.Begin(t.Context(), serializable); err != nil {
			t.Fatal(err)
		}
		b.node(2).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			p := part(Ydb.StatusIds_SUCCESS)
			p.TxMeta = &Ydb_Query.TransactionMeta{Id: s.TxID()}
			return stream.Send(p)
		}
		if _, err := run(t.Context(), s, inTx(statement("x"), nil, s.TxID(), false)); err != nil {
			t.Error(err)
		}
		if n := len(b.node(2).seen("ExecuteQuery")); n != 1 || !slices.Equal(openTx, []bool{false, true}) {
			t.Errorf("%d calls on the other node, openTx %v", n, openTx)
		}
		b.router.target = func(cluster.NodeID, bool) (cluster.NodeID, error) { return 0, routing.ErrBusy }
		_, err := s.Execute(t.Context(), statement("x"))
		if e := asError(t, err); !errors.Is(err, routing.ErrBusy) || e.Verdict.DropSession || s.spoiled {
			t.Errorf("no room for now: %v, %+v, spoiled %t", err, e.Verdict, s.spoiled)
		}
		b.router.target = func(cluster.NodeID, bool) (cluster.NodeID, error) { return 0, lost }
		_, err = s.Execute(t.Context(), statement("x"))
		if e := asError(t, err); !errors.Is(err, lost) || e.Verdict.Retry != ydbstatus.RetryAlways || e.Sent || s.clean() {
			t.Errorf("got %v, %+v, clean %t", err, e.Verdict, s.clean())
		}
	})
}

func TestTheBulkheadRefusesWithoutTouchingTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		b.router.full[1] = true
		_, err := s.Execute(t.Context(), statement("x"))
		if e := asError(t, err); !errors.Is(err, hop.ErrFull) || e.Verdict.Retry != ydbstatus.RetryAlways || !s.clean() {
			t.Errorf("got %v, %+v, clean %t", err, e.Verdict, s.clean())
		}
		if n := len(b.node(1).seen("ExecuteQuery")); n != 0 {
			t.Errorf("%d statements sent", n)
		}
	})
}

func TestLargeMessagesPassBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		size := short.Of(63_900_000, 8_000_000) // grpc-go alone takes 4 MiB
		b.node(1).onExecute = func(r *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			if n := len(r.GetQueryContent().GetText()); n != size {
				t.Errorf("%d bytes arrived", n)
			}
			return stream.Send(
				&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ResultSet: &Ydb.ResultSet{Data: make([]byte, size)}},
			)
		}
		stream, err := s.Execute(t.Context(), statement(strings.Repeat("x", size)))
		if err != nil {
			t.Fatal(err)
		}
		p, err := stream.Next()
		if err != nil || len(p.GetResultSet().GetData()) != size {
			t.Fatalf("%d bytes came back, %v", len(p.GetResultSet().GetData()), err)
		}
		if _, err := stream.Next(); err != io.EOF {
			t.Error(err)
		}
		_, err = s.Execute(t.Context(), statement(strings.Repeat("x", maxMessage+1)))
		if e := asError(t, err); e.Verdict.Retry != ydbstatus.RetryNever || e.Verdict.Blame != cluster.BlameNone || !e.TooLarge || e.Sent {
			t.Errorf("a statement that is too large: %v, %+v", e, e.Verdict)
		}
	})
}
