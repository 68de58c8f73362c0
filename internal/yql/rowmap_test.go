package yql

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql/yqltest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// A row whose columns are a map says the same as the message that it is.
func FuzzNamed(f *testing.F) {
	names := []string{"id", "name"}
	types := []*Ydb.Type{yqltest.Primitive(Ydb.Type_UINT64),
		{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: yqltest.Primitive(Ydb.Type_UTF8)}}}}
	rows := NewRows(names, types)
	for _, row := range []*sidecarv1.BulkRow{
		{},
		{
			Columns: map[string]*sidecarv1.Value{"id": {Kind: &sidecarv1.Value_Uint64Value{Uint64Value: 7}},
				"name": {Kind: &sidecarv1.Value_TextValue{TextValue: "a"}}},
		},
		{Columns: map[string]*sidecarv1.Value{"id": {Kind: &sidecarv1.Value_Int64Value{Int64Value: -7}}}},
		{Columns: map[string]*sidecarv1.Value{"nope": {}}},
	} {
		rowBytes, err := proto.Marshal(row)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(rowBytes)
		f.Add(append(rowBytes, rowBytes...))
	}
	f.Fuzz(func(t *testing.T, rowBytes []byte) {
		var message sidecarv1.BulkRow
		if proto.Unmarshal(rowBytes, &message) != nil {
			return // what is no message may be read further than a decoder would
		}
		var cells Cells
		err := rows.Named(rowBytes, &cells)
		failed := false
		for name, value := range message.GetColumns() {
			i, ok := rows.Find(name)
			if !ok {
				failed = true
				continue
			}
			want, bad := Param(value, types[i])
			if bad != nil {
				failed = true
				continue
			}
			if err != nil {
				continue
			}
			var got Ydb.Value
			if proto.Unmarshal(cells.Value(i), &got) != nil || !proto.Equal(&got, want.GetValue()) {
				t.Errorf("%s: %v; want %v", name, &got, want)
			}
		}
		if failed && err == nil {
			t.Errorf("%v is taken", &message)
		}
		if err == nil {
			for i, span := range cells.Spans {
				if _, there := message.GetColumns()[names[i]]; there != span.Set() {
					t.Errorf("%s is there: %v; want %v", names[i], span.Set(), there)
				}
			}
		}
	})
}

func TestMemberAndItems(t *testing.T) {
	for object, want := range map[string]string{
		`{"a":1,"rows":[1, {"rows":2}],"b":"]"}`: `[1, {"rows":2}]`,
		` { "rows" : null } `:                    `null`,
		`{}`:                                     ``,
		`{"rows":[}`:                             `error`,
		`{"rows":[]} 1`:                          `error`,
		`[1]`:                                    `error`,
	} {
		at, ok, err := Member([]byte(object), "rows")
		got := object[at.Start:at.End]
		if err != nil {
			got = "error"
		}
		if got != want || ok != (want != "" && err == nil) && err == nil {
			t.Errorf("%s: %q, %v, %v; want %q", object, got, ok, err, want)
		}
	}
	var got []string
	if err := Items([]byte(`[1, "a,b" ,{"x":[2]}]`), func(item []byte) error { got = append(got, string(item)); return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1", `"a,b"`, `{"x":[2]}`}, got); diff != "" {
		t.Error(diff)
	}
	for _, list := range []string{`[1,]`, `[1`, `{}`, `[1] 2`, ``} {
		if Items([]byte(list), func([]byte) error { return nil }) == nil {
			t.Errorf("%s is taken for a list", list)
		}
	}
}
