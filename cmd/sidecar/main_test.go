package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// call runs the program in this process to its end.
func call(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(&environment{
		stdout: &out, stderr: &errs, environ: environ, signals: make(chan os.Signal),
		exit: func(code int) { t.Errorf("exit(%d)", code) },
	}, args)
	return code, out.String(), errs.String()
}

func TestCommandLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("pool: {max: 7}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("pool: {maks: 7}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	faulty := filepath.Join(t.TempDir(), "faulty.yaml")
	if err := os.WriteFile(faulty, []byte("pool:\n  max: 7\n\tmin: 1\napi:\n  timeout: 10\ntx.max: -1s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tc := range []struct {
		name    string
		environ []string
		args    []string
		code    int
		stdout  string
		stderr  string // a part of it
		lines   int    // of stderr, when it is one clear line
	}{
		{name: "nothing", code: 2, stderr: "Usage: sidecar COMMAND"},
		{name: "help", args: []string{"help"}, stdout: "check-config"},
		{name: "unknown_command", args: []string{"run"}, code: 2, stderr: `there is no command "run"`, lines: 1},
		{name: "unknown_flag", args: []string{"serve", "-port", "1"}, code: 2,
			stderr: "sidecar serve: there is no flag -port\nusage: sidecar serve [-takeover] [flags]; sidecar serve -h has more\n",
			lines:  2},
		{name: "flags_of_a_command", args: []string{"serve", "-h"}, stdout: "-ydb URL "},
		{name: "surplus_argument", args: []string{"check-config", "x"}, code: 2, stderr: `unexpected "x"`, lines: 2},
		{name: "good", args: []string{"check-config", "-config", file}, stdout: "OK: all settings are valid\n"},
		{name: "file_of_the_variable", environ: []string{"SIDECAR_CONFIG=" + file}, args: []string{"check-config", "-print"},
			stdout: "pool.max: \"7\" # "},
		{name: "flag_before_the_variable", environ: []string{"SIDECAR_CONFIG=" + bad}, args: []string{"check-config", "-config", file},
			stdout: "OK: "},
		{name: "bad_file_of_the_variable", environ: []string{"SIDECAR_CONFIG=" + bad}, args: []string{"doctor"}, code: 1,
			stdout: "FAIL  config       " + bad + ":1:8: \"pool.maks\" is not a setting"},
		{name: "empty_variable", environ: []string{"SIDECAR_CONFIG="}, args: []string{"check-config"}, stdout: "OK: "},
		{name: "sample", args: []string{"check-config", "-config", "../../deploy/sidecar.yaml"}, stdout: "OK: all settings are valid\n"},
		{name: "idle_longer_than_max", args: []string{"check-config", "-set", "tx.idle=10m", "-set", "tx.max=1m"}, stdout: "OK: ",
			stderr: "-set: tx.idle = 10m0s has no effect: tx.max = 1m0s ends every transaction before it is idle", lines: 1},
		{name: "a_default_is_no_warning", args: []string{"check-config", "-set", "tx.max=1s"}, stdout: "OK: ", stderr: ""},
		{name: "one_fault_a_line", args: []string{"check-config", "-set", "pool.max=0", "-set", "tx.idle=x"}, code: 1,
			stderr: "-set: tx.idle = \"x\"; want a duration such as 500ms, 30s or 5m\n-set: pool.max = 0; must be 1 to 60000\n" +
				"sidecar: the settings have 2 faults\n", lines: 3},
		{name: "faults_of_every_kind", args: []string{"check-config", "-config", faulty}, code: 1,
			stderr: faulty + ":3:1: a tab; YAML takes only spaces to indent\n" + faulty +
				":5:12: api.timeout = \"10\"; want a duration such as " +
				"500ms, 30s or 5m\n" + faulty + ":6:1: tx.max = -1s; must be > 0\nsidecar: the settings have 3 faults\n", lines: 4},
		{name: "print", environ: []string{"SIDECAR_POOL_MIN=2"},
			args: []string{"check-config", "-config", file, "-print"}, stdout: "pool.min: \"2\" # SIDECAR_POOL_MIN\n"},
		{name: "unknown_key", args: []string{"serve", "-config", bad}, code: 1,
			stderr: "sidecar: " + bad + `:1:8: "pool.maks" is not a setting; the nearest is pool.max`, lines: 1},
		{name: "unknown_variable", environ: []string{"SIDECAR_POOL_MAKS=3"}, args: []string{"serve"}, code: 1,
			stderr: "SIDECAR_POOL_MAKS", lines: 1},
		{name: "all_bad_values",
			args: []string{"serve", "-set", "pool.max=0", "-set", "tx.idle=x", "-grpc", "7400", "-log", "xml"}, code: 1,
			stderr: `-set: tx.idle = "x"; want a duration such as 500ms, 30s or 5m; -set: pool.max = 0; must be 1 to 60000; ` +
				`-grpc: grpc.listen = "7400"; must be host:port, the port at most 65535; -log: log.format = "xml"; must be json or text`,
			lines: 1},
		{name: "port_in_use",
			args:   []string{"serve", "-grpc", taken.Addr().String(), "-http", "127.0.0.1:0", "-admin", "127.0.0.1:0"},
			code:   1,
			stderr: "grpc.listen: listen tcp " + taken.Addr().String() + ": bind: address already in use", lines: 1},
		{name: "no_file", args: []string{"serve", "-config", file + "x"}, code: 1, stderr: "no such file", lines: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := call(t, tc.environ, tc.args...)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %d, %q, %q", code, stdout, stderr, tc.code, tc.stdout, tc.stderr)
			}
			if n := strings.Count(stderr, "\n"); tc.lines != 0 && n != tc.lines {
				t.Errorf("%d lines on stderr; want %d:\n%s", n, tc.lines, stderr)
			}
		})
	}
}

// What check-config prints is a file that means the same.
func TestPrintedConfigIsAFile(t *testing.T) {
	_, printed, _ := call(t, nil, "check-config", "-print", "-set", "pool.max=7", "-set", "http.hosts=a,b:1")
	file := filepath.Join(t.TempDir(), "printed.yaml")
	if err := os.WriteFile(file, []byte(printed), 0o600); err != nil {
		t.Fatal(err)
	}
	code, again, stderr := call(t, nil, "check-config", "-print", "-config", file)
	if code != 0 {
		t.Fatal(stderr)
	}
	if got, want := withoutSources(again), withoutSources(printed); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func withoutSources(printed string) string {
	var b strings.Builder
	for line := range strings.Lines(printed) {
		text, _, _ := strings.Cut(line, " #")
		b.WriteString(text + "\n")
	}
	return b.String()
}

// served is a sidecar of this program that runs in this process.
type served struct {
	signals chan os.Signal
	exited  atomic.Int64
	ready   map[string]any
	code    chan int
	stderr  *os.File
}

func serveHere(t *testing.T, args ...string) *served {
	t.Helper()
	logs, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { logs.Close() })
	s := &served{signals: make(chan os.Signal, 2), code: make(chan int, 1), stderr: logs}
	out, in := io.Pipe()
	go func() {
		s.code <- run(
			&environment{stdout: in, stderr: logs, environ: nil, signals: s.signals, exit: func(code int) { s.exited.Store(int64(code)) }},
			append(
				[]string{"serve", "-ydb", "grpc://127.0.0.1:1/local", "-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0",
					"-admin", "127.0.0.1:0"},
				args...,
			),
		)
	}()
	if err := json.NewDecoder(out).Decode(&s.ready); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestServeUntilTheSignal(t *testing.T) {
	s := serveHere(t, "-set", "startup.wait=0s")
	code, _, stderr := call(t, nil, "wait", "-admin", s.ready["admin"].(string))
	if code != 0 {
		t.Errorf("wait: exit code %d, %s", code, stderr)
	}
	// A slow machine needs more time for one answer.
	for limit := 300 * time.Millisecond; limit < time.Minute; limit *= 3 {
		code, _, stderr = call(t, nil, "wait", "-deep", "-timeout", limit.String(), "-admin", s.ready["admin"].(string))
		if strings.Contains(stderr, "no node is known") {
			break
		}
	}
	if code != 1 || !strings.Contains(stderr, "no node is known") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("wait -deep without a cluster: exit code %d, %q", code, stderr)
	}
	s.signals <- syscall.SIGTERM
	if code := <-s.code; code != 0 {
		t.Errorf("exit code %d; want 0", code)
	}
	if s.ready["ready"] != true {
		t.Errorf("ready line %v", s.ready)
	}
}

func TestHangupReloads(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("reload.interval: 0s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveHere(t, "-config", file)
	if err := os.WriteFile(file, []byte("reload.interval: 0s\npool.max: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	await.Right(t, "reloaded", func() string {
		text, err := os.ReadFile(s.stderr.Name())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), `"msg":"configuration reloaded","cause":"SIGHUP","changed":1`) {
			return ""
		}
		return string(text)
	})
	s.signals <- syscall.SIGTERM
	if code := <-s.code; code != 0 {
		t.Errorf("exit code %d; want 0", code)
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	s := serveHere(t, "-set", "drain.delay=1h")
	s.signals <- syscall.SIGTERM
	// Nothing says when the first one was taken, from which on counts whether another is
	// the same signal: TestHeed has that.
	again := time.NewTicker(sameSignal)
	defer again.Stop()
	for done := false; !done; {
		select {
		case <-again.C:
			select {
			case s.signals <- syscall.SIGTERM:
			default: // it has yet to take the last one
			}
		case code := <-s.code:
			if done = true; code != 1 {
				t.Errorf("exit code %d; want 1: it was not orderly", code)
			}
		}
	}
	text, err := os.ReadFile(s.stderr.Name())
	if err != nil || !strings.Contains(string(text), "sidecar: stopped at once, before the end was orderly\n") {
		t.Errorf("stderr %s, %v", text, err)
	}
}

// A signal within a second of the first one is the same signal.
func TestHeed(t *testing.T) {
	const never = -1
	for name, tc := range map[string]struct {
		signals []time.Duration
		hurry   time.Duration
	}{
		"one":                     {[]time.Duration{0}, never},
		"process_and_group":       {[]time.Duration{0, time.Millisecond}, never},
		"again_and_again":         {[]time.Duration{0, 300 * time.Millisecond, 900 * time.Millisecond}, never},
		"later":                   {[]time.Duration{0, 1500 * time.Millisecond}, 1500 * time.Millisecond},
		"twice_each":              {[]time.Duration{0, time.Millisecond, 3 * time.Second, 3001 * time.Millisecond}, 3 * time.Second},
		"the_first_after_a_while": {[]time.Duration{time.Minute, time.Minute + time.Millisecond}, never},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signals, over := make(chan os.Signal, 2), make(chan struct{})
				began := time.Now()
				stopped, hurried := time.Duration(never), time.Duration(never)
				var exited atomic.Bool
				e := &environment{signals: signals, exit: func(int) { exited.Store(true) }}
				go func() {
					for _, at := range tc.signals {
						time.Sleep(at - time.Since(began))
						signals <- syscall.SIGTERM
					}
					time.Sleep(500 * time.Millisecond)
					close(over)
				}()
				e.heed(over, func(error) { stopped = time.Since(began) }, func() { hurried = time.Since(began) })
				<-over
				if stopped != tc.signals[0] || hurried != tc.hurry || exited.Load() {
					t.Errorf("stopped after %v, hurried after %v, exited %v; want %v, %v, false", stopped, hurried,
						exited.Load(), tc.signals[0], tc.hurry)
				}
			})
		})
	}
}

// Two signals within a millisecond, as from a program that stops a process and its group, are one signal.
func TestTwoSignalsEndAProcessInOrder(t *testing.T) {
	c := exec.CommandContext(t.Context(), filepath.Join(program(t), "sidecar"), "serve", "-ydb", "grpc://127.0.0.1:1/local",
		"-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-set", "startup.wait=0s", "-set", "drain.delay=200ms")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil { // it serves
		t.Error(err)
	}
	for range 2 {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	if err := c.Wait(); err != nil {
		t.Errorf("%v; want an end in good order", err)
	}
}

func TestWaitIsInterrupted(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	signals := make(chan os.Signal, 1)
	signals <- os.Interrupt
	var stderr bytes.Buffer
	code := run(&environment{stdout: io.Discard, stderr: &stderr, signals: signals},
		[]string{"wait", "-admin", server.Listener.Addr().String()})
	if code != 1 || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
}

func TestReachable(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:7402": "127.0.0.1:7402", ":7402": "127.0.0.1:7402", "0.0.0.0:7402": "127.0.0.1:7402",
		"[::]:7402": "127.0.0.1:7402", "localhost:1": "localhost:1", "10.0.0.1:1": "10.0.0.1:1",
	} {
		if got := reachable(listen); got != want {
			t.Errorf("reachable(%q) = %q; want %q", listen, got, want)
		}
	}
}
