package engine

import (
	"context"
	"slices"
	"sync"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/store"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// The bounds of one transaction.
const (
	maxWriteBytes = 128 << 20 // of its own writes
	maxReadKeys   = 20_000    // single keys of one table it remembers; beyond, the whole table
)

// Tx is an open transaction. It is used by one goroutine at a time and ends with
// Commit or Rollback; after an error of Execute only Rollback is left.
type Tx struct {
	db       *DB
	mode     Mode
	snapshot *store.Snapshot // nil until a table is touched
	writes   map[uint64]*tableWrites
	reads    map[uint64]*readSet // by the id of the table or the index
	size     int
	over     bool
	topics   topicOps
}

// topicOps are what the transaction does to topics at commit. Streams of topics add to it
// while statements run.
type topicOps struct {
	mu   sync.Mutex // guards what follows
	ops  []topicOp
	size int
	over bool
}

// topicOp adds an op of about size bytes.
func (tx *Tx) topicOp(op topicOp, size int) error {
	if tx.mode.ReadOnly() {
		return errorf(Ydb.StatusIds_BAD_REQUEST, issueReadOnly, "A read only transaction cannot change topics")
	}
	o := &tx.topics
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return errOver()
	}
	if o.size += size + 100; o.size > maxWriteBytes {
		return errorf(Ydb.StatusIds_PRECONDITION_FAILED, 0, "The transaction writes more than %d bytes to topics", maxWriteBytes)
	}
	o.ops = append(o.ops, op)
	return nil
}

// take ends the list.
func (o *topicOps) take() []topicOp {
	o.mu.Lock()
	defer o.mu.Unlock()
	ops := o.ops
	o.ops, o.over = nil, true
	return ops
}

// tableWrites are a transaction's own writes to one table.
type tableWrites struct {
	t    *table
	ops  map[string]*op
	keys []string // of ops in order; nil when it must be built
}

// op is the write of one row: a deletion, a whole row, or some of its columns.
type op struct {
	del bool
	row []value.Value // by the table's columns
	has []bool        // the columns that a patch sets; nil: the whole row
}

// readSet is what a transaction read of one table or index.
type readSet struct {
	t      *table
	keys   map[string]struct{}
	ranges []keyRange
	all    bool
}

// keyRange is from inclusive to exclusive; a nil end is none. A point is the one key from.
type keyRange struct {
	from, to []byte
	point    bool
}

// open takes the snapshot if there is none yet and returns the current catalog. A table
// of the transaction that was changed or dropped since ends it.
func (tx *Tx) open(ctx context.Context) (*catalog, error) {
	fresh := tx.snapshot == nil || tx.mode == OnlineRO
	if fresh {
		if tx.snapshot != nil {
			tx.snapshot.Release()
		}
		sn, err := tx.db.store.Snapshot(ctx)
		if err != nil {
			tx.snapshot = nil
			return nil, storeError(err)
		}
		tx.snapshot = sn
	}
	schema := tx.snapshot.Schema
	if !fresh {
		var err error
		if schema, err = tx.db.store.Schema(ctx); err != nil {
			return nil, storeError(err)
		}
	}
	cat, err := tx.db.catalogAt(ctx, schema)
	if err != nil {
		return nil, storeError(err)
	}
	if !fresh {
		return cat, tx.sameTables(cat)
	}
	return cat, nil
}

// sameTables fails if a table that the transaction touched is not as it was.
func (tx *Tx) sameTables(cat *catalog) error {
	check := func(t *table) error {
		if cat.table(t.path) != t {
			return errorf(Ydb.StatusIds_ABORTED, issueLocksInvalidated, "Table scheme was changed: `%s`", t.path)
		}
		return nil
	}
	for _, w := range tx.writes {
		if err := check(w.t); err != nil {
			return err
		}
	}
	for _, r := range tx.reads {
		if err := check(r.t); err != nil {
			return err
		}
	}
	return nil
}

// didRead notes the range as read; a nil to stands for no end.
func (tx *Tx) didRead(t *table, id uint64, from, to []byte) {
	if tx.mode != Serializable {
		return
	}
	r := tx.readsOf(t, id)
	if r.all {
		return
	}
	if n := len(r.ranges); n > 0 && slices.Equal(r.ranges[n-1].to, from) && from != nil {
		r.ranges[n-1].to = to // the next part of the same range
		return
	}
	if r.ranges = append(r.ranges, keyRange{from: from, to: to}); len(r.ranges) > maxReadKeys {
		*r = readSet{t: t, all: true}
	}
}

func (tx *Tx) didReadKey(t *table, id uint64, key []byte) {
	if tx.mode != Serializable {
		return
	}
	r := tx.readsOf(t, id)
	if r.all {
		return
	}
	if r.keys == nil {
		r.keys = map[string]struct{}{}
	}
	if r.keys[string(key)] = struct{}{}; len(r.keys) > maxReadKeys {
		*r = readSet{t: t, all: true}
	}
}

func (tx *Tx) readsOf(t *table, id uint64) *readSet {
	r := tx.reads[id]
	if r == nil {
		r = &readSet{t: t}
		if tx.reads == nil {
			tx.reads = map[uint64]*readSet{}
		}
		tx.reads[id] = r
	}
	return r
}

// stage adds the write of one row to the transaction's own.
func (tx *Tx) stage(t *table, key []byte, o *op) error {
	w := tx.writes[t.id]
	if w == nil {
		w = &tableWrites{t: t, ops: map[string]*op{}}
		if tx.writes == nil {
			tx.writes = map[uint64]*tableWrites{}
		}
		tx.writes[t.id] = w
	}
	tx.size += len(key) + 100
	for i := range o.row {
		tx.size += len(o.row[i].S) + 16
	}
	if tx.size > maxWriteBytes {
		return errorf(Ydb.StatusIds_PRECONDITION_FAILED, 0, "The transaction writes more than %d bytes", maxWriteBytes)
	}
	old := w.ops[string(key)]
	if old == nil {
		w.keys = nil
	}
	if old != nil && o.has != nil {
		o = old.patched(t, o)
	}
	w.ops[string(key)] = o
	return nil
}

// patched returns what o and then the patch p make together.
func (o *op) patched(t *table, p *op) *op {
	if o.del {
		o = &op{row: nullRow(t)}
	}
	out := &op{row: slices.Clone(o.row), has: slices.Clone(o.has)}
	for i, set := range p.has {
		if set {
			out.row[i] = p.row[i]
			if out.has != nil {
				out.has[i] = true
			}
		}
	}
	return out
}

// over returns the row that the op makes of the stored one (nil: none); nil if it deletes it.
func (o *op) over(t *table, stored []value.Value) []value.Value {
	switch {
	case o.del:
		return nil
	case o.has == nil:
		return o.row
	case stored == nil:
		stored = nullRow(t)
	}
	out := slices.Clone(stored)
	for i, set := range o.has {
		if set {
			out[i] = o.row[i]
		}
	}
	return out
}

func nullRow(t *table) []value.Value {
	row := make([]value.Value, len(t.columns))
	for i := range row {
		row[i] = value.NullValue
	}
	return row
}

// own returns the transaction's write of the key, or nil.
func (tx *Tx) own(t *table, key []byte) *op {
	if w := tx.writes[t.id]; w != nil {
		return w.ops[string(key)]
	}
	return nil
}

// ownKeys returns the keys of the transaction's writes to the table from from to before to, in order.
func (tx *Tx) ownKeys(t *table, from, to []byte) []string {
	w := tx.writes[t.id]
	if w == nil {
		return nil
	}
	if w.keys == nil {
		w.keys = make([]string, 0, len(w.ops))
		for k := range w.ops {
			w.keys = append(w.keys, k)
		}
		slices.Sort(w.keys)
	}
	lo, _ := slices.BinarySearch(w.keys, string(from))
	hi := len(w.keys)
	if to != nil {
		hi, _ = slices.BinarySearch(w.keys, string(to))
	}
	return w.keys[lo:max(lo, hi)]
}

// Rollback forgets the transaction. It may be called at any time, also twice.
func (tx *Tx) Rollback() {
	tx.over = true
	tx.topics.take()
	tx.writes, tx.reads = nil, nil
	if tx.snapshot != nil {
		tx.snapshot.Release()
		tx.snapshot = nil
	}
}

// Commit applies the transaction's writes, or fails with ABORTED (issue 2001) when
// something it read was changed by another. Either way the transaction is over. The
// context counts until the write section begins; the section itself is short.
func (tx *Tx) Commit(ctx context.Context) error {
	if tx.over {
		return errOver()
	}
	defer tx.Rollback()
	ops := tx.topics.take()
	if len(tx.writes)+len(ops) == 0 {
		return nil // what it read was one snapshot: it stands at that point in the order
	}
	if len(ops) > 0 {
		defer tx.db.topics.tell()
	}
	return storeError(tx.db.store.Write(ctx, func(w *store.Writer) error {
		if cat := tx.db.catalog.Load(); cat == nil || cat.schema != w.Schema() {
			entries, err := w.Entries()
			if err != nil {
				return err
			}
			if cat, err = newCatalog(entries, w.Schema(), cat); err != nil {
				return err
			}
			if err := tx.sameTables(cat); err != nil {
				return err
			}
		}
		if err := tx.check(w); err != nil {
			return err
		}
		for _, tw := range tx.writes {
			if err := tw.apply(w); err != nil {
				return err
			}
		}
		for _, op := range ops {
			if err := op(w); err != nil {
				return err
			}
		}
		return nil
	}))
}

func errOver() *Error {
	return errorf(Ydb.StatusIds_NOT_FOUND, 2015, "Transaction not found")
}

func conflict(t *table) *Error {
	return errorf(Ydb.StatusIds_ABORTED, issueLocksInvalidated, "Transaction locks invalidated. Table: `%s`", t.path)
}

// check fails if another transaction wrote, since the snapshot, what this one relies on.
func (tx *Tx) check(w *store.Writer) error {
	if tx.snapshot == nil {
		return nil // it touched topics only
	}
	if err := tx.snapshot.Check(); err != nil {
		return err
	}
	since := tx.snapshot.Version
	if since+1 == w.Version() {
		return nil // nothing was written since the snapshot
	}
	if tx.mode == SnapshotRW {
		for id, tw := range tx.writes {
			for k := range tw.ops {
				if changed, err := w.Changed(id, []byte(k), since); err != nil {
					return err
				} else if changed {
					return conflict(tw.t)
				}
			}
		}
		return nil
	}
	for id, r := range tx.reads {
		ranges := r.ranges
		if r.all {
			ranges = []keyRange{{}}
		}
		for _, kr := range ranges {
			if changed, err := w.ChangedRange(id, kr.from, kr.to, since); err != nil {
				return err
			} else if changed {
				return conflict(r.t)
			}
		}
		for k := range r.keys {
			if changed, err := w.Changed(id, []byte(k), since); err != nil {
				return err
			} else if changed {
				return conflict(r.t)
			}
		}
	}
	return nil
}

// apply writes the ops on top of the newest rows.
func (tw *tableWrites) apply(w *store.Writer) error {
	t := tw.t
	for k, o := range tw.ops {
		key := []byte(k)
		var old []value.Value
		if o.del || o.has != nil || len(t.indexes) > 0 {
			raw, err := w.Get(t.id, key)
			if err != nil {
				return err
			}
			if raw != nil {
				if old, err = t.decode(raw); err != nil {
					return err
				}
			}
		}
		row := o.over(t, old)
		if row == nil && old == nil {
			continue
		}
		for _, ix := range t.indexes {
			if err := ix.apply(w, t, key, old, row); err != nil {
				return err
			}
		}
		var err error
		if row == nil {
			err = w.Delete(t.id, key)
		} else {
			err = w.Put(t.id, key, t.encode(row))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// apply brings the index from the old row to the new one; nil stands for no row.
func (ix *index) apply(w *store.Writer, t *table, key []byte, old, row []value.Value) error {
	var was, is []byte
	if old != nil {
		was = ix.keyOf(t, old)
	}
	if row != nil {
		is = ix.keyOf(t, row)
	}
	if was != nil && is != nil && string(was) == string(is) {
		return nil
	}
	if was != nil {
		if err := w.Delete(ix.id, was); err != nil {
			return err
		}
	}
	if is != nil {
		return w.Put(ix.id, is, key)
	}
	return nil
}

// keyOf returns the key of the row's entry in the index.
func (ix *index) keyOf(t *table, row []value.Value) []byte { return appendKey(nil, t, ix.key, row) }

// keyOf returns the row's primary key.
func (t *table) keyOf(row []value.Value) []byte { return appendKey(nil, t, t.key, row) }

func appendKey(b []byte, t *table, cols []int, row []value.Value) []byte {
	for _, c := range cols {
		b = value.AppendKey(b, t.columns[c].bare, row[c])
	}
	return b
}

func (t *table) encode(row []value.Value) []byte {
	b := make([]byte, 0, 64)
	for i, c := range t.columns {
		b = value.AppendCell(b, c.id, c.bare, row[i])
	}
	return b
}

func (t *table) decode(raw []byte) ([]value.Value, error) {
	row := nullRow(t)
	err := value.UnmarshalRow(raw, func(id uint64, v value.Value) {
		if i, ok := t.byID[id]; ok { // the column may have been dropped
			row[i] = v
		}
	})
	return row, err
}
