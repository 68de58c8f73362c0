package yql

import (
	"slices"
	"strings"
	"testing"
)

func TestTables(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT 1":                     "",
		"":                             "",
		";;":                           "",
		"SELECT * FROM orders":         "orders",
		"select * from `a/b` as x;":    "a/b",
		"FROM orders SELECT id, total": "orders",
		"SELECT * FROM a, b c, d WHERE x IN (1, 2)":                                            "a b d",
		"SELECT * FROM a AS where, secret":                                                     "a secret",
		"SELECT * FROM a AS x JOIN b AS y ON y.where = x.i, secret":                            "a b secret",
		"SELECT * FROM a AS x JOIN b AS y ON x.i = y . select, secret":                         "a b secret",
		"SELECT * FROM a VIEW where AS x, secret":                                              "a secret",
		"SELECT * FROM a WITH returning AS x, secret":                                          "a secret",
		"SELECT * FROM a JOIN b ON x OVER where = 1, secret":                                   "a b secret",
		"SELECT * FROM a JOIN b ON x = Math::where(x), secret":                                 "a b secret",
		"SELECT * FROM a AS x JOIN b AS y ON x.i = y.i LEFT ONLY JOIN `c` USING (i, j), d":     "a b c d",
		"SELECT * FROM a VIEW idx AS v WHERE v.x = 1 GROUP BY p, q ORDER BY p, q LIMIT 5":      "a",
		"SELECT x FROM (SELECT * FROM a UNION ALL SELECT * FROM b) AS u, c":                    "a b c",
		"SELECT * FROM (a JOIN b ON a.x = b.x) JOIN c ON true":                                 "a b c",
		"SELECT * FROM a UNION (x), b":                                                         "a b",
		"SELECT * FROM a UNION (SELECT x, y FROM b) ORDER BY x, y":                             "a b",
		"SELECT (SELECT max(x) FROM a), y, z FROM b":                                           "a b",
		"SELECT * FROM (VALUES (1, 2), (3, 4)) AS t (p, q)":                                    "",
		"SELECT * FROM (FROM a SELECT x, y)":                                                   "a",
		"SELECT * FROM AS_TABLE($rows) AS r JOIN a ON a.i = r.i":                               "a",
		"SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b) AND c IN (SELECT d FROM e)":            "a b e",
		"INSERT INTO a (x, y) VALUES (1, 2)":                                                   "a",
		"UPSERT INTO `a` (x) SELECT x FROM b":                                                  "a b",
		"INSERT OR REPLACE INTO a SELECT * FROM b":                                             "a b",
		"REPLACE INTO a SELECT x FROM b; DELETE FROM c WHERE x = 1; UPDATE d SET x = 1, y = 2": "a b c d",
		"DELETE FROM a RETURNING x, y":                                                         "a",
		"UPDATE a ON SELECT x FROM b":                                                          "a b",
		"DISCARD SELECT * FROM a":                                                              "a",
		"DECLARE $i AS List<Struct<a:Int32,b:Utf8>>; SELECT * FROM a WHERE i = $i":             "a",
		"$x = SELECT * FROM a; SELECT * FROM $x AS x, b":                                       "a b",
		"$x = (SELECT * FROM a WHERE (b)); $y = ((FROM $x SELECT *)); SELECT * FROM $y":        "a",
		"$n = 5; SELECT ListMap(l, ($v) -> ($v + $n)) FROM a":                                  "a",
		"PRAGMA TablePathPrefix = '/local/p/'; SELECT * FROM a JOIN `/local/b` AS b ON true":   "/local/p/a /local/b",
		"PRAGMA TablePathPrefix(\"/local\");PRAGMA AnsiLike;UPSERT INTO a (x) VALUES (1)":      "/local/a",
		"SELECT Math::Abs(x), String::Strip(y) FROM a":                                         "a",
		"SELECT 'FROM secret', \"x\", @@ JOIN secret @@ /* FROM b */ FROM a -- JOIN c":         "a",
		"SELECT x IS DISTINCT FROM y FROM a":                                                   "y a", // one too many is safe
	} {
		got, why := Tables(text)
		if why != "" || strings.Join(got, " ") != want {
			t.Errorf("%s: %q %q; want %q", text, got, why, want)
		}
	}
}

func TestTablesThatCannotBeTold(t *testing.T) {
	for text, want := range map[string]string{
		"CREATE TABLE a (i Int32, PRIMARY KEY (i))":                        whyStatement,
		"ALTER TABLE a RENAME TO b":                                        whyStatement,
		"EXPLAIN SELECT * FROM a":                                          whyStatement,
		"SHOW CREATE TABLE a":                                              whyStatement,
		"BATCH UPDATE a SET x = 1":                                         whyStatement,
		"UPSERT OBJECT x (TYPE SECRET) WITH value = 1":                     whyStatement,
		"USE other; SELECT 1":                                              whyStatement,
		"$f = ($x) -> { RETURN $x }; SELECT 1":                             whyBraces,
		"DO BEGIN SELECT * FROM a; END DO":                                 whyStatement,
		"$a, $b = AsTuple('s', 1); SELECT * FROM $a":                       whyStatement,
		"$t = 'secret'; SELECT * FROM $t":                                  whyNamed,
		"$t = SELECT 1; $t = 'secret'; SELECT * FROM $t":                   whyNamed,
		"$t = (SELECT 's') || ''; SELECT * FROM $t":                        whyNamed,
		"$t = (SELECT AsList('s'))[0]; SELECT * FROM $t":                   whyNamed,
		"$t = ((SELECT 's') || ''); SELECT * FROM $t":                      whyNamed,
		"$t = (((SELECT 's')) ?? 's'); SELECT * FROM $t":                   whyNamed,
		"$t = ((SELECT AsList('s'))[0]); SELECT * FROM $t":                 whyNamed,
		"$t = ((SELECT 's'), 's'); SELECT * FROM $t":                       whyNamed,
		"DECLARE $t AS Text; SELECT * FROM $t":                             whyNamed,
		"DECLARE $t AS Text; $t = SELECT 1; SELECT * FROM $t":              whyNamed,
		"SELECT * FROM $unknown":                                           whyNamed,
		"$t = SELECT 1; $f = ($t) -> ((SELECT * FROM $t)); SELECT $f('s')": whyNamed,
		"SELECT * FROM $t; $t = SELECT 1":                                  whyNamed,
		"INSERT INTO $t (a) VALUES (1)":                                    whyNoTable,
		"SELECT * FROM EACH('a', 'b')":                                     whyNoTable,
		"SELECT * FROM RANGE(`a`)":                                         whyNoTable,
		"SELECT * FROM CONCAT(a, b)":                                       whyNoTable,
		"SELECT * FROM plato.secret":                                       whyNoTable,
		"SELECT * FROM `c`.`secret`":                                       whyNoTable,
		"SELECT * FROM c:secret":                                           whyNoTable,
		"SELECT * FROM @tmp":                                               whyNoTable,
		"SELECT * FROM ANY a JOIN b ON true":                               whyNoTable,
		"SELECT * FROM 'secret'":                                           whyNoTable,
		"SELECT * FROM":                                                    whyNoTable,
		"SELECT * FROM a,":                                                 whyNoTable,
		"SELECT t.from, x FROM t":                                          whyNoTable,
		"SELECT * FROM (a":                                                 whyBad,
		"SELECT * FROM a)":                                                 whyBad,
		"SELECT 'open":                                                     whyBad,
		"SELECT Udf(Some::Thing)":                                          whyWord,
		"SELECT Some::Thing(1)":                                            whyModule,
		"SELECT YQL::Read(1)":                                              whyModule,
		"SELECT EvaluateCode(x)":                                           whyWord,
		"SELECT call FROM a":                                               whyWord,
		"SELECT a FROM b WHERE UPDATE":                                     whyStatement,
		"--!syntax_pg\nSELECT * FROM secret":                               "--!",
		"SELECT 1 --!ansi_lexer":                                           "--!",
		"PRAGMA TablePathPrefix = 'p'; SELECT * FROM a":                    whyPrefix,
		"PRAGMA TablePathPrefix; SELECT * FROM a":                          whyPrefix,
		"SELECT * FROM a; PRAGMA TablePathPrefix = '/p'":                   whyPrefix,
		"PRAGMA TablePathPrefix('/a','/b'); SELECT * FROM a":               whyPrefix,
		"PRAGMA Library('x'); SELECT 1":                                    whyStatement,
		"PRAGMA AnsiLike SELECT * FROM secret":                             whyStatement,
		"PRAGMA AnsiLike = 'x' SELECT * FROM secret":                       whyStatement,
		"SELECT " + strings.Repeat("(", 300):                               whyDeep,
	} {
		if got, why := Tables(text); !strings.Contains(why, want) || got != nil {
			t.Errorf("%.80s: %q %q; want %q", text, got, why, want)
		}
	}
}

func TestTablesAreBounded(t *testing.T) {
	var many strings.Builder
	for i := range 200 {
		many.WriteString("SELECT * FROM t" + strings.Repeat("x", i) + ";")
	}
	if _, why := Tables(many.String()); why != whyMany {
		t.Errorf("%q; want %q", why, whyMany)
	}
}

// FuzzTables: whatever is told for certain, every name in the list stands in the text, and blanks change nothing.
func FuzzTables(f *testing.F) {
	for _, text := range []string{
		"SELECT * FROM a, `b` JOIN c ON x WHERE y", "$x = (SELECT 1); FROM $x SELECT *", "UPSERT INTO a (b) VALUES (1); DELETE FROM c",
		"PRAGMA TablePathPrefix = '/p'; UPDATE a SET b = (SELECT c FROM d)", "SELECT ListMap(a, ($x) -> ($x)) FROM b",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tables, why := Tables(text)
		if why != "" && tables != nil {
			t.Fatalf("both %q and %q", tables, why)
		}
		again, whyAgain := Tables(" " + text + " ")
		if !slices.Equal(tables, again) || why != whyAgain {
			t.Fatalf("%q %q; with blanks around %q %q", tables, why, again, whyAgain)
		}
	})
}
