package yql

import (
	"iter"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Named reads a row of the gRPC API from the bytes of a sidecarv1.BulkRow, whose columns are a map.
// Of a column that stands twice the last value counts, as in every map of protobuf.
func (rows *Rows) Named(row []byte, into *Cells) error {
	into.reset(len(rows.cells))
	for number, entry := range Fields(row) {
		switch number {
		case 0:
			return errNoMessage
		case 1:
			if err := rows.cell(entry, into); err != nil {
				return err
			}
		default:
			return UnknownField(number, bulkRowName)
		}
	}
	return nil
}

// cell reads an entry of a row's map.
func (rows *Rows) cell(entry []byte, into *Cells) error {
	var name, value []byte
	for number, b := range Fields(entry) {
		switch number {
		case 0:
			return errNoMessage
		case 1:
			name = b
		case 2:
			if value == nil {
				value = b
			} else { // which is what merging messages is
				value = slices.Concat(value, b)
			}
		default:
			return UnknownField(number, bulkRowName)
		}
	}
	i, ok := into.find(rows, name)
	if !ok {
		return noColumn(string(name))
	}
	c := &rows.cells[i]
	start := len(into.Bytes)
	var err error
	if into.Bytes, err = appendCellEncoded(into.Bytes, value, c); err != nil {
		return inMember(err, c.name)
	}
	into.set(i, start)
	return nil
}

// deepest is how deep Messages looks; no value that is taken nests so deep.
const deepest = 1000

// Messages counts the messages that are within one, and stops beyond most. False: they nest deeper than any that is taken.
func Messages(d protoreflect.MessageDescriptor, message []byte, most int) (n int, ok bool) {
	ok = countMessages(d, message, most, deepest, &n)
	return n, ok
}

func countMessages(d protoreflect.MessageDescriptor, message []byte, most, depth int, n *int) bool {
	if depth == 0 {
		return false
	}
	for number, inner := range Fields(message) {
		f := d.Fields().ByNumber(number)
		if f == nil || f.Message() == nil {
			continue
		}
		if *n++; *n > most {
			return true
		}
		if !countMessages(f.Message(), inner, most, depth-1, n) {
			return false
		}
	}
	return true
}

// Fields returns the fields of a message of protobuf in turn, those that are not length-delimited with nil, and number 0
// at its end if it is none.
func Fields(message []byte) iter.Seq2[protowire.Number, []byte] {
	return func(yield func(protowire.Number, []byte) bool) {
		for len(message) > 0 {
			number, typ, size := protowire.ConsumeTag(message)
			length := -1
			if size >= 0 {
				length = protowire.ConsumeFieldValue(number, typ, message[size:])
			}
			if length < 0 {
				yield(0, nil)
				return
			}
			var b []byte
			if typ == protowire.BytesType {
				b, _ = protowire.ConsumeBytes(message[size:])
			}
			if !yield(number, b) {
				return
			}
			message = message[size+length:]
		}
	}
}

// Items calls f for each item of a JSON list.
func Items(list []byte, f func(item []byte) error) error {
	s := scanner{data: list}
	if err := s.list(func(int) error {
		item, err := s.skip(1)
		if err != nil {
			return err
		}
		return f(item)
	}); err != nil {
		return err
	}
	return s.end()
}

// Member returns where the value of an object's member is; ok is false if the object does not have it.
func Member(object []byte, name string) (at Span, ok bool, err error) {
	s := scanner{data: object}
	err = s.object(func(n string) error {
		value, err := s.skip(1)
		if n == name {
			at, ok = Span{s.pos - len(value), s.pos}, true
		}
		return err
	})
	if err == nil {
		err = s.end()
	}
	return at, ok, err
}
