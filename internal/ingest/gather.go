package ingest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// rowCost is what a row counts beside its bytes: what is kept of it.
const rowCost = 64

// maxSets is how many different sets of columns one batch has: each is a request
// of its own.
const maxSets = 16

// gather holds rows until they go as one batch. Rows of one key are one slot, a
// chain from the newest row to the oldest; they become one row only when they are
// encoded, because a row that the server refuses must not take the others with it.
type gather struct {
	arena []byte // cells and keys
	rows  []row
	slots []slot
	index map[uint64]int32 // slots by the hash of their key
	sets  []set
	byTag map[string]int32 // sets by their mask
	mask  []byte           // scratch
	min   uint64           // least offset of rows
}

// row is one row as it came.
type row struct {
	offset     uint64
	start, end int32 // its cells in arena: a field Ydb.Value.items for each column of set
	set        int32
	prev       int32 // the row of the same key before it; -1: none
}

// slot is what will be one row of the table.
type slot struct {
	hash             uint64
	prefix           uint64 // of the key: most comparisons end here
	keyStart, keyEnd int32  // in arena
	last             int32  // newest row
	set              int32  // columns of all its rows together
}

// set is the columns that rows name, in the order of their places.
type set struct {
	mask    string
	indices []int32
}

func newGather() *gather {
	return &gather{index: make(map[uint64]int32), byTag: make(map[string]int32), min: math.MaxUint64}
}

// reset empties a gather to be used again.
func (g *gather) reset() {
	g.arena, g.rows, g.slots = g.arena[:0], g.rows[:0], g.slots[:0]
	clear(g.index)
	clear(g.sets)
	g.sets = g.sets[:0]
	clear(g.byTag)
	g.min = math.MaxUint64
}

// bytes is what counts against ingest.batch_bytes.
func (g *gather) bytes() int { return len(g.arena) + rowCost*len(g.rows) }

// setOf finds or adds the set with the columns that mask has.
func (g *gather) setOf(mask []byte) int32 {
	if n := len(g.rows); n > 0 {
		if last := g.rows[n-1].set; g.sets[last].mask == string(mask) {
			return last
		}
	}
	if i, ok := g.byTag[string(mask)]; ok {
		return i
	}
	s := set{mask: string(mask)}
	for i, b := range mask {
		for bit := range 8 {
			if b&(1<<bit) != 0 {
				s.indices = append(s.indices, int32(8*i+bit))
			}
		}
	}
	i := int32(len(g.sets))
	g.sets, g.byTag[s.mask] = append(g.sets, s), i
	return i
}

// union is the set of the columns of two.
func (g *gather) union(a, b int32) int32 {
	if a == b {
		return a
	}
	long, short := g.sets[a].mask, g.sets[b].mask
	if len(long) < len(short) {
		long, short = short, long
	}
	g.mask = append(g.mask[:0], long...)
	for i := range len(short) {
		g.mask[i] |= short[i]
	}
	switch string(g.mask) {
	case g.sets[a].mask:
		return a
	case g.sets[b].mask:
		return b
	}
	return g.setOf(g.mask)
}

// add takes a row in. false: another key has the same hash, so the row has to
// wait for the next gather.
func (g *gather) add(l *layout, offset uint64, c *yql.Cells, hash uint64, key []byte) bool {
	at, again := int32(-1), false
	if !l.loose {
		if at, again = g.index[hash]; again {
			if old := &g.slots[at]; !bytes.Equal(g.arena[old.keyStart:old.keyEnd], key) {
				return false
			}
		}
	}
	g.mask = append(g.mask[:0], make([]byte, (len(l.columns)+7)/8)...)
	start := int32(len(g.arena))
	for _, i := range l.order {
		if !c.Spans[i].Set() {
			continue
		}
		place := l.indices[i]
		g.mask[place/8] |= 1 << (place % 8)
		value := c.Value(i)
		g.arena = binary.AppendUvarint(append(g.arena, tagItems), uint64(len(value)))
		g.arena = append(g.arena, value...)
	}
	r := row{offset: offset, start: start, end: int32(len(g.arena)), set: g.setOf(trim(g.mask)), prev: -1}
	g.place(r, at, again, hash, key)
	return true
}

// trim drops the empty end of a mask, so that columns that a table got later make no other set.
func trim(mask []byte) []byte { return bytes.TrimRight(mask, "\x00") }

// place puts a row, whose cells are in the arena, into its slot.
func (g *gather) place(r row, at int32, again bool, hash uint64, key []byte) {
	n := int32(len(g.rows))
	g.min = min(g.min, r.offset)
	if again {
		s := &g.slots[at]
		r.prev, s.last = s.last, n
		g.rows = append(g.rows, r)
		s.set = g.union(s.set, r.set)
		return
	}
	g.rows = append(g.rows, r)
	keyStart := int32(len(g.arena))
	g.arena = append(g.arena, key...)
	if key != nil {
		g.index[hash] = int32(len(g.slots))
	}
	g.slots = append(g.slots, slot{hash: hash, prefix: prefixOf(key), keyStart: keyStart, keyEnd: int32(len(g.arena)), last: n, set: r.set})
}

func prefixOf(key []byte) uint64 {
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// move takes the rows of a slot of another gather over, in their order.
func (g *gather) move(from *gather, s *slot) {
	key := from.arena[s.keyStart:s.keyEnd]
	at, again := int32(len(g.slots)), false
	for _, i := range from.chain(nil, s) {
		r := from.rows[i]
		start := int32(len(g.arena))
		g.arena = append(g.arena, from.arena[r.start:r.end]...)
		moved := row{offset: r.offset, start: start, end: int32(len(g.arena)), set: g.setOf([]byte(from.sets[r.set].mask)), prev: -1}
		g.place(moved, at, again, s.hash, key)
		again = true
	}
}

// chain appends the rows of a slot, the oldest first.
func (g *gather) chain(dst []int32, s *slot) []int32 {
	start := len(dst)
	for i := s.last; i >= 0; i = g.rows[i].prev {
		dst = append(dst, i)
	}
	slices.Reverse(dst[start:])
	return dst
}

// sort orders the slots by their set of columns, and within one by key.
func (g *gather) sort() {
	slices.SortFunc(g.slots, func(a, b slot) int {
		if c := cmp.Compare(a.set, b.set); c != 0 {
			return c
		}
		if c := cmp.Compare(a.prefix, b.prefix); c != 0 {
			return c
		}
		return bytes.Compare(g.arena[a.keyStart:a.keyEnd], g.arena[b.keyStart:b.keyEnd])
	})
}

// item is what becomes one row of a request: a slot, or some rows of one.
type item struct {
	rows  []int32 // in order; nil: only
	only  int32   // the one row
	set   int32   // the columns of all rows together
	merge bool    // rows must be merged: the newest does not have all columns
}

func (e *encoder) item(g *gather, s *slot) item {
	newest := &g.rows[s.last]
	if newest.prev < 0 {
		return item{only: s.last, set: s.set}
	}
	start := len(e.chains)
	e.chains = g.chain(e.chains, s)
	return item{rows: e.chains[start:], only: s.last, set: s.set, merge: newest.set != s.set}
}

// part is an item of some of another one's rows.
func (g *gather) part(rows []int32) item {
	it := item{rows: rows, only: rows[len(rows)-1], set: g.rows[rows[0]].set}
	for _, i := range rows[1:] {
		it.set = g.union(it.set, g.rows[i].set)
	}
	it.merge = g.rows[it.only].set != it.set
	if len(rows) == 1 {
		it.rows = nil
	}
	return it
}

func (it *item) count() int { return max(1, len(it.rows)) }

// each calls f for every row of an item, in order.
func (it *item) each(f func(i int32)) {
	if it.rows == nil {
		f(it.only)
		return
	}
	for _, i := range it.rows {
		f(i)
	}
}

// Fields of the messages that a request is made of, as tags of length-delimited fields.
const (
	tagItems   = 12<<3 | byte(protowire.BytesType) // Ydb.Value.items, in one byte
	tagTable   = 1<<3 | byte(protowire.BytesType)  // BulkUpsertRequest.table
	tagRows    = 2<<3 | byte(protowire.BytesType)  // BulkUpsertRequest.rows
	tagType    = 1<<3 | byte(protowire.BytesType)  // TypedValue.type
	tagValue   = 2<<3 | byte(protowire.BytesType)  // TypedValue.value
	tagElement = 1<<3 | byte(protowire.BytesType)  // ListType.item
)

// encoder makes requests. It is used by one batch at a time.
type encoder struct {
	merged []byte   // cells of items whose rows are merged, one after the other
	ends   []int    // where each ends in merged
	cells  [][]byte // scratch of merge, by place
	items  []item   // of a batch
	chains []int32  // their rows
}

// request makes the bytes of a BulkUpsertRequest of items of one set of columns.
// bound is its last field. alloc gives the memory, of length 0 and at least the capacity that it is asked for.
func (e *encoder) request(g *gather, l *layout, table string, bound []byte, items []item, alloc func(size int) []byte) []byte {
	e.merged, e.ends = e.merged[:0], e.ends[:0]
	list := 0
	for i := range items {
		size := 0
		if it := &items[i]; it.merge {
			start := len(e.merged)
			e.merge(g, it)
			e.ends = append(e.ends, len(e.merged))
			size = len(e.merged) - start
		} else {
			r := &g.rows[it.only]
			size = int(r.end - r.start)
		}
		list += 1 + protowire.SizeBytes(size)
	}
	// Type{list_type: {item: Type{struct_type: {members}}}}; the tags of list_type (102) and struct_type (104) have two bytes.
	members := 0
	for _, place := range g.sets[items[0].set].indices {
		members += len(l.columns[place].member)
	}
	structType := 2 + protowire.SizeBytes(members)
	listType := 1 + protowire.SizeBytes(structType)
	typ := 2 + protowire.SizeBytes(listType)
	rows := 1 + protowire.SizeBytes(typ) + 1 + protowire.SizeBytes(list)
	b := alloc(1 + protowire.SizeBytes(len(table)) + 1 + protowire.SizeBytes(rows) + len(bound))

	length := func(tag byte, n int) { b = binary.AppendUvarint(append(b, tag), uint64(n)) }
	length(tagTable, len(table))
	b = append(b, table...)
	length(tagRows, rows)
	length(tagType, typ)
	b = binary.AppendUvarint(protowire.AppendTag(b, 102, protowire.BytesType), uint64(listType))
	length(tagElement, structType)
	b = binary.AppendUvarint(protowire.AppendTag(b, 104, protowire.BytesType), uint64(members))
	for _, place := range g.sets[items[0].set].indices {
		b = append(b, l.columns[place].member...)
	}
	length(tagValue, list)
	at, next := 0, 0
	for i := range items {
		it := &items[i]
		cells := g.arena[g.rows[it.only].start:g.rows[it.only].end]
		if it.merge {
			cells = e.merged[at:e.ends[next]]
			at, next = e.ends[next], next+1
		}
		length(tagItems, len(cells))
		b = append(b, cells...)
	}
	return append(b, bound...)
}

// merge appends the cells of an item to merged: of each column the newest.
func (e *encoder) merge(g *gather, it *item) {
	places := g.sets[it.set].indices
	if n := int(places[len(places)-1]) + 1; len(e.cells) < n {
		e.cells = make([][]byte, n)
	}
	left := len(places)
	for k := len(it.rows) - 1; k >= 0 && left > 0; k-- {
		r := &g.rows[it.rows[k]]
		cells := g.arena[r.start:r.end]
		for _, place := range g.sets[r.set].indices {
			size, n := binary.Uvarint(cells[1:]) // behind tagItems
			end := 1 + n + int(size)
			if e.cells[place] == nil {
				e.cells[place] = cells[:end]
				left--
			}
			cells = cells[end:]
		}
	}
	for _, place := range places {
		e.merged = append(e.merged, e.cells[place]...)
		e.cells[place] = nil
	}
}
