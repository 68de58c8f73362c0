package contract

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// DeprecatedParts are the parts of the plain API that have to be deprecated for the cases of Target.Deprecated.
var DeprecatedParts = []string{
	"Explain", "Ingest/Ingest", "sidecar.v1.ExecuteRequest.stats", "sidecar.v1.Limits.bytes", "BAD_REQUEST",
}

// deprecatedCases need DeprecatedParts.
var deprecatedCases = []contractCase{{"deprecated_parts_are_told", deprecatedParts}}

// deprecatedParts: the answer to a call that uses a deprecated field, call or code says so, and no other answer does.
func deprecatedParts(t *test) {
	for name, c := range map[string]struct {
		s    Statement
		fail bool
		told bool
	}{
		"nothing of them":      {s: Statement{SQL: "SELECT 1 AS a", Rows: 5}},
		"a field":              {s: Statement{SQL: "SELECT 1 AS a", Stats: "basic"}, told: true},
		"a field of a field":   {s: Statement{SQL: "SELECT 1 AS a", Bytes: 1 << 20}, told: true},
		"a code":               {s: Statement{SQL: "SELECT 1", Mode: "dirty"}, fail: true, told: true},
		"an error of its own":  {s: Statement{SQL: "SELEC"}, fail: true},
		"a field and an error": {s: Statement{SQL: "SELEC", Stats: "full"}, fail: true, told: true},
	} {
		var want Told
		if c.told {
			want = *t.Deprecated
		}
		_, err := t.Execute(t.ctx, c.s)
		if (err != nil) != c.fail {
			t.Errorf("%s: %v", name, err)
		}
		t.told(name, want)
		if _, err = t.Stream(t.ctx, c.s); (err != nil) != c.fail {
			t.Errorf("%s, a stream: %v", name, err)
		}
		t.told(name+", a stream", want)
	}
	if _, err := t.Explain(t.ctx, "SELECT 1", nil); err != nil {
		t.Error(err)
	}
	t.told("a call", *t.Deprecated)
	rows, err := t.Ingest(t.ctx, IngestOpen{Table: pathOf(t.table())})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if err := rows.CloseSend(); err != nil {
		t.Error(err)
	}
	for err == nil {
		_, err = rows.Next()
	}
	t.told("a stream of rows", *t.Deprecated)
	if _, err := t.Batch(t.ctx, []Statement{{SQL: "SELECT 1", Mode: "dirty"}}); err != nil {
		t.Error(err)
	}
	t.told("a code of one statement of a batch", *t.Deprecated)
}

// oldCases need api.statuses=old, and KVTables if the target has them.
var (
	oldCases   = []contractCase{{"statuses_of_the_version_before", oldStatuses}}
	oldKVCases = []contractCase{{"statuses_of_the_version_before_by_key", oldKVStatuses}}
)

// toldOfOld is what answers with an old status tell.
var toldOfOld = Told{
	Deprecation: "@1795824000", // the 28th of November 2026
	Link:        "<" + errorsPage + `statuses-of-the-version-before>; rel="deprecation"`,
}

func oldStatuses(t *test) {
	table := t.table()
	t.fill(table, 1)
	for _, c := range provoked {
		t.asBefore(c.code, c.do(t, table))
	}
	for code, sql := range map[string]string{
		"YDB_SCHEME_ERROR": "SELECT * FROM " + nowhere(table), "YDB_PRECONDITION_FAILED": "INSERT INTO " + table + " (id) VALUES (0ul)",
	} {
		_, err := t.Stream(t.ctx, Statement{SQL: sql})
		t.asBefore(code, err)
		results, err := t.Batch(t.ctx, []Statement{{SQL: "SELECT 1"}, {SQL: sql}})
		if err != nil || results[1].Error == nil {
			t.Fatalf("a batch: %+v, %v", results, err)
		}
		t.asBefore(code, results[1].Error)
	}
	t.must("SELECT 1", nil)
	t.told("a call that succeeds", Told{})
}

func oldKVStatuses(t *test) {
	t.openPlain()
	t.open(keyTable("String"), "id String NOT NULL, v String, PRIMARY KEY (id)")
	for _, c := range provokedByKey {
		t.asBefore(c.code, c.do(t))
	}
}

// oldRow is a row of the table of errors.md: code, HTTP before, gRPC before.
var oldRow = regexp.MustCompile(`(?m)^\| \[` + "`" + `(\w+)` + "`" + `\]\(#\w+\)[^|]*\| \d+ \| (\d+) \| \w+ \| (\w+) \|$`)

// asBefore checks that an error has the status of the version before, and tells that this is
// deprecated, if the table of errors.md has its code. Every other error is as documented.
func (t *test) asBefore(code string, err error) {
	t.Helper()
	page, fault := os.ReadFile(filepath.Join(t.root(), "docs", "reference", "errors.md"))
	if fault != nil {
		t.Fatal(fault)
	}
	_, table, _ := strings.Cut(string(page), "<!-- old:")
	table, _, _ = strings.Cut(table, "<!-- /old -->")
	for _, row := range oldRow.FindAllStringSubmatch(table, -1) {
		if row[1] != code {
			continue
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != code || fmt.Sprint(e.Status) != row[2] ||
			e.Transport != "" && e.Transport != row[2] && e.Transport != row[3] {
			t.Errorf("%v, %+v; want %s with %s and %s", err, e, code, row[2], row[3])
		}
		t.told(code, toldOfOld)
		return
	}
	t.told(code, Told{})
	t.asDocumented(code, err)
}
