package ingest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// layout is what a stream knows of its table. It is immutable. A column keeps its
// place in the layouts that follow; one whose type changes gets another place,
// because rows that were read with the old type may still be under way.
type layout struct {
	columns  []column
	rows     *yql.Rows
	indices  []int // in columns, by the place in rows
	order    []int // the places in rows, in the order of those in columns
	at       []int // the places in rows by those in columns; -1: gone
	key      []int // the primary key, as places in columns
	required []int // what a row must name besides
	// loose says that equal keys cannot be told by their bytes: then nothing is
	// merged or sorted, and one batch follows the other.
	loose bool
}

// column is one column of a table, or what it was.
type column struct {
	name   string
	typ    *Ydb.Type
	member []byte // its Ydb.StructMember, as a field of Ydb.StructType
	gone   bool   // it is no more, or has another type
}

// ErrKey ends the streams of a table that was made again with another key.
var ErrKey = errors.New("ingest: the table has another primary key now; open a new stream")

// newLayout reads a description of a table. old is the layout before, or nil.
func newLayout(d *Ydb_Table.DescribeTableResult, old *layout) (*layout, error) {
	l := &layout{}
	if old != nil {
		l.columns = slices.Clone(old.columns)
		for i := range l.columns {
			l.columns[i].gone = true
		}
	}
	var names []string
	var types []*Ydb.Type
	for _, meta := range d.GetColumns() {
		place := slices.IndexFunc(l.columns, func(c column) bool {
			return c.name == meta.GetName() && yql.EqualTypes(c.typ, meta.GetType())
		})
		if place < 0 {
			member, err := appendMember(meta.GetName(), meta.GetType())
			if err != nil {
				return nil, fmt.Errorf("ingest: column %.64q: %w", meta.GetName(), err)
			}
			place = len(l.columns)
			l.columns = append(l.columns, column{name: meta.GetName(), typ: meta.GetType(), member: member})
		}
		l.columns[place].gone = false
		if needed(meta) && !slices.Contains(d.GetPrimaryKey(), meta.GetName()) {
			l.required = append(l.required, place)
		}
		l.indices, names, types = append(l.indices, place), append(names, meta.GetName()), append(types, meta.GetType())
	}
	l.rows = yql.NewRows(names, types)
	l.at = slices.Repeat([]int{-1}, len(l.columns))
	for i, place := range l.indices {
		l.order, l.at[place] = append(l.order, i), i
	}
	slices.SortFunc(l.order, func(a, b int) int { return l.indices[a] - l.indices[b] })
	for _, name := range d.GetPrimaryKey() {
		i, ok := l.rows.Find(name)
		if !ok {
			return nil, fmt.Errorf("ingest: the key column %.64q is none of the table's", name)
		}
		l.key = append(l.key, l.indices[i])
		l.loose = l.loose || !yql.SortKeyType(types[i])
	}
	if len(l.key) == 0 {
		return nil, errors.New("ingest: the table has no primary key")
	}
	if old != nil && !slices.Equal(l.key, old.key) {
		return nil, ErrKey
	}
	return l, nil
}

// same tells whether nothing changed since the layout before.
func (l *layout) same(old *layout) bool {
	return old != nil && slices.Equal(l.indices, old.indices) && slices.Equal(l.required, old.required)
}

// needed tells whether a row, which may be new, has to name a column.
func needed(meta *Ydb_Table.ColumnMeta) bool {
	notNull := meta.GetNotNull() || meta.GetType().GetOptionalType() == nil && meta.GetType().GetPgType() == nil
	return notNull && meta.GetDefaultValue() == nil
}

func appendMember(name string, t *Ydb.Type) ([]byte, error) {
	body, err := proto.Marshal(&Ydb.StructMember{Name: name, Type: t})
	if err != nil {
		return nil, err
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), body), nil
}

// check tells whether a row names every column that it must.
func (l *layout) check(c *yql.Cells) error {
	for _, places := range [][]int{l.key, l.required} {
		for _, place := range places {
			if !c.Spans[l.at[place]].Set() {
				return &yql.Error{Path: l.columns[place].name,
					Msg: "the row has to name this column: it is in the primary key, or NOT NULL without a default"}
			}
		}
	}
	return nil
}

// appendKey appends the key of a row that check let pass.
func (l *layout) appendKey(dst []byte, c *yql.Cells) ([]byte, error) {
	if l.loose {
		return dst, nil
	}
	for _, place := range l.key {
		var ok bool
		if dst, ok = yql.AppendSortKey(dst, c.Value(l.at[place]), l.columns[place].typ); !ok {
			return dst, &yql.Error{Path: l.columns[place].name, Msg: "this cannot be in a primary key"}
		}
	}
	return dst, nil
}
