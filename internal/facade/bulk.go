package facade

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// bulkRequest is the call BulkUpsert, from either face.
type bulkRequest struct {
	table    string
	rows     []values
	types    map[string]string
	timeout  string
	priority string
}

// bulkUpsert writes rows without a transaction. Rows that name the same columns
// go together; other columns of a row keep their values. Writing a row twice is
// as good as once, so everything is retried.
func (s *Service) bulkUpsert(ctx context.Context, c *call, in bulkRequest) (uint64, error) {
	path, err := s.absolute(in.table, "table")
	if err != nil {
		return 0, err
	}
	given, err := parseTypes(in.types, s.cfg.API.MaxParams, "api.max_params")
	if err != nil {
		return 0, err
	}
	groups, err := s.group(in.rows)
	if err != nil {
		return 0, err
	}
	ctx, cancel, call, err := s.begin(ctx, c, in.timeout, in.priority)
	if err != nil {
		return 0, err
	}
	defer cancel()
	if err := s.fresh(c); err != nil {
		return 0, err
	}
	call.Idempotent, call.Method = true, methodBulkUpsert
	u := &upsert{s: s, c: c, call: call, path: path, given: given}
	if err := u.run(ctx, groups, in.rows); err != nil {
		return 0, err
	}
	return uint64(len(in.rows)), nil
}

// group is rows that name the same columns.
type group struct {
	columns []string // sorted
	rows    []int    // indexes of the request's rows
}

// group sorts rows by the columns that they name, in order of appearance.
func (s *Service) group(rows []values) ([]*group, error) {
	if len(rows) == 0 {
		return nil, badRequest("rows is empty")
	}
	var groups []*group
	by := make(map[string]*group)
	for i, row := range rows {
		names := row.names()
		if len(names) > s.cfg.API.MaxParams {
			return nil, overLimit("columns of rows["+strconv.Itoa(i)+"]", len(names), s.cfg.API.MaxParams, "api.max_params")
		}
		slices.Sort(names)
		key := strings.Join(names, "\x00")
		g := by[key]
		if g == nil {
			if len(groups) == s.cfg.API.MaxGroups {
				return nil, overLimit("different sets of columns in rows", s.cfg.API.MaxGroups, s.cfg.API.MaxGroups, "api.max_groups")
			}
			g = &group{columns: names}
			by[key] = g
			groups = append(groups, g)
		}
		g.rows = append(g.rows, i)
	}
	return groups, nil
}

// upsert is one BulkUpsert on its way.
type upsert struct {
	s     *Service
	c     *call
	call  upstream.Call
	path  string
	given map[string]*Ydb.Type // types of columns that the request names
}

// run types the rows and writes them, a second time with a new description of
// the table if the first used one from the cache and the table seems to have
// changed since.
func (u *upsert) run(ctx context.Context, groups []*group, rows []values) error {
	types, old, err := u.types(ctx, groups)
	if err != nil {
		return err
	}
	f := u.writeAll(ctx, types, groups, rows)
	if f == nil {
		return nil
	}
	switch f.code {
	case codeYDB(Ydb.StatusIds_SCHEME_ERROR), codeYDB(Ydb.StatusIds_BAD_REQUEST), codeBadRequest:
	default:
		return f
	}
	u.s.cached.forgetTable(u.path)
	if !old {
		return f
	}
	if types, _, err = u.types(ctx, groups); err != nil {
		return err
	}
	if f = u.writeAll(ctx, types, groups, rows); f != nil {
		return f
	}
	return nil
}

// types finds the type of each column: from the request, or else from the
// table's description. old says that the description came from the cache.
func (u *upsert) types(ctx context.Context, groups []*group) (types map[string]*Ydb.Type, old bool, err error) {
	if u.knowsAll(groups) {
		return u.given, false, nil
	}
	d, old := u.s.cached.table(u.path)
	if !old {
		if d, err = u.s.describe(ctx, u.c, u.call, u.path); err != nil {
			return nil, false, err
		}
	}
	types = make(map[string]*Ydb.Type, len(d.GetColumns()))
	for _, col := range d.GetColumns() {
		types[col.GetName()] = col.GetType()
	}
	for name, t := range u.given {
		types[name] = t
	}
	return types, old, nil
}

func (u *upsert) knowsAll(groups []*group) bool {
	for _, g := range groups {
		for _, name := range g.columns {
			if u.given[name] == nil {
				return false
			}
		}
	}
	return true
}

// writeAll types all rows before it writes the first of them.
func (u *upsert) writeAll(ctx context.Context, types map[string]*Ydb.Type, groups []*group, rows []values) *fault {
	lists := make([]*Ydb.TypedValue, len(groups))
	for i, g := range groups {
		list, err := typedRows(g, types, rows)
		if err != nil {
			return faultOf(err, deed{})
		}
		lists[i] = list
	}
	for i, list := range lists {
		if unsure, err := u.write(ctx, list); err != nil {
			return faultOf(err, deed{harmless: true, unsure: unsure || i > 0})
		}
	}
	return nil
}

// typedRows makes the List<Struct<...>> of a group.
func typedRows(g *group, types map[string]*Ydb.Type, rows []values) (*Ydb.TypedValue, error) {
	members := make([]*Ydb.StructMember, len(g.columns))
	for i, name := range g.columns {
		if types[name] == nil {
			return nil, badRequest("rows[%d]: the table has no column %.64q", g.rows[0], name)
		}
		members[i] = &Ydb.StructMember{Name: name, Type: types[name]}
	}
	list := &Ydb.Value{Items: make([]*Ydb.Value, len(g.rows))}
	for i, at := range g.rows {
		row := &Ydb.Value{Items: make([]*Ydb.Value, len(g.columns))}
		for j, m := range members {
			v, err := rows[at].typed(m.Name, m.Type)
			if err != nil {
				return nil, yql.At(yql.At(err, m.Name), "rows["+strconv.Itoa(at)+"]")
			}
			row.Items[j] = v.Value
		}
		list.Items[i] = row
	}
	return &Ydb.TypedValue{
		Type: &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{
			Item: &Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: members}}},
		}}},
		Value: list,
	}, nil
}

// write writes the rows of one group. unsure says that they may have been written although it failed.
func (u *upsert) write(ctx context.Context, rows *Ydb.TypedValue) (unsure bool, err error) {
	report, err := u.s.deps.Driver.Any(ctx, u.call, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		r, err := Ydb_Table_V1.NewTableServiceClient(conn).BulkUpsert(ctx, &Ydb_Table.BulkUpsertRequest{Table: u.path, Rows: rows})
		if err != nil {
			return err
		}
		return upstream.CheckOperation(r.GetOperation())
	})
	u.c.note(report)
	return report.Unsure, err
}
