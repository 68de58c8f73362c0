package yql

import (
	"strings"
	"testing"
)

func tokens(text string) (kinds []Kind, texts []string) {
	l := NewLexer(text)
	for {
		tok := l.Next()
		if tok.Kind == EOF {
			return kinds, texts
		}
		kinds, texts = append(kinds, tok.Kind), append(texts, l.Text(tok))
	}
}

func TestLexerCutsTokens(t *testing.T) {
	for _, c := range []struct {
		text string
		want string // tokens between bars
		kind Kind   // of the first
	}{
		{"SELECT 1", "SELECT|1", Ident},
		{"_a1$b", "_a1|$b", Ident},
		{"$`a b`;", "$`a b`|;", Name},
		{"$ x", "$|x", Punct},
		{"$", "$", Punct},
		{"$1", "$|1", Punct},
		{"`a\\`b``c` d", "`a\\`b``c`|d", QuotedIdent},
		{`'it\'s'u 'x'`, `'it\'s'u|'x'`, String},
		{`"a\"b"y`, `"a\"b"y`, String},
		{`'a'union`, `'a'u|nion`, String}, // as the server's lexer does
		{`'a'sINTO`, `'a's|INTO`, String},
		{`'a'ptUPDATE 'b'pupdate 'c'pbv`, `'a'pt|UPDATE|'b'p|update|'c'pb|v`, String},
		{`'a'into 'b't`, `'a'|into|'b'|t`, String},
		{`@@a@@SINTO "b"jx`, `@@a@@S|INTO|"b"j|x`, String},
		{`x'0a'update X'00's x'' x'0g' x'0`, `x'0a'|update|X'00'|s|x|''|x|'0g'|x|'0`, String},
		{`x'0`, `x|'0`, Ident},
		{"'a\nb' c", "'a\nb'|c", String},
		{"@@a;'--@@j b", "@@a;'--@@j|b", String},
		{"@@a@@@@b@@ c", "@@a@@@@b@@|c", String},
		{"@@a@@@ c", "@@a@@@|c", String},
		{"@@@@ c", "@@@@|c", String},
		{"@a", "@|a", Punct},
		{"1.5e-3 2", "1.5e-3|2", Number},
		{"1e5+1", "1e5|+|1", Number},
		{"1-1", "1|-|1", Number},
		{"0xfe-1", "0xfe|-|1", Number},
		{"0x1e+1", "0x1e|+|1", Number},
		{"10ul", "10ul", Number},
		{"1.x", "1.|x", Number},
		{"1lINTO", "1l|INTO", Number},
		{"1union 2ulx 3uu", "1un|ion|2ul|x|3u|u", Number},
		{"1INTO 1from", "1I|NTO|1|from", Number},
		{"0xfeINTO 0xfeUPDATE 0xg", "0xfeI|NTO|0xfeU|PDATE|0|xg", Number},
		{"0b101lx 0b2 0o778 0o9", "0b101l|x|0b|2|0o778|0|o9", Number},
		{"1.5fINTO 1.pf4x 1e5pn 1e5pf 1.pf9", "1.5f|INTO|1.pf4|x|1e5pn|1e5p|f|1.p|f9", Number},
		{"1e 1e+ 1.e5x 1f", "1|e|1|e|+|1.e5|x|1|f", Number},
		{"1..2", "1.|.|2", Number},
		{"a.1", "a|.|1", Ident},
		{"a -- b 'c\nd", "a|d", Ident},
		{"a -- b\rc -- d\r\ne", "a|c|e", Ident},
		{"a /* b ; ' */ d", "a|d", Ident},
		{"a /* b /* */ d", "a|d", Ident},
		{"a--", "a", Ident},
		{"a<=>b", "a|<|=|>|b", Ident},
		{"a - b/c", "a|-|b|/|c", Ident},
		{"--!ansi_lexer\n'it''s' \"a\"\"b\" /* /* */ */ x '\\'", `'it''s'|"a""b"|x|'\'`, String},
		{"--!syntax_v1\n --!ansi_lexer \n'a''b'", "'a''b'", String},
		{"--!syntax_v1\r--!ansi_lexer\r'a''b'", "'a''b'", String},
		{"--!ansi_lexer\r/*/**/*/ a", "a", Ident},
		{"--!ansi_lexer\n/* /*/ */ a */ b", "b", Ident},
		{"'a", "'a", Bad},
		{"@@a@@@@", "@@a@@@@", Bad},
		{"`a", "`a", Bad},
		{"$`a", "$`a", Bad},
		{"/* a", "/* a", Bad},
		{"é1", "é|1", Bad},
		{"\xff1", "\xff|1", Bad},
		{"\x00", "\x00", Bad},
		{"\x7f", "\x7f", Bad},
		{"#1", "#|1", Bad},
		{"\\ a", "\\|a", Bad},
		{"!a", "!|a", Bad},
		{"!=a", "!|=|a", Punct},
		{"\va", "\v|a", Bad},
		{`'\`, `'\`, Bad},
	} {
		kinds, texts := tokens(c.text)
		if got := strings.Join(texts, "|"); got != c.want || kinds[0] != c.kind {
			t.Errorf("%q: got %q of kind %d, want %q of kind %d", c.text, got, kinds[0], c.want, c.kind)
		}
	}
}

func TestPositionsCountCharactersFromOne(t *testing.T) {
	text := "a\nпривет x\n"
	for offset, want := range map[int][2]int{
		0: {1, 1}, 1: {1, 2}, 2: {2, 1}, strings.Index(text, "x"): {2, 8}, len(text): {3, 1}, 1000: {3, 1}, -1: {1, 1},
	} {
		if row, column := Position(text, offset); row != want[0] || column != want[1] {
			t.Errorf("offset %d: got %d:%d, want %v", offset, row, column, want)
		}
	}
}

func FuzzLexer(f *testing.F) {
	for _, seed := range []string{
		"DECLARE $id AS Uint64; SELECT * FROM t WHERE id = $id;", "--!ansi_lexer\n'a''b' \"c\" /* /* */ */",
		"@@x@@@@y@@u", "`a``b\\``", "/* a", "'\\", "1.5e-3ul 0x 1e+", "$`", "\x00\xff",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l := NewLexer(text)
		end := 0
		for range len(text) + 1 {
			tok := l.Next()
			if tok.Start < end || tok.End < tok.Start || tok.End > len(text) || tok.Kind != EOF && tok.End == tok.Start {
				t.Fatalf("%q: token %+v behind %d", text, tok, end)
			}
			if tok.Kind == EOF {
				if tok.Start != len(text) {
					t.Fatalf("%q: the end came at %d", text, tok.Start)
				}
				return
			}
			switch tok.Kind {
			case Ident, QuotedIdent, Name, String:
				l.unquote(tok)
			}
			end = tok.End
		}
		t.Fatalf("%q: more tokens than bytes", text)
	})
}

func TestLineEnd(t *testing.T) {
	for _, text := range []string{"", "\n", "\r", "a", "a\rb\nc", "a\nb\rc", strings.Repeat("x", lineStep-1) + "\n",
		strings.Repeat("x", lineStep) + "\r\n",
		strings.Repeat("x", 3*lineStep+7), strings.Repeat("x", lineStep-1) + "\r" + strings.Repeat("\n", 5)} {
		want := strings.IndexAny(text, LineEnds)
		if want < 0 {
			want = len(text)
		}
		if got := lineEnd(text); got != want {
			t.Errorf("lineEnd of %d bytes = %d; want %d", len(text), got, want)
		}
	}
}
