package kv

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql"

	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

// Both forms of a parameter are the same value of the same type.
func TestValuesAreTheSameInBothForms(t *testing.T) {
	at := time.Date(2026, 5, 4, 3, 2, 1, 123456789, time.UTC)
	for name, v := range map[string]traffic.Value{
		"unsigned": traffic.UnsignedValue(1 << 63), "small": traffic.SmallValue(7), "signed": traffic.SignedValue(-5),
		"double": traffic.DoubleValue(1.5), "text": traffic.TextValue("x"), "datetime": traffic.DatetimeValue(at),
		"timestamp": traffic.TimestampValue(at),
		"list": traffic.ListValue(
			[]map[string]traffic.Value{{"b": traffic.SignedValue(1), "a": traffic.TextValue("x")},
				{"a": traffic.TextValue("y"), "b": traffic.SignedValue(2)}},
		),
	} {
		got, err := yql.FromValue(v.Plain, v.Typed.Type)
		if err != nil || !proto.Equal(got, v.Typed.Value) {
			t.Errorf("%s: the plain form is %v, %v; the typed one %v", name, got, err, v.Typed.Value)
		}
	}
}
