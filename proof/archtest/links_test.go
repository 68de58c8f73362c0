package archtest

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	gmtext "github.com/yuin/goldmark/text"
)

// TestLinks follows every link of every page: its file is there, and so is its heading. A page that is named in prose is a link.
// Left out are CHANGELOG.md, which tells of pages that are gone, and what programs print.
func TestLinks(t *testing.T) {
	list, err := exec.CommandContext(
		t.Context(), "git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md",
	).Output()
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]page{}
	for file := range strings.FieldsSeq(string(list)) {
		if text, err := os.ReadFile(filepath.Join(root, file)); err == nil && !strings.Contains(file, "testdata/") {
			pages[file] = readPage(text)
		}
	}
	links := 0
	for file, p := range pages {
		for _, link := range p.links {
			links++
			if fault := p.follow(file, link, pages); fault != "" {
				t.Errorf("%s: %s", file, fault)
			}
		}
		if file == "CHANGELOG.md" || strings.HasPrefix(file, "docs/dev/benchmarks/") || strings.HasPrefix(file, "docs/dev/peers/") {
			continue
		}
		for _, name := range p.bare {
			if _, ok := pages[name]; ok && name != file {
				t.Errorf("%s names %s and does not link it", file, name)
			}
		}
	}
	if len(pages) < 50 || links < 300 {
		t.Errorf("%d pages with %d links; the test reads them wrongly", len(pages), links)
	}
}

// page is what TestLinks needs of a page.
type page struct {
	anchors map[string]bool
	links   []string
	bare    []string // paths of pages in prose
}

// barePage matches the path of a page.
var barePage = regexp.MustCompile(`\b(?:docs|deploy|examples|clients|proof|loadtest)/[\w/-]+\.md\b`)

// htmlAnchor matches an anchor that is no heading.
var htmlAnchor = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)

// readPage reads a page: its anchors, its links, and which pages its prose names without a link.
func readPage(text []byte) page {
	p := page{anchors: map[string]bool{}}
	for _, m := range htmlAnchor.FindAllSubmatch(text, -1) {
		p.anchors[string(m[1])] = true
	}
	document := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(gmtext.NewReader(text))
	_ = ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			p.anchors[anchor(n, text)] = true
		case *ast.Link:
			p.links = append(p.links, string(n.Destination))
			return ast.WalkSkipChildren, nil
		case *ast.Image:
			p.links = append(p.links, string(n.Destination))
			return ast.WalkSkipChildren, nil
		case *ast.Text:
			p.bare = append(p.bare, barePage.FindAllString(string(n.Value(text)), -1)...)
		}
		return ast.WalkContinue, nil // the text of a code span is a child of it, a code block has none
	})
	return p
}

// notInAnchor matches what GitHub leaves out of the anchor of a heading.
var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchor is the anchor that GitHub gives a heading.
func anchor(heading ast.Node, text []byte) string {
	var b strings.Builder
	_ = ast.Walk(heading, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if n, ok := n.(*ast.Text); ok && entering {
			b.Write(n.Value(text))
		}
		return ast.WalkContinue, nil
	})
	return strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(b.String()), ""), " ", "-")
}

// follow reports what is wrong with a link of a page, or "".
func (p page) follow(file, link string, pages map[string]page) string {
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return ""
	}
	target, anchor, hasAnchor := strings.Cut(link, "#")
	there, name := p, file
	if target != "" {
		name = path.Join(path.Dir(file), target)
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			return link + " leads nowhere: " + name
		}
		there = pages[name]
	}
	if hasAnchor && !there.anchors[anchor] {
		return link + ": " + name + " has no such heading"
	}
	return ""
}
