package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadSecret(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for path, want := range map[string]string{
		"": "no file is named", dir: "is a directory", filepath.Join(dir, "none"): "no such file",
		file("blank", " \n"): "is empty", file("large", "s3cret-and-more"): "has 15 bytes; at most 14 are read",
	} {
		if _, err := ReadSecret(path, 14); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v; want %q and nothing of what it holds", path, err, want)
		}
	}
	if b, err := ReadSecret(file("good", "s3cret\n"), 14); err != nil || string(b) != "s3cret\n" {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := ReadFile(file("nothing", ""), 14); err != nil || len(b) != 0 {
		t.Errorf("a file that may be empty: %q, %v", b, err)
	}
}
