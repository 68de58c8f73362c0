package virtual

import (
	"encoding/hex"
	"strings"
	"testing"
)

func TestDigitsOfIDs(t *testing.T) {
	for at := range 32 {
		for c := range 256 {
			text := []byte(prefix + "0123456789abcdef9f0a5c63e7d84b21")
			text[len(prefix)+at] = byte(c)
			id, ok := Parse(text)
			if want := strings.IndexByte("0123456789abcdef", byte(c)) >= 0; ok != want || ok && string(id.Append(nil)) != string(text) {
				t.Errorf("%q: %x, %v", text, id, ok)
			}
		}
	}
}

func FuzzID(f *testing.F) {
	id := newID(0)
	f.Add(id.Append(nil))
	f.Add([]byte("ydb://session/3?node_id=2147483641&id=0123456789ABCDEF0123456789abcdef"))
	f.Fuzz(func(t *testing.T, session []byte) {
		id, ok := Parse(session)
		if ok && string(id.Append(nil)) != string(session) {
			t.Errorf("%q is taken for %x", session, id)
		}
		_, err := hex.DecodeString(strings.TrimPrefix(string(session), prefix))
		if fits := err == nil && strings.HasPrefix(string(session), prefix) && len(session) == len(prefix)+32 &&
			strings.ToLower(string(session)) == string(session); fits != ok {
			t.Errorf("%q: %v", session, ok)
		}
	})
}
