package facade

import (
	"context"
	"slices"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// expecting is a statement of a list that must return n rows.
func expecting(sql string, n uint64) contract.Statement {
	return contract.Statement{SQL: sql, Expect: &n}
}

// The last statement commits, unless its rows must be counted before. A list that gave other rows is rolled back, and is not repeated.
func TestExpectationsComeBeforeTheCommit(t *testing.T) {
	const write = "UPSERT INTO t (id) VALUES (1) RETURNING id"
	for name, tc := range map[string]struct {
		list    []contract.Statement
		sent    []string
		commits int
		failed  bool
	}{
		"none":          {[]contract.Statement{{SQL: "A"}, {SQL: "B"}}, []string{"A", "B commit"}, 0, false},
		"of the first":  {[]contract.Statement{expecting(write, 1), {SQL: "B"}}, []string{write, "B commit"}, 0, false},
		"of the last":   {[]contract.Statement{{SQL: "A"}, expecting(write, 1)}, []string{"A", write}, 1, false},
		"of all":        {[]contract.Statement{expecting(write, 1)}, []string{write}, 1, false},
		"fails, first":  {[]contract.Statement{expecting(write, 2), {SQL: "B"}}, []string{write}, 0, true},
		"fails, last":   {[]contract.Statement{{SQL: "A"}, expecting(write, 0)}, []string{"A", write}, 0, true},
		"fails, a read": {[]contract.Statement{expecting("SELECT 1", 0), {SQL: "B"}}, []string{"SELECT 1"}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := facadetest.Numbered(t)
			b := start(t, small(), f)
			b.each(t, func(t *testing.T, face contract.Client) {
				before := f.Count(&f.Commits)
				f.Taken()
				_, err := face.Transact(t.Context(), contract.Transaction{Statements: tc.list})
				if tc.failed {
					refused(t, err, "EXPECTATION_FAILED", false, false)
				} else if err != nil {
					t.Fatal(err)
				}
				var sent []string
				for _, req := range f.Taken() {
					text := req.GetQueryContent().GetText()
					if req.GetTxControl().GetCommitTx() {
						text += " commit"
					}
					sent = append(sent, text)
				}
				if commits := f.Count(&f.Commits) - before; !slices.Equal(sent, tc.sent) || commits != tc.commits {
					t.Errorf("sent %q and %d commits; want %q and %d", sent, commits, tc.sent, tc.commits)
				}
			})
		})
	}
}

// A list whose answer got lost is answered from memory, also through the process that does not have its transaction.
func TestListsAreHandedOverAndRepeated(t *testing.T) {
	fa := facadetest.Numbered(t)
	a, b := start(t, small(), fa), start(t, small(), facadetest.Numbered(t))
	join(t, a, b)
	b.each(t, func(t *testing.T, other contract.Client) {
		tx, err := a.http.Begin(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		fa.Taken()
		list := contract.Transaction{Statements: []contract.Statement{{SQL: "A"}, {SQL: "B"}}, Tx: &contract.TxSelector{ID: tx.ID, Seq: 1}}
		before := b.s.State().HandedOver
		var first []*contract.Reply
		for i := range 3 {
			got, err := other.Transact(t.Context(), list)
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				first = got
			}
			if got[0].Tx == nil || got[1].Rows[0][0] != first[1].Rows[0][0] {
				t.Errorf("answer %d is %v of %+v; want %v again", i, got[1].Rows, got[0].Tx, first[1].Rows)
			}
		}
		if n, handed := len(fa.Taken()), b.s.State().HandedOver-before; n != 2 || handed != 3 {
			t.Errorf("%d statements were run and %d calls handed over; want 2 and 3", n, handed)
		}
		list.Tx.Seq, list.Tx.Commit = 2, true
		for range 2 {
			if got, err := other.Transact(t.Context(), list); err != nil || got[0].Tx != nil {
				t.Errorf("with the commit: %v, %v", got, err)
			}
		}
	})
}

// An outcome that exceeds tx.replay in all its statements together is not kept.
func TestLargeOutcomeOfAListIsNotKept(t *testing.T) {
	f := facadetest.Numbered(t)
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		tx, err := face.Begin(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		list := contract.Transaction{Tx: &contract.TxSelector{ID: tx.ID, Seq: 1},
			Statements: []contract.Statement{{SQL: "A"}, {SQL: "BIG"}}}
		if _, err := face.Transact(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		_, err = face.Transact(t.Context(), list)
		refused(t, err, "SEQ_REPEATED", false, false)
	})
}

// While a list runs, every other call of its transaction is refused.
func TestAListIsOneStep(t *testing.T) {
	f := &facadetest.Driver{}
	running, goOn := make(chan struct{}), make(chan struct{})
	f.Answer = func(
		_ context.Context, _ *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		if req.GetQueryContent().GetText() == "SLOW" {
			running <- struct{}{}
			<-goOn
		}
		return facadetest.RowsOf(t, 1), nil
	}
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		tx, err := face.Begin(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := face.Transact(t.Context(), contract.Transaction{Tx: &contract.TxSelector{ID: tx.ID, Seq: 1},
				Statements: []contract.Statement{{SQL: "A"}, {SQL: "SLOW"}, {SQL: "B"}}})
			done <- err
		}()
		<-running
		_, err = face.Execute(t.Context(), contract.Statement{SQL: "C", Tx: &contract.TxSelector{ID: tx.ID, Seq: 2}})
		refused(t, err, "TX_BUSY", true, false)
		goOn <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
