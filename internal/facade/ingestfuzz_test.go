package facade

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// FuzzIngestFields finds what the messages have, in any octets.
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

// FuzzIngestLines cuts any body into lines as the plain way would, however it
// comes, and never holds more than a line may have.
func FuzzIngestLines(f *testing.F) {
	f.Add([]byte("{\"id\":1}\n\n{\"id\":2}\r\n"), 20)
	f.Add([]byte("a\nbb\nccc"), 2)
	f.Add(bytes.Repeat([]byte("x"), 300), 64)
	f.Fuzz(func(t *testing.T, body []byte, limit int) {
		limit = 16 + (limit&0xffff)%1000
		var want []string
		for line := range bytes.Lines(body) {
			content := bytes.TrimRight(line, "\n")
			if bytes.ContainsAny(content, "\r \t\v\f\x85\xa0") || bytes.ContainsFunc(content, func(r rune) bool { return r > 0x7f }) {
				return // space around a line is cut, whatever it is
			}
			switch {
			case len(content) > limit+2:
				want = append(want, "too long")
			case len(content) > 0:
				want = append(want, string(content))
			}
		}
		r := lineReader{r: bufio.NewReaderSize(bytes.NewReader(body), 16), limit: limit}
		var got []string
		for {
			line, err := r.next()
			if err == io.EOF {
				break
			}
			if errors.Is(err, errLongLine) || len(line) > limit {
				got = append(got, "too long")
			} else if err != nil {
				t.Fatal(err)
			} else if len(line) > 0 {
				got = append(got, string(line))
			}
			if cap(r.long) > 4*(limit+32) {
				t.Fatalf("a line of at most %d bytes is held in %d", limit, cap(r.long))
			}
		}
		for i := range want {
			if len(want[i]) > limit && want[i] != "too long" {
				want[i] = "too long" // AddJSON says so
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q: got %q, want %q", body, got, want)
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
		"cut":            {rows[:3], 0, "", "it is no IngestRequest"},
	} {
		part, got, err := partOf(tc.message)
		if part != tc.part || string(got) != tc.want || (err == nil) != (tc.refused == "") ||
			err != nil && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%s: %d, %q, %v", name, part, got, err)
		}
	}
}
