package facadetest

import (
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Writer is a driver whose tables are all (id Uint64 NOT NULL, name Utf8), and which
// keeps what is written.
type Writer struct {
	*Driver
	mu   sync.Mutex // guards Rows
	Rows map[uint64]string
}

// NewWriter returns a Writer that has kept nothing.
func NewWriter(t *testing.T) *Writer {
	w := &Writer{Driver: &Driver{}, Rows: map[uint64]string{}}
	w.Table = func(path string) (*Ydb_Table.DescribeTableResult, error) {
		if path != "/local/dir/items" {
			return nil, Failed(cluster.CallControl, Ydb.StatusIds_SCHEME_ERROR)
		}
		return &Ydb_Table.DescribeTableResult{PrimaryKey: []string{"id"}, Columns: []*Ydb_Table.ColumnMeta{
			{Name: "id", Type: typeOf(t, "Uint64")}, {Name: "name", Type: typeOf(t, "Optional<Utf8>")},
		}}, nil
	}
	w.Bulk = func(req *Ydb_Table.BulkUpsertRequest) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, row := range req.GetRows().GetValue().GetItems() {
			if name := row.GetItems()[1].GetTextValue(); name == "poison" {
				return Failed(cluster.CallExecute, Ydb.StatusIds_BAD_REQUEST)
			}
		}
		for _, row := range req.GetRows().GetValue().GetItems() {
			w.Rows[row.GetItems()[0].GetUint64Value()] = row.GetItems()[1].GetTextValue()
		}
		return nil
	}
	return w
}

// Row is the name in the row of that id, or "".
func (w *Writer) Row(id uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Rows[id]
}

func typeOf(t *testing.T, name string) *Ydb.Type {
	t.Helper()
	typ, err := yql.ParseType(name)
	if err != nil {
		t.Fatal(err)
	}
	return typ
}
