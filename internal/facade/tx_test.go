package facade

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

type txCase struct {
	*testing.T
	*bench
	face contract.Client
}

// eachTx runs a test over both faces, and again over those of another process,
// which hands the calls over.
func eachTx(t *testing.T, cfg Config, f func(*testing.T) *facadetest.Driver, test func(c txCase)) {
	for _, i := range []int{0, 1} {
		name := []string{"grpc", "http"}[i]
		t.Run(name, func(t *testing.T) {
			b := start(t, cfg, f(t))
			test(txCase{t, b, b.faces()[i]})
		})
		t.Run(name+" of the other process", func(t *testing.T) {
			b, front := start(t, cfg, f(t)), start(t, cfg, facadetest.Numbered(t))
			join(t, b, front)
			test(txCase{t, b, split{b.faces()[i], front.faces()[i]}})
		})
	}
}

func (c txCase) begin() string {
	c.Helper()
	tx, err := c.face.Begin(c.Context(), "")
	if err != nil {
		c.Fatal(err)
	}
	return tx.ID
}

func (c txCase) run(sql string, tx contract.TxSelector) (*contract.Reply, error) {
	return c.face.Execute(c.Context(), contract.Statement{SQL: sql, Tx: &tx})
}

func (c txCase) must(sql string, tx contract.TxSelector) *contract.Reply {
	c.Helper()
	r, err := c.run(sql, tx)
	if err != nil {
		c.Fatalf("%s: %v", sql, err)
	}
	return r
}

func TestRepeatedStatementIsNotRunTwice(t *testing.T) {
	eachTx(t, small(), facadetest.Numbered, func(c txCase) {
		id := c.begin()
		first := c.must("A", contract.TxSelector{ID: id, Seq: 1})
		again := c.must("A", contract.TxSelector{ID: id, Seq: 1})
		if first.Rows[0][0] != "1" || again.Rows[0][0] != "1" || again.Tx == nil {
			c.Errorf("the repeat answered %v with %+v; want the first answer, %v", again.Rows, again.Tx, first.Rows)
		}
		_, err := c.run("B", contract.TxSelector{ID: id, Seq: 1})
		refused(c.T, err, "SEQ_OUT_OF_ORDER", false, false)
		_, err = c.run("B", contract.TxSelector{ID: id, Seq: 3})
		refused(c.T, err, "SEQ_OUT_OF_ORDER", false, false)
		if r := c.must("B", contract.TxSelector{ID: id, Seq: 2}); r.Rows[0][0] != "2" {
			c.Errorf("the second statement answered %v; want 2", r.Rows)
		}
		last := contract.TxSelector{ID: id, Seq: 3, Commit: true}
		r := c.must("C", last)
		if r.Tx != nil || r.Rows[0][0] != "3" {
			c.Errorf("the last statement: %v, %+v; want 3 and nothing open", r.Rows, r.Tx)
		}
		// The answer of the commit got lost on its way: it was committed all the same.
		if r = c.must("C", last); r.Rows[0][0] != "3" {
			c.Errorf("the repeat of the last statement answered %v; want 3", r.Rows)
		}
		if err := c.face.Commit(c.Context(), id); err != nil {
			c.Errorf("a commit after the commit: %v; want success", err)
		}
		refused(c.T, c.face.Rollback(c.Context(), id), "TX_COMMITTED", false, false)
		_, err = c.run("D", contract.TxSelector{ID: id, Seq: 4})
		refused(c.T, err, "TX_COMMITTED", false, false)
		if n := len(c.Taken()); n != 3 {
			c.Errorf("%d statements were sent; want 3", n)
		}
		if n := c.Count(&c.Kept); n != 1 {
			c.Errorf("%d sessions came back; want 1", n)
		}
	})
}

func TestLargeOutcomeIsNotKept(t *testing.T) {
	eachTx(t, small(), facadetest.Numbered, func(c txCase) {
		id := c.begin()
		c.must("BIG", contract.TxSelector{ID: id, Seq: 1})
		_, err := c.run("BIG", contract.TxSelector{ID: id, Seq: 1})
		refused(c.T, err, "SEQ_REPEATED", false, false)
		c.must("B", contract.TxSelector{ID: id, Seq: 2})
		if err := c.face.Rollback(c.Context(), id); err != nil {
			c.Error(err)
		}
	})
}

func TestBeginInline(t *testing.T) {
	eachTx(t, small(), facadetest.Numbered, func(c txCase) {
		r := c.must("A", contract.TxSelector{Begin: true, Seq: 1})
		if r.Tx == nil || r.Tx.Expires <= 0 {
			c.Fatalf("the first statement opened %+v", r.Tx)
		}
		id := r.Tx.ID
		open, err := c.face.GetTransaction(c.Context(), id)
		if err != nil || open.Seq != 1 || open.Mode != "serializable_rw" || open.Node != 1 {
			c.Errorf("it is %+v, %v; want one statement of serializable_rw on node 1", open, err)
		}
		c.must("B", contract.TxSelector{ID: id, Seq: 2})
		if err := c.face.Commit(c.Context(), id); err != nil {
			c.Error(err)
		}
		if _, err = c.face.GetTransaction(c.Context(), id); err != nil {
			refused(c.T, err, "TX_COMMITTED", false, false)
		}
		// Begun and committed with one statement, it is a statement like any other.
		if r = c.must("C", contract.TxSelector{Begin: true, Commit: true}); r.Tx != nil {
			c.Errorf("%+v is open after a commit", r.Tx)
		}
	})
}

func TestRollback(t *testing.T) {
	eachTx(t, small(), facadetest.Numbered, func(c txCase) {
		id := c.begin()
		c.must("A", contract.TxSelector{ID: id})
		for range 2 { // the second is a repeat
			if err := c.face.Rollback(c.Context(), id); err != nil {
				c.Error(err)
			}
		}
		if e := refused(c.T, c.face.Commit(c.Context(), id), "TX_LOST", true, false); !contains(e.Hint, "Do not send this call again") {
			c.Errorf("the hint of a transaction that is over is %q", e.Hint)
		}
		if c.Count(&c.Rollbacks) != 1 || c.Count(&c.Kept) != 1 {
			c.Errorf("%d rollbacks, %d sessions back; want 1, 1", c.Rollbacks, c.Kept)
		}
	})
}

func TestFailedStatementEndsTheTransaction(t *testing.T) {
	for _, k := range []struct {
		sql           string
		commit        bool
		code          string
		safe, unknown bool
		after         string // what a commit says afterwards
	}{
		{"CONFLICT", false, "YDB_ABORTED", true, false, "TX_LOST"},
		{"LOST", false, "TX_LOST", true, false, "TX_LOST"},
		{"BAD SESSION", false, "TX_LOST", true, false, "TX_LOST"},
		{"LOST COMMIT", true, "OUTCOME_UNKNOWN", false, true, "TX_LOST"},
	} {
		t.Run(k.sql, func(t *testing.T) {
			eachTx(t, small(), troubled, func(c txCase) {
				id := c.begin()
				step := contract.TxSelector{ID: id, Seq: 1, Commit: k.commit}
				for range 2 { // the repeat hears the same
					_, err := c.run(k.sql, step)
					refused(c.T, err, k.code, k.safe, k.unknown)
				}
				refused(c.T, c.face.Commit(c.Context(), id), k.after, k.safe, k.unknown)
				if n := len(c.Taken()); n != 1 {
					c.Errorf("%d statements were sent; want 1", n)
				}
				if err := c.face.Rollback(c.Context(), id); k.unknown {
					refused(c.T, err, "TX_LOST", false, true)
				} else if err != nil {
					c.Errorf("rolling back what is rolled back: %v", err)
				}
			})
		})
	}
}

func TestCommitWhoseOutcomeIsUnknown(t *testing.T) {
	make := func(t *testing.T) *facadetest.Driver {
		f := facadetest.Numbered(t)
		f.Commit = func(s *facadetest.Session) error {
			return facadetest.Broke(cluster.CallExecute, s.Effects == yql.Reads)
		}
		return f
	}
	for _, k := range []struct {
		name          string
		first         string // begins it; "": Begin does
		then          []string
		code          string
		safe, unknown bool
	}{
		{"nothing", "", nil, "TX_LOST", true, false},
		{"reads", "", []string{"SELECT 1", "SELECT 2"}, "TX_LOST", true, false},
		{"reads_from_the_first_on", "SELECT 1", []string{"SELECT 2"}, "TX_LOST", true, false},
		{"write", "", []string{"A"}, "OUTCOME_UNKNOWN", false, true},
		{"write_before_reads", "", []string{"A", "SELECT 1"}, "OUTCOME_UNKNOWN", false, true},
		{"write_after_reads", "SELECT 1", []string{"SELECT 2", "A"}, "OUTCOME_UNKNOWN", false, true},
		{"begun_by_a_write", "A", []string{"SELECT 1"}, "OUTCOME_UNKNOWN", false, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			eachTx(t, small(), make, func(c txCase) {
				id := ""
				if k.first == "" {
					id = c.begin()
				} else {
					id = c.must(k.first, contract.TxSelector{Begin: true}).Tx.ID
				}
				for _, sql := range k.then {
					c.must(sql, contract.TxSelector{ID: id})
				}
				for range 2 {
					refused(c.T, c.face.Commit(c.Context(), id), k.code, k.safe, k.unknown)
				}
				if n := c.Count(&c.Commits); n != 1 {
					c.Errorf("the commit was sent %d times; want 1", n)
				}
			})
		})
	}
}

func TestCallThatWasNotSentLeavesTheTransactionOpen(t *testing.T) {
	make := func(t *testing.T) *facadetest.Driver {
		f := facadetest.Numbered(t)
		refuse := true
		f.Fail = func(call upstream.Call) error {
			f.Mu.Lock()
			defer f.Mu.Unlock()
			if call.Name == "Execute" && refuse {
				refuse = false
				return &upstream.Error{Op: "ExecuteQuery", Node: 1, Verdict: ydbstatus.Judge(ydbstatus.Signs{Unrouted: true})}
			}
			return nil
		}
		return f
	}
	eachTx(t, small(), make, func(c txCase) {
		id := c.begin()
		_, err := c.run("A", contract.TxSelector{ID: id, Seq: 1})
		refused(c.T, err, "UPSTREAM_LOST", true, false)
		c.must("A", contract.TxSelector{ID: id, Seq: 1})
		if err := c.face.Commit(c.Context(), id); err != nil {
			c.Error(err)
		}
	})
}

func TestTokensOfAnotherProcess(t *testing.T) {
	other := start(t, small(), facadetest.Numbered(t))
	tx, err := other.http.Begin(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	eachTx(t, small(), facadetest.Numbered, func(c txCase) {
		_, err := c.run("A", contract.TxSelector{ID: tx.ID, Seq: 1})
		e := refused(c.T, err, "TX_LOST", true, false)
		if e.Status != 410 {
			c.Errorf("status %d; want 410", e.Status)
		}
		// Whether the other process committed it before it was lost, nobody knows.
		e = refused(c.T, c.face.Commit(c.Context(), tx.ID), "TX_LOST", false, true)
		if contains(e.Hint, "idempotent") || !contains(e.Hint, "Do not send this call again") {
			c.Errorf("the hint of a commit, which cannot be marked idempotent, is %q", e.Hint)
		}
		_, err = c.run("A", contract.TxSelector{ID: tx.ID, Seq: 1, Commit: true})
		refused(c.T, err, "TX_LOST", false, true)
		refused(c.T, c.face.Rollback(c.Context(), tx.ID), "TX_LOST", false, true)
		_, err = c.face.GetTransaction(c.Context(), tx.ID)
		refused(c.T, err, "TX_LOST", false, true)
	})
}

func TestForgottenTransactionIsRolledBack(t *testing.T) {
	t.Parallel() // it waits more than it works
	cfg := small()
	cfg.Tx.Idle = time.Second // for as long it is known that it was rolled back
	f := facadetest.Numbered(t)
	f.RolledBack = make(chan struct{}, 1)
	b := start(t, cfg, f)
	tx, err := b.http.Begin(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	<-f.RolledBack
	if n := f.Count(&f.Rollbacks); n != 1 {
		t.Errorf("%d rollbacks; want 1", n)
	}
	_, err = b.grpc.Execute(t.Context(), contract.Statement{SQL: "A", Tx: &contract.TxSelector{ID: tx.ID}})
	e := refused(t, err, "TX_LOST", true, false)
	if want := "tx.idle"; !contains(e.Message, want) {
		t.Errorf("%q does not name %s", e.Message, want)
	}
}

func TestStatementEndsWithTheTransaction(t *testing.T) {
	cfg := small()
	cfg.Tx.Max = 60 * time.Millisecond
	f := facadetest.Numbered(t)
	f.Answer = func(
		ctx context.Context, _ *facadetest.Session, _ *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		<-ctx.Done()
		return nil, nil
	}
	b := start(t, cfg, f)
	tx, err := b.http.Begin(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.http.Execute(t.Context(), contract.Statement{SQL: "A", Tx: &contract.TxSelector{ID: tx.ID}})
	if e := refused(t, err, "TX_LOST", true, false); !contains(e.Message, "tx.max") {
		t.Errorf("%q does not name tx.max", e.Message)
	}
}

func TestLimitOfTransactions(t *testing.T) {
	cfg := small()
	cfg.Tx.Limit = 1
	eachTx(t, cfg, facadetest.Numbered, func(c txCase) {
		id := c.begin()
		_, err := c.face.Begin(c.Context(), "")
		if e := refused(c.T, err, "TOO_MANY_OPEN", true, false); !contains(e.Message, "tx.limit") {
			c.Errorf("%q does not name tx.limit", e.Message)
		}
		if err := c.face.Rollback(c.Context(), id); err != nil {
			c.Error(err)
		}
		c.begin()
	})
}

func TestConcurrentCallsOfOneTransaction(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	f := facadetest.Numbered(t)
	good := f.Answer
	f.Answer = func(
		ctx context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		close(begun)
		<-finish
		return good(ctx, s, req)
	}
	b := start(t, small(), f)
	tx, err := b.grpc.Begin(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	step := contract.Statement{SQL: "A", Tx: &contract.TxSelector{ID: tx.ID, Seq: 1}}
	var wg sync.WaitGroup
	answers := make(chan string, 3)
	ask := func() {
		r, err := b.grpc.Execute(t.Context(), step)
		answers <- fmt.Sprint(err, r != nil && r.Rows[0][0] == "1")
	}
	wg.Go(ask)
	<-begun
	wg.Go(ask)
	wg.Go(func() {
		r, err := b.http.Execute(t.Context(), step) // over the other face, even
		answers <- fmt.Sprint(err, r != nil && r.Rows[0][0] == "1")
	})
	_, err = b.http.Execute(t.Context(), contract.Statement{SQL: "B", Tx: &contract.TxSelector{ID: tx.ID, Seq: 2}})
	refused(t, err, "TX_BUSY", true, false)
	close(finish)
	wg.Wait()
	for range 3 {
		if a := <-answers; a != "<nil> true" {
			t.Errorf("a repeat got %s; want the first one's answer", a)
		}
	}
}

func TestDrain(t *testing.T) {
	eachTx(t, small(), facadetest.Numbered, func(c txCase) {
		id := c.begin()
		c.s.core.RefuseNew() // as Drain does first: from here on it has begun
		drained := make(chan error, 1)
		go func() { drained <- c.s.Drain(context.Background()) }()
		for name, err := range map[string]error{
			"execute": func() error {
				_, err := c.face.Execute(c.Context(), contract.Statement{SQL: "A"})
				return err
			}(),
			"begin":  func() error { _, err := c.face.Begin(c.Context(), ""); return err }(),
			"inline": func() error { _, err := c.run("A", contract.TxSelector{Begin: true}); return err }(),
			"transact": func() error {
				_, err := c.face.Transact(c.Context(), contract.Transaction{Statements: []contract.Statement{{SQL: "A"}}})
				return err
			}(),
			"describe": func() error { _, err := c.face.Describe(c.Context(), "t"); return err }(),
			"explain":  func() error { _, err := c.face.Explain(c.Context(), "A", nil); return err }(),
		} {
			c.Run(name, func(t *testing.T) { refused(t, err, "DRAINING", true, false) })
		}
		c.must("A", contract.TxSelector{ID: id}) // what is open goes on
		if st, err := c.face.Status(c.Context()); err != nil || st.State != "draining" || st.Open != 1 {
			c.Errorf("status %+v, %v; want draining with one open", st, err)
		}
		if err := c.face.Commit(c.Context(), id); err != nil {
			c.Error(err)
		}
		if err := <-drained; err != nil {
			c.Errorf("Drain = %v; want nil", err)
		}
	})
}

func TestDrainCutsOffWhatDoesNotEnd(t *testing.T) {
	f := facadetest.Numbered(t)
	begun := make(chan struct{})
	f.Answer = func(
		ctx context.Context, _ *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		close(begun)
		<-ctx.Done()
		return nil, nil
	}
	b := start(t, small(), f)
	if _, err := b.http.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := b.grpc.Execute(context.Background(), contract.Statement{SQL: "A"})
		got <- err
	}()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.s.Drain(ctx); !wasCut(err, 1, 1) {
		t.Errorf("Drain = %v; want one call and one transaction", err)
	}
	refused(t, <-got, "OUTCOME_UNKNOWN", false, true)
	b.s.core.Senders.Wait() // for the rollback, if that took longer than Drain waits
	if n := f.Count(&f.Rollbacks); n != 1 {
		t.Errorf("%d rollbacks; want 1", n)
	}
}

// TestATransactionThatIsNotOpenRunsNothing: a node that says that a transaction has begun, and does
// not open one, is not sent the rest of it, which it would commit statement by statement.
func TestATransactionThatIsNotOpenRunsNothing(t *testing.T) {
	f := &facadetest.Driver{OpensNone: true,
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return nil, nil
		}}
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		f.Taken()
		statement := contract.Statement{SQL: "UPSERT"}
		for name, do := range map[string]func() error{
			"Transact": func() error {
				_, err := face.Transact(
					t.Context(), contract.Transaction{Statements: []contract.Statement{statement, statement, statement}},
				)
				return err
			},
			"Begin": func() error {
				_, err := face.Begin(t.Context(), "")
				return err
			},
		} {
			if err := do(); err == nil {
				t.Errorf("%s: it succeeded", name)
			}
			for _, request := range f.Taken() {
				if request.GetTxControl().GetBeginTx() == nil {
					t.Errorf("%s: %v was sent", name, request)
				}
			}
		}
	})
}
