package yql

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// Known answers: both directions of this package could be wrong in the same
// way, and no round trip would show it.
func TestWireForms(t *testing.T) {
	for _, c := range []struct{ typ, json, wire string }{
		{"Bool", "true", "bool_value: true"},
		{"Int8", "-1", "int32_value: -1"},
		{"Int16", "-1", "int32_value: -1"},
		{"Int32", "-1", "int32_value: -1"},
		{"Int64", "-1", "int64_value: -1"},
		{"Uint8", "1", "uint32_value: 1"},
		{"Uint16", "1", "uint32_value: 1"},
		{"Uint32", "1", "uint32_value: 1"},
		{"Uint64", "1", "uint64_value: 1"},
		{"Float", "1.5", "float_value: 1.5"},
		{"Double", "1.5", "double_value: 1.5"},
		{"Date", `"2024-01-31"`, "uint32_value: 19753"},
		{"Date", `"2000-02-29"`, "uint32_value: 11016"},
		{"Datetime", `"2024-01-31T10:00:00Z"`, "uint32_value: 1706695200"},
		{"Timestamp", `"2024-01-31T10:00:00.000001Z"`, "uint64_value: 1706695200000001"},
		{"Interval", `"-PT1.5S"`, "int64_value: -1500000"},
		{"Interval", `"P1DT1H1M1S"`, "int64_value: 90061000000"},
		{"Date32", `"1969-12-31"`, "int32_value: -1"},
		{"Date32", `"0001-01-01"`, "int32_value: -719162"},
		{"Date32", `"-144168-01-01"`, "int32_value: -53375809"},
		{"Date32", `"+148107-12-31"`, "int32_value: 53375807"},
		{"Datetime64", `"1969-12-31T23:59:59Z"`, "int64_value: -1"},
		{"Timestamp64", `"1969-12-31T23:59:59.999999Z"`, "int64_value: -1"},
		{"Interval64", `"PT0.000001S"`, "int64_value: 1"},
		{"TzDatetime", `"2024-01-31T10:00:00,Europe/Moscow"`, `text_value: "2024-01-31T10:00:00,Europe/Moscow"`},
		{"String", `"AP8="`, `bytes_value: "\x00\xff"`},
		{"Utf8", `"a"`, `text_value: "a"`},
		{"Yson", `"[1]"`, `bytes_value: "[1]"`},
		{"Json", `"[1]"`, `text_value: "[1]"`},
		{"JsonDocument", `"[1]"`, `text_value: "[1]"`},
		{"DyNumber", `"1.5"`, `text_value: "1.5"`},
		{"Uuid", `"00112233-4455-6677-8899-aabbccddeeff"`, "low_128: 0x6677445500112233 high_128: 0xffeeddccbbaa9988"},
		{"Decimal(22,9)", `"1.5"`, "low_128: 1500000000 high_128: 0"},
		{"Decimal(22,9)", `"-1.5"`, "low_128: 18446744072209551616 high_128: 18446744073709551615"},
		{"Decimal(35,0)", `"18446744073709551616"`, "low_128: 0 high_128: 1"},
		{"Decimal(22,9)", `"inf"`, "low_128: 3136633892082024448 high_128: 5421010862427522"},
		{"Decimal(22,9)", `"-inf"`, "low_128: 15310110181627527168 high_128: 18441323062847124093"},
		{"Decimal(22,9)", `"nan"`, "low_128: 3136633892082024449 high_128: 5421010862427522"},
		{"Int32?", "null", "null_flag_value: NULL_VALUE"},
		{"Int32?", "5", "int32_value: 5"},
		{"Int32??", "[5]", "int32_value: 5"},
		{"Int32??", "[null]", "nested_value { null_flag_value: NULL_VALUE }"},
		{"Int32???", "[[null]]", "nested_value { nested_value { null_flag_value: NULL_VALUE } }"},
		{"List<Int32>", "[1,2]", "items { int32_value: 1 } items { int32_value: 2 }"},
		{"Tuple<Int32,Utf8>", `[1,"a"]`, `items { int32_value: 1 } items { text_value: "a" }`},
		{"Struct<b:Int32,a:Utf8>", `{"a":"x","b":1}`, `items { int32_value: 1 } items { text_value: "x" }`},
		{"Dict<Utf8,Int32>", `[["a",1]]`, `pairs { key { text_value: "a" } payload { int32_value: 1 } }`},
		{"Set<Utf8>", `["a"]`, `pairs { key { text_value: "a" } payload { null_flag_value: NULL_VALUE } }`},
		{"Variant<Int32,Utf8>", `{"index":1,"value":"a"}`, `nested_value { text_value: "a" } variant_index: 1`},
		{"Variant<a:Int32,b:Utf8>", `{"b":"a"}`, `nested_value { text_value: "a" } variant_index: 1`},
		{"Optional<Variant<Int32,Int32?>>", `{"index":1,"value":5}`, `nested_value { int32_value: 5 } variant_index: 1`},
		{"Optional<Variant<Int32,Int32?>>", `{"index":1,"value":null}`,
			`nested_value { nested_value { null_flag_value: NULL_VALUE } variant_index: 1 }`},
		{"Tagged<Int32,t>", "5", "int32_value: 5"},
		{"Void", "null", "null_flag_value: NULL_VALUE"},
		{"Null", "null", "null_flag_value: NULL_VALUE"},
		{"EmptyList", "[]", ""},
		{"EmptyDict", "[]", ""},
		{"pgint4", "5", `text_value: "5"`},
	} {
		var want Ydb.Value
		if err := prototext.Unmarshal([]byte(c.wire), &want); err != nil {
			t.Fatalf("%s: %v", c.wire, err)
		}
		typ := mustType(t, c.typ)
		got, err := ParseJSON([]byte(c.json), typ)
		if err != nil || !proto.Equal(got, &want) {
			t.Errorf("%s %s: got %v, %v; want %v", c.typ, c.json, got, err, &want)
			continue
		}
		checkForms(t, typ, got)
	}
}

// The numbers of the types stand in the protocol.
func TestTypeNumbers(t *testing.T) {
	for name, id := range map[string]int32{
		"Bool": 6, "Int8": 7, "Int16": 8, "Int32": 1, "Uint8": 5, "Uint16": 9, "Uint32": 2, "Int64": 3, "Uint64": 4,
		"Float": 33, "Double": 32,
		"Date": 48, "Datetime": 49, "Timestamp": 50, "Interval": 51, "TzDate": 52, "TzDatetime": 53, "TzTimestamp": 54,
		"Date32": 64, "Datetime64": 65,
		"Timestamp64": 66, "Interval64": 67, "TzDate32": 68, "TzDatetime64": 69, "TzTimestamp64": 70, "String": 4097,
		"Utf8": 4608, "Yson": 4609,
		"Json": 4610, "JsonDocument": 4612, "Uuid": 4611, "DyNumber": 4866,
	} {
		if got := mustType(t, name).GetTypeId(); int32(got) != id {
			t.Errorf("%s has the number %d, want %d", name, got, id)
		}
	}
}
