package main

import (
	"strings"
	"testing"
)

// pause -wait says what it waits for, and fails when its time is up or somebody resumes.
func TestPauseWait(t *testing.T) {
	for name, tc := range map[string]struct {
		quiet          string
		code           int
		stdout, stderr string
	}{
		"quiet": {`{"paused":true,"quiet":true}`, 0, "paused; nothing is under way at any node\n", ""},
		"its time is up": {`{"paused":true,"waits_for":"2 sessions in use, 1 calls at nodes"}`, 1, "",
			"still under way at nodes after 1ms: 2 sessions in use, 1 calls at nodes"},
		"resumed meanwhile": {`{"paused":false,"waits_for":"1 calls at nodes"}`, 1, "", "calls were resumed meanwhile"},
		"no sidecar":        {`<html>`, 1, "", "the answer is not that of a sidecar"},
	} {
		t.Run(name, func(t *testing.T) {
			admin, _ := fakeAdmin(t, map[string]string{"/state/pause": tc.quiet})
			code, stdout, stderr := call(t, nil, "pause", "-wait", "-timeout", "1ms", "-admin", admin)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %d, %q, %q", code, stdout, stderr, tc.code, tc.stdout, tc.stderr)
			}
		})
	}
}
