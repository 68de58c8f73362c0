package engine

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/testing/protocmp"
)

func TestBulkUpsert(t *testing.T) {
	db := sampleDB(t, "")
	ctx := context.Background()
	if err := db.BulkUpsert(ctx, "/local/series",
		typed(t, "[<|id: 1ul, rating: 1.5|>, <|id: 4ul, rating: Nothing(Double?)|>]"), nil); err != nil {
		t.Fatal(err)
	}
	want := `id Uint64, title Optional<Utf8>, rating Optional<Double>: (1, "IT Crowd", 1.5) (4, NULL, NULL)`
	if got := mustRun(t, db, "SELECT id, title, rating FROM series WHERE id IN (1, 4)"); got != want {
		t.Error(got)
	}
	for rows, status := range map[string]Ydb.StatusIds_StatusCode{
		"[<|id: 1ul, nope: 1|>]":     Ydb.StatusIds_SCHEME_ERROR,
		"[<|rating: 1.0|>]":          Ydb.StatusIds_SCHEME_ERROR,
		"[<|id: 'x'|>]":              Ydb.StatusIds_SCHEME_ERROR,
		"[<|id: Nothing(Uint64?)|>]": Ydb.StatusIds_BAD_REQUEST,
		"1":                          Ydb.StatusIds_BAD_REQUEST,
	} {
		wantStatus(t, db.BulkUpsert(ctx, "/local/series", typed(t, rows), nil), status, "")
	}
	wantStatus(t, db.BulkUpsert(ctx, "/local/nope", typed(t, "[<|id: 1ul|>]"), nil), Ydb.StatusIds_SCHEME_ERROR, "/local/nope")
}

func TestReadRows(t *testing.T) {
	db := sampleDB(t, "")
	ctx := context.Background()
	rs, err := db.ReadRows(ctx, "/local/series", typed(t, "[<|id: 2ul|>, <|id: 99ul|>, <|id: 1ul|>]"), []string{"title", "id"})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	if err := gather(&out)(0, rs); err != nil || out[0] != `title Optional<Utf8>, id Uint64: ("Silicon Valley", 2) ("IT Crowd", 1)` {
		t.Error(out, err)
	}
	_, err = db.ReadRows(ctx, "/local/series", typed(t, "[<|id: 2ul, title: 'x'u|>]"), nil)
	wantStatus(t, err, Ydb.StatusIds_BAD_REQUEST, "key columns")
	_, err = db.ReadRows(ctx, "/local/episodes", typed(t, "[<|series: 2ul|>]"), nil)
	wantStatus(t, err, Ydb.StatusIds_SCHEME_ERROR, "Missing column")
	_, err = db.ReadRows(ctx, "/local/series", typed(t, "[<|id: 2ul|>]"), []string{"nope"})
	wantStatus(t, err, Ydb.StatusIds_SCHEME_ERROR, "nope")
}

func TestReadTable(t *testing.T) {
	db := sampleDB(t, "")
	ge := func(x string) *Ydb_Table.KeyRange_GreaterOrEqual {
		return &Ydb_Table.KeyRange_GreaterOrEqual{GreaterOrEqual: typed(t, x)}
	}
	gt := func(x string) *Ydb_Table.KeyRange_Greater { return &Ydb_Table.KeyRange_Greater{Greater: typed(t, x)} }
	lt := func(x string) *Ydb_Table.KeyRange_Less { return &Ydb_Table.KeyRange_Less{Less: typed(t, x)} }
	le := func(x string) *Ydb_Table.KeyRange_LessOrEqual {
		return &Ydb_Table.KeyRange_LessOrEqual{LessOrEqual: typed(t, x)}
	}
	for _, c := range []struct {
		name string
		r    TableRead
		want string
	}{
		{"all", TableRead{}, "(1, 1, 1) (1, 1, 2) (1, 2, 1) (2, 1, 1)"},
		{"from and to",
			TableRead{Range: &Ydb_Table.KeyRange{FromBound: ge("(1ul, 1ul, 2ul)"), ToBound: lt("(2ul, 1ul, 1ul)")}},
			"(1, 1, 2) (1, 2, 1)"},
		{"after and up to",
			TableRead{Range: &Ydb_Table.KeyRange{FromBound: gt("(1ul, 1ul, 2ul)"), ToBound: le("(2ul, 1ul, 1ul)")}},
			"(1, 2, 1) (2, 1, 1)"},
		{"by a part of the key", TableRead{Range: &Ydb_Table.KeyRange{FromBound: gt("(1ul,)")}}, "(2, 1, 1)"},
		{"up to a part of the key",
			TableRead{Range: &Ydb_Table.KeyRange{ToBound: le("(CAST('1' AS Uint64), CAST('1' AS Uint64))")}},
			"(1, 1, 1) (1, 1, 2)"},
		{"limit", TableRead{Limit: 2, PartRows: 1}, "(1, 1, 1) (1, 1, 2)"},
	} {
		c.r.Path, c.r.Columns = "/local/episodes", []string{"series", "season", "episode"}
		var out []string
		if err := db.ReadTable(context.Background(), c.r, gather(&out)); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if _, rows, _ := strings.Cut(out[0], ": "); rows != c.want {
			t.Errorf("%s: %s; want %s", c.name, rows, c.want)
		}
	}
	var out []string
	if err := db.ReadTable(context.Background(),
		TableRead{Path: "/local/series", Columns: []string{"id"}, NotNullAsOptional: true}, gather(&out)); err != nil ||
		!strings.HasPrefix(out[0], "id Optional<Uint64>:") {
		t.Error(out, err)
	}
	for path, r := range map[string]*Ydb_Table.KeyRange{
		"/local/nope":     nil,
		"/local/series":   {FromBound: ge("1ul")},
		"/local/episodes": {FromBound: ge("('x', 1ul)")},
	} {
		if err := db.ReadTable(context.Background(), TableRead{Path: path, Range: r}, gather(&out)); err == nil {
			t.Errorf("%s %v: no error", path, r)
		}
	}
}

func TestSchemaEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	db, other := sampleDB(t, path), openDB(t, path)
	ctx := context.Background()
	if err := db.MakeDirectory(ctx, "/local/a/b"); err != nil {
		t.Fatal(err)
	}
	if err := other.MakeDirectory(ctx, "/local/a/b/"); err != nil {
		t.Errorf("again: %v", err)
	}
	mustRun(t, other, "CREATE TABLE `a/b/c/t` (id Int32, PRIMARY KEY (id))")
	names := func(p string) (out []string) {
		_, children, err := db.List(ctx, p)
		if err != nil {
			t.Error(err)
		}
		for _, c := range children {
			out = append(out, c.Path)
		}
		return out
	}
	if got := names("/local"); !cmp.Equal(got, []string{"/local/a", "/local/episodes", "/local/series"}) {
		t.Error(got)
	}
	if got := names("/local/a/b"); !cmp.Equal(got, []string{"/local/a/b/c"}) {
		t.Error(got)
	}
	e, err := other.Describe(ctx, "/local/series")
	if err != nil || e.Kind != Table || e.Created.IsZero() {
		t.Errorf("%+v, %v", e, err)
	}
	if n, err := other.CountRows(ctx, "/local/series"); n != 3 || err != nil {
		t.Errorf("%d rows, %v", n, err)
	}
	spec := &TableSpec{
		Columns: []Column{
			{"id", &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}}, true},
			{"title", &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UTF8}}, false},
			{"released", &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_DATE}}, false},
			{"rating", &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_DOUBLE}}, false},
		},
		Key: []string{"id"}, Indexes: []Index{{Name: "by_title", Columns: []string{"title"}}},
	}
	if d := cmp.Diff(spec, e.Table, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	if err := db.CreateTable(ctx, "/local/series", *spec); err != nil {
		t.Errorf("creating an existing table: %v", err)
	}
	for what, err := range map[string]error{
		"remove a full directory":  db.RemoveDirectory(ctx, "/local/a/b"),
		"remove a missing one":     db.RemoveDirectory(ctx, "/local/nope"),
		"remove a table":           db.RemoveDirectory(ctx, "/local/series"),
		"a directory over a table": db.MakeDirectory(ctx, "/local/series/x"),
		"a table over a directory": db.CreateTable(ctx, "/local/a", *spec),
		"drop a missing table":     db.DropTable(ctx, "/local/nope"),
		"describe a missing path":  func() error { _, err := db.Describe(ctx, "/local/x/y"); return err }(),
		"list a missing path":      func() error { _, _, err := db.List(ctx, "/local/x/y"); return err }(),
		"a table without a key":    db.CreateTable(ctx, "/local/u", TableSpec{Columns: spec.Columns}),
		"an alien column type": db.CreateTable(ctx, "/local/u",
			TableSpec{Columns: []Column{{"a", &Ydb.Type{}, false}}, Key: []string{"a"}}),
		"an index of no column": db.CreateTable(ctx, "/local/u",
			TableSpec{Columns: spec.Columns, Key: spec.Key, Indexes: []Index{{Name: "i", Columns: []string{"x"}}}}),
		"a table in the root": db.CreateTable(ctx, "/u", *spec),
	} {
		if e, ok := err.(*Error); !ok || e.Status != Ydb.StatusIds_SCHEME_ERROR {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, err := range []error{db.DropTable(ctx, "/local/a/b/c/t"), other.RemoveDirectory(ctx, "/local/a/b/c"),
		db.RemoveDirectory(ctx, "/local/a/b")} {
		if err != nil {
			t.Error(err)
		}
	}
	if got := names("/local/a"); got != nil {
		t.Error(got)
	}
	if e, err := db.Describe(ctx, "/local"); err != nil || e.Kind != Directory {
		t.Errorf("%+v, %v", e, err)
	}
}

// A file keeps its rows and its schema.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	db, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	mustRun(t, db, sample)
	mustRun(t, db, sampleRows)
	want := mustRun(t, db, "SELECT * FROM series; SELECT * FROM episodes")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if got := mustRun(t, openDB(t, path), "SELECT * FROM series; SELECT * FROM episodes"); got != want {
		t.Error(got)
	}
	if _, err := run(db, Request{Text: "SELECT * FROM series"}); err == nil {
		t.Error("a closed database answers")
	}
}
