package yql

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"
)

func keyType(t testing.TB, name string) *Ydb.Type {
	t.Helper()
	typ, err := ParseType(name)
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

func TestParseKeyIsStrict(t *testing.T) {
	for _, c := range []struct {
		typ        string
		good, bad  []string
		noTypeOfIt bool
	}{
		{typ: "Bool", good: []string{"true", "false"}, bad: []string{"", "True", "1", "null"}},
		{typ: "Int8", good: []string{"0", "-1", "-128", "127"},
			bad: []string{"", "-", "-0", "00", "01", "-01", "+1", " 1", "1 ", "1.0", "1e2", "128", "-129", "0x1", "1_0", "\u0661"}},
		{typ: "Uint64", good: []string{"0", "18446744073709551615"},
			bad: []string{"-1", "18446744073709551616", strings.Repeat("9", 5000)}},
		{typ: "Int64", good: []string{"-9223372036854775808"}, bad: []string{"9223372036854775808"}},
		{typ: "Date", good: []string{"1970-01-01"}, bad: []string{"0", "2023-02-29", "2024-02-29T00:00:00Z", "1969-12-31"}},
		{typ: "Date32", good: []string{"-001000-01-01"}, bad: []string{"-1"}},
		{typ: "Datetime", good: []string{"2024-02-29T12:30:45Z", "2024-02-29T12:30:45+03:00"},
			bad: []string{"0", "2024-02-29T12:30:45.5Z"}},
		{typ: "Timestamp", good: []string{"2024-02-29T12:30:45.000Z"}, bad: []string{"1709209845000000", "2024-02-29T12:30:45"}},
		{typ: "Interval", good: []string{"PT0S", "-P1D"}, bad: []string{"0", "P1Y"}},
		{typ: "Uuid", good: []string{"5ca32c22-841b-11e8-adc0-fa7ae01bbebc", "5CA32C22-841B-11E8-ADC0-FA7AE01BBEBC"},
			bad: []string{"", "5ca32c22841b11e8adc0fa7ae01bbebc"}},
		{typ: "Utf8", good: []string{"", "a", "\x00", "'; --"}, bad: []string{"\xff", "a\xc3"}},
		{typ: "String", good: []string{"", "\xff\x00"}},
		{typ: "DyNumber", good: []string{"1", "-1.5e3"}, bad: []string{"", "nan"}},
		{typ: "Decimal(22,9)", good: []string{"0", "-1.5", "01.50", "inf", "-inf", "nan"},
			bad: []string{"", "+1", ".5", "5.", "1e3", "Infinity", "0.0000000001", "12345678901234"}},
		{typ: "Double", bad: []string{"1"}, noTypeOfIt: true}, {typ: "Float", bad: []string{"1"}, noTypeOfIt: true},
		{typ: "Json", bad: []string{"1"}, noTypeOfIt: true}, {typ: "Yson", bad: []string{"1"}, noTypeOfIt: true},
		{typ: "JsonDocument", bad: []string{"1"}, noTypeOfIt: true},
		{typ: "TzDate", bad: []string{"1970-01-01,UTC"}, noTypeOfIt: true}, {typ: "Optional<Int32>", bad: []string{"1"}, noTypeOfIt: true},
		{typ: "List<Int32>", bad: []string{"1"}, noTypeOfIt: true}, {typ: "Void", bad: []string{"null"}, noTypeOfIt: true},
	} {
		typ := keyType(t, c.typ)
		if IsKey(typ) == c.noTypeOfIt {
			t.Errorf("IsKey of %s is %v", c.typ, !c.noTypeOfIt)
		}
		for _, s := range c.good {
			if _, err := ParseKey(s, typ); err != nil {
				t.Errorf("%s %q: %v", c.typ, s, err)
			}
		}
		for _, s := range c.bad {
			if v, err := ParseKey(s, typ); err == nil {
				t.Errorf("%s %q was taken as %v", c.typ, s, v)
			} else if len(err.Error()) > 300 {
				t.Errorf("%s: the error has %d bytes", c.typ, len(err.Error()))
			}
		}
	}
}

// Equal keys have equal bytes, however they were written, and no others have.
func TestAppendKeyTellsKeysApart(t *testing.T) {
	for _, c := range []struct {
		typ  string
		sets [][]string // each one key
	}{
		{"DyNumber",
			[][]string{{"1", "1.0", "10e-1", "0.1e1"}, {"10", "1e1"}, {"0", "-0", "0e5", "0.00"}, {"-1"}, {"1e-1", "0.1"}, {"101"}}},
		{"Uuid",
			[][]string{{"5ca32c22-841b-11e8-adc0-fa7ae01bbebc", "5CA32C22-841b-11e8-adc0-fa7ae01bbebc"},
				{"5ca32c22-841b-11e8-adc0-fa7ae01bbebd"}}},
		{"Timestamp",
			[][]string{{"2024-02-29T12:30:45Z", "2024-02-29T12:30:45.000Z", "2024-02-29T15:30:45+03:00"}, {"2024-02-29T12:30:46Z"}}},
		{"Decimal(22,9)", [][]string{{"1.5", "1.50", "01.5"}, {"-1.5"}, {"inf"}, {"nan"}, {"0"}}},
		{"Int32", [][]string{{"0"}, {"-1"}, {"1"}, {"255"}, {"256"}}},
		{"Utf8", [][]string{{""}, {"a"}, {"a\x00"}, {"A"}, {"aa"}}},
		{"String", [][]string{{""}, {"\x00"}, {"\x00\x00"}}},
		{"Bool", [][]string{{"true"}, {"false"}}},
	} {
		typ := keyType(t, c.typ)
		var all [][]byte
		for _, set := range c.sets {
			for i, s := range set {
				v, err := ParseKey(s, typ)
				if err != nil {
					t.Fatal(err)
				}
				key, err := AppendKey(nil, v, typ)
				optional, errOptional := AppendKey(
					nil, v, &Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: typ}}},
				)
				if err != nil || errOptional != nil || !bytes.Equal(key, optional) {
					t.Errorf("%s %q: %x, %v; in an Optional %x, %v", c.typ, s, key, err, optional, errOptional)
				}
				if i > 0 {
					if !bytes.Equal(key, all[len(all)-1]) {
						t.Errorf("%s %q: %x; want %x", c.typ, s, key, all[len(all)-1])
					}
					continue
				}
				for j, other := range all {
					if bytes.HasPrefix(key, other) || bytes.HasPrefix(other, key) {
						t.Errorf("%s %q: %x begins like key %d, %x", c.typ, s, key, j, other)
					}
				}
				all = append(all, key)
			}
		}
		null, err := AppendKey(nil, nullValue(), &Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: typ}}})
		if err != nil || slices.ContainsFunc(all, func(k []byte) bool { return bytes.HasPrefix(k, null) }) {
			t.Errorf("%s: null is %x, %v", c.typ, null, err)
		}
		if _, err := AppendKey(nil, &Ydb.Value{Items: []*Ydb.Value{{}}}, typ); err == nil {
			t.Errorf("%s: a list was taken", c.typ)
		}
	}
	if _, err := AppendKey(nil, &Ydb.Value{}, typeDouble); err == nil {
		t.Error("a Double was taken as a key")
	}
}

func TestOctets(t *testing.T) {
	for _, name := range []string{"String", "Utf8", "Json", "JsonDocument", "Yson"} {
		typ := keyType(t, name)
		rowBytes, err := AppendRaw(nil, []byte("\u00fc"), typ)
		if err != nil || !IsBytes(typ) {
			t.Errorf("%s: %v", name, err)
		}
		v := new(Ydb.Value)
		if err := proto.Unmarshal(rowBytes, v); err != nil {
			t.Fatal(err)
		}
		for _, o := range []*Ydb.Type{typ, {Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: typ}}}} {
			if b, null, err := RawBytes(v, o); string(b) != "\u00fc" || null || err != nil {
				t.Errorf("%s: %q, null %v, %v", FormatType(o), b, null, err)
			}
			if b, null, ok := RawOf(rowBytes, o); string(b) != "\u00fc" || null || !ok {
				t.Errorf("%s of its bytes: %q, null %v, %v", FormatType(o), b, null, ok)
			}
		}
		_, err = AppendRaw(nil, []byte("\xff"), typ)
		if bin := name == "String" || name == "Yson"; (err == nil) != bin {
			t.Errorf("%s of bytes that are no text: %v", name, err)
		}
	}
	optional := keyType(t, "Optional<String>")
	if b, null, err := RawBytes(nullValue(), optional); b != nil || !null || err != nil {
		t.Errorf("null: %q, %v, %v", b, null, err)
	}
	if _, _, err := RawBytes(nullValue(), typeString); err == nil {
		t.Error("null was taken as a String")
	}
	if _, _, err := RawBytes(
		&Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: "1"}}, typeInt64,
	); err == nil || IsBytes(typeInt64) || IsBytes(optional) {
		t.Error("an Int64 was taken as bytes")
	}
}

// FuzzRawOf: the bytes of a value are what its message says, or are left to it.
func FuzzRawOf(f *testing.F) {
	for _, b := range [][]byte{nil, {tagNull, 0}, {tagText, 1, 'a'}, {tagBytes, 0}, {tagText, 1, 0xff},
		{tagBytes, 1, 'a', tagNull, 0}, {tagText, 2, 'a'}, {tagItem, 0}} {
		for i := range 4 {
			f.Add(b, i)
		}
	}
	types := []*Ydb.Type{typeString, typeUtf8, optional(typeString), optional(optional(typeUtf8)), typeInt64}
	f.Fuzz(func(t *testing.T, value []byte, i int) {
		typ := types[uint(i)%uint(len(types))]
		got, null, ok := RawOf(value, typ)
		if !ok {
			return
		}
		v := new(Ydb.Value)
		if err := proto.Unmarshal(value, v); err != nil {
			t.Fatalf("%x was taken: %v", value, err)
		}
		if want, isNull, err := RawBytes(v, typ); err != nil || isNull != null || !bytes.Equal(got, want) {
			t.Errorf("%x of %s: %x, null %t; want %x, %t, %v", value, FormatType(typ), got, null, want, isNull, err)
		}
	})
}

// Whatever a key's text is, it is refused or is a value of the type, whose own
// text is the same key.
func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"0", "-1", "true", "2024-02-29", "2024-02-29T12:30:45.123456Z", "PT1S", "a\xff",
		"5ca32c22-841b-11e8-adc0-fa7ae01bbebc", "1e400000000", "-0.5", "inf"} {
		for i := range uint8(20) {
			f.Add(i, s)
		}
	}
	var types []*Ydb.Type
	for id := range primitiveNames {
		if typ := (&Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}}); IsKey(typ) {
			types = append(types, typ)
		}
	}
	slices.SortFunc(types, func(a, b *Ydb.Type) int { return int(a.GetTypeId()) - int(b.GetTypeId()) })
	types = append(types, keyType(f, "Decimal(35,10)"))
	f.Fuzz(func(t *testing.T, i uint8, s string) {
		typ := types[int(i)%len(types)]
		v, err := ParseKey(s, typ)
		if err != nil {
			return
		}
		key, err := AppendKey(nil, v, typ)
		if err != nil {
			t.Fatalf("%s %q: %v", FormatType(typ), s, err)
		}
		text, err := AppendJSON(nil, v, typ, JSONOptions{})
		if err != nil {
			t.Fatalf("%s %q: %v", FormatType(typ), s, err)
		}
		back, err := ParseJSON(text, typ)
		if err != nil {
			t.Fatalf("%s %q became %s: %v", FormatType(typ), s, text, err)
		}
		again, err := AppendKey(nil, back, typ)
		if err != nil || !bytes.Equal(key, again) {
			t.Errorf("%s %q is the key %x, and %s is %x, %v", FormatType(typ), s, key, text, again, err)
		}
	})
}
