package docstest

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		name, want, got string
		same            bool
	}{
		{"equal", "a\nb\n", "a\nb", true},
		{"spaces at ends of lines", "a  \nb\n", "a\nb \n", true},
		{"another line", "a\nb", "a\nc", false},
		{"a line more", "a", "a\nb", false},
		{"anything within a line", "trace ...!", "trace 0af7!", true},
		{"anything within a line, and then something else", "trace ...!", "trace 0af7?", false},
		{"lines", "a\n...\nz", "a\nb\nc\nz", true},
		{"the middle is missing", "a...m...z", "abz", false},
		{"one text is not both ends", "ab...ba", "aba", false},
		{"nothing is enough", "a...", "a", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := matches(c.want, c.got); got != c.same {
				t.Errorf("matches(%q, %q) is %v", c.want, c.got, got)
			}
		})
	}
}

func TestParse(t *testing.T) {
	blocks, err := parse([]byte("a\n\n```sh\nls\n```\n\n- x\n\n  ```python file=a.py\n  if x:\n      y\n  ```\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(blocks) != 2 || blocks[0].text != "ls\n" || blocks[0].line != 4 || blocks[1].file() != "a.py" ||
		blocks[1].text != "if x:\n    y\n" {
		t.Errorf("blocks %+v", blocks)
	}
	for name, bad := range map[string]string{"no language": "```\na\n```\n", "indented": "a\n\n    ls\n"} {
		if _, err := parse([]byte(bad)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestRun(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	err := os.WriteFile(page, []byte("```sh\nmake run\n```\n```sh\nexport WHO=you; mkdir -p here; cd here\n```\n"+
		"```sh\necho \"hello $WHO at 7401\" >greeting; cat greeting; basename \"$PWD\"\n```\n```text\nhello you at 7401\nhere\n```\n"+
		"```python file=word.py\nWORD = 7401\n```\n```python\nfrom word import WORD\n```\n```python\nprint(WORD + "+
		"1)\n```\n```text\n7403\n```\n"+
		"```yaml shown\na: 1\n```\n"), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	Run(t, Page{Path: page, Replace: []string{"7401", "7402"}, Started: []string{"make run"},
		Programs: map[string][]string{"python": {"python3"}}})
}
