package traffic

import (
	"encoding/hex"
	"strings"
	"testing"
)

// The bytes are those that Java gives: new Random(0).nextInt() is -1155484576 and then -723955400, new Random(42).nextInt() is -1170105035.
func TestJavaRandom(t *testing.T) {
	for _, c := range []struct {
		seed int64
		size int
		want string
	}{
		{0, 8, "60b420bb3851d9d4"},
		{0, 5, "60b420bb38"},
		{42, 4, "359d41ba"},
		{42, 0, ""},
	} {
		b := make([]byte, c.size)
		newJavaRandom(c.seed).read(b)
		if got := hex.EncodeToString(b); got != c.want {
			t.Errorf("seed %d: %s; want %s", c.seed, got, c.want)
		}
	}
}

func TestRecords(t *testing.T) {
	// Of nothing: UUID.nameUUIDFromBytes(new byte[0]).
	if got := MakeRecord(7, 0).UUID; got != "d41d8cd9-8f00-3204-a980-0998ecf8427e" {
		t.Errorf("the UUID of no bytes is %s", got)
	}
	seen := make(map[string]bool)
	for i := range int64(100) {
		for _, size := range []int{100, 500, 2000} {
			r := MakeRecord(i, size)
			if len(r.Payload) != size || len(r.UUID) != 36 || r.UUID[14] != '3' ||
				!strings.ContainsRune("89ab", rune(r.UUID[19])) || seen[r.UUID] {
				t.Fatalf("record %d of %d bytes: %s, %d bytes", i, size, r.UUID, len(r.Payload))
			}
			seen[r.UUID] = true
		}
	}
	r, other := MakeRecord(1, 100), MakeRecord(2, 100)
	for name, wrong := range map[string]bool{
		"itself":          r.verify(r.UUID, r.Payload) != nil,
		"another_key":     r.verify(other.UUID, r.Payload) == nil,
		"another_payload": r.verify(r.UUID, other.Payload) == nil,
		"a_part_of_it":    r.verify(r.UUID, r.Payload[:99]) == nil,
	} {
		if wrong {
			t.Errorf("%s is not told", name)
		}
	}
}
