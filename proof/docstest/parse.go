package docstest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
)

// block is a fenced block of a document.
type block struct {
	line     int // of its first line, from 1
	language string
	words    []string // what follows the language
	text     string
}

// file is the name of the file that the block is the text of, or "".
func (b block) file() string {
	for _, w := range b.words {
		if name, ok := strings.CutPrefix(w, "file="); ok {
			return name
		}
	}
	return ""
}

func (b block) shown() bool { return slices.Contains(b.words, "shown") }

// parse finds the code blocks of a document. Indented ones are errors: they name no language, so nobody can tell what runs them.
func parse(source []byte) ([]block, error) {
	var blocks []block
	lines := func(n ast.Node) (text string, first int) {
		all := n.Lines()
		first = 1
		for i := range all.Len() {
			at := all.At(i)
			if i == 0 {
				first += bytes.Count(source[:at.Start], []byte("\n"))
			}
			text += string(at.Value(source))
		}
		return text, first
	}
	err := ast.Walk(goldmark.New().Parser().Parse(text.NewReader(source)), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.CodeBlock:
			_, line := lines(n)
			return ast.WalkStop, fmt.Errorf("line %d: the block is indented; put it between fences that name its language", line)
		case *ast.FencedCodeBlock:
			text, line := lines(n)
			if n.Info == nil {
				return ast.WalkStop, fmt.Errorf("line %d: the block names no language", line)
			}
			words := strings.Fields(string(n.Info.Segment.Value(source)))
			blocks = append(blocks, block{line: line, language: words[0], words: words[1:], text: text})
		}
		return ast.WalkContinue, nil
	})
	return blocks, err
}

// matches reports whether an output is as a document says: equal except for what "..." stands for and spaces at the ends of lines.
func matches(want, got string) bool {
	return match(tidy(want), tidy(got))
}

func tidy(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t\r")
	}
	return strings.Join(lines, "\n")
}

func match(want, got string) bool {
	parts := strings.Split(want, "...")
	if len(parts) == 1 {
		return want == got
	}
	rest, ok := strings.CutPrefix(got, parts[0])
	if !ok {
		return false
	}
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, last)
}
