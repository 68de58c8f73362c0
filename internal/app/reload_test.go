package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

const nowhere = "grpc://127.0.0.1:1/local" // a cluster that is away

// other is another value of each live setting.
var other = map[string]string{
	"pool.max": "51", "pool.max_per_node": "7", "pool.min": "3", "pool.queue": "9", "pool.queue_age": "7s", "pool.queue_target": "8ms",
	"pool.shed": "off", "pool.idle": "7m", "pool.age": "2h", "pool.create_timeout": "6s", "pool.create_burst": "3",
	"pool.delete_timeout": "3s",
	"pool.move_rate":      "5", "pool.adaptive_floor": "3", "pool.shares.interactive": "21", "pool.shares.normal": "11",
	"pool.shares.batch": "6",

	"apps.max": "7", "apps.limits": "one open=7", "apps.users": "77=two", "apps.token": "three=0123456789abcdef", "apps.token_file": "FILE",

	"health.transport_failures": "3", "health.refusals": "7", "health.refusal_share": "0.4", "health.refusal_min": "11",
	"health.refusal_window": "11s",
	"health.latency_factor": "6", "health.latency_floor": "11ms", "health.latency_min": "33",
	"health.latency_window": "11s", "health.soft_max": "0.2",
	"health.slow_start": "11s", "health.ejection": "6s", "health.ejection_max": "6m", "health.forgive": "11m",
	"health.probe_interval": "3s",
	"health.probes":         "3", "health.idle_probe": "11s", "health.leaving": "11s",

	"admin.control": "token", "admin.token": "a-secret-of-the-admin", "admin.token_file": "",

	"startup.wait": "7s", "drain.delay": "1ms", "drain.grace": "26s", "drain.idle": "21s", "log.level": "DEBUG",
	"log.access": "slow", "log.access_slow": "7s", "log.access_rate": "77", "log.access_statements": "on",
	"admin.held_long": "77s",

	"tracing.ratio": "0.25", "tracing.slow": "2s", "tracing.tail": "7", "tracing.errors": "off",
	"statements.texts": "on",
}

// inForce is the configuration as the parts have it.
func (a *App) inForce() Config {
	c := *a.now()
	c.Pool, c.Apps, c.Admin, c.Log.Level = a.core.pool.Config(), a.core.apps.Config(), a.admin.Config(), a.level.Level()
	c.Access, c.Tracing, c.Statements = a.access.Config(), a.telemetry.Tracer().Config(), a.statements.Config()
	forget := c.Health.Forget
	c.Health = a.core.detector.Config()
	c.Health.Forget = forget // the judge's own is longer
	return c
}

func values(t *testing.T, c Config) map[string]string {
	t.Helper()
	settings, err := config.Bind(&c)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, s := range settings.List() {
		all[s.Name] = s.Value
	}
	return all
}

// liveSettings returns the settings that are said to be live. It fails the test
// unless effects names all settings, and nothing else.
func liveSettings(t *testing.T) (live []string) {
	t.Helper()
	used := map[string]bool{}
	for name := range values(t, Default()) {
		effect, known := EffectOf(name)
		if !known {
			t.Errorf("%s: say in effects (live.go) whether it is Live or counts AfterRestart", name)
		}
		if effect == Live {
			live = append(live, name)
		}
		for section := name; section != ""; section = section[:strings.LastIndexByte(strings.TrimSuffix(section, "."), '.')+1] {
			used[section] = true
		}
	}
	for name := range effects {
		if !used[name] {
			t.Errorf("%s is in effects and is no setting", name)
		}
	}
	slices.Sort(live)
	return live
}

// Of every setting somebody has said when another value counts, and what is said to be
// live is.
func TestEverySettingIsLiveOrNeedsARestart(t *testing.T) {
	live := liveSettings(t)
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("four=0123456789abcdef4"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1") // there is something to trace for
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	write(t, file, "reload.interval: 0s\n")
	s := startWith(t, file, nowhere)
	before := values(t, s.inForce())
	text := "reload.interval: 0s\n"
	for _, name := range live {
		value, ok := other[name]
		if !ok {
			t.Errorf("%s is Live: put another value of it into the table of this test, and see that its part uses that", name)
			continue
		}
		if value == "FILE" {
			value = tokens
		}
		if value != "" {
			text += fmt.Sprintf("%s: %q\n", name, value)
		}
	}
	write(t, file, text)
	done, err := s.Reload("a test", false)
	if err != nil {
		t.Fatal(err)
	}
	if len(done.Restart) > 0 {
		t.Errorf("need a restart: %v", done.Restart)
	}
	after := values(t, s.inForce())
	for name := range before {
		isLive := slices.Contains(live, name) && other[name] != ""
		if changed := before[name] != after[name]; changed != isLive {
			t.Errorf("%s: %q, then %q; changed %v, live %v", name, before[name], after[name], changed, isLive)
		}
		if reported := slices.ContainsFunc(done.Changed, func(c config.Change) bool { return c.Name == name }); reported != isLive {
			t.Errorf("%s: reported %v; live %v", name, reported, isLive)
		}
	}
	if got := s.core.detector.Config().Forget; got < s.config.Facade.Tx.Max+time.Minute {
		t.Errorf("nodes are forgotten after %v, before leases end", got)
	}
	// admin.token_file excludes admin.token.
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "another-secret")
	write(t, file, strings.Replace(text, `admin.token: "a-secret-of-the-admin"`, "admin.token_file: "+secret, 1))
	if _, err := s.Reload("a test", false); err != nil {
		t.Fatal(err)
	}
	if status, text := s.fetch(http.MethodPost, "http://"+s.at.Admin+"/drain?mode=off", ""); status != http.StatusUnauthorized {
		t.Errorf("control without the token: %d %s; want 401 by the new admin.control", status, text)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestReload changes a file of settings. Long: each step needs what the one before left.
func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	write(t, file, "reload.interval: 0s\npool.max: 20\n")
	s := startWith(t, file, nowhere, "pool.queue=77")
	post := func(path string) (int, string) {
		t.Helper()
		return s.fetch(http.MethodPost, "http://"+s.at.Admin+path, "")
	}
	answer := func(path string) (done Reloaded) {
		t.Helper()
		status, text := post(path)
		if err := json.Unmarshal([]byte(text), &done); err != nil || status != 200 {
			t.Fatalf("POST %s = %d %s", path, status, text)
		}
		return done
	}
	const text = "reload.interval: 0s\npool: {max: 30, queue: 5}\napi.timeout: 7s\nadmin.token: planted-secret-one\n"
	write(t, file, text)

	dry := answer("/reload?dry_run=1")
	if len(dry.Changed) != 2 || len(dry.Restart) != 1 || !dry.DryRun || s.core.pool.Config().Max != 20 {
		t.Errorf("a dry run: %+v, pool.max = %d; want it to change nothing", dry, s.core.pool.Config().Max)
	}
	done := answer("/reload")
	if got := fmt.Sprint(done.Changed); got != fmt.Sprintf("[{pool.max 20 30 %s:2:8} {admin.token  *** %s:4:1}]", file, file) {
		t.Errorf("changed: %s", got)
	}
	if got := fmt.Sprint(done.Restart); got != fmt.Sprintf("[{api.timeout 10s 7s %s:3:1}]", file) {
		t.Errorf("restart: %s", got)
	}
	if p := s.core.pool.Config(); p.Max != 30 || p.Queue != 77 {
		t.Errorf("pool.max = %d, pool.queue = %d; want 30, and 77 of the command line", p.Max, p.Queue)
	}
	_, shown := s.get("/config")
	for _, want := range []string{`"value": "30"`, `"value": "10s"`, file + ":2:8"} {
		if !strings.Contains(shown, want) {
			t.Errorf("/config lacks %s: it must show what is in force", want)
		}
	}
	if _, metrics := s.get("/metrics"); !strings.Contains(metrics, "ydb_sidecar_config_pending") {
		t.Error("no metric of what needs a restart")
	}

	for name, tc := range map[string]struct{ text, fault string }{
		"empty":    {"", "is empty"},
		"not_yaml": {"pool: [", file + ":1:"},
		"unknown":  {"pool.max: 5\npool.maks: 7\n", file + `:2:1: "pool.maks" is not a setting`},
		"value":    {"pool:\n  max: lots\n", file + ":2:8: pool.max"},
		"range":    {"pool.max: 0\n", "pool.max = 0; must be"},
		"fit":      {"pool: {max: 5, min: 6}\n", "pool.min = 6; must be 0 to max = 5"},
		"together": {"admin: {control: socket, socket: /run/new.sock}\n",
			"together with the settings that need a restart: admin.control = socket; needs socket"},
		"token_file": {"apps.token_file: /none\n", "apps.token_file"},
	} {
		write(t, file, "")
		write(t, file, tc.text)
		status, text := post("/reload")
		if status != http.StatusConflict || !strings.Contains(text, tc.fault) {
			t.Errorf("%s: %d %s; want 409 with %s", name, status, text, tc.fault)
		}
		if got := s.core.pool.Config().Max; got != 30 {
			t.Fatalf("%s: pool.max = %d; want all as it was", name, got)
		}
		if _, last := s.get("/reload"); !strings.Contains(last, `"faults"`) {
			t.Errorf("%s: GET /reload = %s; want the faults", name, last)
		}
	}
	if state := s.reload.counts.State(); state.Bad != 8 || state.Good != 1 || !slices.Equal(state.Pending, []string{"api.timeout"}) {
		t.Errorf("%+v; want 8 failed, 1 good, and api.timeout pending", state)
	}
	// Any number of sessions counts without a restart.
	write(t, file, "reload.interval: 0s\npool.max: 60000\n")
	s.admin.Reconfigure(s.config.Admin) // the token stays as it was otherwise: that is another test
	if done := answer("/reload"); len(done.Restart) != 0 || s.core.pool.Config().Max != 60000 {
		t.Errorf("restart: %+v, pool.max = %d; want 60000 at once", done.Restart, s.core.pool.Config().Max)
	}
	if strings.Contains(s.log.String(), "planted-secret") {
		t.Error("the log shows a secret")
	}
	if status, text := post("/reload?dry_run=maybe"); status != http.StatusBadRequest {
		t.Errorf("%d %s; want 400", status, text)
	}
}

func TestAChangedFileIsReloaded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	write(t, file, "reload.interval: 100ms\npool.max: 20\n")
	s := startWith(t, file, nowhere)
	// As a mounted ConfigMap changes: what the link leads to.
	next := file + ".next"
	write(t, next, "reload.interval: 100ms\npool.max: 21\nhealth.transport_failures: 9\n")
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
	s.eventually("the new limit", func() bool { return s.core.pool.Config().Max == 21 })
	s.eventually("the new health settings", func() bool { return s.core.detector.Config().TransportFailures == 9 })
	write(t, next, "pool.max: many\n")
	if err := os.Rename(next, file); err != nil { // in one step: half a file would be another failure
		t.Fatal(err)
	}
	s.eventually("a failure that is counted", func() bool { return s.reload.counts.State().Bad == 1 })
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.eventually("another one: the file is gone", func() bool { return s.reload.counts.State().Bad == 2 })
	if got := s.core.pool.Config().Max; got != 21 {
		t.Errorf("pool.max = %d; want 21", got)
	}
}

// The file is read once for each change, and not while it changes.
func TestWhenTheFileIsLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = time.Second
		file := filepath.Join(t.TempDir(), "sidecar.yaml")
		bad := "pool.max: many\n" // so that all that can be done with it is to count the reading
		write(t, file, bad)
		a := &App{config: Default(), log: slog.New(slog.DiscardHandler)}
		a.config.Reload.Interval = interval
		a.reload.current.Store(&effective{})
		a.LoadedFrom(Origin{File: file})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.watchFile(ctx) }()
		pass := func(looks int, when string, want int64) {
			t.Helper()
			time.Sleep(time.Duration(looks) * interval)
			synctest.Wait()
			if got := a.reload.counts.State().Bad; got != want {
				t.Errorf("%s it was read %d times; want %d", when, got, want)
			}
		}
		time.Sleep(interval / 2)
		pass(5, "as it was at the start", 0)
		for range 5 {
			bad += "#\n"
			write(t, file, bad)
			pass(1, "while it changes", 0)
		}
		pass(1, "when it has stayed the same", 1)
		pass(5, "after that", 1)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		pass(5, "when it is gone", 2)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestNothingToReloadFrom(t *testing.T) {
	s := start(t, nowhere)
	s.reload.mu.Lock()
	s.reload.origin = nil
	s.reload.mu.Unlock()
	if _, err := s.Reload("a test", false); err == nil {
		t.Error("no error")
	}
	if faults := s.reload.counts.State().Faults; len(faults) > 0 {
		t.Errorf("faults %q; want none: the settings have no fault", faults)
	}
}
