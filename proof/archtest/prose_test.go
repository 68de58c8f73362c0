package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Kinds of prose.
const (
	trailing = "trailing" // a comment behind code
	doc      = "doc"      // a comment of a declaration
	plain    = "plain"    // other comments, paragraphs, list items, rows
)

// A prose is a text without line ends, and without code in backticks.
type prose struct {
	line int
	kind string
	text string
}

var (
	inBackticks = regexp.MustCompile("`[^`]*`")
	listItem    = regexp.MustCompile(`^\s*([-*+]|\d+\.)\s`)
	yamlText    = regexp.MustCompile(`^(\s*)(?:- )?(?:description|summary|title):\s+(.*)$`)
	spaces      = regexp.MustCompile(`\s+`)
)

func newProse(line int, kind, text string) prose {
	text = spaces.ReplaceAllString(inBackticks.ReplaceAllString(text, "``"), " ")
	return prose{line, kind, strings.TrimSpace(text)}
}

// readProse returns the texts of a file for people, below the folder top.
func readProse(t *testing.T, top, file string) []prose {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	switch path.Ext(file) {
	case ".go":
		return goProse(t, file, text)
	case ".md":
		return markdownProse(string(text))
	case ".proto":
		return lineComments(string(text), "//")
	default:
		return yamlProse(string(text))
	}
}

// goProse returns the comments of a Go file, nothing of one that a program wrote.
func goProse(t *testing.T, name string, text []byte) (all []prose) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if ast.IsGenerated(file) {
		return nil
	}
	docs := map[*ast.CommentGroup]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			docs[n.Doc] = true
		case *ast.GenDecl:
			docs[n.Doc] = true
		case *ast.TypeSpec:
			docs[n.Doc] = true
		case *ast.ValueSpec:
			docs[n.Doc] = true
		}
		return true
	})
	lines := strings.Split(string(text), "\n")
	for _, group := range file.Comments {
		at := files.Position(group.Pos())
		kind := plain
		if strings.TrimSpace(lines[at.Line-1][:at.Column-1]) != "" {
			kind = trailing
		} else if docs[group] {
			kind = doc
		}
		all = append(all, newProse(at.Line, kind, group.Text()))
	}
	return all
}

// lineComments returns the comments that a mark begins; those on lines one after the other are one.
func lineComments(text, mark string) (all []prose) {
	var block []string
	from, n := 0, 0
	end := func() {
		if len(block) > 0 {
			all = append(all, newProse(from, plain, strings.Join(block, " ")))
		}
		block = nil
	}
	for line := range strings.Lines(text) {
		n++
		code, comment, ok := strings.Cut(" "+line, " "+mark)
		switch {
		case !ok && !strings.HasPrefix(strings.TrimSpace(line), mark):
			end()
		case strings.TrimSpace(code) != "":
			end()
			all = append(all, newProse(n, trailing, comment))
		default:
			if len(block) == 0 {
				from = n
			}
			block = append(block, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), mark)))
		}
	}
	end()
	return all
}

// yamlProse returns comments, and what stands behind description, summary and title.
func yamlProse(text string) []prose {
	all := lineComments(text, "#")
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		m := yamlText.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		from, said := i+1, m[2]
		if strings.HasPrefix(said, "|") || strings.HasPrefix(said, ">") {
			said = ""
		}
		for i+1 < len(lines) &&
			(strings.TrimSpace(lines[i+1]) == "" || len(lines[i+1])-len(strings.TrimLeft(lines[i+1], " ")) > len(m[1])) &&
			!yamlText.MatchString(lines[i+1]) {
			i++
			said += " " + lines[i]
		}
		all = append(all, newProse(from, plain, said))
	}
	return all
}

// markdownProse returns paragraphs, list items and the rows of tables, without code.
func markdownProse(text string) (all []prose) {
	var block []string
	from, n, fenced := 0, 0, false
	end := func() {
		if len(block) > 0 {
			all = append(all, newProse(from, plain, strings.Join(block, " ")))
		}
		block = nil
	}
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\n")
		bare := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(bare, "```"):
			end()
			fenced = !fenced
		case fenced:
		case bare == "":
			end()
		case len(block) == 0 && (strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t")):
		case strings.HasPrefix(bare, "|"), strings.HasPrefix(bare, "#"):
			end()
			all = append(all, newProse(n, plain, bare))
		default:
			if listItem.MatchString(line) {
				end()
			}
			if len(block) == 0 {
				from = n
			}
			block = append(block, bare)
		}
	}
	end()
	return all
}

// TestProse checks what the readers take for text, and the rules against it.
func TestProse(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		want       []string // rules with a hit
	}{
		"doc":        {"a.go", "package a\n\n// drop ends them. It waits.\nfunc drop() {}\n", []string{"only a pronoun"}},
		"trailing":   {"a.go", "package a\n\nvar x int // that wait, but for one\n", []string{"continues its name", "but for"}},
		"own line":   {"a.go", "package a\n\n// that wait\nvar x int\n", nil},
		"strings":    {"a.go", "package a\n\nvar x = \"but for who\"\n", nil},
		"generated":  {"a.go", "// Code generated by x. DO NOT EDIT.\n\npackage a\n\n// but for\nvar x int\n", nil},
		"backticks":  {"a.md", "The `but for` of\n`who`, he.\n", []string{"he"}},
		"over lines": {"a.md", "All but\nfor one.\n\n```\nbut for\n```\n\n    octets\n", []string{"but for"}},
		"rows":       {"a.md", "| a | but for one |\n|---|---|\n| b | octet |\n", []string{"but for", "octet"}},
		"number":     {"a.md", "It waits for so long.\n\nIt waits for so long that it fails.\n", []string{"so many"}},
		"queue":      {"a.md", "Callers in line.\n\nIn line with it, in line with that, the end of the line.\n", []string{"line"}},
		"question":   {"a.md", "## Who may?\n\nTo whom? Who pays.\n", nil},
		"proto": {"a.proto", "// one octet\n// more\nmessage A {\n  int32 x = 1; // whose name\n}\n",
			[]string{"octet", "continues its name"}},
		"yaml":    {"a.yaml", "a: but for # anew\ndescription: >-\n  all but\n  for one\nother: lest\n", []string{"archaic", "but for"}},
		"address": {"a.proto", "// see https://example.org\nmessage A {}\n", nil},
	} {
		top := t.TempDir()
		if err := os.WriteFile(filepath.Join(top, c.file), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range readProse(t, top, c.file) {
			for i := range wordRules {
				for range wordRules[i].find(p) {
					got = append(got, wordRules[i].name)
				}
			}
		}
		want := map[string]int{}
		for _, rule := range c.want {
			want[rule]++
		}
		for _, rule := range got {
			want[rule]--
		}
		for rule, n := range want {
			if n != 0 {
				t.Errorf("%s: %d hits too few of %q (%v)", name, n, rule, got)
			}
		}
	}
}
