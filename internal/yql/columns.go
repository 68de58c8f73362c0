package yql

import (
	"slices"
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
	cells []cellType
	keys  [][]byte // "name": in JSON
}

// NewColumns prepares to write rows with these columns.
func NewColumns(columns []*Ydb.Column) *Columns {
	c := &Columns{
		cells: make([]cellType, len(columns)),
		keys:  make([][]byte, len(columns)),
	}
	keys, room := make([]string, len(columns)), 0
	for i, column := range columns {
		c.cells[i], keys[i] = newCell(column.GetName(), column.GetType()), column.GetName()
		room += len(keys[i]) + len(`"":`)
	}
	if repeated(keys) {
		keys = numbered(keys)
	}
	all := make([]byte, 0, room)
	for i, key := range keys {
		at := len(all)
		all = append(appendString(all, key), ':')
		c.keys[i] = all[at:len(all):len(all)]
	}
	return c
}

// repeated reports whether a name stands twice.
func repeated(names []string) bool {
	if len(names) <= 16 { // a map is dearer
		for i, name := range names {
			if slices.Contains(names[:i], name) {
				return true
			}
		}
		return false
	}
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		seen[name] = true
	}
	return len(seen) < len(names)
}

// numbered returns the names as keys, of which none stands twice.
func numbered(names []string) []string {
	keys := make([]string, len(names))
	taken := make(map[string]int, len(names)) // how often a name stands, or its last number
	for _, name := range names {
		taken[name] = 1
	}
	seen := make(map[string]bool, len(names))
	for i, name := range names {
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
		keys[i] = key
	}
	return keys
}

// Len returns the number of columns.
func (c *Columns) Len() int { return len(c.cells) }

// AppendHeader appends [{"name":"id","type":"Uint64"},...].
func (c *Columns) AppendHeader(dst []byte) []byte {
	dst = append(dst, '[')
	for i := range c.cells {
		dst = append(appendComma(dst, i), `{"name":`...)
		dst = append(appendString(dst, c.cells[i].name), `,"type":`...)
		dst = append(appendString(dst, FormatType(c.cells[i].t)), '}')
	}
	return append(dst, ']')
}

// Header returns the columns for the gRPC face.
func (c *Columns) Header() []*sidecarv1.Column {
	header := make([]*sidecarv1.Column, len(c.cells))
	for i := range c.cells {
		header[i] = &sidecarv1.Column{Name: c.cells[i].name, Type: FormatType(c.cells[i].t)}
	}
	return header
}
