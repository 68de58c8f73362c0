package yql

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"
)

func columns(t testing.TB, pairs ...string) *Columns {
	t.Helper()
	var list []*Ydb.Column
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, &Ydb.Column{Name: pairs[i], Type: mustType(t, pairs[i+1])})
	}
	return NewColumns(list)
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
	r := row(t, "Tuple<Uint64,Utf8?>", `[1,"Ann"]`)
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
	if got, err := c.Row(r); err != nil || !proto.Equal(got.Values[0], gUint(1)) || !proto.Equal(got.Values[1], gText("Ann")) {
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
		if got, err := columns(t, pairs...).AppendObject(nil, r, JSONOptions{}); err != nil || string(got) != c.want {
			t.Errorf("%q: got %s, %v; want %s", c.names, got, err, c.want)
		}
	}
}

func TestRowsThatDoNotFitAreErrors(t *testing.T) {
	c := columns(t, "id", "Uint64")
	for _, r := range []*Ydb.Value{nil, {}, {Items: []*Ydb.Value{boolValue(true)}}} {
		if _, err := c.AppendObject(nil, r, JSONOptions{}); err == nil {
			t.Errorf("%v: no error", r)
		}
		if _, err := c.AppendArray(nil, r, JSONOptions{}); err == nil {
			t.Errorf("%v: no error", r)
		}
		if _, err := c.Row(r); err == nil {
			t.Errorf("%v: no error", r)
		}
	}
	_, err := c.AppendObject(nil, &Ydb.Value{Items: []*Ydb.Value{boolValue(true)}}, JSONOptions{})
	if want := "id: the server sent a *Ydb.Value_BoolValue as a Uint64"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// everything is a row with a column of each cost: numbers, text with escapes,
// dates, decimals, bytes and containers.
func everything(t testing.TB) (*Columns, *Ydb.Value) {
	c := columns(t, "id", "Uint64", "n", "Int32?", "name", "Utf8?", "created", "Timestamp", "day", "Date", "price", "Decimal(22,9)",
		"uuid", "Uuid", "ratio", "Double", "data", "String", "took", "Interval", "lines", "List<Struct<product:Utf8,quantity:Int64>>")
	r := row(t, "Tuple<Uint64,Int32?,Utf8?,Timestamp,Date,Decimal(22,9),Uuid,Double,String,Interval,List<Struct<product:Utf8,quantity:Int64>>>",
		`[18446744073709551615,5,"Ann \"é\"\n","2024-01-31T10:00:00.123456Z","2024-01-31","-12345678901.5","5ca32c22-841b-11e8-adc0-fa7ae01bbebc",0.1,"AP/+AP/+","P1DT2H3M4.5S",
		[{"product":"p000001","quantity":1},{"product":"p000002","quantity":-2}]]`)
	return c, r
}

func TestWritingARowDoesNotAllocate(t *testing.T) {
	c, r := everything(t)
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := c.AppendObject(buf, r, JSONOptions{}); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a row", n)
	}
}

func BenchmarkAppendObject(b *testing.B) {
	point := columns(b, "id", "Uint64", "name", "Utf8?")
	pointRow := row(b, "Tuple<Uint64,Utf8?>", `[42,"Ann"]`)
	wide, wideRow := everything(b)
	for _, c := range []struct {
		name string
		cols *Columns
		row  *Ydb.Value
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
