package yql

import "testing"

func TestNormalForms(t *testing.T) {
	for _, c := range []struct{ text, want, kind string }{
		{"", "", ""},
		{"select 1", "SELECT ?", "SELECT"},
		{"SELECT  a , b\nFROM t -- all\nWHERE id=/* that */$id;", "SELECT a, b FROM t WHERE id = $id", "SELECT"},
		{"SELECT * FROM `a/b` AS t WHERE t.Name = 'Ann' AND t.name = \"x\"u",
			"SELECT * FROM `a/b` AS t WHERE t.Name = ? AND t.name = ?", "SELECT"},
		{"SELECT a FROM t WHERE id IN (1,2, 3)", "SELECT a FROM t WHERE id IN (?)", "SELECT"},
		{"SELECT a FROM t WHERE id IN (1)", "SELECT a FROM t WHERE id IN (?)", "SELECT"},
		{"SELECT a FROM t WHERE id IN (-1, +2, -3.5)", "SELECT a FROM t WHERE id IN (?)", "SELECT"},
		{"SELECT a FROM t WHERE id IN ($a, $b)", "SELECT a FROM t WHERE id IN ($a, $b)", "SELECT"},
		{"UPSERT INTO t (a, b) VALUES (1, 'x'), (2, 'y'), (3, 'z')", "UPSERT INTO t(a, b) VALUES (?)", "UPSERT"},
		{"UPSERT INTO t (a, b) VALUES (1, 'x')", "UPSERT INTO t(a, b) VALUES (?)", "UPSERT"},
		{"UPSERT INTO t (a, b) VALUES (1, $x), (2, $x)", "UPSERT INTO t(a, b) VALUES (?, $x)", "UPSERT"},
		{"INSERT INTO t (a) VALUES (1),(2) RETURNING a", "INSERT INTO t(a) VALUES (?) RETURNING a", "INSERT"},
		{"INSERT INTO t (a) VALUES (1) RETURNING a", "INSERT INTO t(a) VALUES (?) RETURNING a", "INSERT"},
		{"SELECT * FROM AS_TABLE(AsList(AsStruct(1 AS id, 'a' AS n), AsStruct(2 AS id, 'b' AS n)))",
			"SELECT * FROM AS_TABLE(AsList(AsStruct(? AS id, ? AS n)))", "SELECT"},
		{"SELECT [[1,2],[3]]", "SELECT [[?]]", "SELECT"},
		{"DECLARE $id AS Uint64; PRAGMA TablePathPrefix('/x'); select a from t where id = $id",
			"DECLARE $id AS Uint64; PRAGMA TablePathPrefix(?); SELECT a FROM t WHERE id = $id", "SELECT"},
		{"DECLARE $id AS Uint64;", "DECLARE $id AS Uint64", ""},
		{"$x = SELECT 1; DELETE FROM t", "$x = SELECT ?; DELETE FROM t", "SELECT"},
		{"SELECT a-1, a - -1, -a, 5-3", "SELECT a - ?, a - ?, - a, ? - ?", "SELECT"},
		{"SELECT true, False, NULL, x IS NULL", "SELECT ?, ?, NULL, x IS NULL", "SELECT"},
		{"SELECT COUNT(*)*2 FROM t WHERE a<=1 AND b!=2 OR c||'d'==e",
			"SELECT COUNT(*) * ? FROM t WHERE a <= ? AND b != ? OR c || ? == e", "SELECT"},
		{"SELECT 'open", "SELECT ?", "SELECT"},
		{"SELECT 1 /* open", "SELECT ? ?", "SELECT"},
		{"--!ansi_lexer\nSELECT \"a\" FROM t WHERE b = 'it''s'", "SELECT \"a\" FROM t WHERE b = ?", "SELECT"},
		{"SELECT t.order, t.Order FROM t ORDER by t.order", "SELECT t.order, t.Order FROM t ORDER BY t.order", "SELECT"},
		{"SELECT @@secret@@j, x'00', 1.5e3, 10ul", "SELECT ?, ?", "SELECT"},
		{")))(1", ")))(?", ""},
		{"CREATE USER u PASSWORD 'x'; ALTER USER u PASSWORD hunter2 LOGIN",
			"CREATE USER u PASSWORD ?; ALTER USER u PASSWORD ? LOGIN", "CREATE"},
		{"CREATE USER u PASSWORD NULL", "CREATE USER u PASSWORD NULL", "CREATE"},
		{"CREATE OBJECT s (TYPE SECRET) WITH (value=hunter2)", "CREATE OBJECT s(TYPE SECRET) WITH (value = ?)", "CREATE"},
		{"UPSERT OBJECT s (TYPE SECRET) WITH value = `hunter2`", "UPSERT OBJECT s(TYPE SECRET) WITH value = ?", "UPSERT"},
		{"ALTER OBJECT s (TYPE SECRET) SET value=hunter2; SELECT password FROM t WHERE a = b",
			"ALTER OBJECT s(TYPE SECRET) SET value = ?; SELECT PASSWORD FROM t WHERE a = b", "ALTER"},
		{"SELECT 1 / *, - - a", "SELECT ? / *, - - a", "SELECT"},
	} {
		n := AppendNormal(nil, c.text)
		if got := string(n.Text); got != c.want || n.Kind != c.kind {
			t.Errorf("%s\n got %s (%s)\nwant %s (%s)", c.text, got, n.Kind, c.want, c.kind)
		}
	}
}

// Forms may keep parts of strings that do not end where their authors think, and say so.
func TestTornStrings(t *testing.T) {
	for text, want := range map[string][2]bool{
		"SELECT 'a' AS b, 'it\\'s', 'a'AS c FROM t":  {},
		"SELECT a FROM t WHERE b = 'O'Brien secret'": {true, true},
		"VALUES ('O'Brien secret', 'D'Arcy')":        {true, false},
		"SELECT 'a\\' AND b = 'secret'":              {true, true},
		"SELECT 'rock ' n roll'":                     {false, true},
		"SELECT a /* b":                              {false, true},
		"SELECT `a":                                  {false, true},
	} {
		if n := AppendNormal(nil, text); n.Torn != want[0] || n.Open != want[1] {
			t.Errorf("%s: torn %v, open %v", text, n.Torn, n.Open)
		}
	}
}

// No normal form has a literal.
func FuzzNormal(f *testing.F) {
	for _, text := range []string{"SELECT 'zq1', (\"zq2\"u, 3)", "--!ansi_lexer\nSELECT 'zq''1'",
		"VALUES (1),('zq'),(-2)", "SELECT @@zq@@ /*", "((("} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if Postgres(text) {
			return
		}
		once := AppendNormal(nil, text)
		if len(once.Text) > 4*len(text)+1 {
			t.Errorf("%q became %d bytes", text, len(once.Text))
		}
		l := NewLexer(text)
		if l.ansi {
			return // its form has lost the line that says so
		}
		form := NewLexer(string(once.Text))
		for tok := form.Next(); tok.Kind != EOF; tok = form.Next() {
			if tok.Kind == String || tok.Kind == Number || tok.Kind == Bad {
				t.Fatalf("%q became %q, which has the literal %q", text, once.Text, form.Text(tok))
			}
		}
	})
}

func BenchmarkAppendNormal(b *testing.B) {
	text := "DECLARE $id AS Uint64; SELECT id, name, created FROM `users` WHERE id = $id AND kind IN ('a', 'b', 'c') AND age > 18"
	room := make([]byte, 0, 1024)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		AppendNormal(room, text)
	}
}
