package upstream

import (
	"errors"
	"slices"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Statement is what a session executes. It is encoded when it goes out, as an ExecuteQueryRequest, which is never built: its
// encoding by package proto took a tenth of the CPU of a point read.
type Statement struct {
	Text    string                         // YQL
	Params  *Params                        // nil: none
	Begin   *Ydb_Query.TransactionSettings // of the transaction that it opens; nil: it opens none
	Within  bool                           // it belongs to the open transaction TxID
	TxID    string
	Commit  bool // it ends the transaction of Begin or TxID
	Explain bool // only the plan is asked for; nothing runs
	Stats   Ydb_Query.StatsMode
	Part    int64  // most bytes of a part of the answer; 0: the node decides
	Pool    string // resource pool; "": that of the app
	Arrived func() // called for each piece of the answer that arrives, also within a part, with locks held; nil: no call
}

// controlled reports whether the statement says which transaction is its own. Otherwise the node makes one, and commits it.
func (st *Statement) controlled() bool { return st.Begin != nil || st.Within }

// Params are the parameters of a statement, as they go out. The zero value has none. It must not be copied.
type Params struct {
	all     []param
	encoded []byte // the field parameters, each with its tag
	err     error  // of the encoding

	room   [2]param // for what most statements have
	bytes  [96]byte
	prefix [96]byte // for what comes before a value
}

type param struct {
	name  string // with its dollar
	t     *Ydb.Type
	start int // in encoded
}

// ParamsOf are those of a map, in the order of their names. Errors of their encoding are those of the call that sends them.
func ParamsOf(values map[string]*Ydb.TypedValue) *Params {
	p := new(Params)
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p.Add(name, values[name])
	}
	return p
}

// Len is how many there are.
func (p *Params) Len() int {
	if p == nil {
		return 0
	}
	return len(p.all)
}

// At returns the name and the type of one.
func (p *Params) At(i int) (name string, t *Ydb.Type) { return p.all[i].name, p.all[i].t }

// Size is how many bytes they take on the heap, beside the object itself.
func (p *Params) Size() int {
	if p == nil || cap(p.encoded) <= len(p.bytes) {
		return 0
	}
	return cap(p.encoded)
}

// Encoded are all of them as they go out. They are not to be changed.
func (p *Params) Encoded() []byte {
	if p == nil {
		return nil
	}
	return p.encoded
}

// Add adds one, with a value of package yql.
func (p *Params) Add(name string, v *Ydb.TypedValue) {
	p.begin()
	start := len(p.encoded)
	if text := v.GetValue().GetTextValue(); len(text) > len(p.prefix) {
		p.encoded = slices.Grow(p.encoded, len(text)+len(p.prefix)) // once, with what comes before it
	} else if raw := v.GetValue().GetBytesValue(); len(raw) > len(p.prefix) {
		p.encoded = slices.Grow(p.encoded, len(raw)+len(p.prefix))
	}
	var err error
	if p.encoded, err = yql.AppendValue(p.encoded, v.GetValue()); p.err == nil {
		p.err = err
	}
	p.end(name, v.GetType(), start)
}

// AddScalar adds one by the bytes of its sidecarv1.Value, as yql.Param would make it. Its type is the
// declared one, or that of the plain rule. False: it is not one of yql.AppendScalar, and was not
// added.
func (p *Params) AddScalar(name string, value []byte, declared *Ydb.Type) bool {
	p.begin()
	start := len(p.encoded)
	encoded, t, ok := yql.AppendScalar(p.encoded, value, declared)
	if ok {
		p.encoded = encoded
		p.end(name, t, start)
	}
	return ok
}

// AddRaw adds one by the bytes of its text, or string of bytes: see yql.AppendRaw.
func (p *Params) AddRaw(name string, t *Ydb.Type, b []byte) error {
	p.begin()
	start := len(p.encoded)
	p.encoded = slices.Grow(p.encoded, len(b)+len(p.prefix))
	encoded, err := yql.AppendRaw(p.encoded, b, t)
	if err == nil {
		p.encoded = encoded
		p.end(name, t, start)
	}
	return err
}

// Clone returns a copy, to which others can be added.
func (p *Params) Clone() *Params {
	c := new(Params)
	c.begin()
	c.all, c.encoded, c.err = append(c.all, p.all...), append(c.encoded, p.encoded...), p.err
	return c
}

// begin gives all and encoded their first room.
func (p *Params) begin() {
	if p.all == nil {
		p.all, p.encoded = p.room[:0], p.bytes[:0]
	}
}

// end inserts what comes before the value of a parameter, which begins at start: name, type and lengths.
func (p *Params) end(name string, t *Ydb.Type, start int) {
	p.all = append(p.all, param{name, t, start})
	e := encoder{b: p.prefix[:0], err: p.err}
	value := len(p.encoded) - start
	id, primitive := t.GetType().(*Ydb.Type_TypeId)
	var typed int
	if primitive {
		typed = protowire.SizeTag(1) + protowire.SizeVarint(uint64(id.TypeId)) // a field of a oneof is written even if it is 0
	} else {
		typed = proto.Size(t)
	}
	size := sizeOfMessage(fieldTyped, typed) + sizeOfMessage(fieldValue, value)
	e.head(fieldParameters, protowire.SizeTag(fieldKey)+protowire.SizeBytes(len(name))+sizeOfMessage(fieldEntry, size))
	e.always(fieldKey, name)
	e.head(fieldEntry, size)
	e.head(fieldTyped, typed)
	if primitive {
		e.b = protowire.AppendVarint(protowire.AppendTag(e.b, 1, protowire.VarintType), uint64(id.TypeId))
	} else {
		e.cached(t)
	}
	e.head(fieldValue, value)
	p.encoded, p.err = slices.Insert(p.encoded, start, e.b...), e.err
}

// Truncate takes those away that were added after the first n.
func (p *Params) Truncate(n int) {
	if n < len(p.all) {
		p.encoded, p.all = p.encoded[:p.all[n].start], p.all[:n]
	}
}

// sending is a Statement as a session sends it.
type sending struct {
	Statement
	session string
}

// The numbers of the fields of ExecuteQueryRequest, of TransactionControl, of QueryContent, of TypedValue, and of an entry of a map.
const (
	fieldSession, fieldExecMode, fieldTxControl, fieldQuery = 1, 2, 3, 4
	fieldParameters, fieldStats, fieldPartLimit, fieldPool  = 6, 7, 9, 10
	fieldTxID, fieldBeginTx, fieldCommitTx                  = 1, 2, 10
	fieldSyntax, fieldText                                  = 1, 2
	fieldTyped, fieldValue                                  = 1, 2
	fieldKey, fieldEntry                                    = 1, 2
)

// append appends the bytes of an ExecuteQueryRequest, in the order of its fields.
func (st *sending) append(b []byte) ([]byte, error) {
	e := encoder{b: b}
	e.text(fieldSession, st.session)
	mode := Ydb_Query.ExecMode_EXEC_MODE_EXECUTE
	if st.Explain {
		mode = Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN
	}
	e.number(fieldExecMode, uint64(mode))
	if st.controlled() {
		e.control(&st.Statement)
	}
	const syntax = uint64(Ydb_Query.Syntax_SYNTAX_YQL_V1)
	e.head(fieldQuery, sizeOfNumber(fieldSyntax, syntax)+sizeOfText(fieldText, st.Text))
	e.number(fieldSyntax, syntax)
	e.text(fieldText, st.Text)
	if st.Params != nil {
		e.b = append(e.b, st.Params.encoded...)
		if e.err == nil {
			e.err = st.Params.err
		}
	}
	e.number(fieldStats, uint64(st.Stats))
	e.number(fieldPartLimit, uint64(st.Part))
	e.text(fieldPool, st.Pool)
	return e.b, e.err
}

// encoder appends fields of a message.
type encoder struct {
	b   []byte
	err error // the first; b is of no use then
}

func (e *encoder) head(field protowire.Number, size int) {
	e.b = protowire.AppendVarint(protowire.AppendTag(e.b, field, protowire.BytesType), uint64(size))
}

var errNotUTF8 = errors.New("upstream: text that is to be sent to a node is not valid UTF-8")

// text appends a field, if it is not empty.
func (e *encoder) text(field protowire.Number, s string) {
	if s != "" {
		e.always(field, s)
	}
}

// always appends a field of text.
func (e *encoder) always(field protowire.Number, s string) {
	if e.err == nil && !utf8.ValidString(s) {
		e.err = errNotUTF8
	}
	e.b = protowire.AppendString(protowire.AppendTag(e.b, field, protowire.BytesType), s)
}

// number appends a field, if it is not 0.
func (e *encoder) number(field protowire.Number, n uint64) {
	if n != 0 {
		e.b = protowire.AppendVarint(protowire.AppendTag(e.b, field, protowire.VarintType), n)
	}
}

// cached appends a message; proto.Size of it must have been called just before.
func (e *encoder) cached(m proto.Message) {
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(e.b, m)
	if e.b = b; e.err == nil {
		e.err = err
	}
}

// control appends which transaction a statement belongs to.
func (e *encoder) control(st *Statement) {
	size, settings := sizeOfText(fieldTxID, st.TxID), 0
	if st.Begin != nil {
		settings = proto.Size(st.Begin)
		size = sizeOfMessage(fieldBeginTx, settings)
	}
	if st.Commit {
		size += protowire.SizeTag(fieldCommitTx) + 1
	}
	e.head(fieldTxControl, size)
	if st.Begin != nil {
		e.head(fieldBeginTx, settings)
		e.cached(st.Begin)
	} else {
		e.text(fieldTxID, st.TxID)
	}
	if st.Commit {
		e.number(fieldCommitTx, 1)
	}
}

func sizeOfText(field protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(len(s))
}

func sizeOfNumber(field protowire.Number, n uint64) int {
	if n == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeVarint(n)
}

// sizeOfMessage is the size of a field that is a message of size bytes.
func sizeOfMessage(field protowire.Number, size int) int {
	return protowire.SizeTag(field) + protowire.SizeBytes(size)
}
