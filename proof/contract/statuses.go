package contract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// provoked are errors of every class of docs/reference/errors.md that a caller can bring about, each with what does it. Those that
// need apps or key-value tables are among the cases of these.
var provoked = []struct {
	code string
	do   func(t *test, table string) error
}{
	{"BAD_REQUEST", func(t *test, _ string) error { return t.fails(Statement{SQL: "SELECT 1", Mode: "dirty"}) }},
	{"LIMIT_EXCEEDED", func(t *test, _ string) error {
		var deep any = 1
		for range 100 {
			deep = []any{deep}
		}
		return t.fails(Statement{SQL: "SELECT $a AS a", Params: map[string]any{"a": deep}})
	}},
	{"YDB_GENERIC_ERROR", func(t *test, _ string) error { return t.fails(Statement{SQL: "SELEC 1"}) }},
	{"YDB_SCHEME_ERROR", func(t *test, table string) error { return t.fails(Statement{SQL: "SELECT * FROM " + nowhere(table)}) }},
	{"YDB_PRECONDITION_FAILED", func(t *test, table string) error {
		return t.fails(Statement{SQL: "INSERT INTO " + table + " (id) VALUES (0ul)"})
	}},
	{"EXPECTATION_FAILED", func(t *test, table string) error {
		_, err := t.Transact(t.ctx, Transaction{Statements: []Statement{expecting("SELECT * FROM "+table, 9)}})
		return err
	}},
	{"SEQ_OUT_OF_ORDER", func(t *test, _ string) error {
		id := t.tx("")
		t.Cleanup(func() { // a sidecar that stops would wait for it until tx.idle
			if err := t.Rollback(context.WithoutCancel(t.ctx), id); err != nil {
				t.Error(err)
			}
		})
		return t.fails(Statement{SQL: "SELECT 1", Tx: &TxSelector{ID: id, Seq: 3}})
	}},
	{"TX_COMMITTED", func(t *test, _ string) error {
		id := t.tx("")
		if err := t.Commit(t.ctx, id); err != nil {
			return err
		}
		return t.fails(Statement{SQL: "SELECT 1", Tx: &TxSelector{ID: id, Seq: 1}})
	}},
	{"TX_LOST", func(t *test, _ string) error {
		return t.fails(Statement{SQL: "SELECT 1", Tx: &TxSelector{ID: "tx_" + strings.Repeat("A", 32), Seq: 1}})
	}},
}

// provokedByKey are those of the key-value API.
var provokedByKey = []struct {
	code string
	do   func(t *test) error
}{
	{"TABLE_NOT_OPEN", func(t *test) error { return t.getFails(KV{Table: "contract_kv_closed", ID: []any{"1"}}) }},
	{"TABLE_MISMATCH", func(t *test) error { return t.getFails(KV{Table: "contract_kv_wrong", ID: []any{"1"}}) }},
	{"KEY_NOT_FOUND", func(t *test) error { return t.getFails(KV{Table: kvPlain, ID: []any{"404"}}) }},
	{"TABLE_READ_ONLY", func(t *test) error { return t.Delete(t.ctx, KV{Table: "contract_kv_read", ID: []any{"1"}}) }},
	{"CONDITION_FAILED", func(t *test) error {
		return t.Delete(t.ctx, KV{Table: kvPlain, ID: []any{"404"}, Match: []string{"*"}})
	}},
	{"KEY_TOO_LARGE", func(t *test) error {
		return t.getFails(KV{Table: keyTable("String"), ID: []any{[]byte(strings.Repeat("k", 20_000))}})
	}},
}

func (t *test) fails(s Statement) error {
	_, err := t.Execute(t.ctx, s)
	return err
}

func (t *test) getFails(c KV) error {
	_, err := t.Get(t.ctx, c)
	return err
}

// statuses: an error has over each API the status, the safety and the hint that docs/reference/errors.md has of its code, and
// openapi.yaml names the code.
func statuses(t *test) {
	table := t.table()
	t.fill(table, 1)
	for _, c := range provoked {
		t.asDocumented(c.code, c.do(t, table))
	}
}

func kvStatuses(t *test) {
	t.openPlain()
	t.open(keyTable("String"), "id String NOT NULL, v String, PRIMARY KEY (id)")
	for _, c := range provokedByKey {
		t.asDocumented(c.code, c.do(t))
	}
}

var (
	errorRow   = regexp.MustCompile(`(?m)^\| (\d+) \| (\w+) \| (yes|no) \| \w+ error \|$`)
	callerHint = regexp.MustCompile(`(?m)^\*\*Caller\.\*\* (.*)$`)
)

// asDocumented compares an error with the section of its code. A code may have more than one row; they stand in one section.
func (t *test) asDocumented(code string, err error) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != code {
		t.Errorf("got %v; want %s", err, code)
		return
	}
	page, fault := os.ReadFile(filepath.Join(t.root(), "docs", "reference", "errors.md"))
	if fault != nil {
		t.Fatal(fault)
	}
	_, section, found := strings.Cut(string(page), "\n### "+code+"\n")
	section, _, _ = strings.Cut(section, "\n### ")
	rows, hints := errorRow.FindAllStringSubmatch(section, -1), callerHint.FindAllStringSubmatch(section, -1)
	if !found || len(rows) == 0 || len(rows) != len(hints) {
		t.Errorf("errors.md has %d statuses and %d hints of %s", len(rows), len(hints), code)
		return
	}
	is := slices.IndexFunc(rows, func(row []string) bool {
		return row[1] == fmt.Sprint(e.Status) && (e.Transport == row[1] || e.Transport == row[2] || t.driven() && e.Transport == "")
	})
	if is < 0 {
		t.Errorf("%v, status %d; errors.md has %q", e, e.Status, rows)
		return
	}
	if hint := hints[is][1]; !strings.HasPrefix(e.Hint, strings.TrimSuffix(hint, ".")) && !t.driven() {
		t.Errorf("%s: hint %q; errors.md has %q", code, e.Hint, hint)
	}
	if client, ok := t.Client.(*httpClient); ok {
		res, err := client.send(t.ctx, http.MethodGet, "/openapi.yaml", nil, "*/*")
		if err != nil {
			t.Fatal(err)
		}
		if text := t.text(res); !strings.Contains(text, " "+code+",") && !strings.Contains(text, " "+code+"'") {
			t.Errorf("openapi.yaml does not name %s", code)
		}
	}
}

func (t *test) text(res *http.Response) string {
	t.Helper()
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// root is the directory of the module that the working directory is in.
func (t *test) root() string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		t.Fatal("no go.mod above the working directory")
	}
}
