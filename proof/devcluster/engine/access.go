package engine

import (
	"bytes"
	"slices"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// The bounds of ways to read one table.
const (
	maxAlternatives = 4096    // of conditions joined by OR
	maxRanges       = 200_000 // of one scan
)

// access is how a table is read: for each alternative of the conditions the bounds of the
// leading columns of the key. Conditions it does not understand only make it read more: the
// whole condition is applied to the rows afterwards.
type access struct {
	t       *table
	ix      *index
	key     []int // places of the columns that the rows are ordered by
	alts    [][]keyBound
	reverse bool
}

// keyBound bounds one column of the key: by one value, by several, or by an interval.
type keyBound struct {
	eq, list       *expr
	lo, hi         *expr
	loOpen, hiOpen bool
}

// atom is a condition on one column.
type atom struct {
	col int // place in the table
	op  string
	x   *expr // a value, or a list if op is IN
}

func (c *compiler) access(t *table, ix *index, alias string, left []column, filters []syntax.Expr) *access {
	a := &access{t: t, ix: ix, key: t.key}
	if ix != nil {
		a.key = ix.key
	}
	f := &finder{c: c, t: t, alias: alias, left: left}
	alts := [][]atom{nil}
	for _, x := range filters {
		if x != nil {
			alts = cross(alts, f.alternatives(x))
		}
	}
	for _, atoms := range alts {
		bounds := a.bounds(atoms)
		if len(bounds) == 0 {
			a.alts = nil
			return a
		}
		a.alts = append(a.alts, bounds)
	}
	return a
}

// bound reports whether the access is narrower than the whole table.
func (a *access) bound() bool { return len(a.alts) > 0 }

// bounds picks the conditions on the leading columns of the key.
func (a *access) bounds(atoms []atom) []keyBound {
	var out []keyBound
	for _, col := range a.key {
		var b keyBound
		for _, at := range atoms {
			if at.col != col {
				continue
			}
			switch at.op {
			case "=":
				b.eq = at.x
			case "IN":
				b.list = at.x
			case ">", ">=":
				b.lo, b.loOpen = at.x, at.op == ">"
			case "<", "<=":
				b.hi, b.hiOpen = at.x, at.op == "<"
			}
		}
		switch {
		case b.eq != nil:
			b.list, b.lo, b.hi = nil, nil, nil
		case b.list != nil:
			b.lo, b.hi = nil, nil
		case b.lo != nil || b.hi != nil:
			return append(out, b)
		default:
			return out
		}
		out = append(out, b)
	}
	return out
}

// finder looks for conditions on one table's columns.
type finder struct {
	c     *compiler
	t     *table
	alias string
	left  []column
}

// cross joins two sets of alternatives by AND; too many leave the first one.
func cross(a, b [][]atom) [][]atom {
	if len(a)*len(b) > maxAlternatives {
		return a
	}
	var out [][]atom
	for _, x := range a {
		for _, y := range b {
			out = append(out, slices.Concat(x, y))
		}
	}
	return out
}

// alternatives turns a condition into ways to satisfy it; one without atoms is any way.
func (f *finder) alternatives(x syntax.Expr) [][]atom {
	anyway := [][]atom{nil}
	switch x := x.(type) {
	case *syntax.Logic:
		switch x.Op {
		case "AND":
			out := anyway
			for _, a := range x.Args {
				out = cross(out, f.alternatives(a))
			}
			return out
		case "OR":
			var out [][]atom
			for _, a := range x.Args {
				if out = append(out, f.alternatives(a)...); len(out) > maxAlternatives {
					return anyway
				}
			}
			return out
		}
	case *syntax.Binary:
		if at, ok := f.atom(x.Op, x.L, x.R); ok {
			return [][]atom{{at}}
		}
		flip := map[string]string{"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
		if at, ok := f.atom(flip[x.Op], x.R, x.L); ok {
			return [][]atom{{at}}
		}
	case *syntax.Between:
		if !x.Not {
			lo, ok1 := f.atom(">=", x.X, x.Lo)
			hi, ok2 := f.atom("<=", x.X, x.Hi)
			if ok1 && ok2 {
				return [][]atom{{lo, hi}}
			}
		}
	case *syntax.In:
		if !x.Not {
			return f.in(x)
		}
	}
	return anyway
}

// column returns the place of the table's column that x is.
func (f *finder) column(x syntax.Expr) (int, bool) {
	col, ok := x.(*syntax.Column)
	if !ok || col.Table != "" && col.Table != f.alias {
		return 0, false
	}
	if col.Table == "" {
		for _, l := range f.left {
			if l.name == col.Name {
				return 0, false
			}
		}
	}
	i, ok := f.t.byName[col.Name]
	return i, ok
}

func (f *finder) atom(op string, l, r syntax.Expr) (atom, bool) {
	i, ok := f.column(l)
	if !ok || op == "" || op == "!=" || !slices.Contains([]string{"=", "<", "<=", ">", ">="}, op) {
		return atom{}, false
	}
	x := f.value(r)
	if x == nil || !keyFits(value.Bare(x.typ), f.t.columns[i].bare) {
		return atom{}, false
	}
	return atom{i, op, x}, true
}

// value compiles what a column is compared with, if it needs no columns but those to the left.
func (f *finder) value(x syntax.Expr) *expr {
	var out *expr
	if !f.c.try(func() { out = f.c.expr(env{cols: f.left}, x) }) {
		return nil
	}
	return out
}

func (f *finder) in(x *syntax.In) [][]atom {
	anyway := [][]atom{nil}
	if t, ok := x.X.(*syntax.TupleOf); ok && x.Over == nil {
		return f.inTuples(t, x.List)
	}
	i, ok := f.column(x.X)
	if !ok {
		return anyway
	}
	bare := f.t.columns[i].bare
	var list *expr
	if x.Over == nil {
		if len(x.List) == 1 {
			if one := f.value(x.List[0]); one != nil && isList(one.typ) {
				list = one
			}
		}
		if list == nil {
			f.c.try(func() { list = f.c.list(x.Pos, f.c.exprs(env{cols: f.left}, x.List)) })
		}
	} else {
		list = f.value(x.Over)
	}
	if list == nil {
		return anyway
	}
	lt := value.Bare(list.typ)
	if lt.Kind != value.List || !keyFits(value.Bare(lt.Elem), bare) {
		return anyway
	}
	return [][]atom{{{i, "IN", list}}}
}

// inTuples reads (a, b) IN ((1, 2), (3, 4)) as alternatives.
func (f *finder) inTuples(t *syntax.TupleOf, list []syntax.Expr) [][]atom {
	var out [][]atom
	for _, x := range list {
		row, ok := x.(*syntax.TupleOf)
		if !ok || len(row.Items) != len(t.Items) || len(out) >= maxAlternatives {
			return [][]atom{nil}
		}
		var atoms []atom
		for i := range t.Items {
			if at, ok := f.atom("=", t.Items[i], row.Items[i]); ok {
				atoms = append(atoms, at)
			}
		}
		out = append(out, atoms)
	}
	if out == nil {
		return [][]atom{nil}
	}
	return out
}

// keyFits reports whether a value of type from can be looked up in a key column of type to.
func keyFits(from, to *value.Type) bool {
	text := func(k value.Kind) bool { return k == value.String || k == value.Utf8 }
	return from.Equal(to) || value.IsInt(from.Kind) && value.IsInt(to.Kind) || text(from.Kind) && text(to.Kind)
}

// keyValue returns v as a value of the key column, or false if the column cannot hold it.
func keyValue(v value.Value, from, to *value.Type) (value.Value, bool) {
	from = value.Bare(from)
	if from.Equal(to) || !value.IsInt(from.Kind) {
		return v, true
	}
	if value.IsSigned(from.Kind) || v.Lo < 1<<63 {
		return v, value.InRange(to.Kind, int64(v.Lo))
	}
	return v, to.Kind == value.Uint64
}

// point reports whether the bytes are a whole primary key.
func (a *access) point(bounds []keyBound) bool {
	if a.ix != nil || len(bounds) != len(a.key) {
		return false
	}
	last := bounds[len(bounds)-1]
	return last.eq != nil || last.list != nil
}

// ranges computes the ranges of keys to read, in order and apart from each other.
func (a *access) ranges(e *exec, outer []value.Value) ([]keyRange, error) {
	if len(a.alts) == 0 {
		return []keyRange{{}}, nil
	}
	var out []keyRange
	for _, bounds := range a.alts {
		var err error
		if out, err = a.alternative(e, outer, bounds, out); err != nil {
			return nil, err
		}
	}
	if len(out) < 2 {
		return out, nil
	}
	slices.SortFunc(out, func(x, y keyRange) int { return bytes.Compare(x.from, y.from) })
	merged := out[:1]
	for _, r := range out[1:] {
		last := &merged[len(merged)-1]
		switch {
		case last.to == nil:
		case bytes.Compare(r.from, last.to) >= 0:
			merged = append(merged, r)
		case r.to == nil || bytes.Compare(r.to, last.to) > 0:
			last.to, last.point = r.to, false
		}
	}
	return merged, nil
}

func (a *access) alternative(e *exec, outer []value.Value, bounds []keyBound, out []keyRange) ([]keyRange, error) {
	prefixes := [][]byte{nil}
	for i, b := range bounds {
		bare := a.t.columns[a.key[i]].bare
		switch {
		case b.eq != nil:
			v, err := b.eq.eval(e, outer)
			if err != nil {
				return nil, err
			}
			v, ok := keyValue(v, b.eq.typ, bare)
			if v.Null > 0 || !ok {
				return out, nil // equal to nothing
			}
			for j := range prefixes {
				prefixes[j] = value.AppendKey(prefixes[j], bare, v)
			}
		case b.list != nil:
			var err error
			if prefixes, err = a.several(e, outer, b, bare, prefixes); err != nil {
				return nil, err
			}
		default:
			for _, p := range prefixes {
				r, err := interval(e, outer, b, bare, p)
				if err != nil {
					return nil, err
				}
				out = append(out, r)
			}
			return out, tooMany(len(out))
		}
	}
	point := a.point(bounds)
	for _, p := range prefixes {
		if point {
			out = append(out, keyRange{from: p, to: append(p[:len(p):len(p)], 0), point: true})
		} else {
			out = append(out, keyRange{from: p, to: value.KeyEnd(p)})
		}
	}
	return out, tooMany(len(out))
}

func tooMany(n int) error {
	if n > maxRanges {
		return errorf(Ydb.StatusIds_PRECONDITION_FAILED, 0, "The query reads more than %d ranges of keys", maxRanges)
	}
	return nil
}

// several extends every prefix by every value of a list.
func (a *access) several(e *exec, outer []value.Value, b keyBound, bare *value.Type, prefixes [][]byte) ([][]byte, error) {
	l, err := b.list.eval(e, outer)
	if err != nil || l.IsNull() {
		return nil, err
	}
	et := value.Bare(b.list.typ).Elem
	var next [][]byte
	for _, p := range prefixes {
		for _, v := range l.Items {
			v, ok := keyValue(v, et, bare)
			if v.Null > 0 || !ok {
				continue
			}
			next = append(next, value.AppendKey(p[:len(p):len(p)], bare, v))
			if err := tooMany(len(next)); err != nil {
				return nil, err
			}
		}
	}
	return next, nil
}

// interval is the range of keys with prefix p whose next column lies between the bounds. A
// bound that the column cannot express is left out. NULL is in no interval.
func interval(e *exec, outer []value.Value, b keyBound, bare *value.Type, p []byte) (keyRange, error) {
	p = p[:len(p):len(p)]
	r := keyRange{from: append(p, 1), to: value.KeyEnd(append(p, 1))}
	empty := keyRange{from: p, to: p}
	for _, side := range []struct {
		x    *expr
		open bool
		to   bool
	}{{b.lo, b.loOpen, false}, {b.hi, b.hiOpen, true}} {
		if side.x == nil {
			continue
		}
		v, err := side.x.eval(e, outer)
		if err != nil {
			return r, err
		}
		if v.Null > 0 {
			return empty, nil
		}
		v, ok := keyValue(v, side.x.typ, bare)
		if !ok {
			continue
		}
		k := value.AppendKey(p, bare, v)
		switch {
		case side.to && side.open:
			r.to = k
		case side.to:
			r.to = value.KeyEnd(k)
		case side.open:
			r.from = value.KeyEnd(k)
		default:
			r.from = k
		}
	}
	if r.to != nil && bytes.Compare(r.from, r.to) > 0 {
		return empty, nil
	}
	return r, nil
}
