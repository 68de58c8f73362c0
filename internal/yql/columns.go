package yql

import (
	"strconv"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Columns writes the rows of one result set. It is immutable, and safe for
// concurrent use.
//
// In a row that is an object the second of two columns of one name has the key
// name_2, the third name_3 and so on, with the next number that no column has.
// Keys stand in the order of the columns, so the key at a place belongs to the
// column at that place.
type Columns struct {
	names []string
	types []*Ydb.Type
	keys  [][]byte // "name": in JSON
}

// NewColumns prepares to write rows with these columns.
func NewColumns(columns []*Ydb.Column) *Columns {
	c := &Columns{
		names: make([]string, len(columns)),
		types: make([]*Ydb.Type, len(columns)),
		keys:  make([][]byte, len(columns)),
	}
	taken := make(map[string]int, len(columns)) // how often a name stands, or its last number
	for i, column := range columns {
		c.names[i], c.types[i] = column.GetName(), column.GetType()
		taken[c.names[i]] = 1
	}
	seen := make(map[string]bool, len(columns))
	for i, name := range c.names {
		key := name
		for n := taken[name]; seen[name] && key == name; {
			n++
			numbered := name + "_" + strconv.Itoa(n)
			taken[name] = n
			if _, ok := taken[numbered]; !ok {
				key = numbered
				taken[key] = 1
			}
		}
		seen[name] = true
		c.keys[i] = append(appendString(nil, key), ':')
	}
	return c
}

// Len returns the number of columns.
func (c *Columns) Len() int { return len(c.names) }

// AppendHeader appends [{"name":"id","type":"Uint64"},...].
func (c *Columns) AppendHeader(dst []byte) []byte {
	dst = append(dst, '[')
	for i, name := range c.names {
		dst = append(appendComma(dst, i), `{"name":`...)
		dst = append(appendString(dst, name), `,"type":`...)
		dst = append(appendString(dst, FormatType(c.types[i])), '}')
	}
	return append(dst, ']')
}

// AppendObject appends a row as {"id":"1","name":"Ann"}. It allocates only to
// make dst longer.
func (c *Columns) AppendObject(dst []byte, row *Ydb.Value, o JSONOptions) ([]byte, error) {
	if len(row.GetItems()) != len(c.types) {
		return dst, c.rowFault(row)
	}
	dst = append(dst, '{')
	for i, item := range row.GetItems() {
		var err error
		dst = append(appendComma(dst, i), c.keys[i]...)
		if dst, err = AppendJSON(dst, item, c.types[i], o); err != nil {
			return dst, inMember(err, c.names[i])
		}
	}
	return append(dst, '}'), nil
}

// AppendArray appends a row as ["1","Ann"]. It allocates only to make dst
// longer.
func (c *Columns) AppendArray(dst []byte, row *Ydb.Value, o JSONOptions) ([]byte, error) {
	if len(row.GetItems()) != len(c.types) {
		return dst, c.rowFault(row)
	}
	dst = append(dst, '[')
	for i, item := range row.GetItems() {
		var err error
		if dst, err = AppendJSON(appendComma(dst, i), item, c.types[i], o); err != nil {
			return dst, inMember(err, c.names[i])
		}
	}
	return append(dst, ']'), nil
}

// Header returns the columns for the gRPC face.
func (c *Columns) Header() []*sidecarv1.Column {
	header := make([]*sidecarv1.Column, len(c.names))
	for i, name := range c.names {
		header[i] = &sidecarv1.Column{Name: name, Type: FormatType(c.types[i])}
	}
	return header
}

// Row converts a row for the gRPC face.
func (c *Columns) Row(row *Ydb.Value) (*sidecarv1.Row, error) {
	if len(row.GetItems()) != len(c.types) {
		return nil, c.rowFault(row)
	}
	values := make([]*sidecarv1.Value, len(c.types))
	for i, item := range row.GetItems() {
		var err error
		if values[i], err = ToValue(item, c.types[i]); err != nil {
			return nil, inMember(err, c.names[i])
		}
	}
	return &sidecarv1.Row{Values: values}, nil
}

func (c *Columns) rowFault(row *Ydb.Value) error {
	return errorf("the server sent a row of %d values for %d columns", len(row.GetItems()), len(c.types))
}
