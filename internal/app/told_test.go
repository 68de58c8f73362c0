package app

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
)

// TestFindingsNameSettingsThatThereAre: at three in the morning nobody looks for a setting that does not exist.
func TestFindingsNameSettingsThatThereAre(t *testing.T) {
	settings, _, _ := describedSettings(t)
	var names, sections []string
	for _, s := range settings.List() {
		names = append(names, s.Name)
		section, _, _ := strings.Cut(s.Name, ".")
		sections = append(sections, section)
	}
	var texts []string
	for _, k := range findings.Kinds {
		texts = append(texts, k.Meaning, k.Do)
	}
	files, err := filepath.Glob("../admin/findings/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if text, err := strconv.Unquote(l.Value); err == nil {
					texts = append(texts, text)
				}
			}
			return true
		})
	}
	dotted := regexp.MustCompile(`[a-z_]+(\.[a-z_]+)+`)
	found := 0
	for _, text := range texts {
		for _, name := range dotted.FindAllString(text, -1) {
			if section, _, _ := strings.Cut(name, "."); !slices.Contains(sections, section) {
				continue
			}
			found++
			if !slices.ContainsFunc(names, func(setting string) bool { return setting == name || strings.HasPrefix(setting, name+".") }) {
				t.Errorf("%q names %s, which is no setting", text, name)
			}
		}
	}
	if found < 10 {
		t.Errorf("%d settings were found in the texts; want more", found)
	}
}
