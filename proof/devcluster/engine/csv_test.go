package engine

import (
	"context"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Formats"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
)

func TestBulkUpsertCSV(t *testing.T) {
	type settings = Ydb_Formats.CsvSettings
	const header = "id,title,released,rating\n"
	for _, c := range []struct {
		name, data string
		settings   *settings
		want       string // the rows from 10 on, or an error
	}{
		{"columns of the table", "10,a,2020-01-01,1.5\n11,\"b,\"\"c\",,NULL\n", nil,
			`(10, "a", 2020-01-01, 1.5) (11, "b,\"c", NULL, NULL)`},
		{"header", "title,id\na,10\n", &settings{Header: true}, `(10, "a", NULL, NULL)`},
		{"delimiter", "10;a;;\n", &settings{Delimiter: []byte(";")}, `(10, "a", NULL, NULL)`},
		{"skipped rows", "x\ny,z\n" + header + "10,a,,\n", &settings{SkipRows: 2, Header: true}, `(10, "a", NULL, NULL)`},
		{"null value", "10,-,-,\n", &settings{NullValue: []byte("-")}, "BAD_REQUEST: CSV: line 1, column rating"},
		{"null value in all", "10,-,-,-\n", &settings{NullValue: []byte("-")}, "(10, NULL, NULL, NULL)"},
		{"an empty text is a text", "10,,,\n", nil, `(10, "", NULL, NULL)`},
		{"too few fields", header + "10,a\n", &settings{Header: true}, "BAD_REQUEST: CSV: line 2 has 2 fields and not 4"},
		{"NULL in a NOT NULL column", "NULL,a,,\n", nil, "BAD_REQUEST: NULL for the NOT NULL column id"},
		{"no key", "title\na\n", &settings{Header: true}, "SCHEME_ERROR: Missing column id"},
		{"unknown column", "id,nope\n10,a\n", &settings{Header: true}, "SCHEME_ERROR: Unknown or repeated column: nope"},
		{"a wrong number", "x,a,,\n", nil, "BAD_REQUEST: CSV: line 1, column id"},
		{"an open quote", "10,\"a,,\n", nil, "BAD_REQUEST: CSV: "},
		{"long delimiter", "10", &settings{Delimiter: []byte(";;")}, "BAD_REQUEST: CSV: the delimiter"},
		{"other quotes", "10", &settings{Quoting: &Ydb_Formats.CsvSettings_Quoting{QuoteChar: []byte("'")}},
			"UNSUPPORTED: CSV with another quoting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := sampleDB(t, "")
			err := db.BulkUpsertCSV(context.Background(), "/local/series", c.settings, []byte(c.data), nil)
			got := strings.TrimPrefix(mustRun(t, db, "SELECT id, title, released, rating FROM series WHERE id >= 10"),
				"id Uint64, title Optional<Utf8>, released Optional<Date>, rating Optional<Double>:")
			if err != nil {
				got = " " + err.Error()
			}
			if !strings.HasPrefix(got, " "+c.want) {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
	db := openDB(t, "")
	mustRun(t, db, "CREATE TABLE times (id Timestamp, d Datetime, PRIMARY KEY (id))")
	if err := db.BulkUpsertCSV(context.Background(), "/local/times", nil,
		[]byte("2020-01-01 10:00:00.5,2020-01-01T10:00:00Z\n"), nil); err != nil {
		t.Error(err)
	}
	wantRun(t, db, "SELECT * FROM times",
		"d Optional<Datetime>, id Optional<Timestamp>: (2020-01-01T10:00:00Z, 2020-01-01T10:00:00.500000Z)")
	wantStatus(t, db.BulkUpsertCSV(context.Background(), "/local/nope", nil, nil, nil), Ydb.StatusIds_SCHEME_ERROR, "")
}

func TestUnusedParametersAreWarnedOf(t *testing.T) {
	db := openDB(t, "")
	var warned []*Ydb_Issue.IssueMessage
	_, err := db.Execute(context.Background(), Request{
		Text: "DECLARE $x AS Int32; SELECT 1", Database: "/local", Warn: func(w []*Ydb_Issue.IssueMessage) { warned = w },
	}, func(int, *Ydb.ResultSet) error { return nil })
	if err != nil || len(warned) != 1 || warned[0].GetMessage() != "Symbol $x is not used" ||
		warned[0].GetSeverity() != 2 || warned[0].GetPosition().GetColumn() != 1 {
		t.Errorf("%v, %v", warned, err)
	}
}
