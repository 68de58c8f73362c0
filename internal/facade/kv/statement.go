package kv

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Table is one open table. The texts of its statements are built once, of
// names that KVTable has checked; what callers send goes into parameters alone.
type Table struct {
	of *Service // the API that serves it
	Entry
	path string // absolute

	get, batchGet, look, put, insert, remove string

	KeyNames []string  // of the parameters, with their dollar
	keysType *Ydb.Type // of $keys

	Checked  atomic.Int64  // when the table was found to be as KVTable says, in nanoseconds since 1970; 0: it was not
	Checking chan struct{} // held by the one call that looks
}

// NewTable builds the statements of a table at an absolute path.
func NewTable(entry Entry, path string) *Table {
	t := &Table{Entry: entry, path: path, Checking: make(chan struct{}, 1)}
	quote := func(name string) string { return "`" + name + "`" }
	var declares, where, as []string
	var names, params []string // of the columns that are written
	var types []*Ydb.Type
	for i, c := range entry.Key {
		param := "$k" + strconv.Itoa(i)
		t.KeyNames = append(t.KeyNames, param)
		declares = append(declares, "DECLARE "+param+" AS "+yql.FormatType(c.Type)+";")
		where = append(where, quote(c.Name)+" = "+param)
		as = append(as, param+" AS "+quote(c.Name))
		names, params, types = append(names, quote(c.Name)), append(params, param), append(types, c.Type)
	}
	keys := slices.Clone(names)
	read := []string{quote(entry.Value.Name)}
	looked := names[0]
	declare := strings.Join(declares, " ") + " "
	write := declare + "DECLARE $value AS " + yql.FormatType(entry.Value.Type) + "; "
	names, params = append(names, read[0]), append(params, "$value")
	if v := entry.Version; v.Name != "" {
		looked = quote(v.Name)
		read = append(read, looked)
		write += "DECLARE $version AS " + yql.FormatType(v.Type) + "; "
		names, params = append(names, looked), append(params, "$version")
	}
	from := " FROM " + quote(path) + " WHERE "
	into := " INTO " + quote(path) + " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(params, ", ") + ")"
	t.get = declare + "SELECT " + strings.Join(read, ", ") + from + strings.Join(where, " AND ")
	t.look = declare + "SELECT " + looked + from + strings.Join(where, " AND ")
	t.put = write + "UPSERT" + into
	t.insert = write + "INSERT" + into
	t.remove = declare + "DELETE FROM " + quote(path) + " ON SELECT " + strings.Join(as, ", ")
	one, in := types[0], keys[0]
	if len(keys) > 1 {
		one = &Ydb.Type{Type: &Ydb.Type_TupleType{TupleType: &Ydb.TupleType{Elements: types}}}
		in = "(" + strings.Join(keys, ", ") + ")"
	}
	t.keysType = &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: one}}}
	t.batchGet = "DECLARE $keys AS " + yql.FormatType(t.keysType) + "; SELECT " +
		strings.Join(append(keys, read...), ", ") + from + in + " IN $keys"
	return t
}

// Texts are those of all statements on the table.
func (t *Table) Texts() []string {
	return []string{t.get, t.batchGet, t.look, t.put, t.insert, t.remove}
}

func (t *Table) versioned() bool { return t.Version.Name != "" }

// KeyOf are the parameters of a statement on one row.
func (t *Table) KeyOf(id ID) *upstream.Params {
	p := new(upstream.Params)
	for i, v := range id {
		p.Add(t.KeyNames[i], &Ydb.TypedValue{Type: t.Key[i].Type, Value: v})
	}
	return p
}

// Batch is the statement that reads several rows as they are at one moment.
func (t *Table) Batch(ids []ID) *core.Statement {
	list := &Ydb.Value{Items: make([]*Ydb.Value, len(ids))}
	for i, id := range ids {
		if list.Items[i] = id[0]; len(id) > 1 {
			list.Items[i] = &Ydb.Value{Items: id}
		}
	}
	params := new(upstream.Params)
	params.Add("$keys", &Ydb.TypedValue{Type: t.keysType, Value: list})
	return &core.Statement{SQL: t.batchGet, Params: params}
}

// Delete makes a deletion; a row that is not there is as good as deleted.
func (t *Table) Delete(key *upstream.Params, cond Condition) *Write {
	w := &Write{Table: t, cond: cond, key: key, params: key}
	if cond.Match == nil && (cond.NoneMatch == nil || !t.versioned() && !cond.NoneMatch.Any) {
		w.alone, w.again = t.remove, true
		return w
	}
	w.then = func(there bool, _ string) (string, error) {
		if !there {
			return "", nil
		}
		return t.remove, nil
	}
	return w
}

// first is the version of a row that is made: microseconds since 1970. A row
// that is deleted and made again does not go through its old versions once more.
func (t *Table) first() *Ydb.TypedValue {
	return t.versionOf(uint64(time.Now().UnixMicro()))
}

func (t *Table) versionOf(n uint64) *Ydb.TypedValue {
	if t.Version.Type.GetTypeId() == Ydb.Type_INT64 {
		return &Ydb.TypedValue{Type: t.Version.Type, Value: &Ydb.Value{Value: &Ydb.Value_Int64Value{Int64Value: int64(n)}}}
	}
	return &Ydb.TypedValue{Type: t.Version.Type, Value: &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: n}}}
}

// versionText is a version as callers see it.
func versionText(v *Ydb.TypedValue) string {
	if x, ok := v.Value.Value.(*Ydb.Value_Int64Value); ok {
		return strconv.FormatInt(x.Int64Value, 10)
	}
	return strconv.FormatUint(v.Value.GetUint64Value(), 10)
}

// next is the version after old; "" is a row without one, or none.
func (t *Table) next(old string) (*Ydb.TypedValue, error) {
	if old == "" {
		return t.first(), nil
	}
	spent := core.BadRequest("the row has the highest version that column %s can hold; set a lower version with a statement",
		t.Version.Name)
	if t.Version.Type.GetTypeId() == Ydb.Type_INT64 {
		n, err := strconv.ParseInt(old, 10, 64)
		if err != nil || n == math.MaxInt64 {
			return nil, spent
		}
		return t.versionOf(uint64(n + 1)), nil
	}
	n, err := strconv.ParseUint(old, 10, 64)
	if err != nil || n == math.MaxUint64 {
		return nil, spent
	}
	return t.versionOf(n + 1), nil
}
