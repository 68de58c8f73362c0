package value

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// sampleTypes are the types that a column can have, with a maker of values for each.
func sampleTypes(r *rand.Rand) map[*Type]func() Value {
	out := map[*Type]func() Value{}
	for k := Bool; k < lastPrimitive; k++ {
		t := Primitive(k)
		switch {
		case k == Bool:
			out[t] = func() Value { return Truth(r.IntN(2) == 0) }
		case k == Uint64:
			out[t] = func() Value { return Uint(r.Uint64() >> r.IntN(64)) }
		case IsInt(k) || IsTime(k) || IsInterval(k):
			out[t] = func() Value {
				b := bounds[k]
				for {
					i := int64(r.Uint64()) >> r.IntN(64)
					if b.min <= i && i <= b.max {
						return Int(i)
					}
				}
			}
		case k == Uuid:
			out[t] = func() Value { return Value{Lo: r.Uint64(), Hi: r.Uint64()} }
		case k == DyNumber:
			numbers := []string{"0", "-0.0", "1", "1.0", "10", "1e1", "-1", "-10", "0.1", "12e-5", "-12e-5", "9.99e99",
				"-9.99e99", "123456789012345678901234567890"}
			out[t] = func() Value { return Text(numbers[r.IntN(len(numbers))]) }
		case k == String || k == Utf8:
			out[t] = func() Value {
				b := make([]byte, r.IntN(4))
				for i := range b {
					b[i] = []byte{0, 1, 2, 'a', 0x7f}[r.IntN(5)]
				}
				return Text(string(b))
			}
		}
	}
	dec, _ := DecimalOf(22, 9)
	numbers := []string{"0", "1", "-1", "1.5", "-1.5", "1000000", "inf", "-inf", "0.000000001", "-0.000000001"}
	out[dec] = func() Value {
		v, err := Parse(dec, numbers[r.IntN(len(numbers))])
		if err != nil {
			panic(err)
		}
		return v
	}
	return out
}

func sign(i int) int { return min(1, max(-1, i)) }

// The bytes of a key order as its values do, and none is a prefix of another's.
func TestKeysOrderAsValues(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for typ, next := range sampleTypes(r) {
		if !KeyAllowed(typ) {
			continue
		}
		opt := OptionalOf(typ)
		for range 2000 {
			a, b := next(), next()
			if r.IntN(10) == 0 {
				a = NullValue
			}
			ka, kb := AppendKey(nil, typ, a), AppendKey(nil, typ, b)
			if got, want := sign(bytes.Compare(ka, kb)), sign(Compare(opt, a, b)); got != want {
				t.Fatalf("%s: %v and %v: keys %d, values %d", typ, a, b, got, want)
			}
			if len(ka) != len(kb) && (bytes.HasPrefix(ka, kb) || bytes.HasPrefix(kb, ka)) {
				t.Fatalf("%s: the key of %v is a prefix of that of %v", typ, a, b)
			}
			if same := bytes.Equal(AppendHash(nil, opt, a), AppendHash(nil, opt, b)); same != (Compare(opt, a, b) == 0) {
				t.Fatalf("%s: %v and %v: hashes equal: %v", typ, a, b, same)
			}
		}
	}
}

func TestKeyEnd(t *testing.T) {
	for _, c := range []struct{ in, want []byte }{{[]byte{1, 2}, []byte{1, 3}}, {[]byte{1, 255}, []byte{2}},
		{[]byte{255}, nil}, {nil, nil}} {
		if got := KeyEnd(c.in); !bytes.Equal(got, c.want) {
			t.Errorf("KeyEnd(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

// Texts read back as the values they were written from.
func TestFormatAndParse(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for typ, next := range sampleTypes(r) {
		for range 500 {
			v := next()
			s := Format(typ, v)
			got, err := Parse(typ, s)
			if err != nil && IsTime(typ.Kind) && (len(s) > 28 || s[0] == '-' || s[4] != '-') {
				continue // years that have not four digits are written but not read
			}
			if err != nil || Compare(typ, got, v) != 0 {
				t.Fatalf("%s: %v is written %q and read as %v, %v", typ, v, s, got, err)
			}
		}
	}
}

func TestRowForm(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var types []*Type
	var vals []Value
	for typ, next := range sampleTypes(r) {
		types, vals = append(types, typ, typ), append(vals, next(), NullValue)
	}
	var b []byte
	for i, typ := range types {
		b = AppendCell(b, uint64(i), typ, vals[i])
	}
	got := slices.Repeat([]Value{NullValue}, len(types))
	if err := UnmarshalRow(b, func(id uint64, v Value) { got[id] = v }); err != nil {
		t.Fatal(err)
	}
	for i, typ := range types {
		if Compare(OptionalOf(typ), got[i], vals[i]) != 0 {
			t.Errorf("%s: %v became %v", typ, vals[i], got[i])
		}
	}
	for i := range b { // every cut is an error or a shorter row, never a panic
		_ = UnmarshalRow(b[:i], func(uint64, Value) {})
	}
}

func TestParseRefuses(t *testing.T) {
	dec, _ := DecimalOf(22, 9)
	for _, c := range []struct {
		t *Type
		s string
	}{
		{TypeInt32, "2147483648"}, {TypeInt32, ""}, {TypeUint64, "-1"}, {TypeUint64, "18446744073709551616"},
		{Primitive(Int8), "128"}, {TypeBool, "yes"},
		{TypeDouble, "x"}, {dec, "1.2.3"}, {dec, "1e99999999"}, {dec, "x"}, {TypeDate, "2020-02-30"},
		{TypeDate, "2106-02-07"}, {TypeDate, "1969-12-31"}, {TypeDatetime, "2020-01-01"},
		{TypeDatetime, "2020-01-01T00:00:00.5Z"}, {TypeTimestamp, "now"}, {TypeInterval, "1D"}, {TypeInterval, "P"},
		{TypeInterval, "PT"}, {TypeInterval, "P1X"}, {TypeInterval, "PT1.5H"},
		{TypeInterval, "P99999999999999D"}, {TypeUuid, "6e73b41c4ede4d089cfbb7462d9e498b"}, {TypeUuid, "x"},
		{TypeUtf8, "\xff"}, {TypeJson, "{"}, {Primitive(DyNumber), "1e500"}, {Primitive(DyNumber), "a"},
		{Primitive(TzDate), "2020-01-01"}, {Primitive(TzDatetime), "x,GMT"},
	} {
		if v, err := Parse(c.t, c.s); err == nil {
			t.Errorf("%s %q is read as %v", c.t, c.s, v)
		}
	}
}

func TestTypesKeepTheirText(t *testing.T) {
	dec, _ := DecimalOf(22, 9)
	st, err := StructOf(Member{"b", TypeInt32}, Member{"a b'", OptionalOf(dec)})
	if err != nil {
		t.Fatal(err)
	}
	variant, err := VariantOf(TupleOf(TypeInt32, TypeUtf8))
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []*Type{st, variant, DictOf(TypeUtf8, TypeVoid), TaggedOf(ListOf(TypeDate), `x"y`),
		TypeEmptyList, OptionalOf(OptionalOf(TypeNull))} {
		got, err := FromProto(typ.Proto())
		if err != nil || !got.Equal(typ) || !typ.Matches(typ.Proto()) {
			t.Errorf("%s comes back as %v, %v", typ, got, err)
		}
		if typ.Matches(TypeInt64.Proto()) || TypeInt64.Matches(typ.Proto()) {
			t.Errorf("%s matches Int64", typ)
		}
	}
	if _, err := StructOf(Member{"a", TypeInt32}, Member{"a", TypeInt32}); err == nil {
		t.Error("a member twice")
	}
}
