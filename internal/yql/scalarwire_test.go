package yql

import (
	"bytes"
	"math"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// scalarTypes are declared types of scalars, and others.
func scalarTypes() []*Ydb.Type {
	all := []*Ydb.Type{nil, typeVoid, listOf(typeInt64), {}, optional(optional(typeInt64)),
		{Type: &Ydb.Type_DecimalType{DecimalType: &Ydb.DecimalType{Precision: 22, Scale: 9}}}}
	for id := range primitiveNames {
		t := &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}}
		all = append(all, t, optional(t), &Ydb.Type{Type: &Ydb.Type_TaggedType{TaggedType: &Ydb.TaggedType{Tag: "x", Type: t}}})
	}
	return all
}

// checkScalar compares what AppendScalar makes of a value with what Param does. It reports whether it made something.
func checkScalar(t *testing.T, value []byte, declared *Ydb.Type) bool {
	t.Helper()
	out, typ, ok := AppendScalar([]byte("before"), value, declared)
	if !ok {
		if string(out) != "before" {
			t.Errorf("%x of %v: it was not taken, and %q was appended", value, declared, out)
		}
		return false
	}
	var v sidecarv1.Value
	if err := proto.Unmarshal(value, &v); err != nil {
		t.Fatalf("%x of %v was taken: %v", value, declared, err)
	}
	want, err := Param(&v, declared)
	if err != nil {
		t.Fatalf("%x of %v was taken: %v", value, declared, err)
	}
	rowBytes, err := proto.Marshal(want.Value)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(typ, want.Type) || !bytes.Equal(out, append([]byte("before"), rowBytes...)) {
		t.Errorf("%x of %v: %x of %v; want %x of %v", value, declared, out, typ, rowBytes, want.Type)
	}
	return true
}

// TestScalars: what is appended is what Param makes, for all kinds and types; the usual ones are appended.
func TestScalars(t *testing.T) {
	values := []*sidecarv1.Value{
		{Kind: &sidecarv1.Value_NullValue{NullValue: true}}, {}, {Kind: &sidecarv1.Value_BoolValue{BoolValue: true}},
		{Kind: &sidecarv1.Value_BoolValue{}},
		{Kind: &sidecarv1.Value_DoubleValue{DoubleValue: math.NaN()}}, {Kind: &sidecarv1.Value_DoubleValue{DoubleValue: 1.5}},
		{Kind: &sidecarv1.Value_TextValue{}}, {Kind: &sidecarv1.Value_TextValue{TextValue: "12"}}, {Kind: &sidecarv1.Value_BytesValue{}},
		{Kind: &sidecarv1.Value_BytesValue{BytesValue: []byte("\xff")}},
		{Kind: &sidecarv1.Value_ListValue{ListValue: &sidecarv1.ListValue{}}},
		{
			Kind: &sidecarv1.Value_TypedValue{
				TypedValue: &sidecarv1.TypedValue{Type: "Int32", Value: &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: 1}}},
			},
		},
	}
	for _, n := range []int64{0, 1, -1, math.MaxInt8, math.MaxInt8 + 1, math.MinInt8, math.MinInt8 - 1,
		math.MaxUint8 + 1, math.MaxInt32 + 1, math.MinInt32, math.MinInt32 - 1,
		math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64, math.MinInt64} {
		values = append(values, &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: n}},
			&sidecarv1.Value{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: uint64(n)}})
	}
	taken := make(map[string]int)
	for _, v := range values {
		rowBytes, err := proto.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range scalarTypes() {
			if checkScalar(t, rowBytes, declared) {
				taken[kindName(v)]++
			}
		}
	}
	for _, v := range []*sidecarv1.Value{values[2], values[4], values[6], values[8], values[12], values[13]} {
		if name := kindName(v); taken[name] < 3 { // of no declared type, of its own, and of an Optional of that
			t.Errorf("%s: %d values were taken", name, taken[name])
		}
	}
}

// FuzzScalars appends what Param makes of any bytes, or nothing.
func FuzzScalars(f *testing.F) {
	types := scalarTypes()
	for _, b := range [][]byte{nil, {tagPlainBool, 1}, {tagPlainBool, 2}, {tagPlainInt, 0x80}, {tagPlainUint, 0x80, 0},
		{tagPlainText, 2, 'a'}, {tagPlainText, 1, 0xff},
		protowire.AppendVarint([]byte{tagPlainInt}, math.MaxUint64), {tagPlainInt, 1, tagPlainInt, 2},
		{tagPlainBytes, 1, 'a'}, {tagPlainFloat, 1, 2, 3, 4, 5, 6, 7, 8}} {
		for i := range 4 {
			f.Add(b, i)
		}
	}
	f.Fuzz(func(t *testing.T, value []byte, i int) {
		checkScalar(t, value, types[uint(i)%uint(len(types))])
	})
}
