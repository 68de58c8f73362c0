package httpapi

import (
	"fmt"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
)

// TestWordsOfTheDescription: requests take each word that the description lists, and read each header that it names. Both are written by
// hand there, and version 1 promises what it says.
func TestWordsOfTheDescription(t *testing.T) {
	type words struct{ Enum []string }
	var d struct {
		Components struct {
			Schemas    map[string]words
			Parameters map[string]struct {
				Name, In string
			}
		}
	}
	if err := yaml.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	b := exampleService(t)
	for _, of := range []struct{ schema, path, body string }{
		{"Mode", "/v1/query", `{"sql":"SELECT 1 AS one","mode":%q}`},
		{"TxMode", "/v1/tx/begin", `{"mode":%q}`},
		{"PriorityClass", "/v1/query", `{"sql":"SELECT 1 AS one","priority":%q}`},
		{"StatsMode", "/v1/query", `{"sql":"SELECT 1 AS one","stats":%q}`},
		{"RowForm", "/v1/query", `{"sql":"SELECT 1 AS one","rows":%q}`},
		{"IntForm", "/v1/query", `{"sql":"SELECT 1 AS one","ints":%q}`},
	} {
		listed := d.Components.Schemas[of.schema].Enum
		if len(listed) < 2 {
			t.Errorf("%s lists %q", of.schema, listed)
		}
		for _, word := range listed {
			body := fmt.Sprintf(of.body, word)
			if status, _, text := facadetest.Send(t, "POST", b.base+of.path, body, nil); status != 200 {
				t.Errorf("%s: %d %s", body, status, text)
			}
		}
		body := fmt.Sprintf(of.body, "nonsense")
		if status, _, text := facadetest.Send(t, "POST", b.base+of.path, body, nil); status != 400 {
			t.Errorf("%s: %d %s; want that it is refused", body, status, text)
		}
	}
	for _, name := range []string{"RequestTimeout", "Priority", "Rows", "Ints"} {
		header := d.Components.Parameters[name]
		nonsense := facadetest.Header(header.Name, "nonsense")
		status, _, text := facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"SELECT 1 AS one"}`, nonsense)
		if header.In != "header" || status != 400 {
			t.Errorf("%s: nonsense in the header %q: %d %s; want that it is refused", name, header.Name, status, text)
		}
	}
}
