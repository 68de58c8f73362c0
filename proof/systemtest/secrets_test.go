package systemtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
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

// planted are secrets, and texts of callers that are nobody else's business; none may
// come out anywhere, but for an answer to the caller himself.
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

// TestSecretsStayInside plants secrets in every place that takes one, makes calls that
// work and calls that fail in many ways, and looks through all that comes out.
func TestSecretsStayInside(t *testing.T) {
	to := startCollector(t)
	env := to.overGRPC()
	c := startCluster(t, nil, "-token", "planted-upstream-token")
	dir := t.TempDir()
	tokens, file := filepath.Join(dir, "tokens"), filepath.Join(dir, "sidecar.yaml")
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(tokens, "files=planted-file-token-0123456789\n")
	const settings = "admin: {token: planted-admin-token, control: token, pprof: on}\nydb.auth: {kind: token, token: planted-upstream-token}\nlog: {level: DEBUG, access: all}\npool: {min: 1, max: %d}\n"
	put(file, fmt.Sprintf(settings, 5))
	env = append(env, "SIDECAR_APPS_TOKEN=one=planted-app-token-0123456789", "SIDECAR_APPS_TOKEN_FILE="+tokens, "OTEL_EXPORTER_OTLP_HEADERS=authorization=planted-trace-header")
	p := standtest.Start(t, stand.Spec{Path: filepath.Join(bin, "sidecar"), Env: env, Args: []string{
		"serve", "-config", file, "-ydb", c.Endpoint(), "-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0", "-admin", "127.0.0.1:0",
	}})
	at := standtest.Ready(t, p)
	_, client := dial(t, at["grpc"])

	// Calls, by good and bad credentials, of good and bad statements.
	var outputs strings.Builder
	request := func(method, url, body string, headers ...string) (status int, text string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		b, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(b)
	}
	query := "http://" + at["http"] + "/v1/query"
	const good = "Authorization: Bearer planted-app-token-0123456789"
	statement := `{"sql": "SELECT $p AS planted_statement, 1 AS b", "params": {"p": "planted-parameter"}}`
	if status, text := request("POST", query, statement, good); status != 200 {
		t.Fatalf("a good call: %d %s", status, text)
	}
	for _, tc := range []struct {
		body    string
		headers []string
	}{
		{statement, nil},
		{statement, []string{"Authorization: Bearer planted-wrong-token"}},
		{statement, []string{"Authorization: planted-wrong-token"}},
		{statement, []string{good, "X-Sidecar-App: files"}},
		{`{"sql": "SELECT 1", "params": "planted-row"}`, []string{good}},
		{`planted-row`, []string{good}},
	} {
		status, text := request("POST", query, tc.body, tc.headers...)
		if status < 400 {
			t.Errorf("%s: %d; want an error", tc.body, status)
		}
		outputs.WriteString(text) // to somebody else than the owner of the token, or about the form alone
	}
	// What fails inside the statement is told to its caller, and to nobody else.
	for _, body := range []string{
		`{"sql": "SELEC planted_statement"}`, `{"sql": "SELECT * FROM planted_statement"}`, `{"sql": "SELECT $p + 1", "params": {"p": "planted-parameter"}}`,
	} {
		if status, _ := request("POST", query, body, good); status < 400 {
			t.Errorf("%s: %d; want an error", body, status)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer planted-file-token-0123456789")
	if _, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1 AS planted_statement"}); err != nil {
		t.Errorf("by the token of the file: %v", err)
	}
	_, err := client.Execute(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer planted-wrong-token"), &sidecarv1.ExecuteRequest{Sql: "SELECT 1 AS planted_statement"})
	if err == nil {
		t.Error("a wrong token was served")
	} else {
		outputs.WriteString(err.Error())
	}

	// A reload that works, and ones that do not.
	put(file, fmt.Sprintf(settings, 6)+"\napi.timeout: 7s\n")
	control := "Authorization: Bearer planted-admin-token"
	for _, text := range []string{fmt.Sprintf(settings, 7), "admin: {token: [planted-admin-token", "ydb.auth.pasword: planted-upstream-token\n", "apps.token: planted-app-token\n"} {
		put(file, text)
		_, said := request("POST", "http://"+at["admin"]+"/reload", "", control)
		outputs.WriteString(said)
		if err := syscall.Kill(p.Pid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	put(file, fmt.Sprintf(settings, 7))
	_, said := request("POST", "http://"+at["admin"]+"/reload", "", "Authorization: Bearer planted-wrong-token")
	outputs.WriteString(said)

	// Everything that the admin API shows, with and without the token.
	for _, e := range admin.Endpoints {
		if e.Method != "GET" || strings.HasPrefix(e.Path, "/debug/pprof/profile") || strings.HasPrefix(e.Path, "/debug/pprof/trace") {
			continue
		}
		path := strings.NewReplacer("{$}", "", "{id}", "1").Replace(e.Path)
		_, text := request("GET", "http://"+at["admin"]+path, "", control)
		if found := leaks(text); found != nil {
			t.Errorf("GET %s shows %q", path, found)
		}
	}
	for _, args := range [][]string{{"nodes"}, {"events"}, {"reload"}, {"drain", "-off"}, {"check-config", "-print"}, {"nodes", "-set", "admin.token=planted-admin-token"}} {
		command := exec.CommandContext(t.Context(), filepath.Join(bin, "sidecar"), append(args, "-config", file, "-admin", at["admin"])...)
		command.Env = env
		text, _ := command.CombinedOutput() // some are refused
		if found := leaks(string(text)); found != nil {
			t.Errorf("sidecar %s shows %q", args, found)
		}
	}
	if found := leaks(outputs.String()); found != nil {
		t.Errorf("answers show %q:\n%s", found, outputs.String())
	}
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
