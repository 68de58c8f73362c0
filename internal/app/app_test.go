package app

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/lifecycle"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The walking skeleton: a query over both APIs, everything that operators can
// see of it, and an end that leaves nothing.
func TestServesAndLeavesNothing(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "pool.min=3")
	s.eventually("started", func() bool { status, _ := s.get("/startupz?deep=1"); return status == http.StatusOK })

	reply, err := s.query("SELECT 40 + 2 AS answer")
	if err != nil {
		t.Fatal(err)
	}
	if got := reply.Rows[0].Values[0].GetInt64Value(); got != 42 {
		t.Errorf("gRPC: %v; want 42", reply.Rows)
	}
	code, text := s.fetch("POST", "http://"+s.at.HTTP+"/v1/query", `{"sql":"SELECT 40 + 2 AS answer"}`)
	if code != http.StatusOK || !strings.Contains(text, `"answer":42`) {
		t.Errorf("HTTP: %d %s", code, text)
	}

	var pool snapshot.PoolState
	if s.state("/state/pool", &pool); pool.Max != 50 || pool.Sessions < 3 || !pool.Warm {
		t.Errorf("pool %+v", pool)
	}
	var nodes snapshot.NodesState
	s.state("/state/nodes", &nodes)
	if len(nodes.Nodes) != 3 || nodes.Panic || nodes.Discovery.Answered.IsZero() {
		t.Errorf("nodes %+v", nodes)
	}
	for _, n := range nodes.Nodes {
		if n.Health != "healthy" || n.Use != "new" || n.Sessions == 0 || n.Since.IsZero() {
			t.Errorf("node %+v", n)
		}
	}
	seen, err := s.client.Status(t.Context(), &sidecarv1.StatusRequest{})
	if err != nil || seen.State != "serving" || seen.Version != "1.2.3" || len(seen.Nodes) != 3 || seen.Pool.Max != 50 ||
		seen.Database != "/local" {
		t.Errorf("Status = %v, %v", seen, err)
	}
	_, metrics := s.get("/metrics")
	for _, want := range []string{
		`db_client_connection_count{db_client_connection_pool_name="/local",db_client_connection_state="idle"}`,
		`ydb_sidecar_node_health{ydb_node_id="1",ydb_sidecar_health="healthy"} 1`,
		`db_client_connection_wait_time_seconds_bucket{`, `le="1e-05"`, "db_client_operation_duration_seconds_bucket{",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	for _, node := range c.Sessions() {
		if node.NodeID == 0 {
			t.Errorf("session %+v", node)
		}
	}

	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if left := c.Sessions(); len(left) != 0 {
		t.Errorf("sessions left on the nodes: %s", count(c))
	}
}

func TestAClusterThatIsAwayStopsNothing(t *testing.T) {
	s := start(t, nowhere, "startup.wait=50ms", "discovery.retry_min=10ms", "discovery.retry_max=20ms", "discovery.min_pause=1ms")
	if code, text := s.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz = %d %s; want 200 although the database is away", code, text)
	}
	if code, text := s.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez = %d %s", code, text)
	}
	s.eventually("startup.wait goes by", func() bool { code, _ := s.get("/startupz"); return code == http.StatusOK })
	if code, text := s.get("/startupz?deep=1"); code != http.StatusServiceUnavailable || !strings.Contains(text, "no node is known") {
		t.Errorf("/startupz?deep=1 = %d %s", code, text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}); err == nil {
		t.Error("a query succeeded without a cluster")
	}
	s.eventually("the log says that the cluster is away", func() bool {
		return strings.Contains(s.log.String(), "discovery failed; no node is known yet")
	})
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestAClusterThatComesLate(t *testing.T) {
	config := devcluster.Default()
	address := freePort(t)
	s := start(t, "grpc://"+address+"/local", "discovery.retry_min=10ms", "discovery.retry_max=20ms",
		"discovery.min_pause=1ms", "ydb.connect_timeout=100ms")
	s.eventually("the cluster is missed", func() bool { return strings.Contains(s.log.String(), "discovery failed") })
	config.Nodes = 1
	at := netip.MustParseAddrPort(address)
	config.Host, config.Port = at.Addr().String(), int(at.Port())
	c, err := devcluster.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if left := c.Sessions(); len(left) != 0 {
		t.Errorf("sessions left: %s", count(c))
	}
}

func TestPortsInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c, settings, err := Load("", nil, []Assignment{
		{"grpc.listen=" + taken.Addr().String(), "t"}, {"http.listen=" + freePort(t), "t"}, {"admin.listen=" + taken.Addr().String(), "t"},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(c, settings, "", io.Discard)
	if line := FaultLine(err); !strings.Contains(line, "grpc.listen: ") || !strings.Contains(line, "admin.listen: ") ||
		!strings.Contains(line, "in use") {
		t.Errorf("New = %v; want both ports named", err)
	}
	again, err := net.Listen("tcp", c.HTTP.Listen)
	if err != nil {
		t.Fatalf("the port that was free is still held: %v", err)
	}
	again.Close()
}

func TestProbesAndGuards(t *testing.T) {
	s := start(t, nowhere, "admin.probes=127.0.0.1:0", "http.hosts=db.internal")
	for _, path := range []string{"/livez", "/readyz"} {
		if code, text := s.fetch("GET", "http://"+s.at.Probes+path, ""); code != http.StatusOK {
			t.Errorf("probes: GET %s = %d %s", path, code, text)
		}
	}
	if code, _ := s.fetch("GET", "http://"+s.at.Probes+"/metrics", ""); code != http.StatusNotFound {
		t.Errorf("probes: GET /metrics = %d; want 404", code)
	}
	for _, tc := range []struct {
		host, origin string
		want         bool
	}{
		{"localhost", "", true}, {"db.internal", "", true}, {"evil.example", "", false}, {"localhost", "https://evil.example", false},
	} {
		for _, url := range []string{"http://" + s.at.HTTP + "/v1/status", "http://" + s.at.Admin + "/state/nodes"} {
			request, err := http.NewRequest("GET", url, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Host = tc.host
			if tc.origin != "" {
				request.Header.Set("Origin", tc.origin)
			}
			response, err := s.http.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if (response.StatusCode == http.StatusOK) != tc.want {
				t.Errorf("GET %s with Host %q, Origin %q = %d; want it admitted: %v", url, tc.host, tc.origin, response.StatusCode, tc.want)
			}
		}
	}
}

func TestConfigDocumentHidesSecrets(t *testing.T) {
	s := start(t, nowhere, "ydb.auth.kind=token", "ydb.auth.token=s3cr3t-ticket")
	if _, text := s.get("/config"); strings.Contains(text, "s3cr3t") || !strings.Contains(text, `"pool.max"`) {
		t.Errorf("/config shows a secret or not enough:\n%s", text)
	}
	var build snapshot.Build
	if s.state("/buildinfo", &build); build.Version != "1.2.3" {
		t.Errorf("/buildinfo %+v", build)
	}
	s.stop()
	if strings.Contains(s.log.String(), "s3cr3t") {
		t.Error("the log shows a secret")
	}
}

func TestGRPCServices(t *testing.T) {
	s := start(t, nowhere)
	checker := healthv1.NewHealthClient(s.conn)
	for _, service := range []string{"", "sidecar.v1.Sidecar", "sidecar.v1.KeyValue"} {
		reply, err := checker.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		if err != nil || reply.Status != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", service, reply, err)
		}
	}
	stream, err := reflectionv1.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	if err != nil {
		t.Fatal(err)
	}
	reply, err := stream.Recv()
	if err != nil || !strings.Contains(reply.String(), "sidecar.v1.Sidecar") {
		t.Errorf("reflection: %v, %v", reply, err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}

	watch, err := checker.Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	s.signal()
	if reply, err := watch.Recv(); err != nil || reply.Status != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health after the signal: %v, %v", reply, err)
	}
}

// The verdict on a dead node reaches everybody, and so does its return.
func TestANodeThatDiesAndComesBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := start(t, c.Endpoint(), "pool.min=6", "discovery.min_pause=10ms")
	node := func(id cluster.NodeID) (n snapshot.NodeStateItem) {
		var nodes snapshot.NodesState
		s.state("/state/nodes", &nodes)
		for _, n := range nodes.Nodes {
			if n.ID == id {
				return n
			}
		}
		return snapshot.NodeStateItem{Use: "gone"}
	}
	s.eventually("sessions on node 2", func() bool { return node(2).Idle > 0 })
	c.Node(2).Kill()
	s.eventually("node 2 gets nothing new", func() bool {
		if _, err := s.query("SELECT 1"); err != nil {
			t.Fatalf("with one node of three gone: %v", err)
		}
		return node(2).Use != "new"
	})
	if n := node(2); n.Use != "gone" && n.Reason == "" {
		t.Errorf("no reason is given: %+v", n)
	}
	if err := c.Node(2).Start(); err != nil {
		t.Fatal(err)
	}
	s.eventually("node 2 is back with sessions",
		func() bool { n := node(2); return n.Use == "new" && n.Health == "healthy" && n.Sessions > 0 })
}

// A transaction that is open at the signal may be finished; nothing new begins;
// the process ends with the last transaction.
func TestStopWaitsForOpenTransactions(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "drain.grace=5m", "drain.idle=5m", "tx.idle=5m")
	if _, err := s.query("CREATE TABLE t (id Uint64 NOT NULL, v Utf8, PRIMARY KEY (id))"); err != nil {
		t.Fatal(err)
	}
	begun, err := s.client.Begin(t.Context(), &sidecarv1.BeginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	s.signal()
	s.eventually("not ready", func() bool { code, _ := s.get("/readyz"); return code == http.StatusServiceUnavailable })
	s.eventually("refuses", func() bool { _, err := s.query("SELECT 1"); return status.Code(err) == codes.Unavailable })
	code, text := s.fetch("POST", "http://"+s.at.HTTP+"/v1/query", `{"sql":"SELECT 1"}`)
	if code != http.StatusServiceUnavailable || !strings.Contains(text, `"DRAINING"`) {
		t.Errorf("HTTP: %d %s; want DRAINING", code, text)
	}
	if code, text := s.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez while draining = %d %s", code, text)
	}
	_, err = s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{
		Sql: "UPSERT INTO t (id, v) VALUES (1ul, 'x'u)", Tx: &sidecarv1.TxSelector{Id: begun.Tx.Id, Seq: 1},
	})
	if err != nil {
		t.Errorf("a statement of the open transaction: %v", err)
	}
	select {
	case <-s.ended:
		t.Fatal("ended with a transaction open")
	default:
	}
	if _, err := s.client.Commit(t.Context(), &sidecarv1.CommitRequest{Id: begun.Tx.Id}); err != nil {
		t.Errorf("commit: %v", err)
	}
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if left := c.Sessions(); len(left) != 0 {
		t.Errorf("sessions left: %s", count(c))
	}
	// Committed, as another sidecar sees.
	other := start(t, c.Endpoint())
	reply, err := other.query("SELECT v FROM t WHERE id = 1ul")
	if err != nil || len(reply.Rows) != 1 {
		t.Errorf("after the commit: %v, %v", reply, err)
	}
}

func TestGraceEndsWithATransactionOpen(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "drain.grace=50ms")
	if _, err := s.client.Begin(t.Context(), &sidecarv1.BeginRequest{}); err != nil {
		t.Fatal(err)
	}
	// What is cut off may take longer to end than the stop waits for it, which is said in other words.
	if err := s.stop(); err == nil ||
		!strings.Contains(err.Error(), "1 transactions rolled back") && !strings.Contains(err.Error(), "1 transactions cut off") {
		t.Errorf("Run = %v; want what was cut off", err)
	}
	if left := c.Sessions(); len(left) != 0 {
		t.Errorf("sessions left: %s", count(c))
	}
}

// The transaction of an SDK that nothing keeps attached is counted, too, when it is cut off.
func TestGraceEndsWithATransactionOfAnSDKOpen(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := start(t, c.Endpoint(), "drain.grace=50ms", "wire.mode=transaction", "wire.auth=own")
	sdk := Ydb_Query_V1.NewQueryServiceClient(s.conn)
	session, err := sdk.CreateSession(t.Context(), &Ydb_Query.CreateSessionRequest{})
	if err != nil {
		t.Fatal(err)
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
	if err := s.stop(); err == nil || !strings.Contains(err.Error(), "1 transactions of SDKs were cut off and rolled back") {
		t.Errorf("Run = %v; want what was cut off", err)
	}
	if left := c.Sessions(); len(left) != 0 {
		t.Errorf("sessions left: %s", count(c))
	}
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "drain.delay=1h", "drain.grace=1h")
	if _, err := s.client.Begin(t.Context(), &sidecarv1.BeginRequest{}); err != nil {
		t.Fatal(err)
	}
	s.signal()
	s.eventually("not ready", func() bool { code, _ := s.get("/readyz"); return code == http.StatusServiceUnavailable })
	if _, err := s.query("SELECT 1"); err != nil {
		t.Errorf("within drain.delay: %v; want everything served", err)
	}
	began := time.Now()
	s.again()
	if err := s.stop(); !errors.Is(err, lifecycle.ErrHurried) {
		t.Errorf("Run = %v; want ErrHurried", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %v; want an end at once, whatever drain.delay is", took)
	}
	if left := c.Sessions(); len(left) != 0 {
		t.Errorf("sessions left: %s", count(c))
	}
}

// stopAnswers is what callers heard while a sidecar stopped.
type stopAnswers struct {
	mu                        sync.Mutex // guards all below
	answers, refusals, unread int
	cut                       []string
}

func (a *stopAnswers) note(answered, refused bool, what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case answered:
		a.answers++
	case refused:
		a.refusals++
	default:
		a.cut = append(a.cut, what)
	}
}

func (a *stopAnswers) enough() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answers > 100
}

// overGRPC calls until it finds nobody.
func (a *stopAnswers) overGRPC(ctx context.Context, s *sidecar) {
	for ctx.Err() == nil {
		_, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
		gone := foundNobody(err)
		if !gone {
			a.note(err == nil, status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "stopping"), errText(err))
		}
		if gone {
			return
		}
	}
}

// overHTTP calls until it finds nobody.
func (a *stopAnswers) overHTTP(ctx context.Context, s *sidecar) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, "POST", "http://"+s.at.HTTP+"/v1/query", strings.NewReader(`{"sql":"SELECT 1"}`))
		if err != nil {
			s.Error(err)
			return
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) ||
			err != nil && strings.Contains(err.Error(), "server closed idle connection") {
			// HTTP/1.1 has no word to prevent that a request meets the end of a connection that
			// was idle: its sender may have paused until then. The nodes' count tells it from a lost answer.
			a.mu.Lock()
			a.unread++
			a.mu.Unlock()
			continue
		}
		if err != nil {
			if !foundNobody(err) {
				a.note(false, false, errText(err))
			}
			return
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		a.note(err == nil && response.StatusCode == http.StatusOK && json.Valid(text),
			err == nil && response.StatusCode == http.StatusServiceUnavailable, string(text)+errText(err))
	}
}

// Clients of every kind call on while the sidecar stops: each call is answered
// whole, refused in words, or finds nobody.
func TestStopUnderLoad(t *testing.T) {
	short.Skip(t, "it holds listeners under load")
	c := newCluster(t)
	s := start(t, c.Endpoint())
	statements := func() (n int64) {
		for id := range uint32(3) {
			n += c.Node(id + 1).Counters().Statements
		}
		return n
	}
	before := statements()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // every caller ends when it finds nobody
	defer cancel()
	var wait sync.WaitGroup
	var heard stopAnswers
	for range 4 {
		wait.Go(func() { heard.overGRPC(ctx, s) })
		wait.Go(func() { heard.overHTTP(ctx, s) })
	}
	s.eventually("enough calls are answered", func() bool { return heard.enough() })
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	wait.Wait()
	if ran := statements() - before; ran != int64(heard.answers) {
		t.Errorf("the nodes ran %d statements and the callers had the answers to %d", ran, heard.answers)
	}
	if len(heard.cut) > 0 {
		t.Errorf("%d answers were cut, the first with %s", len(heard.cut), heard.cut[0])
	}
	if left := c.Sessions(); len(left) != 0 {
		t.Errorf("sessions left: %s", count(c))
	}
	t.Logf("%d answers, %d refusals, %d requests were not read", heard.answers, heard.refusals, heard.unread)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// foundNobody reports whether connect(2) failed: refused, or reset when the
// listener closed in the middle of the handshake. Nothing was sent then.
func foundNobody(err error) bool {
	return err != nil &&
		(strings.Contains(err.Error(), "connect: connection refused") || strings.Contains(err.Error(), "connect: connection reset"))
}
