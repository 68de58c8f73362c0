package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/store"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// errStop ends a scan from inside without being an error.
var errStop = errors.New("stop")

// get returns the row of the key as the transaction sees it, nil if there is none.
func (tx *Tx) get(ctx context.Context, t *table, key []byte) ([]value.Value, error) {
	o := tx.own(t, key)
	if o != nil && (o.del || o.has == nil) {
		return o.over(t, nil), nil
	}
	tx.didReadKey(t, t.id, key)
	row, err := tx.stored(ctx, t, key)
	if err == nil && o != nil {
		row = o.over(t, row)
	}
	return row, err
}

// stored returns the row of the key in the snapshot, without noting that it was read.
func (tx *Tx) stored(ctx context.Context, t *table, key []byte) ([]value.Value, error) {
	raw, err := tx.snapshot.Get(ctx, t.id, key)
	if err != nil || raw == nil {
		return nil, storeError(err)
	}
	row, err := t.decode(raw)
	return row, storeError(err)
}

// scanSpec is a walk over ranges of a table's key, or of an index's, in order.
type scanSpec struct {
	t       *table
	ix      *index // nil: by the table's key
	ranges  []keyRange
	reverse bool
}

// rowFunc takes one row; errStop ends the walk.
type rowFunc func(row []value.Value) error

// scan calls yield for every row of the ranges as the transaction sees it. What was
// passed is noted as read, no more.
func (tx *Tx) scan(ctx context.Context, s scanSpec, yield rowFunc) error {
	for i := range s.ranges {
		r := s.ranges[i]
		if s.reverse {
			r = s.ranges[len(s.ranges)-1-i]
		}
		if err := tx.scanRange(ctx, s, r, yield); err != nil {
			return err
		}
	}
	return nil
}

// mine is one of the transaction's own writes that falls into the range of a scan; row is nil if it deletes.
type mine struct {
	key string
	row func() ([]value.Value, error)
}

func (tx *Tx) scanRange(ctx context.Context, s scanSpec, r keyRange, yield rowFunc) error {
	if r.point && s.ix == nil {
		row, err := tx.get(ctx, s.t, r.from)
		if err != nil || row == nil {
			return err
		}
		return yield(row)
	}
	own, err := tx.mine(ctx, s, r)
	if err != nil {
		return err
	}
	id := s.t.id
	if s.ix != nil {
		id = s.ix.id
	}
	if s.reverse {
		slices.Reverse(own)
	}
	walk := &rangeScan{scanSpec: s, tx: tx, ctx: ctx, id: id, own: own, left: r, yield: yield}
	return walk.run()
}

// rangeScan is a scan of one range: the rows of the snapshot and the transaction's own
// writes, merged by their keys.
type rangeScan struct {
	scanSpec
	tx    *Tx
	ctx   context.Context
	id    uint64   // of the table or of the index in the store
	own   []mine   // writes that are still to come, in the order of the scan
	left  keyRange // what is not noted as read yet
	yield rowFunc
}

func (w *rangeScan) run() error {
	for size, more := 64, true; more; size = min(size*4, 4096) {
		var rows []store.Row
		var err error
		rows, more, err = w.tx.snapshot.Scan(
			w.ctx,
			store.Range{Table: w.id, From: w.left.from, To: w.left.to, Reverse: w.reverse, Rows: size, Bytes: 1 << 20},
		)
		if err != nil {
			return storeError(err)
		}
		for _, row := range rows {
			if err := w.row(row); err != nil {
				return err
			}
		}
		if more = more && len(rows) > 0; more {
			w.passed(rows[len(rows)-1].Key)
		}
	}
	for _, m := range w.own {
		if err := w.pass([]byte(m.key), m.row); err != nil {
			return err
		}
	}
	w.tx.didRead(w.t, w.id, w.left.from, w.left.to)
	return nil
}

// row passes a row of the snapshot, after the transaction's own writes before it. A write
// with the same key takes its place.
func (w *rangeScan) row(row store.Row) error {
	k := string(row.Key)
	for len(w.own) > 0 && w.own[0].key != k && w.own[0].key < k != w.reverse {
		m := w.own[0]
		if err := w.pass([]byte(m.key), m.row); err != nil {
			return err
		}
		w.own = w.own[1:]
	}
	if len(w.own) > 0 && w.own[0].key == k {
		m := w.own[0]
		w.own = w.own[1:]
		return w.pass(row.Key, m.row)
	}
	return w.pass(row.Key, func() ([]value.Value, error) {
		switch {
		case w.ix == nil:
			out, err := w.t.decode(row.Val)
			return out, storeError(err)
		case w.tx.own(w.t, row.Val) == nil:
			return w.tx.get(w.ctx, w.t, row.Val)
		}
		return nil, nil // the transaction's own write of this row comes by its own key
	})
}

// pass yields a row. If the scan ends with it, the range up to its key was read.
func (w *rangeScan) pass(key []byte, of func() ([]value.Value, error)) error {
	row, err := of()
	if err == nil && row != nil {
		err = w.yield(row)
	}
	if err != nil {
		w.passed(key)
	}
	return err
}

// passed notes the part of the range up to the key as read.
func (w *rangeScan) passed(key []byte) {
	if w.reverse {
		w.tx.didRead(w.t, w.id, key, w.left.to)
		w.left.to = key
		return
	}
	after := append(slices.Clone(key), 0)
	w.tx.didRead(w.t, w.id, w.left.from, after)
	w.left.from = after
}

// mine returns the transaction's own writes in the range, in order.
func (tx *Tx) mine(ctx context.Context, s scanSpec, r keyRange) ([]mine, error) {
	if tx.writes[s.t.id] == nil {
		return nil, nil
	}
	var out []mine
	if s.ix == nil {
		for _, k := range tx.ownKeys(s.t, r.from, r.to) {
			out = append(out, mine{k, func() ([]value.Value, error) { return tx.get(ctx, s.t, []byte(k)) }})
		}
		return out, nil
	}
	for _, k := range tx.ownKeys(s.t, nil, nil) {
		o := tx.own(s.t, []byte(k))
		var stored []value.Value
		if o.has != nil {
			var err error
			if stored, err = tx.stored(ctx, s.t, []byte(k)); err != nil {
				return nil, err
			}
		}
		row := o.over(s.t, stored)
		if row == nil {
			continue
		}
		ik := string(s.ix.keyOf(s.t, row))
		if ik < string(r.from) || r.to != nil && ik >= string(r.to) {
			continue
		}
		out = append(out, mine{ik, func() ([]value.Value, error) { return tx.get(ctx, s.t, []byte(k)) }})
	}
	slices.SortFunc(out, func(a, b mine) int { return compareStrings(a.key, b.key) })
	return out, nil
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
