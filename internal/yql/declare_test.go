package yql

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestDeclarationsAreRead(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"SELECT 1", ""},
		{"", ""},
		{"DECLARE $id AS Uint64; SELECT $id", "id:Uint64"},
		{"declare $id as uint64", "id:Uint64"},
		{"DECLARE $id AS Uint64;DECLARE $name AS Text?;", "id:Uint64 name:Optional<Utf8>"},
		{";;DECLARE $x AS Decimal(22,9);", "x:Decimal(22,9)"},
		{"PRAGMA TablePathPrefix(\"/local\");\nDECLARE $x AS List<Struct<product:Utf8,quantity:Int64>>;",
			"x:List<Struct<product:Utf8,quantity:Int64>>"},
		{"DECLARE $a AS Int32 -- the first\n; -- DECLARE $b AS Int32;\nDECLARE /* x */ $c AS /* y */ Date;", "a:Int32 c:Date"},
		{"SELECT 'DECLARE $a AS Int32;', @@;DECLARE $b AS Int32;@@; DECLARE $c AS Int32", "c:Int32"},
		{"SELECT declare FROM t; SELECT x AS declare", ""},
		{"DECLARE $ x AS Int32", "x:Int32"},
		{"DECLARE $`a b` AS Int32", "a b:Int32"},
		{"DECLARE $x AS Int32 = 5; DECLARE $y AS Int32", "x:Int32 y:Int32"},
		{"DECLARE $x AS Int32; DECLARE $x AS Int32", "x:Int32"},
		{"--!syntax_pg\nDECLARE c CURSOR FOR SELECT 1", ""},
		{"--!ansi_lexer\nDECLARE $x AS Struct<\"a\"\"b\":Int32>", "x:Struct<'a\"b':Int32>"},
		{"DECLARE $x AS Int32; SELECT 'not closed", "x:Int32"},
	} {
		types, err := Declarations(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		var got []string
		for _, name := range slices.Sorted(maps.Keys(types)) {
			got = append(got, name+":"+FormatType(types[name]))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%q: got %q, want %q", c.text, s, c.want)
		}
	}
}

func TestMalformedDeclarationsNameTheirPlace(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"SELECT 1;\n  DECLARE id AS Uint64", `2:11: DECLARE: expected a parameter such as $id, found "id"`},
		{"DECLARE $id Uint64", `1:13: DECLARE $id: expected AS, found "Uint64"`},
		{"DECLARE $id AS", `1:15: DECLARE $id: expected a type, but the text ends`},
		{"DECLARE $id AS Uint65;",
			`1:16: DECLARE $id: unknown type "uint65"; names are those of YQL, such as Utf8, Int64, Double, Timestamp or Decimal(22,9)`},
		{"DECLARE $id AS List<Int32;", `1:26: DECLARE $id: expected ">", found ";"`},
		{"DECLARE $id AS Int32 SELECT 1", `1:22: DECLARE $id: expected ";", found "SELECT"`},
		{"DECLARE $id AS Int32;\nDECLARE $id AS Int64;", `2:1: DECLARE $id: it was declared Int32 before`},
		{"DECLARE $id AS Decimal(36,0);",
			`1:24: DECLARE $id: no such Decimal: the precision goes from 1 to 35, the scale from 0 to the precision`},
		{"DECLARE $ AS", `1:13: DECLARE $AS: expected AS, but the text ends`},
	} {
		_, err := Declarations(c.text)
		if err == nil || err.Error() != c.want {
			t.Errorf("%q: got %v, want %s", c.text, err, c.want)
		}
	}
}

// What a text declares takes many times as much as the text, so it has an end.
func TestDeclarationsAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"names":    strings.Repeat("DECLARE $a AS Int8;", maxTypes+1),
		"elements": "DECLARE $a AS Tuple<" + strings.Repeat("Int8,", maxTypes) + ">",
		"optional": "DECLARE $a AS Tuple<" + strings.Repeat("Int8"+strings.Repeat("?", 20)+",", maxTypes/20) + ">",
	} {
		if types, err := Declarations(text); err == nil || !strings.Contains(err.Error(), "more than 16384 types") {
			t.Errorf("%s: %d types, %v", name, len(types), err)
		}
	}
	if _, err := Declarations(strings.Repeat("DECLARE $a AS Int8;", maxTypes)); err != nil {
		t.Error(err)
	}
}

func FuzzDeclarations(f *testing.F) {
	for _, seed := range []string{
		"DECLARE $id AS Uint64; SELECT $id", "DECLARE $x AS List<Struct<a:Utf8,'b c':Int64?>>;",
		"DECLARE $`a` AS Variant<a:Int32,b:Tuple<Int32,Set<Utf8>>>;DECLARE", "declare $ as Tagged<Int8,'x'> = 5",
		"DECLARE $d AS Decimal(22,9); DECLARE $d AS Decimal(22,8)", "--!ansi_lexer\nDECLARE $x AS Struct<\"a\":pgint4>",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		types, err := Declarations(text)
		if err != nil && types != nil {
			t.Fatalf("%q: types and %v", text, err)
		}
		for name, typ := range types {
			// What was understood can be said again.
			again, err := Declarations(fmt.Sprintf("DECLARE $x AS %s;", FormatType(typ)))
			if err != nil || !EqualTypes(again["x"], typ) {
				t.Fatalf("%q: $%s AS %s reads back as %v, %v", text, name, FormatType(typ), again, err)
			}
		}
	})
}

func BenchmarkDeclarations(b *testing.B) {
	const text = `PRAGMA TablePathPrefix("/local/stock");
DECLARE $ido AS UInt64;
DECLARE $cust AS Utf8;
DECLARE $lines AS List<Struct<product:Utf8,quantity:Int64>>;
DECLARE $time AS DateTime;
INSERT INTO orders (id, customer, created) VALUES ($ido, $cust, $time);
UPSERT INTO orderLines (id_order, product, quantity) SELECT $ido, product, quantity FROM AS_TABLE($lines);`
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if types, err := Declarations(text); err != nil || len(types) != 4 {
			b.Fatal(types, err)
		}
	}
}
