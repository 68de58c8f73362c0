package yql

import (
	"math"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestThePlainRule(t *testing.T) {
	nested := gInt(1)
	for range MaxTypeDepth {
		nested = gList(nested)
	}
	for _, c := range []struct {
		json string // "" if JSON has no such value
		grpc *sidecarv1.Value
		want string
	}{
		{"5", gInt(5), "Int64"}, {"9223372036854775807", gInt(math.MaxInt64), "Int64"},
		{"9223372036854775808", gUint(1 << 63), "Uint64"}, {"-0", gInt(0), "Int64"},
		{"5.0", gDouble(5), "Double"}, {"5e0", gDouble(5), "Double"}, {"true", gBool(true), "Bool"},
		{`"a"`, gText("a"), "Utf8"}, {"", gBytes("a"), "String"},
		{"[]", gList(), "EmptyList"}, {"[1,2]", gList(gInt(1), gInt(2)), "List<Int64>"},
		{"[1,2.5]", gList(gInt(1), gDouble(2.5)), "List<Double>"},
		{"[2.5,1]", gList(gDouble(2.5), gInt(1)), "List<Double>"},
		{"[1,9223372036854775808]", gList(gInt(1), gUint(1<<63)), "List<Uint64>"},
		{"[null,1]", gList(gNull(), gInt(1)), "List<Optional<Int64>>"},
		{"[1,null,2.5]", gList(gInt(1), gNull(), gDouble(2.5)), "List<Optional<Double>>"},
		{"[null,1,null]", gList(gNull(), gInt(1), gNull()), "List<Optional<Int64>>"},
		{"[[],[1]]", gList(gList(), gList(gInt(1))), "List<List<Int64>>"},
		{"[[1],[]]", gList(gList(gInt(1)), gList()), "List<List<Int64>>"},
		{"[[],null]", gList(gList(), gNull()), "List<Optional<EmptyList>>"},
		{"[[null],[1]]", gList(gList(gNull()), gList(gInt(1))), "List<List<Optional<Int64>>>"},
		{"[null,[1],[2.5]]", gList(gNull(), gList(gInt(1)), gList(gDouble(2.5))), "List<Optional<List<Double>>>"},
		{`{"b":1,"a":"x"}`, gStruct(gField("b", gInt(1)), gField("a", gText("x"))), "Struct<a:Utf8,b:Int64>"},
		{"{}", gStruct(), "Struct<>"},
		{`[{"a":1,"b":null},{"b":"x","a":2}]`,
			gList(gStruct(gField("a", gInt(1)), gField("b", gNull())), gStruct(gField("b", gText("x")), gField("a", gInt(2)))),
			"List<Struct<a:Int64,b:Optional<Utf8>>>"},
		{"", gDict(), "EmptyDict"},
		{"", gDict(gPair(gText("a"), gInt(1)), gPair(gText("b"), gDouble(1))), "Dict<Utf8,Double>"},
		{"", gDict(gPair(gText("a"), nil)), "Set<Utf8>"},
		{"", gList(gDict(), gDict(gPair(gInt(1), gNull())), gDict(gPair(gInt(1), gInt(1)))), "List<Dict<Int64,Optional<Int64>>>"},
		{"", gTyped("Decimal(22,9)", gText("1")), "Decimal(22,9)"},
		{"", gList(gTyped("Uint8", gInt(1)), gNull()), "List<Optional<Uint8>>"},
		{"", gTyped("Null", gNull()), "Null"},
		// errors
		{"null", gNull(), "a null needs a type"},
		{"[null]", gList(gNull()), "a null needs a type"},
		{`{"a":null}`, gStruct(gField("a", gNull())), "a: a null needs a type"},
		{"[null,[null]]", gList(gNull(), gList(gNull())), "a null needs a type"},
		{"", gDict(gPair(gNull(), gInt(1))), "a null needs a type"},
		{`[1,"a"]`, gList(gInt(1), gText("a")), "[1]: one list holds both Int64 and Utf8; write all items in the same form"},
		{`[1,[1]]`, gList(gInt(1), gList(gInt(1))), "[1]: one list holds both Int64 and List<Int64>; write all items in the same form"},
		{`[{"a":1},{"b":1}]`, gList(gStruct(gField("a", gInt(1))), gStruct(gField("b", gInt(1)))),
			`[1]: one list holds structs with and without "a"; write the member "a" in each, as null where there is no value`},
		{`[{"a":1},{}]`, gList(gStruct(gField("a", gInt(1))), gStruct()),
			"[1]: one list holds structs with 1 and with 0 members; write the same members in each, null where there is no value"},
		{`[{"a":1},{"a":"x"}]`, gList(gStruct(gField("a", gInt(1))), gStruct(gField("a", gText("x")))),
			"[1].a: one list holds both Int64 and Utf8; write all items in the same form"},
		{`{"a":1,"a":2}`, gStruct(gField("a", gInt(1)), gField("a", gInt(2))), "a: the member appears twice"},
		{"18446744073709551616", nil, "the integer 18446744073709551616, which fits neither Int64 nor Uint64, needs a type"},
		{"", gVariant("a", 0, gInt(1)), "a variant needs a type"},
		{"", &sidecarv1.Value{}, "an empty value needs a type; set a member of the Value, such as null_value or text_value"},
		{strings.Repeat("[", 64) + "1" + strings.Repeat("]", 64), nested,
			strings.Repeat("[0]", 64) + ": the value nests more than 64 deep"},
		{"", gDict(gPair(gText("a"), gInt(1)), gPair(gInt(1), gInt(1))),
			"[1].key: one list holds both Utf8 and Int64; write all items in the same form"},
		{"", gDict(gPair(gText("a"), gInt(1)), gPair(gText("a"), nil)),
			"[1].value: one list holds both Int64 and Void; write all items in the same form"},
		{"", gList(gDict(gPair(gInt(1), gInt(1))), gDict(gPair(gText("a"), gInt(1)))),
			"[1]: one list holds both Int64 and Utf8; write all items in the same form"},
	} {
		show := func(typ *Ydb.Type, err error) string {
			if err != nil {
				return err.Error()
			}
			return FormatType(typ)
		}
		if c.json != "" {
			if got := show(InferJSON([]byte(c.json))); got != c.want {
				t.Errorf("%s\n got %s\nwant %s", c.json, got, c.want)
			}
		}
		if c.grpc != nil {
			if got := show(Infer(c.grpc)); got != c.want {
				t.Errorf("%v\n got %s\nwant %s", c.grpc, got, c.want)
			}
		}
	}
}

// Each kind of value that the proto has, without a type from elsewhere.
func TestTheTypeOfEveryKind(t *testing.T) {
	types := map[string]struct {
		in   *sidecarv1.Value
		want string // "": it needs a type
	}{
		"null_value": {gNull(), ""}, "bool_value": {gBool(true), "Bool"}, "int64_value": {gInt(2), "Int64"},
		"uint64_value": {gUint(2), "Uint64"},
		"double_value": {gDouble(2), "Double"}, "text_value": {gText("2"), "Utf8"}, "bytes_value": {gBytes("2"), "String"},
		"list_value": {gList(gUint(1), gInt(2)), "List<Uint64>"}, "struct_value": {gStruct(gField("a", gUint(1))), "Struct<a:Uint64>"},
		"dict_value": {gDict(gPair(gUint(1), gText("a"))), "Dict<Uint64,Utf8>"}, "variant_value": {gVariant("a", 0, gUint(1)), ""},
		"typed_value": {gTyped("Uint8", gUint(1)), "Uint8"},
	}
	kinds := (&sidecarv1.Value{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	if kinds.Len() != len(types) {
		t.Errorf("%d kinds, %d in the table", kinds.Len(), len(types))
	}
	for name, c := range types {
		if kind := c.in.ProtoReflect().WhichOneof(kinds.Get(0).ContainingOneof()); string(kind.Name()) != name {
			t.Errorf("%s: the value is a %s", name, kind.Name())
		}
		p, err := Param(c.in, nil)
		if err != nil && c.want != "" || err == nil && FormatType(p.Type) != c.want {
			t.Errorf("%s: sent as %s, %v; want %q", name, FormatType(p.GetType()), err, c.want)
		}
	}
}

// A value of an inferred type is a value of that type, in either form.
func TestInferredTypesFit(t *testing.T) {
	for _, raw := range []string{"5", "[1,2.5,null]", `[{"a":[],"b":null},{"b":"x","a":[1]}]`, "[]", "{}", `[[null],[1]]`} {
		p, err := ParamJSON([]byte(raw), nil)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		form, err := ToValue(p.GetValue(), p.GetType())
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		back, err := Param(form, p.GetType())
		if err != nil || !proto.Equal(back, p) {
			t.Errorf("%s: got %v, %v; want %v", raw, back, err, p)
		}
	}
}
