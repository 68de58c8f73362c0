package protocol

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

func appendField(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

func TestField(t *testing.T) {
	m := appendField(appendField(appendField(nil, 2, []byte("two")), 1, []byte("a")), 1, []byte("last"))
	for n := range m {
		value, from, to := Field(m[:n], 1)
		if to > n || string(value) != "" && string(value) != "a" || to > 0 && to-from != 3 {
			t.Errorf("of %d bytes: %q at %d to %d", n, value, from, to)
		}
	}
	if value, from, to := Field(m, 1); string(value) != "last" || string(m[from:to]) != "\x0a\x04last" {
		t.Errorf("got %q at %d to %d", value, from, to)
	}
}

func FuzzField(f *testing.F) {
	f.Add(appendField([]byte{0x08, 1, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0x15, 0, 0, 0, 0}, 1, []byte("session")))
	f.Fuzz(func(t *testing.T, m []byte) {
		value, from, to := Field(m, 1)
		if from < 0 || to > len(m) || from > to || to > 0 && !bytes.HasSuffix(m[from:to], value) {
			t.Fatalf("%x: %x at %d to %d", m, value, from, to)
		}
	})
}
