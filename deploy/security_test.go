package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// SECURITY.md is read by people in a hurry: its links lead somewhere, and its way to report is the repository's own, which
// needs no address that could go stale.
func TestSecurityPolicy(t *testing.T) {
	text, err := os.ReadFile("../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	repository := regexp.MustCompile(`(?m)^module (\S+)$`).FindStringSubmatch(string(module))
	if repository == nil || !strings.Contains(string(text), "https://"+repository[1]+"/security/advisories/new") {
		t.Errorf("SECURITY.md does not lead to the private reports of %q", repository)
	}
	if m := regexp.MustCompile(`[\w.]+@[\w.]+`).FindString(string(text)); m != "" {
		t.Errorf("SECURITY.md has the address %s", m)
	}
	local := 0
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)(?:#[^)]*)?\)`).FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(m[1], "https://") {
			continue
		}
		local++
		if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
			t.Errorf("SECURITY.md links to %s: %v", m[1], err)
		}
	}
	if local < 4 {
		t.Errorf("%d links to files; want the changelog, the threat model, compatibility and releases", local)
	}
	for _, heading := range []string{"Report a vulnerability", "Supported versions", "What is promised"} {
		if !strings.Contains(string(text), "\n## "+heading+"\n") {
			t.Errorf("SECURITY.md lacks %q", heading)
		}
	}
}
