package facade

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/short"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// stalled is a caller that has begun a call and does nothing any more.
type stalled struct {
	name  string
	begin func(t *testing.T, b *bench)
}

// stuck returns once a call is open and nothing has moved for a while.
func stuck(t *testing.T, b *bench) {
	t.Helper()
	var last string
	since := time.Now()
	// over real connections there is no event to wait for
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		streams := b.s.Streams()
		for i := range streams {
			streams[i].Age = 0
		}
		b.Driver.Mu.Lock()
		now := fmt.Sprint(streams, b.Driver.Open, len(b.Driver.Requests))
		b.Driver.Mu.Unlock()
		if open := b.s.State().OpenCalls; now != last || open != 1 {
			last, since = now, time.Now()
		}
		if time.Since(since) > 500*time.Millisecond {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the call does not come to rest")
		}
	}
}

// hold connects and sends what a request begins with. No more is ever read than begun does.
func hold(t *testing.T, b *bench, request string) net.Conn {
	t.Helper()
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}}
	conn, err := small.DialContext(t.Context(), "tcp", strings.TrimPrefix(b.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// wasCut reports whether Drain says that it cut off so many: what is cut off may take longer to
// end than Drain waits for it, which is said in other words.
func wasCut(err error, calls, transactions int) bool {
	return err != nil &&
		(contains(err.Error(), fmt.Sprintf("facade: %d calls cut off and %d transactions rolled back", calls, transactions)) ||
			contains(err.Error(), fmt.Sprintf("facade: %d calls and %d transactions cut off", calls, transactions)))
}

// begun returns when the answer has begun, which is made as a whole before. A slow machine
// takes long for that, and moves nothing meanwhile.
func begun(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

func post(path, accept, media, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nAccept: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		path, accept, media, len(body), body)
}

// badRows are lines that are each refused, and so answered.
func badRows(n int) string {
	return strings.Repeat(`{"id":"x","name":"`+strings.Repeat("n", 50)+`"}`+"\n", n)
}

// TestDrainEndsCallsOfCallersThatStall: once its time is up, Drain waits for nobody.
func TestDrainEndsCallsOfCallersThatStall(t *testing.T) {
	short.Skip(t, "its peers take seconds each")
	// Made once: 16 MiB take a second with -race.
	row := facadetest.Part(t, 0, []string{"v Utf8"}, []string{`"` + strings.Repeat("x", 500<<10) + `"`})
	value := facadetest.Part(t, 0, []string{"v Optional<String>"}, []string{`"` + strings.Repeat("aaaa", 4<<20) + `"`})
	for _, caller := range []stalled{
		{"grpc_ingest_not_read", func(t *testing.T, b *bench) {
			stream, err := b.ingest.Ingest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(
				&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: "dir/items"}}},
			); err != nil {
				t.Fatal(err)
			}
			rows := &sidecarv1.IngestRows{Columns: []string{"id", "name"}}
			bad := &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: "x"}}
			for range 5000 {
				rows.Rows = append(rows.Rows, &sidecarv1.Row{Values: []*sidecarv1.Value{bad, bad}})
			}
			if err := stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Rows{Rows: rows}}); err != nil {
				t.Fatal(err)
			}
		}},
		{"grpc_ingest_without_its_first_message", func(t *testing.T, b *bench) {
			stream, err := b.ingest.Ingest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_ = stream
		}},
		{"grpc_stream_not_read", func(t *testing.T, b *bench) {
			if _, err := b.api.ExecuteStream(t.Context(), &sidecarv1.ExecuteRequest{Sql: "S", Timeout: "5m"}); err != nil {
				t.Fatal(err)
			}
		}},
		{"http_stream_not_read", func(t *testing.T, b *bench) {
			hold(t, b, post("/v1/query", mediaNDJSON, core.MediaJSON, `{"sql":"S","timeout":"5m"}`))
		}},
		{"http_reply_not_read", func(t *testing.T, b *bench) {
			begun(t, hold(t, b, post("/v1/query", core.MediaJSON, core.MediaJSON, `{"sql":"S","timeout":"5m"}`)))
		}},
		{"kv_value_not_read", func(t *testing.T, b *bench) {
			begun(t, hold(t, b, "GET /v1/kv/items?id=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"))
		}},
		{"http_ingest_not_read", func(t *testing.T, b *bench) {
			conn := hold(t, b,
				"POST /v1/ingest/dir/items HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
					"application/x-ndjson\r\nContent-Length: 1000000000\r\n\r\n")
			_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second)) // by then nothing is taken any more
			for lines := badRows(1000); ; {
				if _, err := conn.Write([]byte(lines)); err != nil {
					return
				}
			}
		}},
		{"http_ingest_rests", func(t *testing.T, b *bench) {
			hold(t, b,
				"POST /v1/ingest/dir/items HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
					"application/x-ndjson\r\nContent-Length: 1000000000\r\n\r\n")
		}},
		{"http_body_never_ends", func(t *testing.T, b *bench) {
			hold(t, b, "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
		}},
	} {
		t.Run(caller.name, func(t *testing.T) {
			w := facadetest.NewWriter(t)
			items := w.Table
			w.Table = func(path string) (*Ydb_Table.DescribeTableResult, error) {
				if path == "/local/t" {
					return facadetest.KVTable(t), nil
				}
				return items(path)
			}
			w.Answer = func(
				_ context.Context, _ *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
			) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
				if req.GetQueryContent().GetText() != "S" {
					return []*Ydb_Query.ExecuteQueryResponsePart{value}, nil
				}
				all := make([]*Ydb_Query.ExecuteQueryResponsePart, 16)
				for i := range all {
					all[i] = row
				}
				return all, nil
			}
			config := withKV(t, "items=t key=id:Uint64 value=v:String")
			config.API.Timeout, config.API.MaxTimeout = 5*time.Minute, 5*time.Minute
			b := start(t, config, w.Driver)
			caller.begin(t, b)
			stuck(t, b)
			grace, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			began := time.Now()
			drained := make(chan error, 1)
			go func() { drained <- b.s.Drain(grace) }()
			select {
			case err := <-drained:
				if !wasCut(err, 1, 0) {
					t.Errorf("Drain = %v; want that one call was cut off", err)
				}
				t.Logf("it took %v", time.Since(began))
			case <-time.After(time.Minute):
				t.Fatal("Drain has not returned a minute after its time was up")
			}
		})
	}
}
