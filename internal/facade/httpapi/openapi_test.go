package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// document is the part of OpenAPI that the tests compare with the code.
type document struct {
	OpenAPI    string
	Paths      map[string]map[string]operation
	Components struct {
		Schemas map[string]schema
	}
}

type operation struct {
	OperationID string `yaml:"operationId"`
	RequestBody struct {
		Content map[string]struct{ Schema schema }
	} `yaml:"requestBody"`
	Responses map[string]struct {
		Ref     string `yaml:"$ref"`
		Content map[string]struct{ Schema schema }
	}
}

type schema struct {
	Ref        string `yaml:"$ref"`
	Properties map[string]schema
	Items      *schema
	Required   []string
	Additional any `yaml:"additionalProperties"`
}

func read(t *testing.T) document {
	t.Helper()
	var d document
	if err := yaml.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	if d.OpenAPI != "3.1.0" {
		t.Fatalf("OpenAPI %q; want 3.1.0", d.OpenAPI)
	}
	return d
}

func TestOpenAPIHasExactlyTheRoutes(t *testing.T) {
	d := read(t)
	var described, served []string
	for path, operations := range d.Paths {
		for method, op := range operations {
			bodies := slices.Sorted(maps.Keys(op.RequestBody.Content))
			described = append(described, fmt.Sprintf("%s %s %s %v", strings.ToUpper(method), path, op.OperationID, bodies))
			if op.Responses["default"].Ref != "#/components/responses/Problem" {
				t.Errorf("%s %s does not describe its problems", method, path)
			}
		}
	}
	for _, r := range routes {
		served = append(served, fmt.Sprintf("%s %s %s %v", r.Method, strings.Replace(r.Path, "...}", "}", 1), r.call, r.body))
	}
	slices.Sort(described)
	slices.Sort(served)
	if diff := cmp.Diff(served, described); diff != "" {
		t.Errorf("routes (-served +described):\n%s", diff)
	}
}

// TestOpenAPIHasTheFieldsOfTheMessages compares each schema with the message of
// the same name in sidecar.proto, both ways.
func TestOpenAPIHasTheFieldsOfTheMessages(t *testing.T) {
	d := read(t)
	ours := map[string][]string{ // what HTTP has beyond gRPC, and what it lacks
		"ExecuteRequest": {"+rows", "+ints"}, "TransactRequest": {"+rows", "+ints"}, "BatchRequest": {"+rows", "+ints"},
		"CommitRequest": {"-id"}, "RollbackRequest": {"-id"}, "KvBatchGetRequest": {"-table"}, // in the path
	}
	octets := []string{"KvGetResponse", "KvPutResponse", "KvDeleteResponse"} // no JSON over HTTP
	messages := ourMessages()
	seen := 0
	for name, s := range d.Components.Schemas {
		message := messages[name]
		if name == "Problem" {
			message = messages["Error"]
			ours[name] = []string{"+type", "+title", "+detail"}
		}
		if message == nil || s.Properties == nil {
			continue // a word of JSON alone
		}
		seen++
		want := map[string]bool{}
		for i := range message.Fields().Len() {
			want[string(message.Fields().Get(i).Name())] = true
		}
		for _, o := range ours[name] {
			if o[0] == '+' {
				want[o[1:]] = true
			} else {
				delete(want, o[1:])
			}
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(s.Properties))); diff != "" {
			t.Errorf("%s (-sidecar.proto +openapi.yaml):\n%s", name, diff)
		}
	}
	if seen < 30 {
		t.Errorf("%d schemas were compared; the test looks in the wrong place", seen)
	}
	for name := range messages {
		if strings.HasSuffix(name, "Response") && name != "ExecuteStreamResponse" && !slices.Contains(octets, name) &&
			d.Components.Schemas[name].Properties == nil {
			t.Errorf("%s is not described", name)
		}
	}
}

// ourMessages are the messages of every .proto file of the plain API, by name.
func ourMessages() map[string]protoreflect.MessageDescriptor {
	messages := make(map[string]protoreflect.MessageDescriptor)
	for _, file := range []protoreflect.FileDescriptor{sidecarv1.File_sidecar_v1_sidecar_proto, sidecarv1.File_sidecar_v1_kv_proto} {
		for i := range file.Messages().Len() {
			messages[string(file.Messages().Get(i).Name())] = file.Messages().Get(i)
		}
	}
	return messages
}

// TestOpenAPIHasTheMembersThatAreDecoded compares the schemas of requests with the members that the decoder takes.
func TestOpenAPIHasTheMembersThatAreDecoded(t *testing.T) {
	d := read(t)
	for name, shape := range requests {
		s := d.Components.Schemas[string(name.Name())]
		if diff := cmp.Diff(slices.Sorted(maps.Keys(shape.members)), slices.Sorted(maps.Keys(s.Properties))); diff != "" {
			t.Errorf("%s (-decoded +described):\n%s", name, diff)
		}
		if s.Additional != false {
			t.Errorf("%s allows other members, which are refused", name)
		}
	}
}

// TestRepliesAreAsDescribed sends real calls and compares what comes back.
func TestRepliesAreAsDescribed(t *testing.T) {
	d := read(t)
	f := facadetest.Numbered(t)
	b := start(t, facadetest.Small(), f)
	tx := func() string {
		got, err := b.client.Begin(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		return got.ID
	}
	query := `{"sql":"A","stats":"full","tx":{"begin":{}}}`
	for _, c := range []struct{ method, path, route, body string }{
		{"POST", "/v1/query", "", query},
		{"POST", "/v1/query", "", `{"sql":"BIG"}`},
		{"POST", "/v1/tx", "", `{"statements":[{"sql":"A"},{"sql":"B"}],"stats":"basic"}`},
		{"POST", "/v1/tx/begin", "", ""},
		{"POST", "/v1/tx/" + tx() + "/commit", "/v1/tx/{id}/commit", ""},
		{"POST", "/v1/tx/" + tx() + "/rollback", "/v1/tx/{id}/rollback", "{}"},
		{"GET", "/v1/tx/" + tx(), "/v1/tx/{id}", ""},
		{"POST", "/v1/batch", "", `{"statements":[{"sql":"A"},{"sql":""}]}`},
		{"POST", "/v1/explain", "", `{"sql":"A"}`},
		{"GET", "/v1/status", "", ""},
		{"GET", "/v1", "", ""},
	} {
		if c.route == "" {
			c.route = c.path
		}
		t.Run(c.method+" "+c.route, func(t *testing.T) {
			status, _, got := facadetest.Send(t, c.method, b.base+c.path, c.body, nil)
			var v any
			if err := json.Unmarshal([]byte(got), &v); err != nil || status != 200 {
				t.Fatalf("%d %s: %v", status, got, err)
			}
			s := d.Paths[c.route][strings.ToLower(c.method)].Responses["200"].Content[core.MediaJSON].Schema
			for _, fault := range d.faults(s, v, "reply") {
				t.Errorf("%s\n%s", fault, got)
			}
		})
	}
}

// TestKVValuesHaveADescribedType gets a value of a table with the type of bytes, and one of a table with a type of its own.
func TestKVValuesHaveADescribedType(t *testing.T) {
	f := facadetest.Shelf(t)
	b := compose(t, facadetest.Small(), core.Deps{Driver: f},
		facadetest.Entry(t, "bytes=t key=id:Uint64 value=v:String"),
		facadetest.Entry(t, "pictures=t key=id:Uint64 value=v:String media=image/png")).serve(t, f)
	described := read(t).Paths["/v1/kv/{table}"]["get"].Responses["200"].Content
	if status, _, got := facadetest.Send(t, "PUT", b.base+"/v1/kv/bytes?id=1", "hi", func(r *http.Request) {
		r.Header.Del("Content-Type")
	}); status/100 != 2 {
		t.Fatalf("put: %d %s", status, got)
	}
	for table, want := range map[string]string{"bytes": core.MediaOctets, "pictures": "image/png"} {
		status, h, got := facadetest.Send(t, "GET", b.base+"/v1/kv/"+table+"?id=1", "", nil)
		if media := h.Get("Content-Type"); status != 200 || media != want {
			t.Errorf("%s: %d %q %s; want %s", table, status, media, got, want)
		}
		_, own := described[want]
		_, any := described["*/*"]
		if !own && !any {
			t.Errorf("%s is not among the described types of values", want)
		}
	}
}

// faults says where v is not as s has it: members that are not described, and
// required ones that are missing.
func (d document) faults(s schema, v any, at string) (out []string) {
	if s.Ref != "" {
		s = d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	}
	switch v := v.(type) {
	case []any:
		for i := range v {
			if s.Items != nil {
				out = append(out, d.faults(*s.Items, v[i], fmt.Sprintf("%s[%d]", at, i))...)
			}
		}
	case map[string]any:
		if s.Properties == nil {
			return nil
		}
		for _, name := range s.Required {
			if _, ok := v[name]; !ok {
				out = append(out, at+" has no "+name)
			}
		}
		for name := range v {
			p, ok := s.Properties[name]
			if !ok {
				out = append(out, at+"."+name+" is not described")
				continue
			}
			out = append(out, d.faults(p, v[name], at+"."+name)...)
		}
	}
	return out
}
