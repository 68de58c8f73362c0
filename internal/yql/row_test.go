package yql

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql/yqltest"
	"github.com/ydb-sidecar/sidecar/proof/short"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// What Rows writes is what the long way writes, and what it refuses is refused
// there with the same words.
func TestRowsAreAsParameters(t *testing.T) {
	for seed := range uint64(short.Of(20_000, 4000)) {
		r := rand.New(rand.NewPCG(seed, 11))
		typ := yqltest.Type(r, 1+r.IntN(3))
		if r.IntN(3) > 0 {
			typ = yqltest.Primitive(yqltest.Primitives[r.IntN(len(yqltest.Primitives))])
			if r.IntN(2) == 0 {
				typ = yqltest.Optional(typ)
			}
		}
		v := yqltest.Value(r, typ)
		text, err := AppendJSON(nil, v, typ, JSONOptions{Ints: Ints(r.IntN(2))})
		if err != nil {
			t.Fatal(err)
		}
		checkRow(t, text, typ)
		form, err := ToValue(v, typ)
		if err != nil {
			t.Fatal(err)
		}
		checkRowValue(t, form, typ)
	}
}

func TestRowsTakeAndRefuseAsParameters(t *testing.T) {
	values := []string{
		`null`, `true`, `"true"`, `false`, `"x"`, `""`, `0`, `-0`, `1`, `-1`, `01`, `"01"`, `1.0`, `1.5`, `1e3`, `"1e3"`,
		`"12"`, `" 12"`, `127`, `128`, `-128`, `-129`, `255`, `256`,
		`2147483647`, `2147483648`, `4294967295`, `4294967296`, `9223372036854775807`, `-9223372036854775808`,
		`9223372036854775808`, `18446744073709551615`, `18446744073709551616`,
		`99999999999999999999`, `1e400`, `"NaN"`, `"inf"`, `"a\u0062c\n"`, `"\ud800"`, "\"\xff\"", "\"a\x01\"", `"é😀"`,
		`[1]`, `{}`, `{"a":1}`, `{"base64":"YQ"}`, `"YQ"`, `"2024-01-31"`, `"2024-01-31T10:00:00Z"`,
		`{"type":"Utf8","value":"x"}`, `{"type":"Int32","value":5}`, `{"type":"Optional<Int32>","value":5}`, `nul`,
		`tru`, `-`, `"`, `"1.50"`, `5ca32c22`, `"5ca32c22-841b-11e8-adc0-fa7ae01bbebc"`,
	}
	for _, name := range []string{
		"Bool", "Int8", "Int16", "Int32", "Int64", "Uint8", "Uint16", "Uint32", "Uint64", "Float", "Double", "Utf8",
		"String", "Json", "JsonDocument", "Yson", "Uuid", "Date", "Datetime", "Timestamp",
		"Interval", "Date32", "Timestamp64", "DyNumber", "Decimal(22,9)", "pgint4", "TzDate",
	} {
		for _, form := range []string{"%s", "Optional<%s>"} {
			typ, err := ParseType(fmt.Sprintf(form, name))
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range values {
				checkRow(t, []byte(v), typ)
			}
		}
	}
}

// checkRow compares a row of one column with ParamJSON.
func checkRow(t *testing.T, text []byte, typ *Ydb.Type) {
	t.Helper()
	rows := NewRows([]string{"c"}, []*Ydb.Type{typ})
	var c Cells
	row := append(append([]byte(`{"c":`), text...), '}')
	err := rows.JSON(row, &c)
	want, wantErr := ParamJSON(text, typ)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%s as %s: %v; ParamJSON says %v", text, FormatType(typ), err, wantErr)
	}
	if err != nil {
		if !strings.Contains(err.Error(), "invalid JSON") && json.Valid(text) && err.Error() != At(wantErr, "c").Error() {
			t.Fatalf("%s as %s: %v; ParamJSON says %v", text, FormatType(typ), err, wantErr)
		}
		return
	}
	checkOctets(t, text, c.Value(0), want.Value, typ)
}

func checkRowValue(t *testing.T, v *sidecarv1.Value, typ *Ydb.Type) {
	t.Helper()
	rowBytes, err := proto.Marshal(&sidecarv1.Row{Values: []*sidecarv1.Value{v}})
	if err != nil {
		t.Fatal(err)
	}
	rows := NewRows([]string{"c"}, []*Ydb.Type{typ})
	var c Cells
	err = rows.Encoded([]int{0}, rowBytes, &c)
	want, wantErr := Param(v, typ)
	if fmt.Sprint(err) != fmt.Sprint(At(wantErr, "c")) {
		t.Fatalf("%v as %s: %v; Param says %v", v, FormatType(typ), err, wantErr)
	}
	if err == nil {
		checkOctets(t, v, c.Value(0), want.Value, typ)
	}
}

// FuzzRowWire holds any bytes to what the messages say of them.
func FuzzRowWire(f *testing.F) {
	types := []*Ydb.Type{yqltest.Primitive(Ydb.Type_UINT32), yqltest.Optional(yqltest.Primitive(Ydb.Type_UTF8)),
		yqltest.Optional(yqltest.Primitive(Ydb.Type_STRING))}
	rows := NewRows([]string{"id", "a", "b"}, types)
	for _, values := range [][]*sidecarv1.Value{
		{{Kind: &sidecarv1.Value_Int64Value{Int64Value: 5}}, {Kind: &sidecarv1.Value_TextValue{TextValue: "x"}},
			{Kind: &sidecarv1.Value_NullValue{NullValue: true}}},
		{{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: 1 << 40}}, {}, {Kind: &sidecarv1.Value_BytesValue{BytesValue: []byte{255}}}},
	} {
		rowBytes, err := proto.Marshal(&sidecarv1.Row{Values: values})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(rowBytes)
	}
	f.Fuzz(func(t *testing.T, rowBytes []byte) {
		var c Cells
		err := rows.Encoded([]int{0, 1, 2}, rowBytes, &c)
		var m sidecarv1.Row
		if proto.Unmarshal(rowBytes, &m) != nil {
			if err == nil {
				t.Fatalf("%x is no message and was taken", rowBytes)
			}
			return
		}
		if err == nil && len(m.Values) != 3 {
			t.Fatalf("%x: %d values were taken for 3 columns", rowBytes, len(m.Values))
		}
		for i, v := range m.Values[:min(3, len(m.Values))] {
			want, fault := Param(v, types[i])
			if fault != nil && err == nil {
				t.Fatalf("%x was taken; Param says %v", rowBytes, fault)
			}
			if err == nil {
				checkOctets(t, rowBytes, c.Value(i), want.Value, types[i])
			}
		}
	})
}

func checkOctets(t *testing.T, from any, rowBytes []byte, want *Ydb.Value, typ *Ydb.Type) {
	t.Helper()
	var got Ydb.Value
	if err := proto.Unmarshal(rowBytes, &got); err != nil {
		t.Fatalf("%v as %s: %v in %x", from, FormatType(typ), err, rowBytes)
	}
	if !proto.Equal(&got, want) {
		t.Fatalf("%v as %s: got %v, want %v", from, FormatType(typ), &got, want)
	}
}

func TestRowsOfManyColumns(t *testing.T) {
	types := []*Ydb.Type{yqltest.Primitive(Ydb.Type_UINT32), yqltest.Optional(yqltest.Primitive(Ydb.Type_UTF8)),
		yqltest.Primitive(Ydb.Type_BOOL)}
	rows := NewRows([]string{"id", "a b", "c"}, types)
	var c Cells
	for _, text := range []string{`{"id":1,"a b":"x","c":true}`, ` { "c" : true , "a b" : "x" , "id" : 1 } `,
		`{"c":true,"id":1,"a\u0020b":"x"}`} {
		if err := rows.JSON([]byte(text), &c); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for i, want := range []string{"1", `"x"`, "true"} {
			v, err := ParseJSON([]byte(want), types[i])
			if err != nil {
				t.Fatal(err)
			}
			checkOctets(t, text, c.Value(i), v, types[i])
		}
	}
	if err := rows.JSON([]byte(`{"c":false}`), &c); err != nil || c.Spans[0].Set() || c.Spans[1].Set() || !c.Spans[2].Set() {
		t.Errorf("%+v, %v; want c alone", c.Spans, err)
	}
	if err := rows.JSON([]byte(`{}`), &c); err != nil || c.Spans[2].Set() {
		t.Errorf("%+v, %v; want no column", c.Spans, err)
	}
	for text, says := range map[string]string{
		`{"id":1,"x":1}`: `no column "x"`, `{"id":1,"id":2}`: "id: the column appears twice", `5`: "a row is an object",
		``: "invalid JSON", `{"id":1}}`: "text behind",
		`{"id":1,}`: "expected a name", `{"id" 1}`: "expected :", `{"id":"q"}`: `id: "q" is not a Uint32`,
	} {
		if err := rows.JSON([]byte(text), &c); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q", text, err, says)
		}
	}
}

// Keys sort as their values do, and no two values have one key.
func TestKeysSortAsValues(t *testing.T) {
	for name, values := range map[string][]string{
		"Int32":          {"-2147483648", "-5", "0", "7", "2147483647"},
		"Int64":          {"-9223372036854775808", "-1", "0", "1"},
		"Uint64":         {"0", "1", "256", "18446744073709551615"},
		"Uint8":          {"0", "1", "255"},
		"Utf8":           {`""`, `"\u0000"`, `"\u0000a"`, `"a"`, `"a\u0000"`, `"a\u0000b"`, `"aa"`, `"b"`},
		"String":         {`""`, `"AA=="`, `"AAA="`, `"AP8="`, `"/w=="`},
		"Optional<Utf8>": {`null`, `""`, `"a"`},
		"Bool":           {"false", "true"},
		"Date":           {`"1970-01-01"`, `"2024-01-31"`},
		"Timestamp64":    {`"1900-01-31T10:00:00Z"`, `"2024-01-31T10:00:00Z"`},
		"Decimal(22,9)":  {`"-inf"`, `"-5"`, `"-0.000000001"`, `"0"`, `"0.1"`, `"5"`, `"inf"`},
	} {
		typ, err := ParseType(name)
		if err != nil {
			t.Fatal(err)
		}
		if !SortKeyType(typ) {
			t.Errorf("%s is no type of keys", name)
		}
		var keys [][]byte
		for _, text := range values {
			var c Cells
			if err := NewRows([]string{"k"}, []*Ydb.Type{typ}).JSON([]byte(`{"k":`+text+`}`), &c); err != nil {
				t.Fatal(err)
			}
			key, ok := AppendSortKey(nil, c.Value(0), typ)
			if !ok {
				t.Fatalf("%s %s has no key", name, text)
			}
			keys = append(keys, key)
		}
		for i := range keys[1:] {
			if bytes.Compare(keys[i], keys[i+1]) >= 0 || bytes.HasPrefix(keys[i+1], keys[i]) {
				t.Errorf("%s: the key of %s, %x, is not before that of %s, %x", name, values[i], keys[i], values[i+1], keys[i+1])
			}
		}
	}
	for _, name := range []string{"DyNumber", "TzDate", "Json", "pgint4", "Double"} {
		if typ, err := ParseType(name); err != nil || SortKeyType(typ) {
			t.Errorf("%s, %v: its equal values may look different", name, err)
		}
	}
}

func TestRowsDoNotAllocate(t *testing.T) {
	rows := NewRows([]string{"id", "name", "n", "at"}, []*Ydb.Type{
		yqltest.Primitive(Ydb.Type_UINT64), yqltest.Optional(yqltest.Primitive(Ydb.Type_UTF8)),
		yqltest.Optional(yqltest.Primitive(Ydb.Type_INT32)), yqltest.Primitive(Ydb.Type_DOUBLE),
	})
	var c Cells
	row := []byte(`{"id":"12345","name":"a name of some length","n":null,"at":1.5}`)
	if n := testing.AllocsPerRun(100, func() {
		if err := rows.JSON(row, &c); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for a row", n)
	}
}

func BenchmarkRowJSON(b *testing.B) {
	rows := NewRows([]string{"id", "name", "n", "at"}, []*Ydb.Type{
		yqltest.Primitive(Ydb.Type_UINT64), yqltest.Optional(yqltest.Primitive(Ydb.Type_UTF8)),
		yqltest.Optional(yqltest.Primitive(Ydb.Type_INT32)), yqltest.Primitive(Ydb.Type_DOUBLE),
	})
	var c Cells
	row := []byte(`{"id":"12345","name":"a name of some length","n":77,"at":1.5}`)
	b.ReportAllocs()
	for b.Loop() {
		if err := rows.JSON(row, &c); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzRowJSON holds any line to what ParamJSON makes of its members.
func FuzzRowJSON(f *testing.F) {
	f.Add([]byte(`{"id":1,"a":"x","n":null}`))
	f.Add([]byte(`{"n":-5,"id":"7","d":1e3}`))
	f.Add([]byte(`{"id":1,"a":{"type":"Utf8","value":"q"}}`))
	f.Add([]byte(`{"b":"YQ==","id":18446744073709551615}`))
	names := []string{"id", "a", "n", "d", "b", "t"}
	var types []*Ydb.Type
	for _, name := range []string{"Uint64", "Optional<Utf8>", "Optional<Int32>", "Double", "Optional<String>", "Optional<Timestamp>"} {
		typ, err := ParseType(name)
		if err != nil {
			f.Fatal(err)
		}
		types = append(types, typ)
	}
	rows := NewRows(names, types)
	f.Fuzz(func(t *testing.T, line []byte) {
		var c Cells
		err := rows.JSON(line, &c)
		var members map[string]json.RawMessage
		if err != nil {
			return
		}
		if json.Unmarshal(line, &members) != nil {
			t.Fatalf("%q was taken and is no JSON object", line)
		}
		for i, name := range names {
			raw, there := members[name]
			if there != c.Spans[i].Set() {
				t.Fatalf("%q: column %s is %v", line, name, c.Spans[i])
			}
			if !there {
				continue
			}
			want, err := ParamJSON(raw, types[i])
			if err != nil {
				t.Fatalf("%q was taken; ParamJSON says of %s: %v", line, name, err)
			}
			checkOctets(t, line, c.Value(i), want.Value, types[i])
			if _, ok := AppendSortKey(nil, c.Value(i), types[i]); ok != SortKeyType(types[i]) {
				t.Fatalf("%q: a key of %s: %v", line, FormatType(types[i]), ok)
			}
		}
	})
}

// A column of a row has a bounded number of values within, however they nest, and more are not made.
func TestValuesWithinACellAreBounded(t *testing.T) {
	rows := NewRows([]string{"a", "b"}, []*Ydb.Type{mustType(t, "List<Int8>"), mustType(t, "Utf8")})
	list := func(items []byte) []byte {
		number := (&sidecarv1.Value{}).ProtoReflect().Descriptor().Fields().ByName("list_value").Number()
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), items)
	}
	ones := func(n int) []byte { return list(bytes.Repeat([]byte{1<<3 | 2, 2, 3 << 3, 1}, n)) }
	deep := []byte{1 << 3, 0}
	for range 3000 {
		deep = list(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), deep))
	}
	text := func(n int) []byte { return []byte(`{"b":"x","a":[` + strings.Repeat("1,", n-1) + `1]}`) }
	var c Cells
	wire := func(value []byte) error {
		row := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), value)
		return rows.Encoded([]int{0}, row, &c)
	}
	named := func(value []byte) error {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "a")
		entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), value)
		return rows.Named(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry), &c)
	}
	for _, tt := range []struct {
		name string
		read func() error
		ok   bool
	}{
		{"json", func() error { return rows.JSON(text(mostInCell-1), &c) }, true},
		{"json of more", func() error { return rows.JSON(text(mostInCell), &c) }, false},
		{"json of a type of its own", func() error {
			return rows.JSON([]byte(`{"a":{"type":"List<Int8>","value":[`+strings.Repeat("1,", mostInCell-1)+`1]}}`), &c)
		}, false},
		{"wire", func() error { return wire(ones(mostInCell - 1)) }, true},
		{"wire of more", func() error { return wire(ones(mostInCell)) }, false},
		{"wire of nothing, again and again", func() error { return wire(list(bytes.Repeat([]byte{1<<3 | 2, 0}, mostInCell))) }, false},
		{"deep", func() error { return wire(deep) }, false},
		{"a map", func() error { return named(ones(mostInCell - 1)) }, true},
		{"a map of more", func() error { return named(ones(mostInCell)) }, false},
	} {
		if err := tt.read(); (err == nil) != tt.ok {
			t.Errorf("%s: %.100v", tt.name, err)
		}
	}
	many, long := ones(1<<20), text(1<<20)
	if n := testing.AllocsPerRun(1, func() { _ = wire(many) }); n > 100 {
		t.Errorf("%v allocations for a message that is refused", n)
	}
	if n := testing.AllocsPerRun(1, func() { _ = rows.JSON(long, &c) }); n > 10*mostInCell {
		t.Errorf("%v allocations for a text that is refused", n)
	}
}

// A row costs nothing for the columns that it does not name.
func TestCellsKnowWhatARowNames(t *testing.T) {
	var names []string
	var types []*Ydb.Type
	for i := range 1000 {
		names, types = append(names, fmt.Sprint("c", i)), append(types, mustType(t, "Int64"))
	}
	rows := NewRows(names, types)
	var c Cells
	for _, row := range []struct {
		text string
		want []int
	}{{`{"c7":1,"c3":2}`, []int{7, 3}}, {`{}`, nil}, {`{"c3":1}`, []int{3}}} {
		if err := rows.JSON([]byte(row.text), &c); err != nil || !slices.Equal(c.Named, row.want) {
			t.Errorf("%s: %v, %v; want %v", row.text, c.Named, err, row.want)
		}
		for i, s := range c.Spans {
			if s.Set() != slices.Contains(row.want, i) {
				t.Errorf("%s: column %d is set: %v", row.text, i, s.Set())
			}
		}
	}
	few := NewRows(names[:2], types[:2])
	if err := few.JSON([]byte(`{"c1":1}`), &c); err != nil || len(c.Spans) != 2 || c.Spans[0].Set() || !c.Spans[1].Set() {
		t.Errorf("%v, %+v", err, c.Spans)
	}
}
