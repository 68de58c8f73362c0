package httpapi

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
)

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
