package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/doctor"
)

// The last line is about the sidecar that runs with the same settings.
func TestDoctorAsksTheSidecar(t *testing.T) {
	for _, tc := range []struct {
		name, answer string
		result       doctor.Result
		text, do     string
	}{
		{"well", `{"findings":[]}`, doctor.Good, "the running sidecar finds nothing wrong", ""},
		{"ill", `{"findings":[{"code":"NODE_DEAD","severity":"problem"},{"code":"NODE_BANNED","severity":"note"}]}`, doctor.Warn,
			"findings of the running sidecar: NODE_DEAD, NODE_BANNED", "Run sidecar findings"},
		{"only_a_note", `{"findings":[{"code":"NODE_BANNED","severity":"note"}]}`, doctor.Good,
			"findings of the running sidecar: NODE_BANNED", ""},
		{"no_sidecar", `<html>`, doctor.Skipped, "not asked: the answer is not that of a sidecar", ""},
		{"none", "", doctor.Skipped, "not asked: none runs with these settings", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			admin := "127.0.0.1:1" // no sidecar listens there
			if tc.answer != "" {
				admin, _ = fakeAdmin(t, map[string]string{"/state/findings": tc.answer})
			}
			_, stdout, _ := call(t, nil, "doctor", "-json", "-ydb", "grpc://127.0.0.1:1/local", "-admin", admin)
			var all []doctor.Exam
			if err := json.Unmarshal([]byte(stdout), &all); err != nil || len(all) == 0 {
				t.Fatalf("%v in %s", err, stdout)
			}
			x := all[len(all)-1]
			if x.Check != "sidecar" || x.Result != tc.result || !strings.HasPrefix(x.Text, tc.text) || !strings.HasPrefix(x.Do, tc.do) ||
				(x.Do == "") != (tc.do == "") {
				t.Errorf("%+v; want %+v", x, tc)
			}
		})
	}
}

// Against a working cluster: proof/systemtest.
func TestDoctorWithoutACluster(t *testing.T) {
	const address = "127.0.0.1:1" // nobody answers there, and no other program takes such a port
	for _, tc := range []struct {
		name  string
		args  []string
		check string // the one that fails
		text  string // a part of what it says
		do    string // a part of what to do
	}{
		{"bad_settings", []string{"-set", "pool.max=0"}, "config", "pool.max = 0", "settings.md"},
		{"nobody_listens", []string{"-ydb", "grpc://" + address + "/local"}, "tcp", "refused", "Check the port in ydb.url"},
		{"no_ca_file", []string{"-ydb", "grpcs://" + address + "/local", "-set", "ydb.ca_file=/no/such/file"}, "config",
			"/no/such/file", "settings.md"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := call(t, nil, append([]string{"doctor", "-o", "json"}, tc.args...)...)
			var all []doctor.Exam
			if err := json.Unmarshal([]byte(stdout), &all); err != nil {
				t.Fatalf("%v in %s", err, stdout)
			}
			if code != exitFailed || !strings.Contains(stderr, "something fails") {
				t.Errorf("exit code %d, %q", code, stderr)
			}
			failed := 0
			for _, x := range all {
				if x.Result != doctor.Bad {
					continue
				}
				failed++
				if x.Check != tc.check || !strings.Contains(x.Text, tc.text) || !strings.Contains(x.Do, tc.do) {
					t.Errorf("%+v; want %s with %q and %q", x, tc.check, tc.text, tc.do)
				}
			}
			if failed != 1 {
				t.Errorf("%d checks failed: %+v", failed, all)
			}
		})
	}
}
