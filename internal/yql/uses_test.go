package yql

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestUses(t *testing.T) {
	for _, c := range []struct{ sql, want string }{
		{"INSERT INTO t (id, name) VALUES ($id, $n)", "id=[id] n=[name] single"},
		{"declare $id as Uint64; pragma TablePathPrefix('/a'); upsert into `a/t` (`my id`, n) values ($id, 1 + $n);",
			"id=[my id] n=[]+ single"},
		{"REPLACE INTO t (id, n) VALUES ($a, f($x, $y)), ($b, $n)", "a=[id] b=[id] n=[n] x=[]+ y=[]+ single"},
		{"UPSERT INTO t (id, n) VALUES ($a)", "a=[id] single"},
		{"UPSERT INTO t (id) VALUES ($a, $b)", "a=[id] b=[]+ single"},
		{"UPSERT INTO t (id) VALUES ($a", "a=[]+ single"},
		{"INSERT INTO t VALUES ($a)", "a=[]+ single"},
		{"UPDATE t SET n = $n, `m` = f($m, 1), k = $k WHERE id = $id", "id=[]+ k=[k] m=[]+ n=[n] single"},
		{"UPDATE t SET n = $n + 1, k = $n", "n=[k]+ single"},
		{"UPDATE t ON (id, n) VALUES ($id, $n)", "id=[id] n=[n] single"},
		{"UPSERT INTO t SELECT $id AS id, $n + 1 AS n, $m AS m FROM u", "id=[id] m=[m] n=[]+ single"},
		{"INSERT INTO t SELECT * FROM AS_TABLE($rows)", "rows=[]rows single"},
		{"SELECT * FROM t WHERE id = $id LIMIT $n OFFSET $o", "id=[]+ n=[] o=[] single"},
		{"SELECT * FROM t LIMIT $n + 1", "n=[]+ single"},
		{"UPSERT INTO t (id) VALUES ($id); SELECT $id", "id=[id]+"},
		{"--!syntax_pg\nINSERT INTO t (id) VALUES ($id)", ""},
		{"", ""},
	} {
		uses, single := Uses(c.sql)
		var got []string
		for _, name := range slices.Sorted(maps.Keys(uses)) {
			text := fmt.Sprintf("%s=%s", name, strings.Join(strings.Fields(fmt.Sprint(uses[name].Columns)), " "))
			if uses[name].Rows {
				text += "rows"
			}
			if uses[name].Elsewhere {
				text += "+"
			}
			got = append(got, text)
		}
		if single {
			got = append(got, "single")
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.sql, text, c.want)
		}
	}
}

// Texts in which tokens would be looked at again and again are given up, and what statements
// really look like takes a few steps for each token.
func TestUsesTakesFewSteps(t *testing.T) {
	const most = 100_000
	repeat := strings.Repeat
	for name, sql := range map[string]string{
		"rows in rows":       repeat("(a) VALUES (", 1000) + "$p",
		"rows in rows, once": repeat("(a) VALUES (", 1000) + "$p" + repeat(")", 1000),
		"values in values":   repeat("SET a = (", 1000) + "$p",
		"SET upon SET":       repeat("SET a = ", 1000) + "$p",
		"SET of many":        repeat("SET a = ", 200) + repeat("1, a = ", 1000) + "$p",
		"a long name":        "(`" + repeat("a", 10_000) + "`) VALUES ($p)" + repeat(", ($p)", 1000),
		"many tokens":        "SELECT " + repeat("a, ", most) + "$p",
	} {
		if uses, single, left := usesWithin(sql, most); uses != nil || single || left < -most/10 {
			t.Errorf("%s: %d parameters are known, single %t, after %d steps; want nothing after %d", name, len(uses),
				single, most-left, most)
		}
	}
	row := "(" + repeat("$p, ", 19) + "$p)"
	columns := "(" + repeat("a_column, ", 19) + "a_column)"
	for sql, tokens := range map[string]int{
		"UPSERT INTO t " + columns + " VALUES " + row + repeat(", "+row, 999): 42 * 1001,
		"UPSERT INTO t (" + repeat("VALUES, ", 999) + "a) VALUES ($p)":        2 * 1000,
		"UPDATE t SET " + repeat("a_column = $p, ", 999) + "a_column = $p":    4 * 1000,
	} {
		uses, single, left := usesWithin(sql, maxSteps)
		if took := maxSteps - left; uses["p"] == nil || !single || took > 3*tokens {
			t.Errorf("%.40s: %d steps for %d tokens", sql, took, tokens)
		}
	}
}

func TestWithIntegers(t *testing.T) {
	for _, c := range []struct {
		plain, other string
		want         bool
	}{
		{"Int64", "Uint8", true}, {"Int64", "Int64", true}, {"Int64", "Double", false}, {"Utf8", "Uint64", false}, {"Utf8", "Utf8", true},
		{"Int64", "Optional<Int32>", false}, {"Optional<Int64>", "Optional<Int32>", true},
		{"List<Struct<a:Int64,b:Utf8>>", "List<Struct<a:Uint64,b:Utf8>>", true},
		{"List<Struct<a:Int64,b:Utf8>>", "List<Struct<a:Uint64,b:String>>", false},
		{"Struct<a:Int64>", "Struct<b:Int64>", false}, {"Struct<a:Int64>", "Struct<>", false},
		{"List<Int64>", "Int64", false},
	} {
		if got := WithIntegers(mustType(t, c.plain), mustType(t, c.other)); got != c.want {
			t.Errorf("%s and %s: %v", c.plain, c.other, got)
		}
	}
}
