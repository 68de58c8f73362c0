package devcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

// post asks the control API and returns the code and the body.
func post(t testing.TB, c *Cluster, path, body string) (int, string) {
	t.Helper()
	return ask(t, http.MethodPost, "http://"+c.Control()+path, body)
}

func ask(t testing.TB, method, url, body string) (int, string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(testContext(t), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(bytes.TrimSpace(text))
}

func mustPost(t testing.TB, c *Cluster, path, body string) {
	t.Helper()
	if code, text := post(t, c, path, body); code != http.StatusOK {
		t.Fatalf("POST %s %s: %d %s", path, body, code, text)
	}
}

func nodesOf(t testing.TB, c *Cluster) []NodeInfo {
	t.Helper()
	var answer struct{ Nodes []NodeInfo }
	_, text := ask(t, http.MethodGet, "http://"+c.Control()+"/nodes", "")
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Nodes
}

func TestControlAPIShowsNodesAndSessions(t *testing.T) {
	cluster := startCluster(t, nil)
	a := dial(t, cluster.Node(2).Address()).open()
	nodes := nodesOf(t, cluster)
	if len(nodes) != 3 || nodes[1].ID != 2 || nodes[1].Address != cluster.Node(2).Address() || nodes[1].State != Up {
		t.Errorf("nodes %+v", nodes)
	}
	if c := nodes[1].Counters; c.Sessions != 1 || c.Owned != 1 || c.Calls != 2 {
		t.Errorf("counters %+v", c)
	}
	_, text := ask(t, http.MethodGet, "http://"+cluster.Control()+"/sessions", "")
	var answer struct{ Sessions []SessionInfo }
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatal(err)
	}
	if len(answer.Sessions) != 1 || answer.Sessions[0].ID != a.id || answer.Sessions[0].NodeID != 2 || answer.Sessions[0].State != "idle" {
		t.Errorf("sessions %s", text)
	}
}

func TestControlAPIRefusesNonsense(t *testing.T) {
	cluster := startCluster(t, nil)
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{"/nodes/9/kill", "", 404},
		{"/nodes/x/kill", "", 404},
		{"/nodes/1/explode", "", 404},
		{"/nodes/1/hint", `{"session":"ydb://none"}`, 400},
		{"/nodes/1/kick", `{"session":"ydb://none"}`, 400},
		{"/nodes/1/drain", `{"mode":"loud"}`, 400},
		{"/nodes/1/drain", `{"soft":"2s","hard":"1s"}`, 400},
		{"/nodes/1/drain", `{"hints":true,"soft":"2s"}`, 400},
		{"/nodes/1/delay", `{"delay":"fast"}`, 400},
		{"/nodes/1/delay", `{"delay":"-1s"}`, 400},
		{"/nodes/1/delay", `{"delay":"1s","share":2}`, 400},
		{"/nodes/1/delay", `{"dealy":"1s"}`, 400},
		{"/nodes/1/delay", `{`, 400},
		{"/nodes/1/delay", `{"delay":"1s","from":"nowhere"}`, 400},
		{"/nodes/1/hop", `{"delay":"-1s"}`, 400},
		{"/nodes/1/hop", `{"near":"-1s"}`, 400},
		{"/nodes/1/errors", `{"status":"BROKEN"}`, 400},
		{"/nodes/1/errors", `{"status":"SUCCESS"}`, 400},
		{"/nodes/1/errors", `{"status":"grpc:NONE"}`, 400},
		{"/nodes/1/errors", `{"status":"OVERLOADED","share":-1}`, 400},
		{"/nodes/1/cut", `{"share":7}`, 400},
		{"/nodes/1/limit", `{}`, 400},
		{"/nodes/1/limit", `{"sessions":-1}`, 400},
		{"/nodes/1/throttle", `{}`, 400},
		{"/nodes/1/throttle", `{"bytes_per_second":-1}`, 400},
		{"/nodes/1/load", `{}`, 400},
		{"/nodes/1/load", `{"factor":1.5}`, 400},
		{"/nodes/1/advertise", `{"address":"nowhere"}`, 400},
		{"/nodes/1/pause", ``, 400}, // it is no process
		{"/nodes", `{"location":1}`, 400},
	} {
		if code, text := post(t, cluster, c.path, c.body); code != c.want || !strings.Contains(text, `"error"`) {
			t.Errorf("POST %s %s: %d %s; want %d", c.path, c.body, code, text, c.want)
		}
	}
	cluster.Node(1).Kill()
	for _, action := range []string{"delay", "hop", "errors", "cut", "limit", "hint", "kick", "blackhole", "refuse",
		"throttle", "load", "clear"} {
		body := `{"status":"OVERLOADED","sessions":1,"bytes_per_second":1,"factor":1}`
		if code, text := post(t, cluster, "/nodes/1/"+action, body); code != 400 || !strings.Contains(text, "killed") {
			t.Errorf("%s of a dead node: %d %s", action, code, text)
		}
	}
}

func TestControlAPIRefusesWebPages(t *testing.T) {
	cluster := startCluster(t, nil)
	for name, value := range map[string]string{"Origin": "https://example.com", "Sec-Fetch-Site": "cross-site",
		"Host": "rebound.example.com"} {
		request, err := http.NewRequestWithContext(testContext(t), http.MethodPost, "http://"+cluster.Control()+"/nodes/1/kill", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(name, value)
		if name == "Host" {
			request.Host = value
		}
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusForbidden || cluster.Node(1).State() != Up {
			t.Errorf("%s: %s got %s", name, value, response.Status)
		}
	}
}

func TestKillLooksLikeADeath(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	a := c.open()
	a.begin(serializable())
	raw, err := net.Dial("tcp", cluster.Node(1).Address())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	mustPost(t, cluster, "/nodes/1/kill", "")
	if _, err := a.states.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("attach stream: %v; want a broken connection", err)
	}
	if _, err := io.Copy(io.Discard, raw); err == nil {
		t.Error("an idle connection ended in good order; want a reset")
	}
	if conn, err := net.Dial("tcp", cluster.Node(1).Address()); err == nil {
		conn.Close()
		t.Error("the port still listens")
	}
	if n := nodesOf(t, cluster)[0]; n.State != Killed || n.Counters != (Counters{}) {
		t.Errorf("node %+v", n)
	}
	if got := cluster.Sessions(); len(got) != 0 {
		t.Errorf("sessions left: %v", got)
	}
	address := cluster.Node(1).Address()
	mustPost(t, cluster, "/nodes/1/start", "")
	if cluster.Node(1).Address() != address {
		t.Error("the node came back at another address")
	}
	await.True(t, "the node serves again", func() bool {
		s, err := c.query.CreateSession(testContext(t), &Ydb_Query.CreateSessionRequest{})
		return err == nil && s.GetStatus() == Ydb.StatusIds_SUCCESS
	})
	if s := c.attach(a.id).next(); s.GetStatus() != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("session of the former life: %v", s)
	}
	if n := len(c.endpoints()); n != 3 {
		t.Errorf("discovery lists %d nodes", n)
	}
}

func TestStopEndsCallsWithAnAnswer(t *testing.T) {
	cluster := startCluster(t, func(c *Config) { c.StopGrace = patience })
	c := dial(t, cluster.Node(1).Address())
	a := c.open()
	if err := cluster.Node(1).Delay(Delay{Delay: time.Hour, Share: 1, Methods: []string{"BeginTransaction"}}); err != nil {
		t.Fatal(err)
	}
	done := make(chan *Ydb_Query.BeginTransactionResponse)
	go func() {
		r, err := c.query.BeginTransaction(testContext(t), &Ydb_Query.BeginTransactionRequest{SessionId: a.id, TxSettings: serializable()})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	await.True(t, "the call arrives", func() bool { return cluster.Node(1).Counters().Calls == 3 })
	mustPost(t, cluster, "/nodes/1/stop", "")
	if r := <-done; r.GetStatus() != Ydb.StatusIds_UNAVAILABLE {
		t.Errorf("call in flight: %v", r)
	}
	a.ended()
	if n := len(dial(t, cluster.Node(2).Address()).endpoints()); n != 2 {
		t.Errorf("discovery lists %d nodes", n)
	}
	mustPost(t, cluster, "/nodes/1/stop", "") // again is no error
	mustPost(t, cluster, "/nodes/1/start", "")
	mustPost(t, cluster, "/nodes/1/start", "")
	if got := cluster.Node(1).State(); got != Up {
		t.Errorf("state %v", got)
	}
}

func TestInjectedErrors(t *testing.T) {
	cluster := startCluster(t, nil)
	a := dial(t, cluster.Node(1).Address()).open()
	tx := a.begin(serializable()).GetTxMeta().GetId()
	mustPost(t, cluster, "/nodes/1/errors", `{"status":"OVERLOADED","methods":["ExecuteQuery"]}`)
	a.must(Ydb.StatusIds_OVERLOADED, "SELECT 1", inside(tx, false))
	if got := a.commit(tx); got != Ydb.StatusIds_NOT_FOUND {
		t.Errorf("the error left the transaction open: %v", got)
	}
	mustPost(t, cluster, "/nodes/1/errors",
		`{"status":"UNDETERMINED","methods":["Ydb.Query.V1.QueryService/CommitTransaction"],"after":true}`)
	tx = a.begin(serializable()).GetTxMeta().GetId()
	if got := a.commit(tx); got != Ydb.StatusIds_UNDETERMINED {
		t.Errorf("commit: %v", got)
	}
	if got := cluster.Node(1).Counters().Commits; got != 1 {
		t.Errorf("%d commits; the call was to run", got)
	}
	mustPost(t, cluster, "/nodes/1/errors", `{"status":"grpc:internal"}`)
	if _, err := a.c.query.BeginTransaction(
		testContext(t), &Ydb_Query.BeginTransactionRequest{SessionId: a.id, TxSettings: serializable()},
	); status.Code(err) != codes.Internal {
		t.Errorf("transport error: %v", err)
	}
	mustPost(t, cluster, "/nodes/1/clear", "")
	if got := a.begin(serializable()).GetStatus(); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("after clear: %v", got)
	}
}

func TestInjectedDelay(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	c.endpoints() // connects
	mustPost(t, cluster, "/nodes/1/delay", `{"delay":"50ms","share":1,"methods":["CreateSession"]}`)
	start := time.Now()
	c.createSession()
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("took %v", took)
	}
	mustPost(t, cluster, "/nodes/1/delay", `{"delay":"1h"}`)
	ctx, cancel := context.WithTimeout(testContext(t), 20*time.Millisecond)
	defer cancel()
	if _, err := c.query.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("deadline of the caller: %v", err)
	}
}

func TestSharesAreShares(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	mustPost(t, cluster, "/nodes/1/errors", `{"status":"OVERLOADED","share":0.5}`)
	failed := 0
	for range 400 {
		r, err := c.discovery.ListEndpoints(testContext(t), &Ydb_Discovery.ListEndpointsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if r.GetOperation().GetStatus() == Ydb.StatusIds_OVERLOADED {
			failed++
		}
	}
	if failed < 120 || failed > 280 { // 8 standard deviations
		t.Errorf("%d of 400 calls failed; want about half", failed)
	}
}

func TestLocationAndLoadOfANode(t *testing.T) {
	cluster := startCluster(t, func(c *Config) { c.Locations = []string{"a", "b"} })
	mustPost(t, cluster, "/nodes", `{"location":"z"}`)
	mustPost(t, cluster, "/nodes", "")
	mustPost(t, cluster, "/nodes/2/load", `{"factor":0.75}`)
	said := func() (got []string) {
		for _, e := range dial(t, cluster.Node(1).Address()).endpoints() {
			got = append(got, fmt.Sprintf("%s %v", e.GetLocation(), e.GetLoadFactor()))
		}
		return got
	}
	if got, want := said(), []string{"a 0", "b 0.75", "a 0", "z 0", "a 0"}; !slices.Equal(got, want) {
		t.Errorf("discovery says %q; want %q", got, want)
	}
	mustPost(t, cluster, "/nodes/2/advertise", `{"address":"proxy.example:99"}`)
	cluster.Node(2).Kill()
	if err := cluster.Node(2).Start(); err != nil {
		t.Fatal(err)
	}
	if got := said()[1]; got != "b 0" {
		t.Errorf("another life has %q; want b 0", got)
	}
	if e := dial(t, cluster.Node(1).Address()).endpoints()[1]; e.GetAddress() != "proxy.example" || e.GetPort() != 99 {
		t.Errorf("discovery says %v; want the proxy's address also of another life", e)
	}
}

func TestRefuse(t *testing.T) {
	cluster := startCluster(t, nil)
	c, other := dial(t, cluster.Node(1).Address()), dial(t, cluster.Node(2).Address())
	id := c.tableSession()
	mustPost(t, cluster, "/nodes/1/refuse", "")
	if conn, err := net.Dial("tcp", cluster.Node(1).Address()); err == nil {
		conn.Close()
		t.Error("the port still listens")
	}
	if _, err := c.table.CreateSession(testContext(t), &Ydb_Table.CreateSessionRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("call: %v", err)
	}
	r, err := other.table.KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: id})
	if err != nil || r.GetOperation().GetStatus() != Ydb.StatusIds_SUCCESS {
		t.Errorf("through another node: %v, %v", r, err)
	}
	if n := len(other.endpoints()); n != 3 {
		t.Errorf("discovery lists %d nodes", n)
	}
	mustPost(t, cluster, "/nodes/1/clear", "")
	await.True(t, "calls work again", func() bool {
		_, err := c.table.CreateSession(testContext(t), &Ydb_Table.CreateSessionRequest{})
		return err == nil
	})
}

func TestLimit(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	c.tableSession()
	mustPost(t, cluster, "/nodes/1/limit", `{"sessions":2}`)
	c.tableSession()
	if got := c.createSession().GetStatus(); got != Ydb.StatusIds_OVERLOADED {
		t.Errorf("one too many: %v", got)
	}
	mustPost(t, cluster, "/nodes/1/clear", "")
	c.tableSession()
}

func TestAddedNodes(t *testing.T) {
	cluster := startCluster(t, nil)
	code, text := post(t, cluster, "/nodes", "")
	var added NodeInfo
	if err := json.Unmarshal([]byte(text), &added); err != nil || code != http.StatusOK || added.ID != 4 {
		t.Fatalf("POST /nodes: %d %s", code, text)
	}
	dial(t, added.Address).open()
	if n := len(dial(t, cluster.Node(1).Address()).endpoints()); n != 4 {
		t.Errorf("discovery lists %d nodes", n)
	}
	for range MaxNodes - 4 {
		mustPost(t, cluster, "/nodes", "")
	}
	if code, text := post(t, cluster, "/nodes", ""); code == http.StatusOK {
		t.Errorf("more than %d nodes: %s", MaxNodes, text)
	}
}

func FuzzAction(f *testing.F) {
	f.Add("delay", []byte(`{"delay":"1ms","share":0.5,"methods":["ExecuteQuery"]}`))
	f.Add("errors", []byte(`{"status":"OVERLOADED","after":true}`))
	f.Add("drain", []byte(`{"hints":true,"grace":"1h"}`))
	f.Add("drain", []byte(`{"mode":"silent","soft":"1s","hard":"1h"}`))
	f.Add("limit", []byte(`{"sessions":3}`))
	f.Add("hint", []byte(`{"session":"ydb://session/3?node_id=1&id=QUJD"}`))
	f.Add("blackhole", []byte(` `))
	cluster := startCluster(f, func(c *Config) { c.Nodes = 1 })
	f.Fuzz(func(t *testing.T, action string, body []byte) {
		err := cluster.Act(t.Context(), 1, action, body)
		if err == nil {
			return
		}
		if _, ok := errors.AsType[*RequestError](err); !ok {
			t.Errorf("%s %q: %v", action, body, err)
		}
	})
}

func TestStartFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	config := Default()
	config.Control = l.Addr().String()
	if c, err := Start(config); err == nil {
		c.Close()
		t.Error("the control API's port is taken, but Start succeeded")
	}
	config = Default()
	config.Nodes, config.Sessions, config.Database = 99, 0, "local"
	_, err = Start(config)
	for _, word := range []string{"nodes = 99", "sessions = 0", `database = "local"`} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v; want all faults, among them %s", err, word)
		}
	}
}
