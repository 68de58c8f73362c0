package core

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// TestSamplesFitTheirTypes: what stands for a parameter has the form of its type.
func TestSamplesFitTheirTypes(t *testing.T) {
	for _, name := range []string{
		"Bool", "Int8", "Uint8", "Int16", "Uint16", "Int32", "Uint32", "Int64", "Uint64", "Float", "Double",
		"Date", "Datetime", "Timestamp", "Interval", "TzDate", "TzDatetime", "TzTimestamp",
		"Date32", "Datetime64", "Timestamp64", "Interval64", "String", "Utf8", "Yson", "Json", "JsonDocument", "Uuid", "DyNumber",
		"Decimal(22,9)", "Optional<Int32>", "List<Int32>", "Tuple<Int32,Utf8>", "Struct<a:Int32,b:Utf8?>", "Dict<Utf8,Int32>",
		"Variant<Int32,Utf8>", "Variant<a:Int32,b:Utf8>", "Set<Int32>", "Void", "EmptyList",
	} {
		typ, err := yql.ParseType(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := yql.AppendJSON(nil, sample(typ), typ, yql.JSONOptions{}); err != nil {
			t.Errorf("the sample of %s: %v", name, err)
		}
	}
}
