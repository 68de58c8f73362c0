package app

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ydb-sidecar/sidecar/proof/short"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// callers send distinct statements, ids, names and paths over all three ways in.
// What they make up has the word in it that nothing may show.
const madeUp = "zzz"

const senders = 32

// sendDistinct makes the calls of numbers from to to with send, some at a time.
func sendDistinct(from, to int, send func(n int)) {
	var wg sync.WaitGroup
	numbers := make(chan int)
	for range senders {
		wg.Go(func() {
			for n := range numbers {
				send(n)
			}
		})
	}
	for n := from; n < to; n++ {
		numbers <- n
	}
	close(numbers)
	wg.Wait()
}

func (s *sidecar) sendOne(n int) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	word := fmt.Sprintf("%s%d", madeUp, n)
	ctx = metadata.AppendToOutgoingContext(ctx, "x-ydb-application-name", word, "traceparent", fmt.Sprintf("00-%032x-%016x-00", n+1, n+1))
	send := func(method, path, body string) {
		request, err := http.NewRequestWithContext(ctx, method, "http://"+s.at.HTTP+path, strings.NewReader(body))
		if err != nil {
			s.Error(err)
			return
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("X-Ydb-Application-Name", word)
		if response, err := s.http.Do(request); err == nil {
			_ = response.Body.Close()
		}
	}
	// What comes of a call does not matter, but that it was made.
	switch n % 10 {
	case 0:
		send(http.MethodGet, "/"+word, "")
	case 1:
		send(http.MethodGet, "/v1/tx/"+word, "")
	case 2:
		send(strings.ToUpper(word), "/v1/query", "")
	case 3:
		send(http.MethodGet, "/v1/kv/"+word+"?id="+word, "")
	case 4:
		_, _ = s.client.Commit(ctx, &sidecarv1.CommitRequest{Id: word})
	case 5:
		_ = s.conn.Invoke(ctx, "/sidecar.v1.Sidecar/"+word, new(emptypb.Empty), new(emptypb.Empty))
	case 6:
		_ = s.conn.Invoke(ctx, "/Ydb."+word+".V1.Service/"+word, new(emptypb.Empty), new(emptypb.Empty))
	case 7:
		_ = s.conn.Invoke(ctx, "/Ydb.Query.V1.QueryService/DeleteSession",
			&Ydb_Query.DeleteSessionRequest{SessionId: word}, new(Ydb_Query.DeleteSessionResponse))
	case 8:
		_, _ = s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT $" + word}) // which nobody gave a value
	case 9:
		send(http.MethodPost, "/v1/query", `{"sql":"SELECT 1 AS `+word+`","timeout":"`+word+`"}`)
	}
}

// registered are the implementations of services of gRPC, by the services' names.
type registered map[string]any

// RegisterService implements grpc.ServiceRegistrar.
func (r registered) RegisterService(d *grpc.ServiceDesc, of any) { r[d.ServiceName] = of }

// serviceOf is the service sidecar.v1.Sidecar of a sidecar.
func serviceOf(s *sidecar) sidecarv1.SidecarServer {
	r := registered{}
	s.api.Register(r)
	return r[sidecarv1.Sidecar_ServiceDesc.ServiceName].(sidecarv1.SidecarServer)
}

// callOne makes a call like those of sendOne, past the sockets.
func (s *sidecar) callOne(handler http.Handler, n int) {
	word := fmt.Sprintf("%s%d", madeUp, n)
	method, path, body := http.MethodGet, "/v1/tx/"+word, ""
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("x-ydb-application-name", word))
	switch n % 6 {
	case 0:
		path = "/" + word
	case 1:
		method, path, body = http.MethodPost, "/v1/query", `{"sql":"SELECT 1 AS `+word+`","timeout":"`+word+`"}`
	case 2:
		method, path = http.MethodDelete, "/v1/kv/"+word+"?id="+word
	case 3:
		_, _ = serviceOf(s).Commit(ctx, &sidecarv1.CommitRequest{Id: word})
		return
	case 4:
		_, _ = serviceOf(s).Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT $" + word, Mode: word})
		return
	}
	request := httptest.NewRequest(method, "http://"+s.at.HTTP+path, strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Ydb-Application-Name", word)
	handler.ServeHTTP(httptest.NewRecorder(), request)
}

// series are the lines of /metrics, without their values.
func (s *sidecar) series() map[string]bool {
	_, text := s.get("/metrics")
	all := map[string]bool{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			all[line[:max(0, strings.LastIndexByte(line, ' '))]] = true
		}
	}
	return all
}

// What callers make up does not become series, however much of it there is: only
// names of apps do, as many as apps.max.
func TestCallersMakeNoSeries(t *testing.T) {
	const warm, most = 1000, 5
	overSockets, flood := short.Of(5000, 1500), short.Of(20_000, 6000)
	c := newCluster(t)
	s := start(t, c.Endpoint(), "pool.min=3", fmt.Sprintf("apps.max=%d", most))
	s.http.Transport.(*http.Transport).MaxIdleConnsPerHost = senders
	if _, err := s.query("SELECT 1"); err != nil {
		t.Fatal(err)
	}
	sendDistinct(0, warm, s.sendOne)
	before := s.series()
	sendDistinct(warm, overSockets, s.sendOne)
	handler := s.api.Handler()
	sendDistinct(overSockets, flood, func(n int) { s.callOne(handler, n) }) // without sockets, which cost more than all else
	after := s.series()
	label := regexp.MustCompile(`([a-z_]+)="[^"]*` + madeUp + `[^"]*"`)
	names, added := map[string]bool{}, 0
	for line := range after {
		bare := label.ReplaceAllString(line, "")
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			if m[1] != "ydb_sidecar_app" {
				t.Fatalf("%s shows what a caller made up", line)
			}
			names[m[0]] = true
		}
		if bare == line && !before[line] && !strings.Contains(line, "_bucket{") { // a histogram counts once
			added++
		}
	}
	if len(names) > most {
		t.Errorf("%d names of apps are shown; apps.max = %d", len(names), most)
	}
	// A busy machine brings about errors that were not there before, over each API and on each node.
	if added > 500 {
		t.Errorf("%d calls made %d series, of %d before", flood, added, len(before))
	}
}

// TestAccessLog sends calls over every way in and reads their lines.
func TestAccessLog(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	c := newCluster(t)
	settings := []string{"log.access=all"}
	s := start(t, c.Endpoint(), settings...)
	s.eventually("started", func() bool { status, _ := s.get("/startupz?deep=1"); return status == http.StatusOK })
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+trace+"-b7ad6b7169203331-00",
		"x-ydb-application-name", "shop")
	if _, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 'secret'"}); err != nil {
		t.Fatal(err)
	}
	s.fetch(http.MethodPost, "http://"+s.at.HTTP+"/v1/query", `{"sql":"SELEKT 'secret'"}`)
	s.fetch(http.MethodGet, "http://"+s.at.HTTP+"/secret", "")
	stream, err := Ydb_Query_V1.NewQueryServiceClient(s.conn).ExecuteQuery(
		ctx, &Ydb_Query.ExecuteQueryRequest{SessionId: "ydb://session/3?node_id=99&id=secret"},
	)
	if err == nil {
		_, _ = stream.Recv()
	}
	want := map[string]map[string]any{
		"grpc sidecar.v1.Sidecar/Execute":            {"status": "OK", "app": "shop", "trace_id": trace, "level": "INFO"},
		"http POST /v1/query":                        {"status": "400", "reason": "YDB_GENERIC_ERROR", "level": "WARN"},
		"http GET":                                   {"status": "404", "reason": "NO_SUCH_ROUTE"},
		"ydb Ydb.Query.V1.QueryService/ExecuteQuery": {"reason": "BAD_SESSION", "app": "shop", "trace_id": trace, "level": "WARN"},
	}
	got := map[string]map[string]any{}
	s.eventually("all lines are written", func() bool {
		for line := range strings.Lines(s.log.String()) {
			var one map[string]any
			if json.Unmarshal([]byte(line), &one) != nil || one["msg"] != "call" {
				continue
			}
			name := fmt.Sprint(one["face"], " ", one["method"])
			if one["face"] == "http" {
				name = fmt.Sprint("http ", one["route"])
			}
			got[name] = one
		}
		for name := range want {
			if got[name] == nil {
				return false
			}
		}
		return true
	})
	// One, or two if no node was known yet.
	if n, _ := got["grpc sidecar.v1.Sidecar/Execute"]["attempts"].(float64); n < 1 {
		t.Errorf("got %v attempts; want at least 1", n)
	}
	for name, fields := range want {
		for field, value := range fields {
			if got[name][field] != value {
				t.Errorf("%s: %s = %v; want %v in %v", name, field, got[name][field], value, got[name])
			}
		}
	}
	for _, field := range []string{"queue_ms", "acquire_ms", "hop_ms", "total_ms", "node"} {
		if _, ok := got["grpc sidecar.v1.Sidecar/Execute"][field]; !ok {
			t.Errorf("a line lacks %s", field)
		}
	}
	if strings.Contains(s.log.String(), "secret") {
		t.Error("a statement, an id or a path is in the log")
	}
}

// With log.access=errors a good call has no line, whichever way it came, and statements
// are shown if asked for.
func TestAccessLogOfErrors(t *testing.T) {
	s := start(t, newCluster(t).Endpoint(), "log.access=errors", "log.access_statements=true")
	s.eventually("started", func() bool { status, _ := s.get("/startupz?deep=1"); return status == http.StatusOK })
	if _, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELEKT 2"}); err == nil {
		t.Fatal("no error")
	}
	stream, err := Ydb_Query_V1.NewQueryServiceClient(s.conn).ExecuteQuery(
		t.Context(), &Ydb_Query.ExecuteQueryRequest{SessionId: "ydb://session/3?node_id=99&id=x"},
	)
	if err == nil {
		_, _ = stream.Recv()
	}
	var got []string
	s.eventually("both failures have a line", func() bool {
		got = nil
		for line := range strings.Lines(s.log.String()) {
			var one struct{ Msg, Face, Reason, SQL string }
			if json.Unmarshal([]byte(line), &one) == nil && one.Msg == "call" {
				got = append(got, one.Face+" "+one.Reason+" "+one.SQL)
			}
		}
		return len(got) >= 2
	})
	slices.Sort(got) // a line may come after the answer
	if want := []string{"grpc YDB_GENERIC_ERROR SELEKT 2", "ydb BAD_SESSION "}; !slices.Equal(got, want) {
		t.Errorf("lines %q; want %q", got, want)
	}
}
