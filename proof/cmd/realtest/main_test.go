package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/clustertest"
	"github.com/ydb-sidecar/sidecar/proof/rules"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	user     = "the-user-of-the-test"
	password = "the-password-of-the-test"
)

// A whole run without the tests: the report is complete, has no secret, and nothing is left.
func TestRun(t *testing.T) {
	cluster := clustertest.Start(t, func(c *devcluster.Config) { c.Users = map[string]string{user: password} })
	for name, value := range map[string]string{"AUTH_KIND": "static", "AUTH_USER": user, "AUTH_PASSWORD": password} {
		t.Setenv("SIDECAR_YDB_"+name, value)
	}
	at := filepath.Join(t.TempDir(), "report", "r.md")
	args := []string{"-ydb", cluster.Endpoint(), "-report", at, "-tests=false", "-sdks=false", "-hide-host", "-directory", "mine"}
	code, err := run(t.Context(), args)
	if code != 0 || err != nil {
		t.Fatalf("exit code %d, %v", code, err)
	}
	data, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, secret := range []string{user, password, "eyJ", "127.0.0.1", cluster.Node(1).Address()} {
		if strings.Contains(text, secret) {
			t.Errorf("the report has %q", secret)
		}
	}
	for _, want := range []string{"| rules that differ | 0 |", "| questions that failed | 0 |",
		"| left in the database | nothing |", "| tests | not run |", "| SDK matrix | not run |", "SUCCESS, a user",
		"node-2"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not have %q", want)
		}
	}
	for _, r := range rules.All() {
		if !strings.Contains(text, "| "+cell(r.Says)+" |") {
			t.Errorf("the report does not have the rule %q", r.Says)
		}
	}

	// A directory of another user is left alone.
	ticket, err := rules.Login(t.Context(), rules.Target{Address: cluster.Node(1).Address(), Database: "/local"}, user, password)
	if err != nil {
		t.Fatal(err)
	}
	c, err := rules.Open(
		t.Context(),
		rules.Target{Address: cluster.Node(1).Address(), Database: "/local", Ticket: ticket, Directory: "mine"},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if left, err := c.List(t.Context(), ""); err != nil || len(left) > 0 {
		t.Errorf("%v, %v in the database; want nothing", left, err)
	}
	if err := c.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, err := run(t.Context(), args); code != 1 || err == nil || !strings.Contains(err.Error(), "mine exists") {
		t.Errorf("exit code %d, %v; want the directory refused", code, err)
	}
	if left, err := c.List(t.Context(), ""); err != nil || !slices.Contains(left, "mine/rules") {
		t.Errorf("%v, %v in the database; want the other one's table", left, err)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Setenv("SIDECAR_YDB_AUTH_KIND", "")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "-ydb is missing"},
		{[]string{"-ydb", "grpc://127.0.0.1:1/local", "-directory", "../x"}, "one name"},
		{[]string{"-ydb", "grpc://127.0.0.1:1/local", "-directory", "/"}, "one name"},
		{[]string{"-ydb", "http://127.0.0.1:1/local"}, "must be grpc or grpcs"},
		{[]string{"-ydb", "grpc://127.0.0.1:1"}, "no database"},
		{[]string{"-ydb", "grpc://me:secret@127.0.0.1:1/local"}, "credentials in variables"},
		{[]string{"-ydb", "grpc://127.0.0.1:1/local", "more"}, `argument "more"`},
	} {
		code, err := run(t.Context(), tc.args)
		if code != 2 || err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: exit code %d, %v; want %q", tc.args, code, err, tc.want)
		}
	}
}

func TestOutcomes(t *testing.T) {
	list, rest := outcomes([]byte(`not JSON
{"Action":"build-output","Output":"does not compile\n"}
{"Action":"run","Test":"A"}
{"Action":"output","Test":"A","Output":"=== RUN   A\n"}
{"Action":"output","Test":"A","Output":"    wrong here\n"}
{"Action":"run","Test":"B"}
{"Action":"output","Test":"B","Output":"fine\n"}
{"Action":"pass","Test":"B","Elapsed":1.5}
{"Action":"fail","Test":"A","Elapsed":2}
{"Action":"run","Test":"C"}
`))
	if len(list) != 3 || list[0].result != "fail" || !slices.Equal(list[0].output, []string{"    wrong here"}) ||
		list[1].result != "pass" || list[1].took != 1.5 || len(
		list[1].output,
	) > 0 || list[2].result != "did not end" {
		t.Errorf("%+v", list)
	}
	if !slices.Equal(rest, []string{"not JSON", "does not compile"}) {
		t.Errorf("%q", rest)
	}
}

// fake is a sidecar with one table.
type fake struct {
	sidecarv1.SidecarClient
	mu     sync.Mutex // guards the fields below
	rows   map[string]bool
	writes int
	enough chan struct{} // closed with the eleventh write
	forget bool          // one write is acknowledged and not kept
	fail   bool          // one write fails, but is kept
}

func (f *fake) Execute(_ context.Context, r *sidecarv1.ExecuteRequest, _ ...grpc.CallOption) (*sidecarv1.ExecuteResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, row, ok := strings.Cut(r.GetSql(), " VALUES "); ok {
		if f.writes++; f.writes == 11 {
			close(f.enough)
		}
		forgotten := f.forget && f.writes == 3
		f.rows[row] = !forgotten
		if f.fail && f.writes == 4 {
			return nil, status.Error(codes.Unavailable, "away")
		}
		return &sidecarv1.ExecuteResponse{}, nil
	}
	if !strings.Contains(r.GetSql(), "COUNT(*)") {
		return &sidecarv1.ExecuteResponse{}, nil
	}
	n := uint64(0)
	_, where, _ := strings.Cut(r.GetSql(), " WHERE ")
	for row, there := range f.rows {
		row = strings.NewReplacer("(", "caller = ", ", ", " AND n = ", ")", "").Replace(row)
		if there && (where == "true" || where == row) {
			n++
		}
	}
	return &sidecarv1.ExecuteResponse{
		Rows: []*sidecarv1.Row{{Values: []*sidecarv1.Value{{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: n}}}}},
	}, nil
}

func TestUnder(t *testing.T) {
	for _, tc := range []struct {
		name         string
		forget, fail bool
		lost, failed int
	}{{"all is well", false, false, 0, 0}, {"a row is lost", true, false, 1, 0},
		{"a write fails and is there", false, true, 0, 1}, {"both", true, true, 1, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fake{rows: map[string]bool{}, enough: make(chan struct{}), forget: tc.forget, fail: tc.fail}
			r := under(t.Context(), f, "t", func() ([]byte, error) {
				<-f.enough
				return []byte("done"), errors.New("exit code 3")
			}, 0, 0)
			if r.lost != tc.lost || r.failed() != tc.failed || !r.checks || r.output != "done" || r.err == nil || r.calls < 10 {
				t.Errorf("%+v; want %d lost, %d failed", r, tc.lost, tc.failed)
			}
			if tc.fail && r.errors["Unavailable"] != 1 {
				t.Errorf("%v; want the code", r.errors)
			}
			if !strings.Contains(r.text(), "exit code 3") {
				t.Errorf("%s; want the error of the command", r.text())
			}
		})
	}
}

func TestMatrixOfSDKs(t *testing.T) {
	list, _ := outcomes([]byte(`{"Action":"run","Test":"TestMatrix"}
{"Action":"pass","Test":"TestMatrix/go_query/direct","Elapsed":1.5}
{"Action":"output","Test":"TestMatrix/go_query/session","Output":"wrong"}
{"Action":"fail","Test":"TestMatrix/go_query/session","Elapsed":2}
{"Action":"fail","Test":"TestMatrix/go_query","Elapsed":4}
{"Action":"output","Test":"TestMatrix/java_query/direct","Output":"    matrix_test.go:9: the programs speak plaintext"}
{"Action":"skip","Test":"TestMatrix/java_query/direct"}
{"Action":"pass","Test":"TestMatrix/java_query/session","Elapsed":3}
{"Action":"pass","Test":"TestMatrix/java_query","Elapsed":3}
{"Action":"output","Test":"TestMatrix/rust_query","Output":"    matrix_test.go:7: it is not installed; make it"}
{"Action":"skip","Test":"TestMatrix/rust_query"}
{"Action":"fail","Test":"TestMatrix"}
`))
	m := newMatrix(list)
	if good, all := m.ran(); good != 2 || all != 3 {
		t.Errorf("%d of %d passed", good, all)
	}
	const want = `| client | direct | session |
|---|---|---|
| go query | passes, 1.5 s | **fail** |
| java query | left out: the programs speak plaintext | passes, 3.0 s |
| rust query | left out: it is not installed; make it | left out: it is not installed; make it |
`
	if got := m.text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
