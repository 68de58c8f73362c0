package findings

import (
	"os"
	"strings"
	"testing"
)

// The page links each finding to its section of the runbook.
func TestLinkLeadsToTheRunbook(t *testing.T) {
	_, file, found := strings.Cut(Runbook, "/blob/main/")
	text, err := os.ReadFile("../../../" + file)
	if err != nil || !found {
		t.Fatalf("%s: %v", Runbook, err)
	}
	for _, k := range Kinds {
		_, anchor, _ := strings.Cut(k.Code.Link(), "#")
		if heading := "\n### " + strings.ToUpper(anchor) + "\n"; !strings.Contains(string(text), heading) {
			t.Errorf("%s leads to %s, and the runbook has no heading %q", k.Code, k.Code.Link(), strings.TrimSpace(heading))
		}
	}
}
