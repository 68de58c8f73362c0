package admin

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/audit"
	"github.com/ydb-sidecar/sidecar/internal/loopback"
)

// TestActsAreInTheLog: each act of an operator has one line that says who, what and from where, and so has
// each act that is refused.
func TestActsAreInTheLog(t *testing.T) {
	var out strings.Builder
	config := Default()
	config.Control, config.Token = ControlToken, "the-token-of-operators"
	server := New(config, Deps{
		Guard: new(loopback.Guard), Nodes: new(fakeNodes), Process: new(fakeProcess), Pool: new(fakePool), Logging: new(fakeLog),
		Metrics: http.NotFoundHandler(), Audit: audit.New(slog.New(slog.NewTextHandler(&out, nil))),
		Peer: func(context.Context) (uint32, int32, error) { return 1000, 17, nil },
	})
	tcp := httptest.NewServer(server.Handler())
	defer tcp.Close()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	unix := &httptest.Server{Listener: listener, Config: &http.Server{Handler: server.Handler()}}
	unix.Start()
	defer unix.Close()
	dial := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", listener.Addr().String())
	}}
	defer dial.CloseIdleConnections()
	const trace = "0af7651916cd43dd8448eb211c80319c"
	mine := "uid " + strconv.Itoa(os.Getuid())
	for _, tc := range []struct {
		name, path, token string
		socket            bool
		want              []string // in the one line
	}{
		{"over the socket", "/nodes/2/ban?for=10m&reason=disk", "", true, []string{`msg="an operator acted"`, `who="uid 1000, pid 17"`,
			`what="POST /nodes/2/ban?for=10m&reason=disk"`, "from=admin.socket", "outcome=200", "trace_id=" + trace}},
		{"a node that nobody knows", "/nodes/3/ban", "", true, []string{`msg="an operator acted"`, "outcome=404"}},
		{"with the token", "/pool/pause", config.Token, false,
			[]string{`msg="an operator acted"`, `who="token of admin.token, ` + mine + `"`,
				"from=127.0.0.1:", "outcome=200"}},
		{"with another token", "/pool/pause", "some-other-token-entirely", false, []string{"msg=denied",
			`who="a token that is not admin.token, ` + mine, `what="POST /pool/pause"`, `outcome="the bearer token is not admin.token"`}},
		{"without one", "/drain?mode=graceful", "", false, []string{"msg=denied", mine, `what="POST /drain?mode=graceful"`}},
	} {
		out.Reset()
		base, client := tcp.URL, tcp.Client()
		if tc.socket {
			base, client = "http://localhost", &http.Client{Transport: dial}
		}
		r, err := http.NewRequest("POST", base+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
		if tc.token != "" {
			r.Header.Set("Authorization", "Bearer "+tc.token)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if strings.Count(out.String(), "\n") != 1 || strings.Contains(out.String(), "operators\"") ||
			tc.token != "" && strings.Contains(out.String(), tc.token) {
			t.Errorf("%s: %q; want one line, without a secret", tc.name, out.String())
		}
		for _, want := range tc.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q; want %s", tc.name, out.String(), want)
			}
		}
	}
	out.Reset()
	answer, err := http.Get(tcp.URL + "/drain")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if out.String() != "" {
		t.Errorf("a look has a line: %s", out.String())
	}
}

func TestAnActThatPanicsHasALine(t *testing.T) {
	var out strings.Builder
	config := Default()
	config.Control, config.Token = ControlToken, "the-token-of-operators"
	server := New(config, Deps{Guard: new(loopback.Guard), Audit: audit.New(slog.New(slog.NewTextHandler(&out, nil)))})
	r := httptest.NewRequest(http.MethodPost, "/pool/pause", nil)
	r.Host = "localhost"
	r.Header.Set("Authorization", "Bearer "+config.Token)
	func() {
		defer func() { _ = recover() }()
		act := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("an act") })
		server.controlled(act).ServeHTTP(httptest.NewRecorder(), r)
	}()
	if !strings.Contains(out.String(), `msg="an operator acted"`) || !strings.Contains(out.String(), `outcome="a panic"`) {
		t.Errorf("%q; want the line of the act", out.String())
	}
}
