package engine

import (
	"context"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// wantRun checks what a text gives.
func wantRun(t *testing.T, db *DB, text, want string) {
	t.Helper()
	if got := mustRun(t, db, text); got != want {
		t.Errorf("%s\n got %s\nwant %s", text, got, want)
	}
}

func TestAddedIndexHasTheOldRows(t *testing.T) {
	db := sampleDB(t, "")
	alter := func(a Alteration) {
		t.Helper()
		if err := db.AlterTable(context.Background(), "/local/series", a); err != nil {
			t.Fatal(err)
		}
	}
	alter(Alteration{AddIndexes: []Index{{Name: "by_date", Columns: []string{"released"}}}})
	wantRun(t, db, "SELECT id FROM series VIEW by_date WHERE released = Date('2014-04-06')", "id Uint64: (2)")
	mustRun(t, db, "UPSERT INTO series (id, released) VALUES (7ul, Date('2014-04-06'))")
	wantRun(t, db, "SELECT id FROM series VIEW by_date WHERE released = Date('2014-04-06')", "id Uint64: (2) (7)")
	alter(Alteration{DropIndexes: []string{"by_date"}})
	_, err := run(db, Request{Text: "SELECT id FROM series VIEW by_date"})
	wantStatus(t, err, Ydb.StatusIds_GENERIC_ERROR, "Required global index not found")
	for text, a := range map[string]Alteration{
		"column rating of type Double cannot be part of index i": {AddIndexes: []Index{{Name: "i", Columns: []string{"rating"}}}},
		`duplicated or empty name of an index: "by_title"`:       {AddIndexes: []Index{{Name: "by_title", Columns: []string{"released"}}}},
		"Cannot alter table /local/series: no index i":           {DropIndexes: []string{"i"}},
	} {
		wantStatus(t, db.AlterTable(context.Background(), "/local/series", a), Ydb.StatusIds_SCHEME_ERROR, text)
	}
}

func TestCopyTables(t *testing.T) {
	db, ctx := sampleDB(t, ""), context.Background()
	if err := db.CopyTables(ctx,
		[]Move{{From: "/local/series", To: "/local/dir/a"}, {From: "/local/series", To: "/local/b", OmitIndexes: true}}); err != nil {
		t.Fatal(err)
	}
	mustRun(t, db, "DELETE FROM series WHERE id = 1")
	wantRun(t, db, "SELECT id FROM `dir/a` VIEW by_title WHERE title = 'IT Crowd'; SELECT COUNT(*) AS n FROM b",
		"id Uint64: (1) | n Uint64: (3)")
	_, err := run(db, Request{Text: "SELECT id FROM b VIEW by_title"})
	wantStatus(t, err, Ydb.StatusIds_GENERIC_ERROR, "index")
	mustRun(t, db, "DELETE FROM b")
	wantRun(t, db, "SELECT COUNT(*) AS n FROM series", "n Uint64: (2)")
	for _, m := range []Move{{From: "/local/nope", To: "/local/c"}, {From: "/local/series", To: "/local/b"},
		{From: "/local/series", To: "/local/series"}, {From: "/local/series", To: "/c"}} {
		err := db.CopyTables(ctx, []Move{{From: "/local/series", To: "/local/first"}, m})
		wantStatus(t, err, Ydb.StatusIds_SCHEME_ERROR, "")
	}
	if _, err := db.Describe(ctx, "/local/first"); err == nil {
		t.Error("a copy that failed left a table")
	}
	wantStatus(t, db.CopyTables(ctx, nil), Ydb.StatusIds_BAD_REQUEST, "no tables")
}

func TestRenameTables(t *testing.T) {
	db, ctx := sampleDB(t, ""), context.Background()
	tx := begin(t, db, Serializable)
	in(t, tx, "SELECT * FROM series; UPSERT INTO episodes (series, season, episode) VALUES (9ul, 9ul, 9ul)")
	if err := db.RenameTables(ctx,
		[]Move{{From: "/local/series", To: "/local/films"}, {From: "/local/episodes", To: "/local/films", Replace: true}}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, tx.Commit(ctx), Ydb.StatusIds_ABORTED, "")
	wantRun(t, db, "SELECT COUNT(*) AS n, MAX(views) AS v FROM films", "n Uint64, v Optional<Int64>: (4, 100)")
	_, err := run(db, Request{Text: "SELECT * FROM series"})
	wantStatus(t, err, Ydb.StatusIds_SCHEME_ERROR, "Cannot find table")
	mustRun(t, db, "CREATE TABLE series (id Int32, PRIMARY KEY (id))")
	if err := db.RenameTables(ctx, []Move{{From: "/local/films", To: "/local/d/x"}}); err != nil {
		t.Fatal(err)
	}
	wantRun(t, db, "SELECT COUNT(*) AS n FROM `d/x`", "n Uint64: (4)")
	wantStatus(t, db.RenameTables(ctx, []Move{{From: "/local/series", To: "/local/d/x"}}), Ydb.StatusIds_SCHEME_ERROR, "path exist")
}
