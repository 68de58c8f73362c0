package yql

import (
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql/yqltest"
)

func TestTypeNamesAreRead(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"bool", "Bool"}, {"UINT64", "Uint64"}, {"text", "Utf8"}, {"Bytes", "String"}, {"bigint", "Int64"},
		{" Int32 ", "Int32"}, {"Int32 /* four bytes */", "Int32"},
		{"Int32?", "Optional<Int32>"}, {"Int32 ? ?", "Optional<Optional<Int32>>"},
		{"List<Int32?>?", "Optional<List<Optional<Int32>>>"},
		{"decimal( 22 , 9 )", "Decimal(22,9)"}, {"Decimal(35,35)", "Decimal(35,35)"}, {"Decimal(1,0)", "Decimal(1,0)"},
		{"Tuple<>", "Tuple<>"}, {"Tuple<Int32,>", "Tuple<Int32>"},
		{"Struct<>", "Struct<>"}, {"Struct<a:Int32,`b c`:Utf8,'d':Date,\"e\":Bool>", "Struct<a:Int32,'b c':Utf8,d:Date,e:Bool>"},
		{`Struct<'a\'\\\x41\u0416\101\n':Int32>`, "Struct<'a\\'\\\\AЖA\n':Int32>"},
		{"Struct<@@a@@:Int32>", "Struct<a:Int32>"}, {"Struct<@@a@@@@b@@@:Int32>", "Struct<'a@@b@':Int32>"},
		{"Dict<Utf8,Int32>", "Dict<Utf8,Int32>"}, {"Set<Utf8>", "Set<Utf8>"}, {"Dict<Utf8,Void>", "Set<Utf8>"},
		{"Variant<Int32,Utf8>", "Variant<Int32,Utf8>"}, {"Variant<Int32:Utf8>", "Variant<Int32:Utf8>"},
		{"Variant<'a b':Utf8>", "Variant<'a b':Utf8>"}, {"Variant<List<Int32>>", "Variant<List<Int32>>"},
		{"Tagged<Int32,'my tag'>", "Tagged<Int32,'my tag'>"}, {"Tagged<Int32,tag>", "Tagged<Int32,'tag'>"},
		{"Void", "Void"}, {"null", "Null"}, {"EmptyList", "EmptyList"}, {"EmptyDict", "EmptyDict"},
		{"PgInt4", "pgint4"}, {"_pgtext", "_pgtext"}, {"Pg(16385)", "Pg(16385)"}, {"Pg(23)", "pgint4"},
		{"TzDate32", "TzDate32"}, {"Interval64", "Interval64"},
		{strings.Repeat("List<", 63) + "Int32" + strings.Repeat(">", 63), strings.Repeat("List<", 63) + "Int32" + strings.Repeat(">", 63)},
	} {
		typ, err := ParseType(c.name)
		if err != nil || FormatType(typ) != c.want {
			t.Errorf("%q: got %s, %v; want %s", c.name, FormatType(typ), err, c.want)
		}
	}
}

func TestWrongTypeNamesAreErrors(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"", `type "": column 1: expected a type, but the text ends`},
		{"Int33",
			`type "Int33": column 1: unknown type "int33"; names are those of YQL, such as Utf8, Int64, Double, Timestamp or Decimal(22,9)`},
		{"pgint5",
			`type "pgint5": column 1: unknown type "pgint5"; names are those of YQL, such as Utf8, Int64, Double, Timestamp or Decimal(22,9)`},
		{"Int32 Int32", `type "Int32 Int32": column 7: expected the end of the type, found "Int32"`},
		{"List<>", `type "List<>": column 6: expected a type, found ">"`},
		{"Variant<>", `type "Variant<>": column 9: expected a type, found ">"`},
		{"Struct<a>", `type "Struct<a>": column 9: expected ":", found ">"`},
		{"Struct<a:Int32,a:Int32>", `type "Struct<a:Int32,a:Int32>": column 16: the name "a" appears twice`},
		{"Struct<'\\xff':Int32>", `type "Struct<'\\xff':Int32>": column 8: a name is not valid UTF-8`},
		{"Decimal", `type "Decimal": column 8: a Decimal needs its precision and its scale, such as Decimal(22,9)`},
		{"Decimal(22,23)",
			`type "Decimal(22,23)": column 9: no such Decimal: the precision goes from 1 to 35, the scale from 0 to the precision`},
		{"Decimal(0,0)",
			`type "Decimal(0,0)": column 9: no such Decimal: the precision goes from 1 to 35, the scale from 0 to the precision`},
		{"Decimal(a,0)", `type "Decimal(a,0)": column 9: expected an integer, found "a"`},
		{"Dict<Int32>", `type "Dict<Int32>": column 11: expected ",", found ">"`},
		{"Tagged<Int32>", `type "Tagged<Int32>": column 13: expected ",", found ">"`},
		{"Tagged<Int32,5>", `type "Tagged<Int32,5>": column 14: expected a tag, found "5"`},
		{"Pg(0)", `type "Pg(0)": column 4: 0 is no object ID of a PostgreSQL type`},
		{"Unknown(71)",
			`type "Unknown(71)": column 1: unknown type "unknown"; names are those of YQL, such as Utf8, Int64, Double, Timestamp or Decimal(22,9)`},
		{"Int32" + strings.Repeat("?", 64),
			`type "` + "Int32" + strings.Repeat("?", 59) + `"...: column 69: the type nests more than 64 deep`},
		{strings.Repeat("List<", 64) + "Int32",
			`type "` + strings.Repeat("List<", 13)[:64] + `"...: column 321: the type nests more than 64 deep`},
		{"List<Int32" + strings.Repeat("?", 63) + ">",
			`type "List<Int32` + strings.Repeat("?", 54) + `"...: column 1: the type nests more than 64 deep`},
	} {
		if _, err := ParseType(c.name); err == nil || err.Error() != c.want {
			t.Errorf("%q:\n got %v\nwant %s", c.name, err, c.want)
		}
	}
}

// What the server sends of a PostgreSQL type beyond its name is no other type.
func TestPgTypesAreEqualByTheirID(t *testing.T) {
	pg := func(p *Ydb.PgType) *Ydb.Type { return &Ydb.Type{Type: &Ydb.Type_PgType{PgType: p}} }
	int4, err := ParseType("pgint4")
	if err != nil {
		t.Fatal(err)
	}
	if want := pg(&Ydb.PgType{Oid: 23, TypeName: "pgint4"}); !proto.Equal(int4, want) {
		t.Errorf("pgint4 is %v, want %v", int4, want)
	}
	for _, same := range []*Ydb.PgType{{Oid: 23}, {TypeName: "pgint4"}, {Oid: 23, TypeName: "pgint4", Typlen: 4, Typmod: -1}} {
		if !EqualTypes(int4, pg(same)) || !EqualTypes(pg(same), int4) || FormatType(pg(same)) != "pgint4" {
			t.Errorf("%v is %s", same, FormatType(pg(same)))
		}
	}
	if EqualTypes(int4, pg(&Ydb.PgType{Oid: 25})) || EqualTypes(int4, pg(&Ydb.PgType{TypeName: "mine"})) {
		t.Error("another type is equal to pgint4")
	}
	if !EqualTypes(pg(&Ydb.PgType{TypeName: "mine"}), pg(&Ydb.PgType{TypeName: "mine"})) {
		t.Error("a type is not equal to itself")
	}
}

func TestUnknownTypesHaveAName(t *testing.T) {
	for _, c := range []struct {
		typ  *Ydb.Type
		want string
	}{
		{nil, "Unknown(0)"},
		{&Ydb.Type{}, "Unknown(0)"},
		{yqltest.List(yqltest.Primitive(9999)), "List<Unknown(9999)>"},
	} {
		if got := FormatType(c.typ); got != c.want {
			t.Errorf("%v: got %s, want %s", c.typ, got, c.want)
		}
	}
	if !EqualTypes(nil, &Ydb.Type{}) || EqualTypes(nil, typeBool) {
		t.Error("no type is equal to no type only")
	}
}

func FuzzType(f *testing.F) {
	for _, seed := range []string{
		"Int32", "Decimal(22,9)?", "List<Struct<product:Utf8,quantity:Int64>>", "Dict<Utf8,Set<Uuid>>", "_pgint4??",
		`Variant<'a\'b':Tuple<Int8,>,c:Tagged<Void,"x">>`, "Struct<`a``b`:EmptyList,@@x@@:Null>", "Pg(16385)", "Optional<", "TzTimestamp64",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		typ, err := ParseType(name)
		if err != nil {
			return
		}
		again, err := ParseType(FormatType(typ))
		if err != nil || !proto.Equal(again, typ) || !EqualTypes(again, typ) {
			t.Fatalf("%q is %s, which reads back as %v, %v", name, FormatType(typ), again, err)
		}
	})
}

// A misspelt type is an error, unless a Struct with such members is declared.
func TestUnknownTypesOfParameters(t *testing.T) {
	for _, declared := range []*Ydb.Type{nil, mustType(t, "Int64")} {
		_, err := ParamJSON([]byte(`{"type":"car","value":5}`), declared)
		if want := `type "car": column 1: unknown type "car"; names are those of YQL, such as Utf8, Int64, Double, Timestamp or Decimal(22,9)`; err == nil || err.Error() != want {
			t.Errorf("AS %v: %v; want %s", declared, err, want)
		}
	}
}
