package apps

import (
	"errors"
	"strings"
	"testing"
)

// grantsOf reads the grants of a line for app a.
func grantsOf(t *testing.T, line string) *Grants {
	t.Helper()
	a, err := registry(t, Config{Max: 5, Quotas: []string{line}}).Of(Caller{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return a.Grants()
}

func TestGrants(t *testing.T) {
	for _, tc := range []struct {
		line string
		do   func(g *Grants) error
		want string // words of the grant; "": it may
	}{
		{"a", func(g *Grants) error {
			return errors.Join(g.Call(Statements, true), g.Table("x"), g.SDK(), g.Many(1e6))
		}, ""},
		{"a weight=2 class=interactive", func(g *Grants) error { return g.SDK() }, ""},
		{"a calls=statements,kv,bulk,describe,sdk", func(g *Grants) error { return errors.Join(g.Call(Bulk, true), g.SDK()) }, ""},
		{"a calls=kv", func(g *Grants) error { return g.Call(KeyValue, true) }, ""},
		{"a calls=kv", func(g *Grants) error { return g.Call(Statements, false) }, "calls=kv"},
		{"a calls=kv,bulk", func(g *Grants) error { return g.SDK() }, "calls=kv,bulk"},
		{"a calls=sdk", func(g *Grants) error { return g.SDK() }, ""},
		{"a calls=sdk", func(g *Grants) error { return g.Call(Describe, false) }, "calls=sdk"},
		{"a read_only=yes", func(g *Grants) error { return errors.Join(g.Call(KeyValue, false), g.Statement(true)) }, ""},
		{"a read_only=yes", func(g *Grants) error { return g.Call(KeyValue, true) }, "read_only=yes"},
		{"a read_only=yes", func(g *Grants) error { return g.Statement(false) }, "read_only=yes"},
		{"a read_only=yes", func(g *Grants) error { return g.SDK() }, "read_only=yes"},
		{"a tables=b,o/*,p*", func(g *Grants) error { return errors.Join(g.Table("b"), g.Table("o/x/y"), g.Table("pq")) }, ""},
		{"a tables=b,o/*", func(g *Grants) error { return g.Table("bb") }, "tables=b,o/*"},
		{"a tables=o/*", func(g *Grants) error { return g.Table("o") }, "tables=o/*"},
		{"a tables=o/*", func(g *Grants) error { return g.Table("O/x") }, "tables=o/*"},
		{"a tables=o/*", func(g *Grants) error { return g.Table("o/../x") }, "tables=o/*"},
		{"a tables=o/*", func(g *Grants) error { return g.Table("o//x") }, "tables=o/*"},
		{"a tables=o/*", func(g *Grants) error { return g.Table("/other/o/x") }, "tables=o/*"},
		{"a tables=*", func(g *Grants) error { return g.Untold("because") }, "tables=*"},
		{"a tables=o/*", func(g *Grants) error { return g.SDK() }, "tables=o/*"},
		{"a timeout=2s", func(g *Grants) error { return g.SDK() }, "timeout=2s"},
		{"a rows=10", func(g *Grants) error { return g.Many(10) }, ""},
		{"a rows=10", func(g *Grants) error { return g.Many(11) }, "rows=10"},
		{"a rows=10", func(g *Grants) error { return g.SDK() }, "rows=10"},
		{"a class=batch", func(g *Grants) error { return g.SDK() }, "class=batch"},
		{"a class=normal", func(g *Grants) error { return g.SDK() }, ""},
		{"* tables=o/*", func(g *Grants) error { return g.Table("x") }, "tables=o/*"},
	} {
		err := tc.do(grantsOf(t, tc.line))
		e, denied := errors.AsType[*NotGranted](err)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", tc.line, err)
		case tc.want != "" &&
			(!denied || e.Words != tc.want || e.App != "a" || !strings.Contains(err.Error(), "app a has "+tc.want+" in ")):
			t.Errorf("%s: %v; want the denial of %s", tc.line, err, tc.want)
		}
	}
	if err := grantsOf(t, "* read_only=yes").Call(Bulk, true); err == nil || !strings.Contains(err.Error(), "the line * of apps.limits") {
		t.Errorf("%v; want the line * named", err)
	}
	if grantsOf(t, "a weight=3 open=5 class=system") != nil {
		t.Error("a line that takes nothing away makes grants")
	}
}

func TestFaultsOfGrants(t *testing.T) {
	for line, want := range map[string]string{
		"a calls=":          "calls= and some of statements,kv,bulk,describe,sdk",
		"a calls=kv,sql":    "calls= and some of",
		"a tables=":         "tables= and paths relative to the database",
		"a tables=/local/x": "tables= and paths",
		"a tables=a*b":      "tables= and paths",
		"a tables=a//b":     "tables= and paths",
		"a tables=a/":       "tables= and paths",
		"a tables=../a":     "tables= and paths",
		"a tables=a,,b":     "tables= and paths",
		"a read_only=1":     "read_only=yes or read_only=no",
		"a timeout=5":       "timeout= and 1ms to 24h",
		"a timeout=25h":     "timeout= and 1ms to 24h",
		"a rows=0":          "rows= and 1 to",
		"a rows=many":       "rows= and 1 to",
		"a class=high":      "class= and system, interactive, normal, batch",
		"a calls=sdk,statements tables=b*": "calls= has sdk, and the SDK proxy cannot keep to the other grants " +
			"(calls=statements,sdk tables=b*)",
		"a calls=bulk read_only=yes": "leave nothing",
		"a table=b":                  "tables=PATHS",
	} {
		if err := (Config{Max: 5, Quotas: []string{line}}).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", line, err, want)
		}
	}
}

// TestGrantsReload: new grants hold at once, and none hold once they are gone.
func TestGrantsReload(t *testing.T) {
	r := registry(t, Config{Max: 5})
	a, err := r.Of(Caller{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		line string
		want bool
	}{{"a read_only=yes", false}, {"a read_only=no", true}, {"* calls=kv", false}, {"* weight=2", true}} {
		if err := r.Reconfigure(Config{Max: 5, Quotas: []string{tc.line}}); err != nil {
			t.Fatal(err)
		}
		if err := a.Grants().Call(Statements, true); (err == nil) != tc.want {
			t.Errorf("%s: %v; want %t", tc.line, err, tc.want)
		}
	}
}

// TestDenialsAreCounted: by app and grant, in the state as well as the grants themselves.
func TestDenialsAreCounted(t *testing.T) {
	r := registry(t, Config{Max: 5, Quotas: []string{"a tables=b,c/* rows=5 class=normal"}})
	a, err := r.Of(Caller{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	a.Deny(GrantTables)
	a.Deny(GrantTables)
	a.Deny(GrantRows)
	for _, s := range r.State(classes) {
		if s.App == "a" && (s.Denied["tables"] != 2 || s.Denied["rows"] != 1 || len(s.Denied) != 2 || s.Grants != "tables=b,c/* rows=5" ||
			s.Quotas.Class != "normal") {
			t.Errorf("%+v", s)
		}
	}
}

// TestNoGrantsCostNothing: an app without grants is asked for them on each call.
func TestNoGrantsCostNothing(t *testing.T) {
	a, err := registry(t, Config{Max: 5}).Of(Caller{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if a.Grants().Call(Statements, true) != nil || a.Grants().OfTables() || a.Grants().Rows() != 0 || a.Grants().Timeout() != 0 {
			t.Error("it has grants")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
