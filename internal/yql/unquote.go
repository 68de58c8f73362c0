package yql

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// unquote returns the text that a token of the kind Ident, QuotedIdent, Name
// or String stands for. ok is false when it is not valid UTF-8.
func (l *Lexer) unquote(t Token) (s string, ok bool) {
	s = l.Text(t)
	if t.Kind == Name {
		s = s[1:]
	}
	switch {
	case s == "" || isLetter(s[0]):
		return s, true
	case s[0] == '@':
		s = s[2 : strings.LastIndexByte(s, '@')-1]
		s = strings.ReplaceAll(s, "@@@@", "@@")
	default:
		quote := s[:1]
		s = s[1:strings.LastIndex(s, quote)]
		if l.ansi || quote == "`" {
			s = strings.ReplaceAll(s, quote+quote, quote)
		}
		if !l.ansi || quote == "`" {
			s = unescape(s)
		}
	}
	return s, utf8.ValidString(s)
}

// unescape resolves the backslashes of a literal as C does; an unknown letter
// stands for itself.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			i++
			continue
		}
		c := s[i+1]
		i += 2
		if at := strings.IndexByte("abfnrtv", c); at >= 0 {
			b.WriteByte("\a\b\f\n\r\t\v"[at])
			continue
		}
		base, most := 16, 0
		switch {
		case c == 'x':
			most = 2
		case c == 'u':
			most = 4
		case c == 'U':
			most = 8
		case '0' <= c && c <= '7':
			base, most = 8, 3
			i--
		}
		end := i
		for end < len(s) && end < i+most && digitBelow(s[end], base) {
			end++
		}
		if end == i {
			b.WriteByte(c)
			continue
		}
		code, _ := strconv.ParseUint(s[i:end], base, 32)
		if c == 'u' || c == 'U' {
			b.WriteRune(rune(min(code, utf8.MaxRune+1)))
		} else {
			b.WriteByte(byte(code))
		}
		i = end
	}
	return b.String()
}

func digitBelow(c byte, base int) bool {
	if base == 8 {
		return '0' <= c && c <= '7'
	}
	return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
