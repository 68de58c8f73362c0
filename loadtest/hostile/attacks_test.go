package hostile

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"
)

func TestBarrenMessagesCanBeRead(t *testing.T) {
	r, err := gzip.NewReader(bytes.NewReader(barren(14)))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); len(b) > 0 || err != nil {
		t.Errorf("%d bytes, %v; want none", len(b), err)
	}
	if n := len(barren(14)); n < 3<<10 || n > 4<<10 {
		t.Errorf("%d bytes packed", n)
	}
}
