package facade

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// failing answers each statement with the error that its text names.
func failing(errs map[string]error) *facadetest.Driver {
	return &facadetest.Driver{Answer: func(ctx context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest) (
		[]*Ydb_Query.ExecuteQueryResponsePart, error) {
		if err := errs[req.GetQueryContent().GetText()]; err != nil {
			return nil, err
		}
		return facadetest.Echo(ctx, s, req)
	}}
}

// TestHintsOfSchemeErrors: a SCHEME_ERROR is told by its issues, which have one code for whatever is wrong.
func TestHintsOfSchemeErrors(t *testing.T) {
	scheme := func(text string) error {
		e := facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_SCHEME_ERROR).(*upstream.Error)
		e.Issues = []*Ydb_Issue.IssueMessage{{Message: "Execution", IssueCode: 1060, Issues: []*Ydb_Issue.IssueMessage{
			{Message: text, IssueCode: 2003, Severity: 1}}}}
		return e
	}
	const usual = "Read issues for the name, and for what is wrong with it."
	want := map[string]string{
		"exists":    "Something exists at the path",
		"mismatch":  "A value has another type than its column.",
		"missing":   usual,
		"something": usual,
	}
	for _, statuses := range []string{"current", "old"} {
		cfg := small()
		cfg.API.Statuses = statuses
		b := start(t, cfg, failing(map[string]error{
			"exists": scheme("Check failed: path: '/local/t', error: path exist, request accepts it (id: [OwnerId: 1, LocalPathId: 2], " +
				"type: EPathTypeTable, state: EPathStateNoChanges)"),
			"mismatch":  scheme("Type mismatch, got type Utf8 for column n, but expected Int32"),
			"missing":   scheme("Cannot find table 'db.[/local/t]' because it does not exist or you do not have access permissions."),
			"something": scheme("something else"),
		}))
		b.each(t, func(t *testing.T, c contract.Client) {
			for sql, hint := range want {
				_, err := c.Execute(t.Context(), contract.Statement{SQL: sql})
				if e := refused(t, err, "YDB_SCHEME_ERROR", false, false); !strings.HasPrefix(e.Hint, hint) {
					t.Errorf("%s, statuses %s: hint %q; want %q", sql, statuses, e.Hint, hint)
				}
			}
		})
	}
}

// TestHintsOfStepsSpeakOfTheirTransaction: a step that ended its transaction is not to be sent again alone.
func TestHintsOfStepsSpeakOfTheirTransaction(t *testing.T) {
	const whole = "begin a new transaction and repeat all of it"
	statuses := map[string]string{} // hints of statements on their own, by text
	errs := map[string]error{}
	for status, hint := range map[Ydb.StatusIds_StatusCode]string{
		Ydb.StatusIds_OVERLOADED: "Send the call again", Ydb.StatusIds_UNAVAILABLE: "Send the call again",
		Ydb.StatusIds_ABORTED: "Repeat the whole transaction", Ydb.StatusIds_SESSION_BUSY: "Send the call again",
	} {
		statuses[status.String()], errs[status.String()] = hint, facadetest.Failed(cluster.CallExecute, status)
	}
	b := start(t, small(), failing(errs))
	b.each(t, func(t *testing.T, c contract.Client) {
		for sql, alone := range statuses {
			_, err := c.Execute(t.Context(), contract.Statement{SQL: sql})
			if e := refused(t, err, "YDB_"+sql, true, false); !strings.Contains(e.Hint, alone) {
				t.Errorf("%s alone: hint %q; want %q", sql, e.Hint, alone)
			}
			tx, err := c.Begin(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Execute(t.Context(), contract.Statement{SQL: sql, Tx: &contract.TxSelector{ID: tx.ID}})
			want := whole
			if sql == Ydb.StatusIds_ABORTED.String() {
				want = alone
			}
			if e := refused(t, err, "YDB_"+sql, true, false); !strings.Contains(e.Hint, want) {
				t.Errorf("%s in a transaction: hint %q; want %q", sql, e.Hint, want)
			}
		}
	})
}

// TestStepsThatAreCutOffSpeakOfTheirTransaction: a step that an operator or a stop ended says so, and what to do about its transaction.
// So does a repeat of it, which gets the first outcome.
func TestStepsThatAreCutOffSpeakOfTheirTransaction(t *testing.T) {
	const ended, stopped = "ended by an operator", "the sidecar stopped before the call was done"
	const committed = "whether the transaction was committed"
	for i := range 2 {
		for _, c := range []struct {
			name, message, code string
			end                 func(*bench)
			commit              bool
			safe, unknown       bool
			hint                string
		}{
			{"step_killed", ended, "CANCELLED", (*bench).endAll, false, false, false, "an operator ended the call"},
			{"commit_killed", ended, "CANCELLED", (*bench).endAll, true, false, true, committed},
			{"step_stopped", stopped, "DRAINING", (*bench).stop, false, true, false, "begin a new transaction and repeat all of it"},
			{"commit_stopped", stopped, "OUTCOME_UNKNOWN", (*bench).stop, true, false, true, committed},
		} {
			var ends sync.WaitGroup
			var b *bench
			b = start(t, small(), &facadetest.Driver{Answer: func(
				ctx context.Context, _ *facadetest.Session, _ *Ydb_Query.ExecuteQueryRequest,
			) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
				ends.Go(func() { c.end(b) })
				<-ctx.Done()
				return nil, facadetest.Lost(ctx, cluster.CallExecute)
			}})
			face := b.faces()[i]
			t.Run(face.Name()+"_"+c.name, func(t *testing.T) {
				tx, err := face.Begin(t.Context(), "")
				if err != nil {
					t.Fatal(err)
				}
				step := contract.Statement{SQL: "A", Tx: &contract.TxSelector{ID: tx.ID, Seq: 1, Commit: c.commit}}
				_, err = face.Execute(t.Context(), step)
				first := refused(t, err, c.code, c.safe, c.unknown)
				if first.Message != c.message || !strings.Contains(first.Hint, c.hint) {
					t.Errorf("%q, hint %q; want %q, and a hint with %q", first.Message, first.Hint, c.message, c.hint)
				}
				ends.Wait()
				if c.message == stopped {
					return // and rejects the repeat
				}
				_, err = face.Execute(t.Context(), step)
				if again := refused(t, err, c.code, c.safe, c.unknown); again.Message != first.Message || again.Hint != first.Hint {
					t.Errorf("the repeat got %q, hint %q; want the first outcome", again.Message, again.Hint)
				}
			})
		}
	}
}

// TestHintsOfRelayedStepsSpeakOfTheirTransaction: what the other process did not answer was a step of a transaction, too.
func TestHintsOfRelayedStepsSpeakOfTheirTransaction(t *testing.T) {
	ctx, cut := context.WithCancelCause(t.Context())
	cut(core.ErrCut)
	for commits, want := range map[bool]string{true: "whether the transaction was committed", false: "begin a new transaction"} {
		if e := core.Unanswered(ctx, context.Canceled, commits).Proto(""); !strings.Contains(e.Hint, want) {
			t.Errorf("%s, commits: %v: hint %q; want %q", e.Code, commits, e.Hint, want)
		}
	}
}
