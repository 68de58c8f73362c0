package yql

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The rows of a result are taken as the bytes of a Ydb.Value, as they came, and written
// in either API's form without the messages in between. The cells that nearly all rows
// are made of are written from their bytes; the others, and whatever is wrong, the long
// way: as a message, by AppendJSON or ToValue.

// tagItem is the tag of Ydb.Value.items.
const tagItem = 12<<3 | byte(protowire.BytesType)

// nextItem takes the next item off the bytes of a value; false: there is none.
func nextItem(row []byte) (item, rest []byte, ok bool, err error) {
	for len(row) > 0 {
		if row[0] == tagItem {
			item, n := protowire.ConsumeBytes(row[1:])
			if n < 0 {
				return nil, nil, false, errNoMessage
			}
			return item, row[1+n:], true, nil
		}
		_, _, n := protowire.ConsumeField(row)
		if n < 0 {
			return nil, nil, false, errNoMessage
		}
		row = row[n:]
	}
	return nil, nil, false, nil
}

// each calls write for the cells of a row, which must be one for each column.
func (c *Columns) each(dst, row []byte, write func(dst, item []byte, i int) ([]byte, error)) ([]byte, error) {
	rest, n := row, 0
	for {
		item, more, ok, err := nextItem(rest)
		if err != nil {
			return dst, err
		}
		if !ok {
			break
		}
		if n < len(c.cells) {
			if dst, err = write(dst, item, n); err != nil {
				return dst, inMember(err, c.cells[n].name)
			}
		}
		rest = more
		n++
	}
	if n != len(c.cells) {
		return dst, errorf("the server sent a row of %d values for %d columns", n, len(c.cells))
	}
	return dst, nil
}

// AppendObject appends a row, given as the bytes of its Ydb.Value, as
// {"id":"1","name":"Ann"}. For columns of primitive types, Optional or not, and
// Decimal it allocates only to make dst longer.
func (c *Columns) AppendObject(dst, row []byte, o JSONOptions) ([]byte, error) {
	dst, err := c.each(append(dst, '{'), row, func(dst, item []byte, i int) ([]byte, error) {
		return appendCellJSON(append(appendComma(dst, i), c.keys[i]...), item, &c.cells[i], o)
	})
	return append(dst, '}'), err
}

// AppendArray appends a row as ["1","Ann"], like AppendObject.
func (c *Columns) AppendArray(dst, row []byte, o JSONOptions) ([]byte, error) {
	dst, err := c.each(append(dst, '['), row, func(dst, item []byte, i int) ([]byte, error) {
		return appendCellJSON(appendComma(dst, i), item, &c.cells[i], o)
	})
	return append(dst, ']'), err
}

func appendCellJSON(dst, item []byte, c *cellType, o JSONOptions) ([]byte, error) {
	if out, ok := quickJSON(dst, item, c, o); ok {
		return out, nil
	}
	v, err := parseValue(item)
	if err != nil {
		return dst, err
	}
	return AppendJSON(dst, v, c.t, o)
}

func parseValue(octets []byte) (*Ydb.Value, error) {
	v := new(Ydb.Value)
	if proto.Unmarshal(octets, v) != nil {
		return nil, errNoMessage
	}
	return v, nil
}

// quickJSON writes a cell from its bytes; false if only the long way can.
func quickJSON(dst, item []byte, c *cellType, o JSONOptions) ([]byte, bool) {
	if len(item) < 2 {
		return dst, false
	}
	tag, body := item[0], item[1:]
	if isNullItem(item, c) {
		return append(dst, "null"...), true
	}
	if c.decimal != nil {
		if low, high, ok := take128(item); ok {
			return append(appendDecimal(append(dst, '"'), high, low, c.decimal.GetScale()), '"'), true
		}
		return dst, false
	}
	switch c.field {
	case boolField:
		if tag == tagBool && len(body) == 1 {
			if body[0] == 0 {
				return append(dst, "false"...), true
			}
			return append(dst, "true"...), body[0] == 1
		}
	case int32Field, uint32Field, int64Field, uint64Field:
		if signed, unsigned, ok := takeInteger(item, c.field); ok {
			return appendIntegerJSON(dst, c.id, c.field, signed, unsigned, o), true
		}
	case floatField:
		if tag == tagFloat && len(body) == 4 {
			return appendFloat(dst, float64(math.Float32frombits(binary.LittleEndian.Uint32(body))), 32), true
		}
	case doubleField:
		if tag == tagDouble && len(body) == 8 {
			return appendFloat(dst, math.Float64frombits(binary.LittleEndian.Uint64(body)), 64), true
		}
	case textField:
		if text, ok := takeText(item); ok {
			return appendString(dst, text), true
		}
	case bytesField:
		if b, ok := takeBytes(item, tagBytes); ok && c.id != Ydb.Type_YSON {
			return append(base64.StdEncoding.AppendEncode(append(dst, '"'), b), '"'), true
		}
	case uuidField:
		if low, high, ok := take128(item); ok {
			return append(appendUUID(append(dst, '"'), low, high), '"'), true
		}
	}
	return dst, false
}

func isNullItem(item []byte, c *cellType) bool {
	return c.optional && len(item) == 2 && item[0] == tagNull && item[1] == 0
}

// takeInteger reads a cell that is one integer in the field that its type has.
func takeInteger(item []byte, f field) (signed int64, unsigned uint64, ok bool) {
	tag, body := item[0], item[1:]
	switch {
	case len(body) == 4 && tag == tagInt32:
		return int64(int32(binary.LittleEndian.Uint32(body))), 0, f == int32Field
	case len(body) == 4 && tag == tagUint32:
		return 0, uint64(binary.LittleEndian.Uint32(body)), f == uint32Field
	case len(body) == 8 && tag == tagInt64:
		return int64(binary.LittleEndian.Uint64(body)), 0, f == int64Field
	case len(body) == 8 && tag == tagUint64:
		return 0, binary.LittleEndian.Uint64(body), f == uint64Field
	}
	return 0, 0, false
}

func takeBytes(item []byte, tag byte) ([]byte, bool) {
	if item[0] != tag {
		return nil, false
	}
	b, n := protowire.ConsumeBytes(item[1:])
	return b, n == len(item)-1
}

func takeText(item []byte) ([]byte, bool) {
	text, ok := takeBytes(item, tagText)
	return text, ok && utf8.Valid(text)
}

// take128 reads a cell of two halves, low_128 and, unless it is 0, high_128: programs in
// C++ write them in this order, those in Go in the other.
func take128(item []byte) (low, high uint64, ok bool) {
	const (
		tagLow  = 15<<3 | byte(protowire.Fixed64Type)
		tagHigh = (16<<3|uint16(protowire.Fixed64Type))&0x7f | 0x80 | 16<<3>>7<<8 // of two bytes, the first one low
		halves  = 1 + 8 + 2 + 8
	)
	isLow := func(b []byte) bool { return b[0] == tagLow }
	isHigh := func(b []byte) bool { return binary.LittleEndian.Uint16(b) == tagHigh }
	half := binary.LittleEndian.Uint64
	switch {
	case len(item) == 9 && isLow(item):
		return half(item[1:]), 0, true
	case len(item) == halves && isLow(item) && isHigh(item[9:]):
		return half(item[1:]), half(item[11:]), true
	case len(item) == halves && isHigh(item) && isLow(item[10:]):
		return half(item[11:]), half(item[2:]), true
	}
	return 0, 0, false
}

// The tags of sidecarv1.Value, and of the fields that lead to it.
const (
	tagRows       = 2<<3 | byte(protowire.BytesType) // of every message with rows
	tagValues     = 1<<3 | byte(protowire.BytesType) // of Row
	tagPlainNull  = 1<<3 | byte(protowire.VarintType)
	tagPlainBool  = 2<<3 | byte(protowire.VarintType)
	tagPlainInt   = 3<<3 | byte(protowire.VarintType)
	tagPlainUint  = 4<<3 | byte(protowire.VarintType)
	tagPlainFloat = 5<<3 | byte(protowire.Fixed64Type)
	tagPlainText  = 6<<3 | byte(protowire.BytesType)
	tagPlainBytes = 7<<3 | byte(protowire.BytesType)
)

// AppendRow appends a row, given as the bytes of its Ydb.Value, as the bytes of one
// more element of the field rows of the messages of the gRPC API that have rows. For
// columns of primitive types, Optional or not, and Decimal it allocates only to make dst longer.
func (c *Columns) AppendRow(dst, row []byte) ([]byte, error) {
	start := len(dst)
	// The length goes before what is not written yet. It is guessed, and put right.
	guess := protowire.SizeVarint(uint64(len(row)))
	dst = append(append(dst, tagRows), make([]byte, guess)...)
	body := len(dst)
	dst, err := c.each(dst, row, func(dst, item []byte, i int) ([]byte, error) { return appendCellPlain(dst, item, &c.cells[i]) })
	if err != nil {
		return dst[:start], err
	}
	size := len(dst) - body
	if need := protowire.SizeVarint(uint64(size)); need != guess {
		if need > guess {
			dst = append(dst, make([]byte, need-guess)...)
		}
		copy(dst[body-guess+need:], dst[body:body+size])
		dst = dst[:body-guess+need+size]
	}
	protowire.AppendVarint(dst[:start+1], uint64(size))
	return dst, nil
}

func appendCellPlain(dst, item []byte, c *cellType) ([]byte, error) {
	if out, ok := quickPlain(dst, item, c); ok {
		return out, nil
	}
	wire, err := parseValue(item)
	if err != nil {
		return dst, err
	}
	v, err := ToValue(wire, c.t)
	if err != nil {
		return dst, err
	}
	return appendPlain(dst, v)
}

func appendPlain(dst []byte, v *sidecarv1.Value) ([]byte, error) {
	dst = binary.AppendUvarint(append(dst, tagValues), uint64(proto.Size(v)))
	dst, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(dst, v)
	if err != nil {
		return dst, errorf("the value cannot be sent: %v", err)
	}
	return dst, nil
}

// quickPlain writes a cell from its bytes; false if only the long way can.
func quickPlain(dst, item []byte, c *cellType) ([]byte, bool) {
	if len(item) < 2 {
		return dst, false
	}
	tag, body := item[0], item[1:]
	if isNullItem(item, c) {
		return append(dst, tagValues, 2, tagPlainNull, 1), true
	}
	if c.decimal != nil {
		low, high, ok := take128(item)
		if !ok {
			return dst, false
		}
		return appendPlainText(dst, func(b []byte) []byte { return appendDecimal(b, high, low, c.decimal.GetScale()) })
	}
	switch c.field {
	case boolField:
		if tag == tagBool && len(body) == 1 && body[0] <= 1 {
			return append(dst, tagValues, 2, tagPlainBool, body[0]), true
		}
	case int32Field, uint32Field, int64Field, uint64Field:
		signed, unsigned, ok := takeInteger(item, c.field)
		if !ok {
			return dst, false
		}
		if !isInteger(c.id) {
			return appendPlainText(dst, func(b []byte) []byte { return appendTime(b, c.id, signed, unsigned) })
		}
		kind := byte(tagPlainUint)
		if c.field == int32Field || c.field == int64Field {
			kind, unsigned = tagPlainInt, uint64(signed)
		}
		return protowire.AppendVarint(append(dst, tagValues, byte(1+protowire.SizeVarint(unsigned)), kind), unsigned), true
	case floatField:
		if tag == tagFloat && len(body) == 4 {
			wide := math.Float64bits(float64(math.Float32frombits(binary.LittleEndian.Uint32(body))))
			return binary.LittleEndian.AppendUint64(append(dst, tagValues, 9, tagPlainFloat), wide), true
		}
	case doubleField:
		if tag == tagDouble && len(body) == 8 {
			return append(append(dst, tagValues, 9, tagPlainFloat), body...), true
		}
	case textField:
		if text, ok := takeText(item); ok {
			return appendPlainBytes(dst, tagPlainText, text), true
		}
	case bytesField:
		if b, ok := takeBytes(item, tagBytes); ok && c.id != Ydb.Type_YSON {
			return appendPlainBytes(dst, tagPlainBytes, b), true
		}
	case uuidField:
		if low, high, ok := take128(item); ok {
			return appendPlainText(dst, func(b []byte) []byte { return appendUUID(b, low, high) })
		}
	}
	return dst, false
}

func appendPlainBytes(dst []byte, kind byte, b []byte) []byte {
	dst = binary.AppendUvarint(append(dst, tagValues), uint64(1+protowire.SizeBytes(len(b))))
	return append(binary.AppendUvarint(append(dst, kind), uint64(len(b))), b...)
}

// appendPlainText writes a text that is made of something else; false: it is too long for
// lengths of one byte, which no decimal, date or time is.
func appendPlainText(dst []byte, write func([]byte) []byte) ([]byte, bool) {
	start := len(dst)
	dst = write(append(dst, tagValues, 0, tagPlainText, 0))
	n := len(dst) - start - 4
	if n > 0x7f-2 {
		return dst[:start], false
	}
	dst[start+1], dst[start+3] = byte(n+2), byte(n)
	return dst, true
}
