package contract

import (
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
)

func literal(t *test) {
	r := t.must("SELECT 1 AS one, 'a' AS b", nil)
	if diff := cmp.Diff([]Column{{"one", "Int32"}, {"b", "String"}}, r.Columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	t.same("rows", r.Rows, [][]any{{"1", "YQ=="}})
	if r.Truncated || r.Tx != nil || r.Stats || len(r.Sets) > 0 {
		t.Errorf("more than was asked for: %+v", r)
	}
	if r.Info.Node == 0 || r.Info.Attempts == 0 {
		t.Errorf("info %+v; want node and attempts", r.Info)
	}
	if !t.driven() && !strings.HasPrefix(r.Info.Timing, "queue;dur=") {
		t.Errorf("info %+v; want Server-Timing", r.Info)
	}
}

func everyType(t *test) {
	for _, c := range []struct {
		typ  string
		in   any
		want any
	}{
		{"Bool", true, true},
		{"Int8", -128, "-128"}, {"Int16", -32768, "-32768"}, {"Int32", -2147483648, "-2147483648"},
		{"Int64", -9223372036854775808, "-9223372036854775808"},
		{"Uint8", 255, "255"}, {"Uint16", 65535, "65535"}, {"Uint32", 4294967295, "4294967295"},
		{"Uint64", uint64(18446744073709551615), "18446744073709551615"},
		{"Uint64", "18446744073709551615", "18446744073709551615"},
		{"Float", 1.5, "1.5"}, {"Double", -0.1, "-0.1"},
		{"Decimal(22,9)", "-12345.000000001", "-12345.000000001"},
		{"Date", "2024-02-29", "2024-02-29"},
		{"Datetime", "2024-02-29T12:30:45Z", "2024-02-29T12:30:45Z"},
		{"Timestamp", "2024-02-29T12:30:45.123456Z", "2024-02-29T12:30:45.123456Z"},
		{"Interval", "-PT1.5S", "-PT1.5S"},
		{"String", []byte{0, 255}, "AP8="},
		{"Utf8", "a\"\n\u00fc\U0001f600", "a\"\n\u00fc\U0001f600"},
		{"Json", `{"a":[1,null]}`, `{"a":[1,null]}`},
		{"Uuid", "5ca32c22-841b-11e8-adc0-fa7ae01bbebc", "5ca32c22-841b-11e8-adc0-fa7ae01bbebc"},
		{"Optional<Int32>", nil, nil}, {"Optional<Utf8>", "x", "x"},
		{"Optional<Optional<Int32>>", []any{nil}, []any{nil}},
		{"List<Int32>", []any{1, 2}, []any{"1", "2"}},
		{"List<Optional<Utf8>>", []any{"a", nil}, []any{"a", nil}},
		{"Struct<a:Int32,b:Optional<Utf8>>", map[string]any{"a": 1, "b": nil}, map[string]any{"a": "1", "b": nil}},
		{"Tuple<Int32,Utf8>", []any{1, "x"}, []any{"1", "x"}},
	} {
		r, err := t.Execute(t.ctx, Statement{
			SQL: "DECLARE $v AS " + c.typ + "; SELECT $v AS v", Params: map[string]any{"v": c.in}, Idempotent: true,
		})
		if err != nil {
			t.Errorf("%s: %v", c.typ, err)
			continue
		}
		if got := r.Columns[0].Type; got != c.typ {
			t.Errorf("%s came back as %s", c.typ, got)
		}
		t.same(c.typ, r.Rows, [][]any{{c.want}})
	}
}

func declared(t *test) {
	table := t.table()
	const sql = "DECLARE $id AS Uint64; DECLARE $name AS Utf8?; DECLARE $n AS Int32; UPSERT INTO %s (id, name, n) VALUES ($id, $name, $n)"
	t.must(fmt.Sprintf(sql, table), map[string]any{"id": 42, "$name": nil, "n": 7})
	r := t.must("DECLARE $id AS Uint64; SELECT id, name, n FROM "+table+" WHERE id = $id", map[string]any{"id": 42})
	t.same("rows", r.Rows, [][]any{{"42", nil, "7"}})
	if r = t.must(
		"DECLARE $id AS Uint64; SELECT id FROM "+table+" WHERE id = $id", map[string]any{"id": 43},
	); len(r.Rows) != 0 || len(r.Columns) != 1 {
		t.Errorf("no row has id 43, got %+v", r.Set)
	}
}

func plainTypes(t *test) {
	r := t.must("SELECT $i AS i, $t AS t, $d AS d, $b AS b", map[string]any{"i": 1, "t": "x", "d": 0.5, "b": true})
	if diff := cmp.Diff([]Column{{"i", "Int64"}, {"t", "Utf8"}, {"d", "Double"}, {"b", "Bool"}}, r.Columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	unsigned := "Int64" // JSON has one kind of integer
	if t.Client.Name() == "grpc" {
		unsigned = "Uint64"
	}
	r = t.must("SELECT $u AS u, $large AS large", map[string]any{"u": uint64(1), "large": uint64(1 << 63)})
	if diff := cmp.Diff([]Column{{"u", unsigned}, {"large", "Uint64"}}, r.Columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	r = t.mustRun(Statement{SQL: "SELECT $i AS i, $n AS n, $v AS v", Params: map[string]any{"i": 1, "n": nil, "v": Typed{"Int16", 5}},
		Types: map[string]string{"i": "Uint8", "$n": "Optional<Utf8>"}})
	if diff := cmp.Diff([]Column{{"i", "Uint8"}, {"n", "Optional<Utf8>"}, {"v", "Int16"}}, r.Columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	t.same("rows", r.Rows, [][]any{{"1", nil, "5"}})
}

// columnTypes gives no types. The same text runs twice: the second time it is known.
func columnTypes(t *test) {
	table := t.table() // (id Uint64, name Utf8, n Int32)
	for i := range 2 {
		for k, sql := range []string{
			"INSERT INTO %s (id, name, n) VALUES ($id, $name, $n)",
			"UPSERT INTO %s (id, name, n) VALUES ($id, $name, $n)",
			"REPLACE INTO %s (id, name, n) VALUES ($id, $name, $n), ($other, $name, $n)",
		} {
			id := 100*i + 10*k
			params := map[string]any{"id": id, "name": "a", "n": -1}
			if strings.Contains(sql, "$other") {
				params["other"] = id + 1
			}
			t.must(fmt.Sprintf(sql, table), params)
		}
		t.must("UPDATE "+table+" SET n = $n WHERE id = $id", map[string]any{"id": 100 * i, "n": 7})
		t.must("UPSERT INTO "+table+" SELECT * FROM AS_TABLE($rows)",
			map[string]any{"rows": []any{map[string]any{"id": 100*i + 30, "n": 3}}})
		t.must("UPSERT INTO "+table+" SELECT $id AS id, $n AS n", map[string]any{"id": 100*i + 40, "n": 4})
	}
	t.rows("SELECT id, n FROM "+table+" WHERE id < 100 ORDER BY id", []any{"0", "7"}, []any{"10", "-1"},
		[]any{"20", "-1"}, []any{"21", "-1"}, []any{"30", "3"}, []any{"40", "4"})
	for sql, params := range map[string]map[string]any{
		"id = $id": {"id": 140}, "id IN $ids": {"ids": []any{140, 150}}, "id IN ($a, $b)": {"a": 140, "b": 150},
		"id BETWEEN $a AND $b":         {"a": 140, "b": 150},
		"id > $a ORDER BY id LIMIT $n": {"a": 139, "n": 1},
	} {
		t.same(sql, t.must("SELECT id FROM "+table+" WHERE "+sql, params).Rows, [][]any{{"140"}})
	}
	r, err := t.Transact(t.ctx, Transaction{Statements: []Statement{
		{SQL: "UPSERT INTO " + table + " (id, n) VALUES ($id, $n)", Params: map[string]any{"id": 500, "n": 5}},
		{SQL: "UPDATE " + table + " SET n = $number WHERE id = $id", Params: map[string]any{"id": 500, "number": 6}},
	}})
	if err != nil || len(r) != 2 {
		t.Errorf("Transact: %v, %v", r, err)
	}
	t.rows("SELECT n FROM "+table+" WHERE id = 500", []any{"6"})

	// In a transaction that the caller repeats, the hint has the words.
	tx, err := t.Begin(t.ctx, "")
	if err == nil {
		_, err = t.Execute(
			t.ctx,
			Statement{SQL: "UPSERT INTO " + table + " (id) VALUES ($id)", Params: map[string]any{"id": 1}, Tx: &TxSelector{ID: tx.ID}},
		)
	}
	e := t.refused(err, "YDB_GENERIC_ERROR", false, false)
	want := "write DECLARE $id AS Uint64; in the statement, or name the type in the request: " +
		`"types": {"id": "Uint64"}`
	if !strings.HasSuffix(e.Hint, want) {
		t.Errorf("hint %q; want ...%s", e.Hint, want)
	}
}

func sets(t *test) {
	r := t.must("SELECT 1 AS a; SELECT 2 AS b, 3 AS c;", nil)
	want := []Set{
		{Columns: []Column{{"a", "Int32"}}, Rows: [][]any{{"1"}}},
		{Columns: []Column{{"b", "Int32"}, {"c", "Int32"}}, Rows: [][]any{{"2", "3"}}},
	}
	if diff := cmp.Diff(want, r.Sets); diff != "" {
		t.Errorf("sets (-want +got):\n%s", diff)
	}
	t.same("the first set", r.Rows, want[0].Rows)
	s, err := t.Stream(t.ctx, Statement{SQL: "SELECT 1 AS a; SELECT 2 AS b, 3 AS c;"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s.Sets); diff != "" {
		t.Errorf("sets of a stream (-want +got):\n%s", diff)
	}
}
