package yql

import (
	"math/rand/v2"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql/yqltest"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// checkCell compares what is written from the bytes of a cell with what the long way writes.
func checkCell(t testing.TB, item []byte, typ *Ydb.Type) {
	t.Helper()
	c := newCell("c", typ)
	for _, o := range []JSONOptions{{}, {Ints: IntsAsNumbers}} {
		got, ok := quickJSON(nil, item, &c, o)
		if !ok {
			continue
		}
		v, err := parseValue(item)
		if err != nil {
			t.Fatalf("%x as %s: written as %s, but it is no message", item, FormatType(typ), got)
		}
		if want, err := AppendJSON(nil, v, typ, o); err != nil || string(got) != string(want) {
			t.Fatalf("%x as %s: got %s; want %s, %v", item, FormatType(typ), got, want, err)
		}
	}
	columns := NewColumns([]*Ydb.Column{{Name: "c", Type: typ}})
	got, err := plain(t, columns, append([]byte{tagItem}, appendLength(nil, item)...))
	v, bad := parseValue(item)
	if bad == nil {
		var want, _ = ToValue(v, typ)
		if _, bad = ToValue(v, typ); bad == nil && (err != nil || !proto.Equal(got.Values[0], want)) {
			t.Fatalf("%x as %s: got %v, %v; want %v", item, FormatType(typ), got, err, want)
		}
	}
	if (err == nil) != (bad == nil) {
		t.Fatalf("%x as %s: %v; the long way says %v", item, FormatType(typ), err, bad)
	}
}

func appendLength(dst, b []byte) []byte { return appendBytes(dst, b)[1:] }

// Rows of random types are written from their bytes as the long way writes them.
func TestRowsFromOctetsAreAsFromMessages(t *testing.T) {
	quick, cells := 0, short.Of(20_000, 4000)
	for seed := range uint64(cells) {
		r := rand.New(rand.NewPCG(seed, 12))
		typ := yqltest.Type(r, 1+r.IntN(3))
		if r.IntN(3) > 0 {
			typ = yqltest.Primitive(yqltest.Primitives[r.IntN(len(yqltest.Primitives))])
			if r.IntN(2) == 0 {
				typ = yqltest.Optional(typ)
			}
		}
		item := rowBytes(t, yqltest.Value(r, typ))
		checkCell(t, item, typ)
		c := newCell("c", typ)
		if _, ok := quickPlain(nil, item, &c); ok {
			quick++
		}
	}
	if quick < cells/2 {
		t.Errorf("only %d of %d cells were written the quick way", quick, cells)
	}
}

// A long row has a length of two bytes or three, however long its bytes were.
func TestLengthsOfRowsArePutRight(t *testing.T) {
	for _, n := range []int{0, 1, 20, 60, 63, 100, 120, 125, 126, 127, 128, 4000, 16_382, 16_383, 16_384, 16_390, 100_000} {
		for _, name := range []string{"Utf8", "Uint64"} {
			columns, row := []*Ydb.Column{}, &Ydb.Value{}
			typ := mustType(t, name)
			v := &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: string(make([]byte, n))}}
			count := 1
			if name == "Uint64" { // the bytes of a row shrink
				if n > 10_000 && testing.Short() {
					continue // the length of a row of 4000 has three bytes already
				}
				v, count = &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: 1}}, n
			}
			for range count {
				columns, row.Items = append(columns, &Ydb.Column{Name: "c", Type: typ}), append(row.Items, v)
			}
			got, err := plain(t, NewColumns(columns), rowBytes(t, row))
			if err != nil || len(got.Values) != count || (name == "Utf8" && len(got.Values[0].GetTextValue()) != n) {
				t.Fatalf("%d of %s: %d values, %v", n, name, len(got.GetValues()), err)
			}
		}
	}
}

// Whatever comes, the quick way writes what the long way would, or nothing.
func FuzzCell(f *testing.F) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 13))
		typ := yqltest.Primitive(yqltest.Primitives[r.IntN(len(yqltest.Primitives))])
		b, _ := proto.Marshal(yqltest.Value(r, typ))
		f.Add(b, FormatType(yqltest.Optional(typ)))
	}
	f.Add([]byte{0x79, 1, 2, 3, 4, 5, 6, 7, 8, 0x81, 1, 1, 2, 3, 4, 5, 6, 7, 8}, "Decimal(22,9)")
	f.Fuzz(func(t *testing.T, item []byte, name string) {
		typ, err := ParseType(name)
		if err != nil {
			return
		}
		checkCell(t, item, typ)
		_, _ = NewColumns([]*Ydb.Column{{Name: "c", Type: typ}}).AppendObject(nil, item, JSONOptions{})
	})
}

// The halves of a decimal come in either order.
func TestHalvesOfADecimalComeInEitherOrder(t *testing.T) {
	c := newCell("c", mustType(t, "Decimal(35,0)"))
	low, high := []byte{0x79, 1, 0, 0, 0, 0, 0, 0, 0}, []byte{0x81, 1, 1, 0, 0, 0, 0, 0, 0, 0}
	for _, item := range [][]byte{append(low[:9:9], high...), append(high[:10:10], low...)} {
		if got, ok := quickJSON(nil, item, &c, JSONOptions{}); !ok || string(got) != `"18446744073709551617"` {
			t.Errorf("%x: %s, %t", item, got, ok)
		}
	}
}
