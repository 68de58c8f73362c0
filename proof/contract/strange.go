package contract

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// A strangeRequest is a request that both APIs send with a field more than there is.
type strangeRequest struct {
	method, path string
	request      proto.Message
	json         string
	in           string // the field whose message has the strange one; "": the request itself
}

// strangeFields: a field that no version has is refused everywhere in a request, and nothing has run. A misspelt
// idempotent is never taken for a promise.
func strangeFields(t *test) {
	table := t.table()
	write := `"UPSERT INTO ` + table + ` (id) VALUES (7ul)"`
	for _, c := range []strangeRequest{
		{"Sidecar/Execute", "/v1/query", &sidecarv1.ExecuteRequest{}, `{"sql":` + write + `}`, ""},
		{"Sidecar/Execute", "/v1/query", &sidecarv1.ExecuteRequest{}, `{"sql":` + write + `,"limits":{}}`, "limits"},
		{"Sidecar/Execute", "/v1/query", &sidecarv1.ExecuteRequest{}, `{"sql":` + write + `,"tx":{"begin":{},"commit":true}}`, "tx"},
		{"Sidecar/Transact", "/v1/tx", &sidecarv1.TransactRequest{}, `{"statements":[{"sql":` + write + `}]}`, ""},
		{"Sidecar/Transact", "/v1/tx", &sidecarv1.TransactRequest{}, `{"statements":[{"sql":` + write + `}]}`, "statements"},
		{"Sidecar/Batch", "/v1/batch", &sidecarv1.BatchRequest{}, `{"statements":[{"sql":` + write + `}]}`, "statements"},
		{"Sidecar/Begin", "/v1/tx/begin", &sidecarv1.BeginRequest{}, `{}`, ""},
		{"Sidecar/Explain", "/v1/explain", &sidecarv1.ExplainRequest{}, `{"sql":"SELECT 1"}`, ""},
		{"Sidecar/BulkUpsert", "/v1/bulk", &sidecarv1.BulkUpsertRequest{}, `{"table":"` + pathOf(table) + `","rows":[]}`, ""},
	} {
		t.strange(c)
	}
	t.rows("SELECT id FROM " + table)
}

// kvStrangeFields is strangeFields for the key-value API, which tells only callers of an open table.
func kvStrangeFields(t *test) {
	t.strange(strangeRequest{"KeyValue/BatchGet", "/v1/kv/" + kvPlain + ":batchGet", &sidecarv1.KvBatchGetRequest{}, `{"ids":[]}`, ""})
}

// headersTwice: of a header that may be there once, two are refused, and nothing has run.
func headersTwice(t *test) {
	if t.driven() {
		return // a library sends each header once
	}
	for _, name := range []string{"X-Ydb-Priority", "X-Sidecar-App"} {
		e := t.refused(t.twice(name, "batch"), "BAD_REQUEST", false, false)
		t.status(e, http.StatusBadRequest, codes.InvalidArgument)
		if want := "the header " + name + " is there 2 times; send it once"; e.Message != want {
			t.Errorf("%q; want %q", e.Message, want)
		}
	}
}

// twice runs a statement with a header that is there twice.
func (t *test) twice(name, value string) error {
	t.Helper()
	client, ok := t.Client.(*httpClient)
	if !ok {
		name = strings.ToLower(name)
		_, err := t.Execute(metadata.AppendToOutgoingContext(t.ctx, name, value, name, value), Statement{SQL: "SELECT 1"})
		return err
	}
	req, err := http.NewRequestWithContext(t.ctx, http.MethodPost, client.base+"/v1/query", strings.NewReader(`{"sql":"SELECT 1"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, name: {value, value}}
	res, err := client.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return refusal(res, raw)
}

// strange sends a request with a strange field, which must be refused by its name.
func (t *test) strange(c strangeRequest) {
	t.Helper()
	if t.driven() {
		return // a library sends the fields that it knows
	}
	if err := protojson.Unmarshal([]byte(c.json), c.request); err != nil {
		t.Fatal(err)
	}
	var err error
	switch client := t.Client.(type) {
	case *grpcClient:
		inner(c.request.ProtoReflect(), c.in).SetUnknown(
			protowire.AppendVarint(protowire.AppendTag(nil, 1999, protowire.VarintType), 1),
		)
		var none sidecarv1.ExecuteResponse // whatever it is, it is not looked at
		err = grpcError(client.conn.Invoke(t.ctx, "/sidecar.v1."+c.method, c.request, &none, grpc.StaticMethod()))
	case *httpClient:
		_, err = client.send(t.ctx, http.MethodPost, c.path, json.RawMessage(more(c.json, c.in)), "application/json")
	}
	e := t.refused(err, "BAD_REQUEST", false, false)
	t.status(e, http.StatusBadRequest, codes.InvalidArgument)
	if name := map[string]string{"grpc": "field 1999", "http": `field "no_such_field"`}[t.Client.Name()]; !strings.Contains(e.Message,
		name) {
		t.Errorf("%s, in %q: %q does not name the %s", c.method, c.in, e.Message, name)
	}
}

// inner is the message of a field, or the first of its list; of "" the message itself.
func inner(m protoreflect.Message, field string) protoreflect.Message {
	if field == "" {
		return m
	}
	f := m.Descriptor().Fields().ByName(protoreflect.Name(field))
	if f.IsList() {
		return m.Mutable(f).List().Get(0).Message()
	}
	return m.Mutable(f).Message()
}

// more adds a member to the object behind a field, or to the first of its list; of "" to the object itself.
func more(text, field string) string {
	before, after, _ := strings.Cut(text, "{")
	if field != "" {
		start, rest, _ := strings.Cut(text, `"`+field+`":`)
		open := strings.IndexByte(rest, '{')
		before, after = start+`"`+field+`":`+rest[:open], rest[open+1:]
	}
	if strings.HasPrefix(after, "}") {
		return before + `{"no_such_field":1` + after
	}
	return before + `{"no_such_field":1,` + after
}
