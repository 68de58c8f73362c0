package yql

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestEffectsOf(t *testing.T) {
	for _, c := range []struct {
		want Effects
		text string
	}{
		{Reads, "SELECT 1"},
		{Reads, "select * from t where a = 'INSERT INTO t' -- DROP TABLE t\n;"},
		{Reads, "/* UPDATE */ SELECT `update`, \"delete\" FROM `drop` VIEW by_name ORDER BY a LIMIT 10;"},
		{Reads, "DECLARE $id AS Uint64; SELECT * FROM t WHERE id = $id"},
		{Reads, "PRAGMA TablePathPrefix = \"/local/dir\"; DECLARE $a AS List<Struct<id:Uint64>>; SELECT * FROM AS_TABLE($a)"},
		{Reads, "PRAGMA TablePathPrefix(\"/local\");PRAGMA AnsiInForEmptyOrNullableItemsCollections; SELECT 1"},
		{Reads, "PRAGMA ydb.CostBasedOptimizationLevel = '2'; SELECT 1"},
		{Reads, "$x = SELECT 1; $y, $z = (1, 2); SELECT $x + $y"},
		{Reads, "$f = ($x) -> { $y = $x + 1; RETURN $y; }; SELECT $f(1)"},
		{Reads, "(SELECT 1) UNION ALL (SELECT 2)"},
		{Reads, "FROM t SELECT a"},
		{Reads, "VALUES (1, 2)"},
		{Reads, "SELECT 1; SELECT 2; SELECT DateTime::MakeDatetime(a), String :: Reverse(b) FROM t"},
		{Reads, "SELECT <|a: 1, b: 2|>, {1, 2}"},
		{Reads, "--!ansi_lexer\nSELECT \"update\""},
		{Reads, "SELECT `update`, (`delete`), $f(`drop`) FROM `udf`"},
		{Reads, "SELECT updated, do_it, creates FROM inserts"},

		{Reads, "SELECT 1 -- UPDATE\r\nFROM t -- DELETE\r"},
		{Reads, "--!ansi_lexer\n/* /* */ DELETE */ SELECT 'a\\' -- ;"},
		{Reads, "SELECT 1u, 0xffl, 1.5e-3f, 'a'u, @@;DELETE FROM t@@@, t.offset"},

		{Whole, "SELECT 1; -- x\rDELETE FROM t"},
		{Whole, "--!syntax_v1\r--!ansi_lexer\rSELECT '\\'; DELETE FROM t; -- '"},
		{Whole, "SELECT @@a@@@@b@@@; DELETE FROM t"},
		{Whole, "SELECT '\\\\'; DELETE FROM t; -- '"},
		{Whole, "\ufeffSELECT 1"},
		{Whole, "SELECT\u00a01"},
		{Whole, "SELECT 1\x00"},
		{Whole, ""},
		{Whole, "DECLARE $a AS Int32;"},
		{Whole, "$x = 1;"},
		{Whole, "INSERT INTO t (a) VALUES (1)"},
		{Whole, "UPSERT INTO t SELECT * FROM s; SELECT 1"},
		{Whole, "UPDATE t SET a = 1; DELETE FROM t WHERE a = 2; REPLACE INTO t SELECT 1"},
		{Whole, "SELECT 1; UPDATE t ON SELECT 1 AS a"},
		{Whole, "DISCARD SELECT 1"},
		{Whole, "SELECT a INTO RESULT b FROM t"},
		{Whole, "SELECT update FROM t"}, // not certain
		{Whole, "SELECT Python3::f(1)"},
		{Whole, "SELECT `JavaScript`::f(1)"},
		{Whole, "SELECT String.a, x : : f(1)"},
		{Whole, "SELECT Udf(String::Reverse)('a')"},
		{Whole, "SELECT EvaluateExpr(1)"},
		{Whole, "SELECT `EvaluateExpr` /* */ (1)"},
		{Whole, "--!ansi_lexer\nSELECT \"udf\"(String::Reverse)('a')"},
		{Whole, "SELECT 1lINTO RESULT b FROM t"},
		{Whole, "SELECT 'a'sINTO RESULT b FROM t"},
		{Whole, "SELECT 1 # b"},
		{Whole, "SELECT \\ 1"},
		{Whole, "$x = PROCESS t; SELECT * FROM $x"},
		{Whole, "PRAGMA Foo = '1'; SELECT 1"},
		{Whole, "PRAGMA ydb.Unknown = '1'; SELECT 1"},
		{Whole, "PRAGMA `TablePathPrefix` = '1'; SELECT 1"},
		{Whole, "PRAGMA; SELECT 1"},
		{Whole, "PRAGMA TablePathPrefix.More = '1'; SELECT 1"},
		{Whole, "SELECT 1; PRAGMA Foo"},
		{Whole, "EXPLAIN SELECT 1"},
		{Whole, "SHOW CREATE TABLE t"},
		{Schema, "WITH a AS (SELECT 1) SELECT * FROM a"},
		{Whole, "SELECT 'a"},
		{Whole, "SELECT \u00e9"},
		{Whole, "--!syntax_pg\nSELECT 1"},
		{Schema, "CREATE TABLE t (a Int32, PRIMARY KEY (a))"},
		{Schema, "CREATE VIEW v WITH (security_invoker = TRUE) AS SELECT 1"},
		{Schema, "CREATE TABLE t (a Int32, PRIMARY KEY (a)) WITH (AUTO_PARTITIONING_BY_SIZE = ENABLED);"},
		{Schema, "ALTER TABLE t ADD COLUMN b Int32, DROP COLUMN c"},
		{Schema, "PRAGMA TablePathPrefix = '/local'; DROP TABLE t"},
		{Schema, "GRANT SELECT ON t TO u"},

		{Schema, "UPSERT OBJECT a (TYPE b) WITH c = d"},
		{Whole, "UPSERT INTO object (a) VALUES (1); UPSERT INTO t (a) VALUES (1)"},

		{Parts, "UPSERT OBJECT a (TYPE b) WITH c = d; UPSERT INTO t (a) VALUES (1)"},
		{Parts, "UPSERT INTO t (a) VALUES (1); upsert /* */ object a (TYPE b) WITH c = d"},
		{Parts, "CREATE TABLE t (a Int32, PRIMARY KEY (a)); INSERT INTO t (a) VALUES (1)"},
		{Parts, "INSERT INTO t (a) VALUES (1); DROP TABLE s"},
		{Parts, "SELECT 1; ALTER TABLE t ADD COLUMN b Int32"},
		{Parts, "DROP TABLE a; DROP TABLE b;"},
		{Parts, "BATCH UPDATE t SET a = 1"},
		{Parts, "batch delete from t"},
		{Parts, "CREATE TABLE t (PRIMARY KEY (a)) AS SELECT * FROM s"},
		{Parts, "CREATE OR REPLACE TEMP TABLE t (PRIMARY KEY (a)) AS VALUES (1)"},
		{Parts, "CREATE TABLE t (PRIMARY KEY (a)) AS (SELECT 1 AS a)"},
		{Parts, "UPSERT INTO t (a) VALUES (1); COMMIT; UPSERT INTO t (a) VALUES (2)"},
		{Parts, "EVALUATE FOR $i IN AsList(1, 2) DO BEGIN UPSERT INTO t (a) VALUES ($i); END DO"},
		{Parts, "DEFINE ACTION $a() AS DROP TABLE t; END DEFINE; DO $a()"},
		{Parts, "SELECT 1; SOMETHING new"},
		{Parts, "CREATE TABLE t (a Int32, PRIMARY KEY (a)); SELECT 'a"}, // cannot be read
		{Parts, "--!syntax_pg\nCREATE TABLE a (b int4)"},
	} {
		if got := EffectsOf(c.text); got != c.want {
			t.Errorf("%q: %d; want %d", c.text, got, c.want)
		}
	}
}

// statementsThatAct are of every kind that is no read.
var statementsThatAct = []string{
	"INSERT INTO t (a) VALUES (1)", "UPSERT INTO t SELECT 1 AS a", "UPDATE t SET a = 1", "DELETE FROM t", "REPLACE INTO t (a) VALUES (1)",
	"CREATE TABLE t (a Int32, PRIMARY KEY (a))", "CREATE TABLE t (PRIMARY KEY (a)) AS SELECT 1 AS a",
	"ALTER TABLE t DROP COLUMN a", "DROP TABLE t",
	"GRANT SELECT ON t TO u", "REVOKE SELECT ON t FROM u", "COMMIT", "BATCH UPDATE t SET a = 1", "BATCH DELETE FROM t", "DISCARD SELECT 1",
	"EVALUATE IF true DO BEGIN SELECT 1; END DO", "DO $a()", "$x = Python3::f(1)", "SELECT JavaScript::f(1)",
	"SELECT PgCall('nextval', 's')",
	"$x = (PROCESS t USING $f())", "SELECT a INTO RESULT b FROM t",
}

// tokensOf are the tokens of the server's grammar as expressions, in both dialects. They take what the
// grammar takes, in the order of its preference: what can hide a word, then words and the rest.
var tokensOf = map[bool]*regexp.Regexp{false: tokenExpression(false), true: tokenExpression(true)}

func tokenExpression(ansi bool) *regexp.Regexp {
	comment, core := `/\*.*?\*/`, `(?:[^Q\\]|\\.)*`
	if ansi {
		for range 6 {
			comment = `/\*(?:` + comment + `|.)*?\*/`
		}
		core = `(?:[^Q]|QQ)*`
	}
	quoted := func(quote string) string { return quote + strings.ReplaceAll(core, "Q", quote) + quote }
	name := "`(?:\\\\.|``|[^`\\\\])*`"
	return regexp.MustCompile(`(?is)` + strings.Join([]string{
		comment, `--[^\r\n]*`,
		`(?:` + quoted("'") + `|` + quoted(`"`) + `|(?:@@.*?@@)+@?)(?:[suyj]|p[tbv]?)?`,
		`\$(?:[a-z_][a-z_0-9]*|` + name + `)`, name,
		`[0-9]+(?:\.[0-9]*(?:e[+-]?[0-9]+)?|e[+-]?[0-9]+)(?:f|p(?:f[48]|n)?)?`, `x'[0-9a-f]+'`,
		`(?:0x[0-9a-f]+|0o[0-8]+|0b[01]+|[0-9]+)[pu]?[lstibn]?`,
		`[a-z_][a-z_0-9]*`, `::`, `.`,
	}, "|"))
}

// acts reports whether the server sees a word or a module in a text that only reading has none of.
func acts(text string) bool {
	ansi := false
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\r' || r == '\n' }) {
		words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
		if len(words) == 0 {
			continue
		}
		setting, ok := strings.CutPrefix(words[0], "--!")
		if !ok {
			break
		}
		if len(words) > 1 || !slices.Contains([]string{"", "syntax_v1", "antlr4_parser", "ansi_lexer"}, setting) {
			return false // the server rejects the text
		}
		ansi = ansi || setting == "ansi_lexer"
	}
	before := ""
	for _, token := range tokensOf[ansi].FindAllString(text, -1) {
		token = strings.ToUpper(token)
		called := token == "(" && strings.HasPrefix(before, "`") && acting[strings.Trim(before, "`")]
		if acting[token] || called || token == "::" && !modules[before] {
			return true
		}
		if strings.TrimSpace(token) != "" && !strings.HasPrefix(token, "--") && !strings.HasPrefix(token, "/*") {
			before = token
		}
	}
	return false
}

func TestActs(t *testing.T) {
	for text, want := range map[string]bool{
		"SELECT 1": false, "DELETE FROM t": true, "-- DELETE\r\n/* DELETE */ SELECT 'DELETE', @@ DELETE @@, `DELETE`, $DELETE": false,
		"-- \rDELETE": true, "-- \nDELETE": true, "'\\' DELETE'": false, "--!ansi_lexer\r'\\' DELETE": true, "/* /* */ DELETE */": true,
		"--!ansi_lexer\n/* /* */ DELETE */": false, "--!ansi_lexer\n/*/**/*/DELETE": true, "String::f, Python3::f": true,
		"String /* */ ::f":       false,
		"--! ansi_lexer\nDELETE": false, "SELECT `Udf` /* */ (1)": true, "SELECT `Udf`, (1)": false,
		"SELECT 1lINTO": true, "SELECT 1.5e3fINTO": true,
		"SELECT x'00'UPDATE": true,
	} {
		if acts(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

// FuzzReads: no text in which the server's grammar sees a word that acts is taken for one that only
// reads, whatever is around it; and no such word is overlooked where nothing can hide it.
func FuzzReads(f *testing.F) {
	for i := range statementsThatAct {
		f.Add("SELECT 1", "SELECT 2", uint8(i), uint8(i))
	}
	f.Add("PRAGMA TablePathPrefix = '/a'; $f = ($x) -> { RETURN $x; }", "-- x", uint8(1), uint8(2))
	f.Add("SELECT 'a", "b'", uint8(1), uint8(0))
	f.Add("SELECT @@", "@@", uint8(3), uint8(1))
	f.Add("--!ansi_lexer\nSELECT \"\\\"", "/* */", uint8(2), uint8(3))
	f.Add("SELECT 1; -- x\rDELETE FROM t -- '", "'", uint8(2), uint8(3))
	f.Add("--!syntax_v1\r--!ansi_lexer\rSELECT '\\'; DELETE FROM t; -- '", "/*", uint8(2), uint8(3))
	f.Add("SELECT 1; --", "", uint8(3), uint8(4))
	f.Add("SELECT 1; --", "", uint8(3), uint8(5))
	f.Add("--!ansi_lexer\nSELECT 1 /* /* */", "*/", uint8(3), uint8(4))
	f.Fuzz(func(t *testing.T, before, after string, which, how uint8) {
		act := statementsThatAct[int(which)%len(statementsThatAct)]
		switch how % 3 {
		case 1:
			act = strings.ToLower(act)
		case 2:
			act = strings.ReplaceAll(act, " ", " /* */\n")
		}
		whole := before + []string{"\n;", "\r;", ";", "\r"}[how/3%4] + act + ";\n" + after
		if EffectsOf(whole) != Reads {
			return
		}
		if acts(whole) {
			t.Errorf("%q reads", whole)
		}
		if !strings.ContainsAny(before, "'\"`@-/*") {
			t.Errorf("nothing hides %q in %q, which reads", act, whole)
		}
	})
}

func TestEffectsOfAllocatesNoWords(t *testing.T) {
	text := "DECLARE $id AS Uint64; " + strings.Repeat("SELECT id, name FROM users WHERE id = $id; ", 100)
	if n := testing.AllocsPerRun(10, func() { EffectsOf(text) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}
