package engine

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openDB(t testing.TB, path string) *DB {
	t.Helper()
	db, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// sample are the tables that the examples of docs/dev/devcluster-yql.md speak of.
const sample = `CREATE TABLE series (id Uint64 NOT NULL, title Utf8, released Date, rating Double, PRIMARY KEY (id), INDEX by_title GLOBAL ON (title));
CREATE TABLE episodes (series Uint64, season Uint64, episode Uint64, title Utf8, views Int64, PRIMARY KEY (series, season, episode))`

const sampleRows = `UPSERT INTO series (id, title, released, rating) VALUES (1, "IT Crowd", Date("2006-02-03"), 8.5), (2, "Silicon Valley", Date("2014-04-06"), 8.4), (3, NULL, NULL, NULL);
UPSERT INTO episodes (series, season, episode, title, views) VALUES (1, 1, 1, "Yesterday's Jam", 100), (1, 1, 2, "Calamity Jen", 50), (1, 2, 1, "The Work Outing", 70), (2, 1, 1, "Minimum Viable Product", NULL)`

func sampleDB(t testing.TB, path string) *DB {
	t.Helper()
	db := openDB(t, path)
	mustRun(t, db, sample)
	mustRun(t, db, sampleRows)
	return db
}

// params builds parameters from "$name Type value" with the value written in YQL.
func params(t testing.TB, specs ...string) map[string]*Ydb.TypedValue {
	t.Helper()
	out := map[string]*Ydb.TypedValue{}
	for _, s := range specs {
		name, x, _ := strings.Cut(s, " = ")
		out[name] = typed(t, x)
	}
	return out
}

// typed computes a constant expression.
func typed(t testing.TB, x string) *Ydb.TypedValue {
	t.Helper()
	script, err := syntax.Parse("SELECT " + x)
	if err != nil {
		t.Fatalf("%s: %v", x, err)
	}
	var out *Ydb.TypedValue
	p, err := compile(script, &catalog{}, "/local", true, nil)
	if err != nil {
		t.Fatalf("%s: %v", x, err)
	}
	e := &exec{ctx: context.Background(), tx: &Tx{}, req: &Request{}, emit: func(_ int, rs *Ydb.ResultSet) error {
		out = &Ydb.TypedValue{Type: rs.Columns[0].Type, Value: rs.Rows[0].Items[0]}
		return nil
	}}
	if err := e.run(p); err != nil {
		t.Fatalf("%s: %v", x, err)
	}
	return out
}

// gather is an Emit that writes all result sets as text: columns with types, then rows.
func gather(out *[]string) Emit {
	return func(set int, rs *Ydb.ResultSet) error {
		for len(*out) <= set {
			var cols []string
			for _, c := range rs.Columns {
				t, err := value.FromProto(c.Type)
				if err != nil {
					return err
				}
				cols = append(cols, c.Name+" "+t.String())
			}
			*out = append(*out, strings.Join(cols, ", ")+":")
		}
		for _, row := range rs.Rows {
			var cells []string
			for i, v := range row.Items {
				t, err := value.FromProto(rs.Columns[i].Type)
				if err != nil {
					return err
				}
				r, err := value.Decode(t, rs.Columns[i].Type, v)
				if err != nil {
					return err
				}
				cells = append(cells, show(t, r))
			}
			(*out)[set] += " (" + strings.Join(cells, ", ") + ")"
		}
		if rs.Truncated {
			(*out)[set] += " ..."
		}
		return nil
	}
}

// show writes a value for people.
func show(t *value.Type, v value.Value) string {
	switch t.Kind {
	case value.Optional:
		if v.IsNull() {
			return "NULL"
		}
		if t.Elem.Kind == value.Optional {
			return "Just(" + show(t.Elem, v.Unwrap()) + ")"
		}
		return show(t.Elem, v.Unwrap())
	case value.Null:
		return "NULL"
	case value.Void:
		return "Void"
	case value.EmptyList:
		return "[]"
	case value.EmptyDict:
		return "{}"
	case value.Tagged:
		return show(t.Elem, v)
	case value.List:
		return "[" + showAll(v.Items, func(i int) string { return show(t.Elem, v.Items[i]) }) + "]"
	case value.Tuple:
		return "(" + showAll(v.Items, func(i int) string { return show(t.Members[i].Type, v.Items[i]) }) + ")"
	case value.Struct:
		return "<|" + showAll(v.Items, func(i int) string { return t.Members[i].Name + ": " + show(t.Members[i].Type, v.Items[i]) }) + "|>"
	case value.Dict:
		var b []string
		for i := 0; i < len(v.Items); i += 2 {
			b = append(b, show(t.Key, v.Items[i])+": "+show(t.Elem, v.Items[i+1]))
		}
		return "{" + strings.Join(b, ", ") + "}"
	case value.Variant:
		return fmt.Sprintf("%d: %s", v.Lo, show(t.Elem.Members[v.Lo].Type, v.Items[0]))
	}
	if value.IsText(t.Kind) {
		return strconv.Quote(v.S)
	}
	return value.Format(t, v)
}

func showAll(items []value.Value, f func(int) string) string {
	var out []string
	for i := range items {
		out = append(out, f(i))
	}
	return strings.Join(out, ", ")
}

// run executes without transaction control and returns the result sets as text.
func run(db *DB, req Request) (string, error) {
	var out []string
	if req.Database == "" {
		req.Database = "/local"
	}
	_, err := db.Execute(context.Background(), req, gather(&out))
	return strings.Join(out, " | "), err
}

func mustRun(t testing.TB, db *DB, text string, p ...string) string {
	t.Helper()
	out, err := run(db, Request{Text: text, Params: params(t, p...), Inferred: true})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

func begin(t testing.TB, db *DB, m Mode) *Tx {
	t.Helper()
	tx, err := db.Begin(context.Background(), m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tx.Rollback)
	return tx
}

// in executes in a transaction.
func in(t testing.TB, tx *Tx, text string, p ...string) string {
	t.Helper()
	var out []string
	if _, err := tx.Execute(
		context.Background(), Request{Text: text, Params: params(t, p...), Inferred: true, Database: "/local"},
		gather(&out),
	); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return strings.Join(out, " | ")
}

func commit(t testing.TB, tx *Tx) {
	t.Helper()
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// wantStatus fails unless err is an *Error of that status that mentions the text.
func wantStatus(t testing.TB, err error, status Ydb.StatusIds_StatusCode, text string) {
	t.Helper()
	e, ok := err.(*Error)
	if !ok || e.Status != status || !strings.Contains(e.Error(), text) {
		t.Errorf("error %v; want %v with %q", err, status, text)
	}
}
