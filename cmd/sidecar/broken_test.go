package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/ydb-sidecar/sidecar/internal/app"
)

// operatorArgs are what each command for a running sidecar is tried with, and the exit
// code: 1 where the sidecar must refuse, since it knows no node, no session and no call.
var operatorArgs = map[string]struct {
	args []string
	code int
}{
	"wait": {}, "drain": {args: []string{"-lameduck"}}, "reload": {}, "shutdown": {}, "findings": {}, "top": {args: []string{"-n", "1"}},
	"calls": {}, "kill-call": {args: []string{"5e55"}, code: 1},
	"pools": {}, "queue": {}, "sessions": {}, "kill": {args: []string{"5e55"}, code: 1}, "resize": {args: []string{"-max", "7"}},
	"pause": {}, "resume": {}, "log-level": {args: []string{"-level", "INFO"}}, "nodes": {}, "why": {args: []string{"7"}, code: 1},
	"ban": {args: []string{"7"}, code: 1}, "unban": {args: []string{"7"}, code: 1}, "drain-node": {args: []string{"7"}, code: 1},
	"undrain-node": {args: []string{"7"}, code: 1}, "events": {}, "statements": {},
}

// brokenFiles are files of settings that a sidecar refuses. %s is where admin.socket stands.
var brokenFiles = map[string]struct {
	text  string // "": there is no file
	warns string // part of the warning; "": there is none
	names bool   // the place of the socket is read from it
}{
	"unknown_section": {text: "pol: {max: 7}\nadmin.socket: %s\n", warns: `"pol" is not a setting`, names: true},
	"unknown_key":     {text: "pool: {maks: 7}\nadmin.socket: %s\n", warns: `"pool.maks" is not a setting`, names: true},
	"invalid_value":   {text: "pool.max: sixty\nadmin.socket: %s\n", warns: `pool.max = "sixty"; want an integer`, names: true},
	"out_of_range":    {text: "pool.max: 0\nadmin.socket: %s\n", names: true},
	"missing_secret":  {text: "ydb.auth: {kind: token_file, token_file: /nowhere/token}\nadmin.socket: %s\n", names: true},
	"broken_yaml":     {text: "admin.socket: %s\npool: [1, \n", warns: "sequence end token ']' not found"},
	"no_file":         {warns: "no such file"},
}

// Every command for a running sidecar works with a file of settings that the sidecar
// itself would refuse, however the command learns where the sidecar is.
// TestOperateAsksNoOtherSidecar has what happens where it cannot.
func TestOperateWithABrokenFile(t *testing.T) {
	names := []string{"wait"}
	for _, c := range allCommands() {
		if c.flags == sidecarFlags && c.name != "shutdown" && c.name != "wait" { // shutdown goes last
			names = append(names, c.name)
		}
	}
	names = append(names, "shutdown")
	for name, broken := range brokenFiles {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			socket, file := filepath.Join(dir, "own", "admin"), filepath.Join(dir, "c.yaml")
			if broken.text != "" {
				if err := os.WriteFile(file, []byte(strings.ReplaceAll(broken.text, "%s", socket)), 0o600); err != nil {
					t.Fatal(err)
				}
				if code, _, _ := call(t, nil, "check-config", "-config", file); code != exitFailed {
					t.Errorf("check-config: exit code %d; want %d: the file is broken", code, exitFailed)
				}
			}
			s := serveHere(t, "-set", "startup.wait=0s", "-socket", socket)
			ways := []struct {
				name    string
				environ []string
				flags   []string
				warns   string
				at      string // what the warning names
			}{
				{"admin", nil, []string{"-admin", s.ready["admin"].(string)}, broken.warns, s.ready["admin"].(string)},
				{"environment", []string{"SIDECAR_ADMIN_SOCKET=" + socket, "SIDECAR_POOL_MAKS=1"}, nil,
					"SIDECAR_POOL_MAKS: not a setting", socket},
				{"socket", []string{"SIDECAR_POOL_MAKS=1"}, []string{"-socket", socket}, "", ""},
			}
			if broken.names {
				ways = append(ways, ways[0])
				ways[len(ways)-1].name, ways[len(ways)-1].flags, ways[len(ways)-1].at = "file", nil, socket
			}
			for _, command := range names {
				try, ok := operatorArgs[command]
				if !ok {
					t.Fatalf("operatorArgs has no row for %q", command)
				}
				for _, way := range ways {
					if command == "shutdown" && way.name != "socket" {
						continue // it ends the sidecar
					}
					args := slices.Concat([]string{command, "-config", file}, way.flags, try.args)
					code, stdout, stderr := call(t, way.environ, args...)
					warned := strings.HasPrefix(stderr, "sidecar: warning: ignored: ")
					refused := slices.ContainsFunc([]string{"no such node", "no such session", "no such call"},
						func(text string) bool { return strings.Contains(stderr, text) })
					if code != try.code || warned != (way.warns != "") || !strings.Contains(stderr, way.warns) ||
						warned && !strings.Contains(stderr, "; asking the sidecar at "+way.at+"\n") || refused != (code == exitFailed) {
						t.Errorf("%s, found by %s: exit code %d, stdout %q, stderr %q; want %d, and the warning %q",
							command, way.name, code, stdout, stderr, try.code, way.warns)
					}
				}
			}
			s.end(t)
		})
	}
}

// end stops a sidecar that may have been stopped by a command.
func (s *served) end(t *testing.T) {
	t.Helper()
	s.signals <- syscall.SIGTERM
	if code := <-s.code; code != 0 {
		t.Errorf("exit code of the sidecar %d; want 0", code)
	}
}

// A fault that hides which sidecar is meant is no warning: another one, at the default
// address or at what is left of the file, is not asked.
func TestOperateAsksNoOtherSidecar(t *testing.T) {
	other, asked := http.NewServeMux(), atomic.Int32{}
	other.HandleFunc("/", func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	server := httptest.NewServer(other)
	defer server.Close()
	elsewhere := server.Listener.Addr().String()
	// Whether this succeeds or another program has the port: no command may get as far.
	if l, err := net.Listen("tcp", app.Default().Admin.Listen); err == nil {
		atDefault := httptest.NewUnstartedServer(other)
		atDefault.Listener.Close()
		atDefault.Listener = l
		atDefault.Start()
		defer atDefault.Close()
	}
	for name, tc := range map[string]struct {
		text    string // of the file; "": there is none
		environ []string
		fault   string
	}{
		"no_file":         {fault: "no such file"},
		"broken_yaml":     {text: "pool: [1, \n", fault: "sequence end token ']' not found"},
		"no_mapping":      {text: "- 1\n", fault: "want settings of the form name: value"},
		"like_admin":      {text: "admn: {socket: /x}\n", fault: `"admn" is not a setting`},
		"like_admin_flat": {text: "Admin.socket: /x\n", fault: `"Admin.socket" is not a setting`},
		"admin_socket":    {text: "admin_socket: /x\n", fault: `"admin_socket" is not a setting`},
		"admin_too_deep":  {text: "pool:\n  max: 7\n  admin:\n    socket: /x\n", fault: `"pool.admin" is not a setting`},
		"wrapped":         {text: "sidecar: {pool: {max: 7}, admin: {socket: /x}}\n", fault: `"sidecar" is not a setting`},
		"like_a_variable": {text: "pool.max: 7\n", environ: []string{"SIDECAR_ADMN_SOCKET=/x"},
			fault: "SIDECAR_ADMN_SOCKET: not a setting"},
		"no_section": {text: "admin: 7402\n", fault: "want settings of the form name: value"},
		"no_text":    {text: "admin: {listen: " + elsewhere + ", socket: {a: b}}\n", fault: "admin.socket: want a value"},
		"no_setting": {text: "admin: {listen: " + elsewhere + ", sockte: /x}\n", fault: `"admin.sockte" is not a setting`},
		"set_twice":  {text: "admin.listen: " + elsewhere + "\nadmin: {listen: 127.0.0.1:1}\n", fault: "admin.listen is set twice"},
		"no_variable": {text: "pool.max: 7\n", environ: []string{"SIDECAR_ADMIN_SOCKTE=/x"},
			fault: "SIDECAR_ADMIN_SOCKTE: not a setting"},
		"bad_variable": {text: "pool.max: 7\n", environ: []string{"SIDECAR_ADMIN_PPROF=perhaps"},
			fault: "SIDECAR_ADMIN_PPROF: admin.pprof"},
		"names_no_socket": {text: "pool: [1, \n", environ: []string{"SIDECAR_ADMIN_SOCKET="}, fault: "sequence end token"},
	} {
		file := filepath.Join(t.TempDir(), "c.yaml")
		if tc.text != "" {
			if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, command := range []string{"nodes", "shutdown"} {
			code, _, stderr := call(t, tc.environ, command, "-config", file)
			if code != exitFailed || !strings.Contains(stderr, tc.fault) ||
				!strings.Contains(stderr, "give -socket or -admin, as in: sidecar "+command+" -admin 127.0.0.1:7402\n") {
				t.Errorf("%s: %s: exit code %d, stderr %q; want %d, %q and what to give", name, command, code, stderr, exitFailed, tc.fault)
			}
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("another sidecar was asked %d times", n)
	}
}

// A fault of the command line itself is no warning.
func TestOperateRefusesItsOwnFaults(t *testing.T) {
	for _, tc := range []struct {
		args   []string
		stderr string
	}{
		{[]string{"-set", "pool.maks=7"}, `"pool.maks" is not a setting`},
		{[]string{"-set", "admin.token=x"}, "is a secret"},
		{[]string{"-admin", "7402"}, `admin.listen = "7402"; must be host:port`},
	} {
		if code, _, stderr := call(t, nil, append([]string{"nodes"}, tc.args...)...); code != exitFailed ||
			!strings.Contains(stderr, tc.stderr) {
			t.Errorf("%q: exit code %d, stderr %q; want %d, %q", tc.args, code, stderr, exitFailed, tc.stderr)
		}
	}
}

// Without the token much is still allowed.
func TestOperateWithoutTheTokenFile(t *testing.T) {
	admin, _ := fakeAdmin(t, map[string]string{"/state/nodes": "{}"})
	code, stdout, stderr := call(t, nil, "nodes", "-admin", admin, "-set", "admin.token_file=/nowhere/token")
	if code != 0 || !strings.HasPrefix(stdout, "ID ") || !strings.HasPrefix(stderr, "sidecar: warning: ignored: admin.token_file: ") {
		t.Errorf("exit code %d, stdout %q, stderr %q; want 0, the table and a warning", code, stdout, stderr)
	}
}

// The preStop hooks of the manifests, with a variable that is no setting.
func TestPreStopWithABrokenConfiguration(t *testing.T) {
	for _, name := range []string{"native-sidecar.yaml", "job.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		var pod struct {
			Spec struct {
				Template struct {
					Spec struct {
						InitContainers []struct {
							Env       []struct{ Name, Value string }
							Lifecycle struct {
								PreStop struct{ Exec struct{ Command []string } } `yaml:"preStop"`
							}
						} `yaml:"initContainers"`
					}
				}
			}
		}
		if err := yaml.Unmarshal(text, &pod); err != nil {
			t.Fatal(err)
		}
		container := pod.Spec.Template.Spec.InitContainers[0]
		socket := filepath.Join(t.TempDir(), "own", "admin")
		environ := []string{"SIDECAR_POOL_MAKS=7", "SIDECAR_POOL_MIN=few"}
		for _, e := range container.Env {
			if e.Name == "SIDECAR_ADMIN_SOCKET" {
				e.Value = socket
			}
			environ = append(environ, e.Name+"="+e.Value)
		}
		s := serveHere(t, "-set", "startup.wait=0s", "-socket", socket)
		hook := container.Lifecycle.PreStop.Exec.Command
		if len(hook) == 0 || hook[0] != "/sidecar" {
			t.Fatalf("%s: preStop %q; want the sidecar's own command", name, hook)
		}
		code, stdout, stderr := call(t, environ, hook[1:]...)
		if code != 0 || !strings.HasPrefix(stdout, "lame duck") || !strings.Contains(stderr, "SIDECAR_POOL_MAKS") {
			t.Errorf("%s: %q: exit code %d, stdout %q, stderr %q; want a lame duck and a warning", name, hook, code, stdout, stderr)
		}
		s.end(t)
	}
}
