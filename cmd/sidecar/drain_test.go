package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// At a terminal a stop is asked for. Nothing else is, and nothing is asked without a terminal.
func TestStopAsks(t *testing.T) {
	var stops atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			stops.Add(1)
		}
		_, _ = io.WriteString(w, `{"stage":"draining"}`)
	}))
	defer server.Close()
	for _, tc := range []struct {
		name     string
		args     []string
		terminal bool
		answer   string
		asked    bool
		stopped  bool
	}{
		{"yes", []string{"drain"}, true, "y\n", true, true},
		{"yes_in_full", []string{"drain"}, true, "Yes\n", true, true},
		{"no", []string{"drain"}, true, "n\n", true, false},
		{"only_return", []string{"drain"}, true, "\n", true, false},
		{"the_end_of_the_input", []string{"drain"}, true, "", true, false},
		{"another_word", []string{"drain"}, true, "yikes\n", true, false},
		{"answered_by_the_flag", []string{"drain", "-yes"}, true, "", false, true},
		{"on_a_pipe", []string{"drain"}, false, "", false, true},
		{"shutdown", []string{"shutdown", "-wait=false"}, true, "n\n", true, false},
		{"shutdown_on_a_pipe", []string{"shutdown", "-wait=false"}, false, "", false, true},
		{"lame_duck", []string{"drain", "-lameduck"}, true, "", false, true},
		{"back", []string{"drain", "-off"}, true, "", false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stops.Store(0)
			var stdout, stderr bytes.Buffer
			code := run(&environment{
				stdin: strings.NewReader(tc.answer), stdout: &stdout, stderr: &stderr, asks: tc.terminal,
				signals: make(chan os.Signal),
			}, append(tc.args, "-admin", server.Listener.Addr().String()))
			if asked := strings.Contains(stdout.String(), "Go on? [y/N] "); asked != tc.asked {
				t.Errorf("asked: %v; want %v: %q", asked, tc.asked, stdout.String())
			}
			if stopped := stops.Load() == 1; stopped != tc.stopped || (code == 0) != tc.stopped {
				t.Errorf("stopped: %v, exit code %d, stderr %q; want %v", stopped, code, stderr.String(), tc.stopped)
			}
		})
	}
}

// A question is not asked about a sidecar that does not run, and a signal ends it.
func TestQuestionEnds(t *testing.T) {
	admin, _ := fakeAdmin(t, map[string]string{"/drain": `{"stage":"serving"}`})
	stdin, typed := io.Pipe()
	defer typed.Close()
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGINT
	var stdout, stderr bytes.Buffer
	code := run(&environment{stdin: stdin, stdout: &stdout, stderr: &stderr, asks: true, signals: signals},
		[]string{"drain", "-admin", admin})
	if code != exitFailed || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("exit code %d, stderr %q; want %d: it was interrupted", code, stderr.String(), exitFailed)
	}
	stdout.Reset()
	code = run(&environment{stdin: stdin, stdout: &stdout, stderr: &stderr, asks: true, signals: signals},
		[]string{"drain", "-admin", "127.0.0.1:1"})
	if code != exitNobody || stdout.Len() > 0 {
		t.Errorf("exit code %d, stdout %q; want %d and no question", code, stdout.String(), exitNobody)
	}
}
