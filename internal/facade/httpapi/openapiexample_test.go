package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/lease"
)

// exampled is the part of openapi.yaml with the examples that are written by hand.
type exampled struct {
	Paths map[string]map[string]struct {
		Parameters  []parameter
		RequestBody exampledBody `yaml:"requestBody"`
		Responses   map[string]exampledBody
	}
	Components struct{ Parameters map[string]parameter }
}

type parameter struct {
	Ref     string `yaml:"$ref"`
	Name    string
	In      string
	Example any
}

type exampledBody struct {
	Content map[string]struct {
		Example  any
		Examples map[string]struct{ Value any }
	}
}

// address is the path of an operation with the examples of its parameters.
func (d *exampled) address(path, method string) string {
	query := url.Values{}
	for _, p := range d.Paths[path][method].Parameters {
		if p.Ref != "" {
			p = d.Components.Parameters[strings.TrimPrefix(p.Ref, "#/components/parameters/")]
		}
		switch list, ok := p.Example.([]any); {
		case p.In == "path":
			path = strings.Replace(path, "{"+p.Name+"}", fmt.Sprint(p.Example), 1)
		case ok:
			for _, one := range list {
				query.Add(p.Name, fmt.Sprint(one))
			}
		case p.Example != nil:
			query.Set(p.Name, fmt.Sprint(p.Example))
		}
	}
	return path + "?" + query.Encode()
}

// TestExamplesOfValuesAndRows: what openapi.yaml shows of the key-value API and of ingest is what a sidecar takes and answers.
func TestExamplesOfValuesAndRows(t *testing.T) {
	var d exampled
	if err := yaml.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	shelf := facadetest.Shelf(t)
	keyed := compose(t, facadetest.Small(), core.Deps{Driver: shelf}, facadetest.Entry(t, "drafts=t key=id:Uint64 value=v:String")).serve(t,
		shelf)
	items := &facadetest.Driver{
		Table: func(string) (*Ydb_Table.DescribeTableResult, error) { return facadetest.Items(t), nil },
		Bulk:  func(*Ydb_Table.BulkUpsertRequest) error { return nil },
	}
	rows := start(t, facadetest.Small(), items)

	const values = "/v1/kv/{table}"
	body := fmt.Sprint(d.Paths[values]["put"].RequestBody.Content[core.MediaOctets].Example)
	want := fmt.Sprint(d.Paths[values]["get"].Responses["200"].Content[core.MediaOctets].Example)
	for _, c := range []struct {
		method, body string
		status       int
		answer       string
	}{{"put", body, 204, ""}, {"get", "", 200, want}, {"delete", "", 204, ""}} {
		status, _, got := facadetest.Send(t, strings.ToUpper(c.method), keyed.base+d.address(values, c.method), c.body,
			facadetest.Header("Content-Type", core.MediaOctets))
		if status != c.status || got != c.answer {
			t.Errorf("%s: %d %q; want %d %q", c.method, status, got, c.status, c.answer)
		}
	}

	const ingest = "/v1/ingest/{table}"
	op := d.Paths[ingest]["post"]
	line := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw) + "\n"
	}
	status, _, got := facadetest.Send(t, "POST", rows.base+d.address(ingest, "post"), line(op.RequestBody.Content[mediaNDJSON].Example),
		facadetest.Header("Content-Type", mediaNDJSON))
	shown := op.Responses["200"].Content[mediaNDJSON].Examples
	lines := bytes.SplitAfter([]byte(got), []byte("\n"))
	if status != 200 || len(lines) != 3 {
		t.Fatalf("ingest: %d %s; want two lines", status, got)
	}
	for i, name := range []string{"ack", "end"} {
		var v any
		if err := json.Unmarshal(lines[i], &v); err != nil || line(v) != line(shown[name].Value) {
			t.Errorf("line %d is %s, %v; the example %s is %s", i, lines[i], err, name, line(shown[name].Value))
		}
	}
}

// TestOpenAPINamesTheLimits: the limits that openapi.yaml names are those of a fresh installation.
func TestOpenAPINamesTheLimits(t *testing.T) {
	api, tx := core.DefaultAPI(), lease.Default()
	for _, limit := range []string{
		fmt.Sprintf("%d bytes (api.max_body)", api.MaxBody), fmt.Sprintf("%d bytes (api.max_headers)", api.MaxHeaders),
		fmt.Sprintf("nesting %d (api.max_depth)", api.MaxDepth), fmt.Sprintf("%d (api.max_params)", api.MaxParams),
		fmt.Sprintf("%d (api.max_statements)", api.MaxStatements), fmt.Sprintf("%d (api.max_rows)", api.MaxRows),
		fmt.Sprintf("%d (api.max_bytes)", api.MaxBytes), fmt.Sprintf("%v (api.timeout)", api.Timeout),
		fmt.Sprintf("%v (api.max_timeout)", api.MaxTimeout), fmt.Sprintf("%v without a call (tx.idle)", tx.Idle),
		fmt.Sprintf("%v in all (tx.max)", tx.Max),
	} {
		if !strings.Contains(strings.Join(strings.Fields(string(openAPI)), " "), limit) {
			t.Errorf("openapi.yaml does not say %q", limit)
		}
	}
}
