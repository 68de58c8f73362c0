package archtest

import (
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	backticked = regexp.MustCompile("`([^`]+)`")
	tagName    = regexp.MustCompile(`"([^",]+)[",]`)
	member     = regexp.MustCompile(`^\w+\.[A-Z]\w*$`)
)

// names are what the product declares, and the texts in it.
type names struct {
	declared map[string]bool // package.Name, Type.Member
	literals map[string]bool // strings, and names of fields in JSON
	literal  strings.Builder // all of these
	commands map[string]bool // strings of cmd/sidecar: commands and flags
	settings map[string]bool // names of settings
}

// TestGlossary fails on a name in backticks of docs/reference/glossary.md that neither the code nor the settings nor the metrics have.
func TestGlossary(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/reference/glossary.md"))
	if err != nil {
		t.Fatal(err)
	}
	product := productNames(t)
	seen := 0
	for i, line := range strings.Split(string(text), "\n") {
		for _, m := range backticked.FindAllStringSubmatch(line, -1) {
			if seen++; !product.have(m[1]) {
				t.Errorf("docs/reference/glossary.md:%d: %q is in no package, setting or metric", i+1, m[1])
			}
		}
	}
	if seen < 100 {
		t.Errorf("docs/reference/glossary.md has %d names in backticks; the test has lost some", seen)
	}
	for _, name := range []string{"pool.Nothing", "Pool.Nothing", "nothing.*", "pool.nothing", "internal/nothing",
		"/state/nothing", "sidecar nought", "ydb.sidecar.nothing", "serve -nought"} {
		if product.have(name) {
			t.Errorf("%q is taken for a name of the product", name)
		}
	}
	for _, page := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "docs/reference/glossary.md") {
			t.Errorf("%s does not link docs/reference/glossary.md", page)
		}
	}
}

var (
	sourceFile = regexp.MustCompile(`^[\w/]+\.go$`)
	qualified  = regexp.MustCompile(`^(\w+\.)?\w+\.\w+$`) // package.Name, Type.member, package.Type.member
)

// TestArchitectureNamesWhatThereIs fails on a file and on a name in backticks of ARCHITECTURE.md that are not there.
func TestArchitectureNamesWhatThereIs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	product := productNames(t)
	seen := 0
	for i, line := range strings.Split(string(text), "\n") {
		for _, m := range backticked.FindAllStringSubmatch(line, -1) {
			name := m[1]
			switch {
			case sourceFile.MatchString(name):
				seen++
				if _, err := os.Stat(filepath.Join(root, "internal", name)); err != nil {
					t.Errorf("ARCHITECTURE.md:%d: there is no internal/%s", i+1, name)
				}
			case qualified.MatchString(name) && !product.settings[name] && !product.literals[name]:
				seen++
				parts := strings.Split(name, ".")
				if !product.declared[strings.Join(parts[len(parts)-2:], ".")] {
					t.Errorf("ARCHITECTURE.md:%d: %q is in no package", i+1, name)
				}
			}
		}
	}
	if seen < 80 {
		t.Errorf("ARCHITECTURE.md has %d such names; the test has lost some", seen)
	}
}

// have reports whether the product has a name of the glossary.
func (n *names) have(name string) bool {
	if strings.Contains(name, "/") && !strings.Contains(name, " ") && !strings.HasPrefix(name, "/") {
		_, err := os.Stat(filepath.Join(root, name))
		return err == nil
	}
	if strings.HasPrefix(name, "/") || strings.HasPrefix(name, "GET /") {
		return strings.Contains(n.literal.String(), strings.TrimPrefix(name, "GET "))
	}
	if words := strings.Fields(name); len(words) > 1 { // a command and its first argument
		return n.commands[strings.TrimPrefix(words[1], "-")]
	}
	if section, all := strings.CutSuffix(name, "*"); all {
		for setting := range n.settings {
			if strings.HasPrefix(setting, section) {
				return true
			}
		}
		return false
	}
	return member.MatchString(name) && n.declared[name] || n.settings[name] || n.literals[strings.TrimSuffix(name, "=")]
}

// productNames reads the product's sources, and the settings of docs/reference/settings.md, which a
// test of internal/app compares with the code.
func productNames(t *testing.T) *names {
	t.Helper()
	n := &names{declared: map[string]bool{}, literals: map[string]bool{}, commands: map[string]bool{}, settings: map[string]bool{}}
	for _, file := range proseFiles(t, root) {
		top, _, _ := strings.Cut(file, "/")
		if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") || top != "internal" && top != "cmd" {
			continue
		}
		s, err := readSource(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		n.add(s.file)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/reference/settings.md"))
	if err != nil {
		t.Fatal(err)
	}
	section, _, _ := strings.Cut(string(text), "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `([\\w.]+)` \\|").FindAllStringSubmatch(section, -1) {
		n.settings[m[1]] = true
	}
	if len(n.settings) < 100 {
		t.Fatalf("docs/reference/settings.md has %d settings; the test reads it wrongly", len(n.settings))
	}
	return n
}

// add adds what a file declares, and its texts.
func (n *names) add(file *ast.File) {
	pkg := file.Name.Name
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncDecl:
			if node.Recv == nil {
				n.declared[pkg+"."+node.Name.Name] = true
				break
			}
			of := node.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			if id, ok := of.(*ast.Ident); ok {
				n.declared[id.Name+"."+node.Name.Name] = true
			}
		case *ast.TypeSpec:
			n.declared[pkg+"."+node.Name.Name] = true
			n.addMembers(node)
		case *ast.ValueSpec:
			for _, name := range node.Names {
				n.declared[pkg+"."+name.Name] = true
			}
		case *ast.Field:
			if node.Tag != nil {
				for _, m := range tagName.FindAllStringSubmatch(node.Tag.Value, -1) {
					n.literals[m[1]] = true
				}
			}
		case *ast.BasicLit:
			if node.Kind == token.STRING {
				if text, err := strconv.Unquote(node.Value); err == nil {
					n.literals[text] = true
					n.commands[text] = n.commands[text] || pkg == "main"
					n.literal.WriteString(text + "\n")
				}
			}
		}
		return true
	})
}

// addMembers adds the fields of a struct and the methods of an interface.
func (n *names) addMembers(of *ast.TypeSpec) {
	var list *ast.FieldList
	switch t := of.Type.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	default:
		return
	}
	for _, field := range list.List {
		for _, name := range field.Names {
			n.declared[of.Name.Name+"."+name.Name] = true
		}
	}
}

// TestThreatModelNamesItsTests fails on a test in docs/concepts/threat-model.md that is not in the package named before it.
func TestThreatModelNamesItsTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/concepts/threat-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]string{} // the text of a package's tests
	testsOf := func(folder string) string {
		if known, ok := in[folder]; ok {
			return known
		}
		var all strings.Builder
		files, _ := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
		in[folder] = all.String()
		return in[folder]
	}
	seen := 0
	word := regexp.MustCompile("`([\\w/]+)`|\\b((?:Test|Fuzz)[A-Z]\\w*)")
	for i, line := range strings.Split(string(text), "\n") {
		folder := ""
		for _, m := range word.FindAllStringSubmatch(line, -1) {
			if m[1] != "" {
				folder = m[1]
				continue
			}
			seen++
			here := "\nfunc " + m[2] + "("
			if folder == "" || !strings.Contains(testsOf("internal/"+folder), here) && !strings.Contains(testsOf(folder), here) {
				t.Errorf("docs/concepts/threat-model.md:%d: %s is not in package %q", i+1, m[2], folder)
			}
		}
	}
	if seen < 80 {
		t.Errorf("docs/concepts/threat-model.md has %d tests; this test has lost some", seen)
	}
}
