package systemtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// What the stop of a sidecar may take beside drain.delay and drain.grace, whatever its peers do.
const (
	stopDelay  = 500 * time.Millisecond
	stopGrace  = 1500 * time.Millisecond
	stopBeside = 5 * time.Second
	stopBusy   = 10 * time.Second // what a busy machine may add; peers stall for a minute and more
)

// Peers that do nothing any more, in any way, hold the stop up no longer than operators
// are told, and no session stays on the nodes.
func TestStopDespitePeersThatStall(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	filler := startSidecar(t, c, nil)
	fillWide(t, filler)
	filler.endsWell(t)
	const request = "POST %s HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\nContent-Type: " +
		"%s\r\nContent-Length: %d\r\n\r\n%s"
	const statement = `{"sql":"SELECT id, payload FROM wide","timeout":"5m"}`
	for _, peer := range []struct {
		name  string
		exit  int // 0 or 1: an answer was due and not taken
		begin func(t *testing.T, s *sidecar)
	}{
		{"grpc_ingest_not_read", 1, func(t *testing.T, s *sidecar) {
			stream, err := sidecarv1.NewIngestClient(s.Conn).Ingest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(
				&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: "wide"}}},
			); err != nil {
				t.Fatal(err)
			}
			bad := &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: "x"}}
			rows := &sidecarv1.IngestRows{Columns: []string{"id", "payload"}}
			for range 20000 {
				rows.Rows = append(rows.Rows, &sidecarv1.Row{Values: []*sidecarv1.Value{bad, bad}})
			}
			if err := stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Rows{Rows: rows}}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Header(); err != nil { // it is answered
				t.Fatal(err)
			}
		}},
		{"grpc_stream_not_read", 1, func(t *testing.T, s *sidecar) {
			stream, err := s.ExecuteStream(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT id, payload FROM wide", Timeout: "5m"})
			if err == nil {
				_, err = stream.Header() // the answer begins
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
		{"http_stream_not_read", 1, func(t *testing.T, s *sidecar) {
			conn := knock(t, s.HTTP, fmt.Sprintf(request, "/v1/query", "application/json", len(statement), statement))
			if _, err := conn.Read(make([]byte, 20)); err != nil { // the answer begins
				t.Fatal(err)
			}
		}},
		{"http_body_never_ends", 1, func(t *testing.T, s *sidecar) {
			conn := knock(t, s.HTTP, fmt.Sprintf(request, "/v1/query", "application/json\r\nExpect: 100-continue", 1000, "{"))
			if _, err := conn.Read(make([]byte, 20)); err != nil { // the body is being read
				t.Fatal(err)
			}
		}},
		{"http_connection_at_rest", 0, func(t *testing.T, s *sidecar) {
			conn := knock(t, s.HTTP, "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
			if _, err := conn.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}},
		{"http_half_a_head", 0, func(t *testing.T, s *sidecar) { knock(t, s.HTTP, "POST /v1/query HTTP/1.1\r\nHost: loc") }},
		{"grpc_half_a_preface", 0, func(t *testing.T, s *sidecar) { knock(t, s.GRPC, "PRI * HTTP/2.0\r\n") }},
		{"grpc_client_at_rest_that_hangs", 0, func(t *testing.T, s *sidecar) {
			knock(t, s.GRPC, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		}},
		{"sdk_stream_not_read", 1, func(t *testing.T, s *sidecar) {
			api := Ydb_Query_V1.NewQueryServiceClient(s.Conn)
			session, err := api.CreateSession(t.Context(), &Ydb_Query.CreateSessionRequest{})
			if err != nil {
				t.Fatal(err)
			}
			attached, err := api.AttachSession(t.Context(), &Ydb_Query.AttachSessionRequest{SessionId: session.SessionId})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := attached.Recv(); err != nil {
				t.Fatal(err)
			}
			stream, err := api.ExecuteQuery(t.Context(), &Ydb_Query.ExecuteQueryRequest{
				SessionId: session.SessionId, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
					QueryContent: &Ydb_Query.QueryContent{Text: "SELECT id, payload FROM wide"},
				},
			})
			if err == nil {
				_, err = stream.Header() // the answer begins
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
		{"client_stopped_in_a_call", 1, func(t *testing.T, s *sidecar) {
			body := fmt.Sprintf(request, "/v1/query", "application/json", len(statement), statement)
			host, port, _ := net.SplitHostPort(s.HTTP)
			client := exec.Command("bash", "-c",
				`exec 3<>/dev/tcp/$0/$1; printf %s "$2" >&3; read -n 20 <&3; echo; exec sleep 1000`, host, port, body)
			said, err := client.StdoutPipe()
			if err == nil {
				err = client.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Process.Kill(); _ = client.Wait() })
			if _, err := said.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if err := client.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}},
		{"stderr_not_read", 0, nil},
		{"stderr_closed", 0, nil},
		{"admin_events_open", 0, func(t *testing.T, s *sidecar) {
			knock(t, s.Admin, "GET /events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
		}},
		{"admin_trace_under_way", 0, func(t *testing.T, s *sidecar) {
			knock(t, s.Admin, "GET /debug/pprof/trace?seconds=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
		}},
		{"node_that_does_not_answer", 0, func(t *testing.T, s *sidecar) {
			delay := func(ctx context.Context, d string) {
				if err := c.Do(ctx, 2, "delay", map[string]any{"delay": d, "methods": []string{"DeleteSession"}}); err != nil {
					t.Error(err)
				}
			}
			delay(t.Context(), "1m")
			t.Cleanup(func() { delay(context.Background(), "0s") })
		}},
	} {
		t.Run(peer.name, func(t *testing.T) {
			settings := []string{"drain.delay=" + stopDelay.String(), "drain.grace=" + stopGrace.String(),
				"admin.pprof=on", "pool.min=3", "log.level=DEBUG", "log.access=all"}
			var s *sidecar
			if peer.begin == nil {
				var stderr *os.File
				if s, stderr = startUnread(t, c, settings...); peer.name == "stderr_closed" {
					stderr.Close() // the program that read it, a logger say, has ended
				}
			} else {
				s = startSidecar(t, c, nil, settings...)
			}
			if _, err := s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}); err != nil {
				t.Fatal(err)
			}
			if peer.begin != nil {
				peer.begin(t, s)
			}
			time.Sleep(time.Second) // what stalls fills every buffer on its way; there is no event that says so
			code, took := stopByTwoSignals(t, s)
			t.Logf("ended after %v with %d", took.Round(time.Millisecond), code)
			if took > stopDelay+stopGrace+stopBeside+stopBusy {
				t.Errorf("the stop took %v; want at most %v", took, stopDelay+stopGrace+stopBeside)
			}
			if code != peer.exit {
				t.Errorf("exit code %d; want %d\n%s", code, peer.exit, stand.LastLines(s.Process.Log(), 5))
			}
			if peer.name != "node_that_does_not_answer" {
				c.noSessions(t)
			} else {
				eventually(t, patience, "no session is left on nodes that answer", func() string {
					if left := c.perNode(t); left[1]+left[3] != 0 {
						return fmt.Sprint(left)
					}
					return ""
				})
			}
		})
	}
}

// stopByTwoSignals ends a sidecar and returns its exit code and how long that took.
func stopByTwoSignals(t *testing.T, s *sidecar) (code int, took time.Duration) {
	t.Helper()
	began := time.Now()
	// Process and group, as coreutils' timeout signals.
	for range 2 {
		if err := s.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	code, err := s.Process.Wait(ctx)
	took = time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	return code, took
}

// knock connects and sends something. Nothing more is done with the connection.
func knock(t *testing.T, address, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// fillWide creates a table whose rows are more than all buffers on the way to a client.
func fillWide(t *testing.T, s *sidecar) {
	t.Helper()
	if _, err := s.Execute(
		t.Context(), &sidecarv1.ExecuteRequest{Sql: "CREATE TABLE wide (id Uint64, payload Utf8, PRIMARY KEY (id))"},
	); err != nil {
		t.Fatal(err)
	}
	payload := &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: strings.Repeat("x", 100<<10)}}
	for part := range uint64(8) {
		request := &sidecarv1.BulkUpsertRequest{Table: "wide"}
		for id := range uint64(30) {
			request.Rows = append(request.Rows,
				&sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{"id": unsigned(part*100 + id), "payload": payload}})
		}
		if _, err := s.BulkUpsert(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
}

// startUnread starts a sidecar whose standard error is a full pipe that no process reads. It
// returns the end from which the pipe could be read.
func startUnread(t *testing.T, c *ydb, settings ...string) (*sidecar, *os.File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stderr")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	_ = pipe.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	for err == nil {
		_, err = pipe.Write(make([]byte, 4096))
	}
	args := []string{"-c", `exec "$0" "$@" 2>"$UNREAD"`, filepath.Join(bin, "sidecar"), "serve",
		"-ydb", c.Endpoint(), "-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0", "-admin", "127.0.0.1:0"}
	for _, setting := range settings {
		args = append(args, "-set", setting)
	}
	s := reach(t, standtest.Start(t, stand.Spec{Path: "/bin/sh", Args: args, Env: []string{"UNREAD=" + path}}))
	// Far more lines than the pipe and all that may wait for it hold.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 200 {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.HTTP+"/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	return s, pipe
}
