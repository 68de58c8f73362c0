package yql

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"

	"github.com/ydb-sidecar/sidecar/internal/yql/yqltest"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// checkForms takes a value through every form and back.
func checkForms(t *testing.T, typ *Ydb.Type, v *Ydb.Value) {
	t.Helper()
	for _, ints := range []Ints{IntsAsStrings, IntsAsNumbers} {
		text, err := AppendJSON(nil, v, typ, JSONOptions{Ints: ints})
		if err != nil {
			t.Fatalf("AppendJSON of %s %v: %v", FormatType(typ), v, err)
		}
		if !json.Valid(text) {
			t.Fatalf("%s: AppendJSON wrote %s", FormatType(typ), text)
		}
		back, err := ParseJSON(text, typ)
		if err != nil {
			t.Fatalf("ParseJSON of %s as %s: %v", text, FormatType(typ), err)
		}
		if !proto.Equal(back, v) {
			t.Fatalf("%s by way of %s: got %v, want %v", FormatType(typ), text, back, v)
		}
	}
	form, err := ToValue(v, typ)
	if err != nil {
		t.Fatalf("ToValue of %s %v: %v", FormatType(typ), v, err)
	}
	// What a client gets is what came through the wire.
	wire, err := proto.Marshal(form)
	if err != nil {
		t.Fatalf("%s: marshal %v: %v", FormatType(typ), form, err)
	}
	var received sidecarv1.Value
	if err := proto.Unmarshal(wire, &received); err != nil {
		t.Fatal(err)
	}
	back, err := FromValue(&received, typ)
	if err != nil {
		t.Fatalf("FromValue of %v as %s: %v", form, FormatType(typ), err)
	}
	if !proto.Equal(back, v) {
		t.Fatalf("%s by way of %v: got %v, want %v", FormatType(typ), form, back, v)
	}
}

func TestRandomValuesKeepEverythingInBothForms(t *testing.T) {
	for seed := range uint64(short.Of(30_000, 4000)) {
		r := rand.New(rand.NewPCG(seed, 1))
		typ := yqltest.Type(r, 1+r.IntN(5))
		checkForms(t, typ, yqltest.Value(r, typ))
	}
}

func TestEveryPrimitiveKeepsItsEnds(t *testing.T) {
	for _, id := range yqltest.Primitives {
		typ := yqltest.Primitive(id)
		for seed := range uint64(short.Of(300, 100)) {
			r := rand.New(rand.NewPCG(seed, 2))
			checkForms(t, typ, yqltest.Value(r, typ))
		}
	}
}

func TestNegativeZeroStaysNegative(t *testing.T) {
	typ := yqltest.Primitive(Ydb.Type_DOUBLE)
	text, err := AppendJSON(nil, floating(Ydb.Type_DOUBLE, math.Copysign(0, -1)), typ, JSONOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := ParseJSON(text, typ)
	if err != nil || !math.Signbit(v.GetDoubleValue()) {
		t.Errorf("%s came back as %v, %v", text, v, err)
	}
}

func TestRandomTypesKeepTheirName(t *testing.T) {
	for seed := range uint64(short.Of(30_000, 4000)) {
		r := rand.New(rand.NewPCG(seed, 3))
		typ := yqltest.Type(r, 1+r.IntN(6))
		name := FormatType(typ)
		back, err := ParseType(name)
		if err != nil {
			t.Fatalf("ParseType(%q): %v", name, err)
		}
		if !proto.Equal(back, typ) {
			t.Fatalf("ParseType(%q) = %v, want %v", name, back, typ)
		}
		if !EqualTypes(back, typ) {
			t.Fatalf("EqualTypes denies that %s is itself", name)
		}
		other := yqltest.Type(r, 1+r.IntN(6))
		if EqualTypes(typ, other) != (FormatType(other) == name) {
			t.Fatalf("EqualTypes(%s, %s) = %v", name, FormatType(other), EqualTypes(typ, other))
		}
	}
}

// The server has freedoms on the wire that this package's own writer does not
// use; all of them are read.
func TestOtherWireFormsAreRead(t *testing.T) {
	text := func(s string) *Ydb.Value { return textValue(s) }
	nest := func(v *Ydb.Value) *Ydb.Value {
		return &Ydb.Value{Value: &Ydb.Value_NestedValue{NestedValue: v}}
	}
	i32 := &Ydb.Value{Value: &Ydb.Value_Int32Value{Int32Value: 5}}
	for _, c := range []struct {
		typ  string
		wire *Ydb.Value
		want string
	}{
		{"Void", &Ydb.Value{}, "null"},
		{"Optional<Void>", &Ydb.Value{}, "[null]"},
		{"pgint4", &Ydb.Value{}, "null"},
		{"EmptyList", &Ydb.Value{}, "[]"},
		{"Utf8", bytesValue([]byte("text")), `"text"`},
		{"Yson", text("[1]"), `"[1]"`},
		{"String", text("text"), `"dGV4dA=="`},
		{"Optional<Int32>", nest(i32), "5"},
		{"Optional<Optional<Int32>>", nest(nest(i32)), "[5]"},
		{"Optional<Optional<Int32>>", nest(i32), "[5]"},
		{"Optional<Optional<Int32>>", i32, "[5]"},
		{"Optional<Optional<Int32>>", nest(nullValue()), "[null]"},
		{"Optional<Optional<Int32>>", nullValue(), "null"},
		{"Optional<Variant<Int32,Int32?>>", variantValue(1, i32), `{"index":1,"value":5}`},
		{"Optional<Variant<Int32,Int32?>>", nest(variantValue(1, nullValue())), `{"index":1,"value":null}`},
		{"Optional<Tagged<Variant<a:Int32>,'t'>>", variantValue(0, i32), `{"a":5}`},
	} {
		typ, err := ParseType(c.typ)
		if err != nil {
			t.Fatal(err)
		}
		got, err := AppendJSON(nil, c.wire, typ, JSONOptions{})
		if err != nil || string(got) != c.want {
			t.Errorf("%s %v: got %s, %v; want %s", c.typ, c.wire, got, err, c.want)
		}
		form, err := ToValue(c.wire, typ)
		if err != nil {
			t.Errorf("%s %v: ToValue: %v", c.typ, c.wire, err)
			continue
		}
		viaForm, err := FromValue(form, typ)
		if err != nil {
			t.Errorf("%s %v: FromValue: %v", c.typ, c.wire, err)
			continue
		}
		viaJSON, err := ParseJSON(got, typ)
		if err != nil || !proto.Equal(viaForm, viaJSON) {
			t.Errorf("%s: the forms disagree: %v, %v, %v", c.typ, viaForm, viaJSON, err)
		}
	}
}

// A value that breaks the protocol is an error in either form, never a zero.
func TestWrongWireFormsAreErrors(t *testing.T) {
	i64 := &Ydb.Value{Value: &Ydb.Value_Int64Value{Int64Value: 5}}
	for _, c := range []struct {
		typ  string
		wire *Ydb.Value
	}{
		{"Int32", i64},
		{"Bool", &Ydb.Value{}},
		{"Uint64", i64},
		{"Date", i64},
		{"Float", i64},
		{"Double", i64},
		{"Utf8", i64},
		{"Utf8", bytesValue([]byte{0xff})},
		{"String", i64},
		{"Uuid", i64},
		{"Decimal(22,9)", i64},
		{"pgint4", i64},
		{"Tuple<Int64,Int64>", &Ydb.Value{Items: []*Ydb.Value{i64}}},
		{"Struct<a:Int64>", &Ydb.Value{}},
		{"Struct<a:Int32>", &Ydb.Value{Items: []*Ydb.Value{i64}}},
		{"List<Int32>", &Ydb.Value{Items: []*Ydb.Value{i64}}},
		{"List<Int32>", &Ydb.Value{Items: []*Ydb.Value{nil}}},
		{"Dict<Int32,Int64>", &Ydb.Value{Pairs: []*Ydb.ValuePair{{Key: i64, Payload: i64}}}},
		{"Dict<Int64,Int32>", &Ydb.Value{Pairs: []*Ydb.ValuePair{{Key: i64, Payload: i64}}}},
		{"Dict<Int64,Int32>", &Ydb.Value{Pairs: []*Ydb.ValuePair{nil}}},
		{"Variant<Int64>", i64},
		{"Variant<Int64>", variantValue(1, i64)},
		{"Variant<a:Int32>", variantValue(0, i64)},
	} {
		typ, err := ParseType(c.typ)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := AppendJSON(nil, c.wire, typ, JSONOptions{}); err == nil {
			t.Errorf("%s %v: AppendJSON wrote %s", c.typ, c.wire, got)
		}
		if got, err := ToValue(c.wire, typ); err == nil {
			t.Errorf("%s %v: ToValue gave %v", c.typ, c.wire, got)
		}
	}
	for _, unknown := range []*Ydb.Type{nil, {}, yqltest.Primitive(9999)} {
		if _, err := AppendJSON(nil, i64, unknown, JSONOptions{}); err == nil {
			t.Errorf("AppendJSON knows %v", unknown)
		}
		if _, err := ToValue(i64, unknown); err == nil {
			t.Errorf("ToValue knows %v", unknown)
		}
		if _, err := ParseJSON([]byte("5"), unknown); err == nil {
			t.Errorf("ParseJSON knows %v", unknown)
		}
		if _, err := FromValue(&sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: 1}}, unknown); err == nil {
			t.Errorf("FromValue knows %v", unknown)
		}
	}
}
