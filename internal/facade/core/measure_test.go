package core

import (
	"testing"

	"go.opentelemetry.io/otel/attribute"
)

// TestTheSchemeIsMeasured: requests over TLS are told apart.
func TestTheSchemeIsMeasured(t *testing.T) {
	for _, secure := range []bool{false, true} {
		want := map[bool]string{false: "http", true: "https"}[secure]
		set := attribute.NewSet(seriesKey{method: "GET", status: 200, tls: secure}.attributes()...)
		if v, _ := set.Value("url.scheme"); v.AsString() != want {
			t.Errorf("TLS %t: %v; want %s", secure, set, want)
		}
	}
}
