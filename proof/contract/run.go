package contract

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Target is a running sidecar.
type Target struct {
	HTTP string                           // base URL
	GRPC string                           // host:port
	TLS  credentials.TransportCredentials // of GRPC; nil: plaintext
	KV   bool                             // its kv.tables are KVTables of Directory
	Apps bool                             // its apps.limits are AppLimits of Directory; for KV too

	Directory string // of the database, for the tables of the cases; "": its root

	// Each of these has its own cases run instead of the others.
	Streams    *Streams
	Operator   *Operator
	Old        bool  // its api.statuses is old
	Deprecated *Told // DeprecatedParts are deprecated, and this is what answers say of them

	Drivers []Client // of OverDriver: the cases run with these instead of the two clients of this package
}

// Run runs every case over both APIs of a sidecar, or with the drivers of the target.
func Run(t *testing.T, target Target) {
	t.Helper()
	for _, face := range clients(t, target) {
		t.Run(face.Name(), func(t *testing.T) {
			defer face.Close()
			for _, c := range target.cases() {
				t.Run(c.name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					defer cancel()
					c.run(&test{T: t, Client: face, ctx: ctx, Target: target})
				})
			}
		})
	}
}

// A contractCase is one case of the table.
type contractCase struct {
	name string
	run  func(*test)
}

// cases are those that the target is made for.
func (target Target) cases() []contractCase {
	switch {
	case target.Streams != nil:
		return streamCases
	case target.Operator != nil:
		return operatorCases
	case target.Deprecated != nil:
		return deprecatedCases
	case target.Old && target.KV:
		return slices.Concat(oldCases, oldKVCases)
	case target.Old:
		return oldCases
	}
	all := cases
	if target.KV {
		all = slices.Concat(all, kvCases)
	}
	if target.Apps && target.Drivers == nil { // a library names one app, for all of its calls
		all = slices.Concat(all, appCases)
	}
	return all
}

// clients are those that the cases run with.
func clients(t *testing.T, target Target) []Client {
	t.Helper()
	if target.Drivers != nil {
		return target.Drivers
	}
	secure := target.TLS
	if secure == nil {
		secure = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient("dns:///"+target.GRPC, grpc.WithTransportCredentials(secure))
	if err != nil {
		t.Fatal(err)
	}
	return []Client{OverGRPC(conn), OverHTTP(target.HTTP)}
}

// test is one case over one API.
type test struct {
	*testing.T
	Client
	Target
	ctx context.Context
}

// Name is the case's; the client has one too.
func (t *test) Name() string { return t.T.Name() }

// driven reports whether the client is a library behind a driver, which may keep the header Server-Timing to itself.
func (t *test) driven() bool {
	_, ok := t.Client.(*driver)
	return ok
}

// table makes a table (id Uint64, name Utf8, n Int32) for the length of a case, and returns its
// name as a statement has it.
func (t *test) table() string {
	t.Helper()
	name := t.at("contract_" + strings.ToLower(rand.Text()[:12]))
	t.must("CREATE TABLE "+name+" (id Uint64 NOT NULL, name Utf8, n Int32, PRIMARY KEY (id))", nil)
	t.dropLater(name)
	return name
}

// of is full, or few under -short, as in proof/short, which this package must not import.
func (t *test) of(full, few int) int {
	if testing.Short() {
		return min(full, few)
	}
	return full
}

// at is the name that statements have for a table of the directory.
func (t *test) at(table string) string {
	if t.Directory == "" {
		return table
	}
	return "`" + t.Directory + "/" + table + "`"
}

// pathOf is the path of a table that statements name so.
func pathOf(name string) string { return strings.Trim(name, "`") }

// nowhere names a table that does not exist, beside one that does.
func nowhere(name string) string {
	if strings.HasSuffix(name, "`") {
		return strings.TrimSuffix(name, "`") + "_nowhere`"
	}
	return name + "_nowhere"
}

func (t *test) dropLater(name string) {
	t.Cleanup(func() {
		// The case's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := t.Execute(ctx, Statement{SQL: "DROP TABLE " + name}); err != nil {
			t.Errorf("drop %s: %v", name, err)
		}
	})
}

// must runs a statement that has to succeed. What happens to be refused for a
// moment is no fault of the case, and the statements of cases may be repeated.
func (t *test) must(sql string, params map[string]any) *Reply {
	t.Helper()
	return t.mustRun(Statement{SQL: sql, Params: params, Idempotent: true})
}

func (t *test) mustRun(s Statement) *Reply {
	t.Helper()
	r, err := t.Execute(t.ctx, s)
	if err != nil {
		t.Fatalf("%s: %v", s.SQL, err)
	}
	return r
}

// rows compares the rows of a statement.
func (t *test) rows(sql string, want ...[]any) {
	t.Helper()
	t.same(sql, t.must(sql, nil).Rows, want)
}

func (t *test) same(what string, got, want [][]any) {
	t.Helper()
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// refused checks the code of an error and what it says of the outcome.
func (t *test) refused(err error, code string, safe, unknown bool) *Error {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("got %v; want %s", err, code)
	}
	if e.Code != code || e.Safe != safe || e.Unknown != unknown {
		t.Errorf("got %v; want %s, safe %v, unknown %v", e, code, safe, unknown)
	}
	if e.Hint == "" || e.Message == "" {
		t.Errorf("%s comes without message or hint", e.Code)
	}
	return e
}

// status checks the status of an error over the API that it came over, and what its body says of HTTP's.
func (t *test) status(e *Error, http int, grpc codes.Code) {
	t.Helper()
	want := strconv.Itoa(http)
	// Drivers report no transport's own code.
	if t.Client.Name() == "grpc" {
		want = grpc.String()
	}
	if e.Status != http || e.Transport != "" && e.Transport != want {
		t.Errorf("%v, status %d; want %s, status %d", e, e.Status, want, http)
	}
}
