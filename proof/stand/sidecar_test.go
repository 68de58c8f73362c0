package stand

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestServeKeepsSecretsOffTheCommandLine(t *testing.T) {
	got := Serve{
		Program: "bin/sidecar", URL: "grpc://host:2136/local", Env: []string{"A=1"},
		Flags:    []string{"-grpc", "127.0.0.1:7"},
		Settings: []string{"pool.max=3", "ydb.auth.token=secret=1", "ydb.auth.password=word"},
	}.Spec()
	args := strings.Fields("serve -ydb grpc://host:2136/local -grpc 127.0.0.1:0 -http 127.0.0.1:0 -admin 127.0.0.1:0" +
		" -grpc 127.0.0.1:7 -set pool.max=3")
	env := []string{"A=1", "SIDECAR_YDB_AUTH_TOKEN=secret=1", "SIDECAR_YDB_AUTH_PASSWORD=word"}
	if got.Path != "bin/sidecar" || !slices.Equal(got.Args, args) || !slices.Equal(got.Env, env) {
		t.Errorf("got %+v; want %v with %v", got, args, env)
	}
}

func TestPagesOfTheAdminAPI(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/state/pool" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"moved":3}`))
	}))
	defer http.DefaultClient.CloseIdleConnections()
	defer server.Close()
	s := &Sidecar{Admin: strings.TrimPrefix(server.URL, "http://")}
	var state struct{ Moved int }
	if err := s.JSON(t.Context(), "/state/pool", &state); err != nil || state.Moved != 3 {
		t.Errorf("got %+v, %v; want 3", state, err)
	}
	if _, err := s.Get(t.Context(), "/debug/pprof/heap?gc=1"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v; want the status", err)
	}
	var wrong []string
	if err := s.JSON(t.Context(), "/state/pool", &wrong); err == nil {
		t.Error("an answer of another form is no error")
	}
}

func TestWarmWaitsForTheSidecar(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; r.URL.Path != "/startupz" || asked < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer http.DefaultClient.CloseIdleConnections()
	defer server.Close()
	s := &Sidecar{Admin: strings.TrimPrefix(server.URL, "http://")}
	if err := s.Warm(t.Context()); err != nil || asked != 3 {
		t.Errorf("got %v after %d questions; want none after 3", err, asked)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := s.Warm(ctx); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("got %v; want why it ended", err)
	}
}
