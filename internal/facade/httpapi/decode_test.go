package httpapi

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// TestDecodedRequests compares requests in JSON with the messages that say the same, and with what the JSON has beside them.
func TestDecodedRequests(t *testing.T) {
	long := strings.Repeat(`,"v`, 0)
	for i := range 2 * fewValues {
		long += `,"v` + strings.Repeat("x", i) + `":` + strings.Repeat("1", i+1)
	}
	for _, tt := range []struct {
		json   string
		want   proto.Message
		params string // of all statements, in their order
		form   jsonFormat
	}{
		{json: `{"sql":"S","mode":"m","tx":{"begin":{"mode":"x"},"id":"i","seq":18446744073709551615,"commit":true},"idempotent":true,
			"timeout":"1s","limits":{"rows":1,"bytes":"8MiB"},"stats":"full","priority":"batch","types":{"a":"Int8","b":null}}`,
			want: &sidecarv1.ExecuteRequest{Sql: "S", Mode: "m", Idempotent: true, Timeout: "1s", Stats: "full", Priority: "batch",
				Tx:     &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{Mode: "x"}, Id: "i", Seq: 1<<64 - 1, Commit: true},
				Limits: &sidecarv1.Limits{Rows: 1, Bytes: 8 << 20}, Types: map[string]string{"a": "Int8", "b": ""}}},
		{json: ` { "rows" : "arrays", "ints":"number", "params":{ "a" : [1, {"b":"]"}] , "c":null, "":"\u0041\"" } } `,
			want: &sidecarv1.ExecuteRequest{}, form: jsonFormat{"arrays", "number"}, params: `a=[1, {"b":"]"}] c=null ="\u0041\"" `},
		{json: `{"params":{"first":0` + long + `}}`, want: &sidecarv1.ExecuteRequest{},
			params: "first=0 " + strings.NewReplacer(`,"`, "", `":`, "=").Replace(strings.ReplaceAll(long, `,"`, ` ,"`)[1:]) + " "},
		{json: `{"sql":"\u0041\ud83d\ude00","tx":{"begin":{}}}`,
			want: &sidecarv1.ExecuteRequest{Sql: "A😀", Tx: &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{}}}},
		{json: `{"sql":null,"params":null,"types":null,"tx":null,"idempotent":null,"limits":{"rows":null,"bytes":null},"rows":null}`,
			want: &sidecarv1.ExecuteRequest{Limits: &sidecarv1.Limits{}}},
		{json: "null", want: &sidecarv1.ExecuteRequest{}},
		{json: `{"statements":[{"sql":"A","params":{"a":1}},{"sql":"B"},null,{"params":{"b":2},"types":{"b":"T"}}],"mode":"m"}`,
			want: &sidecarv1.TransactRequest{Mode: "m",
				Statements: []*sidecarv1.Statement{{Sql: "A"}, {Sql: "B"}, {}, {Types: map[string]string{"b": "T"}}}},
			params: "a=1 b=2 "},
		{json: `{"statements":[{"sql":"A","mode":"m","idempotent":false,"limits":{"bytes":5}}],"rows":"objects"}`,
			want: &sidecarv1.BatchRequest{Statements: []*sidecarv1.BatchStatement{
				{Sql: "A", Mode: "m", Limits: &sidecarv1.Limits{Bytes: 5}}}}, form: jsonFormat{rows: "objects"}},
		{json: `{"table":"t","rows":null,"types":{"a":"T"},"timeout":"1s"}`,
			want: &sidecarv1.BulkUpsertRequest{Table: "t", Types: map[string]string{"a": "T"}, Timeout: "1s"}},
		{json: `{"ids":[1,[2,"x"],null],"priority":"batch"}`, want: &sidecarv1.KvBatchGetRequest{Priority: "batch"},
			params: `1 [2,"x"] null `},
		{json: `{"tx":{"seq":1.0},"limits":{"rows":2e3,"bytes":9007199254740992.0}}`, want: &sidecarv1.ExecuteRequest{
			Tx: &sidecarv1.TxSelector{Seq: 1}, Limits: &sidecarv1.Limits{Rows: 2000, Bytes: 1 << 53}}},
		{json: `{"timeout":"1s"}`, want: &sidecarv1.CommitRequest{Timeout: "1s"}},
	} {
		got := tt.want.ProtoReflect().New().Interface()
		var beside request
		if err := decodeJSON([]byte(tt.json), got, &beside); err != nil || !proto.Equal(got, tt.want) || beside.form != tt.form {
			t.Errorf("%s: %v, %v, %v; want %v, %v", tt.json, got, beside.form, err, tt.want, tt.form)
		}
		var params strings.Builder
		for _, st := range beside.params {
			for _, name := range st.values.Names() {
				params.WriteString(name + "=" + string(st.values.find(name)) + " ")
			}
		}
		for _, id := range beside.ids {
			params.WriteString(string(id) + " ")
		}
		if params.String() != tt.params {
			t.Errorf("%s: the values %q; want %q", tt.json, params.String(), tt.params)
		}
	}
}

// TestParametersOfStatements: each statement of a list gets its own parameters.
func TestParametersOfStatements(t *testing.T) {
	var m sidecarv1.TransactRequest
	var beside request
	text := `{"statements":[{"sql":"A"},{"sql":"B","params":{"b":1}},null,{"sql":"C","params":{"c":2,"d":3}},{"sql":"D","params":{}}]}`
	if err := decodeJSON([]byte(text), &m, &beside); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, st := range core.TransactOf(&m, &beside).Statements {
		got = append(got, st.SQL+":"+strings.Join(st.Params.Names(), ","))
	}
	if want := "A: B:b : C:c,d D:"; strings.Join(got, " ") != want {
		t.Errorf("%q; want %q", got, want)
	}
}

// TestRefusedRequests: what does not fit is named by its place.
func TestRefusedRequests(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:                              "the body: a JSON array does not fit here",
		`7`:                               "the body: a JSON number does not fit here",
		`{"sql":7}`:                       "sql: a JSON number does not fit here",
		`{"sql":{}}`:                      "sql: a JSON object does not fit here",
		`{"tx":{"begin":"x"}}`:            "tx.begin: a JSON string does not fit here",
		`{"tx":{"seq":-1}}`:               "tx.seq: a JSON number -1 does not fit here",
		`{"tx":{"seq":1.5}}`:              "tx.seq: a JSON number 1.5 does not fit here",
		`{"tx":{"seq":1e-1}}`:             "tx.seq: a JSON number 1e-1 does not fit here",
		`{"tx":{"seq":1e16}}`:             "tx.seq: a JSON number 1e16 does not fit here",
		`{"limits":{"bytes":0.5}}`:        `limits.bytes: write a number of bytes, or one with a unit (kB, MiB...) such as "8MiB"`,
		`{"tx":{"commit":"yes"}}`:         "tx.commit: a JSON string does not fit here",
		`{"idempotent":1}`:                "idempotent: a JSON number does not fit here",
		`{"params":[]}`:                   "params: a JSON array does not fit here",
		`{"types":{"a":7}}`:               "types.a: a JSON number does not fit here",
		`{"rows":true}`:                   "rows: a JSON bool does not fit here",
		`{"limits":{"bytes":"8 apples"}}`: `limits.bytes: write a number of bytes, or one with a unit (kB, MiB...) such as "8MiB"`,
		`{"limits":{"bytes":true}}`:       `limits.bytes: write a number of bytes, or one with a unit (kB, MiB...) such as "8MiB"`,
		`{"limits":{"bytes":8MiB}}`:       `at byte 19 a value is expected`,
		`{"idempotant":true}`:             `unknown field "idempotant"`,
		`{"sql":"S"} x`:                   "the body goes on after its JSON value",
		`{"sql":"S"}{}`:                   "the body goes on after its JSON value",
		`{"sql":"S`:                       "at byte 7 a string is not closed",
		`{"sql":"\x"}`:                    "a string has an unknown escape",
		`{"sql":"a\ud800b"}`:              "a surrogate without its partner",
		`{"sql":"\udc00\ud83d"}`:          "a surrogate without its partner",
		`{"sql":"S",}`:                    "at byte 11 the name of a member is expected",
		`{"sql" "S"}`:                     "at byte 7 a colon is expected",
		`{"sql":"S" "mode":""}`:           "at byte 11 a comma or } is expected",
		`{"params":{"a":[1,]}}`:           "at byte 15 a value is expected",
		`{"params":{"a":01}}`:             "at byte 15 a value is expected",
		`{"params":{"a":nul}}`:            "at byte 15 a value is expected",
		`{"params":{"a":}}`:               "at byte 15 a value is expected",
		`{"params":{"a":"x`:               "at byte 15 a value is expected",
		`{`:                               "at byte 1 the name of a member is expected",
	} {
		err := decodeJSON([]byte(text), new(sidecarv1.ExecuteRequest), new(request))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
	err := decodeJSON([]byte(`{"statements":[{},{"sql":7}]}`), new(sidecarv1.TransactRequest), new(request))
	if err == nil || !strings.Contains(err.Error(), "statements[1].sql: a JSON number") {
		t.Errorf("%v; want the place of the statement", err)
	}
	if err := decodeJSON([]byte(`{"id":"x"}`), new(sidecarv1.CommitRequest), new(request)); err == nil {
		t.Error("what stands in the path is taken from the body as well")
	}
}

// FuzzRequests: what is taken is JSON, and means the same without its spaces.
func FuzzRequests(f *testing.F) {
	for _, text := range []string{
		`{"sql":"s","params":{"a":1,"b":{"type":"Int32","value":[1,"x",null]}},"types":{"a":"Int8","b":null},"rows":"arrays"}`,
		`{"tx":{"begin":{"mode":"x"},"id":"i","seq":3,"commit":true},"limits":{"rows":1,"bytes":"8MiB"},"ints":"number"}`,
		` { "sql" : "\u0041\ud800" , "params" : { } } `, `{"params":{"a":"\\\""}}`, ` null `, `[]`, `{"a":{`, `{"tx":{"seq":1.0}}`,
		`{"limits":null,"idempotent":true}`, `{"params":{"a":[[[{"b":[]}]]]}}`, `{"sql":"s"} x`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var m, again sidecarv1.ExecuteRequest
		if strings.TrimSpace(text) == "" || decodeJSON([]byte(text), &m, new(request)) != nil {
			return
		}
		var short bytes.Buffer
		if err := json.Compact(&short, []byte(text)); err != nil {
			t.Fatalf("%q is taken, and is not JSON: %v", text, err)
		}
		if err := decodeJSON(short.Bytes(), &again, new(request)); err != nil || !proto.Equal(&m, &again) {
			t.Errorf("%q is %v, and without spaces %v, %v", text, &m, &again, err)
		}
	})
}

// BenchmarkDecode is what it costs to read the JSON of a point read.
func BenchmarkDecode(b *testing.B) {
	raw := []byte(`{"sql":"DECLARE $id AS Uint64; SELECT id, v FROM items WHERE id = $id","params":{"id":42}}`)
	b.ReportAllocs()
	for b.Loop() {
		var m sidecarv1.ExecuteRequest
		var beside request
		if err := decodeJSON(raw, &m, &beside); err != nil {
			b.Fatal(err)
		}
		_ = core.ExecuteOf(&m, &beside)
	}
}
