package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// asProgram makes this test binary behave as the program, so that tests can
// start it, and its -processes can start themselves.
const asProgram = "DEVCLUSTER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

const patience = time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// program is a running devcluster.
type program struct {
	t      testing.TB
	cmd    *exec.Cmd
	ready  devcluster.Ready
	stderr *lockedBuffer
	exited chan error    // its error
	gone   chan struct{} // closed after that
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// endsWhole ends the supervisor, and fails if a node outlives it.
func (p *program) endsWhole(t *testing.T) {
	t.Helper()
	nodes := p.nodes()
	if err := p.terminate(); err != nil {
		t.Errorf("exit: %v", err)
	}
	for _, n := range nodes {
		if n.PID != 0 && alive(n.PID) {
			t.Errorf("node %d outlives the supervisor", n.ID)
		}
	}
}

// launch starts the program and waits for its ready line.
func launch(t testing.TB, args ...string) *program {
	t.Helper()
	p := &program{t: t, stderr: &lockedBuffer{}, exited: make(chan error, 1), gone: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], append([]string{"-port", "0"}, args...)...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.ready)
	}
	go func() {
		p.exited <- p.cmd.Wait()
		close(p.gone)
	}()
	if err != nil {
		<-p.exited
		t.Fatalf("not ready: %v\n%s", err, p.stderr)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // an error means that it is gone
		<-p.gone
		http.DefaultClient.CloseIdleConnections()
		if t.Failed() {
			t.Logf("log of the program:\n%s", p.stderr)
		}
	})
	return p
}

// terminate asks the program to stop and returns its error.
func (p *program) terminate() error {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	return p.wait()
}

func (p *program) wait() error {
	p.t.Helper()
	select {
	case err := <-p.exited:
		return err
	case <-time.After(patience):
		p.t.Fatal("the program does not end")
		return nil
	}
}

func (p *program) post(path, body string) {
	p.t.Helper()
	r, err := http.Post("http://"+p.ready.Control+path, "application/json", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	if text, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK {
		p.t.Fatalf("POST %s: %s %s %v", path, r.Status, text, err)
	}
}

func (p *program) get(path string, into any) {
	p.t.Helper()
	r, err := http.Get("http://" + p.ready.Control + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		p.t.Fatal(err)
	}
}

func (p *program) nodes() []devcluster.NodeInfo {
	p.t.Helper()
	var answer struct{ Nodes []devcluster.NodeInfo }
	p.get("/nodes", &answer)
	return answer.Nodes
}

func dial(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// listed is the ids of the nodes in the discovery of the node at address.
func listed(t testing.TB, address string) string {
	t.Helper()
	var ids []string
	for _, e := range endpoints(t, address) {
		ids = append(ids, fmt.Sprint(e.GetNodeId()))
	}
	return strings.Join(ids, " ")
}

// addresses is the same for their addresses.
func addresses(t testing.TB, address string) (list []string) {
	t.Helper()
	for _, e := range endpoints(t, address) {
		list = append(list, fmt.Sprintf("%s:%d", e.GetAddress(), e.GetPort()))
	}
	return list
}

func endpoints(t testing.TB, address string) []*Ydb_Discovery.EndpointInfo {
	t.Helper()
	r, err := Ydb_Discovery_V1.NewDiscoveryServiceClient(dial(t, address)).
		ListEndpoints(testContext(t), &Ydb_Discovery.ListEndpointsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	result := &Ydb_Discovery.ListEndpointsResult{}
	if err := r.GetOperation().GetResult().UnmarshalTo(result); err != nil {
		t.Fatal(err)
	}
	return result.GetEndpoints()
}

func tableSession(t testing.TB, address string) string {
	t.Helper()
	r, err := Ydb_Table_V1.NewTableServiceClient(dial(t, address)).
		CreateSession(testContext(t), &Ydb_Table.CreateSessionRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	result := &Ydb_Table.CreateSessionResult{}
	if err := r.GetOperation().GetResult().UnmarshalTo(result); err != nil {
		t.Fatal(err)
	}
	return result.GetSessionId()
}

func keepAlive(t testing.TB, address, id string) Ydb.StatusIds_StatusCode {
	t.Helper()
	r, err := Ydb_Table_V1.NewTableServiceClient(dial(t, address)).
		KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: id}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return r.GetOperation().GetStatus()
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestOneProcess(t *testing.T) {
	p := launch(t, "-control", "127.0.0.1:0", "-log", "text")
	if !p.ready.Ready || len(p.ready.Nodes) != 3 || p.ready.Endpoint != "grpc://"+p.ready.Nodes[0].Address+"/local" {
		t.Fatalf("ready line %+v", p.ready)
	}
	for _, n := range p.ready.Nodes {
		if got := listed(t, n.Address); got != "1 2 3" {
			t.Errorf("node %d lists %s", n.ID, got)
		}
	}
	if err := p.terminate(); err != nil {
		t.Errorf("exit: %v", err)
	}
}

func TestProcesses(t *testing.T) {
	p := launch(t, "-control", "127.0.0.1:0", "-processes", "-hop-delay", "1ms")
	nodes := p.nodes()
	seen := map[int]bool{p.cmd.Process.Pid: true}
	for i, n := range nodes {
		if n.PID == 0 || seen[n.PID] || n.State != devcluster.Up || n.Address != p.ready.Nodes[i].Address {
			t.Errorf("node %+v", n)
		}
		seen[n.PID] = true
		if got := listed(t, n.Address); got != "1 2 3" {
			t.Errorf("node %d lists %s", n.ID, got)
		}
	}
	address := func(id int) string { return p.ready.Nodes[id-1].Address }

	// A call on a session of node 2 works through node 1, over the real hop.
	id := tableSession(t, address(2))
	if got := keepAlive(t, address(1), id); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("through another node: %v", got)
	}
	nodes = p.nodes()
	if nodes[0].Counters.Forwarded != 1 || nodes[1].Counters.Received != 1 || nodes[1].Counters.Sessions != 1 {
		t.Errorf("counters %+v, %+v", nodes[0].Counters, nodes[1].Counters)
	}
	var sessions struct{ Sessions []devcluster.SessionInfo }
	if p.get("/sessions", &sessions); len(sessions.Sessions) != 1 || sessions.Sessions[0].ID != id {
		t.Errorf("sessions %+v", sessions)
	}

	// Faults reach the node.
	p.post("/nodes/2/limit", `{"sessions":1}`)
	r, err := Ydb_Table_V1.NewTableServiceClient(dial(t, address(2))).CreateSession(testContext(t), &Ydb_Table.CreateSessionRequest{})
	if err != nil || r.GetOperation().GetStatus() != Ydb.StatusIds_OVERLOADED {
		t.Errorf("beyond the limit: %v, %v", r, err)
	}

	processesComeAndGo(t, p, id)
	p.endsWhole(t)
}

// processesComeAndGo kills nodes and starts them again; id is a session of node 2.
func processesComeAndGo(t *testing.T, p *program, id string) {
	t.Helper()
	nodes := p.nodes()
	address := func(id int) string { return p.ready.Nodes[id-1].Address }

	// SIGKILL, by the control API and from outside: both leave discovery everywhere.
	p.post("/nodes/2/kill", "")
	if alive(nodes[1].PID) {
		t.Error("the process lives")
	}
	if got := listed(t, address(1)) + "/" + listed(t, address(3)); got != "1 3/1 3" {
		t.Errorf("after kill the others list %s", got)
	}
	if got := keepAlive(t, address(1), id); got != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("session of the dead node: %v", got)
	}
	if err := syscall.Kill(nodes[2].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the supervisor notices", func() bool { return listed(t, address(1)) == "1" })
	if n := p.nodes()[2]; n.State != devcluster.Killed || n.PID != 0 {
		t.Errorf("node %+v", n)
	}

	// Back again, at the same address; one more; one less.
	p.post("/nodes/2/start", "")
	p.post("/nodes/3/start", "")
	p.post("/nodes", "")
	if got := listed(t, address(2)); got != "1 2 3 4" || p.nodes()[1].Address != address(2) {
		t.Errorf("after start and add node 2 lists %s", got)
	}
	p.post("/nodes/4/drain", `{"soft":"1ms","hard":"1ms"}`)
	await.True(t, "the drained node stops", func() bool { return p.nodes()[3].State == devcluster.Stopped })
	p.post("/nodes/3/stop", "")
	p.post("/nodes/3/stop", "")
	if got := listed(t, address(1)); got != "1 2" {
		t.Errorf("after stop node 1 lists %s", got)
	}
}

func TestPausedNode(t *testing.T) {
	p := launch(t, "-control", "127.0.0.1:0", "-processes", "-locations", "a,b")
	address := func(id int) string { return p.ready.Nodes[id-1].Address }
	id := tableSession(t, address(2))
	create(t, address(1))
	p.post("/nodes/2/pause", "")
	p.post("/nodes/2/pause", "") // again is no error
	n := p.nodes()[1]
	if n.State != devcluster.Paused {
		t.Errorf("node %+v; want it paused", n)
	}
	await.True(t, "the process is stopped", func() bool { return processState(t, n.PID) == "T" }) // a signal comes later
	if got := listed(t, address(1)); got != "1 2 3" {
		t.Errorf("node 1 lists %s; want the paused one as well", got)
	}
	conn, err := net.DialTimeout("tcp", address(2), patience)
	if err != nil {
		t.Errorf("the kernel does not answer for a paused node: %v", err)
	} else {
		conn.Close()
	}
	// It holds no lock: the others write, and can be asked and changed.
	create(t, address(3))
	var sessions struct{ Sessions []devcluster.SessionInfo }
	if p.get("/sessions", &sessions); len(sessions.Sessions) != 2 {
		t.Errorf("sessions of the others: %+v", sessions)
	}
	p.post("/nodes", `{"location":"z"}`)
	if n := p.nodes()[3]; n.Location != "z" {
		t.Errorf("node %+v; want location z", n)
	}
	p.post("/nodes/2/resume", "")
	p.post("/nodes/2/resume", "")
	if got := keepAlive(t, address(2), id); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("its session after it went on: %v", got)
	}
	create(t, address(2)) // it may write again
	if got := listed(t, address(2)); got != "1 2 3 4" {
		t.Errorf("it lists %s; want the node that came meanwhile", got)
	}
	p.post("/nodes/2/load", `{"factor":0.5}`)
	p.post("/nodes/2/advertise", `{"address":"127.0.0.1:1"}`)
	p.post("/nodes/2/pause", "")
	p.post("/nodes/2/kill", "")
	p.post("/nodes/2/start", "")
	for _, asked := range []int{1, 2} {
		if got := addresses(t, address(asked)); got[1] != "127.0.0.1:1" || got[0] != address(1) {
			t.Errorf("node %d lists %v; want the address that node 2 was given", asked, got)
		}
	}
	p.post("/nodes/2/kill", "")
	p.post("/nodes/2/start", "") // the second start with another address: it listens where it did
	if n := p.nodes()[1]; n.Address != address(2) {
		t.Errorf("node %+v; want it at %s", n, address(2))
	}
	p.post("/nodes/2/pause", "")
	p.post("/nodes/2/stop", "") // ends in good order all the same
	p.post("/nodes/3/pause", "")
	p.endsWhole(t)
}

// A stopped process does not see that its standard input ended.
func TestPausedNodeDiesWithItsSupervisor(t *testing.T) {
	p := launch(t, "-control", "127.0.0.1:0", "-processes", "-nodes", "1")
	pid := p.nodes()[0].PID
	p.post("/nodes/1/pause", "")
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.wait() // it was killed
	await.True(t, "the node ends", func() bool { return !alive(pid) })
}

// processState is the letter that the kernel has for what a process does; T is stopped.
func processState(t testing.TB, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[0]
}

// create makes a table of a new name through a node: a write.
func create(t testing.TB, address string) {
	t.Helper()
	client := Ydb_Table_V1.NewTableServiceClient(dial(t, address))
	r, err := client.ExecuteSchemeQuery(testContext(t), &Ydb_Table.ExecuteSchemeQueryRequest{
		SessionId: tableSession(t, address), YqlText: fmt.Sprintf("CREATE TABLE t%d (id Uint64, PRIMARY KEY (id))", tables.Add(1))})
	if err != nil || r.GetOperation().GetStatus() != Ydb.StatusIds_SUCCESS {
		t.Fatalf("create a table: %v, %v", r, err)
	}
}

var tables atomic.Int64

func TestNodesDieWithTheirSupervisor(t *testing.T) {
	p := launch(t, "-control", "127.0.0.1:0", "-processes", "-nodes", "2")
	nodes := p.nodes()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.wait() // it was killed
	for _, n := range nodes {
		await.True(t, "the node ends", func() bool { return !alive(n.PID) })
	}
}

func TestNodesStartedByHand(t *testing.T) {
	data := t.TempDir() + "/data"
	first := launch(t, "-node", "1", "-data", data)
	if len(first.ready.Nodes) != 1 || first.ready.Control != "" {
		t.Fatalf("ready line %+v", first.ready)
	}
	one := first.ready.Nodes[0].Address
	second := launch(t, "-node", "2", "-data", data, "-peers", "1="+one)
	two := second.ready.Nodes[0].Address
	await.True(t, "node 2 sees node 1", func() bool { return listed(t, two) == "1 2" })
	if got := keepAlive(t, two, tableSession(t, one)); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("session of node 1 through node 2: %v", got)
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "node 2 misses node 1", func() bool { return listed(t, two) == "2" })
	if err := second.terminate(); err != nil {
		t.Errorf("exit: %v", err)
	}
}

func TestWrongCommandLines(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"-nodes", "99", "-sessions", "0"}, []string{"nodes = 99", "sessions = 0"}},
		{[]string{"-log", "xml"}, []string{"-log"}},
		{[]string{"-unknown"}, []string{"-unknown"}},
		{[]string{"extra"}, []string{"extra"}},
		{[]string{"-node", "2", "-processes"}, []string{"exclude"}},
		{[]string{"-peers", "1=127.0.0.1:1"}, []string{"-peers needs"}},
		{[]string{"-node", "2", "-peers", "1"}, []string{"id=host:port"}},
		{[]string{"-user", "root"}, []string{"name:password"}},
		{[]string{"-tls-cert", "none"}, []string{"-tls-cert"}},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), c.args, strings.NewReader(""), &stdout, &stderr); code != exitUsage || stdout.Len() > 0 {
			t.Errorf("%v: exit %d, stdout %q", c.args, code, &stdout)
		}
		for _, word := range c.want {
			if !strings.Contains(stderr.String(), word) {
				t.Errorf("%v: %q; want %q in it", c.args, &stderr, word)
			}
		}
	}
}

func FuzzParsePeers(f *testing.F) {
	f.Add("1=127.0.0.1:2136,2=127.0.0.1:2137")
	f.Add("1=,=,x")
	f.Fuzz(func(t *testing.T, v string) {
		peers, err := parsePeers(v)
		if err == nil && len(peers) > strings.Count(v, ",")+1 {
			t.Errorf("%q: %v", v, peers)
		}
	})
}

func TestPortInUse(t *testing.T) {
	p := launch(t, "-control", "127.0.0.1:0", "-nodes", "1")
	for _, args := range [][]string{
		{"-port", "0", "-control", p.ready.Control},
		{"-port", p.ready.Nodes[0].Address[strings.LastIndex(p.ready.Nodes[0].Address, ":")+1:], "-control", ""},
		{"-port", "0", "-control", p.ready.Control, "-processes"},
	} {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if err == nil || cmd.ProcessState.ExitCode() != exitFailed || stdout.Len() > 0 {
			t.Errorf("%v: %v, stdout %q", args, err, &stdout)
		}
		if !strings.Contains(stderr.String(), "address already in use") {
			t.Errorf("%v: %q", args, &stderr)
		}
	}
}

func TestHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"-h"}, strings.NewReader(""), &stdout, &stderr); code != 0 ||
		!strings.Contains(stderr.String(), "-hop-delay") {
		t.Errorf("exit %d: %s", code, &stderr)
	}
}

// Faults of a table strike on every process, also one that starts later.
func TestFaultsOfProcesses(t *testing.T) {
	p := launch(t, "-control", "127.0.0.1:0", "-processes", "-nodes", "2")
	read := func(node int) Ydb.StatusIds_StatusCode {
		t.Helper()
		r, err := Ydb_Table_V1.NewTableServiceClient(dial(t, p.ready.Nodes[node].Address)).ReadRows(
			testContext(t), &Ydb_Table.ReadRowsRequest{Path: "/local/t"},
		)
		if err != nil {
			t.Fatal(err)
		}
		return r.GetStatus()
	}
	p.post("/faults", `{"kind":"hot_shard","table":"t"}`)
	p.post("/nodes/2/kill", "")
	p.post("/nodes/2/start", "")
	for node := range 2 {
		if got := read(node); got != Ydb.StatusIds_OVERLOADED {
			t.Errorf("node %d reads a hot table: %v", node+1, got)
		}
	}
	var answer struct{ Faults []devcluster.Fault }
	p.get("/faults", &answer)
	if len(answer.Faults) != 1 {
		t.Fatalf("faults %+v", answer.Faults)
	}
	request, err := http.NewRequestWithContext(
		testContext(t), http.MethodDelete, "http://"+p.ready.Control+"/faults/"+answer.Faults[0].ID, nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	for node := range 2 {
		if got := read(node); got == Ydb.StatusIds_OVERLOADED {
			t.Errorf("node %d reads a table that was hot: %v", node+1, got)
		}
	}
}
