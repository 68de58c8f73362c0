// Package doctable compares documents that code writes with what it would write
// now. It owns how such a document is read, compared and written. What always
// holds: without -update no file changes, with it nothing outside of the marks
// does, and a difference names the command that writes the document again.
package doctable

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Part compares what stands between two marks in a file with want, or writes it
// there. An empty end is the end of the file.
func Part(t testing.TB, update bool, path, begin, end, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	got, tail := rest, ""
	if end != "" && ok {
		got, tail, ok = strings.Cut(rest, end)
	}
	if !ok {
		t.Fatalf("%s has no place between %q and %q", path, begin, end)
	}
	compare(t, update, path, got, want, head+begin+want+end+tail)
}

// named matches a page of docs that a text of the code names, with its section.
var named = regexp.MustCompile(`\bdocs/([a-z-]+/)*[a-z-]+\.md(#[a-z_-]+)?`)

// Link makes links of the pages that a text of the code names by their paths from the root of the repository. page is where the text
// stands, by such a path.
func Link(page, text string) string {
	return named.ReplaceAllStringFunc(text, func(name string) string {
		relative, err := filepath.Rel(path.Dir(page), name)
		if err != nil {
			return name
		}
		return "[" + path.Base(name) + "](" + filepath.ToSlash(relative) + ")"
	})
}

// Whole compares a file with want, or writes it.
func Whole(t testing.TB, update bool, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil && !update {
		t.Fatalf("%v; run %s", err, command(t))
	}
	compare(t, update, path, string(got), want, want)
}

func compare(t testing.TB, update bool, path, got, want, file string) {
	t.Helper()
	switch {
	case got == want:
	case update:
		if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		diff := cmp.Diff(strings.SplitAfter(want, "\n"), strings.SplitAfter(got, "\n"))
		t.Errorf("%s is out of date (-code +file). If the code is right, run %s\n%s", path, command(t), diff)
	}
}

// command is run in the directory of the test's package, as the test is.
func command(t testing.TB) string {
	dir, err := os.Getwd()
	if err != nil {
		dir = "."
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	return "go -C " + dir + " test -run '^" + name + "$' . -update"
}
