package archtest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var lower = flag.Bool("lower", false, "lower the sizes in sizes.json to what there is")

// What a reader can keep in mind. What is larger today stands in sizes.json,
// which only gets shorter.
const (
	maxFile    = 20_000 // bytes of a file
	maxFunc    = 60     // lines of a function, of which literals of tests do not count
	maxFields  = 15     // of a struct
	maxColumns = 140    // of a line; a tab counts as 4
	maxMethods = 60     // of a type
)

// sizes are what exceeds the limits, by the kind of limit and by name; lines over
// maxColumns are counted by package.
type sizes struct {
	Files   map[string]int `json:"files"`
	Funcs   map[string]int `json:"funcs"`
	Fields  map[string]int `json:"fields"`
	Lines   map[string]int `json:"lines"`
	Methods map[string]int `json:"methods"`
	App     map[string]int `json:"app"` // lines of internal/app, which only composes
}

func newSizes() sizes {
	return sizes{
		Files: map[string]int{}, Funcs: map[string]int{}, Fields: map[string]int{},
		Lines: map[string]int{}, Methods: map[string]int{}, App: map[string]int{},
	}
}

// kinds are the maps of sizes with what their numbers count, and what to do.
func (s sizes) kinds() map[string]map[string]int {
	const why = "or say why not in a sentence of its comment that begins with"
	return map[string]map[string]int{
		"bytes: split the file by idea":                          s.Files,
		"lines: split the function, " + why + ` "Long:"`:         s.Funcs,
		"fields: part the struct, " + why + ` "Wide:"`:           s.Fields,
		fmt.Sprintf("lines of more than %d columns", maxColumns): s.Lines,
		"methods: part the type":                                 s.Methods,
		"lines: what composes nothing has its own package":       s.App,
	}
}

// TestSizesOnlyShrink fails on what is larger than it was, on what is too large
// and was not, and on an entry that is no longer needed. What was won stays with
// go test ./proof/archtest -run TestSizesOnlyShrink -lower
func TestSizesOnlyShrink(t *testing.T) {
	const path = "sizes.json"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	allowed, now := newSizes(), measure(t)
	if err := json.Unmarshal(text, &allowed); err != nil {
		t.Fatal(err)
	}
	then := allowed.kinds()
	for what, found := range now.kinds() {
		for _, name := range slices.Sorted(maps.Keys(found)) {
			if was := then[what][name]; found[name] > was {
				t.Errorf("%s: %d, at most %d are allowed. %s", name, found[name], was, what)
			}
		}
		for name := range then[what] {
			if _, still := found[name]; !still && !*lower {
				t.Errorf("%s is no longer too large: run this test with -lower (%s)", name, what)
			}
		}
	}
	if !*lower || t.Failed() {
		return
	}
	out, err := json.MarshalIndent(now, "", "\t")
	if err == nil {
		err = os.WriteFile(path, append(out, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// measure finds all that exceeds a limit.
func measure(t *testing.T) sizes {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	found := newSizes()
	for _, p := range list(t, "./...") {
		m := measured{sizes: found, unit: strings.TrimPrefix(p.ImportPath, module), methods: map[string]int{}}
		names, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			s, err := readSource(name)
			if err != nil {
				t.Fatal(err)
			}
			at, err := filepath.Rel(root, name)
			if err != nil {
				t.Fatal(err)
			}
			m.file(filepath.ToSlash(at), s)
		}
		for name, n := range m.methods {
			if n > maxMethods {
				found.Methods[m.unit+"."+name] = n
			}
		}
	}
	return found
}

// measured is one package that is measured.
type measured struct {
	sizes
	unit    string
	methods map[string]int // by type
}

func (m *measured) file(path string, s source) {
	if ast.IsGenerated(s.file) {
		return
	}
	text := s.text
	test := strings.HasSuffix(path, "_test.go")
	if len(text) > maxFile {
		m.Files[path] = len(text)
	}
	if m.unit == "internal/app" && !test {
		m.App[m.unit] += bytes.Count(text, []byte("\n"))
	}
	if n := longLines(text); n > 0 {
		m.Lines[m.unit] += n
	}
	line := func(p token.Pos) int { return files.Position(p).Line }
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				on := receiver(d.Recv.List[0].Type)
				m.methods[on]++
				name = on + "." + name
			}
			lines := line(d.End()) - line(d.Pos()) + 1
			if test {
				lines -= literals(d, line)
			}
			if lines > maxFunc && !says(d.Doc, "Long:") {
				m.Funcs[m.unit+"."+name] = lines
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					if of, ok := s.Type.(*ast.StructType); ok && !says(d.Doc, "Wide:") && !says(s.Doc, "Wide:") {
						if n := fields(of); n > maxFields {
							m.Fields[m.unit+"."+s.Name.Name] = n
						}
					}
				}
			}
		}
	}
}

// says reports whether a sentence of a comment begins with a word.
func says(doc *ast.CommentGroup, word string) bool {
	text := doc.Text()
	i := strings.Index(text, word)
	return i == 0 || i > 0 && (text[i-1] == '\n' || strings.HasSuffix(text[:i], ". "))
}

func receiver(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return "?"
		}
	}
}

// fields counts the names of a struct's fields; "_" is none, what is embedded is one.
func fields(s *ast.StructType) (n int) {
	for _, f := range s.Fields.List {
		if len(f.Names) == 0 {
			n++
		}
		for _, name := range f.Names {
			if name.Name != "_" {
				n++
			}
		}
	}
	return n
}

// literals is how many lines the outermost composite literals of a function have beyond one each: a table is data.
func literals(d *ast.FuncDecl, line func(token.Pos) int) (n int) {
	ast.Inspect(d, func(node ast.Node) bool {
		l, ok := node.(*ast.CompositeLit)
		if ok {
			n += line(l.End()) - line(l.Pos())
		}
		return !ok
	})
	return n
}

// longLines counts lines of too many columns. A text between backquotes has none: it is data, and breaking it would change it.
func longLines(text []byte) int {
	if tooLong(text) == 0 {
		return 0 // without looking for such texts: lines only become shorter without them
	}
	var code []byte // text without the contents of such texts
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	copied := 0
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.STRING && lit[0] == '`' {
			first := file.Offset(pos)
			code = append(code, text[copied:first]...)
			code = append(code, strings.Repeat("\n", strings.Count(lit, "\n"))...)
			copied = first + len(lit)
		}
	}
	return tooLong(append(code, text[copied:]...))
}

// tooLong counts lines of too many columns, whatever is in them.
func tooLong(text []byte) (n int) {
	for l := range bytes.Lines(text) {
		if 4*len(l) <= maxColumns {
			continue
		}
		if bytes.Count(l, []byte("\t"))*3+utf8.RuneCount(bytes.TrimSuffix(l, []byte("\n"))) > maxColumns {
			n++
		}
	}
	return n
}

// measuredText measures a file of a package p.
func measuredText(t *testing.T, path, text string) measured {
	t.Helper()
	m := measured{sizes: newSizes(), unit: "p", methods: map[string]int{}}
	s, err := parse(path, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	m.file(path, s)
	return m
}

// What counts, and what does not.
func TestMeasure(t *testing.T) {
	long := strings.Repeat("x", maxColumns-2)
	body := strings.Repeat("\t_ = 1\n", maxFunc)
	text := "package p\n\n// T is one.\ntype T struct{ a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p int }\n\n" +
		"// U is one. Wide: it has a reason.\ntype U struct{ a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p int }\n\n" +
		"type V struct{ a, b, c, d, e, f, g, h, i, j, k, l, m, n, _, _ int }\n\n" +
		"func (t *T) Much() {\n" + body + "}\n\n// It does much.\n//\n// Long: it has a reason.\n" +
		"func (t *T) MuchToo() {\n" + body + "}\n\n" +
		"// " + long + "\nvar a = `\n" + long + long + "\n`\nvar b = `" + long + long + "`\n\nfunc (g *G[A]) m() {}\n"
	for path, lines := range map[string]int{"p.go": maxFunc + 2, "p_test.go": maxFunc + 2} {
		m := measuredText(t, path, text)
		if !maps.Equal(m.Funcs, map[string]int{"p.T.Much": lines}) || !maps.Equal(m.Fields, map[string]int{"p.T": 16}) {
			t.Errorf("%s: functions %v, structs %v", path, m.Funcs, m.Fields)
		}
		if !maps.Equal(m.Lines, map[string]int{"p": 1}) || !maps.Equal(m.methods, map[string]int{"T": 2, "G": 1}) || len(m.Files) > 0 {
			t.Errorf("%s: long lines %v, methods %v, files %v", path, m.Lines, m.methods, m.Files)
		}
	}
	table := "package p\n\nfunc f() {\n\t_ = []int{\n" + strings.Repeat("\t\t1,\n", maxFunc) + "\t}\n}\n"
	for path, many := range map[string]int{"p.go": 1, "p_test.go": 0} {
		if m := measuredText(t, path, table); len(m.Funcs) != many {
			t.Errorf("%s: %v; want %d functions", path, m.Funcs, many)
		}
	}
}
