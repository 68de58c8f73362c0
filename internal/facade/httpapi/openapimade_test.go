package httpapi

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/proof/doctable"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

var update = flag.Bool("update", false, "write openapi.yaml")

// described are the calls of JSON, each with what openapi.yaml says of its answer and a request, which is sent.
// Whatever else openapi.yaml has of them is made of the routes, the descriptors and the comments of the .proto files.
var described = []struct {
	call, answer string
	path         string // "": that of the route
	request      string
}{
	{"Execute", "The rows", "", ""},
	{"Transact", "The results, in the order of the statements", "", ""},
	{"Begin", "The token of the transaction", "", `{"mode":"serializable_rw"}`},
	{"GetTransaction", "It is open", "/v1/tx/{tx}", ""},
	{"Commit", "It is committed", "/v1/tx/{tx}/commit", `{"timeout":"2s"}`},
	{"Rollback", "Nothing of it is kept", "/v1/tx/{new}/rollback", `{}`},
	{"Batch", "The outcomes, in the order of the statements", "",
		`{"statements":[{"sql":"SELECT id, name FROM users WHERE id = 42ul","mode":"snapshot_ro"},{"sql":""}]}`},
	{"BulkUpsert", "All rows are written", "", `{"table":"items","rows":[{"id":1,"name":"Ann"},{"id":2,"name":null}]}`},
	{"Explain", "The plan", "", `{"sql":"SELECT id, name FROM users WHERE id = 42ul"}`},
	{"Describe", "Columns, types, primary key, indexes", "/v1/schema/items", ""},
	{"Version", "Version and features", "", ""},
	{"Status", "Nodes, pool, version", "", ""},
	{core.CallKVBatchGet, "The values that are there, and the ids without a row", "/v1/kv/drafts:batchGet", `{"ids":[42,43]}`},
}

// shown are further requests of calls, by name, each with its answer. Every {tx} is the id of a transaction that is open.
var shown = []struct{ call, name, summary, request string }{
	{"Execute", "read", "Reads with a parameter that carries its type",
		`{"sql":"SELECT id, name FROM users WHERE id = $id","params":{"id":{"type":"Uint64","value":"42"}},` +
			`"mode":"snapshot_ro","timeout":"800ms"}`},
	{"Execute", "write", "Writes values whose types must be named, and a null. It may be sent twice",
		`{"sql":"UPSERT INTO orders (id, price, day, note) VALUES ($id, $price, $day, $note)",` +
			`"params":{"id":"5ca32c22-841b-11e8-adc0-fa7ae01bbebc","price":"12.50","day":"2024-01-31","note":null},` +
			`"types":{"id":"Uuid","price":"Decimal(22,9)","day":"Date","note":"Optional<Utf8>"},"idempotent":true}`},
	{"Execute", "sets", "Two result sets, as arrays, of ten rows at most",
		`{"sql":"SELECT id, name FROM users WHERE id = 42ul; SELECT id, name FROM users WHERE id = 43ul",` +
			`"limits":{"rows":10,"bytes":"1MiB"},"rows":"arrays"}`},
	{"Execute", "begin", "Begins an interactive transaction with its first statement",
		`{"sql":"SELECT id, name FROM users WHERE id = 42ul","tx":{"begin":{"mode":"serializable_rw"},"seq":1}}`},
	{"Execute", "commit", "Goes on with an interactive transaction, and commits it",
		`{"sql":"UPDATE users SET name = 'Ann' WHERE id = 42ul","tx":{"id":"{tx}","seq":1,"commit":true}}`},
	{"Transact", "list", "A write and a read",
		`{"statements":[{"sql":"UPDATE users SET visits = visits + 1 WHERE id = 42ul"},` +
			`{"sql":"SELECT id, name FROM users WHERE id = 42ul"}]}`},
	{"Transact", "expect", "Writes only if the first statement returns one row",
		`{"statements":[{"sql":"SELECT id, name FROM users WHERE id = 42ul","expect":{"rows":1}},` +
			`{"sql":"UPDATE users SET visits = visits + 1 WHERE id = 42ul"}]}`},
	{"Transact", "tx", "Several statements of an interactive transaction, and its commit",
		`{"statements":[{"sql":"UPDATE users SET visits = visits + 1 WHERE id = 42ul"},` +
			`{"sql":"SELECT id, name FROM users WHERE id = 42ul"}],"tx":{"id":"{tx}","seq":1,"commit":true}}`},
}

// forms are the schemas of fields that are more than their kinds say, by full name or else by name.
var forms = map[string]string{
	"params": "Params", "types": "Types", "timeout": "Duration", "mode": "TxMode", "stats": "StatsMode", "priority": "PriorityClass",
	"ExecuteRequest.mode": "Mode", "BatchStatement.mode": "Mode", "ExecuteResponse.stats": "",
	"StatementResult.stats": "", "StreamEnd.stats": "",
	"ExecuteRequest.rows": "RowForm", "TransactRequest.rows": "RowForm", "BatchRequest.rows": "RowForm",
	"ints": "IntForm", "rows_affected": "RowsAffected",
}

// ownForms are the schemas of fields that openapi.yaml has in a form of its own.
var ownForms = map[string]string{
	"Limits.bytes": "{ type: [integer, string], minimum: 0, description: 'Of the values as YDB sends them; a number, or a text " +
		"with a unit: B, kB, MB, GB, TB, KiB, MiB, GiB or TiB. " +
		"0: the limit of the sidecar', examples: [1048576, 8MiB] }",
	"Error.code":           codeForm(),
	"StatusResponse.state": "{ type: string, enum: [starting, serving, draining] }",
	"NodeStatus.health":    "{ type: string, enum: [healthy, suspect, ejected, probing] }",
	"NodeStatus.use":       "{ type: string, enum: [new, open, none] }",
}

// codeForm is the schema of the code of an error. It lists the codes in words: clients that are generated from an enumeration
// would fail at a code that a later version adds.
func codeForm() string {
	var names []string
	statuses := make(map[string][]string)
	for _, c := range core.Codes() {
		if c.Case == "" {
			names = append(names, c.Name)
		}
		statuses[c.Name] = append(statuses[c.Name], strconv.Itoa(c.HTTP))
	}
	for i, name := range names {
		names[i] += ", " + strings.Join(statuses[name], " or ")
	}
	return "{ type: string, examples: [BAD_REQUEST], description: " + quote("Stable name of what went wrong. Later versions "+
		"may add names. What apps often look for: YDB_PRECONDITION_FAILED with status 409 is a row whose key exists; "+
		"YDB_GENERIC_ERROR is a statement that YDB cannot compile or run, or that lacks a parameter; YDB_SCHEME_ERROR is a table, a "+
		"column or a path that does not exist or is of another kind, with status 404 where the request itself names the path; "+
		"LIMIT_EXCEEDED is a request that is too large; YDB_ABORTED is a conflict with another transaction. "+
		"Those of now, with their HTTP statuses: "+strings.Join(names, "; ")) + " }"
}

// needed are the fields that requests must have.
var needed = []string{"ExecuteRequest.sql", "Statement.sql", "BatchStatement.sql", "ExplainRequest.sql", "TransactRequest.statements",
	"BatchRequest.statements", "BulkUpsertRequest.table", "BulkUpsertRequest.rows", "KvBatchGetRequest.ids"}

// present are the messages within answers that are always there; those with one result of several are not.
var present = []string{"ExecuteResponse.info", "StreamEnd.info", "TransactResponse.info", "BeginResponse.tx", "BeginResponse.info",
	"CommitResponse.info", "RollbackResponse.info", "GetTransactionResponse.tx", "BatchResult.info", "BulkUpsertResponse.info",
	"ExplainResponse.info", "KvBatchGetResponse.info"}

// absent are the lists and scalars of answers that may be missing.
var absent = []string{"ExecuteResponse.sets", "StatementResult.sets", "BatchResult.sets", "BatchResult.columns", "BatchResult.rows",
	"BatchResult.truncated"}

// TestOpenAPIIsMade: openapi.yaml is what its sources give, and its examples are what a sidecar answers.
func TestOpenAPIIsMade(t *testing.T) {
	part, err := os.ReadFile("testdata/openapi.part.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(part), "\n")
	text = strings.Replace(text, "# calls\n", madeCalls(t), 1)
	text = strings.Replace(text, "# messages\n", madeMessages(t), 1)
	b := exampleService(t)
	text = strings.Replace(text, "# problem", "example: "+askProblem(t, b), 1)
	text = strings.Replace(text, "# lines", "examples: "+askLines(t, b), 1)
	doctable.Whole(t, *update, "openapi.yaml", text)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func madeCalls(t *testing.T) string {
	answers := askAll(t)
	var b strings.Builder
	last := ""
	for _, rt := range routes {
		i := slices.IndexFunc(described, func(d struct{ call, answer, path, request string }) bool { return d.call == rt.call })
		if i < 0 {
			continue // its bodies are not JSON
		}
		d := described[i]
		if path := strings.Replace(rt.Path, "...}", "}", 1); path != last {
			fmt.Fprintf(&b, "  %s:\n", path)
		}
		method := methodOf(t, rt.call)
		summary, more := commentOf(t, method)
		fmt.Fprintf(&b, "    %s:\n      operationId: %s\n      summary: %s\n", strings.ToLower(rt.Method), rt.call, quote(summary))
		if more != "" {
			fmt.Fprintf(&b, "      description: %s\n", quote(more))
		}
		if method.Options().(*descriptorpb.MethodOptions).GetDeprecated() {
			b.WriteString("      deprecated: true\n")
		}
		madeParameters(&b, rt, method.Input())
		if len(rt.body) > 0 {
			b.WriteString("      requestBody:\n")
			if len(requiredOf(method.Input(), true)) > 0 {
				b.WriteString("        required: true\n")
			}
			b.WriteString("        content:\n")
			for _, media := range rt.body {
				schema, example := string(method.Input().Name()), d.request
				if media == mediaNDJSON {
					schema, example = "BulkRow", `{"id":1,"name":"Ann"}`
				}
				fmt.Fprintf(&b, "          %s:\n            schema: { $ref: '#/components/schemas/%s' }\n", media, schema)
				madeExample(&b, "            ", rt.call, example, func(name string) string { return requestOf(rt.call, name) })
			}
		}
		fmt.Fprintf(&b, "      responses:\n        '200':\n          description: %s\n", d.answer)
		if method.Output().Fields().ByName("info") != nil || rt.call == "Batch" {
			b.WriteString("          headers:\n            Server-Timing: { $ref: '#/components/headers/ServerTiming' }\n")
		}
		fmt.Fprintf(&b, "          content:\n            application/json:\n              schema: { $ref: '#/components/schemas/%s' }\n",
			method.Output().Name())
		madeExample(&b, "              ", rt.call, answers[rt.call], func(name string) string { return answers[rt.call+" "+name] })
		b.WriteString("        default: { $ref: '#/components/responses/Problem' }\n")
	}
	return b.String()
}

func methodOf(t *testing.T, call string) protoreflect.MethodDescriptor {
	service, name := "Sidecar", call
	if s, rest, ok := strings.Cut(call, "/"); ok {
		service, name = s, rest
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("sidecar.v1." + service + "." + name))
	if err != nil {
		t.Fatal(err)
	}
	return d.(protoreflect.MethodDescriptor)
}

var inPathOf = regexp.MustCompile(`\{(\w+)(\.\.\.)?\}`)

// madeParameters writes what a request has beside its body, by the fields of its message.
func madeParameters(b *strings.Builder, rt route, in protoreflect.MessageDescriptor) {
	var refs []string
	if m := inPathOf.FindStringSubmatch(rt.Path); m != nil {
		refs = append(refs, map[string]string{"id": "TxID", "table": "KvTable", "path": "SchemaPath"}[m[1]])
	}
	if rt.call == "BulkUpsert" {
		refs = append(refs, "BulkTable")
	}
	if in.Fields().ByName("timeout") != nil {
		refs = append(refs, "RequestTimeout")
	}
	if in.Fields().ByName("priority") != nil {
		refs = append(refs, "Priority")
	}
	if s := requests[in.FullName()]; s != nil && s.members["ints"] != nil {
		refs = append(refs, "Rows", "Ints")
	}
	if rt.call != "Status" && rt.call != "Version" {
		refs = append(refs, "Traceparent")
	}
	if len(refs) > 0 {
		b.WriteString("      parameters:\n")
	}
	for _, ref := range refs {
		fmt.Fprintf(b, "        - $ref: '#/components/parameters/%s'\n", ref)
	}
}

// madeMessages writes the schemas of all messages that stand in JSON.
func madeMessages(t *testing.T) string {
	all := map[protoreflect.FullName]bool{}
	var order []protoreflect.MessageDescriptor
	var add func(m protoreflect.MessageDescriptor)
	add = func(m protoreflect.MessageDescriptor) {
		if all[m.FullName()] || slices.Contains([]string{"Row", "BulkRow", "Value", "KvId", "KvItem"}, string(m.Name())) {
			return
		}
		all[m.FullName()] = true
		order = append(order, m)
		for i := range m.Fields().Len() {
			if f := m.Fields().Get(i); f.Message() != nil && !f.IsMap() {
				add(f.Message())
			}
		}
	}
	for _, d := range described {
		m := methodOf(t, d.call)
		if requests[m.Input().FullName()] != nil {
			add(m.Input())
		}
		add(m.Output())
	}
	add((&sidecarv1.StreamEnd{}).ProtoReflect().Descriptor())
	var b strings.Builder
	for _, m := range order {
		madeMessage(t, &b, m)
	}
	return b.String()
}

func madeMessage(t *testing.T, b *strings.Builder, m protoreflect.MessageDescriptor) {
	name, asked := string(m.Name()), requests[m.FullName()] != nil
	required := requiredOf(m, asked)
	if name == "Error" {
		name = "Problem"
		required = append([]string{"type", "title", "detail"}, required...)
	}
	fmt.Fprintf(b, "    %s:\n      type: object\n", name)
	if first, more := commentOf(t, m); first != "" {
		fmt.Fprintf(b, "      description: %s\n", quote(strings.TrimSpace(first+". "+more)))
	}
	if asked {
		b.WriteString("      additionalProperties: false\n")
	}
	if len(required) > 0 {
		fmt.Fprintf(b, "      required: [%s]\n", strings.Join(required, ", "))
	}
	b.WriteString("      properties:")
	if name == "Problem" {
		b.WriteString("\n        type: { type: string, description: 'Address of the section of " +
			"docs/reference/errors.md about the code' }\n" +
			"        title: { type: string }\n        detail: { type: string, description: The same as message }")
	}
	none := name != "Problem"
	for i := range m.Fields().Len() {
		if f := m.Fields().Get(i); !inPath[f.FullName()] {
			fmt.Fprintf(b, "\n        %s: %s", f.Name(), formOf(t, f))
			none = false
		}
	}
	if asked {
		for _, other := range slices.Sorted(maps.Keys(requests[m.FullName()].members)) {
			if requests[m.FullName()].members[other].field == nil {
				fmt.Fprintf(b, "\n        %s: { $ref: '#/components/schemas/%s' }", other, formName(string(m.Name()), other))
			}
		}
	}
	if none {
		b.WriteString(" {}")
	}
	b.WriteString("\n")
}

// formName is the name of the schema of a field, if it is more than its kind says.
func formName(message, field string) string {
	if name, ok := forms[message+"."+field]; ok {
		return name
	}
	return forms[field]
}

func formOf(t *testing.T, f protoreflect.FieldDescriptor) string {
	key := string(f.Parent().Name()) + "." + string(f.Name())
	if own := ownForms[key]; own != "" {
		return own
	}
	if name := formName(string(f.Parent().Name()), string(f.Name())); name != "" && f.Kind() != protoreflect.BoolKind {
		return "{ $ref: '#/components/schemas/" + name + "' }"
	}
	kind := map[protoreflect.Kind]string{protoreflect.StringKind: "type: string", protoreflect.BoolKind: "type: boolean",
		protoreflect.DoubleKind: "type: number"}[f.Kind()]
	switch {
	case f.Message() != nil:
		name := strings.Replace(string(f.Message().Name()), "Error", "Problem", 1)
		kind = "$ref: '#/components/schemas/" + name + "'"
	case kind == "":
		kind = "type: integer"
		if f.Kind() == protoreflect.Uint32Kind || f.Kind() == protoreflect.Uint64Kind {
			kind += ", minimum: 0"
		}
	}
	said := ""
	if before, after := commentsOn(t, f); before+after != "" {
		text := cmp.Or(after, before)
		said = ", description: " + quote(strings.ToUpper(text[:1])+text[1:])
	}
	if f.Options().(*descriptorpb.FieldOptions).GetDeprecated() {
		said += ", deprecated: true"
	}
	switch {
	case f.IsList():
		least := ""
		if slices.Contains(needed, key) {
			least = ", minItems: 1"
		}
		return "{ type: array" + least + ", items: { " + kind + " }" + said + " }"
	case f.Message() != nil:
		return "{ " + kind + " }" // a reference stands alone
	}
	return "{ " + kind + said + " }"
}

// requiredOf lists the members that a request must have, or that an answer always has.
func requiredOf(m protoreflect.MessageDescriptor, asked bool) (out []string) {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		key := string(m.Name()) + "." + string(f.Name())
		is := slices.Contains(needed, key)
		if !asked {
			is = !f.HasPresence() && !slices.Contains(absent, key) || slices.Contains(present, key)
		}
		if is && !inPath[f.FullName()] {
			out = append(out, string(f.Name()))
		}
	}
	return out
}
