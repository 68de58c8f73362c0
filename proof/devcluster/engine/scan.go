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
	id := s.t.id
	if s.ix != nil {
		id = s.ix.id
	}
	own, err := tx.mine(ctx, s, r)
	if err != nil {
		return err
	}
	if s.reverse {
		slices.Reverse(own)
	}
	before := func(a, b string) bool { return a < b != s.reverse && a != b }
	left := r
	size := 64
	for {
		rows, more, err := tx.snapshot.Scan(ctx, store.Range{Table: id, From: left.from, To: left.to, Reverse: s.reverse, Rows: size, Bytes: 1 << 20})
		if err != nil {
			return storeError(err)
		}
		size = min(size*4, 4096)
		for _, row := range rows {
			k := string(row.Key)
			for len(own) > 0 && before(own[0].key, k) {
				if err := tx.yieldMine(s, id, left, own[0], yield); err != nil {
					return err
				}
				own = own[1:]
			}
			shadowed := len(own) > 0 && own[0].key == k
			var out []value.Value
			switch {
			case shadowed:
				out, err = own[0].row()
				own = own[1:]
			case s.ix == nil:
				out, err = s.t.decode(row.Val)
				err = storeError(err)
			case tx.own(s.t, row.Val) == nil:
				out, err = tx.get(ctx, s.t, row.Val)
			}
			if err == nil && out != nil {
				err = yield(out)
			}
			if err != nil {
				tx.passed(s, id, left, row.Key)
				return err
			}
		}
		if len(rows) > 0 && more {
			left = tx.passed(s, id, left, rows[len(rows)-1].Key)
			continue
		}
		break
	}
	for _, m := range own {
		if err := tx.yieldMine(s, id, left, m, yield); err != nil {
			return err
		}
	}
	tx.didRead(s.t, id, left.from, left.to)
	return nil
}

func (tx *Tx) yieldMine(s scanSpec, id uint64, left keyRange, m mine, yield rowFunc) error {
	row, err := m.row()
	if err == nil && row != nil {
		err = yield(row)
	}
	if err != nil {
		tx.passed(s, id, left, []byte(m.key))
	}
	return err
}

// passed notes the part of the range up to the key as read and returns the rest.
func (tx *Tx) passed(s scanSpec, id uint64, left keyRange, key []byte) keyRange {
	if s.reverse {
		tx.didRead(s.t, id, key, left.to)
		return keyRange{from: left.from, to: key}
	}
	after := append(slices.Clone(key), 0)
	tx.didRead(s.t, id, left.from, after)
	return keyRange{from: after, to: left.to}
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
