package docstest

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What somebody reads in ten minutes with all commands tried: bytes of README, and words of it outside code and tables.
const (
	maxReadme      = 10 << 10
	maxReadmeWords = 900
)

func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	prose := regexp.MustCompile("(?ms)^```.*?^```$|^\\|.*?$|<!--.*?-->").ReplaceAllString(string(text), "")
	if words := len(strings.Fields(prose)); words > maxReadmeWords || len(text) > maxReadme {
		t.Errorf("README has %d bytes and %d words outside code and tables; want at most %d and %d", len(text), words, maxReadme,
			maxReadmeWords)
	} else if words < maxReadmeWords/4 {
		t.Errorf("%d words; does this test still see the text?", words)
	}
}
