package facade

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/facade/rows"
	"github.com/ydb-sidecar/sidecar/internal/ingest"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/contract"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// ended reads a stream to its end, and returns what it says there and which rows were refused on the way.
func ended(t *testing.T, s contract.IngestStream) (end *contract.IngestEnd, refused []uint64) {
	t.Helper()
	for {
		p, err := s.Next()
		if err == io.EOF {
			return end, refused
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.Refused != nil {
			refused = append(refused, p.Offset)
		}
		end = p.End
	}
}

func TestIngest(t *testing.T) {
	w := facadetest.NewWriter(t)
	b := start(t, small(), w.Driver)
	for _, face := range []contract.Client{b.grpc, b.http} {
		t.Run(face.Name(), func(t *testing.T) {
			s, err := face.Ingest(t.Context(), contract.IngestOpen{Table: "dir/items", Offset: 7})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Send([]string{"id", "name"}, []any{1, "a"}, []any{2, "poison"}, []any{"x", "b"},
				[]any{uint64(1), "last"}); err != nil {
				t.Fatal(err)
			}
			refused := map[uint64]*contract.Error{}
			for next := uint64(7); next < 11; { // while the stream is open
				p, err := s.Next()
				if err != nil {
					t.Fatal(err)
				}
				next = max(next, p.Next)
				if p.Refused != nil {
					refused[p.Offset] = p.Refused
				}
			}
			if len(refused) != 2 || refused[8].Code != "YDB_BAD_REQUEST" || refused[9].Code != "BAD_REQUEST" {
				t.Errorf("refused %v", refused)
			}
			if w.Row(1) != "last" {
				t.Errorf("rows %v", w.Rows)
			}
			if err := s.Send([]string{"id", "name"}, []any{5, "end"}); err != nil {
				t.Fatal(err)
			}
			if err := s.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if end, _ := ended(t, s); end == nil || *end != (contract.IngestEnd{Next: 12, Rows: 3, Refused: 2}) {
				t.Errorf("end %+v", end)
			}
		})
		t.Run(face.Name()+"_refusals", func(t *testing.T) {
			for _, c := range []struct {
				open contract.IngestOpen
				code string
			}{
				{contract.IngestOpen{Table: "nowhere"}, "YDB_SCHEME_ERROR"},
				{contract.IngestOpen{Table: "dir/items", Stream: strings.Repeat("n", 300)}, "BAD_REQUEST"},
			} {
				s, err := face.Ingest(t.Context(), c.open)
				if err == nil {
					_, err = s.Next()
					s.Close()
				}
				if e, ok := errors.AsType[*contract.Error](err); !ok || e.Code != c.code {
					t.Errorf("%+v: %v; want %s", c.open, err, c.code)
				}
			}
		})
	}
}

// TestIngestDrains: a stop writes and acknowledges what was taken, and says why the stream ends.
func TestIngestDrains(t *testing.T) {
	for _, which := range []int{0, 1} {
		w := facadetest.NewWriter(t)
		config := small()
		config.Ingest.Delay = time.Hour
		b := start(t, config, w.Driver)
		face := []contract.Client{b.grpc, b.http}[which]
		t.Run(face.Name(), func(t *testing.T) {
			s, err := face.Ingest(t.Context(), contract.IngestOpen{Table: "dir/items"})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Send([]string{"id", "name"}, []any{1, "a"}, []any{2, "b"}); err != nil {
				t.Fatal(err)
			}
			taken := func() bool { open := b.s.Streams(); return len(open) == 1 && open[0].Waiting == 2 }
			await.True(t, "the rows come over a real connection", taken)
			drained := make(chan error, 1)
			go func() { drained <- b.s.Drain(t.Context()) }()
			p, err := s.Next()
			if err != nil || p.Next != 2 {
				t.Errorf("%+v, %v; want 2 acknowledged", p, err)
			}
			_, err = s.Next()
			if e, ok := errors.AsType[*contract.Error](err); !ok || e.Code != "DRAINING" || !e.Safe {
				t.Errorf("%v; want DRAINING", err)
			}
			if err := <-drained; err != nil {
				t.Errorf("Drain: %v", err)
			}
			if w.Row(2) != "b" {
				t.Errorf("rows %v", w.Rows)
			}
		})
	}
}

// TestIngestHTTP has what only lines have.
func TestIngestHTTP(t *testing.T) {
	w := facadetest.NewWriter(t)
	config := small()
	config.Ingest.MaxRow = 200
	b := start(t, config, w.Driver)
	post := func(path, body string) (int, []map[string]json.RawMessage) {
		t.Helper()
		status, _, got := facadetest.Send(t, "POST", b.base+path, body, facadetest.Header("Content-Type", mediaNDJSON))
		var lines []map[string]json.RawMessage
		for line := range strings.Lines(got) {
			var m map[string]json.RawMessage
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			lines = append(lines, m)
		}
		return status, lines
	}
	long := `{"id":3,"name":"` + strings.Repeat("x", 100_000) + `"}`
	status, lines := post(
		"/v1/ingest/dir/items?offset=5",
		"{\"id\":1,\"name\":\"a\"}\r\n\n  {\"id\":2,\"name\":\"b\"}\n"+long+"\n{\"id\":4,\"name\":\"no end of line\"}",
	)
	if status != 200 || len(lines) < 2 {
		t.Fatalf("%d %v", status, lines)
	}
	if end := string(lines[len(lines)-1]["end"]); end != `{"next":9,"rows":3,"refused":1}` {
		t.Errorf("end %s", end)
	}
	if refused := string(
		lines[slices.IndexFunc(lines, func(m map[string]json.RawMessage) bool { return m["refused"] != nil })]["refused"],
	); !strings.Contains(refused, `{"offset":7,`) || !strings.Contains(refused, "ingest.max_row") {
		t.Errorf("refused %s", refused)
	}
	if w.Row(4) != "no end of line" {
		t.Errorf("rows %v", w.Rows)
	}
	// The path of the database may stand before that of the table, as in /v1/schema.
	for i, path := range []string{"/v1/ingest/local/dir/items", "/v1/ingest/%2Flocal%2Fdir%2Fitems"} {
		id := uint64(10 + i)
		if status, lines := post(path, fmt.Sprintf(`{"id":%d,"name":"absolute"}`, id)); status != 200 || w.Row(id) != "absolute" {
			t.Errorf("%s: %d %v", path, status, lines)
		}
	}
	for path, want := range map[string]int{"/v1/ingest/dir/items?offset=-1": 400, "/v1/ingest/dir/items?offset=x": 400,
		"/v1/ingest/": 400, "/v1/ingest/nowhere": 404} {
		if status, lines := post(path, "{}"); status != want {
			t.Errorf("%s: %d %v; want %d", path, status, lines, want)
		}
	}
	if status, _, _ := facadetest.Send(
		t, "POST", b.base+"/v1/ingest/dir/items", "{}", facadetest.Header("Content-Type", "application/json"),
	); status != 415 {
		t.Errorf("a body of JSON: %d", status)
	}
}

// TestStreamsOfAppsDoNotMeet: a name of a stream is its app's own, over both APIs.
func TestStreamsOfAppsDoNotMeet(t *testing.T) {
	w := facadetest.NewWriter(t)
	b := start(t, small(), w.Driver)
	open := func(app string) io.WriteCloser {
		t.Helper()
		body, rows := io.Pipe()
		t.Cleanup(func() { rows.Close() })
		req, err := http.NewRequestWithContext(t.Context(), "POST", b.base+"/v1/ingest/dir/items?stream=x", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", mediaNDJSON)
		req.Header.Set("X-Sidecar-App", app)
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatal(res, err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return rows
	}
	apps := func() (all []string) {
		for _, s := range b.s.Streams() {
			all = append(all, s.App)
		}
		slices.Sort(all)
		return all
	}
	open("admin")
	open("shop")
	stream, err := b.ingest.Ingest(metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", "third"))
	if err != nil {
		t.Fatal(err)
	}
	first := &sidecarv1.IngestOpen{Table: "dir/items", Stream: "x"}
	if err := stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: first}}); err != nil {
		t.Fatal(err)
	}
	await.True(t, "each app has a stream", func() bool { return slices.Equal(apps(), []string{"admin", "shop", "third"}) })
}

// TestIngestDeadline: a caller may give its stream an end.
func TestIngestDeadline(t *testing.T) {
	w := facadetest.NewWriter(t)
	config := small()
	config.Ingest.Delay = time.Hour
	b := start(t, config, w.Driver)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body, more := io.Pipe()
	defer more.Close()
	req, err := http.NewRequestWithContext(ctx, "POST", b.base+"/v1/ingest/dir/items", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaNDJSON)
	req.Header.Set("Request-Timeout", "50ms")
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, `"code":"DEADLINE_EXCEEDED"`) || !strings.Contains(line, `"safe_to_retry":true`) {
		t.Errorf("%q, %v; want DEADLINE_EXCEEDED, safe to retry", line, err)
	}
}

// TestIngestBodyBreaksOff: what came whole is written, half a line is not.
func TestIngestBodyBreaksOff(t *testing.T) {
	w := facadetest.NewWriter(t)
	b := start(t, small(), w.Driver)
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	line := "{\"id\":1,\"name\":\"whole\"}\n{\"id\":2,\"name\":\"ha"
	fmt.Fprintf(conn,
		"POST /v1/ingest/dir/items HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: 1000\r\n\r\n%s",
		line)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatal(err)
	}
	if _, half := w.Rows[2]; half {
		t.Errorf("rows %v; half a line was written", w.Rows)
	}
}

// TestOffsetsAreBounded: an offset near the end of its type would begin anew.
func TestOffsetsAreBounded(t *testing.T) {
	b := start(t, small(), facadetest.NewWriter(t).Driver)
	stream, err := b.ingest.Ingest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open := &sidecarv1.IngestOpen{Table: "dir/items", Offset: math.MaxInt64 + 1}
	if err := stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: open}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil || !strings.Contains(err.Error(), "offset: 9223372036854775808; at most") {
		t.Errorf("%v; want that the offset is too large", err)
	}
}

// TestNoOffsetBehindTheLargest: what an answer has as next may be the offset of another stream.
func TestNoOffsetBehindTheLargest(t *testing.T) {
	b := start(t, small(), facadetest.NewWriter(t).Driver)
	for offset, want := range map[string][]string{
		"9223372036854775806": {`{"ack":{"next":9223372036854775807}}`, "BAD_REQUEST", "the largest"},
		"9223372036854775807": {"BAD_REQUEST", "the largest"},
		"9223372036854775805": {`{"end":{"next":9223372036854775807,"rows":2,"refused":0}}`},
	} {
		_, _, got := facadetest.Send(t, "POST", b.base+"/v1/ingest/dir/items?offset="+offset, `{"id":1,"name":"a"}`+"\n"+`{"id":2,"name":"b"}`+"\n",
			facadetest.Header("Content-Type", "application/x-ndjson"))
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("from %s: %s\nwant %s", offset, got, part)
			}
		}
		if strings.Contains(got, "9223372036854775808") || strings.Contains(got, "9223372036854775809") {
			t.Errorf("from %s: %s\nthe largest offset is exceeded", offset, got)
		}
	}
}

// retried is a driver whose calls without a session needed so many attempts.
type retried struct {
	core.Driver
	attempts int
}

func (r retried) Any(
	ctx context.Context, call upstream.Call, f func(context.Context, grpc.ClientConnInterface) error,
) (upstream.Report, error) {
	report, err := r.Driver.Any(ctx, call, f)
	report.Attempts = r.attempts
	return report, err
}

// TestWhichWritesMayStillCome: a node answers for all shards as soon as one of them refuses, so of
// whatever was sent again, or would be, some rows may be written later.
func TestWhichWritesMayStillCome(t *testing.T) {
	for _, c := range []struct {
		name     string
		attempts int
		status   Ydb.StatusIds_StatusCode
		unsure   bool
	}{
		{"at_once", 1, Ydb.StatusIds_SUCCESS, false},
		{"again", 2, Ydb.StatusIds_SUCCESS, true},
		{"overloaded", 1, Ydb.StatusIds_OVERLOADED, true},
		{"timeout", 1, Ydb.StatusIds_TIMEOUT, true},
		{"refused_for_a_row", 1, Ydb.StatusIds_BAD_REQUEST, false},
		{"unauthorized", 1, Ydb.StatusIds_UNAUTHORIZED, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := facadetest.NewWriter(t)
			if c.status != Ydb.StatusIds_SUCCESS {
				w.Bulk = func(*Ydb_Table.BulkUpsertRequest) error { return facadetest.Failed(cluster.CallExecute, c.status) }
			}
			b := start(t, small(), w.Driver, func(d *core.Deps) { d.Driver = retried{d.Driver, c.attempts} })
			request := mem.SliceBuffer(nil)
			sent, err := rows.Sink{Core: b.s.core}.Upsert(t.Context(), request)
			if sent.Unsure != c.unsure || (err == nil) != (c.status == Ydb.StatusIds_SUCCESS) {
				t.Errorf("%+v, %v; want unsure %t", sent, err, c.unsure)
			}
			var refused *ingest.Refused
			if errors.As(err, &refused) != (c.status == Ydb.StatusIds_BAD_REQUEST) {
				t.Errorf("%v", err)
			}
		})
	}
}

// sendLong sends rows with names of the given length, and ends its side of the stream.
func sendLong(s contract.IngestStream, firstID uint64, rows, length int) error {
	for n := range rows {
		if err := s.Send([]string{"id", "name"}, []any{firstID + uint64(n), strings.Repeat("x", length)}); err != nil {
			return err
		}
	}
	return s.CloseSend()
}

// largeIsRefused fails unless a message of the given size ends its stream for want of memory.
func largeIsRefused(t *testing.T, face contract.Client, bytes int) {
	t.Helper()
	s, err := face.Ingest(t.Context(), contract.IngestOpen{Table: "dir/items"})
	if err == nil {
		err = s.Send([]string{"id", "name"}, []any{uint64(1), strings.Repeat("x", bytes)})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(); !strings.Contains(fmt.Sprint(err), "MEMORY_SHORT") {
		t.Errorf("a large message is told %v", err)
	}
	s.Close()
}

// Rows that are not written yet count for the memory of requests: small parts wait for it, a large one ends its stream.
func TestIngestCounts(t *testing.T) {
	const most, each, count = 1 << 20, 20_000, 40
	for _, name := range []string{"grpc", "http"} {
		t.Run(name, func(t *testing.T) {
			w := facadetest.NewWriter(t)
			write, blocked := w.Bulk, make(chan struct{})
			w.Bulk = func(req *Ydb_Table.BulkUpsertRequest) error {
				<-blocked
				return write(req)
			}
			goOn := sync.OnceFunc(func() { close(blocked) })
			defer goOn()
			config := small()
			config.API.MaxBody = 1 << 20
			config.Ingest.BatchBytes, config.Ingest.Delay = 64<<10, 0
			budget := memguard.OfBytes(most)
			b := start(t, config, w.Driver, func(d *core.Deps) { d.Requests = budget })
			face := b.grpc
			if name == "http" {
				face = b.http
			}
			var streams []contract.IngestStream
			var sending sync.WaitGroup
			defer sending.Wait()
			for range 4 { // all before any sends: a call over HTTP takes some of the memory itself
				s, err := face.Ingest(t.Context(), contract.IngestOpen{Table: "dir/items"})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				streams = append(streams, s)
			}
			for i, s := range streams {
				sending.Go(func() {
					if err := sendLong(s, uint64(count*i), count, each); err != nil {
						t.Error(err)
					}
				})
			}
			await.Right(t, "four streams come to the end of the memory", func() string {
				if state := budget.State(); state.Refused == 0 {
					return fmt.Sprintf("%d bytes each: %+v", each*count, state)
				}
				return ""
			})
			if held := budget.State().Held; held < most/4 || held > most/2 {
				t.Errorf("%d bytes are held; want up to %d, the half of one app", held, most/2)
			}
			if name == "grpc" {
				largeIsRefused(t, face, most/2)
			}
			goOn()
			for i, s := range streams {
				if end, refused := ended(t, s); end == nil || end.Rows != count || len(refused) > 0 {
					t.Errorf("stream %d ended with %+v, and refused the rows %v; want that %d are written", i, end, refused, count)
				}
			}
			await.True(t, "no byte is held any more", func() bool { return budget.State().Held == 0 })
		})
	}
}

// A stream at rest whose rows are written holds no memory of requests for them.
func TestIngestAtRestHoldsNothing(t *testing.T) {
	for _, name := range []string{"grpc", "http"} {
		t.Run(name, func(t *testing.T) {
			config := small()
			config.API.MaxBody = 1 << 20
			budget := memguard.OfBytes(1 << 20)
			b := start(t, config, facadetest.NewWriter(t).Driver, func(d *core.Deps) { d.Requests = budget })
			face := b.grpc
			if name == "http" {
				face = b.http
			}
			open := int64(0) // bytes that a stream takes as a call over HTTP, with some headers
			if name == "http" {
				open = 20 << 10
			}
			for i := range 6 { // all together send more than there is memory for
				s, err := face.Ingest(t.Context(), contract.IngestOpen{Table: "dir/items"})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				for n := range 10 {
					if err := s.Send([]string{"id", "name"}, []any{uint64(10*i + n), strings.Repeat("x", 10_000)}); err != nil {
						t.Fatal(err)
					}
				}
				for next := uint64(0); next < 10; {
					p, err := s.Next()
					if err != nil || p.Refused != nil {
						t.Fatalf("stream %d: %v, %v", i, err, p.Refused)
					}
					next = p.Next
				}
				await.Right(t, "streams at rest hold little", func() string {
					if held := budget.State().Held; held > int64(i+1)*open {
						return fmt.Sprintf("%d bytes", held)
					}
					return ""
				})
			}
		})
	}
}
