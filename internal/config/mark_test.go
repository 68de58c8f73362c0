package config

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFileMark(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "link"), filepath.Join(dir, "other")
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	write := func(path, text string, changed time.Time) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	seen := map[FileMark]string{{}: "no file"}
	for _, step := range []struct {
		name  string
		do    func()
		empty bool
	}{
		{name: "a file that is missing", do: func() {}},
		{name: "a link that leads nowhere in a circle", do: func() { must(os.Symlink("link", path)) }},
		{name: "a file", do: func() { must(os.Remove(path)); write(path, "1", at) }},
		{name: "a later time, same size", do: func() { write(path, "2", at.Add(1)) }},
		{name: "an earlier time", do: func() { write(path, "2", at.Add(-1)) }},
		{name: "another size, same time", do: func() { write(path, "22", at) }},
		{name: "nothing in it", do: func() { write(path, "", at) }, empty: true},
		{name: "a link to another file", do: func() {
			write(other, "333", at)
			must(os.Remove(path))
			must(os.Symlink("other", path))
		}},
		{name: "what the link leads to has changed", do: func() { write(other, "3333", at) }},
	} {
		step.do()
		m := MarkOf(path)
		if was, twice := seen[m]; twice {
			t.Errorf("%s: the mark is that of %s", step.name, was)
		}
		seen[m] = step.name
		if m != MarkOf(path) {
			t.Errorf("%s: two marks of a file that has not changed differ", step.name)
		}
		if m.Empty() != step.empty {
			t.Errorf("%s: empty %v; want %v", step.name, m.Empty(), step.empty)
		}
	}
	if m := MarkOf(""); m != (FileMark{}) || m.Empty() {
		t.Errorf("no file has the mark %+v, empty %v", m, m.Empty())
	}
}
