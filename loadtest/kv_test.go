package main

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Both forms of a parameter are the same value of the same type.
func TestValuesAreTheSameInBothForms(t *testing.T) {
	at := time.Date(2026, 5, 4, 3, 2, 1, 123456789, time.UTC)
	for name, v := range map[string]value{
		"unsigned": unsignedValue(1 << 63), "small": smallValue(7), "signed": signedValue(-5), "double": doubleValue(1.5), "text": textValue("x"), "datetime": datetimeValue(at), "timestamp": timestampValue(at),
		"list": listValue([]map[string]value{{"b": signedValue(1), "a": textValue("x")}, {"a": textValue("y"), "b": signedValue(2)}}),
	} {
		got, err := yql.FromValue(v.plain, v.typed.Type)
		if err != nil || !proto.Equal(got, v.typed.Value) {
			t.Errorf("%s: the plain form is %v, %v; the typed one %v", name, got, err, v.typed.Value)
		}
	}
}
