package facade

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

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// keyValue is the key-value API: rows of open tables, by their keys.
type keyValue struct {
	core   *core.Service
	cfg    KV
	tables map[string]*kvTable // the open ones, by name; fixed
}

// open opens the tables of the settings. It is called once, before the first call.
func (k *keyValue) open(s *core.Service, cfg KV) error {
	k.core, k.cfg = s, cfg
	k.tables = make(map[string]*kvTable, len(cfg.Tables))
	for _, entry := range cfg.Tables {
		path, err := k.core.Absolute(entry.Path, entry.Name)
		if err != nil {
			return fmt.Errorf("kv.tables: %w", err)
		}
		t := newKVTable(entry, path)
		t.of = k
		k.tables[entry.Name] = t
	}
	return nil
}

// kvID is the key of a row: a value for each column of the key.
type kvID []*Ydb.Value

// table finds an open table.
func (k *keyValue) table(name string) (*kvTable, error) {
	if t := k.tables[name]; t != nil {
		return t, nil
	}
	return nil, core.Faultf(core.CodeTableNotOpen, "table: %.64q is not open", name)
}

// tableToWrite finds an open table for a call that writes.
func (k *keyValue) tableToWrite(name string) (*kvTable, error) {
	t, err := k.table(name)
	if err == nil && t.ReadOnly {
		return nil, core.Faultf(core.CodeReadOnly, "table: %.64q is open to be read alone", name)
	}
	return t, err
}

// id reads an id whose parts are counted and measured, in bytes, by its face.
func (k *keyValue) id(t *kvTable, parts, size int, part func(i int, t *Ydb.Type) (*Ydb.Value, error)) (kvID, error) {
	if err := k.fitsKey(t, parts, size); err != nil {
		return nil, err
	}
	id := make(kvID, parts)
	for i, c := range t.Key {
		v, err := part(i, c.Type)
		if err != nil {
			return nil, yql.At(yql.At(err, c.Name), "id")
		}
		id[i] = v
	}
	return id, nil
}

// fitsKey refuses an id that is none of a table's key.
func (k *keyValue) fitsKey(t *kvTable, parts, size int) error {
	if parts != len(t.Key) {
		return core.BadRequest("id: %d values; the key of %s has %d", parts, t.Name, len(t.Key))
	}
	if size > k.cfg.MaxID {
		return core.Faultf(core.CodeKeyTooLarge, "id: %d bytes, at most %d are allowed (kv.max_id)", size, k.cfg.MaxID)
	}
	return nil
}

// kvCall is what every call of the key-value face has.
type kvCall struct {
	t        *kvTable
	timeout  string
	priority string
}

// enter lets a call in and gives it its deadline.
func (k *keyValue) enter(ctx context.Context, c *core.Call, in kvCall) (context.Context, context.CancelFunc, upstream.Call, error) {
	c.Collection = in.t.path
	ctx, cancel, call, err := k.core.Begin(ctx, c, in.timeout, in.priority)
	if err == nil {
		if err = k.core.Fresh(c); err != nil {
			cancel()
		}
	}
	return ctx, cancel, call, err
}

// begin lets a call in, gives it its deadline, and looks at the table, if nobody did yet.
func (k *keyValue) begin(ctx context.Context, c *core.Call, in kvCall) (context.Context, context.CancelFunc, upstream.Call, error) {
	ctx, cancel, call, err := k.enter(ctx, c, in)
	if err != nil {
		return nil, nil, call, err
	}
	if err = k.check(ctx, c, call, in.t); err != nil {
		cancel()
		return nil, nil, call, err
	}
	return ctx, cancel, call, nil
}

// checked reports whether a table was found to be as its entry says: within api.cache_ttl (fresh), or at any time (good).
func (k *keyValue) checked(t *kvTable) (fresh, good bool) {
	at := t.checked.Load()
	return at != 0 && time.Since(time.Unix(0, at)) < k.core.Cfg.API.CacheTTL, at != 0
}

// check compares a table with its entry in the settings: the first call does,
// the first one after the database found a statement of ours strange, and one each
// api.cache_ttl, because a table with another primary key takes our statements without a word.
func (k *keyValue) check(ctx context.Context, c *core.Call, call upstream.Call, t *kvTable) error {
	fresh, good := k.checked(t)
	if fresh {
		return nil
	}
	select {
	case t.checking <- struct{}{}:
	default:
		if good {
			return nil // somebody looks
		}
		select {
		case t.checking <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { <-t.checking }()
	if fresh, good = k.checked(t); fresh {
		return nil
	}
	d, err := k.core.Describe(ctx, c, call, t.path)
	if err != nil {
		f := t.fault(core.FaultOf(err, core.Deed{Harmless: true}))
		if good && f.Code != core.CodeTableMismatch {
			t.checked.Store(time.Now().UnixNano()) // it was good, and the call may do without
			return nil
		}
		return f
	}
	if err := t.fits(d); err != nil {
		t.checked.Store(0)
		return core.Faultf(core.CodeTableMismatch, "table %s: %v", t.Name, err)
	}
	t.checked.Store(time.Now().UnixNano())
	return nil
}

// fault is f in the words of this face, where a missing table is no missing row.
func (t *kvTable) fault(f *core.Fault) *core.Fault {
	switch f.Code {
	case core.CodeYDB(Ydb.StatusIds_SCHEME_ERROR):
		t.checked.Store(0)
		return f.With(func(f *core.Fault) { f.Code, f.Message = core.CodeTableMismatch, "table "+t.Name+": "+f.Message })
	case core.CodeYDB(Ydb.StatusIds_GENERIC_ERROR), core.CodeYDB(Ydb.StatusIds_BAD_REQUEST):
		t.checked.Store(0)
	}
	return f
}

// cells keeps the rows of one of our own statements.
type cells struct {
	columns []*Ydb.Column
	all     []kvCells
	bytes   int // as they came
	full    bool
	one     [1]kvCells // room for what most statements have
}

// kvCells is a row, as the bytes of the Ydb.Value of each column.
type kvCells [][]byte

func (c *cells) Begin(_ context.Context, columns *yql.Columns) error {
	c.columns = columns.Of()
	return nil
}

func (c *cells) Rows(_ context.Context, rows [][]byte) error {
	if c.all == nil {
		c.all = c.one[:0]
	}
	for _, row := range rows {
		items, err := yql.RowItems(bytes.Clone(row), make(kvCells, 0, len(c.columns)))
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

// cell is a value of a row with the type of its column.
type cell struct {
	octets []byte // of a Ydb.Value
	typ    *Ydb.Type
}

// value decodes the value.
func (c cell) value() (*Ydb.Value, error) {
	v := new(Ydb.Value)
	return v, proto.Unmarshal(c.octets, v)
}

// cell finds a value by the name of its column.
func (c *cells) cell(row kvCells, name string) (cell, error) {
	for i, column := range c.columns {
		if column.GetName() == name && i < len(row) {
			return cell{row[i], column.GetType()}, nil
		}
	}
	return cell{}, core.BadAnswer(errors.New("a column is missing"))
}

// kvRow is a row as it was read.
type kvRow struct {
	value   cell
	version string // "": there is none
}

// octets are the value's bytes; null says that it is NULL.
func (r kvRow) octets() (b []byte, null bool, err error) {
	b, null, ok := yql.RawOf(r.value.octets, r.value.typ)
	if ok {
		return b, null, nil
	}
	v, err := r.value.value()
	if err == nil {
		b, null, err = yql.Octets(v, r.value.typ)
	}
	return b, null, core.BadAnswer(err)
}

// row takes a row of ours apart.
func (t *kvTable) row(c *cells, row kvCells) (kvRow, error) {
	value, err := c.cell(row, t.Value.Name)
	if err != nil {
		return kvRow{}, err
	}
	version, err := t.version(c, row)
	return kvRow{value, version}, err
}

func (t *kvTable) version(c *cells, row kvCells) (string, error) {
	if !t.versioned() {
		return "", nil
	}
	at, err := c.cell(row, t.Version.Name)
	if err != nil {
		return "", err
	}
	v, err := at.value()
	if err != nil {
		return "", core.BadAnswer(err)
	}
	text, err := yql.AppendJSON(nil, v, at.typ, yql.JSONOptions{Ints: yql.IntsAsNumbers})
	if err != nil || string(text) == "null" {
		return "", core.BadAnswer(err)
	}
	return string(text), nil
}

// read runs a statement that reads.
func (k *keyValue) read(ctx context.Context, c *core.Call, call upstream.Call, t *kvTable, st *core.Statement, own *core.Room) (*cells, error) {
	var got cells
	st.Reads(&call)
	report, err := k.core.Deps.Driver.Do(ctx, call, func(ctx context.Context, session core.Session) error {
		_, err := core.Run(ctx, session, st, core.ModeSnapshotRO.Single(), true, own, &got)
		return err
	})
	c.Note(report)
	if err != nil {
		return nil, t.fault(core.FaultOf(err, core.Deed{Harmless: true, Unsure: report.Unsure}))
	}
	if got.full {
		return nil, core.OverLimit("bytes of the values", k.core.Cfg.API.MaxBytes, k.core.Cfg.API.MaxBytes, "api.max_bytes")
	}
	return &got, nil
}

// get reads one row. Without an error and without a row, the caller has it already.
func (k *keyValue) get(ctx context.Context, c *core.Call, in kvCall, key *upstream.Params, cond condition) (row kvRow, modified bool, err error) {
	ctx, cancel, call, err := k.begin(ctx, c, in)
	if err != nil {
		return kvRow{}, false, err
	}
	defer cancel()
	return k.row(ctx, c, call, in.t, &core.Statement{SQL: in.t.get, Params: key}, k.core.Room(c), cond)
}

// row runs the statement that reads one row.
func (k *keyValue) row(ctx context.Context, c *core.Call, call upstream.Call, t *kvTable, st *core.Statement, own *core.Room, cond condition) (row kvRow, modified bool, err error) {
	got, err := k.read(ctx, c, call, t, st, own)
	if err != nil {
		return kvRow{}, false, err
	}
	there := len(got.all) > 0
	if there {
		if row, err = t.row(got, got.all[0]); err != nil {
			return kvRow{}, false, err
		}
	}
	switch {
	case !cond.matches(there, row.version):
		return kvRow{}, false, conditionFailed(t, there)
	case !there:
		return kvRow{}, false, core.Faultf(core.CodeKeyNotFound, "there is no row with this id")
	}
	return row, cond.noneMatches(there, row.version), nil
}

// kvFound is what a batch get found of one id.
type kvFound struct {
	row  kvRow
	none bool
}

// count refuses a batch of no ids, or of too many.
func (k *keyValue) count(ids int) error {
	switch {
	case ids == 0:
		return core.BadRequest("ids is empty")
	case ids > k.cfg.MaxIDs:
		return core.OverLimit("ids", ids, k.cfg.MaxIDs, "kv.max_ids")
	}
	return nil
}

// batchGet reads several rows as they are at one moment, in the order of the ids.
func (k *keyValue) batchGet(ctx context.Context, c *core.Call, in kvCall, ids []kvID) ([]kvFound, error) {
	ctx, cancel, call, err := k.begin(ctx, c, in)
	if err != nil {
		return nil, err
	}
	defer cancel()
	return k.rows(ctx, c, call, in.t, in.t.batch(ids), k.core.Room(c), ids)
}

// rows runs the statement that reads several rows.
func (k *keyValue) rows(ctx context.Context, c *core.Call, call upstream.Call, t *kvTable, st *core.Statement, own *core.Room, ids []kvID) ([]kvFound, error) {
	got, err := k.read(ctx, c, call, t, st, own)
	if err != nil {
		return nil, err
	}
	return t.assign(got, ids)
}

// assign finds the row of each id: the database answers in an order of its own.
func (t *kvTable) assign(got *cells, ids []kvID) ([]kvFound, error) {
	rows := make(map[string]kvCells, len(got.all))
	var key []byte
	for _, row := range got.all {
		key = key[:0]
		for _, c := range t.Key {
			var v *Ydb.Value
			part, err := got.cell(row, c.Name)
			if err == nil {
				v, err = part.value()
			}
			if err == nil {
				key, err = yql.AppendKey(key, v, part.typ)
			}
			if err != nil {
				return nil, core.BadAnswer(err)
			}
		}
		rows[string(key)] = row
	}
	found := make([]kvFound, len(ids))
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
			found[i].none = true
			continue
		}
		var err error
		if found[i].row, err = t.row(got, row); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// kvWritten is what is known of a row after a put.
type kvWritten struct {
	created bool   // this call made the row; false: it was there, or nobody looked
	version string // "": the table has none
}

// maxValue is the largest value that the table takes, in bytes, and the setting that says so.
func (k *keyValue) maxValue(t *kvTable) (limit int, setting string) {
	if t.MaxValue > 0 {
		return t.MaxValue, "max_value of " + t.Name + " in kv.tables"
	}
	return k.cfg.MaxValue, "kv.max_value"
}

// kvWrite is a write of one row.
type kvWrite struct {
	t      *kvTable
	cond   condition
	key    *upstream.Params // of the row
	params *upstream.Params // of the statement that writes
	alone  string           // the text of the one statement that does it; "": the row must be looked at before
	again  bool             // alone may be repeated: it does the same then
	done   kvWritten
	then   func(there bool, version string) (sql string, err error) // what is written, knowing what is there; "" is nothing
}

// put makes a write of a value. Where neither the condition nor the version depends on
// what is there, that is one statement and nobody looks.
func (k *keyValue) put(t *kvTable, key *upstream.Params, value []byte, cond condition) (*kvWrite, error) {
	if limit, setting := k.maxValue(t); len(value) > limit {
		return nil, core.OverLimit("bytes of the value", len(value), limit, setting)
	}
	params := key.Clone()
	if err := params.AddRaw("$value", t.Value.Type, value); err != nil {
		return nil, yql.At(err, "value")
	}
	switch t.Value.Type.GetTypeId() {
	case Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT:
		if !json.Valid(value) {
			return nil, core.BadRequest("value: it is not JSON, as column %s has to be", t.Value.Name)
		}
	}
	w := &kvWrite{t: t, cond: cond, key: key, params: params}
	switch {
	case cond.absent():
		w.alone, w.done = t.insert, kvWritten{created: true}
		if t.versioned() {
			first := t.first()
			params.Add("$version", first)
			w.done.version = versionText(first)
		}
	case !t.versioned() && cond.match == nil: // no tag of none_match can be this row's
		w.alone, w.again = t.put, true
	default:
		first := params.Len()
		w.then = func(there bool, old string) (string, error) {
			w.done = kvWritten{created: !there}
			if t.versioned() {
				next, err := t.next(old)
				if err != nil {
					return "", err
				}
				params.Truncate(first) // of a try before
				params.Add("$version", next)
				w.done.version = versionText(next)
			}
			return t.put, nil
		}
	}
	return w, nil
}

// run does a write.
func (k *keyValue) run(ctx context.Context, c *core.Call, in kvCall, w *kvWrite) (kvWritten, error) {
	if err := core.TooMuch(c.Reserved.Take(w.params.Size())); err != nil {
		return kvWritten{}, err
	}
	ctx, cancel, call, err := k.begin(ctx, c, in)
	if err != nil {
		return kvWritten{}, err
	}
	defer cancel()
	return k.write(ctx, c, call, w, w.statement())
}

// statement is that of a write of one; nil: it is none.
func (w *kvWrite) statement() *core.Statement {
	if w.alone == "" {
		return nil
	}
	return &core.Statement{SQL: w.alone, Params: w.params}
}

// write does a write in a call that has begun. alone is w.statement().
func (k *keyValue) write(ctx context.Context, c *core.Call, call upstream.Call, w *kvWrite, alone *core.Statement) (kvWritten, error) {
	if alone == nil {
		if err := k.writeLooking(ctx, c, call, w); err != nil {
			return kvWritten{}, err
		}
		return w.done, nil
	}
	call.Idempotent = w.again
	report, err := k.core.Deps.Driver.Do(ctx, call, func(ctx context.Context, session core.Session) error {
		_, err := core.Run(ctx, session, alone, core.ModeSerializable.Single(), false, nil, &cells{})
		return err
	})
	c.Note(report)
	if err == nil {
		return w.done, nil
	}
	f := w.t.fault(core.FaultOf(err, core.Deed{Harmless: call.Idempotent, Unsure: report.Unsure}))
	if w.cond.absent() && f.Code == core.CodeYDB(Ydb.StatusIds_PRECONDITION_FAILED) {
		f = conditionFailed(w.t, true).With(func(g *core.Fault) { g.Unknown, g.Cause = f.Unknown, f.Cause })
	}
	return kvWritten{}, f
}

// writeLooking looks at a row and writes it, as one transaction. Only without a
// condition is it repeated after a try that may have been kept: the repeat
// would not find the row as the first try did.
func (k *keyValue) writeLooking(ctx context.Context, c *core.Call, call upstream.Call, w *kvWrite) error {
	t, cond := w.t, w.cond
	call.Idempotent = cond.match == nil && cond.noneMatch == nil
	look := &core.Statement{SQL: t.look, Params: w.key}
	report, err := k.core.Deps.Driver.Do(ctx, call, func(ctx context.Context, session core.Session) error {
		var got cells
		if _, err := core.Run(ctx, session, look, core.ModeSerializable.Begin(false), true, nil, &got); err != nil {
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
		_, err = core.Run(ctx, session, &core.Statement{SQL: sql, Params: w.params}, core.Inside(session.TxID(), true), false, nil, &cells{})
		return err
	})
	c.Note(report)
	if err != nil {
		return t.fault(core.FaultOf(err, core.Deed{Harmless: call.Idempotent, Unsure: report.Unsure}))
	}
	return nil
}

// condition says in which state a row has to be, as If-Match and If-None-Match
// do. nil asks for nothing.
type condition struct {
	match     *versions // the row has one of these
	noneMatch *versions // it has none of these
}

// versions are versions of a row; any is every one of a row that is there.
type versions struct {
	any  bool
	list []string
}

// with adds one; v may be nil.
func (v *versions) with(version string) *versions {
	if v == nil {
		v = new(versions)
	}
	v.list, v.any = append(v.list, version), v.any || version == "*"
	return v
}

func (v *versions) has(there bool, version string) bool {
	return there && (v.any || version != "" && slices.Contains(v.list, version))
}

func (c condition) matches(there bool, version string) bool {
	return c.match == nil || c.match.has(there, version)
}

func (c condition) noneMatches(there bool, version string) bool {
	return c.noneMatch == nil || !c.noneMatch.has(there, version)
}

// absent tells whether the condition is that the row is not there, and no more.
func (c condition) absent() bool { return c.match == nil && c.noneMatch != nil && c.noneMatch.any }

// conditionFailed is the fault of a condition that the row does not meet.
func conditionFailed(t *kvTable, there bool) *core.Fault {
	switch {
	case !there:
		return core.Faultf(core.CodeCondition, "there is no row with this id")
	case !t.versioned():
		return core.Faultf(core.CodeCondition, "the row is there; %s has no version column (kv.tables), so that only * can be asked for", t.Name)
	}
	return core.Faultf(core.CodeCondition, "the row is there in another version")
}

// atID says which of several ids a fault is about.
func atID(i int, err error) error {
	return core.FaultOf(err, core.Deed{}).With(func(f *core.Fault) { f.Message = "ids[" + strconv.Itoa(i) + "]: " + f.Message })
}
