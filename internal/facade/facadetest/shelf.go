package facadetest

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Shelf is a driver whose tables have the columns id, v and rev. It holds one row
// by its id, and answers the statements of package kv.
func Shelf(t testing.TB) *Driver {
	rows := map[uint64][2]string{} // JSON of v and rev
	f := &Driver{}
	f.Table = func(string) (*Ydb_Table.DescribeTableResult, error) { return KVTable(t), nil }
	f.Answer = func(
		_ context.Context, _ *Session, req *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		f.Mu.Lock()
		defer f.Mu.Unlock()
		id := req.GetParameters()["$k0"].GetValue().GetUint64Value()
		row, there := rows[id]
		switch text := req.GetQueryContent().GetText(); {
		case strings.Contains(text, " INSERT ") && there:
			return nil, Exists()
		case strings.Contains(text, " INTO "):
			row = [2]string{`"` + base64.StdEncoding.EncodeToString(req.GetParameters()["$value"].GetValue().GetBytesValue()) + `"`, "null"}
			if v := req.GetParameters()["$version"]; v != nil {
				row[1] = strconv.FormatUint(v.GetValue().GetUint64Value(), 10)
			}
			rows[id] = row
		case strings.Contains(text, " DELETE "):
			delete(rows, id)
		case strings.Contains(text, " SELECT `rev` "):
			return []*Ydb_Query.ExecuteQueryResponsePart{
				Part(t, 0, []string{"rev Optional<Uint64>"}, cells1(there, row[1])...),
			}, nil
		case strings.Contains(text, " SELECT `id` "):
			return []*Ydb_Query.ExecuteQueryResponsePart{Part(t, 0, []string{"id Uint64"}, cells1(there, strconv.Itoa(int(id)))...)}, nil
		default: // in another order than it was asked for
			var cells [][]string
			if there {
				cells = append(cells, []string{row[1], "null", row[0]})
			}
			return []*Ydb_Query.ExecuteQueryResponsePart{
				Part(t, 0, []string{"rev Optional<Uint64>", "x Optional<Int32>", "v Optional<String>"}, cells...),
			}, nil
		}
		return nil, nil
	}
	return f
}

// cells1 is a row of one cell, or no row.
func cells1(there bool, cell string) [][]string {
	if !there {
		return nil
	}
	return [][]string{{cell}}
}

// KVTable is a table (id Uint64 NOT NULL, v String, rev Uint64), which a Shelf has.
func KVTable(t testing.TB) *Ydb_Table.DescribeTableResult {
	d := &Ydb_Table.DescribeTableResult{PrimaryKey: []string{"id"}}
	for _, c := range [][2]string{{"id", "Uint64"}, {"v", "Optional<String>"}, {"rev", "Optional<Uint64>"}} {
		typ, err := yql.ParseType(c[1])
		if err != nil {
			t.Fatal(err)
		}
		d.Columns = append(d.Columns, &Ydb_Table.ColumnMeta{Name: c[0], Type: typ})
	}
	return d
}

// Entry reads an entry of kv.tables.
func Entry(t testing.TB, text string) kv.Entry {
	t.Helper()
	var table kv.Entry
	if err := table.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return table
}
