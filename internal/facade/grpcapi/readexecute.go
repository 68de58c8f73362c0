package grpcapi

import (
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Execute in a turn builds no ExecuteRequest: package proto reads maps by reflection, and each scalar
// would become a message only to be converted into another one. Scalars keep their bytes; only the tag
// changes (yql.AppendScalar).

// mostRead is how many parameters are read by hand. They are found by a linear search, so more are left to package proto.
const mostRead = 64

// readRequest is what was read of a call of Execute.
type readRequest struct {
	core.ExecuteRequest
	values readValues
	tx     core.TxSelector
}

// readValues are the parameters of a request that was read.
type readValues struct {
	list  []readValue
	depth int // how deep they may nest
	room  [4]readValue
	raw   []byte // copies of the bytes of scalars: the request's own are the shard's
	bytes [64]byte
}

type readValue struct {
	name  string
	raw   []byte           // of a scalar
	value *sidecarv1.Value // anything else; nil: it is a scalar
}

// count is how many values there are, those within others included.
func (v *readValues) count() (n int) {
	for i := range v.list {
		if v.list[i].value == nil {
			n++
		} else {
			n += valuesIn(v.list[i].value, 0)
		}
	}
	return n
}

func (v *readValues) find(name string) *readValue {
	for i := range v.list {
		if v.list[i].name == name {
			return &v.list[i]
		}
	}
	return nil
}

func (v *readValues) Names() []string {
	names := make([]string, len(v.list))
	for i := range v.list {
		names[i] = v.list[i].name
	}
	return names
}

func (v *readValues) Typed(name string, t *Ydb.Type) (*Ydb.TypedValue, error) {
	one := v.find(name)
	value := one.value
	if value == nil {
		value = new(sidecarv1.Value)
		if err := proto.Unmarshal(one.raw, value); err != nil {
			return nil, err // cannot be: yql.IsScalar took these bytes
		}
	}
	return protoTyped(name, value, t, v.depth)
}

func (v *readValues) AddScalar(p *upstream.Params, name, full string, t *Ydb.Type) bool {
	one := v.find(name)
	return one.value == nil && p.AddScalar(full, one.raw, t)
}

// add keeps an entry of the map of parameters. False: package proto has to read it.
func (v *readValues) add(entry []byte) bool {
	name, value, ok := mapEntry(entry)
	if !ok || len(v.list) == mostRead {
		return false
	}
	if v.list == nil {
		v.list, v.raw = v.room[:0], v.bytes[:0]
	}
	one := readValue{name: string(name)}
	if v.find(one.name) != nil {
		return false
	}
	if yql.IsScalar(value) {
		at := len(v.raw)
		v.raw = append(v.raw, value...)
		one.raw = v.raw[at:len(v.raw):len(v.raw)]
	} else {
		one.value = new(sidecarv1.Value)
		if proto.Unmarshal(value, one.value) != nil {
			return false
		}
	}
	v.list = append(v.list, one)
	return true
}

// read reads an ExecuteRequest. False: there is something unusual (an unknown field, a field twice,
// text that is not UTF-8); package proto has to read all of it.
func (r *readRequest) read(message []byte) bool {
	// The fields of ExecuteRequest.
	const sql, params, types, mode, tx, idempotent, timeout, limits, stats, priority = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
	r.Params = &r.values
	return eachField(message, func(f field) bool {
		switch f.number {
		case sql:
			return f.text(&r.SQL)
		case params:
			return f.isBytes() && r.values.add(f.bytes)
		case types:
			return f.isBytes() && r.addType(f.bytes)
		case mode:
			return f.text(&r.Mode)
		case tx:
			once := r.ExecuteRequest.Tx == nil
			r.ExecuteRequest.Tx = &r.tx
			return once && f.isBytes() && readSelector(&r.tx, f.bytes)
		case idempotent:
			return f.flag(&r.Idempotent)
		case timeout:
			return f.text(&r.Timeout)
		case limits:
			return f.isBytes() && readLimits(&r.Limits, f.bytes)
		case stats:
			return f.text(&r.Stats)
		case priority:
			return f.text(&r.Priority)
		}
		return false
	})
}

// addType keeps an entry of the map of types.
func (r *readRequest) addType(entry []byte) bool {
	name, text, ok := mapEntry(entry)
	if !ok || !utf8.Valid(text) {
		return false
	}
	if r.Types == nil {
		r.Types = make(map[string]string)
	}
	r.Types[string(name)] = string(text)
	return true
}

// readSelector reads a TxSelector.
func readSelector(t *core.TxSelector, message []byte) bool {
	const begin, id, seq, commit = 1, 2, 3, 4
	return eachField(message, func(f field) bool {
		switch f.number {
		case begin:
			once := !t.Begin
			t.Begin = true
			return once && f.isBytes() && readTexts(f.bytes, &t.Mode)
		case id:
			return f.text(&t.ID)
		case seq:
			return f.whole(&t.Seq)
		case commit:
			return f.flag(&t.Commit)
		}
		return false
	})
}

// readLimits reads a Limits, as if it followed those that were read before.
func readLimits(l *core.Limits, message []byte) bool {
	const rows, bytes = 1, 2
	return eachField(message, func(f field) bool {
		return f.number == rows && f.whole(&l.Rows) || f.number == bytes && f.whole(&l.Bytes)
	})
}

// field is one of a message.
type field struct {
	number protowire.Number
	typ    protowire.Type
	bytes  []byte // of BytesType
	n      uint64 // of VarintType
}

// eachField calls take with each field of a message. False: take returned false, the message is malformed, or a field is
// neither a varint nor bytes.
func eachField(message []byte, take func(field) bool) bool {
	for len(message) > 0 {
		var f field
		n, size := 0, -1
		if f.number, f.typ, n = protowire.ConsumeTag(message); n < 0 {
			return false
		}
		switch f.typ {
		case protowire.BytesType:
			f.bytes, size = protowire.ConsumeBytes(message[n:])
		case protowire.VarintType:
			f.n, size = protowire.ConsumeVarint(message[n:])
		}
		if size < 0 || !take(f) {
			return false
		}
		message = message[n+size:]
	}
	return true
}

func (f field) isBytes() bool { return f.typ == protowire.BytesType }

// text, flag and whole store the field as a string, a bool and a number. False: its wire type is another one.
func (f field) text(s *string) bool {
	if !f.isBytes() || !utf8.Valid(f.bytes) {
		return false
	}
	*s = string(f.bytes)
	return true
}

func (f field) flag(b *bool) bool {
	*b = f.n != 0
	return f.typ == protowire.VarintType
}

func (f field) whole(n *uint64) bool {
	*n = f.n
	return f.typ == protowire.VarintType
}

// mapEntry reads an entry of a map whose names are text, and whose values are bytes. False: encoders do not write it so.
func mapEntry(entry []byte) (name, value []byte, ok bool) {
	name, entry = only(entry, 1)
	value, entry = only(entry, 2)
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
