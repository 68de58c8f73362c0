package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

func TestMainRefusesNonsense(t *testing.T) {
	t.Chdir(t.TempDir())
	s := serve(t)
	good := "GET http://" + s.address
	for _, tc := range []struct {
		targets, want string
		args          []string
	}{
		{good, "-duration 0s", nil},
		{good, "rate", []string{"-duration", "1s", "-rate", "-1"}},
		{good, "rate", []string{"-duration", "1s", "-rate", "1/x"}},
		{good, "rate", []string{"-duration", "1s", "-rate", "2000000/s"}},
		{good, "-format", []string{"-duration", "1s", "-format", "gob"}},
		{good, "-encode", []string{"-duration", "1s", "-encode", "xml"}},
		{good, "-max-workers", []string{"-duration", "1s", "-max-workers", "0"}},
		{good, "-duration", []string{"-duration", "25h"}},
		{good, "none", []string{"-duration", "1s", "file"}},
		{good, "-targets", []string{"-duration", "1s", "-targets", "nowhere"}},
		{good, "-body", []string{"-duration", "1s", "-body", "nowhere"}},
		{good, "-root-certs", []string{"-duration", "1s", "-root-certs", "/dev/null"}},
		{good, "name: value", []string{"-duration", "1s", "-header", "x"}},
		{good, "shorter than one interval", []string{"-duration", "1ms"}},
		{"", "no targets", []string{"-duration", "1s"}},
		{"nonsense", "target 1", []string{"-duration", "1s"}},
		{good + "\n\nPOST grpc://a:1/x/y", "kind of the first", []string{"-duration", "1s"}},
		{"POST grpc://a:1/x/y", "no service", []string{"-duration", "1s"}},
	} {
		if _, err := tried(t, tc.targets, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q, %q: got %v; want %q", tc.targets, tc.args, err, tc.want)
		}
	}
}

func TestParse(t *testing.T) {
	const good = "grpc://127.0.0.1:1" + execute
	for _, tc := range []struct {
		url, body, key, value, want string
	}{
		{good, `{"sql":"x"}`, "X-App", "web", ""},
		{"grpcs://[::1]:1" + execute, "", "x-app-bin", "AAEC", ""},
		{good, "{", "", "", "not a sidecar.v1.ExecuteRequest in JSON"},
		{good, `{"sequel":1}`, "", "", "sequel"},
		{good + "?a=b", "", "", "", "nothing behind"},
		{"grpc://127.0.0.1" + execute, "", "", "", "with a port"},
		{"grpc://u:p@127.0.0.1:1" + execute, "", "", "", "nothing behind"},
		{"http://127.0.0.1:1/", "", "", "", "gRPC targets or HTTP ones"},
		{"grpc://127.0.0.1:1/sidecar.v1.Nope/Execute", "", "", "", "no service"},
		{"grpc://127.0.0.1:1/sidecar.v1.ExecuteRequest/Execute", "", "", "", "no service"},
		{"grpc://127.0.0.1:1/sidecar.v1.Sidecar/", "", "", "", "no method"},
		{"grpc://127.0.0.1:1/Ydb.Table.V1.TableService/CreateSession", "", "grpc-timeout", "1", "gRPC's own"},
		{"grpc://127.0.0.1:1/sidecar.v1.Ingest/Ingest", "", "", "", "stream of requests"},
		{good, "", "Host", "a", "gRPC's own"},
		{good, "", "a b", "a", "letters, digits"},
		{good, "", "x", "\x00", "printable"},
		{good, "", "x-bin", "?", "base64"},
	} {
		target := &vegeta.Target{Method: "POST", URL: tc.url, Body: []byte(tc.body), Header: http.Header{}}
		if tc.key != "" {
			target.Header[tc.key] = []string{tc.value}
		}
		if c, err := parse(target); tc.want == "" && (err != nil || c.method != execute) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v: got %+v, %v", tc, c, err)
		}
	}
}

// Whatever a file says, what is accepted is one request of a known method, and its metadata is fit to be sent.
func FuzzParse(f *testing.F) {
	f.Add("grpc://127.0.0.1:1"+execute, []byte(`{"sql":"x","params":{"a":{"uint64_value":"7"}}}`), "X-App", "web")
	f.Add("grpcs://[::1]:2136/Ydb.Query.V1.QueryService/ExecuteQuery", []byte(`{"queryContent":{"text":"SELECT 1"}}`), "x-ydb-database", "/local")
	f.Add("grpc://h:1/Ydb.Table.V1.TableService/BulkUpsert", []byte(`{"rows":{"value":{"bytesValue":"AAEC"}}}`), "x-bin", "AAEC")
	f.Add("grpc://%zz", []byte(nil), "", "")
	f.Fuzz(func(t *testing.T, url string, body []byte, key, value string) {
		c, err := parse(&vegeta.Target{URL: url, Body: body, Header: http.Header{key: {value}}})
		if err != nil {
			return
		}
		if _, _, err := net.SplitHostPort(c.address); err != nil || !strings.HasPrefix(c.method, "/") || strings.Count(c.method, "/") != 2 {
			t.Fatalf("%q became %+v, %v", url, c, err)
		}
		for key, values := range c.metadata {
			if key != strings.ToLower(key) || strings.ContainsAny(key, ": \r\n") || strings.HasPrefix(key, "grpc-") || len(values) != 1 {
				t.Fatalf("%q became the metadata %q", key, values)
			}
		}
		service, method, _ := strings.Cut(c.method[1:], "/")
		if service == "" || method == "" || c.output == nil {
			t.Fatalf("%q became %+v", url, c)
		}
		// The status is found in any bytes, or none.
		if code, err := c.failure(body); (code == 0) != (err == nil) {
			t.Fatalf("%x: code %d, %v", body, code, err)
		}
	})
}

// What is read from the encoding is what decoding finds.
func TestStatusIsWhereItIs(t *testing.T) {
	for _, m := range []proto.Message{
		&Ydb_Query.ExecuteQueryResponsePart{ResultSet: &Ydb.ResultSet{Truncated: true}, Status: Ydb.StatusIds_OVERLOADED},
		&Ydb_Table.ExecuteDataQueryResponse{Operation: &Ydb_Operations.Operation{Id: "a", Status: Ydb.StatusIds_OVERLOADED}},
		&Ydb_Table.ReadRowsResponse{Status: Ydb.StatusIds_OVERLOADED, ResultSet: &Ydb.ResultSet{}},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if got := statusIn(data, statusPath(m.ProtoReflect().Descriptor())); got != Ydb.StatusIds_OVERLOADED {
			t.Errorf("%T: got %v; want OVERLOADED", m, got)
		}
	}
	d, err := protoregistry.GlobalTypes.FindMessageByName("sidecar.v1.ExecuteResponse")
	if err != nil || statusPath(d.Descriptor()) != nil {
		t.Errorf("an answer of the plain API has a status of YDB at %v, %v; want none", statusPath(d.Descriptor()), err)
	}
}

// reported writes a report of results that are made up: 1000 at 100/s, every tenth of them slow.
func reported(t *testing.T, encode func(*bytes.Buffer) vegeta.Encoder, args ...string) (string, error) {
	t.Helper()
	var in, out bytes.Buffer
	encoder, begun := encode(&in), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 1000 {
		r := vegeta.Result{Attack: "a", Seq: uint64(i), Code: 200, Timestamp: begun.Add(time.Duration(i) * 10 * time.Millisecond), Latency: time.Millisecond, Method: "GET", URL: "http://a"}
		switch {
		case i == 999:
			r.Code, r.Latency, r.Error = 0, 3*time.Second, lab.NotSent
		case i%10 == 0:
			r.Latency = 200 * time.Millisecond
		}
		if err := encoder.Encode(&r); err != nil {
			t.Fatal(err)
		}
	}
	err := Report(t.Context(), args, &in, &out)
	return out.String(), err
}

func gob(b *bytes.Buffer) vegeta.Encoder { return vegeta.NewEncoder(b) }

func TestReport(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"Requests", "Rates", "100.00/s, 76.91/s, 76.91%, 1", "Tail", "3s", lab.NotSent, "200:999"}},
		{[]string{"-type", "hist[0,10ms,1s]"}, []string{"[10ms,", "100 ", "[1s,"}},
		{[]string{"-type", "hist", "-buckets", "[0,10ms,1s]"}, []string{"[10ms,", "100 "}},
		{[]string{"-type", "hdrplot"}, []string{"Percentile", "TotalCount", "#[Max"}},
		{[]string{"-type", "plot", "-title", "Mine"}, []string{"<title>Mine</title>", "uPlot"}},
	} {
		for name, encode := range map[string]func(*bytes.Buffer) vegeta.Encoder{"gob": gob,
			"json": func(b *bytes.Buffer) vegeta.Encoder { return vegeta.NewJSONEncoder(b) }, "csv": func(b *bytes.Buffer) vegeta.Encoder { return vegeta.NewCSVEncoder(b) }} {
			text, err := reported(t, encode, tc.args...)
			if err != nil {
				t.Fatalf("%q, %s: %v", tc.args, name, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(text, want) {
					t.Errorf("%q, %s: the report lacks %q:\n%.2000s", tc.args, name, want, text)
				}
			}
		}
	}
	text, err := reported(t, gob, "-type", "json", "-buckets", "[0,10ms]")
	var got struct {
		Offered, Achieved float64
		Requests          int
		NotSent           int `json:"not_sent"`
		Latencies         map[string]float64
		Buckets           map[string]int
		P999              float64 `json:"99.9th"`
	}
	if err = errors.Join(err, json.Unmarshal([]byte(text), &got)); err != nil || got.Offered != 100 || got.Requests != 1000 || got.NotSent != 1 || got.Latencies["50th"] > 1.01e6 || got.Latencies["95th"] < 199e6 || got.Latencies["95th"] > 201e6 ||
		got.P999 < 199e6 || got.P999 > 3.1e9 || got.Buckets["10000000"] != 101 {
		t.Errorf("got %+v, %v from\n%s", got, err, text)
	}
}

func TestReportRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{"-type", "poster"}, {"-type", "hist"}, {"-type", "hist[x]"}, {"/nowhere"}, {"/dev/null"}} {
		if text, err := reported(t, gob, args...); err == nil {
			t.Errorf("%q: got no error and\n%s", args, text)
		}
	}
	var out bytes.Buffer
	if err := Report(t.Context(), nil, strings.NewReader("no results"), &out); err == nil || out.Len() > 0 {
		t.Errorf("got %v and %q", err, out.String())
	}
}

// Who is interrupted gets what was done until then.
func TestInterruptedAttacksAreWrittenDown(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	tell := body(t, `{"sql":"tell"}`)
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- Main(ctx, []string{"-rate", "100", "-duration", "1h"}, strings.NewReader(fmt.Sprintf("POST grpc://%s%s\n@%s", s.address, execute, tell)), &out)
	}()
	<-s.told
	<-s.told
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var report bytes.Buffer
	if err := Report(t.Context(), nil, &out, &report); err != nil || !strings.Contains(report.String(), "200:") {
		t.Errorf("got %v and\n%s", err, report.String())
	}
}
