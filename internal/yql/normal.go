package yql

import (
	"bytes"
	"strings"
)

// Normal is the form of a text in which texts agree that differ in nothing but literals, space, comments and
// the case of keywords. Kind is the first keyword of its first statement that is neither DECLARE nor PRAGMA,
// in capitals; "" if the text begins with none that is known.
//
// Torn and Open are signs that a string does not end where its author thinks, so that a part of it is taken for
// names, which stay: a word touches a string, or a quote or a comment is not closed.
type Normal struct {
	Text       []byte
	Kind       string
	Torn, Open bool
}

// AppendNormal appends the normal form of a text to dst. A literal becomes a question mark, with its sign. Of
// items of a list that follow each other and are equal then, one stays, and of the rows behind VALUES. Names
// and parameters stay as they are, except values that look like names where secrets are: behind PASSWORD, and behind
// an equals sign in CREATE, ALTER and OBJECT statements. A byte that no token has, and a quote or a comment that is not closed with
// all behind it, become a question mark as well. The time is linear in the text.
//
// Of a text in PostgreSQL's syntax, which this package does not read, a literal may be left in the form: see
// Postgres.
func AppendNormal(dst []byte, text string) Normal {
	n := normalizer{lex: NewLexer(text), out: dst, expectsKind: true}
	n.levels[0] = listLevel{from: len(dst), before: -1}
	for {
		tok := n.lex.Next()
		if tok.Kind == EOF {
			break
		}
		n.see(tok)
	}
	n.endItem()
	n.is.Text = bytes.TrimRight(n.out, ";")
	return n.is
}

// Postgres reports whether a text is in PostgreSQL's syntax.
func Postgres(text string) bool { return NewLexer(text).pg }

// normalizer writes a normal form.
type normalizer struct {
	lex *Lexer
	out []byte
	is  Normal // without its text

	expectsKind bool // the word of a statement that gives the text its kind is still to come
	last        what // written
	operand     bool // what was written last is one, so that a sign behind it is an operator
	signed      bool // what was written last is a sign that belongs to a literal, if one follows
	unsigned    what // was written before the sign,
	sign        int  // which begins here, with its space

	end     int  // of the string before; 0: another token came before
	defines bool // the statement may set a secret
	value   bool // what comes next is a value, in a statement that defines

	depth  int // of brackets
	levels [maxListDepth]listLevel
}

// maxListDepth is how deep in brackets lists lose their repeated items.
const maxListDepth = 32

// listLevel is a list that is being written, of which the items are between commas.
type listLevel struct {
	from        int  // where the current item begins
	before, end int  // the item before; before -1: there is none
	literal     bool // the current item has one
	some        bool // one of the items had
	rows        bool // behind VALUES
}

// what is a class of tokens, for the space between them.
type what uint8

const (
	nothing what = iota
	word
	operator
	opening // a bracket, or a dot
	other   // closing brackets, commas
)

// see writes a token.
func (n *normalizer) see(tok Token) {
	text, value, end := n.lex.Text(tok), n.value, n.end
	n.value, n.end = false, 0
	switch tok.Kind {
	case Ident:
		n.is.Torn = n.is.Torn || end > 0 && end == tok.Start && keywordOf(text) == ""
		if value && keywordOf(text) == "" {
			n.literal()
			return
		}
		n.ident(text)
	case QuotedIdent:
		if value {
			n.literal()
			return
		}
		n.name(text)
	case Number, String, Bad:
		if tok.Kind == String {
			n.end = tok.End
		}
		n.is.Open = n.is.Open || tok.Kind == Bad && strings.IndexByte("'\"`@$/", text[0]) >= 0
		n.literal()
	case Punct:
		n.punct(text[0])
	default:
		n.name(text)
	}
}

// name writes what stays as it is.
func (n *normalizer) name(text string) {
	n.write(word, text)
	n.operand = true
}

// ident writes a name, or a keyword in capitals.
func (n *normalizer) ident(text string) {
	keyword := ""
	if n.last != opening || n.out[len(n.out)-1] != '.' {
		keyword = keywordOf(text)
	}
	switch keyword {
	case "":
		n.defines = n.defines || strings.EqualFold(text, "OBJECT")
		n.name(text)
		return
	case "TRUE", "FALSE":
		n.literal()
		return
	}
	n.write(word, keyword)
	n.operand = false
	n.defines = n.defines || keyword == "CREATE" || keyword == "ALTER"
	n.value = n.defines && keyword == "PASSWORD"
	if keyword == "VALUES" && n.depth < maxListDepth {
		l := &n.levels[n.depth]
		*l = listLevel{from: len(n.out), before: -1, rows: true}
	}
	if n.expectsKind {
		n.expectsKind = false
		if keyword != "DECLARE" && keyword != "PRAGMA" {
			n.is.Kind = keyword
		}
	}
}

// literal writes what stands for one.
func (n *normalizer) literal() {
	if n.signed {
		n.out, n.last = n.out[:n.sign], n.unsigned
	}
	n.write(word, "?")
	n.operand = true
	if n.depth < maxListDepth {
		l := &n.levels[n.depth]
		l.literal, l.some = true, true
	}
}

// punct writes a byte of punctuation.
func (n *normalizer) punct(c byte) {
	text := punctuation[c : c+1]
	switch c {
	case '(', '[', '{':
		n.write(opening, text)
		n.operand = false
		if n.depth++; n.depth < maxListDepth {
			n.levels[n.depth] = listLevel{from: len(n.out), before: -1}
		}
	case ')', ']', '}':
		n.endItem()
		n.close(text)
	case ',':
		n.endItem()
		n.write(other, text)
		n.operand = false
		n.nextItem()
	case ';':
		n.endItem()
		n.depth = 0
		n.write(other, text)
		n.operand, n.defines = false, false
		n.levels[0] = listLevel{from: len(n.out), before: -1}
		n.expectsKind = n.is.Kind == ""
	case '.':
		n.write(opening, text)
		n.operand = false
	case '-', '+':
		at, before, unary := len(n.out), n.last, !n.operand
		n.write(operator, text)
		n.operand = false
		n.signed, n.sign, n.unsigned = unary, at, before
	default:
		n.write(operator, text)
		n.value = n.defines && c == '='
		n.operand = c == '*' // behind SELECT it is one, and behind an operand no sign follows it
	}
}

// close writes a closing bracket. A row behind VALUES that is equal to the one before it ends with it.
func (n *normalizer) close(text string) {
	literal := false
	if n.depth > 0 {
		literal = n.depth < maxListDepth && n.levels[n.depth].some
		n.depth--
	}
	n.write(other, text)
	n.operand = true
	if n.depth < maxListDepth {
		l := &n.levels[n.depth]
		l.literal, l.some = l.literal || literal, l.some || literal
		if l.rows {
			n.endItem()
		}
	}
}

// endItem ends the item of a list. It is taken back if it has a literal and is equal to the one before.
func (n *normalizer) endItem() {
	if n.depth >= maxListDepth {
		return
	}
	l := &n.levels[n.depth]
	if l.literal && l.before >= 0 && equalItems(n.out[l.before:l.end], n.out[l.from:]) {
		n.out = n.out[:l.end]
		l.from = l.before
		l.before = -1
	}
}

// nextItem begins an item behind a comma.
func (n *normalizer) nextItem() {
	if n.depth < maxListDepth {
		l := &n.levels[n.depth]
		l.before, l.end = l.from, len(n.out)-1
		l.from, l.literal = len(n.out), false
	}
}

// equalItems compares two items without the space in front of them.
func equalItems(a, b []byte) bool {
	return bytes.Equal(bytes.TrimLeft(a, " "), bytes.TrimLeft(b, " "))
}

// write appends a token, with a space where one belongs.
func (n *normalizer) write(is what, text string) {
	n.signed = false
	switch {
	case n.last == nothing, n.last == opening, is == other, is == operator && n.last == operator && isPair(n.out[len(n.out)-1], text[0]):
	case is == opening && (text == "." || text != "{" && n.operand):
	default:
		n.out = append(n.out, ' ')
	}
	n.out, n.last = append(n.out, text...), is
}

// isPair reports whether two bytes are an operator. Between others a space is left, so that no comment begins there.
func isPair(a, b byte) bool {
	switch b {
	case '=':
		return a == '<' || a == '>' || a == '!' || a == '='
	case '>':
		return a == '<' || a == '-' || a == '='
	}
	return a == b && (a == '|' || a == ':')
}

// punctuation has each byte of ASCII at its place.
var punctuation = func() string {
	var b [128]byte
	for i := range b {
		b[i] = byte(i)
	}
	return string(b[:])
}()

// keywordOf is a keyword in capitals; "" if the text is none. It allocates nothing.
func keywordOf(text string) string {
	var b [longest]byte
	if len(text) > longest {
		return ""
	}
	for i := range len(text) {
		if b[i] = text[i]; 'a' <= b[i] && b[i] <= 'z' {
			b[i] -= 'a' - 'A'
		}
	}
	return keywords[string(b[:len(text)])]
}

// keywords are those of YQL that mean the same in capitals. A name that looks like one is written in capitals as well.
var keywords = func() map[string]string {
	all := map[string]string{}
	for _, w := range strings.Fields(`
		ACTION ADD ALL ALTER ANALYZE AND ANSI ANY ARRAY AS ASC ASSUME ASYNC BACKUP BATCH BEGIN BETWEEN BITCAST BY
		CASCADE CASE CAST CHANGEFEED COLLATE COLUMN COLUMNS COMMIT COMPACT CONCURRENT CONDITIONAL CONSTRAINT CREATE CROSS
		CUBE CURRENT DATABASE DECLARE DEFAULT DEFINE DELETE DESC DESCRIBE DISABLE DISCARD DISTINCT DO DROP ELSE ENABLE
		ENCRYPTED END ERROR ESCAPE EVALUATE EXCEPT EXCLUDE EXCLUSION EXCLUSIVE EXISTS EXPLAIN EXPORT EXTERNAL
		FALSE FAMILY FILTER FIRST FLATTEN FOLLOWING FOR FOREIGN FROM FULL FUNCTION GLOBAL GRANT GROUP GROUPING GROUPS
		HAVING HOP IF IGNORE ILIKE IMPORT IN INDEX INDEXED INNER INSERT INTERSECT INTO IS ISNULL JOIN KEY
		LAST LEFT LIKE LIMIT LOCAL MATCH NATURAL NOT NOTNULL NULL NULLS OF OFFSET ON ONLY OR ORDER OUTER OVER
		PARTITION PASSWORD PRAGMA PRECEDING PRESORT PRIMARY PROCESS RANGE REDUCE REFERENCES REGEXP RENAME REPLACE
		RESPECT RESTORE RETURN RETURNING REVERT REVOKE RIGHT RLIKE ROLLBACK ROLLUP ROW ROWS SAMPLE SCHEMA SELECT SEMI
		SET SETS SHOW STREAM SUBQUERY SYNC TABLE TABLESAMPLE TABLESTORE TEMP TEMPORARY THEN TO TOPIC TRANSACTION TRUE
		TRUNCATE UNBOUNDED UNION UNIQUE UPDATE UPSERT USE USER USING VALUES VIEW WHEN WHERE WINDOW WITH WITHOUT XOR`) {
		all[w] = w
	}
	return all
}()
