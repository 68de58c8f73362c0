package core

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// BulkRequest is the call BulkUpsert, over either API.
type BulkRequest struct {
	Table    string
	Rows     bulkRows
	Types    map[string]string
	Timeout  string
	Priority string
}

// bulkRows are the rows of a request as they came: they are never messages here.
type bulkRows interface {
	// Each calls f for every row, until it fails.
	Each(f func(row []byte) error) error
	// First is for each: ErrSome, or why the first row is none.
	First(row []byte) error
	// Read reads one row.
	Read(columns *yql.Rows, row []byte, into *yql.Cells) error
}

// BulkUpsert writes rows without a transaction. Rows that name the same columns
// go together; other columns of a row keep their values. Writing a row twice is
// as good as once, so everything is retried.
func (s *Service) BulkUpsert(ctx context.Context, c *Call, in BulkRequest) (uint64, error) {
	path, err := s.Absolute(in.Table, "table")
	if err != nil {
		return 0, err
	}
	if err := s.Allow(c, Wish{Kind: apps.Bulk, Writes: true, Table: path}); err != nil {
		return 0, err
	}
	given, takes, err := parseTypes(in.Types, s.Cfg.API.MaxParams, "api.max_params")
	if err == nil {
		err = TooMuch(c.Reserved.Take(takes))
	}
	if err != nil {
		return 0, err
	}
	switch err := in.Rows.Each(in.Rows.First); {
	case err == nil:
		return 0, BadRequest("rows is empty")
	case err != ErrSome:
		return 0, err
	}
	ctx, cancel, call, err := s.Begin(ctx, c, in.Timeout, in.Priority)
	if err != nil {
		return 0, err
	}
	defer cancel()
	if err := s.Fresh(c); err != nil {
		return 0, err
	}
	call.Idempotent, call.Method = true, MethodBulkUpsert
	u := &upsert{s: s, c: c, call: call, path: path, given: given, rows: in.Rows}
	if err := u.run(ctx); err != nil {
		return 0, err
	}
	return u.read, nil
}

// ErrNoColumns is the fault of a row that names no column.
var ErrNoColumns = BadRequest("the row names no column")

// ErrSome says that there are rows.
var ErrSome = errors.New("facade: there are rows")

// upsert is one BulkUpsert on its way.
type upsert struct {
	s     *Service
	c     *Call
	call  upstream.Call
	path  string
	given map[string]*Ydb.Type // types of columns that the request names
	rows  bulkRows

	columns bulkColumns
	groups  []*group
	bySet   map[string]*group
	read    uint64 // rows
	cells   yql.Cells
	held    int // bytes of the memory for requests, for groups
}

// bulkColumns are those that rows may name.
type bulkColumns struct {
	rows  *yql.Rows
	names []string
	types []*Ydb.Type
}

// group is rows that name the same columns.
type group struct {
	columns []int  // indices in upsert.columns
	list    []byte // Ydb.Value of the list of rows
}

// run encodes the rows and writes them: with the types that the request names, if those are all, else with
// those of the table. It does so again with a new description of the table if the first one
// came from the cache and the table seems to have changed since.
func (u *upsert) run(ctx context.Context) error {
	if len(u.given) > 0 {
		u.columns = newColumns(nil, u.given)
		err := u.encode(ctx)
		if e, ok := errors.AsType[*yql.Error](err); !ok || !e.NoColumn {
			if err != nil {
				return err
			}
			if f := u.writeAll(ctx); f != nil {
				return f
			}
			return nil
		}
	}
	for again := false; ; again = true {
		d, old := u.s.Cached.Table(u.path)
		if !old {
			var err error
			if d, err = u.s.Describe(ctx, u.c, u.call, u.path); err != nil {
				return err
			}
		}
		u.columns = newColumns(d.GetColumns(), u.given)
		var f *Fault
		if err := u.encode(ctx); err != nil {
			f = FaultOf(err, Deed{})
		} else if f = u.writeAll(ctx); f == nil {
			return nil
		}
		switch f.Code {
		case CodeYDB(Ydb.StatusIds_SCHEME_ERROR), CodeYDB(Ydb.StatusIds_BAD_REQUEST), codeBadRequest:
			u.s.Cached.ForgetTable(u.path)
		default:
			return f
		}
		if !old || again {
			return f
		}
	}
}

// newColumns are the columns of a table, and those whose types the request names.
func newColumns(table []*Ydb_Table.ColumnMeta, given map[string]*Ydb.Type) bulkColumns {
	var c bulkColumns
	known := make(map[string]bool, len(table))
	for _, meta := range table {
		known[meta.GetName()] = true
		t := given[meta.GetName()]
		if t == nil {
			t = meta.GetType()
		}
		c.names, c.types = append(c.names, meta.GetName()), append(c.types, t)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !known[name] {
			c.names, c.types = append(c.names, name), append(c.types, given[name])
		}
	}
	c.rows = yql.NewRows(c.names, c.types)
	return c
}

// encode reads all rows, before the first of them is written.
func (u *upsert) encode(ctx context.Context) error {
	place, err := u.s.enterLane(ctx, u.c.Large)
	if err != nil {
		return err
	}
	defer func() { place.Leave() }() // which may be another by then
	return u.encodeNow(ctx, &place)
}

// After so many rows, or bytes of them, it is looked whether the caller still waits, and whether others may have the place.
const (
	lookEach  = 1000
	lookAfter = 256 << 10
)

func (u *upsert) encodeNow(ctx context.Context, place *lane.Slot) error {
	u.c.Reserved.Take(-u.held) // it has room for less
	u.groups, u.bySet, u.read, u.held = nil, map[string]*group{}, 0, 0
	set := make([]byte, (len(u.columns.names)+7)/8)
	seen := 0
	return u.rows.Each(func(row []byte) error {
		if seen += len(row); u.read%lookEach == lookEach-1 || seen > lookAfter {
			seen = 0
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := place.Pause(ctx); err != nil {
				return err
			}
		}
		err := u.rows.Read(u.columns.rows, row, &u.cells)
		if err == nil {
			err = u.add(set)
		}
		if err != nil {
			return AtRow(err, u.read)
		}
		u.read++
		return nil
	})
}

// AtRow says which row an error is about. A want of memory is about none.
func AtRow(err error, n uint64) error {
	place := "rows[" + strconv.FormatUint(n, 10) + "]"
	if f, ok := errors.AsType[*Fault](err); ok {
		if f.Code == CodeMemory {
			return f
		}
		return f.With(func(f *Fault) { f.Message = place + ": " + f.Message })
	}
	return yql.At(err, place)
}

// add adds the row in cells to its group. set has room for a bit for each column.
func (u *upsert) add(set []byte) error {
	clear(set)
	size := 0
	for _, i := range u.cells.Named {
		if span := u.cells.Spans[i]; span.Set() && set[i/8]&(1<<(i%8)) == 0 {
			set[i/8] |= 1 << (i % 8)
			size += protowire.SizeTag(fieldItems) + protowire.SizeBytes(span.End-span.Start)
		}
	}
	if size == 0 {
		return ErrNoColumns
	}
	g := u.bySet[string(set)]
	if g == nil {
		if len(u.groups) == u.s.Cfg.API.MaxGroups {
			return OverLimit("different sets of columns in rows", u.s.Cfg.API.MaxGroups, u.s.Cfg.API.MaxGroups, "api.max_groups")
		}
		g = u.newGroup()
		u.bySet[string(set)], u.groups = g, append(u.groups, g)
	}
	if err := u.grow(g, protowire.SizeTag(fieldItems)+protowire.SizeBytes(size)); err != nil {
		return err
	}
	g.list = protowire.AppendVarint(protowire.AppendTag(g.list, fieldItems, protowire.BytesType), uint64(size))
	for _, i := range g.columns {
		g.list = protowire.AppendBytes(protowire.AppendTag(g.list, fieldItems, protowire.BytesType), u.cells.Value(i))
	}
	return nil
}

// newGroup returns the group of the row in cells.
func (u *upsert) newGroup() *group {
	places := slices.DeleteFunc(slices.Sorted(slices.Values(u.cells.Named)), func(i int) bool { return !u.cells.Spans[i].Set() })
	return &group{columns: slices.Compact(places)}
}

// heldThrice: the rows are there as they were encoded, in the request, and on the way to the node.
const heldThrice = 3

// firstRows is how much room the first rows of a group have, in bytes.
const firstRows = 1 << 10

// grow makes room for n octets more.
func (u *upsert) grow(g *group, n int) error {
	if cap(g.list)-len(g.list) >= n {
		return nil
	}
	more := max(n, cap(g.list)/2, firstRows)
	if err := TooMuch(u.c.Reserved.Take(heldThrice * more)); err != nil {
		return err
	}
	u.held += heldThrice * more
	g.list = append(make([]byte, 0, cap(g.list)+more), g.list...)
	return nil
}

// writeAll writes the groups, one after the other.
func (u *upsert) writeAll(ctx context.Context) *Fault {
	for i, g := range u.groups {
		request, err := u.request(g)
		if err != nil {
			return FaultOf(err, Deed{})
		}
		report, err := u.s.Upsert(ctx, u.call, mem.SliceBuffer(request))
		u.c.Note(report)
		if err != nil {
			return FaultOf(err, Deed{Harmless: true, Unsure: report.Unsure || i > 0})
		}
	}
	return nil
}

// Numbers of fields.
const (
	fieldItems     = 12 // Ydb.Value.items
	fieldTable     = 1  // Ydb.Table.BulkUpsertRequest.table
	fieldTableRows = 2  // Ydb.Table.BulkUpsertRequest.rows
	fieldType      = 1  // Ydb.TypedValue.type
	fieldValue     = 2  // Ydb.TypedValue.value

	FieldBulkRows = 2 // BulkUpsertRequest.rows of our own
)

// request is the BulkUpsertRequest of a group: List<Struct<...>>.
func (u *upsert) request(g *group) ([]byte, error) {
	members := make([]*Ydb.StructMember, len(g.columns))
	for i, column := range g.columns {
		members[i] = &Ydb.StructMember{Name: u.columns.names[column], Type: u.columns.types[column]}
	}
	row := &Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: members}}}
	typ, err := proto.Marshal(&Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: row}}})
	if err != nil {
		return nil, BadRequest("the types of the columns cannot be sent: %v", err)
	}
	rows := protowire.SizeTag(fieldType) + protowire.SizeBytes(len(typ)) + protowire.SizeTag(fieldValue) + protowire.SizeBytes(len(g.list))
	b := make([]byte, 0, len(u.path)+len(typ)+len(g.list)+64)
	b = protowire.AppendString(protowire.AppendTag(b, fieldTable, protowire.BytesType), u.path)
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldTableRows, protowire.BytesType), uint64(rows))
	b = protowire.AppendBytes(protowire.AppendTag(b, fieldType, protowire.BytesType), typ)
	return protowire.AppendBytes(protowire.AppendTag(b, fieldValue, protowire.BytesType), g.list), nil
}
