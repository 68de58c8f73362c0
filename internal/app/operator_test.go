package app

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"

	"github.com/ydb-sidecar/sidecar/internal/snapshot"
)

func (s *sidecar) post(path string) (int, string) {
	s.Helper()
	return s.fetch(http.MethodPost, "http://"+s.at.Admin+path, "")
}

func (s *sidecar) draining() (now snapshot.Progress) {
	s.Helper()
	s.state("/drain", &now)
	return now
}

func (s *sidecar) health() healthv1.HealthCheckResponse_ServingStatus {
	s.Helper()
	reply, err := healthv1.NewHealthClient(s.conn).Check(
		s.Context(), &healthv1.HealthCheckRequest{Service: sidecarv1.Sidecar_ServiceDesc.ServiceName},
	)
	if err != nil {
		s.Fatal(err)
	}
	return reply.Status
}

// TestLameDuckServesEverythingAndCanBeTakenBack sets the stage and takes it back.
// Long: each step needs the stage that the one before left.
func TestLameDuckServesEverythingAndCanBeTakenBack(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint())
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	if now := s.draining(); now.Stage != "serving" || now.Cause != "" || now.WaitsFor != "" {
		t.Errorf("before: %+v", now)
	}
	for range 2 { // idempotent
		code, text := s.post("/drain?mode=lameduck")
		if code != http.StatusOK || !strings.Contains(text, `"stage": "lame duck"`) {
			t.Fatalf("POST /drain?mode=lameduck = %d %s", code, text)
		}
	}
	if code, text := s.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "lame duck") {
		t.Errorf("/readyz = %d %s", code, text)
	}
	if code, _ := s.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez = %d", code)
	}
	if got := s.health(); got != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("grpc.health.v1: %v", got)
	}
	// Everything is served, also to those who come only now.
	conn, client := s.dial(t)
	defer conn.Close()
	begun, err := client.Begin(t.Context(), &sidecarv1.BeginRequest{})
	if err != nil {
		t.Fatalf("a new transaction of a new connection: %v", err)
	}
	if _, err := client.Commit(t.Context(), &sidecarv1.CommitRequest{Id: begun.Tx.Id}); err != nil {
		t.Error(err)
	}
	response, err := s.http.Post("http://"+s.at.HTTP+"/v1/query", "application/json", strings.NewReader(`{"sql":"SELECT 1"}`))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK || response.Close {
		t.Errorf("HTTP: %s, Connection: close is %v; want neither a refusal nor a goodbye", response.Status, response.Close)
	}

	if code, text := s.post("/drain?mode=off"); code != http.StatusOK || !strings.Contains(text, `"stage": "serving"`) {
		t.Errorf("POST /drain?mode=off = %d %s", code, text)
	}
	if code, text := s.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz after mode=off = %d %s", code, text)
	}
	if got := s.health(); got != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("grpc.health.v1 after mode=off: %v", got)
	}
	if code, _ := s.post("/drain?mode=lameduck"); code != http.StatusOK {
		t.Error("not a second time")
	}
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	for _, line := range []string{"lame duck: not ready", "no longer lame duck"} {
		if !strings.Contains(s.log.String(), line) {
			t.Errorf("the log lacks %q", line)
		}
	}
}

func (s *sidecar) dial(t *testing.T) (*grpc.ClientConn, sidecarv1.SidecarClient) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.at.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn, sidecarv1.NewSidecarClient(conn)
}

func TestDrainByOperatorShowsWhatItWaitsFor(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint())
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	begun, err := s.client.Begin(t.Context(), &sidecarv1.BeginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if code, text := s.post("/drain?mode=graceful&timeout=20s"); code != http.StatusOK {
		t.Fatalf("POST /drain?mode=graceful = %d %s", code, text)
	}
	s.eventually("draining", func() bool { return s.draining().Stage == "draining" })
	if _, metrics := s.get("/metrics"); !strings.Contains(metrics, `ydb_sidecar_drain_stage{ydb_sidecar_stage="draining"} 1`) ||
		!strings.Contains(metrics, `ydb_sidecar_drain_stage{ydb_sidecar_stage="serving"} 0`) ||
		!strings.Contains(metrics, "ydb_sidecar_drain_left_seconds 1") {
		t.Errorf("/metrics does not show that it drains:\n%s", metrics)
	}
	now := s.draining()
	if now.Transactions != 1 || now.Connections != 1 || now.Sessions < 1 || now.Cause != "asked by an operator" ||
		!strings.HasPrefix(now.WaitsFor, "1 transaction (if nothing is sent, rolled back within ") ||
		now.LeftMS <= 0 || now.LeftMS > 20_000 || now.Deadline.Sub(now.Since) != 20*time.Second {
		t.Errorf("progress %+v", now)
	}
	if _, err := s.query("SELECT 1"); status.Code(err) != codes.Unavailable {
		t.Errorf("something new: %v; want a refusal", err)
	}
	if code, text := s.post("/drain?mode=off"); code != http.StatusConflict || !strings.Contains(text, "cannot be taken back") {
		t.Errorf("POST /drain?mode=off = %d %s", code, text)
	}
	for _, mode := range []string{"lameduck", "graceful"} { // it is more than that already
		if code, text := s.post("/drain?mode=" + mode); code != http.StatusOK || !strings.Contains(text, `"stage": "draining"`) {
			t.Errorf("POST /drain?mode=%s = %d %s", mode, code, text)
		}
	}
	if _, err := s.client.Commit(t.Context(), &sidecarv1.CommitRequest{Id: begun.Tx.Id}); err != nil {
		t.Errorf("commit: %v", err)
	}
	<-s.ended
	if s.err != nil {
		t.Errorf("Run = %v", s.err)
	}
	if left := c.Sessions(); len(left) != 0 {
		t.Errorf("sessions left: %s", count(c))
	}
}

// A transaction that nobody sends anything for ends by its own clock, or by that
// of the stop, and that is an end in good order.
func TestStopLetsAnUnusedTransactionEndByItsClock(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"its_own": {"tx.idle=300ms"}, "that_of_the_stop": {"tx.idle=1h", "tx.max=1h", "drain.idle=300ms"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			s := start(t, c.Endpoint(), append(settings, "drain.grace=1h")...)
			if _, err := s.client.Begin(t.Context(), &sidecarv1.BeginRequest{}); err != nil {
				t.Fatal(err)
			}
			if err := s.stop(); err != nil {
				t.Errorf("Run = %v; want nil: nothing was cut off", err)
			}
			if left := c.Sessions(); len(left) != 0 {
				t.Errorf("sessions left: %s", count(c))
			}
		})
	}
}

// So does that of an SDK, whether a stream keeps its session or not.
func TestStopEndsUnusedTransactionsOfSDKs(t *testing.T) {
	t.Parallel()
	for _, attached := range []bool{false, true} {
		t.Run(map[bool]string{false: "on_its_own", true: "attached"}[attached], func(t *testing.T) {
			c := newCluster(t)
			s := start(t, c.Endpoint(), "wire.auth=own", "tx.idle=1h", "tx.max=1h", "drain.idle=300ms", "drain.grace=1h")
			sdk := Ydb_Query_V1.NewQueryServiceClient(s.conn)
			session, err := sdk.CreateSession(t.Context(), &Ydb_Query.CreateSessionRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if attached {
				stream, err := sdk.AttachSession(t.Context(), &Ydb_Query.AttachSessionRequest{SessionId: session.GetSessionId()})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := stream.Recv(); err != nil {
					t.Fatal(err)
				}
			}
			s.eventually("a transaction begins", func() bool {
				begun, err := sdk.BeginTransaction(
					t.Context(),
					&Ydb_Query.BeginTransactionRequest{SessionId: session.GetSessionId(), TxSettings: &Ydb_Query.TransactionSettings{
						TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{
							SerializableReadWrite: &Ydb_Query.SerializableModeSettings{},
						}}},
				)
				return err == nil && begun.GetTxMeta().GetId() != ""
			})
			if err := s.stop(); err != nil {
				t.Errorf("Run = %v; want nil: nothing was cut off", err)
			}
			if left := c.Sessions(); len(left) != 0 {
				t.Errorf("sessions left: %s", count(c))
			}
		})
	}
}

// Clients that sit on open connections and say nothing are let go: over gRPC by
// GOAWAY, so that they dial again for the next call, over HTTP/1.1 by a close.
func TestIdleClientsAreLetGo(t *testing.T) { soonStopped(t, stopWithIdleClients) }

func stopWithIdleClients(t *testing.T) (took time.Duration) {
	c := newCluster(t)
	s := start(t, c.Endpoint())
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	if code, _ := s.fetch("POST", "http://"+s.at.HTTP+"/v1/query", `{"sql":"SELECT 1"}`); code != http.StatusOK {
		t.Fatal("HTTP does not work")
	}
	if s.conn.GetState() != connectivity.Ready {
		t.Fatalf("the gRPC connection is %v", s.conn.GetState())
	}
	begun := time.Now()
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	took = time.Since(begun)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for state := s.conn.GetState(); state == connectivity.Ready; state = s.conn.GetState() {
		if !s.conn.WaitForStateChange(ctx, state) {
			t.Fatal("the gRPC client still holds its connection")
		}
	}
	return took
}

// A client that hangs does not react to GOAWAY. It has nothing open, so letting
// it go is no fault.
func TestAHungIdleClientIsNoFault(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := start(t, c.Endpoint())
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	conn, err := net.Dial("tcp", s.at.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // the server has accepted it
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestAdminSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "admin")
	s := start(t, nowhere, "admin.socket="+path, "admin.control=socket")
	for at, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Stat(at)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", at, info, err, want)
		}
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	response, err := client.Post("http://localhost/drain?mode=lameduck", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var now snapshot.Progress
	if err := json.NewDecoder(response.Body).Decode(&now); err != nil || now.Stage != "lame duck" {
		t.Errorf("over the socket: %s %+v, %v", response.Status, now, err)
	}
	response.Body.Close()
	if code, _ := s.post("/drain?mode=off"); code != http.StatusForbidden {
		t.Errorf("over TCP: %d; want 403", code)
	}
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("after the end: %v; want no socket", err)
	}
}

// Callers that wait in vain for a paused pool are told so, over both APIs: nobody looks for what is wrong with the cluster.
func TestCallersHearOfAPause(t *testing.T) {
	s := start(t, newCluster(t).Endpoint())
	s.knowsNodes()
	if code, text := s.post("/pool/pause"); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	_, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "100ms"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "paused by an operator") {
		t.Errorf("over gRPC: %v", err)
	}
	request, err := http.NewRequest(
		http.MethodPost, "http://"+s.at.HTTP+"/v1/query", strings.NewReader(`{"sql":"SELECT 1","timeout":"100ms"}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") != "1" ||
		!strings.Contains(string(text), "paused by an operator") || !strings.Contains(string(text), "sidecar resume") {
		t.Errorf("over HTTP: %d %s, %v", answer.StatusCode, text, err)
	}
}
