package facade

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// decode is proto.Unmarshal, except that it reads the map of a statement's parameters itself: package proto reads maps by reflection.
func decode(message []byte, into proto.Message) error {
	req, ok := into.(*sidecarv1.ExecuteRequest)
	if !ok {
		return proto.Unmarshal(message, into)
	}
	const fieldParams = 2 // of ExecuteRequest
	others := message     // from the first field that is not merged yet
	for rest := message; len(rest) > 0; {
		number, typ, size := protowire.ConsumeField(rest)
		if size < 0 {
			break // package proto says why
		}
		entry := rest[:size]
		rest = rest[size:]
		if number != fieldParams || typ != protowire.BytesType {
			continue
		}
		name, value, ok := parameter(entry)
		if !ok {
			continue
		}
		if err := merge(others[:len(others)-len(rest)-size], req); err != nil {
			return err
		}
		others = rest
		v := new(sidecarv1.Value)
		if err := proto.Unmarshal(value, v); err != nil {
			return err
		}
		if req.Params == nil {
			req.Params = make(map[string]*sidecarv1.Value)
		}
		req.Params[string(name)] = v
	}
	return merge(others, req)
}

func merge(fields []byte, into proto.Message) error {
	if len(fields) == 0 {
		return nil
	}
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(fields, into)
}

// parameter reads one entry of the map, with its tag. False: encoders do not write it so, and package proto reads it.
func parameter(field []byte) (name, value []byte, ok bool) {
	const fieldName, fieldValue = 1, 2 // of each entry of a map
	_, _, n := protowire.ConsumeTag(field)
	entry, _ := protowire.ConsumeBytes(field[n:])
	name, entry = only(entry, fieldName)
	value, entry = only(entry, fieldValue)
	return name, value, name != nil && value != nil && len(entry) == 0 && utf8.Valid(name)
}

// only reads a field that must have this number, and returns what follows. nil: the next field is another.
func only(message []byte, number protowire.Number) (value, rest []byte) {
	got, typ, n := protowire.ConsumeTag(message)
	if n < 0 || got != number || typ != protowire.BytesType {
		return nil, nil
	}
	value, size := protowire.ConsumeBytes(message[n:])
	if size < 0 {
		return nil, nil
	}
	return value, message[n+size:]
}
