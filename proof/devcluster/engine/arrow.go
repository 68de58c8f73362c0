package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// BulkUpsertArrow is BulkUpsert of one Arrow record batch; schema and batch are messages of
// Arrow's IPC format. Columns of numbers, texts, dates and times are known, without compression.
func (db *DB) BulkUpsertArrow(ctx context.Context, path string, schema, batch []byte, between Between) error {
	t, err := db.tableAt(ctx, path)
	if err != nil {
		return err
	}
	bad := func(err error) error {
		return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "Arrow: %v", err)
	}
	fields, err := arrowSchema(schema)
	if err != nil {
		return bad(err)
	}
	columns, rows, err := arrowBatch(fields, batch)
	if err != nil {
		return bad(err)
	}
	if rows*len(t.columns) > maxArrowValues {
		return bad(fmt.Errorf("%d rows are too many for one batch", rows))
	}
	all := make([][]value.Value, rows)
	for i := range all {
		all[i] = nullRow(t)
	}
	var cols []int
	seen := map[string]bool{}
	for n, f := range fields {
		at, ok := t.byName[f.name]
		if !ok || seen[f.name] {
			return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Unknown or repeated column: %s", f.name)
		}
		seen[f.name] = true
		cols = append(cols, at)
		col := t.columns[at]
		conv := f.converter(col.bare)
		if conv == nil {
			return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Type mismatch, got Arrow type %d for column %s, but expected %s", f.typ, f.name, col.typ)
		}
		for i := range all {
			if columns[n].valid(i) {
				v, err := conv(columns[n], i)
				if err != nil {
					return bad(fmt.Errorf("row %d, column %s: %w", i, f.name, err))
				}
				all[i][at] = v
			}
			if err := col.allows(all[i][at]); err != nil {
				return err
			}
		}
	}
	return db.bulk(ctx, t, cols, all, between)
}

// maxArrowValues bounds the values of one batch.
const maxArrowValues = 10_000_000

var errArrow = errors.New("the message is damaged, or of a form that is not supported")

// fb reads a flatbuffer. What lies outside of it reads as 0.
type fb []byte

func (b fb) num(at, size int) uint64 {
	if at < 0 || at > len(b)-size {
		return 0
	}
	var raw [8]byte
	copy(raw[:], b[at:at+size])
	return binary.LittleEndian.Uint64(raw[:])
}

func (b fb) offset(at int) int { return int(int32(b.num(at, 4))) }

// field returns the place of field n of the table at at, 0 if it is not there.
func (b fb) field(at, n int) int {
	vtable := at - b.offset(at)
	if 4+2*n >= int(b.num(vtable, 2)) {
		return 0
	}
	if o := int(b.num(vtable+4+2*n, 2)); o != 0 {
		return at + o
	}
	return 0
}

// ref follows the reference in field n of the table at at: to a table, a text or a vector.
func (b fb) ref(at, n int) int {
	f := b.field(at, n)
	if f == 0 {
		return 0
	}
	return f + b.offset(f)
}

func (b fb) int(at, n, size int, none int64) int64 {
	f := b.field(at, n)
	if f == 0 {
		return none
	}
	return int64(b.num(f, size))
}

func (b fb) text(at int) string {
	n := b.offset(at)
	if at <= 0 || n < 0 || at+4 > len(b)-n {
		return ""
	}
	return string(b[at+4 : at+4+n])
}

// The kinds of messages and of types of Arrow's format.
const (
	arrowSchemaMessage = 1
	arrowBatchMessage  = 3

	arrowInt         = 2
	arrowFloat       = 3
	arrowBinary      = 4
	arrowUtf8        = 5
	arrowBool        = 6
	arrowDate        = 8
	arrowTimestamp   = 10
	arrowLargeBinary = 19
	arrowLargeUtf8   = 20
)

// arrowMessage opens an encapsulated message: its header, and the body behind it.
func arrowMessage(data []byte, kind int64) (b fb, header int, body []byte, err error) {
	if len(data) < 8 || binary.LittleEndian.Uint32(data) != math.MaxUint32 {
		return nil, 0, nil, errArrow
	}
	n := int(binary.LittleEndian.Uint32(data[4:]))
	if n > len(data)-8 {
		return nil, 0, nil, errArrow
	}
	b, body = fb(data[8:8+n]), data[8+n:]
	root := b.offset(0)
	header = b.ref(root, 2)
	if b.int(root, 1, 1, 0) != kind || header == 0 {
		return nil, 0, nil, errArrow
	}
	return b, header, body, nil
}

// arrowField is a column of a batch.
type arrowField struct {
	name   string
	typ    int64
	bits   int64 // of numbers
	signed bool
	unit   int64 // of dates and times
}

func arrowSchema(data []byte) ([]arrowField, error) {
	b, header, _, err := arrowMessage(data, arrowSchemaMessage)
	if err != nil {
		return nil, err
	}
	vector := b.ref(header, 1)
	n := b.offset(vector)
	if vector == 0 || n < 1 || n > len(b)/4 {
		return nil, errArrow
	}
	fields := make([]arrowField, n)
	for i := range fields {
		at := vector + 4 + 4*i
		at += b.offset(at)
		f := arrowField{name: b.text(b.ref(at, 0)), typ: b.int(at, 2, 1, 0)}
		details := b.ref(at, 3)
		switch f.typ {
		case arrowInt:
			f.bits, f.signed = b.int(details, 0, 4, 0), b.int(details, 1, 1, 0) != 0
		case arrowFloat:
			f.bits = 16 << b.int(details, 0, 2, 0)
		case arrowDate:
			f.bits, f.signed, f.unit = 32, true, b.int(details, 0, 2, 1)
		case arrowTimestamp:
			f.bits, f.signed, f.unit = 64, true, b.int(details, 0, 2, 0)
		}
		fields[i] = f
	}
	return fields, nil
}

// arrowColumn is the data of one column. Its buffers are as long as they must be.
type arrowColumn struct {
	field    arrowField
	validity []byte // empty: all values are there
	offsets  []byte // of texts
	data     []byte
}

func arrowBatch(fields []arrowField, data []byte) ([]arrowColumn, int, error) {
	b, header, body, err := arrowMessage(data, arrowBatchMessage)
	if err != nil {
		return nil, 0, err
	}
	rows := b.int(header, 0, 8, 0)
	if rows < 0 || rows > int64(len(body))*8 || b.field(header, 3) != 0 { // compression
		return nil, 0, errArrow
	}
	buffers := b.ref(header, 2)
	next := 0
	var missing bool
	buffer := func(size int64) []byte { // of at least size bytes
		at := buffers + 4 + 16*next
		next++
		from, n := int64(b.num(at, 8)), int64(b.num(at+8, 8))
		if next > b.offset(buffers) || n < size || from < 0 || n > int64(len(body)) || from > int64(len(body))-n {
			missing = true
			return nil
		}
		return body[from : from+n]
	}
	columns := make([]arrowColumn, len(fields))
	for i, f := range fields {
		c := arrowColumn{field: f, validity: buffer(0)}
		if n := len(c.validity); n > 0 && int64(n) < (rows+7)/8 {
			return nil, 0, errArrow
		}
		switch f.typ {
		case arrowUtf8, arrowBinary, arrowLargeUtf8, arrowLargeBinary:
			c.offsets = buffer((rows + 1) * int64(f.offsetSize()))
			c.data = buffer(0)
		case arrowBool:
			c.data = buffer((rows + 7) / 8)
		case arrowInt, arrowFloat, arrowDate, arrowTimestamp:
			c.data = buffer(rows * f.bits / 8)
		default:
			return nil, 0, fmt.Errorf("column %s: Arrow type %d is not supported", f.name, f.typ)
		}
		if missing {
			return nil, 0, errArrow
		}
		columns[i] = c
	}
	return columns, int(rows), nil
}

func (f arrowField) offsetSize() int {
	if f.typ == arrowLargeUtf8 || f.typ == arrowLargeBinary {
		return 8
	}
	return 4
}

func bit(b []byte, i int) bool { return b[i/8]>>(i%8)&1 != 0 }

func (c arrowColumn) valid(i int) bool { return len(c.validity) == 0 || bit(c.validity, i) }

// number returns integer i, signed or not.
func (c arrowColumn) number(i int) uint64 {
	size := int(c.field.bits / 8)
	n := fb(c.data).num(i*size, size)
	if shift := 64 - c.field.bits; c.field.signed {
		return uint64(int64(n<<shift) >> shift)
	}
	return n
}

func (c arrowColumn) text(i int) (string, error) {
	size := c.field.offsetSize()
	from, to := fb(c.offsets).num(i*size, size), fb(c.offsets).num((i+1)*size, size)
	if from > to || to > uint64(len(c.data)) {
		return "", errArrow
	}
	return string(c.data[from:to]), nil
}

// converter returns how values of the field become values of the type, nil if they cannot.
func (f arrowField) converter(t *value.Type) func(c arrowColumn, i int) (value.Value, error) {
	inRange := func(n int64) (value.Value, error) {
		if !value.InRange(t.Kind, n) {
			return value.Value{}, fmt.Errorf("%d is out of the range of %s", n, t)
		}
		return value.Int(n), nil
	}
	switch {
	case f.typ == arrowBool && t.Kind == value.Bool:
		return func(c arrowColumn, i int) (value.Value, error) { return value.Truth(bit(c.data, i)), nil }
	case f.typ == arrowFloat && value.IsFloat(t.Kind) && f.bits == 64:
		return func(c arrowColumn, i int) (value.Value, error) { return value.Value{Lo: c.number(i)}, nil }
	case f.typ == arrowFloat && value.IsFloat(t.Kind) && f.bits == 32:
		return func(c arrowColumn, i int) (value.Value, error) {
			return value.Real(float64(math.Float32frombits(uint32(c.number(i))))), nil
		}
	case f.typ == arrowInt && (value.IsInt(t.Kind) || value.IsTime(t.Kind) || value.IsInterval(t.Kind)) && (f.bits == 8 || f.bits == 16 || f.bits == 32 || f.bits == 64):
		return func(c arrowColumn, i int) (value.Value, error) {
			n := c.number(i)
			switch {
			case f.signed || n <= math.MaxInt64:
				return inRange(int64(n))
			case t.Kind == value.Uint64:
				return value.Uint(n), nil
			}
			return value.Value{}, fmt.Errorf("%d is out of the range of %s", n, t)
		}
	case f.typ == arrowDate && f.unit == 0 && (t.Kind == value.Date || t.Kind == value.Date32):
		return func(c arrowColumn, i int) (value.Value, error) { return inRange(int64(c.number(i))) }
	case f.typ == arrowTimestamp && f.unit >= 0 && f.unit <= 3:
		return f.timestamp(t, inRange)
	case (f.typ == arrowUtf8 || f.typ == arrowLargeUtf8 || f.typ == arrowBinary || f.typ == arrowLargeBinary) && value.IsText(t.Kind):
		return func(c arrowColumn, i int) (value.Value, error) {
			s, err := c.text(i)
			if err != nil {
				return value.Value{}, err
			}
			return value.Parse(t, s)
		}
	}
	return nil
}

// timestamp converts units of 10^(-3·unit) seconds.
func (f arrowField) timestamp(t *value.Type, inRange func(int64) (value.Value, error)) func(c arrowColumn, i int) (value.Value, error) {
	want := int64(0)
	switch t.Kind {
	case value.Datetime, value.Datetime64:
	case value.Timestamp, value.Timestamp64:
		want = 2
	default:
		return nil
	}
	return func(c arrowColumn, i int) (value.Value, error) {
		n := int64(c.number(i))
		for u := f.unit; u < want; u++ {
			if n > math.MaxInt64/1000 || n < math.MinInt64/1000 {
				return value.Value{}, errArrow
			}
			n *= 1000
		}
		for u := f.unit; u > want; u-- {
			n /= 1000
		}
		return inRange(n)
	}
}
