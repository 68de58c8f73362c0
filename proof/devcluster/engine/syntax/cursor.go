package syntax

import (
	"slices"
	"strings"
)

// cursor goes through the tokens of a text: it looks at them, takes them, and leaves
// a faulty text by panic(*Error).
type cursor struct {
	tokens []token
	at     int
	depth  int // of the nesting
}

func (t token) word(w string) bool { return t.kind == tWord && strings.EqualFold(t.text, w) }

func (t token) punct(s string) bool { return t.kind == tPunct && t.text == s }

func (c *cursor) peek() token { return c.tokens[c.at] }

func (c *cursor) peekAt(n int) token { return c.tokens[min(c.at+n, len(c.tokens)-1)] }

func (c *cursor) next() token {
	t := c.tokens[c.at]
	if t.kind != tEOF {
		c.at++
	}
	return t
}

// isWords reports whether the given keywords come next.
func (c *cursor) isWords(words ...string) bool {
	for i, w := range words {
		if !c.peekAt(i).word(w) {
			return false
		}
	}
	return true
}

// word takes the keywords if they come next.
func (c *cursor) word(words ...string) bool {
	if !c.isWords(words...) {
		return false
	}
	c.at += len(words)
	return true
}

// punct takes the operator or the bracket if it comes next.
func (c *cursor) punct(s string) bool {
	if !c.peek().punct(s) {
		return false
	}
	c.at++
	return true
}

// expectWord takes the keywords, which must come next.
func (c *cursor) expectWord(words ...string) {
	for _, w := range words {
		if !c.word(w) {
			c.unexpected("'" + w + "'")
		}
	}
}

// expect takes the operator or the bracket, which must come next.
func (c *cursor) expect(s string) {
	if !c.punct(s) {
		c.unexpected("'" + s + "'")
	}
}

func (c *cursor) fail(pos Pos, format string, args ...any) { panic(fail(pos, format, args...)) }

// outside are keywords of YQL that the subset leaves out: an error names them as such.
var outside = []string{
	"WINDOW", "OVER", "PARTITION", "FLATTEN", "SAMPLE", "TABLESAMPLE", "RIGHT", "FULL", "SEMI", "EXCLUSION", "ONLY", "ANY",
	"INTERSECT", "EXCEPT", "WITHOUT", "MATCH_RECOGNIZE", "PROCESS", "REDUCE", "DEFINE", "EVALUATE", "DO", "COMMIT", "ROLLBACK", "EXPORT",
	"IMPORT", "GRANT", "REVOKE", "BACKUP", "RESTORE", "ANALYZE", "ROLLUP", "CUBE", "GROUPING", "EXTERNAL",
	"TOPIC", "USER", "ROLE", "OBJECT", "SEQUENCE", "CHANGEFEED", "FAMILY", "DEFAULT", "TEMP", "TEMPORARY", "RENAME",
	"STREAM", "CONCAT", "USE",
	"COLLATE", "UNIQUE", "LOCAL", "COMPACT", "VIEW", "GROUP", "HAVING", "DISTINCT", "CROSS", "RETURNING", "DISCARD", "OFFSET", "USING",
	"LIKE", "ILIKE", "REGEXP", "RLIKE", "MATCH", "CASE", "EXISTS", "XOR",
}

// unexpected fails at the next token; want says what would have been right.
func (c *cursor) unexpected(want string) {
	t := c.peek()
	if t.kind == tWord && slices.Contains(outside, strings.ToUpper(t.text)) {
		c.fail(t.pos, "%s is outside of the subset of YQL that the development cluster knows", strings.ToUpper(t.text))
	}
	c.fail(t.pos, "unexpected %s, expected %s", t.describe(), want)
}

// enter counts one level of nesting; the caller defers the returned function.
func (c *cursor) enter() func() {
	c.depth++
	if c.depth > maxDepth {
		c.fail(c.peek().pos, "nested deeper than %d levels", maxDepth)
	}
	return c.leave
}

func (c *cursor) leave() { c.depth-- }
