package statements

import (
	"strings"
	"testing"
)

func TestDigestsAreTheSameInAllProcesses(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT a FROM t WHERE id = 1":              "6380b42034e7",
		"select a from t where id = -5 -- and more": "6380b42034e7",
		"SELECT a\n FROM t WHERE id = 'x'u;":        "6380b42034e7",
	} {
		if got := Digest(text).String(); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestDigestsTellStatementsApart(t *testing.T) {
	seen := map[ID]string{}
	for _, text := range []string{"", "SELECT a FROM t", "SELECT A FROM t", "SELECT a FROM t WHERE id = $a",
		"SELECT a FROM t WHERE id = $b",
		"SELECT a, b FROM t", "DELETE FROM t"} {
		id := Digest(text)
		if old, ok := seen[id]; ok || id == 0 {
			t.Errorf("%q and %q have the digest %v", old, text, id)
		}
		seen[id] = text
		if back, err := ParseID(id.String()); err != nil || back != id {
			t.Errorf("%v was read as %v, %v", id, back, err)
		}
	}
	for _, text := range []string{"", "1", "12345678901", "1234567890123", "xx3456789012"} {
		if _, err := ParseID(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestLongTextsHaveTheDigestOfTheirBeginning(t *testing.T) {
	long := "SELECT " + strings.Repeat("a, ", maxText)
	if a, b := Digest(long+"x"), Digest(long+"y"); a != b {
		t.Errorf("digests %v and %v", a, b)
	}
	if short := "SELECT " + strings.Repeat("a, ", 100); Digest(short+"x") == Digest(short+"y") {
		t.Error("short texts with the same beginning have one digest")
	}
}
