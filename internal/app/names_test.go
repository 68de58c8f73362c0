package app

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// A word with dots looks like a setting if it begins with the name of a section: pool.max.
var (
	dotted  = regexp.MustCompile(`[A-Za-z0-9_./:@$%{}*-]*[a-z0-9_]\.[A-Za-z0-9_./:{}*-]*`)
	setting = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$`)
)

// What is no setting, though it begins like one.
var (
	fileNames = regexp.MustCompile(`\.(md|go|yaml|yml|json|proto|svg|html|css|js|ts|py|pem|sock|txt|service|test)$`)
	hostNames = regexp.MustCompile(`\.(example|com|org|net|tech|internal|local|svc)(\.|$)`)
	otherWord = regexp.MustCompile(`^(` + strings.Join([]string{
		`ydb\.(sidecar|client|query|node|retry)`, `http\.(client|server|request|response|route)`, // metrics, spans and their attributes
		`grpc\.health\.v1`, `ydb\.upstream`, // services of gRPC
		`ydb\.(aio|sdk)`, `grpc\.insecure_channel`, // of SDKs
		`tx\.(id|seq|begin)`,                   // fields of requests
		`discovery\.unidentified`,              // of /state/nodes
		`memory\.(max|current|limit_in_bytes)`, // files of cgroups
		`discovery\.xds_?$`,                    // the settings that begin so
	}, "|") + `)(\.|$)`)
)

// names are what words with dots may mean.
type names struct {
	settings map[string]bool // and their sections
	sections map[string]bool // first words
}

func (n names) unknown(text string) (all []string) {
	if !strings.Contains(text, ".") {
		return nil // most texts: the expression takes far longer
	}
	for _, word := range dotted.FindAllString(text, -1) {
		word = strings.TrimRight(word, ".:*-")
		section, _, _ := strings.Cut(word, ".")
		if !setting.MatchString(word) || !n.sections[section] || n.settings[word] ||
			fileNames.MatchString(word) || hostNames.MatchString(word) || otherWord.MatchString(word) {
			continue
		}
		all = append(all, word)
	}
	return all
}

func knownNames(t *testing.T) names {
	t.Helper()
	c := Default()
	settings, err := config.Bind(&c)
	if err != nil {
		t.Fatal(err)
	}
	n := names{settings: map[string]bool{}, sections: map[string]bool{}}
	for name := range retired {
		n.settings[name] = true
	}
	for _, s := range settings.List() {
		parts := strings.Split(s.Name, ".")
		n.sections[parts[0]] = true
		for i := range parts {
			n.settings[strings.Join(parts[:i+1], ".")] = true
		}
	}
	return n
}

func TestUnknownSettingsAreFound(t *testing.T) {
	for text, want := range map[string][]string{
		"lower api.max_rows_bytes and pool.max.":                               {"api.max_rows_bytes"},
		"`pool.maximum`: see docs/concepts/pool.md, ydb.auth.kind or ydb.auth": {"pool.maximum"},
		"-set pool.idel=5m":        {"pool.idel"},
		"(health.latency_windows)": {"health.latency_windows"},
		"grpcs://ydb.example.com:2136, ydb.svc, metric ydb.sidecar.pool.x": nil,
		"pool.Acquire, internal/routing.uses, /v1/tx.x, pool.go:12, a.b":   nil,
	} {
		if got := knownNames(t).unknown(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q; want %q", text, got, want)
		}
	}
}

// stringsOf has the strings of a file of Go checked, and returns how many there are.
func stringsOf(t *testing.T, path string, check func(place, text string)) (strs int) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch l := node.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if text, err := strconv.Unquote(l.Value); l.Kind == token.STRING && err == nil {
				strs++
				check(set.Position(l.Pos()).String(), text)
			}
		}
		return true
	})
	return strs
}

// Texts for users name no setting that does not exist: findings, hints and errors, which
// are strings of the code, and the documentation.
func TestNamedSettingsExist(t *testing.T) {
	n := knownNames(t)
	check := func(place, text string) {
		for _, word := range n.unknown(text) {
			t.Errorf("%s names %s, which is no setting", place, word)
		}
	}
	pages, err := filepath.Glob("../../docs/*/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, path := range append(pages, "../../README.md", "../../ARCHITECTURE.md", "../../deploy/README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		program := false // within a program, whose variables are no settings
		for i, line := range strings.Split(string(text), "\n") {
			if fence, language, ok := strings.Cut(line, "```"); ok && strings.TrimSpace(fence) == "" {
				language, _, _ = strings.Cut(language, " ")
				program = slices.Contains([]string{"python", "js", "ts", "php"}, language)
			}
			if !program {
				check(fmt.Sprintf("%s:%d", path, i+1), line)
			}
		}
	}
	code, err := filepath.Glob("../*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../../cmd/sidecar/*.go")
	if err != nil {
		t.Fatal(err)
	}
	deeper, err := filepath.Glob("../*/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	strs := 0
	for _, path := range slices.Concat(code, more, deeper) {
		if strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/devcluster/") {
			continue
		}
		strs += stringsOf(t, path, check)
	}
	if strs < 5000 {
		t.Errorf("only %d strings were looked at", strs)
	}
}
