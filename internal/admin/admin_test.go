package admin

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/loopback"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server whose checks answer as the test says.
type world struct {
	listening, warm, node error
}

func (w *world) server(config Config) *Server {
	listening := Check{"listening", func() error { return w.listening }}
	return New(config, Deps{
		Guard:   new(loopback.Guard),
		Nodes:   new(fakeNodes),
		Process: new(fakeProcess),
		Pool:    new(fakePool),
		Logging: new(fakeLog),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }),
		Documents: map[string]func(Query) any{
			"/state/pool":  func(Query) any { return map[string]int{"idle": 3} },
			"/state/nodes": func(Query) any { return math.NaN() },
		},
		Checks: Checks{
			Ready:   []Check{listening},
			Started: []Check{listening, {"warm", func() error { return w.warm }}},
			Deep:    []Check{{"node", func() error { return w.node }}},
		},
	})
}

func get(h http.Handler, target string) (int, string) {
	r := httptest.NewRequest("GET", target, nil)
	r.Host = "localhost:7402"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestProbes(t *testing.T) {
	away := errors.New("away")
	for _, tc := range []struct {
		name   string
		world  world
		target string
		status int
		text   string
	}{
		{"live", world{listening: away, warm: away, node: away}, "/livez", 200, "ok\n"},
		{"ready", world{warm: away, node: away}, "/readyz", 200, "ok\n"},
		{"ready_alias", world{}, "/healthz", 200, "ok\n"},
		{"not_ready", world{listening: errors.New("draining")}, "/readyz", 503, "[-] listening: draining\n"},
		{"ready_deep", world{}, "/readyz?deep=1", 200, "ok\n"},
		{"ready_not_deep", world{node: away}, "/readyz?deep=0", 200, "ok\n"},
		{"not_ready_deep", world{node: away}, "/readyz?deep=1", 503, "[-] node: away\n"},
		{"verbose", world{node: away}, "/readyz?deep=1&verbose", 503, "[+] listening: ok\n[-] node: away\n"},
		{"started", world{node: away}, "/startupz", 200, "ok\n"},
		{"not_started", world{warm: away}, "/startupz", 503, "[-] warm: away\n"},
		{"cloud_sql_proxy_names", world{}, "/startup", 200, "ok\n"},
		{"cloud_sql_proxy_names", world{}, "/liveness", 200, "ok\n"},
		{"cloud_sql_proxy_names", world{}, "/readiness", 200, "ok\n"},
		{"envoy_name", world{}, "/ready", 200, "ok\n"},
		{"linkerd_name", world{}, "/live", 200, "ok\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := tc.world.server(Default())
			for face, handler := range map[string]http.Handler{"admin": server.Handler(), "probes": server.Probes()} {
				if status, text := get(handler, tc.target); status != tc.status || text != tc.text {
					t.Errorf("%s: GET %s = %d %q; want %d %q", face, tc.target, status, text, tc.status, tc.text)
				}
			}
		})
	}
}

func TestProbesServeNothingElse(t *testing.T) {
	config := Default()
	config.Pprof = true
	server := new(world).server(config)
	for _, path := range []string{"/", "/metrics", "/state/pool", "/debug/pprof/"} {
		if status, _ := get(server.Probes(), path); status != http.StatusNotFound {
			t.Errorf("probes: GET %s = %d; want 404", path, status)
		}
		if status, _ := get(server.Handler(), path); status != http.StatusOK {
			t.Errorf("admin: GET %s = %d; want 200", path, status)
		}
	}
	config.Probes, config.ProbesMetrics = "0.0.0.0:7404", true
	if status, _ := get(new(world).server(config).Probes(), "/metrics"); status != http.StatusOK {
		t.Errorf("probes_metrics = on: GET /metrics = %d; want 200", status)
	}
	if err := (Config{Listen: "127.0.0.1:0", Control: ControlPeer, ProbesMetrics: true}).Validate(); err == nil {
		t.Error("probes_metrics without probes: no error")
	}
	// A kubelet names the pod's address.
	r := httptest.NewRequest("GET", "http://10.0.0.7:7404/readyz", nil)
	w := httptest.NewRecorder()
	server.Probes().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Errorf("a kubelet got %d", w.Code)
	}
}

func TestHandler(t *testing.T) {
	server := new(world).server(Default())
	for _, tc := range []struct {
		target string
		status int
		text   string
	}{
		{"/state/pool", 200, "{\n  \"idle\": 3\n}\n"},
		{"/state/nodes", 500, "cannot be shown"},
		{"/metrics", 200, "metrics"},
		{"/debug/pprof/", 404, ""},
		{"/", 200, "GET  /metrics "},
		{"/nothing", 404, ""},
	} {
		if status, text := get(server.Handler(), tc.target); status != tc.status || !strings.Contains(text, tc.text) {
			t.Errorf("GET %s = %d %q; want %d with %q", tc.target, status, text, tc.status, tc.text)
		}
	}
	post := httptest.NewRequest("POST", "/readyz", nil)
	post.Host = "localhost"
	w := httptest.NewRecorder()
	server.Handler().ServeHTTP(w, post)
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST = %d; want 405", w.Code)
	}
}

func TestWebPagesAreRefused(t *testing.T) {
	handler := new(world).server(Default()).Handler()
	for name, change := range map[string]func(*http.Request){
		"foreign_host":   func(r *http.Request) { r.Host = "evil.example" },
		"foreign_origin": func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
	} {
		for _, path := range []string{"/metrics", "/livez", "/state/pool"} {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = "localhost:7402"
			change(r)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != http.StatusForbidden {
				t.Errorf("%s: GET %s = %d; want 403", name, path, w.Code)
			}
		}
	}
}

func TestLivezNoticesAHungPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var broken atomic.Bool
		broken.Store(true)
		server := New(Default(), Deps{Guard: new(loopback.Guard), Checks: Checks{Vital: []Check{
			{"routing", func() error {
				if broken.Load() {
					return errors.New("state is broken")
				}
				return nil
			}},
			{"pool", func() error { <-hang; return nil }},
		}}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- server.Run(ctx) }()

		time.Sleep(9 * time.Second)
		if status, text := get(server.Probes(), "/livez"); status != 200 {
			t.Errorf("after 9 s: %d %s", status, text)
		}
		time.Sleep(2 * time.Second)
		if status, text := get(server.Probes(), "/livez"); status != 503 || !strings.Contains(text, `hung for 11s, asking "pool"`) {
			t.Errorf("after 11 s: %d %s", status, text)
		}
		close(hang)
		synctest.Wait()
		if status, text := get(server.Probes(), "/livez"); status != 503 || !strings.Contains(text, "routing: state is broken") {
			t.Errorf("a failing sign: %d %s", status, text)
		}
		broken.Store(false)
		time.Sleep(2 * time.Second)
		if status, text := get(server.Probes(), "/livez"); status != 200 {
			t.Errorf("after it recovered: %d %s", status, text)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		time.Sleep(time.Minute) // without the clock of Run, as in a process that is stopped
		if status, text := get(server.Probes(), "/livez"); status != 200 {
			t.Errorf("after a minute in which the process did not run: %d %s", status, text)
		}
	})
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for _, tc := range []struct {
		name   string
		change func(*Config)
		fault  string // "": none
	}{
		{"no_port", func(c *Config) { c.Listen = "7402" }, `listen = "7402"; must be host:port`},
		{"port_above_65535", func(c *Config) { c.Listen = "127.0.0.1:65536" }, "the port at most 65535"},
		{"highest_port", func(c *Config) { c.Listen = "127.0.0.1:65535" }, ""},
		{"negative_port", func(c *Config) { c.Listen = "127.0.0.1:-1" }, "must be host:port"},
		{"probes", func(c *Config) { c.Probes = "0.0.0.0:99999" }, `probes = "0.0.0.0:99999"`},
		{"socket", func(c *Config) { c.Socket = "/run/ydb-sidecar/admin" }, ""},
		{"socket_without_directory", func(c *Config) { c.Socket = "admin" }, "must be an absolute path"},
		{"socket_that_is_a_directory", func(c *Config) { c.Socket = "/run/" }, "must be an absolute path"},
		{"socket_too_long", func(c *Config) { c.Socket = "/" + strings.Repeat("x", 103) }, "at most 103 bytes"},
		{"unknown_control", func(c *Config) { c.Control = "all" }, `control = "all"; must be peer, token or socket`},
		{"control_by_no_token", func(c *Config) { c.Control = ControlToken }, "needs token or token_file"},
		{"control_by_token", func(c *Config) { c.Control, c.TokenFile = ControlToken, "x" }, ""},
		{"two_tokens", func(c *Config) { c.Token, c.TokenFile = "x", "y" }, "want one"},
		{"control_by_no_socket", func(c *Config) { c.Control = ControlSocket }, "needs socket"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Default()
			tc.change(&c)
			if err := c.Validate(); (err == nil) != (tc.fault == "") || err != nil && !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("Validate = %v; want %q", err, tc.fault)
			}
		})
	}
}
