package yql

import (
	"math"
	"strconv"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// ParseJSON converts the JSON form of a value to the wire's form of type t. It
// takes what AppendJSON writes, and everything that FromValue takes in the
// matching form: numbers as numbers or as text (as they stand in raw, never
// through a Double), dates as integers in their wire's unit. raw must be one
// value with nothing behind it.
func ParseJSON(raw []byte, t *Ydb.Type) (*Ydb.Value, error) { return parseJSON(raw, t, MaxValues) }

// parseJSON is ParseJSON of at most so many values.
func parseJSON(raw []byte, t *Ydb.Type, most int) (*Ydb.Value, error) {
	r := reader{scanner: scanner{data: raw}, budget: budgetOf(most)}
	v, err := r.value(t)
	if err != nil {
		return nil, err
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return v, nil
}

// reader makes values of a known type from JSON. Its depth is the type's.
type reader struct {
	scanner
	budget
}

// value reads a value of type t. Long: it is one flat list of the kinds of types.
func (r *reader) value(t *Ydb.Type) (*Ydb.Value, error) {
	if err := r.spend(); err != nil {
		return nil, err
	}
	c := r.peek()
	switch x := t.GetType().(type) {
	case *Ydb.Type_TypeId:
		return r.scalar(t, x.TypeId)
	case *Ydb.Type_DecimalType:
		if c == '"' || c == '-' || isDigit(c) {
			return r.decimal(x.DecimalType)
		}
	case *Ydb.Type_OptionalType:
		return r.optional(t, x.OptionalType.GetItem())
	case *Ydb.Type_TaggedType:
		return r.value(x.TaggedType.GetType())
	case *Ydb.Type_VoidType, *Ydb.Type_NullType:
		if c == 'n' {
			return r.null()
		}
	case *Ydb.Type_PgType:
		return r.pg(t)
	case *Ydb.Type_ListType:
		if c == '[' {
			return r.items(x.ListType.GetItem())
		}
	case *Ydb.Type_EmptyListType:
		if c == '[' {
			return &Ydb.Value{}, r.list(func(int) error { return errorf("an item in an EmptyList; write it like []") })
		}
	case *Ydb.Type_TupleType:
		if c == '[' {
			return r.tuple(x.TupleType.GetElements())
		}
	case *Ydb.Type_StructType:
		if c == '{' {
			return r.structure(x.StructType.GetMembers())
		}
	case *Ydb.Type_DictType:
		switch {
		case c == '[' && isVoid(x.DictType.GetPayload()):
			return r.set(x.DictType.GetKey())
		case c == '[':
			return r.pairs(x.DictType)
		case c == '{':
			return r.dictObject(t, x.DictType)
		}
	case *Ydb.Type_EmptyDictType:
		switch c {
		case '[':
			return &Ydb.Value{}, r.list(func(int) error { return errorf("a pair in an EmptyDict; write it like []") })
		case '{':
			return &Ydb.Value{}, r.object(func(string) error { return errorf("a pair in an EmptyDict; write it like []") })
		}
	case *Ydb.Type_VariantType:
		if c == '{' {
			return r.variant(x.VariantType)
		}
	default:
		return nil, unknownType(t)
	}
	return nil, r.mismatch(t)
}

// decimal reads a Decimal, which is a string or a number.
func (r *reader) decimal(t *Ydb.DecimalType) (*Ydb.Value, error) {
	if r.peek() == '"' {
		s, err := r.str()
		if err != nil {
			return nil, err
		}
		return parseDecimal(s, t)
	}
	n, err := r.number()
	if err != nil {
		return nil, err
	}
	return parseDecimal(string(n), t)
}

// mismatch is the error for a value of the wrong kind; a fault in the JSON
// itself comes first.
func (r *reader) mismatch(t *Ydb.Type) error {
	kind := ""
	switch r.peek() {
	case '"':
		s, err := r.str()
		if err != nil {
			return err
		}
		kind = clip(s)
	case '[':
		kind = "a list"
	case '{':
		kind = "an object"
	case 'n', 't', 'f':
		w, err := r.word()
		if err != nil {
			return err
		}
		kind = w
	default:
		n, err := r.number()
		if err != nil {
			return r.syntax("expected a value")
		}
		kind = theNumber + cut(string(n))
	}
	if kind == "null" {
		return noNull(t)
	}
	if id := t.GetTypeId(); id != 0 {
		return notA(id, kind)
	}
	return errorf("%s is not %s%s", kind, article(FormatType(t)), writeIt(t))
}

// cut keeps a number's text short.
func cut(s string) string {
	if len(s) > clipAt {
		return s[:clipAt] + "..."
	}
	return s
}

func (r *reader) null() (*Ydb.Value, error) {
	if w, err := r.word(); err != nil || w != "null" {
		return nil, r.syntax("expected a value")
	}
	return nullValue(), nil
}

func (r *reader) optional(t, item *Ydb.Type) (*Ydb.Value, error) {
	if r.peek() == 'n' {
		return r.null()
	}
	if !canBeNull(item) {
		inner, err := r.value(item)
		if err != nil {
			return nil, err
		}
		return just(inner), nil
	}
	if r.peek() != '[' {
		return nil, notNested(t)
	}
	var inner *Ydb.Value
	err := r.list(func(i int) (err error) {
		if i > 0 {
			return notNested(t)
		}
		inner, err = r.value(item)
		return err
	})
	if err != nil {
		return nil, err
	}
	if inner == nil {
		return nil, notNested(t)
	}
	return just(inner), nil
}

func (r *reader) items(t *Ydb.Type) (*Ydb.Value, error) {
	out := &Ydb.Value{}
	err := r.list(func(i int) error {
		v, err := r.value(t)
		if err != nil {
			return inItem(err, i)
		}
		out.Items = append(out.Items, v)
		return nil
	})
	return out, err
}

func (r *reader) tuple(elements []*Ydb.Type) (*Ydb.Value, error) {
	out := &Ydb.Value{}
	err := r.list(func(i int) error {
		if i == len(elements) {
			return errorf("more than %d items for a Tuple of %d%s", i, i, writeTuple(elements))
		}
		v, err := r.value(elements[i])
		if err != nil {
			return inItem(err, i)
		}
		out.Items = append(out.Items, v)
		return nil
	})
	if err == nil && len(out.Items) < len(elements) {
		err = errorf("%d items for a Tuple of %d%s", len(out.Items), len(elements), writeTuple(elements))
	}
	return out, err
}

func (r *reader) structure(list []*Ydb.StructMember) (*Ydb.Value, error) {
	if len(list) > r.left {
		return nil, r.exhausted()
	}
	items := make([]*Ydb.Value, len(list))
	known := members{list: list}
	err := r.object(func(name string) error {
		i := known.find(name)
		if i < 0 {
			return noMember(name, list)
		}
		if items[i] != nil {
			return inMember(errorf("the member appears twice"), name)
		}
		v, err := r.value(list[i].GetType())
		items[i] = v
		return inMember(err, name)
	})
	if err == nil {
		err = r.fill(items, list)
	}
	return structValue(items), err
}

func (r *reader) set(key *Ydb.Type) (*Ydb.Value, error) {
	out := &Ydb.Value{}
	err := r.list(func(i int) error {
		k, err := r.value(key)
		if err != nil {
			return inItem(err, i)
		}
		out.Pairs = append(out.Pairs, &Ydb.ValuePair{Key: k, Payload: nullValue()})
		return nil
	})
	return out, err
}

func (r *reader) pairs(d *Ydb.DictType) (*Ydb.Value, error) {
	out := &Ydb.Value{}
	err := r.list(func(i int) error {
		pair := &Ydb.ValuePair{}
		if r.peek() != '[' {
			return inItem(errorf("expected a pair [key, value]"), i)
		}
		err := r.list(func(half int) (err error) {
			switch half {
			case 0:
				pair.Key, err = r.value(d.GetKey())
				return At(err, "key")
			case 1:
				pair.Payload, err = r.value(d.GetPayload())
				return At(err, "value")
			}
			return errorf("more than two items in a pair [key, value]")
		})
		if err == nil && pair.Payload == nil {
			err = errorf("fewer than two items in a pair [key, value]")
		}
		out.Pairs = append(out.Pairs, pair)
		return inItem(err, i)
	})
	return out, err
}

// dictObject reads {"key":value}: a shorthand where a key's JSON form is text.
func (r *reader) dictObject(t *Ydb.Type, d *Ydb.DictType) (*Ydb.Value, error) {
	out := &Ydb.Value{}
	err := r.object(func(name string) error {
		key, err := textKey(name, t, d)
		if err != nil {
			return inMember(err, name)
		}
		if isVoid(d.GetPayload()) {
			return errorf("an object is not %s; a Set is a list of keys", article(FormatType(t)))
		}
		payload, err := r.value(d.GetPayload())
		out.Pairs = append(out.Pairs, &Ydb.ValuePair{Key: key, Payload: payload})
		return inMember(err, name)
	})
	return out, err
}

func textKey(name string, t *Ydb.Type, d *Ydb.DictType) (*Ydb.Value, error) {
	switch x := d.GetKey().GetType().(type) {
	case *Ydb.Type_TypeId:
		if x.TypeId == Ydb.Type_STRING {
			return fromBase64(name)
		}
		return fromText(x.TypeId, name)
	case *Ydb.Type_DecimalType:
		return parseDecimal(name, x.DecimalType)
	}
	return nil, errorf("an object is not %s; with such keys it is a list of pairs [key, value]", article(FormatType(t)))
}

func (r *reader) variant(t *Ydb.VariantType) (*Ydb.Value, error) {
	if !overStruct(t) {
		return r.indexed(t)
	}
	var out *Ydb.Value
	err := r.object(func(name string) error {
		if out != nil {
			return errorf("more than one alternative in a Variant%s", writeVariant(t))
		}
		index, inner, err := tagged(t, name)
		if err != nil {
			return err
		}
		nested, err := r.value(inner)
		out = variantValue(index, nested)
		return inMember(err, name)
	})
	if err == nil && out == nil {
		err = errorf("no alternative in a Variant%s", writeVariant(t))
	}
	return out, err
}

// indexed reads {"index":1,"value":...}; the members may come in any order, so
// the value is read when the index is known.
func (r *reader) indexed(t *Ydb.VariantType) (*Ydb.Value, error) {
	index, at := int64(-1), -1
	err := r.object(func(name string) error {
		r.peek()
		start := r.pos
		text, err := r.skip(1)
		switch {
		case err != nil:
			return err
		case name == "index" && index < 0:
			if index, err = strconv.ParseInt(string(text), 10, 32); err != nil || index < 0 {
				return errorf("the index of a Variant must be an integer")
			}
			return nil
		case name == "value" && at < 0:
			at = start
			return nil
		}
		return errorf(`a Variant over a Tuple is {"index":0,"value":...}, not %s`, clip(name))
	})
	if err != nil {
		return nil, err
	}
	if index < 0 || at < 0 {
		return nil, errorf(`a Variant over a Tuple is {"index":0,"value":...}`)
	}
	_, inner, err := alternative(t, uint32(min(index, math.MaxUint32)))
	if err != nil {
		return nil, err
	}
	end := r.pos
	r.pos = at
	nested, err := r.value(inner)
	r.pos = end
	return variantValue(uint32(index), nested), inItem(err, int(index))
}

func (r *reader) scalar(t *Ydb.Type, id Ydb.Type_PrimitiveTypeId) (*Ydb.Value, error) {
	if fieldOf(id) == noField {
		return nil, unknownType(t)
	}
	switch c := r.peek(); {
	case (id == Ydb.Type_JSON || id == Ydb.Type_JSON_DOCUMENT) && c != '"' && c != 'n':
		// A text is the document's text, and null is NULL. All else is the document itself.
		document, err := r.skip(1)
		if err != nil {
			return nil, err
		}
		return textValue(string(document)), nil
	case c == '"':
		s, err := r.str()
		if err != nil {
			return nil, err
		}
		if id == Ydb.Type_STRING {
			return fromBase64(s)
		}
		return fromText(id, s)
	case c == '-' || isDigit(c):
		n, err := r.number()
		if err != nil {
			return nil, err
		}
		return fromNumber(id, string(n))
	case (c == 't' || c == 'f') && id == Ydb.Type_BOOL:
		w, err := r.word()
		if err != nil {
			return nil, err
		}
		return boolValue(w == "true"), nil
	case c == '{' && (id == Ydb.Type_STRING || id == Ydb.Type_YSON):
		return r.binary(t)
	}
	return nil, r.mismatch(t)
}

func (r *reader) pg(t *Ydb.Type) (*Ydb.Value, error) {
	switch c := r.peek(); {
	case c == 'n':
		return r.null()
	case c == '"':
		s, err := r.str()
		return textValue(s), err
	case c == '-' || isDigit(c):
		n, err := r.number()
		return textValue(string(n)), err
	case c == 't' || c == 'f':
		w, err := r.word()
		return textValue(w), err
	case c == '{':
		return r.binary(t)
	}
	return nil, r.mismatch(t)
}

// binary reads {"base64":"..."}.
func (r *reader) binary(t *Ydb.Type) (*Ydb.Value, error) {
	var out *Ydb.Value
	err := r.object(func(name string) error {
		if name != "base64" || out != nil {
			return errorf(`an object is not %s, unless it is {"base64":"..."}`, article(FormatType(t)))
		}
		if r.peek() != '"' {
			return inMember(errorf("expected text"), name)
		}
		s, err := r.str()
		if err != nil {
			return err
		}
		out, err = fromBase64(s)
		return inMember(err, name)
	})
	if err == nil && out == nil {
		err = errorf(`an object is not %s, unless it is {"base64":"..."}`, article(FormatType(t)))
	}
	return out, err
}
