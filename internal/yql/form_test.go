package yql

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/yql/yqltest"
)

// What an error says to write can be written.
func TestExamplesAreValuesOfTheirType(t *testing.T) {
	types := []*Ydb.Type{
		mustType(t, "Decimal(22,9)"), mustType(t, "Decimal(1,1)"), mustType(t, "Decimal(35,35)"), mustType(t, "Decimal(5,0)"),
		mustType(t, "Int32??"), mustType(t, "Variant<a:Int32,b:Utf8>"), mustType(t, "Variant<Date,Utf8>"), mustType(t, "Void"),
		mustType(t, "Dict<Utf8,List<Int32>>"), mustType(t, "Set<Uuid>"), mustType(t, "Tuple<Int32,Json>"), mustType(t, "pgint4"),
		mustType(t, "EmptyList"), mustType(t, "EmptyDict"), mustType(t, "Struct<'a \"b':Int32,c:String>"), mustType(t, "Tagged<Int8,t>"),
	}
	for _, id := range yqltest.Primitives {
		types = append(types, yqltest.Primitive(id))
	}
	for seed := range uint64(300) {
		types = append(types, yqltest.Type(rand.New(rand.NewPCG(seed, 7)), 3))
	}
	for _, typ := range types {
		form := exampleOf(typ)
		if form == "[...]" || form == "{...}" { // too large to show
			continue
		}
		if _, err := ParseJSON([]byte(form), typ); err != nil || len(form) > longestForm {
			t.Errorf("%s: %s: %v", FormatType(typ), form, err)
		}
	}
}

func TestLargeExamplesAreOutlines(t *testing.T) {
	for name, want := range map[string]string{
		"Tuple<" + strings.Repeat("Timestamp,", 30) + "Int32>":           "[...]",
		"Struct<a:Tuple<" + strings.Repeat("Timestamp,", 30) + "Int32>>": "{...}",
		strings.Repeat("List<", 60) + "Int32" + strings.Repeat(">", 60):  strings.Repeat("[", 60) + "5" + strings.Repeat("]", 60),
	} {
		if got := exampleOf(mustType(t, name)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// A null without a type names a type of the whole value that takes it.
func TestNullsNameATypeThatDoes(t *testing.T) {
	for in, want := range map[string]string{
		`null`:                    "Optional<Utf8>",
		`[null]`:                  "List<Optional<Utf8>>",
		`{"a":null,"b":1}`:        "Struct<a:Optional<Utf8>,b:Int64>",
		`[{"a":null},{"a":null}]`: "List<Struct<a:Optional<Utf8>>>",
		`[null,[null],null]`:      "List<Optional<List<Optional<Utf8>>>>",
		`99999999999999999999`:    "Decimal(35,0)",
		`[{"n":1,"more":[null]}]`: "List<Struct<more:List<Optional<Utf8>>,n:Int64>>",
	} {
		_, err := ParamJSON([]byte(in), nil)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Wants != want {
			t.Errorf("%s: %v wants %q, not %q", in, err, e.Wants, want)
			continue
		}
		if _, err := ParamJSON([]byte(in), mustType(t, e.Wants)); err != nil {
			t.Errorf("%s AS %s: %v", in, e.Wants, err)
		}
	}
	for in, want := range map[string]string{
		`{"type":"Utf8","value":null}`:         `null is not a Utf8; only Optional<Utf8> allows null; write {"type": "Optional<Utf8>", "value": ...}`,
		`{"type":"List<Utf8>","value":[null]}`: `[0]: null is not a Utf8; only Optional<Utf8> allows null`,
	} {
		if _, err := ParamJSON([]byte(in), nil); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
	const typed = "null is not a Utf8; only Optional<Utf8> allows null; write a typed_value with the type Optional<Utf8>"
	if _, err := Param(gTyped("Utf8", gNull()), nil); err == nil || err.Error() != typed {
		t.Errorf("%v, want %s", err, typed)
	}
}

func TestAtPutsNamesBeforeThePath(t *testing.T) {
	_, err := ParseJSON([]byte(`[{"quantity":"abc"}]`), mustType(t, "List<Struct<quantity:Uint64>>"))
	if got, want := At(At(err, "rows"), "params").Error(), `params.rows[0].quantity: "abc" is not a Uint64; write it like 5`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := At(errors.New("x"), "params").Error(); got != "params: x" {
		t.Errorf("got %s", got)
	}
	if At(nil, "params") != nil {
		t.Error("nil became an error")
	}
	if ParamName("$id") != "id" || ParamName("id") != "id" {
		t.Error("a parameter's name goes with and without a dollar")
	}
}
