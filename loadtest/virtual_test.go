package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/proc"
)

// Every mode serves what it is measured with: the run fails when a call does.
func TestVirtualQuick(t *testing.T) {
	dir := t.TempDir()
	if err := proc.Build(t.Context(), dir, "sidecar", "devcluster"); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"virtual", "-bin", dir, "-out", dir, "-repeats", "1", "-duration", "100ms", "-scenarios", "^(query|implicit)-c16$", "-parts", "wire,memory"}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "virtual.md"))
	for _, want := range []string{"| query-c16 |", "| implicit-c16 |", "| transaction, no session |", "at rest: "} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("got %v and no %q in\n%s", err, want, text)
		}
	}
	if err := run(t.Context(), []string{"virtual", "-parts", "nonsense"}); err == nil {
		t.Error("nonsense: got no error")
	}
}
