package yql

import "github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

// On the wire an Optional costs nothing while there is a value in it: Just(5)
// is 5. What ends in a null has one nested value for each Just around it,
// because the null alone would be the outermost Nothing. A Variant uses nested
// values for its own ends, which justOf has to tell apart.

// just wraps inner into an Optional.
func just(inner *Ydb.Value) *Ydb.Value {
	if endsInNull(inner) {
		return &Ydb.Value{Value: &Ydb.Value_NestedValue{NestedValue: inner}}
	}
	return inner
}

// justOf returns what stands in an Optional of item; ok is false for Nothing.
func justOf(v *Ydb.Value, item *Ydb.Type) (inner *Ydb.Value, ok bool) {
	switch nested := v.GetValue().(type) {
	case *Ydb.Value_NullFlagValue:
		return nil, false
	case *Ydb.Value_NestedValue:
		if !endsInVariant(item) || endsInNull(v) {
			return nested.NestedValue, true
		}
	}
	return v, true
}

func endsInNull(v *Ydb.Value) bool {
	for {
		switch x := v.GetValue().(type) {
		case *Ydb.Value_NullFlagValue:
			return true
		case *Ydb.Value_NestedValue:
			v = x.NestedValue
		default:
			return false
		}
	}
}

func endsInVariant(t *Ydb.Type) bool {
	for {
		switch x := t.GetType().(type) {
		case *Ydb.Type_VariantType:
			return true
		case *Ydb.Type_OptionalType:
			t = x.OptionalType.GetItem()
		case *Ydb.Type_TaggedType:
			t = x.TaggedType.GetType()
		default:
			return false
		}
	}
}

// canBeNull reports whether a value of the type may itself be a null. Inside an
// Optional such a value stands in a list of one, in JSON and in gRPC, so that
// the null of each level can be told.
func canBeNull(t *Ydb.Type) bool {
	for {
		switch x := t.GetType().(type) {
		case *Ydb.Type_OptionalType, *Ydb.Type_VoidType, *Ydb.Type_NullType, *Ydb.Type_PgType:
			return true
		case *Ydb.Type_TaggedType:
			t = x.TaggedType.GetType()
		default:
			return false
		}
	}
}

// isOptional reports whether a struct's member may be left out.
func isOptional(t *Ydb.Type) bool {
	_, ok := t.GetType().(*Ydb.Type_OptionalType)
	return ok
}

// alternative returns the type, and for a Variant over a Struct the name, of
// the alternative at an index.
func alternative(v *Ydb.VariantType, index uint32) (name string, t *Ydb.Type, err error) {
	members, elements := v.GetStructItems().GetMembers(), v.GetTupleItems().GetElements()
	switch {
	case uint64(index) < uint64(len(members)):
		return members[index].GetName(), members[index].GetType(), nil
	case uint64(index) < uint64(len(elements)):
		return "", elements[index], nil
	}
	return "", nil, errorf("there is no alternative %d in the Variant", index)
}

// tagged returns the alternative of a Variant over a Struct by its name.
func tagged(v *Ydb.VariantType, tag string) (index uint32, t *Ydb.Type, err error) {
	for i, m := range v.GetStructItems().GetMembers() {
		if m.GetName() == tag {
			return uint32(i), m.GetType(), nil
		}
	}
	return 0, nil, errorf("there is no alternative %s in the Variant; %s", clip(tag), itHas(v.GetStructItems().GetMembers()))
}

func overStruct(v *Ydb.VariantType) bool {
	_, ok := v.GetType().(*Ydb.VariantType_StructItems)
	return ok
}

// protoText returns the text of a type that is text or bytes on the wire; some
// senders put the one into the other's field.
func protoText(v *Ydb.Value) (s string, ok bool) {
	switch x := v.GetValue().(type) {
	case *Ydb.Value_TextValue:
		return x.TextValue, true
	case *Ydb.Value_BytesValue:
		return string(x.BytesValue), true
	}
	return "", false
}

// protoBytes is protoText for a type of bytes.
func protoBytes(v *Ydb.Value) (b []byte, ok bool) {
	switch x := v.GetValue().(type) {
	case *Ydb.Value_BytesValue:
		return x.BytesValue, true
	case *Ydb.Value_TextValue:
		return []byte(x.TextValue), true
	}
	return nil, false
}

// badEncoding is the error for a value that is not what its column says: the
// sender broke the protocol.
func badEncoding(v *Ydb.Value, t *Ydb.Type) error {
	return errorf("the server sent a %T as %s", v.GetValue(), article(FormatType(t)))
}

// members finds a struct's members by name: in their order at no cost, in any
// order by a map that is made when it is first needed.
type members struct {
	list   []*Ydb.StructMember
	expect int
	index  map[string]int
}

// find returns the place of the member with the name, or -1.
func (m *members) find(name string) int {
	if m.expect < len(m.list) && m.list[m.expect].GetName() == name {
		m.expect++
		return m.expect - 1
	}
	if len(m.list) <= 8 {
		for i, member := range m.list {
			if member.GetName() == name {
				return i
			}
		}
		return -1
	}
	if m.index == nil {
		m.index = make(map[string]int, len(m.list))
		for i, member := range m.list {
			m.index[member.GetName()] = i
		}
	}
	if i, ok := m.index[name]; ok {
		return i
	}
	return -1
}

// fill completes a struct's items: a missing member is null if its type is
// Optional, and else an error.
func (b *budget) fill(items []*Ydb.Value, list []*Ydb.StructMember) error {
	for i, item := range items {
		if item != nil {
			continue
		}
		if !isOptional(list[i].GetType()) {
			return inMember(errorf("the member is missing%s", writeIt(list[i].GetType())), list[i].GetName())
		}
		if err := b.spend(); err != nil {
			return err
		}
		items[i] = nullValue()
	}
	return nil
}

// budget counts the values that one call still may make.
type budget struct{ left, most int }

func budgetOf(most int) budget { return budget{most, most} }

func (b *budget) spend() error {
	if b.left--; b.left < 0 {
		return errorf("more than %d values in one", b.most)
	}
	return nil
}
