package app

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/clustertest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests that run in parallel wait for most of their time: as many at a time as there are processors would be few.
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "8")
	}
	goleak.VerifyTestMain(m)
}

// lines collects a log; it is safe for concurrent use.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// sidecar is an App that runs in this process, on ports of its own.
type sidecar struct {
	*App
	testing.TB
	at     Ready
	client sidecarv1.SidecarClient
	conn   *grpc.ClientConn
	http   *http.Client
	log    *lines

	signal context.CancelFunc // the first one
	again  context.CancelFunc // the second one
	ended  chan struct{}
	err    error // of Run, once ended is closed
}

// start runs a sidecar until the test ends, or until stop.
func start(t *testing.T, url string, settings ...string) *sidecar {
	t.Helper()
	return startWith(t, "", url, settings...)
}

// startWith runs one with a file of settings.
func startWith(t *testing.T, file, url string, settings ...string) *sidecar {
	t.Helper()
	assignments := []Assignment{
		{"ydb.url=" + url, "test"}, {"grpc.listen=127.0.0.1:0", "test"}, {"http.listen=127.0.0.1:0", "test"},
		{"admin.listen=127.0.0.1:0", "test"},
	}
	for _, s := range settings {
		assignments = append(assignments, Assignment{s, "test"})
	}
	origin := Origin{File: file, Assignments: assignments}
	c, set, err := origin.Load()
	if err != nil {
		t.Fatal(err)
	}
	s := &sidecar{TB: t, log: new(lines), ended: make(chan struct{}), http: &http.Client{Transport: &http.Transport{}}}
	if s.App, err = New(c, set, "1.2.3", s.log); err != nil {
		t.Fatal(err)
	}
	s.LoadedFrom(origin)
	ctx, signal := context.WithCancel(context.Background())
	hurry, again := context.WithCancel(context.Background())
	s.signal, s.again = signal, again
	said, says := io.Pipe()
	go func() {
		defer close(s.ended)
		s.err = s.Run(ctx, hurry, says)
	}()
	if err := json.NewDecoder(said).Decode(&s.at); err != nil {
		t.Fatal(err)
	}
	if s.conn, err = grpc.NewClient("passthrough:///"+s.at.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	s.client = sidecarv1.NewSidecarClient(s.conn)
	t.Cleanup(func() {
		again()
		s.stop()
		_ = s.conn.Close()
		s.http.CloseIdleConnections()
		if t.Failed() {
			t.Logf("log of the sidecar:\n%s", s.log)
		}
	})
	return s
}

// stop sends the first signal and returns the error of Run.
func (s *sidecar) stop() error {
	s.signal()
	select {
	case <-s.ended:
		return s.err
	case <-time.After(40 * time.Second):
		s.Fatalf("does not stop; log:\n%s", s.log)
		return nil
	}
}

// get asks the admin port.
func (s *sidecar) get(path string) (int, string) {
	s.Helper()
	return s.fetch(http.MethodGet, "http://"+s.at.Admin+path, "")
}

func (s *sidecar) fetch(method, url, body string) (int, string) {
	s.Helper()
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.http.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// state reads one of the state documents.
func (s *sidecar) state(path string, into any) {
	s.Helper()
	status, text := s.get(path)
	if err := json.Unmarshal([]byte(text), into); err != nil || status != http.StatusOK {
		s.Fatalf("GET %s = %d %v in %s", path, status, err, text)
	}
}

// eventually waits for what happens behind sockets.
func (s *sidecar) eventually(what string, ask func() bool) {
	s.Helper()
	await.True(s, what, ask)
}

func (s *sidecar) query(sql string) (*sidecarv1.ExecuteResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: sql, Idempotent: true, Timeout: "1m"})
}

// newCluster runs three nodes until the test ends.
func newCluster(t *testing.T) *devcluster.Cluster {
	t.Helper()
	return clustertest.Start(t, nil)
}

// freePort returns an address that nobody listens on. Other tests take ports of 127.0.0.1 all
// the time, so it is another address, where the system has one.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.71.82.93:0")
	if err != nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func count(c *devcluster.Cluster) string {
	byNode := map[uint32]int{}
	for _, s := range c.Sessions() {
		byNode[s.NodeID]++
	}
	return fmt.Sprint(byNode)
}
