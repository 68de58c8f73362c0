package syntax

import (
	"strings"
	"testing"
)

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"SELECT 1",
		"DECLARE $a AS List<Struct<a:Int32?,b:Decimal(22,9)>>; SELECT * FROM AS_TABLE($a) AS t WHERE t.a IN " +
			"(1,2u,'x'u) ORDER BY b DESC LIMIT $o;",
		"$x = (SELECT count(*) FROM `a/b` VIEW ix AS p LEFT JOIN c ON p.a = c.a WHERE c.b IS NOT NULL); UPSERT INTO " +
			"t SELECT * FROM $x WHERE $x = $y",
		"CREATE TABLE IF NOT EXISTS t (a Uint64 NOT NULL, b Utf8, PRIMARY KEY (a), INDEX i GLOBAL SYNC ON (b) COVER (a)) WITH (X = 1)",
		"UPDATE t SET a = COALESCE(b, NULL) WHERE c BETWEEN 1 AND 2 AND NOT d IN $x", "DELETE FROM t ON SELECT 1 AS id",
		"SELECT <|a:1|>, [1,2], (1,2), @@x@@j, 0x1Ful, 1.5e3f, -1 % 2 -- c\n/* d */", "INSERT INTO t (a) VALUES ((1)),((SELECT 2))",
		"PRAGMA TablePathPrefix('/local'); ALTER TABLE t ADD COLUMN c Int8, SET (X = 1); DROP TABLE IF EXISTS t",
		"((((((", "$", "'\\", "SELECT Nothing(Int32??), f(a AS b, *)",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if (s == nil) == (err == nil) {
			t.Errorf("script %v, error %v", s, err)
		}
		if e, ok := err.(*Error); err != nil && (!ok || e.Pos.Row < 1 || e.Pos.Col < 1) {
			t.Errorf("error without a place: %v", err)
		}
	})
}

func TestParseIsBounded(t *testing.T) {
	for name, text := range map[string]string{
		"text":     strings.Repeat(" ", MaxText+1),
		"brackets": "SELECT " + strings.Repeat("(", 10000),
		"signs":    "SELECT " + strings.Repeat("- ", 10000) + "1",
		"not":      "SELECT " + strings.Repeat("NOT ", 10000) + "1",
		"sum":      "SELECT 1" + strings.Repeat("+1", 10000),
		"equality": "SELECT 1" + strings.Repeat("=1", 10000),
		"calls":    "SELECT " + strings.Repeat("COALESCE(", 10000),
		"structs":  "SELECT " + strings.Repeat("<|a:", 10000),
		"types":    "DECLARE $a AS " + strings.Repeat("List<", 10000),
		"optional": "DECLARE $a AS Int32" + strings.Repeat("?", 10000),
		"joins":    "SELECT 1 FROM a" + strings.Repeat(" JOIN a ON b", 10000),
		"queries":  strings.Repeat("SELECT (", 10000),
		"lists":    "SELECT " + strings.Repeat("[", 10000),
	} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	or := "SELECT 1 WHERE a=1" + strings.Repeat(" OR a=1", 20000)
	if _, err := Parse(or); err != nil {
		t.Errorf("a long OR: %v", err)
	}
}
