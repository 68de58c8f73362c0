package yql

import (
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Columns writes the rows of one result set. What it says never changes, and it is safe for
// concurrent use.
//
// In a row that is an object the second of two columns of one name has the key
// name_2, the third name_3 and so on, with the next number that no column has.
// Keys stand in the order of the columns, so the key at a place belongs to the
// column at that place.
type Columns struct {
	of      []*Ydb.Column
	cells   []cellType
	keys    [][]byte                            // "name": in JSON
	header  atomic.Pointer[[]*sidecarv1.Column] // of Header; nil: it was not called
	text    atomic.Pointer[[]byte]              // of AppendHeader; nil: it was not called
	encoded atomic.Pointer[[]byte]              // of AppendMessages; nil: it was not called
}

// NewColumns prepares to write rows with these columns.
func NewColumns(columns []*Ydb.Column) *Columns {
	c := &Columns{
		of:    columns,
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

// Of returns what the columns were made of, which is not to be changed.
func (c *Columns) Of() []*Ydb.Column { return c.of }

// AppendHeader appends [{"name":"id","type":"Uint64"},...].
func (c *Columns) AppendHeader(dst []byte) []byte {
	text := c.text.Load()
	if text == nil {
		b := []byte{'['}
		for i := range c.cells {
			b = append(appendComma(b, i), `{"name":`...)
			b = append(appendString(b, c.cells[i].name), `,"type":`...)
			b = append(appendString(b, FormatType(c.cells[i].t)), '}')
		}
		b = append(b, ']')
		text = &b
		c.text.Store(text)
	}
	return append(dst, *text...)
}

// Header returns the columns for the gRPC API. They are not to be changed.
func (c *Columns) Header() []*sidecarv1.Column {
	header := c.header.Load()
	if header == nil {
		h := make([]*sidecarv1.Column, len(c.cells))
		for i := range c.cells {
			h[i] = &sidecarv1.Column{Name: c.cells[i].name, Type: FormatType(c.cells[i].t)}
		}
		header = &h
		c.header.Store(header)
	}
	return *header
}

// AppendMessages appends Header encoded, as field 1 (columns) of ExecuteResponse and ResultSet.
func (c *Columns) AppendMessages(dst []byte) []byte {
	octets := c.encoded.Load()
	if octets == nil {
		b, err := proto.Marshal(&sidecarv1.ResultSet{Columns: c.Header()})
		if err != nil {
			panic(err)
		}
		octets = &b
		c.encoded.Store(octets)
	}
	return append(dst, *octets...)
}
