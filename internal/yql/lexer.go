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
	String           // 'text', "text" and @@text@@, each with an optional suffix; x'00'
	Punct            // one byte of punctuation
	Bad              // no YQL: something that is not closed, or a character that no token has
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

// LineEnds are the characters that end a line, and a comment that begins with "--":
// the server's grammar takes a carriage return alone as well.
const LineEnds = "\r\n"

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
		end := lineEnd(rest)
		setting := strings.TrimSpace(rest[3:end])
		l.ansi = l.ansi || setting == "ansi_lexer"
		l.pg = l.pg || strings.HasPrefix(setting, "syntax_pg") // a line with more is refused, and its author meant it
		rest = rest[end:]
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
		if c == 'x' || c == 'X' {
			if end := l.blob(); end > 0 {
				l.pos = end
				return String
			}
		}
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
	case c == '#' || c == '\\' || c == '!' && !strings.HasPrefix(l.text[l.pos:], "!="):
		l.pos++
		return Bad
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
		case c == ' ' || c >= '\t' && c <= '\r' && c != '\v':
			l.pos++
		case c == '-' && strings.HasPrefix(l.text[l.pos:], "--"):
			l.pos += lineEnd(l.text[l.pos:])
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

// lineEnd returns where the first line of text ends.
func lineEnd(text string) int {
	for from := 0; from < len(text); from += lineStep {
		part := text[from:min(from+lineStep, len(text))]
		end := len(part)
		for i := range len(LineEnds) {
			if n := strings.IndexByte(part[:end], LineEnds[i]); n >= 0 {
				end = n
			}
		}
		if end < len(part) {
			return from + end
		}
	}
	return len(text)
}

// lineStep is how much of a line is searched at once for each of its possible ends, of which a long
// text may have only one kind. IndexByte in such parts is ten times as fast as IndexAny.
const lineStep = 256

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

// blob returns the end of X'...' with hexadecimal digits, or 0 if none begins here.
func (l *Lexer) blob() int {
	text := l.text[l.pos:]
	if len(text) < 4 || text[1] != '\'' {
		return 0
	}
	end := 2 + countOf(text[2:], hexDigits)
	if end == 2 || end == len(text) || text[end] != '\'' {
		return 0
	}
	return l.pos + end + 1
}

const (
	decDigits = "0123456789"
	hexDigits = decDigits + "abcdefABCDEF"
)

// countOf returns how many bytes of these text begins with.
func countOf(text, these string) int {
	for i := range len(text) {
		if strings.IndexByte(these, text[i]) < 0 {
			return i
		}
	}
	return len(text)
}

// number takes the longest number that begins here, with its suffix. A word may touch it.
func (l *Lexer) number() {
	text := l.text[l.pos:]
	n, whole := countOf(text, decDigits), true
	if end := radixEnd(text); end > n {
		n = end
	} else {
		if n < len(text) && text[n] == '.' {
			n, whole = n+1, false
			n += countOf(text[n:], decDigits)
		}
		if end := exponentEnd(text[n:]); end > 0 {
			n, whole = n+end, false
		}
	}
	switch {
	case whole:
		n += among(text[n:], "pPuU")
		n += among(text[n:], "lLsStTiIbBnN")
	case among(text[n:], "fF") > 0:
		n++
	case among(text[n:], "pP") > 0:
		n++
		if among(text[n:], "nN") > 0 || among(text[n:], "fF") > 0 && among(text[n+1:], "48") > 0 {
			n += 1 + among(text[n:], "fF")
		}
	}
	l.pos += n
}

// radixEnd returns the end of a number in hexadecimal, octal or binary digits, or 0.
func radixEnd(text string) int {
	if len(text) < 3 || text[0] != '0' {
		return 0
	}
	these := ""
	switch text[1] {
	case 'x', 'X':
		these = hexDigits
	case 'o', 'O':
		these = "012345678" // the server's grammar has the 8, too
	case 'b', 'B':
		these = "01"
	}
	if n := countOf(text[2:], these); n > 0 {
		return 2 + n
	}
	return 0
}

// exponentEnd returns the end of an exponent with its digits, or 0.
func exponentEnd(text string) int {
	sign := among(text, "eE")
	if sign == 0 {
		return 0
	}
	sign += among(text[sign:], "+-")
	if n := countOf(text[sign:], decDigits); n > 0 {
		return sign + n
	}
	return 0
}

// among returns 1 if text begins with one of these bytes.
func among(text, these string) int {
	if text != "" && strings.IndexByte(these, text[0]) >= 0 {
		return 1
	}
	return 0
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

// suffix takes the letters behind a string literal that name its type. A word may touch them.
func (l *Lexer) suffix() {
	if among(l.text[l.pos:], "pP") > 0 {
		l.pos++
		l.pos += among(l.text[l.pos:], "tTbBvV")
		return
	}
	l.pos += among(l.text[l.pos:], "sSuUyYjJ")
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
