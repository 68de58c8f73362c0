package grpcapi

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// FuzzIngestFields finds what the messages have, in any bytes.
func FuzzIngestFields(f *testing.F) {
	m := &sidecarv1.IngestRequest{
		Part: &sidecarv1.IngestRequest_Rows{Rows: &sidecarv1.IngestRows{Columns: []string{"id", "a"}, Rows: []*sidecarv1.Row{{}, {}}}},
	}
	octets, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(octets)
	f.Add([]byte{0x12, 0x80})
	f.Fuzz(func(t *testing.T, octets []byte) {
		var rows sidecarv1.IngestRows
		if proto.Unmarshal(octets, &rows) != nil {
			return
		}
		var names []string
		n := 0
		for number, field := range yql.Fields(octets) {
			switch number {
			case 0:
				t.Fatalf("%x: it is no message", octets)
			case fieldColumns:
				names = append(names, string(field))
			case fieldRow:
				n++
			}
		}
		if !slices.Equal(names, rows.Columns) || n != len(rows.Rows) {
			t.Fatalf("%x: columns %q, %d rows; want %q, %d", octets, names, n, rows.Columns, len(rows.Rows))
		}
	})
}

// The last part counts, and a field of the wrong type is one that is not known.
func TestPartOf(t *testing.T) {
	field := func(number protowire.Number, text string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), text)
	}
	rows := field(fieldRows, "rows")
	wrong := protowire.AppendVarint(protowire.AppendTag(nil, fieldRows, protowire.VarintType), 1)
	for name, tc := range map[string]struct {
		message []byte
		part    protowire.Number
		want    string
		refused string
	}{
		"rows":           {rows, fieldRows, "rows", ""},
		"open_and_rows":  {slices.Concat(field(fieldOpen, "open"), rows), fieldRows, "rows", ""},
		"none":           {nil, 0, "", ""},
		"wrong":          {wrong, 0, "", "field 2 of sidecar.v1.IngestRequest"},
		"rows_and_wrong": {slices.Concat(rows, wrong), 0, "", "field 2 of sidecar.v1.IngestRequest"},
		"rows_and_newer": {slices.Concat(rows, field(3, "x")), 0, "", "field 3 of sidecar.v1.IngestRequest"},
		"cut":            {rows[:3], 0, "", "it is not an IngestRequest"},
	} {
		part, got, err := partOf(tc.message)
		if part != tc.part || string(got) != tc.want || (err == nil) != (tc.refused == "") ||
			err != nil && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%s: %d, %q, %v", name, part, got, err)
		}
	}
}
