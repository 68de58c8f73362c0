package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
)

// commanded is a command within a text for people: the program has no article there. Its flags follow, each with a
// value in capitals.
var commanded = regexp.MustCompile(`(?:^|([\w/-]+)[ "']+|[^\w\s]\s*)sidecar ([a-z][a-z-]*(?: [A-Z]{2,})?(?: -[a-z]+(?: [A-Z][A-Z:]*\b)?)*)`)

// subject are words before "sidecar" that make it a noun.
var subject = regexp.MustCompile(`(?i)^(the|a|an|this|that|no|each|every|one|another|other|any|running|restarted|second|which|whose|ydb|of|in|per|as)$`)

// commandsIn are the command lines that a text tells people to run.
func commandsIn(text string) (lines []string) {
	for _, m := range commanded.FindAllStringSubmatch(text, -1) {
		if !subject.MatchString(m[1]) && m[2] != "itself" {
			lines = append(lines, m[2])
		}
	}
	return lines
}

// Every command that a finding, a hint or an error names is one of the program, with these flags.
func TestCommandsInTexts(t *testing.T) {
	checked := 0
	check := func(place, text string) {
		for _, line := range commandsIn(text) {
			checked++
			if fault := faultOf(t, line); fault != "" {
				t.Errorf("%s: sidecar %s: %s\nin %q", place, line, fault, text)
			}
		}
	}
	for _, k := range findings.Kinds {
		check(string(k.Code), k.Do)
	}
	if checked < len(findings.Kinds)/2 {
		t.Errorf("only %d commands in the remedies of %d findings", checked, len(findings.Kinds))
	}
	err := filepath.WalkDir("../../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if l, ok := node.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if text, err := strconv.Unquote(l.Value); err == nil {
					check(set.Position(l.Pos()).String(), text)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCommandsAreFound(t *testing.T) {
	for text, want := range map[string]string{
		"Run sidecar why NODE for the figures. sidecar ban NODE keeps": "why NODE, ban NODE",
		"sidecar reload -admin HOST:PORT tries again":                  "reload -admin HOST:PORT",
		"the sidecar does not answer; a sidecar that":                  "",
		"(sidecar resize -max N takes effect)":                         "resize -max N",
	} {
		if got := strings.Join(commandsIn(text), ", "); got != want {
			t.Errorf("%q: %q; want %q", text, got, want)
		}
	}
}
