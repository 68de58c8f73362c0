package yql

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON text piece by piece, strictly as RFC 8259 defines it:
// valid UTF-8, no lone surrogates, nothing behind the value.
type scanner struct {
	data []byte
	pos  int
}

func (s *scanner) syntax(what string) error {
	return errorf("invalid JSON at byte %d: %s", s.pos, what)
}

// peek returns the first byte of the next token, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// take moves over c if it is next.
func (s *scanner) take(c byte) bool {
	if s.peek() != c || s.pos == len(s.data) {
		return false
	}
	s.pos++
	return true
}

func (s *scanner) expect(c byte) error {
	if !s.take(c) {
		return s.syntax("expected " + string(c))
	}
	return nil
}

func (s *scanner) end() error {
	if s.peek(); s.pos < len(s.data) {
		return s.syntax("text behind the value")
	}
	return nil
}

// word moves over true, false or null.
func (s *scanner) word() (string, error) {
	for _, w := range [...]string{"null", "true", "false"} {
		if bytes.HasPrefix(s.data[s.pos:], []byte(w)) {
			s.pos += len(w)
			return w, nil
		}
	}
	return "", s.syntax("expected a value")
}

// number moves over a number and returns its text.
func (s *scanner) number() ([]byte, error) {
	start := s.pos
	if s.at() == '-' {
		s.pos++
	}
	switch first := s.at(); {
	case first == '0':
		s.pos++
	case isDigit(first):
		s.digits()
	default:
		return nil, s.syntax("expected a digit")
	}
	if s.at() == '.' {
		s.pos++
		if !s.digits() {
			return nil, s.syntax("expected a digit")
		}
	}
	if c := s.at(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.at(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return nil, s.syntax("expected a digit")
		}
	}
	return s.data[start:s.pos], nil
}

// at returns the present byte, 0 at the end.
func (s *scanner) at() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) digits() bool {
	start := s.pos
	for isDigit(s.at()) {
		s.pos++
	}
	return s.pos > start
}

// str moves over a string and returns what it stands for.
func (s *scanner) str() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	start := s.pos
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			text := string(s.data[start:s.pos])
			s.pos++
			return text, nil
		case c == '\\':
			return s.escaped(append([]byte(nil), s.data[start:s.pos]...))
		case c < ' ':
			return "", s.syntax("a control character in a string")
		case c < utf8.RuneSelf:
			s.pos++
		default:
			n := runeSize(s.data[s.pos:])
			if n == 0 {
				return "", s.syntax("a string is not valid UTF-8")
			}
			s.pos += n
		}
	}
	return "", s.syntax("a string is not closed")
}

// JSONText reads a string of JSON with its quotes. Unlike encoding/json it does not replace what is no character.
func JSONText(quoted []byte) (string, error) {
	s := scanner{data: quoted, pos: 1}
	return s.escaped(nil)
}

// escaped reads the rest of a string that has escapes; text is its beginning.
func (s *scanner) escaped(text []byte) (string, error) {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return string(text), nil
		case c == '\\':
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			text = utf8.AppendRune(text, r)
		case c < ' ':
			return "", s.syntax("a control character in a string")
		case c < utf8.RuneSelf:
			text = append(text, c)
			s.pos++
		default:
			n := runeSize(s.data[s.pos:])
			if n == 0 {
				return "", s.syntax("a string is not valid UTF-8")
			}
			text = append(text, s.data[s.pos:s.pos+n]...)
			s.pos += n
		}
	}
	return "", s.syntax("a string is not closed")
}

// escape reads one escape, or two that make one character.
func (s *scanner) escape() (rune, error) {
	s.pos++
	c := s.at()
	if at := bytes.IndexByte([]byte(`"\/bfnrt`), c); at >= 0 {
		s.pos++
		return rune("\"\\/\b\f\n\r\t"[at]), nil
	}
	if c != 'u' {
		return 0, s.syntax("an unknown escape")
	}
	r, ok := s.hex4()
	if !ok {
		return 0, s.syntax(`expected four digits behind \u`)
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if s.at() == '\\' && s.pos+1 < len(s.data) && s.data[s.pos+1] == 'u' {
		s.pos++
		if low, ok := s.hex4(); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, nil
			}
		}
	}
	return 0, s.syntax("a surrogate without its partner")
}

// hex4 reads u and four hexadecimal digits.
func (s *scanner) hex4() (rune, bool) {
	if s.pos+5 > len(s.data) {
		return 0, false
	}
	var r rune
	for _, c := range s.data[s.pos+1 : s.pos+5] {
		d := fromHex(c)
		if d > 15 {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	s.pos += 5
	return r, true
}

// maxSkip bounds the nesting of a value whose type does not matter yet. A level
// of a type is at most two of JSON: a Dict is a list of lists.
const maxSkip = 2 * MaxTypeDepth

// skip moves over any value and returns its text. level is how deep it stands.
func (s *scanner) skip(level int) ([]byte, error) {
	if level > maxSkip {
		return nil, errorf("the value nests more than %d deep", maxSkip)
	}
	c := s.peek()
	start := s.pos
	var err error
	switch {
	case c == '"':
		_, err = s.str()
	case c == '-' || isDigit(c):
		_, err = s.number()
	case c == '[':
		err = s.list(func(int) error {
			_, err := s.skip(level + 1)
			return err
		})
	case c == '{':
		err = s.object(func(string) error {
			_, err := s.skip(level + 1)
			return err
		})
	default:
		_, err = s.word()
	}
	return s.data[start:s.pos], err
}

// list calls item before each item of a list, which has to read it.
func (s *scanner) list(item func(i int) error) error {
	if err := s.expect('['); err != nil {
		return err
	}
	if s.take(']') {
		return nil
	}
	for i := 0; ; i++ {
		if err := item(i); err != nil {
			return err
		}
		if s.take(']') {
			return nil
		}
		if !s.take(',') {
			return s.syntax("expected , or ]")
		}
	}
}

// object calls member before each member's value, which it has to read.
func (s *scanner) object(member func(name string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if s.take('}') {
		return nil
	}
	for {
		if s.peek() != '"' {
			return s.syntax("expected a name in quotes")
		}
		name, err := s.str()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := member(name); err != nil {
			return err
		}
		if s.take('}') {
			return nil
		}
		if !s.take(',') {
			return s.syntax("expected , or }")
		}
	}
}
