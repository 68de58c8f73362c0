package yql

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql/yqltest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func gNull() *sidecarv1.Value { return toNull() }
func gBool(b bool) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_BoolValue{BoolValue: b}}
}
func gInt(v int64) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: v}}
}
func gUint(v uint64) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: v}}
}
func gDouble(v float64) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_DoubleValue{DoubleValue: v}}
}
func gText(s string) *sidecarv1.Value { return toText([]byte(s)) }
func gBytes(s string) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_BytesValue{BytesValue: []byte(s)}}
}
func gList(items ...*sidecarv1.Value) *sidecarv1.Value { return toList(items) }
func gStruct(fields ...*sidecarv1.Field) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_StructValue{StructValue: &sidecarv1.StructValue{Fields: fields}}}
}
func gField(name string, v *sidecarv1.Value) *sidecarv1.Field {
	return &sidecarv1.Field{Name: name, Value: v}
}
func gDict(pairs ...*sidecarv1.Pair) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_DictValue{DictValue: &sidecarv1.DictValue{Pairs: pairs}}}
}
func gPair(k, v *sidecarv1.Value) *sidecarv1.Pair { return &sidecarv1.Pair{Key: k, Value: v} }
func gVariant(tag string, index uint32, v *sidecarv1.Value) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_VariantValue{
		VariantValue: &sidecarv1.VariantValue{Tag: tag, Index: index, Value: v},
	}}
}
func gTyped(typ string, v *sidecarv1.Value) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_TypedValue{TypedValue: &sidecarv1.TypedValue{Type: typ, Value: v}}}
}

// What gRPC's own kinds become; JSON is the readable form of the result.
func TestFromValueConverts(t *testing.T) {
	for _, c := range []struct {
		typ  string
		in   *sidecarv1.Value
		want string // JSON, or the error
	}{
		{"Uint64", gInt(42), `"42"`},
		{"Uint64", gInt(-1), "-1 is out of range for a Uint64 (0 to 18446744073709551615)"},
		{"Uint64", gUint(math.MaxUint64), `"18446744073709551615"`},
		{"Int64", gUint(math.MaxUint64), "18446744073709551615 is out of range for an Int64 (-9223372036854775808 to 9223372036854775807)"},
		{"Int64", gInt(math.MinInt64), `"-9223372036854775808"`},
		{"Int8", gInt(-129), "-129 is out of range for an Int8 (-128 to 127)"},
		{"Uint8", gText("255"), "255"}, {"Int32", gDouble(5), "5"},
		{"Int32", gDouble(5.5), `"5.5" is not an integer, which an Int32 requires`},
		{"Int64", gDouble(1e18), `"1000000000000000000"`}, {"Int64", gDouble(math.NaN()), `"NaN" is not an Int64; write it like 5`},
		{"Double", gInt(5), "5"}, {"Float", gDouble(0.1), "0.1"},
		{"Float", gDouble(1e39), `"1e+39" is out of range for a Float; a Double holds more`},
		{"Float", gDouble(math.Inf(-1)), `"-Infinity"`},
		{"Double", gText("NaN"), `"NaN"`}, {"Double", gText("1.5"), "1.5"},
		{"Bool", gBool(true), "true"}, {"Bool", gText("TRUE"), "true"}, {"Bool", gInt(1), "the number 1 is not a Bool; write it like true"},
		{"Utf8", gText("a"), `"a"`}, {"Utf8", gInt(1), `the number 1 is not a Utf8; write it like "1"`},
		{"Utf8", gBytes("a"), `bytes is not a Utf8; write it like "text"`},
		{"Utf8", gBool(true), `true is not a Utf8; write it like "true"`},
		{"String", gBytes("a"), `"YQ=="`}, {"String", gText("a"), `"YQ=="`},
		{"Yson", gBytes("\xff"), `{"base64":"/w=="}`}, {"Yson", gText("[]"), `"[]"`},
		{"Date", gText("2024-01-31"), `"2024-01-31"`}, {"Date", gInt(19753), `"2024-01-31"`},
		{"Timestamp", gUint(1), `"1970-01-01T00:00:00.000001Z"`}, {"Interval", gInt(-1), `"-PT0.000001S"`},
		{"Decimal(22,9)", gText("1.50"), `"1.5"`}, {"Decimal(22,9)", gInt(-5), `"-5"`},
		{"Decimal(22,9)", gUint(5), `"5"`}, {"Decimal(22,9)", gDouble(0.1), `"0.1"`},
		{"Decimal(22,9)", gDouble(math.Inf(1)), `"inf"`},
		{"Decimal(22,9)", gBool(true), `true is not a Decimal(22,9); write it like "1.50"`},
		{"DyNumber", gInt(-5), `"-5"`}, {"DyNumber", gDouble(0.5), `"0.5"`},
		{"Uuid", gText("x"), `"x" is not a Uuid; write it like "5ca32c22-841b-11e8-adc0-fa7ae01bbebc"`},
		{"Int32?", gNull(), "null"}, {"Int32?", gInt(5), "5"}, {"Int32??", gList(gNull()), "[null]"},
		{"Int32??", gInt(5), "an Optional<Optional<Int32>> must be null or a list of one; write it like [5]"},
		{"Int32??", gList(), "an Optional<Optional<Int32>> must be null or a list of one; write it like [5]"},
		{"Int32", gNull(), "null is not an Int32; only Optional<Int32> allows null"},
		{"Int32", &sidecarv1.Value{}, "an empty value; null is null_value"},
		{"List<Int32>", gList(nil), "[0]: an empty value; null is null_value"},
		{"List<Int32>", gList(gInt(1), gText("x")), `[1]: "x" is not an Int32; write it like 5`},
		{"List<Int32>", gStruct(), "a struct is not a List<Int32>; send it as list_value"}, {"EmptyList", gList(), "[]"},
		{"EmptyList", gList(gInt(1)), "a list is not an EmptyList; send it as list_value without items"},
		{"Tuple<Int32,Utf8>", gList(gInt(1), gText("a")), `[1,"a"]`},
		{"Tuple<Int32,Utf8>", gList(gInt(1)), `1 items for a Tuple of 2; write it like [5,"text"]`},
		{"Struct<a:Int32,b:Utf8?>", gStruct(gField("a", gInt(1))), `{"a":1,"b":null}`},
		{"Struct<a:Int32,b:Utf8?>", gStruct(gField("b", gNull())), "a: the member is missing; write it like 5"},
		{"Struct<a:Int32>", gStruct(gField("c", gInt(1))), `the Struct has no member "c"; it has "a"`},
		{"Struct<a:Int32>", gStruct(gField("a", gInt(1)), gField("a", gInt(1))), "a: the member appears twice"},
		{"Struct<a:Int32>", gStruct(gField("a", gText("x"))), `a: "x" is not an Int32; write it like 5`},
		{"Dict<Utf8,Int32>", gDict(gPair(gText("a"), gInt(1))), `[["a",1]]`},
		{"Dict<Utf8,Int32>", gDict(gPair(gText("a"), nil)), "[0].value: an empty value; null is null_value"},
		{"Dict<Utf8,Int32>", gDict(gPair(gInt(1), gInt(1))), `[0].key: the number 1 is not a Utf8; write it like "1"`},
		{"Set<Utf8>", gDict(gPair(gText("a"), nil)), `["a"]`}, {"Set<Utf8>", gDict(gPair(gText("a"), gNull())), `["a"]`},
		{"Set<Utf8>", gDict(gPair(gText("a"), gInt(1))), "[0]: a value in a Set, which has keys only"},
		{"EmptyDict", gDict(), "[]"},
		{"EmptyDict", gDict(gPair(gInt(1), nil)), "a dict is not an EmptyDict; send it as dict_value without pairs"},
		{"Variant<a:Int32,b:Utf8>", gVariant("b", 0, gText("x")), `{"b":"x"}`},
		{"Variant<a:Int32>", gVariant("c", 0, gText("x")), `there is no alternative "c" in the Variant; it has "a"`},
		{"Variant<Int32,Utf8>", gVariant("", 1, gText("x")), `{"index":1,"value":"x"}`},
		{"Variant<Int32>", gVariant("", 1, gInt(1)), "there is no alternative 1 in the Variant"},
		{"Variant<Int32>", gVariant("a", 0, gInt(1)), `the tag "a" for a Variant over a Tuple, which has an index`},
		{"Variant<Int32>", gVariant("", 0, gText("x")), `[0]: "x" is not an Int32; write it like 5`},
		{"Variant<a:Int32>", gVariant("a", 0, gText("x")), `a: "x" is not an Int32; write it like 5`},
		{"Variant<Int32>", gList(), "a list is not a Variant<Int32>; send it as variant_value"},
		{"pgint4", gInt(5), `"5"`}, {"pgint4", gUint(5), `"5"`}, {"pgfloat8", gDouble(0.5), `"0.5"`},
		{"pgbool", gBool(true), `"true"`}, {"pgbytea", gBytes("\xff"), `{"base64":"/w=="}`},
		{"pgint4", gNull(), "null"}, {"pgint4", gList(), `a list is not a pgint4; write it like "5"`},
		{"Void", gNull(), "null"}, {"Void", gInt(1), "the number 1 is not a Void; send it as null_value"},
		{"Tagged<Int32,t>", gInt(1), "1"},
		{"List<Uint64>", gList(gTyped("Uint64", gInt(1))), `["1"]`},
		{"Int32", gTyped("Uint64", gInt(1)),
			"the value is typed Uint64, but Int32 is expected; name the same type in both places, or only in one"},
		{"Int32", gTyped("Int33", gInt(1)),
			`type "Int33": column 1: unknown type "int33"; names are those of YQL, such as Utf8, Int64, Double, Timestamp or Decimal(22,9)`},
		{"Int32", gTyped("Int32", gTyped("Int32", gInt(1))), "a typed_value inside a typed_value"},
		{"Int32", gVariant("", 0, nil), "a variant is not an Int32; write it like 5"},
		{"Int32", gDict(), "a dict is not an Int32; write it like 5"},
		{"Int32", gUint(math.MaxUint64), "18446744073709551615 is out of range for an Int32 (-2147483648 to 2147483647)"},
	} {
		typ := mustType(t, c.typ)
		got := ""
		v, err := FromValue(c.in, typ)
		if err != nil {
			got = err.Error()
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Errorf("%s: %v: a %T", c.typ, c.in, err)
			}
		} else if text, err := AppendJSON(nil, v, typ, JSONOptions{}); err != nil {
			t.Errorf("%s: %v: %v", c.typ, c.in, err)
		} else {
			got = string(text)
		}
		if got != c.want {
			t.Errorf("%s: %v\n got %s\nwant %s", c.typ, c.in, got, c.want)
		}
	}
}

func TestFromValueIsBounded(t *testing.T) {
	var b strings.Builder
	for i := range 5000 {
		b.WriteString(
			",m" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("y", i/26%50) +
				strings.Repeat("z", i/1300) + ":Int32?",
		)
	}
	seen := map[string]bool{}
	var names []string
	for _, n := range strings.Split(b.String()[1:], ",") {
		if !seen[n] {
			seen[n] = true
			names = append(names, n)
		}
	}
	typ := mustType(t, "List<Struct<"+strings.Join(names, ",")+">>")
	items := make([]*sidecarv1.Value, MaxValues/len(names)+1)
	for i := range items {
		items[i] = gStruct()
	}
	_, err := FromValue(gList(items...), typ)
	if err == nil || !strings.HasSuffix(err.Error(), "more than 1048576 values in one") {
		t.Errorf("got %v", err)
	}
}

func TestParametersTakeTheirTypeFromTheBestSource(t *testing.T) {
	typ := func(name string) *Ydb.Type {
		if name == "" {
			return nil
		}
		return mustType(t, name)
	}
	show := func(p *Ydb.TypedValue, err error) string {
		if err != nil {
			return err.Error()
		}
		text, err := AppendJSON(nil, p.GetValue(), p.GetType(), JSONOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return FormatType(p.GetType()) + " " + string(text)
	}
	for _, c := range []struct {
		json     string
		grpc     *sidecarv1.Value
		declared string
		want     string
	}{
		{"42", gInt(42), "Uint64", `Uint64 "42"`}, {"42", gInt(42), "", `Int64 "42"`},
		{`"42"`, gText("42"), "Uint64", `Uint64 "42"`}, {"null", gNull(), "Int32?", "Optional<Int32> null"},
		{`{"type":"Decimal(22,9)","value":"1.50"}`, gTyped("Decimal(22,9)", gText("1.50")), "", `Decimal(22,9) "1.5"`},
		{`{"value":"1.50","type":"Decimal(22,9)"}`, gTyped("Decimal(22,9)", gText("1.50")), "Decimal(22,9)", `Decimal(22,9) "1.5"`},
		{`{"type":"Uint64","value":1}`, gTyped("Uint64", gInt(1)), "Int64",
			"the value is typed Uint64, but Int64 is expected; name the same type in both places, or only in one"},
		{`{"type":"Uint64","value":-1}`, gTyped("Uint64", gInt(-1)), "", "-1 is out of range for a Uint64 (0 to 18446744073709551615)"},
		{`{"type":"Null","value":null}`, gTyped("Null", gNull()), "", "Null null"},
		// What only looks like a typed value is a value.
		{`{"type":"Utf8","value":"x"}`, gStruct(gField("type", gText("Utf8")), gField("value", gText("x"))),
			"Struct<type:Utf8,value:Utf8>", `Struct<type:Utf8,value:Utf8> {"type":"Utf8","value":"x"}`},
		{`{"type":"car","value":5}`, gStruct(gField("type", gText("car")), gField("value", gInt(5))), "Struct<type:Utf8,value:Int64>",
			`Struct<type:Utf8,value:Int64> {"type":"car","value":"5"}`},
		{`{"type":"Utf8","value":"x","more":1}`, nil, "", `Struct<more:Int64,type:Utf8,value:Utf8> {"more":"1","type":"Utf8","value":"x"}`},
		{`{"type":"Utf8"}`, nil, "", `Struct<type:Utf8> {"type":"Utf8"}`},
		{`{"type":5,"value":1}`, nil, "", `Struct<type:Int64,value:Int64> {"type":"5","value":"1"}`},
		// Of a document, only the form that cannot be told from a value with its type is refused.
		{`{"type":"Json","value":"{}"}`, gTyped("Json", gText("{}")), "", `Json "{}"`},
		{`{"type":"Yson","value":"{}"}`, gTyped("Yson", gText("{}")), "Yson", `Yson "{}"`},
		{`{"type":"Yson","value":"{}"}`, gTyped("Yson", gText("{}")), "Utf8",
			"the value is typed Yson, but Utf8 is expected; name the same type in both places, or only in one"},
		{`{"type":"Int32","value":5}`, nil, "Json", `Json "{\"type\":\"Int32\",\"value\":5}"`},
		{`{"type":"Utf8","value":5}`, nil, "JsonDocument?", `Optional<JsonDocument> "{\"type\":\"Utf8\",\"value\":5}"`},
		{`{"type":"car","value":5}`, nil, "Json", `Json "{\"type\":\"car\",\"value\":5}"`},
		{`{"type":"Json","value":"{}","more":1}`, nil, "Json", `Json "{\"type\":\"Json\",\"value\":\"{}\",\"more\":1}"`},
		{`"{\"type\":\"Json\",\"value\":1}"`, gText(`{"type":"Json","value":1}`), "Json", `Json "{\"type\":\"Json\",\"value\":1}"`},
		{`{"type":"Json","value":"[1]"}`, nil, "Json", ambiguous("Json")},
		{`{"type":"json","value":1}`, nil, "Json?", ambiguous("Optional<Json>")},
		{`{"value":null,"type":"JsonDocument?"}`, nil, "JsonDocument?", ambiguous("Optional<JsonDocument>")},
		{`{"type":"JsonDocument","value":"[1]"}`, nil, "Json", ambiguous("Json")},
		{`{"type":"Utf8","value":"x"} x`, nil, "", "invalid JSON at byte 28: text behind the value"},
		{"", nil, "", "invalid JSON at byte 0: expected a value"},
	} {
		if got := show(ParamJSON([]byte(c.json), typ(c.declared))); got != c.want {
			t.Errorf("%s AS %s\n got %s\nwant %s", c.json, c.declared, got, c.want)
		}
		if c.grpc == nil {
			continue
		}
		if got := show(Param(c.grpc, typ(c.declared))); got != c.want {
			t.Errorf("%v AS %s\n got %s\nwant %s", c.grpc, c.declared, got, c.want)
		}
	}
}

// ambiguous is the error of a document that may as well be a value with its type.
func ambiguous(declared string) string {
	return "an object with the members type and value, where " + declared + " is the type already, may be a document or a value " +
		"with its type; send the document as text, or name the type in one place only"
}

// FuzzValue reads messages that no client of ours would send.
func FuzzValue(f *testing.F) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 5))
		typ := yqltest.Type(r, 3)
		if form, err := ToValue(yqltest.Value(r, typ), typ); err == nil {
			if wire, err := proto.Marshal(form); err == nil {
				f.Add(FormatType(typ), wire)
			}
		}
	}
	f.Add("List<Uint64>", []byte("\x62\x0a\x0a\x06Uint64\x12\x00"))
	f.Fuzz(func(t *testing.T, name string, wire []byte) {
		var form sidecarv1.Value
		if proto.Unmarshal(wire, &form) != nil {
			return
		}
		Param(&form, nil)
		typ, err := ParseType(name)
		if err != nil {
			return
		}
		v, err := FromValue(&form, typ)
		if err != nil {
			return
		}
		checkForms(t, typ, v)
	})
}
