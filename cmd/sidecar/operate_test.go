package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// The commands against a sidecar of this program, over its Unix socket.
func TestOperate(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "own", "admin")
	s := serveHere(t, "-set", "startup.wait=0s", "-socket", socket)
	admin := s.ready["admin"].(string)
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{name: "nodes", args: []string{"nodes"},
			stdout: "ID  ADDRESS  ZONE  STATE  USE  WEIGHT  SESSIONS  CALLS  LATENCY  REASON\nno node is known; sidecar doctor says why\n"},
		{name: "nodes_as_json", args: []string{"nodes", "-json"}, stdout: `"nodes": []`},
		{name: "events", args: []string{"events"}},
		{name: "why_of_an_unknown_node", args: []string{"why", "7"}, code: 1, stderr: "no such node: 7"},
		{name: "ban_of_an_unknown_node", args: []string{"ban", "7", "-for", "1m", "-reason", "x"}, code: 1, stderr: "no such node: 7"},
		{name: "flags_before_the_node", args: []string{"ban", "-for", "1m", "7"}, code: 1, stderr: "no such node: 7"},
		{name: "not_a_node", args: []string{"unban", "x/../y"}, code: 1, stderr: `"x/../y" is not the number of a node; sidecar nodes `},
		{name: "two_nodes", args: []string{"why", "7", "8"}, code: 2, stderr: `unexpected "8"`},
		{name: "no_node", args: []string{"drain-node"}, code: 2, stderr: "sidecar drain-node: want the number of a node"},
		{name: "no_node_for_undrain", args: []string{"undrain-node"}, code: 2, stderr: "sidecar undrain-node: want the number of a node"},
		{name: "bad_duration", args: []string{"ban", "7", "-for", "-1s"}, code: 1, stderr: "want a duration"},
		{name: "two_modes", args: []string{"drain", "-lameduck", "-wait"}, code: 2, stderr: "-lameduck and -off each stand alone"},
		{name: "pools", args: []string{"pools"},
			stdout: "POOL  ACTIVE  WAITING  IDLE  MAXWAIT  OPENING  CLOSING  MAX  MIN  STATE\nown   0       0        0     -"},
		{name: "pools_as_json", args: []string{"pools", "-o", "json"}, stdout: `"waiting": {`},
		{name: "another_output", args: []string{"pools", "-o", "xml"}, code: 2, stderr: "want table or json"},
		{name: "queue", args: []string{"queue"}, stdout: "OK: no caller waits (pool.queue has room for 1000)\n"},
		{name: "queue_as_json", args: []string{"queue", "-o", "json"}, stdout: `"queues": []`},
		{name: "sessions", args: []string{"sessions"}, stdout: "0 of 0 sessions are in use\n"},
		{name: "sessions_as_json", args: []string{"sessions", "-json"}, stdout: `"sessions": []`},
		{name: "too_many_sessions", args: []string{"sessions", "-n", "10001"}, code: 1, stderr: "want 1 to 10000"},
		{name: "kill_of_an_unknown_session", args: []string{"kill", "5e55"}, code: 1,
			stderr: `no such session: "5e55"; sidecar sessions lists them, with -idle the unused ones too`},
		{name: "kill_of_none", args: []string{"kill"}, code: 2, stderr: "want the short hash of a session"},
		{name: "calls", args: []string{"calls", "-app", "shop", "-min", "1s"}, stdout: "no call is under way\n"},
		{name: "calls_as_json", args: []string{"calls", "-json"}, stdout: `"calls": []`},
		{name: "too_many_calls", args: []string{"calls", "-n", "10001"}, code: 1, stderr: "want 1 to 10000"},
		{name: "kill_of_an_unknown_call", args: []string{"kill-call", "0af7651916cd43dd8448eb211c80319c"}, code: 1,
			stderr: `no such call: "0af7651916cd43dd8448eb211c80319c" is neither a trace id nor the name of an open call; sidecar calls lists them`},
		{name: "kill_of_no_call", args: []string{"kill-call"}, code: 2, stderr: "want a trace id"},
		{name: "resize", args: []string{"resize", "-max", "7"}, stdout: "pool running: max 7, min 0; 0 in use, 0 idle, 0 waiting\n"},
		{name: "resize_beyond_the_room", args: []string{"resize", "-max", "60001"}, code: 1, stderr: "max = 60001; must be 1 to 60000"},
		{name: "resize_to_what_cannot_be", args: []string{"resize", "-max", "7", "-min", "8"}, code: 1,
			stderr: "min = 8; must be 0 to max = 7"},
		{name: "resize_to_nothing", args: []string{"resize"}, code: 1, stderr: "want max, min or both"},
		{name: "pause", args: []string{"pause"}, stdout: "pool paused: max 7"},
		{name: "pause_until_quiet", args: []string{"pause", "-wait"}, stdout: "paused; nothing is under way at any node\n"},
		{name: "resume", args: []string{"resume"}, stdout: "pool running: max 7"},
		{name: "log_level", args: []string{"log-level", "-level", "WARN"}, stdout: "the level of the log is WARN\n"},
		{name: "no_log_level", args: []string{"log-level", "-level", "LOUD"}, code: 1, stderr: "want DEBUG, INFO, WARN or ERROR"},
		{name: "top", args: []string{"top", "-n", "1"},
			stdout: "POOL     [                    ]  active 0  idle 0  opening 0  max 7  running\n"},
		{name: "top_where_there_is_no_terminal", args: []string{"top"}, stdout: "ERRORS   none\n"},
		{name: "top_as_json", args: []string{"top", "-o", "json"}, stdout: `"findings":[`},
		{name: "top_too_often", args: []string{"top", "-interval", "1ms"}, code: 2, stderr: "want at least 100ms"},
		{name: "lame_duck", args: []string{"drain", "-lameduck"}, stdout: "lame duck; waits for SIGTERM, or mode=off\n"},
		{name: "lame_duck_again", args: []string{"drain", "-lameduck"}, stdout: "lame duck; "},
		{name: "back", args: []string{"drain", "-off"}, stdout: "serving\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for how, flags := range map[string][]string{"socket": {"-socket", socket}, "tcp": {"-admin", admin},
				"tcp_although_a_socket_is_set": {"-set", "admin.socket=" + socket + "x", "-admin", admin}} {
				args := append([]string{tc.args[0]}, append(flags, tc.args[1:]...)...)
				code, stdout, stderr := call(t, nil, args...)
				if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
					t.Errorf("%s: exit code %d, stdout %q, stderr %q; want %d, %q, %q", how, code, stdout, stderr,
						tc.code, tc.stdout, tc.stderr)
				}
			}
		})
	}
	code, stdout, stderr := call(t, nil, "nodes", "-admin", s.ready["http"].(string))
	if code != exitFailed || !strings.Contains(stderr, "is the HTTP API of a sidecar, not its admin API: give") {
		t.Errorf("the HTTP API was asked: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	code, stdout, stderr = call(t, []string{"SIDECAR_ADMIN_SOCKET=" + socket}, "drain", "-wait")
	if code != 0 || !strings.HasSuffix(stdout, "\nstopped\n") || stderr != "" {
		t.Errorf("drain -wait: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if code := <-s.code; code != 0 {
		t.Errorf("exit code of the sidecar %d; want 0", code)
	}
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	const free = "127.0.0.1:1" // another program takes no such port
	socket := filepath.Join(t.TempDir(), "admin")
	for _, args := range [][]string{
		{"drain", "-lameduck", "-socket", socket}, {"drain", "-wait", "-socket", socket}, {"nodes", "-admin", free},
		{"events", "-follow", "-admin", free},
	} {
		code, stdout, stderr := call(t, nil, args...)
		if code != exitNobody || stdout != "" ||
			!strings.HasPrefix(stderr, "sidecar: no sidecar answers at "+args[len(args)-1]) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q; want %d and one clear line", args, code, stdout, stderr, exitNobody)
		}
	}
}

// fakeAdmin answers with the text of each path.
func fakeAdmin(t *testing.T, answers map[string]string) (admin string, requests *atomic.Pointer[http.Request]) {
	requests = new(atomic.Pointer[http.Request])
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Store(r)
		_, _ = io.WriteString(w, answers[r.URL.Path])
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), requests
}

func TestWhatPeopleSee(t *testing.T) {
	admin, last := fakeAdmin(t, map[string]string{
		"/state/nodes": `{"panic":true,"nodes":[
			{"id":1,"address":"ydb-1:2136","zone":"a","health":"healthy","use":"new","weight":1,"sessions":17,"calls":3,"latency_ms":1.26},
			{"id":22,"address":"ydb-22:2136","health":"ejected","banned":true,"leaving":true,"use":"none","weight":0,"reason":"a disk"}]}`,
		"/nodes/2/ban": `{"summary":"node 2 is banned"}`,
		"/drain":       `{"stage":"draining","waits_for":"2 calls","left_ms":24999}`,
		"/nodes/3/why": `<html>`,
		"/events": `{"seq":1,"time":"2026-01-02T03:04:05.678Z","node":2,"kind":"state","from":"healthy","to":"ejected","reason":"2 transport errors"}
{"seq":2,"time":"2026-01-02T03:04:06Z","kind":"panic","to":"panic","reason":"2 of 3 are ejected"}
`,
	})
	for _, tc := range []struct{ args, stdout, stderr string }{
		{"nodes", `ID  ADDRESS      ZONE  STATE                   USE   WEIGHT  SESSIONS  CALLS  LATENCY  REASON
1   ydb-1:2136   a     healthy                 new   1.00    17        3      1.3ms    -
22  ydb-22:2136  -     ejected,banned,leaving  none  0.00    0         0      0.0ms    a disk
more than half of the nodes are ejected: those that answer are used all the same
1 of 2 nodes are healthy; sidecar why 22 explains node 22
`, ""},
		{"ban 2 -reason disk", "node 2 is banned\n", ""},
		{"drain", "draining; waits for 2 calls; at most 25s\n", ""},
		{"events",
			"2026-01-02T03:04:05.678Z node 2 state healthy -> ejected: 2 transport errors\n2026-01-02T03:04:06.000Z " +
				"panic none -> panic: 2 of 3 are ejected\n",
			""},
		{"why 3", "", "the answer is not that of a sidecar"},
	} {
		args := append(strings.Fields(tc.args), "-admin", admin)
		_, stdout, stderr := call(t, []string{"SIDECAR_ADMIN_TOKEN=s3cr3t"}, args...)
		if stdout != tc.stdout || !strings.Contains(stderr, tc.stderr) {
			t.Errorf("%s: stdout\n%s\nstderr %s; want\n%s", tc.args, stdout, stderr, tc.stdout)
		}
		if got := last.Load().Header.Get("Authorization"); got != "Bearer s3cr3t" {
			t.Errorf("%s: Authorization %q", tc.args, got)
		}
	}
}

// The last line of a table says whether all is well.
func TestTablesSayOK(t *testing.T) {
	virtual := func(waiting int) string {
		return fmt.Sprintf(`{"virtual_sessions":{"pools":[{"identity":"root","app":"shop","waiting":%d}]}}`, waiting)
	}
	for _, tc := range []struct {
		name, command string
		answers       map[string]string
		last          string
	}{
		{"nodes_well", "nodes", map[string]string{"/state/nodes": `{"nodes":[{"id":1,"health":"healthy"},{"id":2,"health":"healthy"}]}`},
			"OK: 2 of 2 nodes are healthy"},
		{"nodes_marked", "nodes",
			map[string]string{"/state/nodes": `{"nodes":[{"id":1,"health":"healthy"},{"id":2,"health":"healthy","missing":true}]}`},
			"1 of 2 nodes are healthy; sidecar why 2 explains node 2"},
		{"pools_well", "pools",
			map[string]string{"/state/pool": `{"waiting":{"normal":0}}`, "/state/connections": virtual(0)},
			"OK: no caller waits"},
		{"pool_waited_for", "pools",
			map[string]string{"/state/pool": `{"waiting":{"normal":1}}`, "/state/connections": `{}`}, "own "},
		{"other_pool_waited_for", "pools", map[string]string{"/state/pool": `{}`, "/state/connections": virtual(1)}, "root shop "},
		{"pool_paused", "pools", map[string]string{"/state/pool": `{"paused":true}`, "/state/connections": `{}`}, "own "},
		{"no_session_opens", "pools", map[string]string{"/state/pool": `{"open_error":"refused"}`, "/state/connections": virtual(0)},
			"the last session could not be opened: refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			admin, _ := fakeAdmin(t, tc.answers)
			_, stdout, stderr := call(t, nil, tc.command, "-admin", admin)
			lines := strings.Split(strings.TrimSpace(stdout), "\n")
			if last := lines[len(lines)-1]; !strings.HasPrefix(last, tc.last) {
				t.Errorf("%s%s; want the last line to begin with %q", stdout, stderr, tc.last)
			}
		})
	}
}

// Why says first what is and what comes next, then what was counted.
func TestWhyIsReadTopDown(t *testing.T) {
	admin, _ := fakeAdmin(t, map[string]string{
		"/nodes/2/why": `{"node":2,"summary":"Node 2 is ejected since 3s: 2 errors. An operator banned it: see No. 7. Next: probes begin in 1s.",
		"parts":["Node 2 is ejected since 3s: 2 errors.","An operator banned it: see No. 7.","Next: probes begin in 1s."],
		"transport_row":{"count":2,"limit":2},"refusal_row":{"count":0,"limit":5},
		"refusal_share":{"refused":1,"calls":9,"limit":0.5,"least":20,"elapsed_ms":1500},
		"latency":[{"kind":"query","calls":30,"least":20,"median_ms":9,"others":2,"others_ms":1,"limit_ms":4,"ejected_after_s":2},
			{"kind":"commit","calls":3,"least":20,"median_ms":1}],
		"last_sign":{"kind":"query","blame":"transport","detail":"connection refused"},
		"last_probe":{"at":"2026-01-02T03:04:05Z","took_ms":1.7,"result":"answered"},
		"history":[{"seq":1,"time":"2026-01-02T03:04:05.678Z","node":2,"kind":"state","from":"healthy","to":"ejected","reason":"2 errors"}]}`,
	})
	const want = `Node 2 is ejected since 3s: 2 errors.
An operator banned it: see No. 7.
Next: probes begin in 1s.

SIGN                       NOW                                                EJECTED AT
transport errors in a row  2                                                  2
overload errors in a row   0                                                  5
share of overload errors   1 of 9 calls in 1.5 s                              50 % of calls, and at least 20
latency of query calls     9.0 ms, median of 30 calls                         4.0 ms for 2.0 s; the median of 2 other nodes is 1.0 ms
latency of commit calls    1.0 ms, median of 3 calls (counts from 20 calls on)  no limit: too few other nodes to compare with

Last bad sign: connection refused on query (transport)
Last probe: answered, after 1.7 ms, at 2026-01-02T03:04:05Z
Events, the oldest first:
  2026-01-02T03:04:05.678Z node 2 state healthy -> ejected: 2 errors
`
	_, stdout, stderr := call(t, nil, "why", "2", "-admin", admin)
	squeezed := regexp.MustCompile(` {3,}`)
	if squeezed.ReplaceAllString(stdout, "  ") != squeezed.ReplaceAllString(want, "  ") {
		t.Errorf("%s%s; want\n%s", stdout, stderr, want)
	}
}

// Top shows the apps with the sums of the page, those that wait and use most.
func TestTopShowsApps(t *testing.T) {
	admin, _ := fakeAdmin(t, map[string]string{"/state/sessions": "{}", "/state/page": `{"apps_more":3,"apps":[
		{"app":"flooder","open":300,"in_use":6,"waiting":226,"refused":{"queue_full":8,"write":2},"wait_p99_ms":20},` +
		strings.Repeat(`{"app":"shop","in_use":1},`, topItems-1) + `{"app":"late"}]}`})
	_, stdout, stderr := call(t, nil, "top", "-n", "1", "-admin", admin)
	for _, want := range []string{
		"APP      ACTIVE  WAITING  OPEN  WAIT P99  REFUSED\n", "flooder  6       226      300   20 ms     10\n", "\nand 4 more\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s%s", want, stdout, stderr)
		}
	}
	if n := strings.Count(stdout, "\nshop "); n != topItems-1 || strings.Contains(stdout, "late") {
		t.Errorf("%d small apps; want %d:\n%s", n, topItems-1, stdout)
	}
}

func TestFollowEndsWithTheSignal(t *testing.T) {
	admin, _ := fakeAdmin(t, nil)
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGINT
	var stderr bytes.Buffer
	code := run(&environment{stdout: io.Discard, stderr: &stderr, signals: signals}, []string{"events", "-follow", "-admin", admin})
	if code != 0 {
		t.Errorf("exit code %d, %s; want 0: it was told to end", code, stderr.String())
	}
}
