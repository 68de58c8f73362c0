package engine

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"io"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Formats"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// BulkUpsertCSV is BulkUpsert of rows as text. Without a header the columns are the table's, in its order.
func (db *DB) BulkUpsertCSV(ctx context.Context, path string, s *Ydb_Formats.CsvSettings, data []byte, between Between) error {
	t, err := db.tableAt(ctx, path)
	if err != nil {
		return err
	}
	r, err := csvReader(s, data)
	if err != nil {
		return err
	}
	cols, err := csvColumns(t, s, r)
	if err != nil {
		return err
	}
	var rows [][]value.Value
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			return db.bulk(ctx, t, cols, rows, between)
		}
		if err != nil {
			return badCSV("%v", err)
		}
		line, _ := r.FieldPos(0)
		if len(fields) != len(cols) {
			return badCSV("line %d has %d fields and not %d", line, len(fields), len(cols))
		}
		row := nullRow(t)
		for n, i := range cols {
			col := t.columns[i]
			if !csvNull(s.GetNullValue(), col.bare, fields[n]) {
				if row[i], err = csvValue(col.bare, fields[n]); err != nil {
					return badCSV("line %d, column %s: %v", line, col.name, err)
				}
			}
			if err := col.allows(row[i]); err != nil {
				return err
			}
		}
		rows = append(rows, row)
	}
}

func badCSV(format string, args ...any) error {
	return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "CSV: "+format, args...)
}

// csvReader returns a reader of the text behind the rows to skip.
func csvReader(s *Ydb_Formats.CsvSettings, data []byte) (*csv.Reader, error) {
	if q := s.GetQuoting(); q.GetDisabled() || q.GetDoubleQuoteDisabled() || len(q.GetQuoteChar()) > 0 && string(q.GetQuoteChar()) != `"` {
		return nil, errorf(Ydb.StatusIds_UNSUPPORTED, 0, "CSV with another quoting than double quotes is not supported")
	}
	r := csv.NewReader(bytes.NewReader(data))
	switch d := s.GetDelimiter(); {
	case len(d) == 1 && d[0] < 0x80:
		r.Comma = rune(d[0])
	case len(d) > 0:
		return nil, badCSV("the delimiter must be one character")
	}
	r.FieldsPerRecord = -1
	for range s.GetSkipRows() {
		if _, err := r.Read(); err != nil {
			return nil, badCSV("skip_rows = %d, but: %v", s.GetSkipRows(), err)
		}
	}
	return r, nil
}

// csvColumns returns the places of the columns that the fields of a line belong to.
func csvColumns(t *table, s *Ydb_Formats.CsvSettings, r *csv.Reader) ([]int, error) {
	var cols []int
	if !s.GetHeader() {
		for i := range t.columns {
			cols = append(cols, i)
		}
		return cols, nil
	}
	names, err := r.Read()
	if err != nil {
		return nil, badCSV("no header: %v", err)
	}
	seen := map[string]bool{}
	for _, n := range names {
		i, ok := t.byName[n]
		if !ok || seen[n] {
			return nil, errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Unknown or repeated column: %s", n)
		}
		seen[n] = true
		cols = append(cols, i)
	}
	return cols, nil
}

// csvNull reports whether the text stands for NULL: the one that was said to, or, if none was,
// the usual ones in columns that hold no text.
func csvNull(null []byte, t *value.Type, s string) bool {
	if len(null) > 0 {
		return s == string(null)
	}
	return !value.IsText(t.Kind) && (s == "" || s == `\N` || s == "NULL")
}

// csvValue reads a value; times may have a blank instead of the T and need no Z.
func csvValue(t *value.Type, s string) (value.Value, error) {
	if value.IsTime(t.Kind) && len(s) > len("2006-01-02") {
		s = strings.Replace(s, " ", "T", 1)
		if !strings.HasSuffix(s, "Z") {
			s += "Z"
		}
	}
	return value.Parse(t, s)
}
