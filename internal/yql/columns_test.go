package yql

import (
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func columns(t testing.TB, pairs ...string) *Columns {
	t.Helper()
	var list []*Ydb.Column
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, &Ydb.Column{Name: pairs[i], Type: mustType(t, pairs[i+1])})
	}
	return NewColumns(list)
}

// rowBytes is a row as it comes.
func rowBytes(t testing.TB, row *Ydb.Value) []byte {
	t.Helper()
	b, err := proto.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// plain is a row as clients of the gRPC API read it.
func plain(t testing.TB, c *Columns, row []byte) (*sidecarv1.Row, error) {
	t.Helper()
	b, err := c.AppendRow([]byte{}, row)
	if err != nil {
		return nil, err
	}
	set := new(sidecarv1.ResultSet)
	if err := proto.Unmarshal(b, set); err != nil || len(set.Rows) != 1 {
		t.Fatalf("%x: %v, %d rows", b, err, len(set.Rows))
	}
	return set.Rows[0], nil
}

func row(t testing.TB, typ, in string) *Ydb.Value {
	t.Helper()
	v, err := ParseJSON([]byte(in), mustType(t, typ))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestRowsAreObjectsOrArrays(t *testing.T) {
	c := columns(t, "id", "Uint64", "na\"me", "Utf8?")
	r := rowBytes(t, row(t, "Tuple<Uint64,Utf8?>", `[1,"Ann"]`))
	if got, err := c.AppendObject([]byte("x"), r, JSONOptions{}); err != nil || string(got) != `x{"id":"1","na\"me":"Ann"}` {
		t.Errorf("got %s, %v", got, err)
	}
	if got, err := c.AppendArray([]byte("x"), r, JSONOptions{Ints: IntsAsNumbers}); err != nil || string(got) != `x[1,"Ann"]` {
		t.Errorf("got %s, %v", got, err)
	}
	if got, want := string(c.AppendHeader(nil)), `[{"name":"id","type":"Uint64"},{"name":"na\"me","type":"Optional<Utf8>"}]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if h := c.Header(); c.Len() != 2 || len(h) != 2 || h[1].GetName() != `na"me` || h[1].GetType() != "Optional<Utf8>" {
		t.Errorf("got %v", h)
	}
	if got, err := plain(t, c, r); err != nil || !proto.Equal(got.Values[0], gUint(1)) || !proto.Equal(got.Values[1], gText("Ann")) {
		t.Errorf("got %v, %v", got, err)
	}
	if got := string(columns(t).AppendHeader(nil)); got != "[]" {
		t.Errorf("got %s", got)
	}
}

func TestColumnsOfOneNameKeepTheirValues(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{"a", "a", "a"}, `{"a":1,"a_2":2,"a_3":3}`},
		{[]string{"a", "a_2", "a"}, `{"a":1,"a_2":2,"a_3":3}`},
		{[]string{"a", "a", "a_2", "a_2"}, `{"a":1,"a_3":2,"a_2":3,"a_2_2":4}`},
		{[]string{"", ""}, `{"":1,"_2":2}`},
	} {
		var pairs []string
		r := &Ydb.Value{}
		for i, name := range c.names {
			pairs = append(pairs, name, "Int32")
			r.Items = append(r.Items, &Ydb.Value{Value: &Ydb.Value_Int32Value{Int32Value: int32(i + 1)}})
		}
		if got, err := columns(t, pairs...).AppendObject(nil, rowBytes(t, r), JSONOptions{}); err != nil || string(got) != c.want {
			t.Errorf("%q: got %s, %v; want %s", c.names, got, err, c.want)
		}
	}
}

func TestRowsThatDoNotFitAreErrors(t *testing.T) {
	c := columns(t, "id", "Uint64")
	for _, r := range [][]byte{nil, rowBytes(t, &Ydb.Value{Items: []*Ydb.Value{boolValue(true)}}),
		rowBytes(t,
			&Ydb.Value{
				Items: []*Ydb.Value{{Value: &Ydb.Value_Uint64Value{Uint64Value: 1}}, {Value: &Ydb.Value_Uint64Value{Uint64Value: 2}}},
			}),
		{tagItem}, {tagItem, 9, 0}, {tagItem, 2, tagUint64, 1}, {tagText, 5}, {tagItem, 0}} {
		if _, err := c.AppendObject(nil, r, JSONOptions{}); err == nil {
			t.Errorf("%v: no error", r)
		}
		if _, err := c.AppendArray(nil, r, JSONOptions{}); err == nil {
			t.Errorf("%v: no error", r)
		}
		if _, err := plain(t, c, r); err == nil {
			t.Errorf("%v: no error", r)
		}
	}
	_, err := c.AppendObject(nil, rowBytes(t, &Ydb.Value{Items: []*Ydb.Value{boolValue(true)}}), JSONOptions{})
	if want := "id: the server sent a *Ydb.Value_BoolValue as a Uint64"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// everything is a row with a column of each cost: numbers, text with escapes,
// dates, decimals and bytes.
func everything(t testing.TB) (*Columns, []byte) {
	c := columns(t, "id", "Uint64", "n", "Int32?", "name", "Utf8?", "created", "Timestamp", "day", "Date", "price", "Decimal(22,9)",
		"uuid", "Uuid", "ratio", "Double", "data", "String", "took", "Interval", "none", "Json?", "on", "Bool")
	r := row(t, "Tuple<Uint64,Int32?,Utf8?,Timestamp,Date,Decimal(22,9),Uuid,Double,String,Interval,Json?,Bool>",
		`[18446744073709551615,5,"Ann \"é\"\n","2024-01-31T10:00:00.123456Z","2024-01-31","-12345678901.5","5ca32c22-841b-11e8-adc0-fa7ae01bbebc",0.1,"AP/+AP/+","P1DT2H3M4.5S",null,true]`)
	return c, rowBytes(t, r)
}

func TestWritingARowDoesNotAllocate(t *testing.T) {
	c, r := everything(t)
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := c.AppendObject(buf, r, JSONOptions{}); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a row as JSON", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := c.AppendRow(buf, r); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a row of the gRPC face", n)
	}
}

func BenchmarkAppendObject(b *testing.B) {
	point := columns(b, "id", "Uint64", "name", "Utf8?")
	pointRow := rowBytes(b, row(b, "Tuple<Uint64,Utf8?>", `[42,"Ann"]`))
	wide, wideRow := everything(b)
	for _, c := range []struct {
		name string
		cols *Columns
		row  []byte
	}{{"point", point, pointRow}, {"wide", wide, wideRow}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			buf := make([]byte, 0, 4096)
			for b.Loop() {
				if _, err := c.cols.AppendObject(buf, c.row, JSONOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParamJSON(b *testing.B) {
	typ := mustType(b, "List<Struct<product:Utf8,quantity:Int64>>")
	raw := []byte(`[{"product":"p000001","quantity":1},{"product":"p000002","quantity":2}]`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParamJSON(raw, typ); err != nil {
			b.Fatal(err)
		}
	}
}

// Few names and many are looked through in different ways.
func TestRepeatedNames(t *testing.T) {
	for _, n := range []int{0, 1, 2, 16, 17, 40} {
		names := make([]string, n)
		for i := range names {
			names[i] = strings.Repeat("a", i)
		}
		if repeated(names) {
			t.Errorf("%d names: got one twice", n)
		}
		if n > 1 {
			names[n-1] = names[0]
			if !repeated(names) {
				t.Errorf("%d names: the last is the first", n)
			}
		}
	}
}
