package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/doctor"
)

// The last lines are about the sidecar that runs with the same settings.
func TestDoctorAsksTheSidecar(t *testing.T) {
	const well = `{"nodes":[{"id":1,"health":"healthy"}]}`
	for _, tc := range []struct {
		name, findings, nodes string
		want                  []doctor.Exam
	}{
		{"well", `{"findings":[]}`, well, []doctor.Exam{{Result: doctor.Good, Text: "the running sidecar finds nothing wrong"}}},
		{"ill", `{"findings":[{"code":"NODE_DEAD","severity":"problem","text":"node 2 is dead","do":"Repair it.","node":2},
			{"code":"NODE_BANNED","severity":"note","text":"node 1 is banned","do":"Unban it.","node":1}]}`,
			`{"nodes":[{"id":1,"health":"healthy","banned":true},{"id":2,"health":"ejected"}]}`, []doctor.Exam{
				{Result: doctor.Warn, Text: "node 2 is dead (NODE_DEAD)", Do: "Repair it."},
				{Result: doctor.Good, Text: "node 1 is banned (NODE_BANNED)"},
			}},
		{"a_node_without_a_finding", `{"findings":[{"code":"OVERLOAD","severity":"problem","text":"overload","do":"Wait."}]}`,
			`{"nodes":[{"id":1,"health":"healthy"},{"id":2,"address":"a:1","health":"healthy","missing":true,"reason":"left discovery"}]}`,
			[]doctor.Exam{
				{Result: doctor.Warn, Text: "node 2 (a:1) is healthy,missing: left discovery", Do: "Run sidecar why 2 for the evidence."},
				{Result: doctor.Warn, Text: "overload (OVERLOAD)", Do: "Wait."},
			}},
		{"more_nodes_than_are_listed", `{"findings":[]}`,
			`{"nodes":[{"id":1,"health":"healthy"}` + strings.Repeat(`,{"id":7,"address":"a:1","health":"suspect"}`, toldOfRunning+3) + `]}`,
			append(slices.Repeat([]doctor.Exam{
				{Result: doctor.Warn, Text: "node 7 (a:1) is suspect: no reason is known", Do: "Run sidecar why 7 for the evidence."},
			}, toldOfRunning),
				doctor.Exam{Result: doctor.Warn, Text: "nodes that are not well, besides these: 3", Do: "Run sidecar nodes."})},
		{"no_sidecar", `<html>`, well, []doctor.Exam{{Result: doctor.Skipped,
			Text: "not asked: the answer is not that of a sidecar: invalid character '<' looking for beginning of value"}}},
		{"none", "", "", []doctor.Exam{{Result: doctor.Skipped, Text: "not asked: none runs with these settings"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			admin := "127.0.0.1:1" // no sidecar listens there
			if tc.findings != "" {
				admin, _ = fakeAdmin(t, map[string]string{"/state/findings": tc.findings, "/state/nodes": tc.nodes})
			}
			_, stdout, _ := call(t, nil, "doctor", "-json", "-ydb", "grpc://127.0.0.1:1/local", "-admin", admin)
			var all []doctor.Exam
			if err := json.Unmarshal([]byte(stdout), &all); err != nil || len(all) == 0 {
				t.Fatalf("%v in %s", err, stdout)
			}
			for n := range tc.want {
				tc.want[n].Check = "sidecar"
			}
			told := slices.DeleteFunc(all, func(x doctor.Exam) bool { return x.Check != "sidecar" })
			if !slices.Equal(told, tc.want) {
				t.Errorf("%+v; want %+v", told, tc.want)
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
