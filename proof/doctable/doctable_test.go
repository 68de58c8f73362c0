package doctable

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// outcome notes how a test ended.
type outcome struct {
	testing.TB
	text string
}

func (o *outcome) Helper() {}

func (o *outcome) Errorf(format string, args ...any) { o.text = fmt.Sprintf(format, args...) }

func (o *outcome) Fatalf(format string, args ...any) {
	o.Errorf(format, args...)
	panic(o)
}

func (o *outcome) Fatal(args ...any) { o.Fatalf("%v", args) }

// of runs a comparison and returns what it complained of.
func of(t *testing.T, compare func(testing.TB)) string {
	o := &outcome{TB: t}
	func() {
		defer func() { _ = recover() }()
		compare(o)
	}()
	return o.text
}

func TestDocuments(t *testing.T) {
	const before = "one\n<\ntwo\n>\nthree\n"
	for name, tc := range map[string]struct {
		compare func(t testing.TB, path string)
		file    string // then
		wrong   string // part of what it complains of
	}{
		"as it is": {func(t testing.TB, path string) { Part(t, true, path, "<\n", ">\n", "two\n") }, before, ""},
		"differs": {func(t testing.TB, path string) { Part(t, false, path, "<\n", ">\n", "2\n") }, before,
			"TestDocuments$' . -update"},
		"is written":        {func(t testing.TB, path string) { Part(t, true, path, "<\n", ">\n", "2\n") }, "one\n<\n2\n>\nthree\n", ""},
		"to the end":        {func(t testing.TB, path string) { Part(t, true, path, ">\n", "", "3\n") }, "one\n<\ntwo\n>\n3\n", ""},
		"no begin":          {func(t testing.TB, path string) { Part(t, true, path, "[\n", "", "3\n") }, before, "has no place"},
		"no end":            {func(t testing.TB, path string) { Part(t, true, path, "<\n", "]\n", "3\n") }, before, "has no place"},
		"all differs":       {func(t testing.TB, path string) { Whole(t, false, path, "2\n") }, before, "out of date"},
		"all is written":    {func(t testing.TB, path string) { Whole(t, true, path, "2\n") }, "2\n", ""},
		"all as it is":      {func(t testing.TB, path string) { Whole(t, false, path, before) }, before, ""},
		"no file":           {func(t testing.TB, path string) { Whole(t, false, path+".none", "2\n") }, before, "-update"},
		"no file is a part": {func(t testing.TB, path string) { Part(t, true, path+".none", "", "", "2\n") }, before, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "page.md")
			if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
			got := of(t, func(t testing.TB) { tc.compare(t, path) })
			if (got == "") != (tc.wrong == "") || !strings.Contains(got, tc.wrong) {
				t.Errorf("complains %q; want %q", got, tc.wrong)
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != tc.file {
				t.Errorf("the file is now %q, %v; want %q", text, err, tc.file)
			}
		})
	}
}
