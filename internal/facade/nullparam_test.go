package facade

import (
	"encoding/json"
	"errors"
	"regexp"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

var (
	writeTypes   = regexp.MustCompile(`write "types": (\{.*?\}) in the request`)
	writeDeclare = regexp.MustCompile(`(DECLARE .*?;) in the statement`)
)

// A caller who sends a null and copies what the first error says to write gets through with the second try.
func TestNullsTakeTwoTries(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	for _, c := range []struct {
		name, sql string
		types     map[string]string
		value     any
		message   string
	}{
		{"without a type", "SELECT $x", nil, nil, `params.x: a null needs a type; write "types": {"x": "Optional<Utf8>"} in the request, ` +
			"or DECLARE $x AS Optional<Utf8>; in the statement, with the type that you mean"},
		{"with a type in types", "SELECT $x", map[string]string{"x": "Date"}, nil,
			`params.x: null is not a Date; only Optional<Date> allows null; write "types": {"x": "Optional<Date>"} in the request`},
		{"with a declared type", "DECLARE $x AS Uuid; SELECT $x", nil, nil,
			"params.x: null is not a Uuid; only Optional<Uuid> allows null; write DECLARE $x AS Optional<Uuid>; in the statement"},
		{"in a list", "SELECT $x", nil, []any{nil},
			`params.x: a null needs a type; write "types": {"x": "List<Optional<Utf8>>"} in the request, ` +
				"or DECLARE $x AS List<Optional<Utf8>>; in the statement, with the type that you mean"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.each(t, func(t *testing.T, face contract.Client) {
				s := contract.Statement{SQL: c.sql, Params: map[string]any{"x": c.value}, Types: c.types}
				_, err := face.Execute(t.Context(), s)
				e, ok := errors.AsType[*contract.Error](err)
				if !ok || e.Code != "BAD_REQUEST" || e.Message != c.message {
					t.Fatalf("got  %v\nwant %s", err, c.message)
				}
				inTypes := writeTypes.FindStringSubmatch(e.Message)
				declare := writeDeclare.FindStringSubmatch(e.Message)
				if inTypes != nil {
					again := s
					again.Types = nil
					if err := json.Unmarshal([]byte(inTypes[1]), &again.Types); err != nil {
						t.Fatal(err)
					}
					if _, err := face.Execute(t.Context(), again); err != nil {
						t.Errorf("with %s: %v", inTypes[1], err)
					}
				}
				if declare != nil {
					again := s
					again.SQL, again.Types = declare[1]+" SELECT $x", nil
					if _, err := face.Execute(t.Context(), again); err != nil {
						t.Errorf("with %s: %v", declare[1], err)
					}
				}
				if inTypes == nil && declare == nil {
					t.Error("the error does not say what to write")
				}
			})
		})
	}
}
