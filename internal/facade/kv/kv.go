package kv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Service is the key-value API: rows of open tables, by their keys.
type Service struct {
	core   *core.Service
	cfg    Config
	Tables map[string]*Table // the open ones, by name; fixed
}

// Open opens the tables of the settings. It is called once, before the first call.
func (k *Service) Open(s *core.Service, cfg Config) error {
	k.core, k.cfg = s, cfg
	k.Tables = make(map[string]*Table, len(cfg.Tables))
	for _, entry := range cfg.Tables {
		path, err := k.core.Absolute(entry.Path, entry.Name)
		if err != nil {
			return fmt.Errorf("kv.tables: %w", err)
		}
		t := NewTable(entry, path)
		t.of = k
		k.Tables[entry.Name] = t
	}
	return nil
}

// ID is the key of a row: a value for each column of the key.
type ID []*Ydb.Value

// Table finds an open table.
func (k *Service) Table(name string) (*Table, error) {
	if t := k.Tables[name]; t != nil {
		return t, nil
	}
	return nil, core.Faultf(core.CodeTableNotOpen, "table %.64q is not open to the key-value API (kv.tables)", name)
}

// TableToWrite finds an open table for a call that writes.
func (k *Service) TableToWrite(name string) (*Table, error) {
	t, err := k.Table(name)
	if err == nil && t.ReadOnly {
		return nil, core.Faultf(core.CodeReadOnly, "table %.64q is open for reading only (kv.tables)", name)
	}
	return t, err
}

// ID reads an id whose parts are counted and measured, in bytes, by its API.
func (k *Service) ID(t *Table, parts, size int, part func(i int, t *Ydb.Type) (*Ydb.Value, error)) (ID, error) {
	if err := k.FitsKey(t, parts, size); err != nil {
		return nil, err
	}
	id := make(ID, parts)
	for i, c := range t.Key {
		v, err := part(i, c.Type)
		if err != nil {
			return nil, yql.At(yql.At(err, c.Name), "id")
		}
		id[i] = v
	}
	return id, nil
}

// FitsKey refuses an id that is none of a table's key.
func (k *Service) FitsKey(t *Table, parts, size int) error {
	if parts != len(t.Key) {
		return core.BadRequest("id has %d values; the key of %s has %d columns", parts, t.Name, len(t.Key))
	}
	if size > k.cfg.MaxID {
		return core.Faultf(core.CodeKeyTooLarge, "id has %d bytes; at most %d are allowed (kv.max_id)", size, k.cfg.MaxID)
	}
	return nil
}

// Call is what every call of the key-value API has.
type Call struct {
	Table    *Table
	Timeout  string
	Priority string
}

// enter lets a call in and gives it its deadline.
func (k *Service) enter(ctx context.Context, c *core.Call, in Call) (context.Context, context.CancelFunc, upstream.Call, error) {
	c.Collection = in.Table.path
	writes := c.Name == core.CallKVPut || c.Name == core.CallKVDelete
	if err := k.core.Allow(c, core.Wish{Kind: apps.KeyValue, Table: in.Table.path, Writes: writes}); err != nil {
		return nil, nil, upstream.Call{}, err
	}
	ctx, cancel, call, err := k.core.Begin(ctx, c, in.Timeout, in.Priority)
	if err == nil {
		if err = k.core.Fresh(c); err != nil {
			cancel()
		}
	}
	return ctx, cancel, call, err
}

// begin lets a call in, gives it its deadline, and looks at the table, if nobody did yet.
func (k *Service) begin(ctx context.Context, c *core.Call, in Call) (context.Context, context.CancelFunc, upstream.Call, error) {
	ctx, cancel, call, err := k.enter(ctx, c, in)
	if err != nil {
		return nil, nil, call, err
	}
	if err = k.check(ctx, c, call, in.Table); err != nil {
		cancel()
		return nil, nil, call, err
	}
	return ctx, cancel, call, nil
}

// checked reports whether a table was found to be as its entry says: within api.cache_ttl (fresh), or at any time (good).
func (k *Service) checked(t *Table) (fresh, good bool) {
	at := t.Checked.Load()
	return at != 0 && time.Since(time.Unix(0, at)) < k.core.Cfg.API.CacheTTL, at != 0
}

// check compares a table with its entry in the settings: the first call does,
// the first one after the database found a statement of ours strange, and one each
// api.cache_ttl, because a table with another primary key takes our statements without a word.
func (k *Service) check(ctx context.Context, c *core.Call, call upstream.Call, t *Table) error {
	fresh, good := k.checked(t)
	if fresh {
		return nil
	}
	select {
	case t.Checking <- struct{}{}:
	default:
		if good {
			return nil // somebody looks
		}
		select {
		case t.Checking <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { <-t.Checking }()
	if fresh, good = k.checked(t); fresh {
		return nil
	}
	d, err := k.core.Describe(ctx, c, call, t.path)
	if err != nil {
		f := t.fault(core.FaultOf(err, core.Deed{Harmless: true}))
		if good && f.Code != core.CodeTableMismatch {
			t.Checked.Store(time.Now().UnixNano()) // it was good, and the call may do without
			return nil
		}
		return f
	}
	if err := t.fits(d); err != nil {
		t.Checked.Store(0)
		return core.Faultf(core.CodeTableMismatch, "table %s: %v", t.Name, err)
	}
	t.Checked.Store(time.Now().UnixNano())
	return nil
}

// fault is f in the words of this API, where a missing table is no missing row.
func (t *Table) fault(f *core.Fault) *core.Fault {
	switch f.Code {
	case core.CodeYDB(Ydb.StatusIds_SCHEME_ERROR):
		t.Checked.Store(0)
		return f.With(func(f *core.Fault) { f.Code, f.Message = core.CodeTableMismatch, "table "+t.Name+": "+f.Message })
	case core.CodeYDB(Ydb.StatusIds_GENERIC_ERROR), core.CodeYDB(Ydb.StatusIds_BAD_REQUEST):
		t.Checked.Store(0)
	}
	return f
}

// cells keeps the rows of one of our own statements.
type cells struct {
	columns []*Ydb.Column
	all     []cellsOfRow
	bytes   int // as they came
	full    bool
	one     [1]cellsOfRow // room for what most statements have
}

// cellsOfRow is a row, as the bytes of the Ydb.Value of each column.
type cellsOfRow [][]byte

func (c *cells) Begin(_ context.Context, columns *yql.Columns) error {
	c.columns = columns.Of()
	return nil
}

func (c *cells) Rows(_ context.Context, rows [][]byte) error {
	if c.all == nil {
		c.all = c.one[:0]
	}
	for _, row := range rows {
		items, err := yql.RowItems(bytes.Clone(row), make(cellsOfRow, 0, len(c.columns)))
		if err != nil {
			return core.BadAnswer(err)
		}
		c.all = append(c.all, items)
		c.bytes += len(row)
	}
	return nil
}

func (c *cells) Cut() { c.full = true }

// Held counts values twice: they are there as they came, and as they go out.
func (c *cells) Held() int { return 2 * c.bytes }

func (c *cells) Again() bool {
	*c = cells{}
	return true
}

// Cell is a value of a row with the type of its column.
type Cell struct {
	Octets []byte // of a Ydb.Value
	Type   *Ydb.Type
}

// Value decodes the value.
func (c Cell) Value() (*Ydb.Value, error) {
	v := new(Ydb.Value)
	return v, proto.Unmarshal(c.Octets, v)
}

// cell finds a value by the name of its column.
func (c *cells) cell(row cellsOfRow, name string) (Cell, error) {
	for i, column := range c.columns {
		if column.GetName() == name && i < len(row) {
			return Cell{row[i], column.GetType()}, nil
		}
	}
	return Cell{}, core.BadAnswer(errors.New("a column is missing"))
}

// Row is a row as it was read.
type Row struct {
	Value   Cell
	Version string // "": there is none
}

// Octets are the value's bytes; null says that it is NULL.
func (r Row) Octets() (b []byte, null bool, err error) {
	b, null, ok := yql.RawOf(r.Value.Octets, r.Value.Type)
	if ok {
		return b, null, nil
	}
	v, err := r.Value.Value()
	if err == nil {
		b, null, err = yql.RawBytes(v, r.Value.Type)
	}
	return b, null, core.BadAnswer(err)
}

// row takes a row of ours apart.
func (t *Table) row(c *cells, row cellsOfRow) (Row, error) {
	value, err := c.cell(row, t.Value.Name)
	if err != nil {
		return Row{}, err
	}
	version, err := t.version(c, row)
	return Row{value, version}, err
}

func (t *Table) version(c *cells, row cellsOfRow) (string, error) {
	if !t.versioned() {
		return "", nil
	}
	at, err := c.cell(row, t.Version.Name)
	if err != nil {
		return "", err
	}
	v, err := at.Value()
	if err != nil {
		return "", core.BadAnswer(err)
	}
	text, err := yql.AppendJSON(nil, v, at.Type, yql.JSONOptions{Ints: yql.IntsAsNumbers})
	if err != nil || string(text) == "null" {
		return "", core.BadAnswer(err)
	}
	return string(text), nil
}

// read runs a statement that reads.
func (k *Service) read(ctx context.Context, c *core.Call, call upstream.Call, t *Table, st *core.Statement,
	own *core.Room) (*cells, error) {
	var got cells
	st.Reads(&call)
	c.RunsIn(core.ModeSnapshotRO)
	report, err := k.core.Deps.Driver.Do(ctx, call, func(ctx context.Context, session core.Session) error {
		_, err := core.Run(ctx, session, st, core.ModeSnapshotRO.Single(), true, own, &got)
		return err
	})
	c.Note(report)
	k.core.Count(c, st, uint64(len(got.all)), got.bytes, err)
	if err != nil {
		return nil, t.fault(core.FaultOf(err, core.Deed{Harmless: true, Unsure: report.Unsure}))
	}
	if got.full {
		return nil, core.OverLimit("bytes of the values", k.core.Cfg.API.MaxBytes, k.core.Cfg.API.MaxBytes, "api.max_bytes")
	}
	return &got, nil
}

// Get reads one row. Without an error and without a row, the caller has it already.
func (k *Service) Get(
	ctx context.Context, c *core.Call, in Call, key *upstream.Params, cond Condition,
) (row Row, modified bool, err error) {
	ctx, cancel, call, err := k.begin(ctx, c, in)
	if err != nil {
		return Row{}, false, err
	}
	defer cancel()
	return k.row(ctx, c, call, in.Table, &core.Statement{SQL: in.Table.get, Params: key}, k.core.Room(c), cond)
}

// row runs the statement that reads one row.
func (k *Service) row(ctx context.Context, c *core.Call, call upstream.Call, t *Table, st *core.Statement,
	own *core.Room, cond Condition) (row Row, modified bool, err error) {
	got, err := k.read(ctx, c, call, t, st, own)
	if err != nil {
		return Row{}, false, err
	}
	there := len(got.all) > 0
	if there {
		if row, err = t.row(got, got.all[0]); err != nil {
			return Row{}, false, err
		}
	}
	switch {
	case !cond.matches(there, row.Version):
		return Row{}, false, conditionFailed(t, there)
	case !there:
		return Row{}, false, core.Faultf(core.CodeKeyNotFound, "there is no row with this id")
	}
	return row, cond.noneMatches(there, row.Version), nil
}

// Found is what a batch get found of one id.
type Found struct {
	Row  Row
	None bool
}

// Count refuses a batch of no ids, or of too many.
func (k *Service) Count(c *core.Call, ids int) error {
	switch {
	case ids == 0:
		return core.BadRequest("ids is empty")
	case ids > k.cfg.MaxIDs:
		return core.OverLimit("ids", ids, k.cfg.MaxIDs, "kv.max_ids")
	}
	return k.core.Allow(c, core.Wish{Kind: apps.KeyValue, Keys: ids})
}

// BatchGet reads several rows as they are at one moment, in the order of the ids.
func (k *Service) BatchGet(ctx context.Context, c *core.Call, in Call, ids []ID) ([]Found, error) {
	ctx, cancel, call, err := k.begin(ctx, c, in)
	if err != nil {
		return nil, err
	}
	defer cancel()
	return k.rows(ctx, c, call, in.Table, in.Table.Batch(ids), k.core.Room(c), ids)
}

// rows runs the statement that reads several rows.
func (k *Service) rows(ctx context.Context, c *core.Call, call upstream.Call, t *Table, st *core.Statement,
	own *core.Room, ids []ID) ([]Found, error) {
	got, err := k.read(ctx, c, call, t, st, own)
	if err != nil {
		return nil, err
	}
	return t.assign(got, ids)
}

// assign finds the row of each id: the database answers in an order of its own.
func (t *Table) assign(got *cells, ids []ID) ([]Found, error) {
	rows := make(map[string]cellsOfRow, len(got.all))
	var key []byte
	for _, row := range got.all {
		key = key[:0]
		for _, c := range t.Key {
			var v *Ydb.Value
			part, err := got.cell(row, c.Name)
			if err == nil {
				v, err = part.Value()
			}
			if err == nil {
				key, err = yql.AppendKey(key, v, part.Type)
			}
			if err != nil {
				return nil, core.BadAnswer(err)
			}
		}
		rows[string(key)] = row
	}
	found := make([]Found, len(ids))
	for i, id := range ids {
		key = key[:0]
		for j, c := range t.Key {
			var err error
			if key, err = yql.AppendKey(key, id[j], c.Type); err != nil {
				return nil, err
			}
		}
		row := rows[string(key)]
		if row == nil {
			found[i].None = true
			continue
		}
		var err error
		if found[i].Row, err = t.row(got, row); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Written is what is known of a row after a put.
type Written struct {
	Created bool   // this call made the row; false: it was there, or a plain put did not look
	Version string // "": the table has none
}

// MaxValue is the largest value that the table takes, in bytes, and the setting that says so.
func (k *Service) MaxValue(t *Table) (limit int, setting string) {
	if t.MaxValue > 0 {
		return t.MaxValue, "max_value of " + t.Name + " in kv.tables"
	}
	return k.cfg.MaxValue, "kv.max_value"
}

// Write is a write of one row.
type Write struct {
	Table  *Table
	cond   Condition
	key    *upstream.Params // of the row
	params *upstream.Params // of the statement that writes
	alone  string           // the text of the one statement that does it; "": the row must be looked at before
	again  bool             // alone may be repeated: it does the same then
	done   Written
	then   func(there bool, version string) (sql string, err error) // what is written, knowing what is there; "" is nothing
}

// Put makes a write of a value. Where neither the condition nor the version depends on
// what is there, that is one statement and nobody looks.
func (k *Service) Put(t *Table, key *upstream.Params, value []byte, cond Condition) (*Write, error) {
	if limit, setting := k.MaxValue(t); len(value) > limit {
		return nil, core.OverLimit("bytes of the value", len(value), limit, setting)
	}
	params := key.Clone()
	if err := params.AddRaw("$value", t.Value.Type, value); err != nil {
		return nil, yql.At(err, "value")
	}
	switch t.Value.Type.GetTypeId() {
	case Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT:
		if !json.Valid(value) {
			return nil, core.BadRequest("value is not valid JSON, which column %s requires", t.Value.Name)
		}
	}
	w := &Write{Table: t, cond: cond, key: key, params: params}
	switch {
	case cond.absent():
		w.alone, w.done = t.insert, Written{Created: true}
		if t.versioned() {
			first := t.first()
			params.Add("$version", first)
			w.done.Version = versionText(first)
		}
	case !t.versioned() && cond.Match == nil: // no tag of none_match can be this row's
		w.alone, w.again = t.put, true
	default:
		first := params.Len()
		w.then = func(there bool, old string) (string, error) {
			w.done = Written{Created: !there}
			if t.versioned() {
				next, err := t.next(old)
				if err != nil {
					return "", err
				}
				params.Truncate(first) // of a try before
				params.Add("$version", next)
				w.done.Version = versionText(next)
			}
			return t.put, nil
		}
	}
	return w, nil
}

// Write does a write.
func (k *Service) Write(ctx context.Context, c *core.Call, in Call, w *Write) (Written, error) {
	if err := core.TooMuch(c.Reserved.Take(w.params.Size())); err != nil {
		return Written{}, err
	}
	c.RunsIn(core.ModeSerializable)
	ctx, cancel, call, err := k.begin(ctx, c, in)
	if err != nil {
		return Written{}, err
	}
	defer cancel()
	return k.finish(ctx, c, call, w, w.statement())
}

// statement is that of a write of one; nil: it is none.
func (w *Write) statement() *core.Statement {
	if w.alone == "" {
		return nil
	}
	return &core.Statement{SQL: w.alone, Params: w.params}
}

// finish does a write in a call that has begun. alone is w.statement().
func (k *Service) finish(ctx context.Context, c *core.Call, call upstream.Call, w *Write, alone *core.Statement) (Written, error) {
	if alone == nil {
		if err := k.writeLooking(ctx, c, call, w); err != nil {
			return Written{}, err
		}
		return w.done, nil
	}
	call.Idempotent = w.again
	report, err := k.core.Deps.Driver.Do(ctx, call, func(ctx context.Context, session core.Session) error {
		_, err := core.Run(ctx, session, alone, core.ModeSerializable.Single(), false, nil, &cells{})
		return err
	})
	c.Note(report)
	k.core.Count(c, alone, 0, 0, err)
	if err == nil {
		return w.done, nil
	}
	f := w.Table.fault(core.FaultOf(err, core.Deed{Harmless: call.Idempotent, Unsure: report.Unsure}))
	if w.cond.absent() && f.Code.Name == core.CodeYDB(Ydb.StatusIds_PRECONDITION_FAILED).Name {
		f = conditionFailed(w.Table, true).With(func(g *core.Fault) { g.Unknown, g.Cause = f.Unknown, f.Cause })
	}
	return Written{}, f
}

// writeLooking looks at a row and writes it, as one transaction. Only without a
// condition is it repeated after a try that may have been kept: the repeat
// would not find the row as the first try did.
func (k *Service) writeLooking(ctx context.Context, c *core.Call, call upstream.Call, w *Write) error {
	t, cond := w.Table, w.cond
	call.Idempotent = cond.Match == nil && cond.NoneMatch == nil
	look := &core.Statement{SQL: t.look, Params: w.key}
	report, err := k.core.Deps.Driver.Do(ctx, call, func(ctx context.Context, session core.Session) error {
		var got cells
		if _, err := k.core.RunCounted(ctx, c, session, look, core.ModeSerializable.Begin(false), true, nil, &got); err != nil {
			return err
		}
		there, version := len(got.all) > 0, ""
		if there {
			var err error
			if version, err = t.version(&got, got.all[0]); err != nil {
				return err
			}
		}
		if !cond.matches(there, version) || !cond.noneMatches(there, version) {
			return conditionFailed(t, there)
		}
		sql, err := w.then(there, version)
		if err != nil {
			return err
		}
		if sql == "" {
			return session.Rollback(ctx)
		}
		_, err = k.core.RunCounted(
			ctx, c, session, &core.Statement{SQL: sql, Params: w.params}, core.Inside(session.TxID(), true), false, nil,
			&cells{},
		)
		return err
	})
	c.Note(report)
	if err != nil {
		return t.fault(core.FaultOf(err, core.Deed{Harmless: call.Idempotent, Unsure: report.Unsure}))
	}
	return nil
}

// Condition says in which state a row has to be, as If-Match and If-None-Match
// do. nil asks for nothing.
type Condition struct {
	Match     *Versions // the row has one of these
	NoneMatch *Versions // it has none of these
}

// Versions are versions of a row; any is every one of a row that is there.
type Versions struct {
	Any  bool
	List []string
}

// With adds one; v may be nil.
func (v *Versions) With(version string) *Versions {
	if v == nil {
		v = new(Versions)
	}
	v.List, v.Any = append(v.List, version), v.Any || version == "*"
	return v
}

func (v *Versions) has(there bool, version string) bool {
	return there && (v.Any || version != "" && slices.Contains(v.List, version))
}

func (c Condition) matches(there bool, version string) bool {
	return c.Match == nil || c.Match.has(there, version)
}

func (c Condition) noneMatches(there bool, version string) bool {
	return c.NoneMatch == nil || !c.NoneMatch.has(there, version)
}

// absent tells whether the condition is that the row is not there, and no more.
func (c Condition) absent() bool { return c.Match == nil && c.NoneMatch != nil && c.NoneMatch.Any }

// conditionFailed is the fault of a condition that the row does not meet.
func conditionFailed(t *Table, there bool) *core.Fault {
	switch {
	case !there:
		return core.Faultf(core.CodeCondition, "there is no row with this id")
	case !t.versioned():
		return core.Faultf(core.CodeCondition,
			"the row is there; %s has no version column (kv.tables), so that only * can be asked for", t.Name)
	}
	return core.Faultf(core.CodeCondition, "the row exists with another version")
}

// AtID says which of several ids a fault is about.
func AtID(i int, err error) error {
	return core.FaultOf(err, core.Deed{}).With(func(f *core.Fault) { f.Message = "ids[" + strconv.Itoa(i) + "]: " + f.Message })
}
