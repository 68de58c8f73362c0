package syntax

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// Pos is a place in a text; both count from 1, columns in characters.
type Pos struct{ Row, Col uint32 }

// Error is a fault of the text at a place.
type Error struct {
	Pos Pos
	Msg string
}

func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Pos.Row, e.Pos.Col, e.Msg) }

func fail(p Pos, format string, args ...any) *Error {
	return &Error{Pos: p, Msg: fmt.Sprintf(format, args...)}
}

type tokenKind uint8

const (
	tEOF    tokenKind = iota
	tWord             // an identifier or a keyword
	tName             // a name in backticks
	tParam            // $name; text holds it with the dollar sign
	tString           // a string literal
	tNumber           // a number literal
	tPunct            // an operator or a bracket
)

type token struct {
	kind tokenKind
	text string // words, names and punctuation
	pos  Pos
	typ  *value.Type // literals
	val  value.Value
}

// describe names the token in messages.
func (t token) describe() string {
	switch t.kind {
	case tEOF:
		return "end of text"
	case tString:
		return "a string literal"
	case tName:
		return "`" + t.text + "`"
	}
	return "'" + t.text + "'"
}

type lexer struct {
	s     string
	at    int
	row   uint32
	col   uint32 // characters of the row before offset colAt
	colAt int
}

func (l *lexer) pos() Pos {
	l.col += uint32(utf8.RuneCountInString(l.s[l.colAt:l.at]))
	l.colAt = l.at
	return Pos{Row: l.row, Col: l.col + 1}
}

// to moves to offset end and counts the lines on the way.
func (l *lexer) to(end int) {
	for {
		i := strings.IndexByte(l.s[l.at:end], '\n')
		if i < 0 {
			break
		}
		l.at += i + 1
		l.row, l.col, l.colAt = l.row+1, 0, l.at
	}
	l.at = end
}

// tokenize cuts the text into tokens; the last one is tEOF.
func tokenize(s string) ([]token, *Error) {
	l := &lexer{s: s, row: 1}
	out := make([]token, 0, len(s)/5+4)
	for {
		t, err := l.next()
		if err != nil {
			return nil, err
		}
		out = append(out, t)
		if t.kind == tEOF {
			return out, nil
		}
	}
}

func isWordByte(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func (l *lexer) wordEnd(i int) int {
	for i < len(l.s) && isWordByte(l.s[i]) {
		i++
	}
	return i
}

// skip passes white space and comments.
func (l *lexer) skip() *Error {
	for l.at < len(l.s) {
		rest := l.s[l.at:]
		switch {
		case strings.IndexByte(" \t\r\n\f\v", rest[0]) >= 0:
			l.to(l.at + 1)
		case strings.HasPrefix(rest, "--"):
			if i := strings.IndexByte(rest, '\n'); i >= 0 {
				l.to(l.at + i + 1)
			} else {
				l.at = len(l.s)
			}
		case strings.HasPrefix(rest, "/*"):
			i := strings.Index(rest[2:], "*/")
			if i < 0 {
				return fail(l.pos(), "comment without an end")
			}
			l.to(l.at + i + 4)
		default:
			return nil
		}
	}
	return nil
}

// puncts are the operators of more than one character, longest first.
var puncts = []string{"<|", "|>", "<=", ">=", "==", "!=", "<>", "::", "??"}

func (l *lexer) next() (token, *Error) {
	if err := l.skip(); err != nil {
		return token{}, err
	}
	pos := l.pos()
	if l.at == len(l.s) {
		return token{kind: tEOF, pos: pos}, nil
	}
	c := l.s[l.at]
	switch {
	case c >= '0' && c <= '9' || c == '.' && l.at+1 < len(l.s) && l.s[l.at+1] >= '0' && l.s[l.at+1] <= '9':
		return l.number(pos)
	case isWordByte(c):
		end := l.wordEnd(l.at)
		t := token{kind: tWord, text: l.s[l.at:end], pos: pos}
		l.at = end
		return t, nil
	case strings.HasPrefix(l.s[l.at:], "$`"):
		l.at++
		s, err := l.quoted(pos, '`')
		return token{kind: tParam, text: "$" + s, pos: pos}, err
	case c == '$':
		end := l.wordEnd(l.at + 1)
		if end == l.at+1 {
			return token{}, fail(pos, "'$' without a name")
		}
		t := token{kind: tParam, text: l.s[l.at:end], pos: pos}
		l.at = end
		return t, nil
	case c == '`':
		s, err := l.quoted(pos, '`')
		return token{kind: tName, text: s, pos: pos}, err
	case c == '\'' || c == '"' || strings.HasPrefix(l.s[l.at:], "@@"):
		return l.stringLiteral(pos)
	}
	for _, p := range puncts {
		if strings.HasPrefix(l.s[l.at:], p) {
			l.at += len(p)
			return token{kind: tPunct, text: p, pos: pos}, nil
		}
	}
	if strings.IndexByte("()[]<>,;.=+-*/%?:!", c) >= 0 {
		l.at++
		return token{kind: tPunct, text: string(c), pos: pos}, nil
	}
	r, _ := utf8.DecodeRuneInString(l.s[l.at:])
	return token{}, fail(pos, "unexpected character %q", r)
}

// stringLiteral reads '...', "..." or @@...@@ with its type suffix.
func (l *lexer) stringLiteral(pos Pos) (token, *Error) {
	var s string
	if l.s[l.at] == '@' {
		end := strings.Index(l.s[l.at+2:], "@@")
		if end < 0 {
			return token{}, fail(pos, "string literal without an end")
		}
		end += l.at + 2
		for strings.HasPrefix(l.s[end+2:], "@@") { // @@@@ stands for @@
			next := strings.Index(l.s[end+4:], "@@")
			if next < 0 {
				return token{}, fail(pos, "string literal without an end")
			}
			end += 4 + next
		}
		s = strings.ReplaceAll(l.s[l.at+2:end], "@@@@", "@@")
		l.to(end + 2)
	} else {
		var err *Error
		if s, err = l.quoted(pos, l.s[l.at]); err != nil {
			return token{}, err
		}
	}
	typ := value.TypeString
	if end := l.wordEnd(l.at); end > l.at {
		switch strings.ToLower(l.s[l.at:end]) {
		case "u":
			typ = value.TypeUtf8
		case "y":
			typ = value.TypeYson
		case "j":
			typ = value.TypeJson
		case "s", "b":
		default:
			return token{}, fail(pos, "unknown suffix '%s' of a string literal", l.s[l.at:end])
		}
		l.at = end
	}
	v, err := value.Parse(typ, s)
	if err != nil {
		return token{}, fail(pos, "invalid literal of type %s: %v", typ, err)
	}
	return token{kind: tString, pos: pos, typ: typ, val: v}, nil
}

// quoted reads a text in quotes with C escapes; the quote itself may be doubled.
func (l *lexer) quoted(pos Pos, q byte) (string, *Error) {
	i := l.at + 1
	start := i
	var b []byte
	for i < len(l.s) {
		c := l.s[i]
		switch {
		case c == q && i+1 < len(l.s) && l.s[i+1] == q:
			b = append(append(b, l.s[start:i]...), q)
			i += 2
			start = i
		case c == q:
			s := l.s[start:i]
			if b != nil {
				s = string(append(b, s...))
			}
			l.to(i + 1)
			return s, nil
		case c == '\\':
			b = append(b, l.s[start:i]...)
			var ok bool
			if b, i, ok = l.escape(b, i+1); !ok {
				l.to(min(i, len(l.s)))
				return "", fail(l.pos(), "invalid escape sequence in a literal")
			}
			start = i
		default:
			i++
		}
	}
	return "", fail(pos, "literal without an end")
}

// escape appends what the escape sequence after the backslash stands for.
func (l *lexer) escape(b []byte, i int) ([]byte, int, bool) {
	if i >= len(l.s) {
		return b, i, false
	}
	c := l.s[i]
	if n := strings.IndexByte("abfnrtv0\\'\"`?", c); n >= 0 && (c != '0' || i+1 >= len(l.s) || l.s[i+1] < '0' || l.s[i+1] > '7') {
		return append(b, "\a\b\f\n\r\t\v\x00\\'\"`?"[n]), i + 1, true
	}
	hex := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	if hex > 0 {
		if i+1+hex > len(l.s) {
			return b, i, false
		}
		n, err := strconv.ParseUint(l.s[i+1:i+1+hex], 16, 32)
		switch {
		case err != nil || hex > 2 && !utf8.ValidRune(rune(n)):
			return b, i, false
		case hex == 2:
			return append(b, byte(n)), i + 3, true
		}
		return utf8.AppendRune(b, rune(n)), i + 1 + hex, true
	}
	if c >= '0' && c <= '3' && i+3 <= len(l.s) {
		if n, err := strconv.ParseUint(l.s[i:i+3], 8, 8); err == nil {
			return append(b, byte(n)), i + 3, true
		}
	}
	return b, i, false
}

// suffixes of integer literals: bits, signed.
var intSuffix = map[string]value.Kind{
	"u": value.Uint32, "ul": value.Uint64, "us": value.Uint16, "ut": value.Uint8,
	"l": value.Int64, "s": value.Int16, "t": value.Int8, "i": value.Int32,
}

func (l *lexer) number(pos Pos) (token, *Error) {
	s := l.s[l.at:]
	base, digits := 10, 0
	if len(s) > 2 && s[0] == '0' {
		switch s[1] {
		case 'x', 'X':
			base, digits = 16, 2
		case 'o', 'O':
			base, digits = 8, 2
		case 'b', 'B':
			base, digits = 2, 2
		}
	}
	end := digits
	for end < len(s) && isDigit(s[end], base) {
		end++
	}
	if base == 10 {
		if f := floatEnd(s, end); f > end {
			return l.float(pos, s, f)
		}
	}
	wordEnd := l.wordEnd(l.at+end) - l.at
	suffix := strings.ToLower(s[end:wordEnd])
	if suffix == "f" && base == 10 {
		return l.float(pos, s, end)
	}
	n, err := strconv.ParseUint(s[digits:end], base, 64)
	if err != nil {
		return token{}, fail(pos, "invalid integer literal '%s'", s[:wordEnd])
	}
	kind, ok := intSuffix[suffix]
	switch {
	case suffix != "" && !ok:
		return token{}, fail(pos, "unknown suffix '%s' of a number", s[end:wordEnd])
	case suffix == "" && n <= math.MaxInt32:
		kind = value.Int32
	case suffix == "" && n <= math.MaxInt64:
		kind = value.Int64
	case suffix == "":
		kind = value.Uint64
	case kind != value.Uint64 && (n > math.MaxInt64 || !value.InRange(kind, int64(n))):
		return token{}, fail(pos, "%d is out of the range of %s", n, value.Primitive(kind))
	}
	t := token{kind: tNumber, text: s[:wordEnd], pos: pos, typ: value.Primitive(kind), val: value.Uint(n)}
	l.at += wordEnd
	return t, nil
}

func isDigit(c byte, base int) bool {
	switch {
	case base == 16:
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
	}
	return c >= '0' && c < '0'+byte(base)
}

// floatEnd returns where a fraction and an exponent after the digits end (i if there is none).
func floatEnd(s string, i int) int {
	if i < len(s) && s[i] == '.' && i+1 < len(s) && s[i+1] >= '0' && s[i+1] <= '9' ||
		i < len(s) && s[i] == '.' && i > 0 && (i+1 == len(s) || !isWordByte(s[i+1]) && s[i+1] != '.') {
		for i++; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
		}
	}
	if i < len(s) && (s[i] == 'e' || s[i] == 'E') {
		j := i + 1
		if j < len(s) && (s[j] == '+' || s[j] == '-') {
			j++
		}
		if j < len(s) && s[j] >= '0' && s[j] <= '9' {
			for i = j; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
			}
		}
	}
	return i
}

func (l *lexer) float(pos Pos, s string, end int) (token, *Error) {
	typ := value.TypeDouble
	wordEnd := l.wordEnd(l.at+end) - l.at
	switch suffix := s[end:wordEnd]; suffix {
	case "":
	case "f", "F":
		typ = value.TypeFloat
	default:
		return token{}, fail(pos, "unknown suffix '%s' of a number", suffix)
	}
	v, err := value.Parse(typ, s[:end])
	if err != nil {
		return token{}, fail(pos, "invalid number '%s'", s[:wordEnd])
	}
	l.at += wordEnd
	return token{kind: tNumber, text: s[:wordEnd], pos: pos, typ: typ, val: v}, nil
}
