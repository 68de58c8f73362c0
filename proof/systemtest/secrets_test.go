package systemtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// planted are secrets, and texts of callers that are for no one else; none may
// come out anywhere, except in an answer to the caller itself.
var planted = []string{
	"planted-admin-token", "planted-app-token", "planted-file-token", "planted-upstream-token", "planted-wrong-token", // credentials
	"planted_statement", "planted-parameter", "planted-row", // of statements
	"planted-trace-header", // credentials of the collector
}

// leaks names the secrets in a text.
func leaks(text string) (found []string) {
	for _, secret := range planted {
		if strings.Contains(text, secret) {
			found = append(found, secret)
		}
	}
	return found
}

// plantedSidecar is one with secrets in every place that takes one.
type plantedSidecar struct {
	*sidecar
	file    string   // of settings
	env     []string // of every program of the sidecar
	outputs strings.Builder
}

// plantedSettings take pool.max.
const plantedSettings = "admin: {token: planted-admin-token, control: token, pprof: on}\nydb.auth: {kind: token, " +
	"token: planted-upstream-token}\n" +
	"log: {level: DEBUG, access: all}\npool: {min: 1, max: %d}\n"

// The headers of callers that may call, and operate.
const (
	plantedApp     = "Authorization: Bearer planted-app-token-0123456789"
	plantedControl = "Authorization: Bearer planted-admin-token"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestSecretsStayInside plants secrets in every place that takes one, makes calls that
// work and calls that fail in many ways, and looks through all that comes out.
func TestSecretsStayInside(t *testing.T) {
	to := startCollector(t)
	c := startCluster(t, nil, "-token", "planted-upstream-token")
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens")
	p := &plantedSidecar{file: filepath.Join(dir, "sidecar.yaml"),
		env: append(to.overGRPC(), "SIDECAR_APPS_TOKEN=one=planted-app-token-0123456789",
			"SIDECAR_APPS_TOKEN_FILE="+tokens, "OTEL_EXPORTER_OTLP_HEADERS=authorization=planted-trace-header")}
	put(t, tokens, "files=planted-file-token-0123456789\n")
	put(t, p.file, fmt.Sprintf(plantedSettings, 5))
	p.sidecar = reach(t, standtest.Start(t, stand.Serve{Program: filepath.Join(bin, "sidecar"), URL: c.Endpoint(), Env: p.env,
		Flags: []string{"-config", p.file}}.Spec()))
	p.calls(t)
	p.reloads(t)
	p.shows(t)
	if found := leaks(p.outputs.String()); found != nil {
		t.Errorf("answers show %q:\n%s", found, p.outputs.String())
	}
	p.logs(t)
	var exported bytes.Buffer
	for _, s := range to.spans(t) {
		fmt.Fprintf(&exported, "%s %v\n", s.name, s.attributes)
	}
	if exported.Len() == 0 {
		t.Error("no span was exported: the test shows less than it should")
	}
	if found := leaks(exported.String()); found != nil {
		t.Errorf("spans show %q:\n%s", found, exported.String())
	}
}

// calls are by good and bad credentials, of good and bad statements.
func (p *plantedSidecar) calls(t *testing.T) {
	query := "http://" + p.HTTP + "/v1/query"
	statement := `{"sql": "SELECT $p AS planted_statement, 1 AS b", "params": {"p": "planted-parameter"}}`
	if status, text := askHTTP(t, "POST", query, statement, plantedApp); status != 200 {
		t.Fatalf("a good call: %d %s", status, text)
	}
	for _, tc := range []struct {
		body    string
		headers []string
	}{
		{statement, nil},
		{statement, []string{"Authorization: Bearer planted-wrong-token"}},
		{statement, []string{"Authorization: planted-wrong-token"}},
		{statement, []string{plantedApp, "X-Sidecar-App: files"}},
		{`{"sql": "SELECT 1", "params": "planted-row"}`, []string{plantedApp}},
		{`planted-row`, []string{plantedApp}},
	} {
		status, text := askHTTP(t, "POST", query, tc.body, tc.headers...)
		if status < 400 {
			t.Errorf("%s: %d; want an error", tc.body, status)
		}
		p.outputs.WriteString(text) // to another caller than the owner of the token, or about the form alone
	}
	// What fails inside the statement is told to its caller alone.
	for _, body := range []string{
		`{"sql": "SELEC planted_statement"}`, `{"sql": "SELECT * FROM planted_statement"}`,
		`{"sql": "SELECT $p + 1", "params": {"p": "planted-parameter"}}`,
	} {
		if status, _ := askHTTP(t, "POST", query, body, plantedApp); status < 400 {
			t.Errorf("%s: %d; want an error", body, status)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer planted-file-token-0123456789")
	if _, err := p.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1 AS planted_statement"}); err != nil {
		t.Errorf("by the token of the file: %v", err)
	}
	_, err := p.Execute(
		metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer planted-wrong-token"),
		&sidecarv1.ExecuteRequest{Sql: "SELECT 1 AS planted_statement"},
	)
	if err == nil {
		t.Error("a wrong token was served")
	} else {
		p.outputs.WriteString(err.Error())
	}
}

// reloads are one that works, and ones that do not.
func (p *plantedSidecar) reloads(t *testing.T) {
	put(t, p.file, fmt.Sprintf(plantedSettings, 6)+"\napi.timeout: 7s\n")
	for _, text := range []string{fmt.Sprintf(plantedSettings, 7), "admin: {token: [planted-admin-token",
		"ydb.auth.pasword: planted-upstream-token\n", "apps.token: planted-app-token\n"} {
		put(t, p.file, text)
		_, said := askHTTP(t, "POST", "http://"+p.Admin+"/reload", "", plantedControl)
		p.outputs.WriteString(said)
		if err := syscall.Kill(p.Pid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	put(t, p.file, fmt.Sprintf(plantedSettings, 7))
	_, said := askHTTP(t, "POST", "http://"+p.Admin+"/reload", "", "Authorization: Bearer planted-wrong-token")
	p.outputs.WriteString(said)
}

// shows looks at everything that the admin API and the commands show.
func (p *plantedSidecar) shows(t *testing.T) {
	for _, e := range admin.Endpoints {
		if e.Method != "GET" || strings.HasPrefix(e.Path, "/debug/pprof/profile") || strings.HasPrefix(e.Path, "/debug/pprof/trace") {
			continue
		}
		path := strings.NewReplacer("{$}", "", "{id}", "1").Replace(e.Path)
		_, text := askHTTP(t, "GET", "http://"+p.Admin+path, "", plantedControl)
		if found := leaks(text); found != nil {
			t.Errorf("GET %s shows %q", path, found)
		}
	}
	for _, args := range [][]string{{"nodes"}, {"events"}, {"reload"}, {"drain", "-off"}, {"check-config", "-print"},
		{"nodes", "-set", "admin.token=planted-admin-token"}} {
		command := exec.CommandContext(t.Context(), filepath.Join(bin, "sidecar"), append(args, "-config", p.file, "-admin", p.Admin)...)
		command.Env = p.env
		text, _ := command.CombinedOutput() // some are refused
		if found := leaks(string(text)); found != nil {
			t.Errorf("sidecar %s shows %q", args, found)
		}
	}
}

// logs ends the sidecar and looks at what it wrote.
func (p *plantedSidecar) logs(t *testing.T) {
	stop, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	if _, err := p.Stop(stop); err != nil {
		t.Error(err)
	}
	for name, text := range map[string]string{"log": p.Log(), "stdout": p.Stdout()} {
		for line := range strings.Lines(text) {
			if found := leaks(line); found != nil {
				t.Errorf("%s shows %q: %s", name, found, line)
			}
		}
	}
	if !strings.Contains(p.Log(), `"level":"DEBUG"`) {
		t.Error("the log is not at the level DEBUG: the test shows less than it should")
	}
}
