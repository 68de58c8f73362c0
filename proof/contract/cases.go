package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

// cases is the contract.
var cases = []contractCase{
	{"a_literal", literal},
	{"values_of_every_type_come_back", everyType},
	{"parameters_take_declared_types", declared},
	{"parameters_take_plain_types", plainTypes},
	{"integers_take_the_types_of_columns", columnTypes},
	{"several_statements_have_several_sets", sets},
	{"every_mode", everyMode},
	{"limits_cut_and_say_so", limits},
	{"statistics", statistics},
	{"rows_affected", rowsAffected},
	{"errors_of_the_database", databaseErrors},
	{"errors_of_the_request", requestErrors},
	{"statuses_are_as_documented", statuses},
	{"fields_that_there_are_not", strangeFields},
	{"headers_that_come_twice", headersTwice},
	{"a_stream_has_all_rows_and_an_end", stream},
	{"a_stream_that_fails", failingStream},
	{"a_deadline", deadline},
	{"transact", transact},
	{"transact_keeps_all_or_nothing", transactFails},
	{"expectations_of_a_list", expectations},
	{"a_list_in_an_open_transaction", listInTx},
	{"commit_keeps", commitKeeps},
	{"rollback_keeps_nothing", rollbackKeepsNothing},
	{"begin_and_commit_inline", inline},
	{"a_repeated_statement_runs_once", repeated},
	{"a_failed_statement_ends_the_transaction", failedStatement},
	{"two_transactions_conflict", conflict},
	{"a_stream_in_a_transaction", streamInTx},
	{"tokens", tokens},
	{"batch", batch},
	{"bulk_upsert", bulk},
	{"ingest", ingest},
	{"explain", explain},
	{"describe", describe},
	{"status", state},
	{"version", whatIsServed},
}

func everyMode(t *test) {
	for _, mode := range []string{"", "implicit", "serializable_rw", "snapshot_ro", "snapshot_rw", "stale_ro", "online_ro"} {
		r, err := t.Execute(t.ctx, Statement{SQL: "SELECT 1 AS a", Mode: mode, Idempotent: true})
		if err != nil || len(r.Rows) != 1 {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
}

// fill writes n rows: id and n from 0, name of 100 bytes.
func (t *test) fill(table string, n int) {
	t.Helper()
	name := strings.Repeat("x", 100)
	for at := 0; at < n; at += 1000 {
		b := Bulk{Table: pathOf(table)}
		for i := at; i < min(n, at+1000); i++ {
			b.Rows = append(b.Rows, map[string]any{"id": i, "name": name, "n": i})
		}
		if _, err := t.BulkUpsert(t.ctx, b); err != nil {
			t.Fatalf("fill %s: %v", table, err)
		}
	}
}

func limits(t *test) {
	table := t.table()
	t.fill(table, 20)
	sql := "SELECT id, name FROM " + table + " ORDER BY id"
	for _, c := range []struct {
		rows, bytes uint64
		least, most int
	}{{5, 0, 5, 5}, {0, 1000, 1, 10}, {20, 0, 20, 20}, {100, 1 << 20, 20, 20}} {
		for kind, run := range map[string]func(context.Context, Statement) (*Reply, error){"whole": t.Execute, "stream": t.Stream} {
			r, err := run(t.ctx, Statement{SQL: sql, Rows: c.rows, Bytes: c.bytes, Mode: "snapshot_ro"})
			if err != nil {
				t.Errorf("limits %d, %d: %v", c.rows, c.bytes, err)
				continue
			}
			if n := len(r.Rows); n < c.least || n > c.most || r.Truncated != (n < 20) {
				t.Errorf("%s, limits %d rows, %d bytes: %d rows, truncated %v; want %d to %d", kind, c.rows, c.bytes, n,
					r.Truncated, c.least, c.most)
			}
		}
	}
}

func statistics(t *test) {
	table := t.table()
	t.fill(table, 3)
	for _, mode := range []string{"basic", "full"} {
		if r := t.mustRun(Statement{SQL: "SELECT * FROM " + table, Stats: mode}); !r.Stats {
			t.Errorf("no statistics with %q", mode)
		}
	}
	if r := t.mustRun(Statement{SQL: "SELECT * FROM " + table, Stats: "none"}); r.Stats {
		t.Errorf("statistics nobody asked for")
	}
}

func rowsAffected(t *test) {
	table := t.table()
	t.fill(table, 3)
	// affected checks the count of one reply. A count that is not wanted, and statistics that were not asked for, are errors.
	affected := func(what string, r *Reply, want ...uint64) {
		t.Helper()
		switch {
		case r.Stats:
			t.Errorf("%s has statistics", what)
		case len(want) == 0 && r.Affected != nil:
			t.Errorf("%s affected %d rows; want no count", what, *r.Affected)
		case len(want) > 0 && (r.Affected == nil || *r.Affected != want[0]):
			t.Errorf("%s: rows_affected is %v; want %d", what, r.Affected, want[0])
		}
	}
	for _, c := range []struct {
		sql  string
		want []uint64
	}{
		{"SELECT * FROM " + table, nil},
		{"INSERT INTO " + table + " (id, n) VALUES (10ul, 1), (11ul, 1)", []uint64{2}},
		{"UPSERT INTO " + table + " (id, n) VALUES (10ul, 2)", []uint64{1}},
		{"UPDATE " + table + " SET n = 5 WHERE id < 3", []uint64{3}},
		{"UPDATE " + table + " SET n = 5 WHERE id = 1000", []uint64{0}},
		{"DELETE FROM " + table + " WHERE id = 11", []uint64{1}},
		{"UPDATE " + table + " SET n = 6 WHERE id = 10; SELECT n FROM " + table, []uint64{1}},
	} {
		affected(c.sql, t.mustRun(Statement{SQL: c.sql, Idempotent: true}), c.want...)
	}
	r, err := t.Stream(t.ctx, Statement{SQL: "UPDATE " + table + " SET n = 7 WHERE id < 2"})
	if err != nil {
		t.Fatal(err)
	}
	affected("a stream", r, 2)
	list := []Statement{{SQL: "SELECT 1 AS one"}, {SQL: "UPDATE " + table + " SET n = 8 WHERE id < 2", Mode: "serializable_rw"}}
	for name, run := range map[string]func() ([]*Reply, error){
		"batch":    func() ([]*Reply, error) { return t.Batch(t.ctx, list) },
		"transact": func() ([]*Reply, error) { return t.Transact(t.ctx, Transaction{Statements: list}) },
	} {
		got, err := run()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		affected(name+", the read", got[0])
		affected(name+", the write", got[1], 2)
	}
	if r := t.mustRun(
		Statement{SQL: "UPDATE " + table + " SET n = 9 WHERE id = 0", Stats: "basic"},
	); !r.Stats || r.Affected == nil || *r.Affected != 1 {
		t.Errorf("with statistics: statistics %v, rows_affected %v; want both", r.Stats, r.Affected)
	}
}

func databaseErrors(t *test) {
	table := t.table()
	t.fill(table, 1)
	for _, c := range []struct {
		sql, code string
		http      int
		grpc      codes.Code
	}{
		{"SELEC 1", "YDB_GENERIC_ERROR", 400, codes.InvalidArgument},
		{"SELECT * FROM " + nowhere(table), "YDB_SCHEME_ERROR", 400, codes.FailedPrecondition},
		{"INSERT INTO " + table + " (id) VALUES (0ul)", "YDB_PRECONDITION_FAILED", 409, codes.AlreadyExists},
	} {
		_, err := t.Execute(t.ctx, Statement{SQL: c.sql})
		e := t.refused(err, c.code, false, false)
		t.status(e, c.http, c.grpc)
		if e.YDB != strings.TrimPrefix(c.code, "YDB_") || e.Issues == 0 {
			t.Errorf("%s: ydb status %q, %d issues; want the database's own", c.sql, e.YDB, e.Issues)
		}
		_, err = t.Stream(t.ctx, Statement{SQL: c.sql})
		t.status(t.refused(err, c.code, false, false), c.http, c.grpc)
	}
}

func requestErrors(t *test) {
	for _, s := range []Statement{
		{}, {SQL: "SELECT 1", Mode: "dirty"}, {SQL: "SELECT 1", Stats: "much"}, {SQL: "SELECT 1", Timeout: "soon"},
		{SQL: "SELECT 1", Priority: "first"}, {SQL: "SELECT $a", Params: map[string]any{"a": nil}},
		{SQL: "DECLARE $a AS Uint8; SELECT $a", Params: map[string]any{"a": -1}},
		{SQL: "SELECT 1", Types: map[string]string{"a": "Number"}}, {SQL: "SELECT $a AS a", Params: map[string]any{"a": Typed{"Nope", 1}}},
		{SQL: "SELECT 1", Tx: &TxSelector{}}, {SQL: "SELECT 1", Tx: &TxSelector{ID: "x"}},
	} {
		_, err := t.Execute(t.ctx, s)
		t.refused(err, "BAD_REQUEST", false, false)
	}
	if _, err := t.Begin(t.ctx, "online_ro"); err == nil {
		t.Error("an interactive transaction of online_ro began")
	}
}

func stream(t *test) {
	n := t.of(3000, 1500) // more than a node sends in one part
	table := t.table()
	t.fill(table, n)
	r, err := t.Stream(t.ctx, Statement{SQL: "SELECT id, name FROM " + table + " ORDER BY id", Mode: "snapshot_ro", Stats: "basic"})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != n || r.EndRows != uint64(n) || r.Truncated {
		t.Fatalf("%d rows, the end says %d, truncated %v; want %d", len(r.Rows), r.EndRows, r.Truncated, n)
	}
	for i, row := range r.Rows {
		if row[0] != fmt.Sprint(i) || len(row[1].(string)) != 100 {
			t.Fatalf("row %d is %v", i, row)
		}
	}
	if parts := slices.Compact(slices.Clone(r.Lines)); !slices.Equal(parts, []string{"columns", "rows", "end"}) {
		t.Errorf("parts %v", parts)
	}
	if !r.Stats || r.Info.Node == 0 {
		t.Errorf("the end has stats %v and info %+v", r.Stats, r.Info)
	}
}

func failingStream(t *test) {
	_, err := t.Stream(t.ctx, Statement{SQL: "SELECT nothing"})
	e := t.refused(err, "YDB_GENERIC_ERROR", false, false)
	if e.Status != 400 {
		t.Errorf("status %d; want 400", e.Status)
	}
}

func deadline(t *test) {
	_, err := t.Execute(t.ctx, Statement{SQL: "SELECT 1", Timeout: "1ns", Mode: "snapshot_ro"})
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != "DEADLINE_EXCEEDED" && e.Code != "POOL_TIMEOUT" && e.Code != "SHED_DEADLINE" || !e.Safe {
		t.Errorf("got %v; want a deadline that left nothing", err)
	}
}

func transact(t *test) {
	table := t.table()
	got, err := t.Transact(t.ctx, Transaction{Idempotent: true, Statements: []Statement{
		{SQL: "DECLARE $id AS Uint64; UPSERT INTO " + table + " (id, n) VALUES ($id, 1)", Params: map[string]any{"id": 1}},
		{SQL: "SELECT n FROM " + table + " WHERE id = 1"},
		{SQL: "UPSERT INTO " + table + " (id, n) VALUES (2ul, 2); SELECT 5 AS five; SELECT 6 AS six"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.same("it sees what it wrote", got[1].Rows, [][]any{{"1"}})
	if len(got) != 3 || len(got[0].Rows) != 0 || len(got[2].Sets) != 2 {
		t.Errorf("%d results: %+v", len(got), got)
	}
	t.rows("SELECT id, n FROM "+table+" ORDER BY id", []any{"1", "1"}, []any{"2", "2"})
}

func transactFails(t *test) {
	table := t.table()
	_, err := t.Transact(t.ctx, Transaction{Statements: []Statement{
		{SQL: "UPSERT INTO " + table + " (id, n) VALUES (1ul, 1)"},
		{SQL: "INSERT INTO " + table + " (id, n) VALUES (2ul, 2), (2ul, 3)"},
		{SQL: "SELEC"},
	}})
	if err == nil {
		t.Fatal("a transaction with a broken statement was committed")
	}
	t.rows("SELECT id FROM " + table)
	_, err = t.Transact(t.ctx, Transaction{})
	t.refused(err, "BAD_REQUEST", false, false)
}

// tx begins an interactive transaction.
func (t *test) tx(mode string) string {
	t.Helper()
	tx, err := t.Begin(t.ctx, mode)
	if err != nil {
		t.Fatal(err)
	}
	if tx.ID == "" || tx.Expires <= 0 {
		t.Fatalf("begin answered %+v", tx)
	}
	return tx.ID
}

func commitKeeps(t *test) {
	table := t.table()
	id := t.tx("")
	for i := range 3 {
		r := t.mustRun(
			Statement{SQL: fmt.Sprintf("UPSERT INTO %s (id, n) VALUES (%dul, %d)", table, i, i),
				Tx: &TxSelector{ID: id, Seq: uint64(i + 1)}},
		)
		if r.Tx == nil || r.Tx.ID != id || r.Tx.Expires <= 0 {
			t.Errorf("statement %d left %+v open", i, r.Tx)
		}
	}
	t.same("it sees what it wrote",
		t.mustRun(Statement{SQL: "SELECT COUNT(*) AS c FROM " + table, Tx: &TxSelector{ID: id, Seq: 4}}).Rows,
		[][]any{{"3"}})
	t.rows("SELECT COUNT(*) AS c FROM "+table, []any{"0"})
	open, err := t.GetTransaction(t.ctx, id)
	if err != nil || open.Seq != 4 || open.Mode != "serializable_rw" || open.Node == 0 || open.Tx.ID != id {
		t.Errorf("it is %+v, %v; want 4 statements of serializable_rw", open, err)
	}
	for range 2 { // the second is a repeat
		if err := t.Commit(t.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	t.rows("SELECT COUNT(*) AS c FROM "+table, []any{"3"})
	_, err = t.Execute(t.ctx, Statement{SQL: "SELECT 1", Tx: &TxSelector{ID: id, Seq: 5}})
	t.refused(err, "TX_COMMITTED", false, false)
}

func rollbackKeepsNothing(t *test) {
	table := t.table()
	id := t.tx("serializable_rw")
	t.mustRun(Statement{SQL: "UPSERT INTO " + table + " (id, n) VALUES (1ul, 1)", Tx: &TxSelector{ID: id}})
	for range 2 {
		if err := t.Rollback(t.ctx, id); err != nil {
			t.Error(err)
		}
	}
	t.rows("SELECT id FROM " + table)
	_, err := t.Execute(t.ctx, Statement{SQL: "SELECT 1", Tx: &TxSelector{ID: id}})
	e := t.refused(err, "TX_LOST", true, false)
	if e.Status != 410 {
		t.Errorf("status %d; want 410", e.Status)
	}
	t.refused(t.Commit(t.ctx, id), "TX_LOST", true, false)
	_, err = t.GetTransaction(t.ctx, id)
	t.refused(err, "TX_LOST", true, false)
}

func inline(t *test) {
	table := t.table()
	r := t.mustRun(Statement{SQL: "UPSERT INTO " + table + " (id, n) VALUES (1ul, 1)", Tx: &TxSelector{Begin: true, Seq: 1}})
	if r.Tx == nil {
		t.Fatal("nothing was begun")
	}
	t.rows("SELECT id FROM " + table)
	last := Statement{SQL: "UPSERT INTO " + table + " (id, n) VALUES (2ul, 2)", Tx: &TxSelector{ID: r.Tx.ID, Seq: 2, Commit: true}}
	for range 2 { // the second is a repeat
		if r := t.mustRun(last); r.Tx != nil {
			t.Errorf("%+v is open after the commit", r.Tx)
		}
	}
	t.rows("SELECT id FROM "+table+" ORDER BY id", []any{"1"}, []any{"2"})
	r = t.mustRun(Statement{SQL: "UPSERT INTO " + table + " (id, n) VALUES (3ul, 3)", Tx: &TxSelector{Begin: true, Commit: true}})
	if r.Tx != nil {
		t.Errorf("%+v is open", r.Tx)
	}
	t.rows("SELECT COUNT(*) AS c FROM "+table, []any{"3"})
}

func repeated(t *test) {
	table := t.table()
	t.fill(table, 1)
	id := t.tx("")
	add := Statement{SQL: "UPDATE " + table + " SET n = n + 1 WHERE id = 0; SELECT n FROM " + table + " WHERE id = 0",
		Tx: &TxSelector{ID: id, Seq: 1}}
	for range 3 {
		t.same("the same answer each time", t.mustRun(add).Rows, [][]any{{"1"}})
	}
	add.Tx.Seq = 3
	_, err := t.Execute(t.ctx, add)
	t.refused(err, "SEQ_OUT_OF_ORDER", false, false)
	other := Statement{SQL: "SELECT 1", Tx: &TxSelector{ID: id, Seq: 1}}
	_, err = t.Execute(t.ctx, other)
	t.refused(err, "SEQ_OUT_OF_ORDER", false, false)
	if err := t.Commit(t.ctx, id); err != nil {
		t.Fatal(err)
	}
	t.rows("SELECT n FROM "+table, []any{"1"})
}

func failedStatement(t *test) {
	table := t.table()
	id := t.tx("")
	t.mustRun(Statement{SQL: "UPSERT INTO " + table + " (id, n) VALUES (1ul, 1)", Tx: &TxSelector{ID: id, Seq: 1}})
	bad := Statement{SQL: "SELECT nothing", Tx: &TxSelector{ID: id, Seq: 2}}
	for range 2 { // the repeat hears the same
		_, err := t.Execute(t.ctx, bad)
		t.refused(err, "YDB_GENERIC_ERROR", false, false)
	}
	_, err := t.Execute(t.ctx, Statement{SQL: "SELECT 1", Tx: &TxSelector{ID: id, Seq: 3}})
	t.refused(err, "TX_LOST", true, false)
	if err := t.Rollback(t.ctx, id); err != nil {
		t.Errorf("rolling back what is rolled back: %v", err)
	}
	t.rows("SELECT id FROM " + table)
}

func conflict(t *test) {
	table := t.table()
	t.fill(table, 1)
	add := "UPDATE " + table + " SET n = n + 1 WHERE id = 0"
	first, second := t.tx(""), t.tx("")
	for _, id := range []string{first, second} {
		t.mustRun(Statement{SQL: "SELECT n FROM " + table + " WHERE id = 0", Tx: &TxSelector{ID: id, Seq: 1}})
	}
	failed := 0
	for _, id := range []string{first, second} {
		_, err := t.Execute(t.ctx, Statement{SQL: add, Tx: &TxSelector{ID: id, Seq: 2}})
		if err == nil {
			err = t.Commit(t.ctx, id)
		}
		if err != nil {
			failed++
			t.refused(err, "YDB_ABORTED", true, false)
		}
	}
	if failed != 1 {
		t.Errorf("%d of two conflicting transactions failed; want 1", failed)
	}
	t.rows("SELECT n FROM "+table, []any{"1"})
}

func streamInTx(t *test) {
	table := t.table()
	t.fill(table, 50)
	id := t.tx("snapshot_ro")
	for range 2 { // the second is answered from memory
		r, err := t.Stream(t.ctx, Statement{SQL: "SELECT id FROM " + table + " ORDER BY id", Tx: &TxSelector{ID: id, Seq: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Rows) != 50 || r.Tx == nil || r.Tx.ID != id {
			t.Errorf("%d rows, %+v open; want 50 and the transaction", len(r.Rows), r.Tx)
		}
	}
	if err := t.Commit(t.ctx, id); err != nil {
		t.Error(err)
	}
}

func tokens(t *test) {
	foreign := "tx_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	_, err := t.Execute(t.ctx, Statement{SQL: "SELECT 1", Tx: &TxSelector{ID: foreign, Seq: 1}})
	t.refused(err, "TX_LOST", true, false)
	t.refused(t.Commit(t.ctx, foreign), "TX_LOST", false, true)
	t.refused(t.Rollback(t.ctx, foreign), "TX_LOST", false, true)
	t.refused(t.Commit(t.ctx, "nonsense"), "BAD_REQUEST", false, false)
	_, err = t.GetTransaction(t.ctx, "tx_short")
	t.refused(err, "BAD_REQUEST", false, false)
}

func batch(t *test) {
	table := t.table()
	got, err := t.Batch(t.ctx, []Statement{
		{SQL: "UPSERT INTO " + table + " (id, n) VALUES (1ul, 1)", Idempotent: true},
		{SQL: "SELECT nothing"},
		{SQL: "DECLARE $a AS Uint8; SELECT $a AS a", Params: map[string]any{"a": 7}, Mode: "snapshot_ro"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[0].Error != nil || got[2].Error != nil || got[2].Rows[0][0] != "7" {
		t.Errorf("results %+v", got)
	}
	if e := got[1].Error; e == nil || e.Code != "YDB_GENERIC_ERROR" {
		t.Errorf("the broken one: %v", e)
	}
	t.rows("SELECT n FROM "+table, []any{"1"})
}

func bulk(t *test) {
	table := t.table()
	write := func(rows ...map[string]any) {
		t.Helper()
		n, err := t.BulkUpsert(t.ctx, Bulk{Table: pathOf(table), Rows: rows})
		if err != nil || n != uint64(len(rows)) {
			t.Fatalf("%d rows, %v; want %d", n, err, len(rows))
		}
	}
	write(map[string]any{"id": 1, "name": "a", "n": 1}, map[string]any{"id": 2, "name": "b", "n": 2})
	write(map[string]any{"id": 1, "name": nil}, map[string]any{"id": 2, "n": 20}) // the other column stays
	t.rows("SELECT id, name, n FROM "+table+" ORDER BY id", []any{"1", nil, "1"}, []any{"2", "b", "20"})
	for _, row := range []map[string]any{{"id": 1, "colour": "red"}, {"id": "x"}} {
		_, err := t.BulkUpsert(t.ctx, Bulk{Table: pathOf(table), Rows: []map[string]any{row}})
		t.refused(err, "BAD_REQUEST", false, false)
	}
	_, err := t.BulkUpsert(t.ctx, Bulk{Table: pathOf(nowhere(table)), Rows: []map[string]any{{"id": 1}}})
	t.status(t.refused(err, "YDB_SCHEME_ERROR", false, false), 400, codes.FailedPrecondition)
}

func explain(t *test) {
	plan, err := t.Explain(t.ctx, "SELECT 1", nil)
	if err != nil || plan == "" {
		t.Errorf("plan %q, %v", plan, err)
	}
	if _, err = t.Explain(t.ctx, "SELECT $a + 1", map[string]string{"a": "Int32"}); err != nil {
		t.Errorf("with the type of a parameter: %v", err)
	}
	_, err = t.Explain(t.ctx, "SELEC", nil)
	t.refused(err, "YDB_GENERIC_ERROR", false, false)
}

func describe(t *test) {
	table := t.table()
	got, err := t.Describe(t.ctx, pathOf(table))
	if err != nil {
		t.Fatal(err)
	}
	want := []TableColumn{{"id", "Uint64", true}, {"n", "Optional<Int32>", false}, {"name", "Optional<Utf8>", false}}
	slices.SortFunc(got.Columns, func(a, b TableColumn) int { return strings.Compare(a.Name, b.Name) })
	if diff := cmp.Diff(want, got.Columns); diff != "" || !slices.Equal(got.PrimaryKey, []string{"id"}) ||
		!strings.HasSuffix(got.Path, "/"+pathOf(table)) {
		t.Errorf("%s, key %v (-want +got):\n%s", got.Path, got.PrimaryKey, diff)
	}
	if again, err := t.Describe(t.ctx, got.Path); err != nil || again.Path != got.Path {
		t.Errorf("by its absolute path: %+v, %v", again, err)
	}
	_, err = t.Describe(t.ctx, pathOf(nowhere(table)))
	t.status(t.refused(err, "YDB_SCHEME_ERROR", false, false), 404, codes.NotFound)
}

func state(t *test) {
	before := time.Now()
	s, err := t.Status(t.ctx)
	if err != nil || s.State != "serving" || !strings.HasPrefix(s.Database, "/") {
		t.Errorf("status %+v, %v after %v; want serving and the database", s, err, time.Since(before))
	}
}

func whatIsServed(t *test) {
	api, features, err := t.Version(t.ctx)
	if err != nil || api != "v1" {
		t.Errorf("%q, %v; want v1", api, err)
	}
	for _, name := range []string{"kv", "ingest", "column_types", "rows_affected", "expect", "lists_in_tx",
		"operator_hint", "moving_streams"} {
		if !slices.Contains(features, name) {
			t.Errorf("the features %q lack %s, which the cases use", features, name)
		}
	}
}
