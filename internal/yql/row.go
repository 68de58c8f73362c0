package yql

import (
	"encoding/binary"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Rows turns rows of either API into the bytes of their values on the wire,
// without the messages in between. It is immutable, and safe for concurrent
// use. What it takes and what it refuses is as with ParamJSON and Param.
type Rows struct {
	cells []cellType
	index map[string]int
}

// cellType is how the values of a column are written.
type cellType struct {
	name     string
	t        *Ydb.Type
	id       Ydb.Type_PrimitiveTypeId // of what is inside an Optional
	field    field                    // noField: only the long way knows
	optional bool                     // of something that is no Optional itself
	decimal  *Ydb.DecimalType         // of what is inside an Optional; nil: it is none
	low      int64                    // of integers
	high     uint64
}

// NewRows prepares for rows with columns of these names and types.
func NewRows(names []string, types []*Ydb.Type) *Rows {
	rows := &Rows{cells: make([]cellType, len(names)), index: make(map[string]int, len(names))}
	for i, name := range names {
		rows.cells[i], rows.index[name] = newCell(name, types[i]), i
	}
	return rows
}

func newCell(name string, t *Ydb.Type) cellType {
	c := cellType{name: name, t: t}
	if o := t.GetOptionalType(); o != nil && !canBeNull(o.GetItem()) {
		c.optional, t = true, o.GetItem()
	}
	switch x := t.GetType().(type) {
	case *Ydb.Type_TypeId:
		c.id, c.field = x.TypeId, fieldOf(x.TypeId)
		c.low, c.high = rangeOf(c.id)
	case *Ydb.Type_DecimalType:
		c.decimal = x.DecimalType
	}
	return c
}

// Find returns the place of a column.
func (rows *Rows) Find(name string) (int, bool) {
	i, ok := rows.index[name]
	return i, ok
}

// mostInCell is how many values one column of a row may have within: no column of a table of YDB takes a list or the like, and the
// messages of values that nest take fifty times what they came as.
const mostInCell = 1000

// Cells is one row: the bytes of a Ydb.Value for each column that it names. It
// is used again for the next row.
type Cells struct {
	Bytes []byte
	Spans []Span // by column, in RawBytes
	Named []int  // columns that the row names, in its order; one may stand twice, and those without bytes are not set

	expect int // the column that probably comes next
	scan   reader
}

// Span is a part of Cells.Bytes. The zero Span is a column that the row does not name.
type Span struct{ Start, End int }

// Set tells whether the row names the column.
func (s Span) Set() bool { return s.End > s.Start }

// Value returns the bytes of a column.
func (c *Cells) Value(column int) []byte { return c.Bytes[c.Spans[column].Start:c.Spans[column].End] }

func (c *Cells) reset(columns int) {
	c.Bytes, c.expect = c.Bytes[:0], 0
	if len(c.Spans) != columns {
		c.Spans = make([]Span, columns)
	}
	for _, i := range c.Named { // a table may have far more columns than a row names
		if i < columns {
			c.Spans[i] = Span{}
		}
	}
	c.Named = c.Named[:0]
}

// set notes the bytes of a column, which begin there and are the last.
func (c *Cells) set(column, start int) {
	c.Spans[column] = Span{start, len(c.Bytes)}
	c.Named = append(c.Named, column)
}

// find returns the column of a member; most rows have theirs in the same order.
func (c *Cells) find(rows *Rows, name []byte) (int, bool) {
	if c.expect < len(rows.cells) && rows.cells[c.expect].name == string(name) {
		c.expect++
		return c.expect - 1, true
	}
	i, ok := rows.index[string(name)]
	if ok {
		c.expect = i + 1
	}
	return i, ok
}

// JSON reads a row from an object whose members are columns.
func (rows *Rows) JSON(raw []byte, into *Cells) error {
	into.reset(len(rows.cells))
	into.scan = reader{scanner: scanner{data: raw}}
	r := &into.scan
	if r.peek() != '{' {
		if _, err := r.skip(1); err != nil {
			return err
		}
		return errorf("a row is an object whose members are columns")
	}
	r.pos++
	if r.take('}') {
		return r.end()
	}
	for {
		name, err := r.name()
		if err != nil {
			return err
		}
		if err := r.expect(':'); err != nil {
			return err
		}
		i, ok := into.find(rows, name)
		if !ok {
			return noColumn(string(name))
		}
		if into.Spans[i].Set() {
			return inMember(errorf("the column appears twice"), rows.cells[i].name)
		}
		start := len(into.Bytes)
		r.budget = budgetOf(mostInCell)
		if into.Bytes, err = r.cell(into.Bytes, &rows.cells[i]); err != nil {
			return inMember(err, rows.cells[i].name)
		}
		into.set(i, start)
		if r.take('}') {
			return r.end()
		}
		if !r.take(',') {
			return r.syntax("expected , or }")
		}
	}
}

// noColumn says that a row names a column that is not there.
func noColumn(name string) error {
	return &Error{Msg: "the table has no column " + clip(name), NoColumn: true}
}

// Encoded reads a row of the gRPC API from the bytes of a sidecarv1.Row.
func (rows *Rows) Encoded(places []int, row []byte, into *Cells) error {
	into.reset(len(rows.cells))
	n := 0
	for len(row) > 0 {
		number, typ, size := protowire.ConsumeTag(row)
		if size < 0 {
			return errNoMessage
		}
		if number != 1 || typ != protowire.BytesType {
			return UnknownField(number, rowName)
		}
		value, length := protowire.ConsumeBytes(row[size:])
		if length < 0 {
			return errNoMessage
		}
		row = row[size+length:]
		if n < len(places) {
			c := &rows.cells[places[n]]
			start := len(into.Bytes)
			var err error
			if into.Bytes, err = appendCellEncoded(into.Bytes, value, c); err != nil {
				return inMember(err, c.name)
			}
			into.set(places[n], start)
		}
		n++
	}
	if n != len(places) {
		return errorf("%d values for %d columns", n, len(places))
	}
	return nil
}

var (
	rowName     = (&sidecarv1.Row{}).ProtoReflect().Descriptor().FullName()
	bulkRowName = (&sidecarv1.BulkRow{}).ProtoReflect().Descriptor().FullName()
)

var (
	errNoMessage = errorf("the message is not a protobuf")
	valueMessage = (&sidecarv1.Value{}).ProtoReflect().Descriptor()
)

// appendCellEncoded is appendCell for the bytes of a value: those that nearly all
// rows are made of are not taken apart.
func appendCellEncoded(dst, value []byte, c *cellType) ([]byte, error) {
	if out, ok := quickEncoded(dst, value, c); ok {
		return out, nil
	}
	if n, ok := Messages(valueMessage, value, mostInCell); !ok || n > mostInCell {
		b := budgetOf(mostInCell)
		return dst, b.exhausted()
	}
	var v sidecarv1.Value
	if proto.Unmarshal(value, &v) != nil {
		return dst, errNoMessage
	}
	if err := knownValue(&v); err != nil {
		return dst, err
	}
	return appendCell(dst, &v, c)
}

// quickEncoded takes a value that is one member of sidecarv1.Value.kind, and fits
// the column as it is; false if this is another.
func quickEncoded(dst, value []byte, c *cellType) ([]byte, bool) {
	number, typ, n := protowire.ConsumeTag(value)
	if n < 0 {
		return dst, false
	}
	body := value[n:]
	switch {
	case typ == protowire.VarintType:
		x, size := protowire.ConsumeVarint(body)
		if size != len(body) {
			return dst, false
		}
		switch number {
		case 1:
			return appendNull(dst), c.optional
		case 2:
			return appendBool(dst, x != 0), c.field == boolField
		case 3:
			neg := int64(x) < 0
			magnitude := magnitudeOf(int64(x))
			if c.takesIntegers() && c.holds(neg, magnitude) {
				return c.appendInteger(dst, neg, magnitude), true
			}
		case 4:
			if c.takesIntegers() && c.holds(false, x) {
				return c.appendInteger(dst, false, x), true
			}
		}
	case typ == protowire.Fixed64Type && number == 5 && c.field == doubleField && len(body) == 8:
		return append(append(dst, tagDouble), body...), true
	case typ == protowire.BytesType:
		text, size := protowire.ConsumeBytes(body)
		if size != len(body) {
			return dst, false
		}
		switch {
		case number == 7 && c.field == bytesField:
			return appendBytes(dst, text), true
		case number != 6 || !utf8.Valid(text):
		case c.id == Ydb.Type_UTF8 && c.field == textField, c.id == Ydb.Type_JSON && c.field == textField,
			c.id == Ydb.Type_JSON_DOCUMENT && c.field == textField:
			return appendText(dst, text), true
		case c.id == Ydb.Type_STRING && c.field == bytesField:
			return appendBytes(dst, text), true
		}
	}
	return dst, false
}

// name moves over a member's name. The result is good until the next call.
func (r *reader) name() ([]byte, error) {
	if r.peek() != '"' {
		return nil, r.syntax("expected a name in quotes")
	}
	if text, ok := r.plain(); ok {
		return text, nil
	}
	s, err := r.str()
	return []byte(s), err
}

// plain moves over a string without escapes, if there is one next.
func (r *reader) plain() ([]byte, bool) {
	ascii := true
	for i := r.pos + 1; i < len(r.data); i++ {
		switch c := r.data[i]; {
		case c == '"':
			text := r.data[r.pos+1 : i]
			if !ascii && !utf8.Valid(text) {
				return nil, false
			}
			r.pos = i + 1
			return text, true
		case c == '\\' || c < ' ':
			return nil, false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, false
}

// cell appends the bytes of the next value.
func (r *reader) cell(dst []byte, c *cellType) ([]byte, error) {
	first := r.peek()
	start := r.pos
	if out, ok := r.quick(dst, c, first); ok {
		return out, nil
	}
	// The long way also finds the words for what is wrong.
	r.pos = start
	if first == '{' {
		raw, err := r.skip(1)
		if err != nil {
			return dst, err
		}
		v, err := paramJSON(raw, c.t, mostInCell)
		if err != nil {
			return dst, err
		}
		return AppendValue(dst, v.GetValue())
	}
	v, err := r.value(c.t)
	if err != nil {
		return dst, err
	}
	return AppendValue(dst, v)
}

// quick appends the values that nearly all rows are made of; false if this is another.
func (r *reader) quick(dst []byte, c *cellType, first byte) ([]byte, bool) {
	if first == 'n' && c.optional {
		w, err := r.word()
		return appendNull(dst), err == nil && w == "null"
	}
	switch c.field {
	case boolField:
		w, err := r.word()
		return appendBool(dst, w == "true"), err == nil && w != "null"
	case int32Field, uint32Field, int64Field, uint64Field:
		text := first == '"'
		if text {
			if !isInteger(c.id) {
				return dst, false // a date
			}
			r.pos++
		}
		neg, magnitude, ok := r.integer(text)
		if !ok || !c.holds(neg, magnitude) {
			return dst, false
		}
		return c.appendInteger(dst, neg, magnitude), true
	case doubleField, floatField:
		if first != '-' && !isDigit(first) {
			return dst, false
		}
		n, err := r.number()
		if err != nil {
			return dst, false
		}
		if c.field == floatField {
			f, err := strconv.ParseFloat(string(n), 32)
			return appendSingle(dst, float32(f)), err == nil
		}
		f, err := strconv.ParseFloat(string(n), 64)
		return appendDouble(dst, f), err == nil
	case textField:
		switch c.id {
		case Ydb.Type_UTF8, Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT:
			if first == '"' {
				if text, ok := r.plain(); ok {
					return appendText(dst, text), true
				}
			}
		}
	}
	return dst, false
}

// integer moves over a plain integer, and the quote behind it if it is text.
func (r *reader) integer(text bool) (neg bool, magnitude uint64, ok bool) {
	if r.at() == '-' {
		neg = true
		r.pos++
	}
	start := r.pos
	for r.pos < len(r.data) && isDigit(r.data[r.pos]) {
		magnitude = magnitude*10 + uint64(r.data[r.pos]-'0')
		r.pos++
	}
	if n := r.pos - start; n == 0 || n > 19 || (n > 1 && r.data[start] == '0') {
		return false, 0, false
	}
	switch c := r.at(); {
	case text:
		r.pos++
		return neg, magnitude, c == '"'
	default:
		return neg, magnitude, c != '.' && c != 'e' && c != 'E'
	}
}

// holds tells whether the type has room for a number.
func (c *cellType) holds(neg bool, magnitude uint64) bool {
	if neg {
		return magnitude <= uint64(-c.low)
	}
	return magnitude <= c.high
}

func (c *cellType) appendInteger(dst []byte, neg bool, magnitude uint64) []byte {
	if neg {
		magnitude = -magnitude
	}
	switch c.field {
	case int32Field:
		return binary.LittleEndian.AppendUint32(append(dst, tagInt32), uint32(magnitude))
	case uint32Field:
		return binary.LittleEndian.AppendUint32(append(dst, tagUint32), uint32(magnitude))
	case int64Field:
		return binary.LittleEndian.AppendUint64(append(dst, tagInt64), magnitude)
	default:
		return binary.LittleEndian.AppendUint64(append(dst, tagUint64), magnitude)
	}
}

// appendCell appends the bytes of a value of the gRPC API.
func appendCell(dst []byte, v *sidecarv1.Value, c *cellType) ([]byte, error) {
	switch x := v.GetKind().(type) {
	case *sidecarv1.Value_NullValue:
		if c.optional {
			return appendNull(dst), nil
		}
	case *sidecarv1.Value_BoolValue:
		if c.field == boolField {
			return appendBool(dst, x.BoolValue), nil
		}
	case *sidecarv1.Value_Int64Value:
		if neg := x.Int64Value < 0; c.takesIntegers() && c.holds(neg, magnitudeOf(x.Int64Value)) {
			return c.appendInteger(dst, neg, magnitudeOf(x.Int64Value)), nil
		}
	case *sidecarv1.Value_Uint64Value:
		if c.takesIntegers() && c.holds(false, x.Uint64Value) {
			return c.appendInteger(dst, false, x.Uint64Value), nil
		}
	case *sidecarv1.Value_DoubleValue:
		if c.field == doubleField {
			return appendDouble(dst, x.DoubleValue), nil
		}
	case *sidecarv1.Value_TextValue:
		switch c.id {
		case Ydb.Type_UTF8, Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT:
			if c.field == textField {
				return appendText(dst, x.TextValue), nil
			}
		case Ydb.Type_STRING:
			if c.field == bytesField {
				return appendBytes(dst, x.TextValue), nil
			}
		}
	case *sidecarv1.Value_BytesValue:
		if c.field == bytesField {
			return appendBytes(dst, x.BytesValue), nil
		}
	}
	wire, err := FromValue(v, c.t)
	if err != nil {
		return dst, err
	}
	return AppendValue(dst, wire)
}

func (c *cellType) takesIntegers() bool {
	switch c.field {
	case int32Field, uint32Field, int64Field, uint64Field:
		return true
	}
	return false
}

// The tags of Ydb.Value: number of the field and wire type, in one byte each.
const (
	tagBool   = 1<<3 | byte(protowire.VarintType)
	tagInt32  = 2<<3 | byte(protowire.Fixed32Type)
	tagUint32 = 3<<3 | byte(protowire.Fixed32Type)
	tagInt64  = 4<<3 | byte(protowire.Fixed64Type)
	tagUint64 = 5<<3 | byte(protowire.Fixed64Type)
	tagFloat  = 6<<3 | byte(protowire.Fixed32Type)
	tagDouble = 7<<3 | byte(protowire.Fixed64Type)
	tagBytes  = 8<<3 | byte(protowire.BytesType)
	tagText   = 9<<3 | byte(protowire.BytesType)
	tagNull   = 10<<3 | byte(protowire.VarintType)
)

func appendNull(dst []byte) []byte { return append(dst, tagNull, 0) }

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, tagBool, 1)
	}
	return append(dst, tagBool, 0)
}

func appendSingle(dst []byte, f float32) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, tagFloat), math.Float32bits(f))
}

func appendDouble(dst []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, tagDouble), math.Float64bits(f))
}

func appendText[T []byte | string](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(append(dst, tagText), uint64(len(s))), s...)
}

func appendBytes[T []byte | string](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(append(dst, tagBytes), uint64(len(s))), s...)
}

// AppendValue appends the bytes of a value that this package made. Text that is not UTF-8 is an error.
func AppendValue(dst []byte, v *Ydb.Value) ([]byte, error) {
	switch x := v.GetValue().(type) {
	case *Ydb.Value_BoolValue:
		return appendBool(dst, x.BoolValue), nil
	case *Ydb.Value_DoubleValue:
		return appendDouble(dst, x.DoubleValue), nil
	case *Ydb.Value_Int32Value:
		return binary.LittleEndian.AppendUint32(append(dst, tagInt32), uint32(x.Int32Value)), nil
	case *Ydb.Value_Uint32Value:
		return binary.LittleEndian.AppendUint32(append(dst, tagUint32), x.Uint32Value), nil
	case *Ydb.Value_Int64Value:
		return binary.LittleEndian.AppendUint64(append(dst, tagInt64), uint64(x.Int64Value)), nil
	case *Ydb.Value_Uint64Value:
		return binary.LittleEndian.AppendUint64(append(dst, tagUint64), x.Uint64Value), nil
	case *Ydb.Value_TextValue:
		if utf8.ValidString(x.TextValue) {
			return appendText(dst, x.TextValue), nil
		}
	case *Ydb.Value_BytesValue:
		return appendBytes(dst, x.BytesValue), nil
	}
	out, err := proto.MarshalOptions{}.MarshalAppend(dst, v)
	if err != nil {
		return dst, errorf("the value cannot be sent: %v", err)
	}
	return out, nil
}

// AppendSortKey appends bytes that sort as the values of a type do, given the bytes
// of one value as Rows makes them: two values are the same if and only if their
// bytes are, and none is the beginning of another one's. ok is false for types
// whose equal values have more than one form, and for those that cannot be keys.
func AppendSortKey(dst, value []byte, t *Ydb.Type) (_ []byte, ok bool) {
	if o := t.GetOptionalType(); o != nil {
		if len(value) > 0 && value[0] == tagNull {
			return append(dst, 0), true
		}
		dst, t = append(dst, 1), o.GetItem()
	}
	if t.GetDecimalType() != nil {
		low, high, ok := proto128(value)
		if !ok {
			return dst, false
		}
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, high^1<<63), low), true
	}
	x, plain := t.GetType().(*Ydb.Type_TypeId)
	if !plain || len(value) == 0 {
		return dst, false
	}
	body := value[1:]
	switch fieldOf(x.TypeId) {
	case boolField:
		return append(dst, body...), true
	case int32Field:
		return binary.BigEndian.AppendUint32(dst, binary.LittleEndian.Uint32(body)^1<<31), true
	case uint32Field:
		return binary.BigEndian.AppendUint32(dst, binary.LittleEndian.Uint32(body)), true
	case int64Field:
		return binary.BigEndian.AppendUint64(dst, binary.LittleEndian.Uint64(body)^1<<63), true
	case uint64Field:
		return binary.BigEndian.AppendUint64(dst, binary.LittleEndian.Uint64(body)), true
	case uuidField:
		low, high, ok := proto128(value)
		if !ok {
			return dst, false
		}
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, low), high), true
	}
	if x.TypeId != Ydb.Type_UTF8 && x.TypeId != Ydb.Type_STRING {
		return dst, false
	}
	_, n := binary.Uvarint(body)
	for _, c := range body[n:] {
		if dst = append(dst, c); c == 0 {
			dst = append(dst, 0xff) // so that the end, 0 0, sorts before it
		}
	}
	return append(dst, 0, 0), true
}

// proto128 reads a value of 128 bits: the fields low_128 and high_128.
func proto128(value []byte) (low, high uint64, ok bool) {
	for len(value) > 0 {
		number, typ, n := protowire.ConsumeTag(value)
		if n < 0 || typ != protowire.Fixed64Type {
			return 0, 0, false
		}
		v, m := protowire.ConsumeFixed64(value[n:])
		if m < 0 {
			return 0, 0, false
		}
		switch number {
		case 15:
			low = v
		case 16:
			high = v
		}
		value = value[n+m:]
	}
	return low, high, true
}

// SortKeyType tells whether AppendSortKey knows the values of a type.
func SortKeyType(t *Ydb.Type) bool {
	if o := t.GetOptionalType(); o != nil {
		t = o.GetItem()
	}
	if t.GetDecimalType() != nil {
		return true
	}
	x, plain := t.GetType().(*Ydb.Type_TypeId)
	if !plain {
		return false
	}
	switch fieldOf(x.TypeId) {
	case boolField, int32Field, uint32Field, int64Field, uint64Field, uuidField:
		return true
	}
	return x.TypeId == Ydb.Type_UTF8 || x.TypeId == Ydb.Type_STRING
}
