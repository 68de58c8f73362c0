package contract

import "strings"

// expecting is a statement that must return n rows.
func expecting(sql string, n uint64) Statement { return Statement{SQL: sql, Expect: &n} }

func expectations(t *test) {
	table := t.table()
	t.fill(table, 3)
	read := "SELECT id FROM " + table + " WHERE id < 10ul"
	write := Statement{SQL: "UPSERT INTO " + table + " (id, n) VALUES (20ul, 1)"}
	for name, list := range map[string][]Statement{
		"alone": {expecting(read, 3)}, "first": {expecting(read, 3), write}, "last": {write, expecting(read, 3)},
		"none": {expecting("SELECT id FROM "+table+" WHERE id = 1000ul", 0), write},
	} {
		if _, err := t.Transact(t.ctx, Transaction{Statements: list}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.rows("SELECT id FROM "+table+" WHERE id >= 20ul", []any{"20"}) // the list was committed
	write.SQL = strings.Replace(write.SQL, "20ul", "30ul", 1)
	for name, c := range map[string]struct {
		list []Statement
		at   string
	}{
		"first":             {[]Statement{expecting(read, 2), write}, "statements[0]"},
		"last":              {[]Statement{write, expecting(read, 4)}, "statements[1]"},
		"not cut by limits": {[]Statement{write, expecting(read, 1)}, "statements[1]"},
	} {
		_, err := t.Transact(t.ctx, Transaction{Statements: c.list, Rows: 1})
		e := t.refused(err, "EXPECTATION_FAILED", false, false)
		if e.Status != 409 || !strings.Contains(e.Message, c.at) {
			t.Errorf("%s: status %d, %q; want 409 and %s", name, e.Status, e.Message, c.at)
		}
	}
	t.rows("SELECT id FROM " + table + " WHERE id >= 30ul") // nothing was kept
	_, err := t.Transact(t.ctx, Transaction{Statements: []Statement{{SQL: "SELECT 1"}, expecting(write.SQL, 1)}})
	if e := t.refused(err, "BAD_REQUEST", false, false); !strings.Contains(e.Message, "statements[1]: expect.rows") ||
		!strings.Contains(e.Message, "RETURNING") {
		t.Errorf("%q does not say what to write", e.Message)
	}
}

func listInTx(t *test) {
	table := t.table()
	add := Statement{SQL: "UPSERT INTO " + table + " (id, n) SELECT COUNT(*) AS id, 1 AS n FROM " + table}
	count := Statement{SQL: "SELECT COUNT(*) AS c FROM " + table}
	run := func(tx TxSelector, list ...Statement) []*Reply {
		t.Helper()
		r, err := t.Transact(t.ctx, Transaction{Statements: list, Tx: &tx})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := run(TxSelector{Begin: true}, add, count)
	if first[0].Tx == nil {
		t.Fatal("nothing was begun")
	}
	id := first[0].Tx.ID
	t.same("it sees what it wrote", first[1].Rows, [][]any{{"1"}})
	t.rows(count.SQL, []any{"0"})
	for range 3 { // the second and the third are repeats
		r := run(TxSelector{ID: id, Seq: 2}, add, count, add, count)
		t.same("the same answer each time", append(r[1].Rows, r[3].Rows...), [][]any{{"2"}, {"3"}})
		if r[0].Tx == nil || r[0].Tx.ID != id {
			t.Errorf("%+v is open; want the transaction", r[0].Tx)
		}
	}
	_, err := t.Transact(t.ctx, Transaction{Statements: []Statement{add}, Tx: &TxSelector{ID: id, Seq: 2}})
	t.refused(err, "SEQ_OUT_OF_ORDER", false, false)
	if open, err := t.GetTransaction(t.ctx, id); err != nil || open.Seq != 2 {
		t.Errorf("it is %+v, %v; a list takes one number", open, err)
	}
	last := []Statement{add, expecting("SELECT id FROM "+table, 4)}
	for range 2 { // the second is a repeat
		if r := run(TxSelector{ID: id, Seq: 3, Commit: true}, last...); r[0].Tx != nil || len(r[1].Rows) != 4 {
			t.Errorf("%+v is open after the commit, %d rows", r[0].Tx, len(r[1].Rows))
		}
	}
	t.rows(count.SQL, []any{"4"})
	id = run(TxSelector{Begin: true}, add)[0].Tx.ID
	for range 2 { // the repeat hears the same
		_, err = t.Transact(t.ctx, Transaction{Statements: last[1:], Tx: &TxSelector{ID: id, Seq: 2, Commit: true}})
		t.refused(err, "EXPECTATION_FAILED", false, false)
	}
	t.rows(count.SQL, []any{"4"})
	for _, bad := range []Transaction{{Tx: &TxSelector{}}, {Tx: &TxSelector{ID: id}, Mode: "snapshot_ro"},
		{Tx: &TxSelector{Begin: true, Seq: 2}}} {
		bad.Statements = []Statement{add}
		_, err = t.Transact(t.ctx, bad)
		t.refused(err, "BAD_REQUEST", false, false)
	}
}
