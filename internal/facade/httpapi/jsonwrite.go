package httpapi

import (
	"context"
	"encoding/json"
	"math"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// format is how the caller wants its rows.
type format struct {
	arrays bool // rows as arrays; else as objects
	json   yql.JSONOptions
}

// jsonSink gathers results as JSON, straight from the wire's values.
type jsonSink struct {
	format
	sets []*jsonSet
}

type jsonSet struct {
	columns *yql.Columns
	rows    pieces // of the array, without its brackets
	cut     bool
}

// pieces are the bytes of an answer. Large ones are neither moved when they grow nor copied when they go out.
type pieces struct {
	full [][]byte
	last []byte
}

// pieceBytes is when a piece is full.
const pieceBytes = 128 << 10

// fill begins another piece if the last one is full.
func (p *pieces) fill() {
	if len(p.last) >= pieceBytes {
		p.full, p.last = append(p.full, p.last), make([]byte, 0, pieceBytes+pieceBytes/8)
	}
}

// add adds the bytes of others: small ones as a copy, large ones as they are.
func (p *pieces) add(others *pieces) {
	if len(others.full) == 0 {
		p.last = append(p.last, others.last...)
		p.fill()
		return
	}
	p.full, p.last = append(append(append(p.full, p.last), others.full...), others.last), nil
}

// all returns the pieces in order.
func (p *pieces) all() [][]byte { return append(p.full, p.last) }

func (p *pieces) held() int {
	n := cap(p.last)
	for _, piece := range p.full {
		n += cap(piece)
	}
	return n
}

func (j *jsonSink) Begin(_ context.Context, columns *yql.Columns) error {
	j.sets = append(j.sets, &jsonSet{columns: columns})
	return nil
}

func (j *jsonSink) Rows(_ context.Context, rows [][]byte) (err error) {
	set := j.sets[len(j.sets)-1]
	for _, row := range rows {
		b := set.rows.last
		if len(b) > 0 || len(set.rows.full) > 0 {
			b = append(b, ',')
		}
		if set.rows.last, err = j.appendRow(b, set.columns, row); err != nil {
			return err
		}
		set.rows.fill()
	}
	return nil
}

func (j *jsonSink) Held() (n int) {
	for _, set := range j.sets {
		n += set.rows.held()
	}
	return n
}

func (j *jsonSink) Cut() { j.sets[len(j.sets)-1].cut = true }

func (j *jsonSink) Again() bool {
	j.sets = nil
	return true
}

// appendTo writes the members columns, rows, truncated and, if there is more than
// one result set, sets.
func (j *jsonSink) appendTo(p *pieces) {
	if len(j.sets) == 0 {
		p.last = append(p.last, `"columns":[],"rows":[],"truncated":false`...)
		return
	}
	j.sets[0].appendTo(p)
	if len(j.sets) == 1 {
		return
	}
	p.last = append(p.last, `,"sets":[`...)
	for i, set := range j.sets {
		if i > 0 {
			p.last = append(p.last, ',')
		}
		p.last = append(p.last, '{')
		set.appendTo(p)
		p.last = append(p.last, '}')
	}
	p.last = append(p.last, ']')
}

func (s *jsonSet) appendTo(p *pieces) {
	p.last = s.columns.AppendHeader(append(p.last, `"columns":`...))
	p.last = append(p.last, `,"rows":[`...)
	p.add(&s.rows)
	p.last = strconv.AppendBool(append(p.last, `],"truncated":`...), s.cut)
}

// appendRow writes one row in the form that the caller wants.
func (f format) appendRow(b []byte, columns *yql.Columns, row []byte) (_ []byte, err error) {
	if f.arrays {
		b, err = columns.AppendArray(b, row, f.json)
	} else {
		b, err = columns.AppendObject(b, row, f.json)
	}
	return b, core.BadAnswer(err)
}

// appendText writes a JSON string.
func appendText(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			text, _ := json.Marshal(s) // cannot fail: invalid UTF-8 becomes U+FFFD
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// appendMember writes ,"name":message, or nothing if there is no message.
func appendMember(b []byte, name string, m proto.Message) []byte {
	if m == nil || !m.ProtoReflect().IsValid() {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return appendMessage(b, m.ProtoReflect())
}

// appendMessage writes a message of ours as JSON: every field under its name in
// the .proto, numbers as numbers, messages that are absent left out. It is for
// what is small and has no rows.
func appendMessage(b []byte, m protoreflect.Message) []byte {
	b = append(b, '{')
	fields := m.Descriptor().Fields()
	first := true
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(appendText(b, string(f.Name())), ':')
		if !f.IsList() {
			b = appendField(b, f, m.Get(f))
			continue
		}
		b = append(b, '[')
		list := m.Get(f).List()
		for i := range list.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendField(b, f, list.Get(i))
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

func appendField(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return appendMessage(b, v.Message())
	case protoreflect.StringKind:
		return appendText(b, v.String())
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool())
	case protoreflect.DoubleKind:
		return appendFloat(b, v.Float())
	case protoreflect.Int64Kind:
		return strconv.AppendInt(b, v.Int(), 10)
	default: // Uint32, Uint64: no other kind is used outside values
		return strconv.AppendUint(b, v.Uint(), 10)
	}
}

// appendFloat writes milliseconds and seconds: three digits behind the point are enough.
func appendFloat(b []byte, f float64) []byte {
	return strconv.AppendFloat(b, math.Round(f*1000)/1000, 'f', -1, 64)
}

// appendProblem writes a fault as RFC 9457 has it, with the members of sidecarv1.Error.
func appendProblem(b []byte, f *core.Fault, traceID string) []byte {
	body := f.Proto(traceID)
	b = append(b, `{"type":`...)
	b = appendText(b, f.Code.Link())
	b = append(b, `,"title":`...)
	b = appendText(b, f.Code.Title)
	b = append(b, `,"detail":`...)
	b = appendText(b, body.Message)
	b = append(b, ',')
	return append(b, appendMessage(nil, body.ProtoReflect())[1:]...)
}

// appendOutcome writes the members rows_affected, tx, info and stats, as far as there are such.
func appendOutcome(b []byte, done core.Outcome, info *sidecarv1.Info) []byte {
	if done.Affected != nil {
		b = strconv.AppendUint(append(b, `,"rows_affected":`...), *done.Affected, 10)
	}
	b = appendMember(b, "tx", done.Tx)
	b = appendMember(b, "info", info)
	return appendMember(b, "stats", done.Stats)
}
