package yql

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Named reads a row of the gRPC face from the octets of a sidecarv1.BulkRow, whose columns are a map.
// Of a column that stands twice the last value counts, as in every map of protobuf.
func (rows *Rows) Named(row []byte, into *Cells) error {
	into.reset(len(rows.cells))
	return eachMessage(row, 1, func(entry []byte) error {
		var name, value []byte
		if err := eachBytes(entry, func(number protowire.Number, b []byte) {
			switch number {
			case 1:
				name = b
			case 2:
				if value == nil {
					value = b
				} else { // which is what merging messages is
					value = slices.Concat(value, b)
				}
			}
		}); err != nil {
			return err
		}
		i, ok := into.find(rows, name)
		if !ok {
			return noColumn(string(name))
		}
		c := &rows.cells[i]
		start := len(into.Octets)
		var err error
		if into.Octets, err = appendCellWire(into.Octets, value, c); err != nil {
			return inMember(err, c.name)
		}
		into.Spans[i] = Span{start, len(into.Octets)}
		return nil
	})
}

// eachMessage calls f for the length-delimited fields of a number.
func eachMessage(message []byte, number protowire.Number, f func([]byte) error) error {
	var failed error
	err := eachBytes(message, func(n protowire.Number, b []byte) {
		if n == number && failed == nil {
			failed = f(b)
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// eachBytes calls f for all length-delimited fields.
func eachBytes(message []byte, f func(protowire.Number, []byte)) error {
	for len(message) > 0 {
		number, typ, size := protowire.ConsumeTag(message)
		if size < 0 {
			return errNoMessage
		}
		n := protowire.ConsumeFieldValue(number, typ, message[size:])
		if n < 0 {
			return errNoMessage
		}
		if typ == protowire.BytesType {
			b, _ := protowire.ConsumeBytes(message[size:])
			f(number, b)
		}
		message = message[size+n:]
	}
	return nil
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
