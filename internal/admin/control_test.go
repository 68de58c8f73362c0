package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/loopback"
)

// fakeNodes knows node 2 and notes what is done.
type fakeNodes struct{ done []string }

func (f *fakeNodes) act(id cluster.NodeID, format string, args ...any) error {
	if id != 2 {
		return fmt.Errorf("%w: %d", ErrUnknown, id)
	}
	f.done = append(f.done, fmt.Sprintf(format, args...))
	return nil
}

func (f *fakeNodes) Ban(id cluster.NodeID, d time.Duration, reason string) error {
	return f.act(id, "ban for %v: %s", d, reason)
}
func (f *fakeNodes) Unban(id cluster.NodeID) error   { return f.act(id, "unban") }
func (f *fakeNodes) Drain(id cluster.NodeID) error   { return f.act(id, "drain") }
func (f *fakeNodes) Undrain(id cluster.NodeID) error { return f.act(id, "undrain") }

func (f *fakeNodes) Why(id cluster.NodeID) any {
	if id != 2 {
		return nil
	}
	return map[string]string{"summary": "as good as new"}
}

// threeEvents have the times of three seconds.
func threeEvents() *Events {
	e := NewEvents()
	for i := range 3 {
		e.Add(Event{Time: time.Unix(int64(i), 0).UTC(), Kind: "state", Reason: "r"})
	}
	return e
}

type fakeProcess struct{ done []string }

func (f *fakeProcess) LameDuck(on bool) error {
	f.done = append(f.done, fmt.Sprintf("lame duck %v", on))
	if !on {
		return errors.New("is stopping")
	}
	return nil
}
func (f *fakeProcess) Stop(grace time.Duration) error {
	f.done = append(f.done, fmt.Sprintf("stop %v", grace))
	return nil
}
func (f *fakeProcess) Progress() any { return map[string]string{"stage": "serving"} }

type fakePool struct{ done []string }

func (f *fakePool) Resize(most, least int) error {
	f.done = append(f.done, fmt.Sprintf("resize %d %d", most, least))
	if most == 0 {
		return fmt.Errorf("%w: max = 0", ErrInvalid)
	}
	return nil
}
func (f *fakePool) Pause(on bool) error {
	f.done = append(f.done, fmt.Sprintf("pause %v", on))
	return nil
}
func (f *fakePool) State() any { return map[string]int{"max": 20} }

type fakeLog struct{ level string }

func (f *fakeLog) Level() string { return f.level }
func (f *fakeLog) SetLevel(level string) error {
	if level == "LOUD" {
		return errors.New("no such level")
	}
	f.level = level
	return nil
}

// running is a server with fakes on real sockets.
type running struct {
	nodes   fakeNodes
	process fakeProcess
	pool    fakePool
	log     fakeLog
	killed  []string
	events  *Events
	tcp     *httptest.Server
	unix    *http.Client
}

func serve(t *testing.T, config Config) *running {
	t.Helper()
	s := new(running)
	s.events = threeEvents()
	deps := Deps{
		Guard: new(loopback.Guard), Nodes: &s.nodes, Process: &s.process, Pool: &s.pool, Logging: &s.log,
		Events: s.events, Documents: map[string]func(Query) any{},
		Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		Reload: func(dryRun bool) (any, error) {
			if !dryRun {
				s.process.done = append(s.process.done, "reload")
			}
			return dryRun, nil
		},
		Reloaded: func() any { return "the last one" },
		Kill: func(id string) (any, error) {
			if id != "5e55" {
				return nil, fmt.Errorf("%w: %s", ErrSession, id)
			}
			s.killed = append(s.killed, id)
			return id, nil
		},
		EndCall: func(id string) (any, error) {
			if id != "5e55" {
				return nil, fmt.Errorf("%w: %s", ErrCall, id)
			}
			s.killed = append(s.killed, id)
			return id, nil
		},
	}
	for _, e := range Endpoints {
		if strings.HasPrefix(e.Path, "/state/") || e.Path == "/config" || e.Path == "/buildinfo" {
			deps.Documents[e.Path] = func(q Query) any { return q.Limit }
		}
	}
	server := New(config, deps)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	s.tcp = httptest.NewServer(server.Handler())
	t.Cleanup(s.tcp.Close)
	path := filepath.Join(t.TempDir(), "admin")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	unix := &httptest.Server{Listener: l, Config: &http.Server{Handler: server.Handler()}}
	unix.Start()
	t.Cleanup(unix.Close)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	s.unix = &http.Client{Transport: transport}
	return s
}

func ask(t *testing.T, client *http.Client, method, url, token string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", token)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestControl(t *testing.T) {
	for _, tc := range []struct {
		request string
		status  int
		answer  string // a part of it
		nodes   string // what was done
		process string
	}{
		{"POST /nodes/2/ban?for=10m&reason=a+disk", 200, "as good as new", "ban for 10m0s: a disk", ""},
		{"POST /nodes/2/ban", 200, "as good as new", "ban for 0s: ", ""},
		{"POST /nodes/2/unban", 200, "as good as new", "unban", ""},
		{"POST /nodes/2/drain", 200, "as good as new", "drain", ""},
		{"POST /nodes/2/undrain", 200, "as good as new", "undrain", ""},
		{"GET /nodes/2/why", 200, `"summary": "as good as new"`, "", ""},
		{"GET /nodes/7/why", 404, "no such node: 7", "", ""},
		{"POST /nodes/7/ban", 404, "no such node: 7", "", ""},
		{"POST /nodes/0/ban", 400, `"0" is not the number of a node`, "", ""},
		{"POST /nodes/4294967296/unban", 400, "is not the number of a node", "", ""},
		{"POST /nodes/x/drain", 400, `"x" is not the number of a node`, "", ""},
		{"POST /nodes/2/ban?for=ten", 400, `for = "ten"; want a duration`, "", ""},
		{"POST /nodes/2/ban?for=-1s", 400, "want a duration", "", ""},
		{"POST /nodes/2/ban?reason=two%0Alines", 400, "reason: want one line", "", ""},
		{"POST /nodes/2/ban?reason=" + strings.Repeat("x", 201), 400, "reason: want one line", "", ""},
		{"GET /nodes/2/ban", 405, "", "", ""},
		{"GET /events", 200, `"seq":3,"time":"1970-01-01T00:00:02Z","kind":"state","reason":"r"}`, "", ""},
		{"GET /events?after=2", 200, `{"seq":3,`, "", ""},
		{"GET /events?after=-1", 400, "want the number of an event", "", ""},
		{"GET /drain", 200, `"stage": "serving"`, "", ""},
		{"POST /drain?mode=lameduck", 200, `"stage": "serving"`, "", "lame duck true"},
		{"POST /drain?mode=off", 409, "is stopping", "", "lame duck false"},
		{"POST /drain?mode=graceful", 200, "", "", "stop -1ns"},
		{"POST /drain?mode=graceful&timeout=5s", 200, "", "", "stop 5s"},
		{"POST /drain?mode=graceful&timeout=5", 400, "timeout", "", ""},
		{"POST /reload", 200, "false", "", "reload"},
		{"POST /reload?dry_run=1", 200, "true", "", ""},
		{"POST /reload?dry_run=2", 400, "want 1 or 0", "", ""},
		{"GET /reload", 200, `"the last one"`, "", ""},
		{"POST /quitquitquit", 200, "", "", "stop -1ns"},
		{"POST /shutdown", 200, "", "", "stop -1ns"},
		{"POST /healthcheck/fail", 200, "", "", "lame duck true"},
		{"POST /healthcheck/ok", 409, "is stopping", "", "lame duck false"},
		{"POST /pool/resize?max=40&min=2", 200, `"max": 20`, "resize 40 2", ""},
		{"POST /pool/resize?min=0", 200, "", "resize -1 0", ""},
		{"POST /pool/resize?max=0", 400, "max = 0", "resize 0 -1", ""},
		{"POST /pool/resize", 400, "want max, min or both", "", ""},
		{"POST /pool/resize?max=-1", 400, "want a number of sessions", "", ""},
		{"POST /pool/resize?max=many", 400, "want a number of sessions", "", ""},
		{"POST /pool/pause", 200, `"max": 20`, "pause true", ""},
		{"POST /pool/resume", 200, `"max": 20`, "pause false", ""},
		{"POST /sessions/5e55/kill", 200, "5e55", "kill 5e55", ""},
		{"POST /sessions/other/kill", 404, "no such session: other", "", ""},
		{"POST /calls/5e55/kill", 200, "5e55", "kill 5e55", ""},
		{"POST /calls/other/kill", 404, "no such call: other", "", ""},
		{"GET /state/calls?min_ms=5&app=shop", 200, "1000\n", "", ""},
		{"GET /state/calls?min_ms=-5", 400, "want milliseconds", "", ""},
		{"GET /state/pause", 200, "1000\n", "", ""},
		{"POST /logging?level=DEBUG", 200, `"level": "DEBUG"`, "", ""},
		{"POST /logging?level=LOUD", 400, "no such level", "", ""},
		{"GET /logging", 200, `"level": ""`, "", ""},
		{"GET /state/sessions", 200, "1000\n", "", ""},
		{"GET /state/sessions?limit=3", 200, "3\n", "", ""},
		{"GET /state/sessions?limit=0", 400, "want 1 to 10000", "", ""},
		{"GET /state/sessions?limit=10001", 400, "want 1 to 10000", "", ""},
		{"POST /drain", 400, "want lameduck, graceful or off", "", ""},
	} {
		t.Run(tc.request[:min(len(tc.request), 40)], func(t *testing.T) {
			s := serve(t, Default())
			method, path, _ := strings.Cut(tc.request, " ")
			status, text := ask(t, s.unix, method, "http://localhost"+path, "")
			if status != tc.status || !strings.Contains(text, tc.answer) {
				t.Errorf("%d %q; want %d with %q", status, text, tc.status, tc.answer)
			}
			done := append(append(s.nodes.done, s.pool.done...), prefixed("kill ", s.killed)...)
			if got := strings.Join(done, ", "); got != tc.nodes {
				t.Errorf("done to nodes: %q; want %q", got, tc.nodes)
			}
			if got := strings.Join(s.process.done, ", "); got != tc.process {
				t.Errorf("done to the process: %q; want %q", got, tc.process)
			}
		})
	}
}

func prefixed(with string, all []string) (out []string) {
	for _, text := range all {
		out = append(out, with+text)
	}
	return out
}

func TestWhoMayControl(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("s3cr3t\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	linux := runtime.GOOS == "linux"
	byPeer := 403
	if linux {
		byPeer = 200
	}
	for _, tc := range []struct {
		name        string
		control     string
		token, file string
		header      string
		status      int
		text        string
	}{
		{"the_same_user", ControlPeer, "", "", "", byPeer, ""},
		{"a_token_that_is_not_set", ControlPeer, "", "", "Bearer ", 401, "is not admin.token"},
		{"the_token", ControlPeer, "s3cr3t", "", "Bearer s3cr3t", 200, ""},
		{"the_token_of_a_file", ControlPeer, "", file, "Bearer s3cr3t", 200, ""},
		{"the_file_is_missing", ControlPeer, "", file + "x", "Bearer s3cr3t", 403, "admin.token_file"},
		{"another_token", ControlPeer, "s3cr3t", "", "Bearer s3cr3", 401, "is not admin.token"},
		{"no_bearer", ControlPeer, "s3cr3t", "", "s3cr3t", 401, "is not admin.token"},
		{"only_the_token", ControlToken, "s3cr3t", "", "", 401, "admin.control = token"},
		{"only_the_token_given", ControlToken, "s3cr3t", "", "Bearer s3cr3t", 200, ""},
		{"only_the_socket", ControlSocket, "s3cr3t", "", "Bearer s3cr3t", 403, "admin.control = socket"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := Default()
			config.Control, config.Token, config.TokenFile = tc.control, tc.token, tc.file
			s := serve(t, config)
			status, text := ask(t, s.tcp.Client(), "POST", s.tcp.URL+"/nodes/2/ban", tc.header)
			if status != tc.status || !strings.Contains(text, tc.text) {
				t.Errorf("over TCP: %d %q; want %d with %q", status, text, tc.status, tc.text)
			}
			if (status == 200) != (len(s.nodes.done) == 1) {
				t.Errorf("status %d, done: %q", status, s.nodes.done)
			}
			if strings.Contains(text, "s3cr3t") {
				t.Errorf("the answer shows the token: %s", text)
			}
			if status, text := ask(t, s.unix, "POST", "http://localhost/nodes/2/ban", ""); status != 200 {
				t.Errorf("over the socket: %d %s; want 200, always", status, text)
			}
			// Looking is free.
			if status, text := ask(t, s.tcp.Client(), "GET", s.tcp.URL+"/nodes/2/why", ""); status != 200 {
				t.Errorf("why: %d %s", status, text)
			}
		})
	}
}

// Servers trim what follows Bearer; should one not, an empty token is none.
func TestNoTokenIsNoToken(t *testing.T) {
	server := New(Default(), Deps{})
	r := httptest.NewRequest("POST", "/drain", nil)
	r.Header.Set("Authorization", "Bearer ")
	if refusal := server.mayControl(r); refusal == nil || refusal.status != http.StatusUnauthorized {
		t.Errorf("refusal %+v; want 401", refusal)
	}
}

// A page in the operator's own browser is a program of the same user.
func TestWebPagesMayNotControl(t *testing.T) {
	s := serve(t, Default())
	request, err := http.NewRequest("POST", s.tcp.URL+"/drain?mode=graceful", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Origin", "https://evil.example")
	response, err := s.tcp.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusForbidden || len(s.process.done) != 0 {
		t.Errorf("%s, done: %q", response.Status, s.process.done)
	}
}

func TestTrusted(t *testing.T) {
	own := uint32(os.Getuid())
	for uid, want := range map[uint32]bool{own: true, 0: true, own + 1: false} {
		if Trusted(uid) != want {
			t.Errorf("Trusted(%d) = %v", uid, !want)
		}
	}
}
