package yql

import (
	"strings"
	"unicode/utf8"
)

// Kind is the kind of a token.
type Kind uint8

// The kinds. Space and comments are between tokens.
const (
	EOF         Kind = iota
	Ident            // a name or a keyword
	QuotedIdent      // `name`; "name" as well in the ANSI dialect
	Name             // $name, $`name`
	Number           // 1, 0xff, 1.5e3, 10ul
	String           // 'text', "text" and @@text@@, each with an optional suffix
	Punct            // one byte of punctuation
	Bad              // no YQL: something that is not closed, or a stray character
)

// Token is a piece of a text: text[Start:End], in bytes.
type Token struct {
	Kind       Kind
	Start, End int
}

// Lexer cuts a YQL text into tokens. It never fails: what is not YQL becomes
// tokens of the kind Bad. Reading a whole text takes linear time and allocates
// nothing. Not safe for concurrent use.
type Lexer struct {
	text string
	pos  int
	ansi bool
	pg   bool
}

// NewLexer returns a lexer of text. A text that begins with the line
// "--!ansi_lexer" is read in the ANSI dialect, as the server does: quotes are
// doubled instead of escaped, "name" is a name, and comments nest.
func NewLexer(text string) *Lexer {
	l := &Lexer{text: text}
	for rest := text; ; {
		rest = strings.TrimLeft(rest, " \t\r\n")
		if !strings.HasPrefix(rest, "--!") {
			return l
		}
		line, after, _ := strings.Cut(rest, "\n")
		switch strings.TrimSpace(line[3:]) {
		case "ansi_lexer":
			l.ansi = true
		case "syntax_pg":
			l.pg = true
		}
		rest = after
	}
}

// Text returns the token's text, quotes and all.
func (l *Lexer) Text(t Token) string { return l.text[t.Start:t.End] }

// Next returns the next token, and EOF for ever at the end.
func (l *Lexer) Next() Token {
	closed := l.skipSpace()
	start := l.pos
	if !closed {
		l.pos = len(l.text)
		return Token{Bad, start, l.pos}
	}
	if start == len(l.text) {
		return Token{EOF, start, start}
	}
	kind := l.scan(l.text[start])
	return Token{kind, start, l.pos}
}

// scan moves over one token that begins with c and says what it was.
func (l *Lexer) scan(c byte) Kind {
	switch {
	case isLetter(c):
		l.pos = l.identEnd(l.pos)
		return Ident
	case isDigit(c):
		l.number()
		return Number
	case c == '\'' || c == '"':
		return l.quoted(c)
	case c == '`':
		return l.quotedName(c)
	case c == '$':
		return l.param()
	case c == '@' && strings.HasPrefix(l.text[l.pos:], "@@"):
		return l.multiline()
	case c > ' ' && c < utf8.RuneSelf-1:
		l.pos++
		return Punct
	}
	_, size := utf8.DecodeRuneInString(l.text[l.pos:])
	l.pos += size
	return Bad
}

// skipSpace moves to the next token. It returns false, and stays at the
// comment's start, when a comment is not closed.
func (l *Lexer) skipSpace() bool {
	for l.pos < len(l.text) {
		switch c := l.text[l.pos]; {
		case c == ' ' || c >= '\t' && c <= '\r':
			l.pos++
		case c == '-' && strings.HasPrefix(l.text[l.pos:], "--"):
			if n := strings.IndexByte(l.text[l.pos:], '\n'); n >= 0 {
				l.pos += n + 1
			} else {
				l.pos = len(l.text)
			}
		case c == '/' && strings.HasPrefix(l.text[l.pos:], "/*"):
			end := l.commentEnd(l.pos + 2)
			if end < 0 {
				return false
			}
			l.pos = end
		default:
			return true
		}
	}
	return true
}

// commentEnd returns the end of the block comment whose inside begins at from,
// or -1.
func (l *Lexer) commentEnd(from int) int {
	if !l.ansi {
		if n := strings.Index(l.text[from:], "*/"); n >= 0 {
			return from + n + 2
		}
		return -1
	}
	depth := 1
	for i := from; i+1 < len(l.text); i++ {
		switch l.text[i : i+2] {
		case "*/":
			if depth--; depth == 0 {
				return i + 2
			}
			i++
		case "/*":
			depth++
			i++
		}
	}
	return -1
}

func (l *Lexer) identEnd(i int) int {
	for i < len(l.text) && (isLetter(l.text[i]) || isDigit(l.text[i])) {
		i++
	}
	return i
}

// number takes digits, a fraction, an exponent and any suffix or radix letters.
func (l *Lexer) number() {
	begin := l.pos
	i := l.identEnd(l.pos)
	digits := func() bool { return !strings.ContainsAny(l.text[begin:i], "xXbBoO") }
	if i+1 < len(l.text) && l.text[i] == '.' && isDigit(l.text[i+1]) && digits() {
		i = l.identEnd(i + 1)
	}
	// An exponent's sign ends the run of letters and digits: take it up again.
	if e := l.text[i-1]; (e == 'e' || e == 'E') && i+1 < len(l.text) && digits() &&
		(l.text[i] == '+' || l.text[i] == '-') && isDigit(l.text[i+1]) {
		i = l.identEnd(i + 1)
	}
	l.pos = i
}

// quoted takes '...' or "...".
func (l *Lexer) quoted(quote byte) Kind {
	if !l.untilQuote(quote) {
		return Bad
	}
	if l.ansi && quote == '"' {
		return QuotedIdent
	}
	l.suffix()
	return String
}

func (l *Lexer) quotedName(quote byte) Kind {
	if !l.untilQuote(quote) {
		return Bad
	}
	return QuotedIdent
}

// untilQuote moves behind the closing quote, or to the end without one. Names
// in backquotes know both ways to write the quote itself.
func (l *Lexer) untilQuote(quote byte) bool {
	escapes, doubles := !l.ansi || quote == '`', l.ansi || quote == '`'
	for i := l.pos + 1; i < len(l.text); i++ {
		switch {
		case l.text[i] == '\\' && escapes:
			i++
		case l.text[i] != quote:
		case doubles && i+1 < len(l.text) && l.text[i+1] == quote:
			i++
		default:
			l.pos = i + 1
			return true
		}
	}
	l.pos = len(l.text)
	return false
}

// multiline takes @@...@@. Inside, @@@@ stands for @@, and one more @ before
// the closing pair belongs to the text; so what counts is the length of a run.
func (l *Lexer) multiline() Kind {
	for i := l.pos + 2; i < len(l.text); {
		n := strings.Index(l.text[i:], "@@")
		if n < 0 {
			break
		}
		i += n
		run := 0
		for i < len(l.text) && l.text[i] == '@' {
			run++
			i++
		}
		if run%4 >= 2 {
			l.pos = i
			l.suffix()
			return String
		}
	}
	l.pos = len(l.text)
	return Bad
}

// suffix takes the letters behind a string literal that name its type.
func (l *Lexer) suffix() {
	end := l.identEnd(l.pos)
	switch strings.ToLower(l.text[l.pos:min(end, l.pos+3)]) {
	case "s", "u", "y", "j", "t", "b", "v", "p", "pt", "pb", "pv":
		l.pos = end
	}
}

// param takes $name and $`name`; a dollar alone is punctuation.
func (l *Lexer) param() Kind {
	l.pos++
	if l.pos == len(l.text) {
		return Punct
	}
	switch c := l.text[l.pos]; {
	case isLetter(c):
		l.pos = l.identEnd(l.pos)
	case c == '`':
		if l.quotedName(c) == Bad {
			return Bad
		}
	default:
		return Punct
	}
	return Name
}

// Position returns the row and the column of an offset in bytes, both from 1
// and the column in characters, as the server's issues count.
func Position(text string, offset int) (row, column int) {
	before := text[:max(0, min(offset, len(text)))]
	row = strings.Count(before, "\n") + 1
	column = utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
	return row, column
}

func isLetter(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isIdent reports whether s can stand as a name without quotes.
func isIdent(s string) bool {
	if s == "" || !isLetter(s[0]) {
		return false
	}
	for i := range len(s) {
		if !isLetter(s[i]) && !isDigit(s[i]) {
			return false
		}
	}
	return true
}
