package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// MaxFile is the size in bytes above which a file is refused.
const MaxFile = 1 << 20

// maxNesting is far above what settings need and far below what would hurt the
// parser, which recurses.
const maxNesting = 100

// maxParts bounds the sections of a file that is not YAML which are read one by one. There are fewer sections of settings.
const maxParts = 100

// File takes the settings in a YAML file. It returns all faults, joined, each
// with line and column.
func (s *Settings) File(path string) error {
	file, err := os.Open(path)
	if err != nil {
		s.doubt("")
		return fmt.Errorf("read configuration: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, MaxFile+1))
	if err != nil {
		s.doubt("")
		return fmt.Errorf("read configuration: %w", err)
	}
	return s.YAML(path, text)
}

// YAML takes the settings in text; path stands in errors and sources.
func (s *Settings) YAML(path string, text []byte) error {
	if len(text) > MaxFile || tooDeep(text) {
		s.doubt("")
		return fmt.Errorf("%s: too large or nested too deeply for a configuration", path)
	}
	r := reader{settings: s, path: path, seen: map[string]string{}}
	if err := r.document(text); err != nil {
		s.doubt("")
		r.parts(text, syntaxError(path, err))
	}
	return errors.Join(r.errs...)
}

// document reads the settings in text. It reads none of text that is not YAML.
func (r *reader) document(text []byte) error {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return err
	}
	for _, doc := range file.Docs {
		r.section("", doc.Body, 0)
	}
	return nil
}

// parts reads a file that is not YAML section by section, so that one fault of form hides no fault of another section. whole
// is the fault of the whole file, which is reported if every section by itself is YAML.
func (r *reader) parts(text []byte, whole error) {
	broken, parts := false, 0
	for begin, end := range sections(text) {
		if parts++; parts > maxParts {
			break
		}
		// Empty lines in front keep the numbers of lines.
		part := append(bytes.Repeat([]byte{'\n'}, bytes.Count(text[:begin], []byte{'\n'})), text[begin:end]...)
		if err := r.document(part); err != nil {
			broken = true
			r.errs = append(r.errs, syntaxError(r.path, err))
		}
	}
	if !broken {
		r.errs = append(r.errs, whole)
	}
}

// sections yields where each section of text begins and ends. A section begins with a letter or a quote at the start of a line.
func sections(text []byte) iter.Seq2[int, int] {
	return func(yield func(begin, end int) bool) {
		begin, at := 0, 0
		for line := range bytes.Lines(text) {
			first := line[0]
			if at > begin && (unicode.IsLetter(rune(first)) || first == '"' || first == '\'') {
				if !yield(begin, at) {
					return
				}
				begin = at
			}
			at += len(line)
		}
		yield(begin, at)
	}
}

// tooDeep finds text that nests for the sake of nesting: brackets, or dashes on
// one line. It does not know quotes, so its limit leaves room for odd values.
func tooDeep(text []byte) bool {
	brackets, dashes := 0, 0
	for i, c := range text {
		switch c {
		case '[', '{':
			brackets++
		case ']', '}':
			brackets = max(0, brackets-1)
		case '\n':
			dashes = 0
		case ' ':
			if i > 0 && (text[i-1] == '-' || text[i-1] == '?' || text[i-1] == ':') {
				dashes++
			}
		}
		if brackets > maxNesting || dashes > maxNesting {
			return true
		}
	}
	return false
}

// syntaxError puts the parser's place in front of its message, which otherwise
// quotes the text around: that may hold a secret.
func syntaxError(path string, err error) error {
	var positioned interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if errors.As(err, &positioned) && positioned.GetToken() != nil {
		text := positioned.GetMessage()
		if strings.Contains(text, `'\t'`) || strings.Contains(text, "'\t'") || strings.Contains(text, "tab character") {
			text = "a tab; YAML takes only spaces to indent"
		}
		return fmt.Errorf("%s: %s", position(path, positioned.GetToken()), text)
	}
	return fmt.Errorf("%s: not YAML", path)
}

func position(path string, t *token.Token) string {
	if t == nil || t.Position == nil {
		return path
	}
	return fmt.Sprintf("%s:%d:%d", path, t.Position.Line, t.Position.Column)
}

// reader walks the file's nodes.
type reader struct {
	settings *Settings
	path     string
	seen     map[string]string // where each setting was set
	errs     []error
}

// fault keeps a fault of a setting, or of a section: name ends with a dot or is "" then.
func (r *reader) fault(n ast.Node, name, format string, args ...any) {
	r.settings.doubt(name)
	r.errs = append(r.errs, fmt.Errorf("%s: %s", position(r.path, n.GetToken()), fmt.Sprintf(format, args...)))
}

// section reads the mapping below a section; prefix is its name and a dot.
func (r *reader) section(prefix string, body ast.Node, depth int) {
	if body == nil || depth > maxNesting {
		return
	}
	switch n := body.(type) {
	case *ast.MappingNode:
		for _, entry := range n.Values {
			r.entry(prefix, entry, depth)
		}
	case *ast.MappingValueNode:
		r.entry(prefix, n, depth)
	case *ast.NullNode, *ast.CommentGroupNode:
		// An empty section changes nothing.
	default:
		r.fault(body, prefix, "want settings of the form name: value")
	}
}

func (r *reader) entry(prefix string, entry *ast.MappingValueNode, depth int) {
	if entry.Key == nil || entry.Key.IsMergeKey() {
		r.fault(entry, prefix, "merge keys are not supported")
		return
	}
	key, ok := scalar(entry.Key)
	if !ok {
		r.fault(entry.Key, prefix, "want the name of a setting")
		return
	}
	name := prefix + key
	set := r.settings.byName[name]
	switch {
	case set != nil:
		r.set(set, entry)
	case r.settings.isSection(name):
		r.section(name+".", entry.Value, depth+1)
	case r.settings.ignore(name, position(r.path, entry.Key.GetToken())):
	default:
		r.fault(entry.Key, name, "%s", r.settings.unknown(name))
		r.lost(name+".", entry.Value, depth+1)
	}
}

// lost keeps the names below a section that does not exist: what they set is lost with it.
func (r *reader) lost(prefix string, body ast.Node, depth int) {
	var entries []*ast.MappingValueNode
	switch n := body.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	}
	for _, entry := range entries {
		if entry.Key == nil || depth > maxNesting {
			continue
		}
		if key, ok := scalar(entry.Key); ok {
			r.settings.doubt(prefix + key)
			r.lost(prefix+key+".", entry.Value, depth+1)
		}
	}
}

func (r *reader) set(set *setting, entry *ast.MappingValueNode) {
	at := position(r.path, entry.Key.GetToken())
	if before, twice := r.seen[set.name]; twice {
		r.fault(entry.Key, set.name, "%s is set twice; first at %s", set.name, before)
		return
	}
	r.seen[set.name] = at
	items, isList, ok := values(entry.Value)
	if !ok {
		r.fault(entry.Value, set.name, "%s: want a value or a list of values", set.name)
		return
	}
	if err := set.parse(items, isList); err != nil {
		r.fault(entry.Value, set.name, "%v", err)
		return
	}
	r.settings.setFrom(set, at)
}

// values reads a scalar, or a sequence of scalars.
func values(n ast.Node) (items []string, isList, ok bool) {
	sequence, isList := n.(*ast.SequenceNode)
	if !isList {
		text, ok := scalar(n)
		return []string{text}, false, ok
	}
	for _, item := range sequence.Values {
		text, ok := scalar(item)
		if !ok {
			return nil, true, false
		}
		items = append(items, text)
	}
	return items, true, true
}

// scalar returns the text of a scalar as it stands in the file: a setting's
// type decides what it means, not YAML's guess. Null, which clears a text or a
// list, is the empty text. Anchors, aliases and tags are not for settings.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.MappingKeyNode:
		return scalar(n.Value)
	case *ast.NullNode:
		return "", true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	default:
		return "", false
	}
}
