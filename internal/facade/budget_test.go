package facade

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/short"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Bodies that never end make room for those that come whole, and are told why they ended.
func TestBodiesThatNeverEnd(t *testing.T) {
	short.Skip(t, "its peers take seconds each")
	budget := memguard.OfBytes(2 << 20)
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return nil, nil
		},
	}
	b := start(t, small(), f, func(d *core.Deps) { d.Requests = budget })
	var slow []net.Conn
	for range 40 { // of 60 KB each: more than the half that one app has
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		slow = append(slow, conn)
		if _, err := fmt.Fprintf(
			conn,
			"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 65000\r\n\r\n%s",
			strings.Repeat(" ", 60_000),
		); err != nil {
			t.Fatal(err)
		}
	}
	body := `{"sql":"SELECT 1","params":{"p":"` + strings.Repeat("x", 30_000) + `"}}`
	for end := time.Now().Add(10 * time.Second); ; {
		answer, err := http.Post(b.base+"/v1/query", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode == http.StatusOK && budget.State().Ended > 0 {
			break
		}
		if time.Now().After(end) || answer.StatusCode != http.StatusOK && !strings.Contains(string(text), "MEMORY_SHORT") {
			t.Fatalf("%d: %s; %+v", answer.StatusCode, text, budget.State())
		}
	}
	told := 0
	for _, conn := range slow {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		text := make([]byte, 4096)
		n, _ := conn.Read(text)
		if strings.Contains(string(text[:n]), "MEMORY_SHORT") {
			told++
		}
	}
	if told == 0 {
		t.Error("nobody was told")
	}
}

// What counts for a request is about what it takes: never less, and not many times as much.
func TestRequestsTakeWhatIsCounted(t *testing.T) {
	short.Skip(t, "it measures the memory of the process")
	const items = 200_000
	config := Default()
	ints := "[" + strings.Repeat("1,", items-1) + "1]"
	list := &sidecarv1.Value{Kind: &sidecarv1.Value_ListValue{ListValue: &sidecarv1.ListValue{}}}
	for range items {
		list.GetListValue().Items = append(list.GetListValue().Items, &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: 1}})
	}
	long := strings.Repeat("a text with, some, commas and [brackets] ", 200_000)
	const clients = 2
	for name, call := range map[string]struct {
		size int
		send func(b *bench) error
	}{
		"a list over HTTP": {len(ints), func(b *bench) error {
			return posted(b, "/v1/query", []byte(`{"sql":"SELECT $p","params":{"p":`+ints+`},"types":{"p":"List<Int64>"}}`))
		}},
		"a list over gRPC": {proto.Size(list), func(b *bench) error {
			_, err := b.api.Execute(
				context.Background(),
				&sidecarv1.ExecuteRequest{Sql: "SELECT $p", Params: map[string]*sidecarv1.Value{"p": list},
					Types: map[string]string{"p": "List<Int64>"}},
			)
			return err
		}},
		"a text over HTTP": {len(long), func(b *bench) error {
			text, _ := json.Marshal(long)
			return posted(b, "/v1/query", fmt.Appendf(nil, `{"sql":"SELECT $p","params":{"p":%s}}`, text))
		}},
		"a text over gRPC": {len(long), func(b *bench) error {
			_, err := b.api.Execute(
				context.Background(),
				&sidecarv1.ExecuteRequest{Sql: "SELECT $p",
					Params: map[string]*sidecarv1.Value{"p": {Kind: &sidecarv1.Value_TextValue{TextValue: long}}}},
			)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			budget := memguard.OfBytes(1 << 30)
			var during, held int64
			f := &facadetest.Driver{
				Answer: func(
					context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest,
				) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
					during, held = facadetest.InUse(), budget.State().Held
					return nil, nil
				},
			}
			b := start(t, config, f, func(d *core.Deps) { d.Requests = budget })
			// Up to so many copies are the client's, which is in this process.
			right := func(takes, counted int64) bool {
				return counted >= takes-clients*int64(call.size) && counted <= 6*takes
			}
			facadetest.IsCounted(t, right, func() (takes, counted int64) {
				before := facadetest.InUse()
				if err := call.send(b); err != nil {
					t.Fatal(err)
				}
				return during - before, held
			})
			if left := budget.State().Held; left != 0 {
				t.Errorf("%d bytes are held when it is over", left)
			}
		})
	}
}

// onWrite is a caller over HTTP who does something before the first octet comes.
type onWrite struct {
	http.ResponseWriter
	do func()
}

func (w *onWrite) Write(b []byte) (int, error) {
	if w.do != nil {
		w.do()
		w.do = nil
	}
	return len(b), nil
}

// narrow are rows of one Bool whose column has a long name: as JSON they take ten times as much as they came with.
func narrow(t *testing.T, rows int) []*Ydb_Query.ExecuteQueryResponsePart {
	all := make([][]string, rows/10)
	for i := range all {
		all[i] = []string{"true"}
	}
	one := facadetest.Part(t, 0, []string{strings.Repeat("n", 60) + " Bool"}, all...)
	return slices.Repeat([]*Ydb_Query.ExecuteQueryResponsePart{one}, 10)
}

// What counts for an answer that is not streamed is about what it takes when it goes out.
func TestAnswersTakeWhatIsCounted(t *testing.T) {
	short.Skip(t, "it measures the memory of the process")
	const rows = 100_000
	answer := narrow(t, rows)
	for name, call := range map[string]struct{ path, body string }{
		"query": {"/v1/query", `{"sql":"SELECT 1"}`},
		"batch": {"/v1/batch", `{"statements":[{"sql":"SELECT 1"},{"sql":"SELECT 1"}]}`},
		"list":  {"/v1/tx", `{"statements":[{"sql":"SELECT 1"},{"sql":"SELECT 1"}]}`},
		"gRPC":  {},
	} {
		t.Run(name, func(t *testing.T) {
			budget := memguard.OfBytes(1 << 30)
			var during, held int64
			measure := func() { during, held = facadetest.InUse(), budget.State().Held }
			f := &facadetest.Driver{
				Answer: func(
					context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest,
				) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
					return answer, nil
				},
			}
			b := start(t, Default(), f, func(d *core.Deps) { d.Requests = budget })
			facadetest.IsCounted(t, facadetest.Nearly, func() (takes, counted int64) {
				before := facadetest.InUse()
				if call.path == "" {
					asked := 0
					f.OnNext = func() {
						if asked++; asked == len(answer)+1 {
							measure()
						}
					}
					if _, err := b.api.Execute(
						t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}, grpc.MaxCallRecvMsgSize(1<<30),
					); err != nil {
						t.Fatal(err)
					}
				} else {
					w := &onWrite{httptest.NewRecorder(), measure}
					r := httptest.NewRequest("POST", "http://localhost"+call.path, strings.NewReader(call.body))
					r.Header.Set("Content-Type", core.MediaJSON)
					b.s.Handler().ServeHTTP(w, r)
				}
				return during - before, held
			})
			if left := budget.State().Held; left != 0 {
				t.Errorf("%d bytes are held when it is over", left)
			}
		})
	}
}

// An answer for which there is no memory is refused before it is whole, unless what it answers may have written.
func TestAnswersHaveBounds(t *testing.T) {
	const rows = 25_000
	budget := memguard.OfBytes(1 << 20) // one app has half of it
	answer := narrow(t, rows)
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return answer, nil
		},
	}
	b := start(t, Default(), f, func(d *core.Deps) { d.Requests = budget })
	asked := 0
	f.OnNext = func() { asked++ }
	_, err := b.http.Execute(t.Context(), contract.Statement{SQL: "SELECT 1", Mode: "snapshot_ro"})
	refused(t, err, "MEMORY_SHORT", true, false)
	if asked > len(answer)/2 {
		t.Errorf("it was refused after %d of %d parts", asked, len(answer))
	}
	r, err := b.http.Execute(t.Context(), contract.Statement{SQL: "UPSERT", Mode: "serializable_rw"})
	if err != nil || len(r.Rows) != rows {
		t.Errorf("what may have written is not answered: %v", err)
	}
	if left := budget.State().Held; left != 0 {
		t.Errorf("%d bytes are held when it is over", left)
	}
}

// What has more entries than a request may have is refused before they are decoded: there is no memory for that here.
func TestLongListsAreNotDecoded(t *testing.T) {
	f := &facadetest.Driver{}
	b := start(t, small(), f, func(d *core.Deps) { d.Requests = memguard.OfBytes(64<<10 + 2*(20<<10)) }) // two open calls
	params := map[string]any{}
	for i := range 500 {
		params[fmt.Sprint("p", i)] = i
	}
	statement := contract.Statement{SQL: "S", Params: params}
	b.each(t, func(t *testing.T, c contract.Client) {
		_, err := c.Execute(t.Context(), statement)
		if e := refused(t, err, "LIMIT_EXCEEDED", false, false); !strings.Contains(e.Message, "api.max_params") {
			t.Error(e.Message)
		}
		_, err = c.Transact(t.Context(), contract.Transaction{Statements: []contract.Statement{statement}})
		if e := refused(t, err, "LIMIT_EXCEEDED", false, false); !strings.Contains(e.Message, "api.max_params") {
			t.Error(e.Message)
		}
		_, err = c.Transact(t.Context(), contract.Transaction{Statements: make([]contract.Statement, 500)})
		if e := refused(t, err, "LIMIT_EXCEEDED", false, false); !strings.Contains(e.Message, "api.max_statements") {
			t.Error(e.Message)
		}
	})
}

func posted(b *bench, path string, body []byte) error {
	answer, err := http.Post(b.base+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%d: %s", answer.StatusCode, text)
	}
	return nil
}

// Rows of a bulk that are short as text take no more than some times that, and too many are refused before
// anything is written.
func TestBulkHasBounds(t *testing.T) {
	budget := memguard.OfBytes(2 << 20)
	config := Default()
	f := &facadetest.Driver{Table: func(string) (*Ydb_Table.DescribeTableResult, error) { return facadetest.Items(t), nil }}
	f.Bulk = func(*Ydb_Table.BulkUpsertRequest) error {
		t.Error("something was written")
		return nil
	}
	b := start(t, config, f, func(d *core.Deps) { d.Requests = budget })
	rows := []byte(strings.Repeat("{\"id\":1}\n", 1<<20/9))
	answer, err := http.Post(b.base+"/v1/bulk?table=t", "application/x-ndjson", bytes.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusRequestEntityTooLarge ||
		!strings.Contains(string(text), "LIMIT_EXCEEDED") || !strings.Contains(string(text), `"safe_to_retry":false`) {
		t.Errorf("%d: %s; want that it will never fit", answer.StatusCode, text)
	}
	many := &sidecarv1.BulkUpsertRequest{Table: "t"}
	for range 1 << 16 {
		many.Rows = append(many.Rows,
			&sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{"id": {Kind: &sidecarv1.Value_Int64Value{Int64Value: 1}}}})
	}
	if _, err := b.api.BulkUpsert(t.Context(), many); err == nil || !strings.Contains(err.Error(), "memory.requests") {
		t.Errorf("over gRPC: %v", err)
	}
	large := &sidecarv1.ExecuteRequest{Sql: "S", Params: map[string]*sidecarv1.Value{
		"$a": {Kind: &sidecarv1.Value_TextValue{TextValue: strings.Repeat("x", 15<<16)}}}}
	if _, err := b.api.Execute(t.Context(), large); reason(err) != "LIMIT_EXCEEDED" || !strings.Contains(err.Error(), "memory.requests") {
		t.Errorf("a request over gRPC that never fits: %v", err)
	}
	if left := budget.State().Held; left != 0 {
		t.Errorf("%d bytes are held when it is over", left)
	}
}

// A bulk for which memory ends while its rows are encoded is refused for that, and no row of it is named.
func TestAWantOfMemoryNamesNoRow(t *testing.T) {
	config := Default()
	f := &facadetest.Driver{Table: func(string) (*Ydb_Table.DescribeTableResult, error) { return facadetest.Items(t), nil }}
	b := start(t, config, f, func(d *core.Deps) { d.Requests = memguard.OfBytes(8 << 20) })
	rows := strings.TrimSuffix(strings.Repeat(`{"id":1},`, 200_000), ",")
	text := fmt.Sprint(posted(b, "/v1/bulk", []byte(`{"table":"t","rows":[`+rows+`]}`)))
	if !strings.Contains(text, "MEMORY_SHORT") || !strings.Contains(text, "memory.requests") || strings.Contains(text, "rows[") {
		t.Error(text)
	}
}

// Large requests wait for their lane; small ones do not.
func TestLargeRequestsHaveALane(t *testing.T) {
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return nil, nil
		},
	}
	config := Default()
	config.API.Timeout = 200 * time.Millisecond
	b := start(t, config, f)
	b.each(t, func(t *testing.T, c contract.Client) {
		run := func(size int) error {
			_, err := c.Execute(t.Context(), contract.Statement{SQL: "SELECT $p", Params: map[string]any{"p": strings.Repeat("x", size)}})
			return err
		}
		place, err := b.s.core.Deps.Lane.NewDoor().Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := run(100); err != nil {
			t.Errorf("a small one: %v", err)
		}
		refused(t, run(2*lane.Large), "TOO_MANY_OPEN", true, false)
		place.Leave()
		if err := run(2 * lane.Large); err != nil {
			t.Errorf("a large one: %v", err)
		}
	})
}

// What waits for the lane counts: there is no end of large requests that could.
func TestRequestsThatWaitForTheLaneCount(t *testing.T) {
	const size = 2 * lane.Large
	budget := memguard.OfBytes(5 * size) // one app has half of it
	config := Default()
	config.API.Timeout = time.Minute
	b := start(t, config, &facadetest.Driver{Answer: facadetest.Echo}, func(d *core.Deps) { d.Requests = budget })
	place, err := b.s.core.Deps.Lane.NewDoor().Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	run := func() error {
		_, err := b.grpc.Execute(t.Context(), contract.Statement{SQL: "S", Params: map[string]any{"p": strings.Repeat("x", size)}})
		return err
	}
	var waiting sync.WaitGroup
	for range 2 {
		waiting.Go(func() { _ = run() })
	}
	for budget.State().Held < 2*size && t.Context().Err() == nil {
		runtime.Gosched()
	}
	refused(t, run(), "MEMORY_SHORT", true, false)
	place.Leave()
	waiting.Wait()
}
