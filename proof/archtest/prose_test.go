package archtest

import (
	"bytes"
	"cmp"
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Kinds of prose.
const (
	trailing = "trailing" // a comment behind code
	doc      = "doc"      // a comment of a declaration
	plain    = "plain"    // other comments, paragraphs, list items, rows
	shown    = "shown"    // descriptions of settings, and texts of the command line's help
)

// A prose is a text without line ends, and without code in backticks.
type prose struct {
	line int
	kind string
	text string
}

var (
	listItem = regexp.MustCompile(`^\s*([-*+]|\d+\.)\s`)
	yamlText = regexp.MustCompile(`^(\s*)(?:- )?(?:description|summary|title):\s+(.*)$`)

	dashboardText = regexp.MustCompile(`"(?:description|title|legendFormat)": "((?:[^"\\]|\\.)*)"`)
	scriptText    = regexp.MustCompile("\"((?:[^\"\\\\]|\\\\.)*)\"|`([^`]*)`")
	inserted      = regexp.MustCompile(`\$\{[^}]*\}`) // in texts of scripts
	pageText      = regexp.MustCompile(`>([^<>]+)<`)
)

func newProse(line int, kind, text string) prose {
	return prose{line, kind, strings.Join(strings.Fields(emptyBackticks(text)), " ")}
}

// emptyBackticks takes out what is in backticks.
func emptyBackticks(text string) string {
	parts := strings.Split(text, "`")
	for i := 1; i < len(parts)-1; i += 2 {
		parts[i] = ""
	}
	return strings.Join(parts, "`")
}

// readProse returns the texts of a file for people, below the folder top.
func readProse(t *testing.T, top, file string) []prose {
	t.Helper()
	name := filepath.Join(top, filepath.FromSlash(file))
	if path.Ext(file) == ".go" {
		s, err := readSource(name)
		if err != nil {
			t.Fatal(err)
		}
		return goProse(file, s)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	switch path.Ext(file) {
	case ".md":
		if file == "CHANGELOG.md" {
			text = unreleased(text)
		}
		return markdownProse(string(text))
	case ".json":
		return quotedProse(string(text), dashboardText)
	case ".js":
		return quotedProse(string(text), scriptText)
	case ".html":
		return quotedProse(string(text), pageText)
	case ".proto":
		return lineComments(string(text), "//")
	default:
		return yamlProse(string(text))
	}
}

// goProse returns the comments of a Go file, nothing of one that a program wrote.
func goProse(name string, s source) (all []prose) {
	file := s.file
	if ast.IsGenerated(file) {
		return nil
	}
	docs, settings := map[*ast.CommentGroup]bool{}, map[*ast.CommentGroup]bool{}
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
		case *ast.Field:
			if isSetting(name, n) {
				settings[cmp.Or(n.Comment, n.Doc)] = true
			}
		}
		return true
	})
	lines := strings.Split(string(s.text), "\n")
	for _, group := range file.Comments {
		at := files.Position(group.Pos())
		kind := plain
		if settings[group] {
			kind = shown
		} else if strings.TrimSpace(lines[at.Line-1][:at.Column-1]) != "" {
			kind = trailing
		} else if docs[group] {
			kind = doc
		}
		all = append(all, newProse(at.Line, kind, group.Text()))
	}
	if strings.HasPrefix(name, "cmd/sidecar/") && !strings.HasSuffix(name, "_test.go") {
		all = append(all, helpTexts(file)...)
	}
	if isProduct(name) {
		all = append(all, messages(file)...)
	}
	return all
}

// isProduct reports whether people see the texts of a Go file: errors, hints, findings, lines of the log.
func isProduct(name string) bool {
	return (strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "internal/")) && !strings.HasSuffix(name, "_test.go")
}

// messages returns the texts in the code that have more than one word.
func messages(file *ast.File) (all []prose) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			return n.Tag == nil
		case ast.Expr:
			if text := literal(n); strings.Contains(text, " ") {
				all = append(all, newProse(files.Position(n.Pos()).Line, plain, strings.ReplaceAll(text, "`", "")))
				return false
			}
		}
		return true
	})
	return all
}

// unreleased returns the part of the changelog that is not released yet.
func unreleased(text []byte) []byte {
	_, rest, _ := bytes.Cut(text, []byte("## [Unreleased]"))
	part, _, _ := bytes.Cut(rest, []byte("\n## ["))
	return part
}

// quotedProse returns the texts that a pattern finds between its marks, line by line.
func quotedProse(text string, between *regexp.Regexp) (all []prose) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		for _, m := range between.FindAllStringSubmatch(line, -1) {
			said := inserted.ReplaceAllString(strings.Join(m[1:], ""), "...")
			if between == scriptText && !strings.Contains(said, " ") {
				continue // a name
			}
			all = append(all, newProse(n, plain, strings.ReplaceAll(said, "`", "")))
		}
	}
	return all
}

// isSetting reports whether a field of a struct is a setting of the product, or a section of them.
func isSetting(file string, field *ast.Field) bool {
	return field.Tag != nil && strings.Contains(field.Tag.Value, `yaml:"`) && !strings.Contains(field.Tag.Value, `,inline"`) &&
		!strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "proof/")
}

// helpTexts returns what the command line shows in its help: the fields does and more of commands, and the last text
// of each call that defines a flag.
func helpTexts(file *ast.File) (all []prose) {
	add := func(of ast.Expr) {
		if text := literal(of); text != "" {
			all = append(all, newProse(files.Position(of.Pos()).Line, shown, strings.ReplaceAll(text, "`", "")))
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "does" || key.Name == "more") {
				add(n.Value)
			}
		case *ast.CompositeLit:
			for _, usage := range sharedUsages(n) {
				add(usage)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && definesFlag(f.Sel.Name) && len(n.Args) >= 3 {
				usage := n.Args[len(n.Args)-1]
				if f.Sel.Name == "Func" {
					usage = n.Args[1]
				}
				add(usage)
			}
		}
		return true
	})
	return all
}

// sharedUsages returns the texts of sharedFlag{flag, setting, usage}, or of a list of them.
func sharedUsages(n *ast.CompositeLit) (usages []ast.Expr) {
	isShared := func(of ast.Expr) bool { name, ok := of.(*ast.Ident); return ok && name.Name == "sharedFlag" }
	switch list, ok := n.Type.(*ast.ArrayType); {
	case isShared(n.Type):
		return n.Elts[2:]
	case ok && isShared(list.Elt):
		for _, one := range n.Elts {
			if one, ok := one.(*ast.CompositeLit); ok {
				usages = append(usages, one.Elts[2])
			}
		}
	}
	return usages
}

// definesFlag reports whether a method of that name defines a flag.
func definesFlag(name string) bool {
	return slices.Contains([]string{"Bool", "BoolVar", "String", "StringVar", "Func", "duration", "number"}, name)
}

// literal returns a text that is written in the code, over several lines or not. Names in it stand for nothing; "": it
// begins with one.
func literal(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.BinaryExpr:
		if begin := literal(of.X); begin != "" {
			return begin + literal(of.Y)
		}
	case *ast.BasicLit:
		if text, err := strconv.Unquote(of.Value); err == nil && of.Kind == token.STRING {
			return text
		}
	}
	return ""
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
		"doc":      {"a.go", "package a\n\n// drop ends them. It waits.\nfunc drop() {}\n", []string{"only a pronoun"}},
		"trailing": {"a.go", "package a\n\nvar x int // that wait, but for one\n", []string{"continues its name", "but for"}},
		"setting":  {"a.go", "package a\n\ntype c struct {\n\tX int `yaml:\"x\"` // bytes of it\n}\n", []string{"begins small"}},
		"good setting": {"a.go", "package a\n\ntype c struct {\n\tX int `yaml:\"x\"` // 1 to 7\n\t// Size\n\tY int `yaml:\"y\"`\n}\n",
			nil},
		"continued setting": {"a.go", "package a\n\ntype c struct {\n\t// Of these, the size\n\tX int `yaml:\"x\"`\n}\n",
			[]string{"headless text"}},
		"long": {"a.go", "package a\n\ntype c struct {\n\t// A" + strings.Repeat(" b", 35) + ". C" + strings.Repeat(" 1.5", 34) +
			".\n\tX int `yaml:\"x\"`\n}\n",
			[]string{"long sentence"}},
		"help": {"cmd/sidecar/a.go", "package main\n\nvar c = command{does: \"list\" +\n\t\" all\", name: \"x\"}\n\n" +
			"func f() { i.set.Bool(\"a\", false, \"of it\") }\n",
			[]string{"begins small", "begins small"}},
		"own line":   {"a.go", "package a\n\n// that wait\nvar x int\n", nil},
		"strings":    {"a.go", "package a\n\nvar x = \"but for who\"\n", nil},
		"message":    {"internal/a/a.go", "package a\n\nvar x = f(\"all but \" +\n\t\"for one\", \"face\")\n", []string{"but for"}},
		"test":       {"internal/a/a_test.go", "package a\n\nvar x = \"all but for one\"\n", nil},
		"tag":        {"internal/a/a.go", "package a\n\ntype t struct {\n\tX int `a:\"in line\"`\n}\n", nil},
		"changelog":  {"CHANGELOG.md", "# C\n\n## [Unreleased]\n\n- All but for one.\n\n## [0.1.0]\n\n- An octet.\n", []string{"but for"}},
		"dashboard":  {"a.json", "{\n\"description\": \"By face.\",\n\"expr\": \"face in line\"\n}\n", []string{"face"}},
		"script":     {"a.js", "const c = \"face\"; t(`a ${x.face}`, \"all but for one\");\n", []string{"but for"}},
		"page":       {"a.html", "<p class=\"face\">An octet</p>\n", []string{"octet"}},
		"generated":  {"a.go", "// Code generated by x. DO NOT EDIT.\n\npackage a\n\n// but for\nvar x int\n", nil},
		"backticks":  {"a.md", "The `but for` of\n`who`, he.\n", []string{"he"}},
		"part":       {"a.md", "The he1, them and _he; a face_, at restore, alone in line1.\n", nil},
		"behind":     {"a.md", "Xhe, he. Atat rest, (at rest). Underline, in line.\n", []string{"he", "at rest", "line"}},
		"backtick":   {"a.md", "An `octet` of `octets` and ` an octet.\n", []string{"octet"}},
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
		if err := os.MkdirAll(filepath.Join(top, filepath.Dir(c.file)), 0o700); err != nil {
			t.Fatal(err)
		}
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
