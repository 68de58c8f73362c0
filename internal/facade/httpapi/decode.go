package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// request is what the JSON of a request has beside its message.
type request struct {
	form   jsonFormat
	params []statementParams
	ids    []json.RawMessage // of a batch get

	room [1]statementParams
}

// jsonFormat is how the caller wants its rows.
type jsonFormat struct {
	rows string // objects, arrays
	ints string // string, number
}

// statementParams are the parameters of the statement that a message has.
type statementParams struct {
	of     protoreflect.ProtoMessage
	values jsonValues
}

// Of finds the parameters of a statement. Statements are asked about in their order.
func (r *request) Of(statement proto.Message, _ map[string]*sidecarv1.Value) core.Values {
	if len(r.params) == 0 || r.params[0].of != statement {
		return noValues
	}
	values := &r.params[0].values
	r.params = r.params[1:]
	return values
}

var noValues = new(jsonValues)

// jsonValues are values that came as JSON, in the order in which they came.
type jsonValues struct {
	list []jsonValue
	at   map[string]int // nil: there are few
}

type jsonValue struct {
	name string
	raw  []byte
}

// fewValues is how many values are looked for one by one.
const fewValues = 8

func (j *jsonValues) add(name string, raw []byte) {
	if len(j.list) == fewValues {
		j.at = make(map[string]int)
		for i, v := range j.list {
			j.at[v.name] = i
		}
	}
	if j.at != nil {
		j.at[name] = len(j.list)
	}
	j.list = append(j.list, jsonValue{name, raw})
}

func (j *jsonValues) find(name string) []byte {
	if j.at != nil {
		return j.list[j.at[name]].raw
	}
	for i := range j.list {
		if j.list[i].name == name {
			return j.list[i].raw
		}
	}
	return nil
}

func (j *jsonValues) Names() []string {
	names := make([]string, len(j.list))
	for i := range j.list {
		names[i] = j.list[i].name
	}
	return names
}

func (j *jsonValues) Typed(name string, t *Ydb.Type) (*Ydb.TypedValue, error) {
	return yql.ParamJSON(j.find(name), t)
}

func (j *jsonValues) AddScalar(*upstream.Params, string, string, *Ydb.Type) bool { return false }

// decoder reads the JSON of a request into its message. What checkRequest refuses has been refused. It keeps nothing of the text.
type decoder struct {
	data []byte
	pos  int
	out  *request
}

// decodeJSON reads a request whose text is more than spaces.
func decodeJSON(data []byte, into proto.Message, out *request) error {
	d := decoder{data: data, out: out}
	m := into.ProtoReflect()
	err := d.message(m, requests[m.Descriptor().FullName()])
	if wrong, ok := err.(*misfit); ok {
		return core.BadRequest("%s: a JSON %s does not fit here", wrong.field(), wrong.found)
	}
	if err == nil && d.peek() != 0 || d.pos < len(d.data) && err == nil {
		return core.BadRequest("the body goes on after its JSON value; send one value only")
	}
	return err
}

// misfit is a value of another kind than its member has.
type misfit struct {
	path  string // of the member; "": the body itself
	found string // such as "number"
}

func (m *misfit) field() string {
	if m.path == "" {
		return "the body"
	}
	return m.path
}

func (m *misfit) Error() string { return m.field() + ": " + m.found }

// under adds the name of a member, or the number of an item, to an error that names its place.
func under(name string, err error) error {
	if wrong, ok := err.(*misfit); ok {
		switch {
		case wrong.path == "":
			wrong.path = name
		case wrong.path[0] == '[':
			wrong.path = name + wrong.path
		default:
			wrong.path = name + "." + wrong.path
		}
	}
	return err
}

func (d *decoder) syntax(what string) error {
	return core.BadRequest("the body is not the JSON that is expected here: at byte %d %s", d.pos, what)
}

// unfit is the error of a value that is next and is of another kind.
func (d *decoder) unfit() error {
	raw, err := d.value()
	if err != nil {
		return err
	}
	found := "number"
	switch raw[0] {
	case '"':
		found = "string"
	case '{':
		found = "object"
	case '[':
		found = "array"
	case 't', 'f':
		found = "bool"
	}
	return &misfit{found: found}
}

// peek returns the first byte of the next token, 0 at the end.
func (d *decoder) peek() byte {
	for ; d.pos < len(d.data); d.pos++ {
		switch c := d.data[d.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// null moves over a null, if that is next.
func (d *decoder) null() bool {
	if d.peek() != 'n' || !bytes.HasPrefix(d.data[d.pos:], []byte("null")) {
		return false
	}
	d.pos += len("null")
	return true
}

// open moves over the first byte of an object or of a list. more says whether it has anything in it.
func (d *decoder) open(first, last byte) (more bool, err error) {
	if d.peek() != first {
		return false, d.unfit()
	}
	d.pos++
	if d.peek() == last {
		d.pos++
		return false, nil
	}
	return true, nil
}

// more moves over a comma, or over the end of an object or of a list.
func (d *decoder) more(last byte) (bool, error) {
	switch d.peek() {
	case ',':
		d.pos++
		return true, nil
	case last:
		d.pos++
		return false, nil
	}
	return false, d.syntax("a comma or " + string(last) + " is expected")
}

// name reads the name of a member, with its colon. It is valid until the next call.
func (d *decoder) name() ([]byte, error) {
	if d.peek() != '"' {
		return nil, d.syntax("the name of a member is expected")
	}
	name, err := d.text()
	if err != nil {
		return nil, err
	}
	if d.peek() != ':' {
		return nil, d.syntax("a colon is expected")
	}
	d.pos++
	return name, nil
}

// text reads a string, which is next. What it returns may be part of the text.
func (d *decoder) text() ([]byte, error) {
	raw, plain := d.quoted()
	if raw == nil {
		return nil, d.syntax("a string is not closed, or has a control character")
	}
	if plain {
		return raw[1 : len(raw)-1], nil
	}
	s, err := yql.JSONText(raw)
	if err != nil {
		return nil, d.syntax("a string has an unknown escape, or a surrogate without its partner")
	}
	return []byte(s), nil
}

// quoted moves over a string. plain: it has no escapes. nil: it is no string.
func (d *decoder) quoted() (raw []byte, plain bool) {
	plain = true
	for i := d.pos + 1; i < len(d.data); i++ {
		switch c := d.data[i]; {
		case c == '"':
			raw = d.data[d.pos : i+1]
			d.pos = i + 1
			return raw, plain
		case c == '\\':
			plain = false
			i++
		case c < ' ':
			return nil, false
		}
	}
	return nil, false
}

// value moves over any value and returns its text.
func (d *decoder) value() ([]byte, error) {
	c := d.peek()
	start := d.pos
	simple := false
	switch c {
	case '"':
		_, simple = d.quoted()
	case '{', '[':
		for depth := 0; d.pos < len(d.data); {
			switch d.data[d.pos] {
			case '"':
				if raw, _ := d.quoted(); raw == nil {
					return nil, d.syntax("a string is not closed, or has a control character")
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			if d.pos++; depth == 0 {
				break
			}
		}
	default:
		for d.pos < len(d.data) && bytes.IndexByte([]byte(" \t\r\n,]}:"), d.data[d.pos]) < 0 {
			d.pos++
		}
	}
	raw := d.data[start:d.pos]
	if !simple && !json.Valid(raw) {
		d.pos = start
		return nil, d.syntax("a value is expected")
	}
	return raw, nil
}

// message reads an object into a message. null changes nothing.
func (d *decoder) message(m protoreflect.Message, s *shapeOf) error {
	if d.null() {
		return nil
	}
	more, err := d.open('{', '}')
	for more && err == nil {
		var name []byte
		if name, err = d.name(); err != nil {
			break
		}
		f := s.members[string(name)]
		if f == nil {
			return core.BadRequest("the body is not the JSON that is expected here: unknown field %.64q", name)
		}
		if err = f.take(d, m, f); err != nil {
			return under(f.name, err)
		}
		more, err = d.more('}')
	}
	return err
}

// each calls item for each item of a list, which has to read it. null is an empty list.
func (d *decoder) each(item func() error) error {
	if d.null() {
		return nil
	}
	more, err := d.open('[', ']')
	for i := 0; more && err == nil; i++ {
		if err = item(); err != nil {
			return under(fmt.Sprintf("[%d]", i), err)
		}
		more, err = d.more(']')
	}
	return err
}

// eachMember calls value before the value of each member of an object, which it has to read. null is an empty object.
func (d *decoder) eachMember(value func(name string) error) error {
	if d.null() {
		return nil
	}
	more, err := d.open('{', '}')
	for more && err == nil {
		var name []byte
		if name, err = d.name(); err != nil {
			break
		}
		own := string(name)
		if err = value(own); err != nil {
			return under(own, err)
		}
		more, err = d.more('}')
	}
	return err
}

func takeMessage(d *decoder, m protoreflect.Message, f *member) error {
	if d.null() {
		return nil
	}
	return d.message(m.Mutable(f.field).Message(), f.inner)
}

func takeMessages(d *decoder, m protoreflect.Message, f *member) error {
	var list protoreflect.List
	return d.each(func() error {
		if list == nil {
			list = m.Mutable(f.field).List()
		}
		return d.message(list.AppendMutable().Message(), f.inner)
	})
}

// readScalar reads values by their kinds.
var readScalar = map[protoreflect.Kind]func(d *decoder) (protoreflect.Value, error){
	protoreflect.StringKind: (*decoder).string, protoreflect.BoolKind: (*decoder).bool, protoreflect.DoubleKind: (*decoder).double,
	protoreflect.Uint32Kind: func(d *decoder) (protoreflect.Value, error) {
		n, err := d.whole(32)
		return protoreflect.ValueOfUint32(uint32(n)), err
	},
	protoreflect.Uint64Kind: func(d *decoder) (protoreflect.Value, error) {
		n, err := d.whole(64)
		return protoreflect.ValueOfUint64(n), err
	},
	protoreflect.Int64Kind: (*decoder).integer,
}

func takeScalar(d *decoder, m protoreflect.Message, f *member) error {
	if d.null() {
		return nil
	}
	v, err := readScalar[f.field.Kind()](d)
	if err == nil {
		m.Set(f.field, v)
	}
	return err
}

func takeList(d *decoder, m protoreflect.Message, f *member) error {
	var list protoreflect.List
	return d.each(func() error {
		v, err := readScalar[f.field.Kind()](d)
		if err != nil {
			return err
		}
		if list == nil {
			list = m.Mutable(f.field).List()
		}
		list.Append(v)
		return nil
	})
}

func (d *decoder) string() (protoreflect.Value, error) {
	if d.peek() != '"' {
		return protoreflect.Value{}, d.unfit()
	}
	text, err := d.text()
	return protoreflect.ValueOfString(string(text)), err
}

func (d *decoder) bool() (protoreflect.Value, error) {
	raw, err := d.literal('t', 'f')
	return protoreflect.ValueOfBool(len(raw) == len("true")), err
}

// literal reads a value that begins with one of these.
func (d *decoder) literal(first ...byte) ([]byte, error) {
	if !slices.Contains(first, d.peek()) {
		return nil, d.unfit()
	}
	return d.value()
}

func (d *decoder) number() ([]byte, error) {
	return d.literal('-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
}

func (d *decoder) whole(bits int) (uint64, error) {
	raw, err := d.number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(raw), 10, bits)
	if err != nil {
		n, err = strconv.ParseUint(digitsOf(raw), 10, bits)
	}
	if err != nil {
		return 0, &misfit{found: "number " + string(raw)}
	}
	return n, nil
}

// digitsOf returns a number as an integer has it, if it is one that is written with a fraction or an exponent, as 1.0 or 1e3.
// Others are returned as they are, also those beyond 2^53, of which not every integer is a float64.
func digitsOf(raw []byte) string {
	const most = 1 << 53
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > most || !bytes.ContainsAny(raw, ".eE") {
		return string(raw)
	}
	return strconv.FormatInt(int64(f), 10)
}

func (d *decoder) integer() (protoreflect.Value, error) {
	raw, err := d.number()
	if err != nil {
		return protoreflect.Value{}, err
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		n, err = strconv.ParseInt(digitsOf(raw), 10, 64)
	}
	if err != nil {
		return protoreflect.Value{}, &misfit{found: "number " + string(raw)}
	}
	return protoreflect.ValueOfInt64(n), nil
}

func (d *decoder) double() (protoreflect.Value, error) {
	raw, err := d.number()
	if err != nil {
		return protoreflect.Value{}, err
	}
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return protoreflect.Value{}, &misfit{found: "number " + string(raw)}
	}
	return protoreflect.ValueOfFloat64(n), nil
}

// takeTexts reads texts by name. One that is null is empty.
func takeTexts(d *decoder, m protoreflect.Message, f *member) error {
	var into protoreflect.Map
	return d.eachMember(func(name string) (err error) {
		v := protoreflect.ValueOfString("")
		if !d.null() {
			if v, err = d.string(); err != nil {
				return err
			}
		}
		if into == nil {
			into = m.Mutable(f.field).Map()
		}
		into.Set(protoreflect.ValueOfString(name).MapKey(), v)
		return nil
	})
}

// takeValues keeps the parameters of a statement as they are: their types are not known yet.
func takeValues(d *decoder, m protoreflect.Message, _ *member) error {
	if d.out.params == nil {
		d.out.params = d.out.room[:0]
	}
	one := statementParams{of: m.Interface()}
	err := d.eachMember(func(name string) error {
		raw, err := d.value()
		if err == nil {
			one.values.add(name, bytes.Clone(raw))
		}
		return err
	})
	d.out.params = append(d.out.params, one)
	return err
}

// takeSize reads a number of bytes: 1048576, or "1MiB".
func takeSize(d *decoder, m protoreflect.Message, f *member) error {
	if d.null() {
		return nil
	}
	raw, err := d.value()
	if err != nil {
		return err
	}
	n, err := sizeOf(raw)
	if err != nil {
		return core.BadRequest("limits.bytes: %v", err)
	}
	m.Set(f.field, protoreflect.ValueOfUint64(n))
	return nil
}

func sizeOf(raw []byte) (uint64, error) {
	if n, err := strconv.ParseUint(digitsOf(raw), 10, 64); err == nil {
		return n, nil // as over gRPC, larger than any text with a unit
	}
	text, quoted := string(raw), raw[0] == '"'
	if quoted {
		text = text[1 : len(text)-1]
	} else if text[len(text)-1] == 'B' {
		return 0, core.ErrSize // a unit without quotes
	}
	return core.ParseBytes(text)
}

func takeRows(d *decoder, _ protoreflect.Message, _ *member) error {
	return takeForm(d, &d.out.form.rows)
}

func takeInts(d *decoder, _ protoreflect.Message, _ *member) error {
	return takeForm(d, &d.out.form.ints)
}

func takeForm(d *decoder, into *string) error {
	if d.null() {
		return nil
	}
	v, err := d.string()
	*into = v.String()
	return err
}

// takeIDs keeps the ids of a batch get as they are: the table has their types.
func takeIDs(d *decoder, _ protoreflect.Message, _ *member) error {
	return d.each(func() error {
		raw, err := d.value()
		d.out.ids = append(d.out.ids, bytes.Clone(raw))
		return err
	})
}

// takeNull takes null, which stands where a list stood.
func takeNull(d *decoder, _ protoreflect.Message, _ *member) error {
	if d.null() {
		return nil
	}
	return d.unfit()
}
