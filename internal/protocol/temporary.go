package protocol

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// temporary finds statements that make a temporary table in a text that comes in pieces. It
// may see some where there are none, at the seams; it misses none.
type temporary struct {
	tail [tailSize]byte // of what has come
	n    int
	head heading
}

// tailSize is more than the longest word that is looked for, and what bounds it.
const tailSize = 15

func (t *temporary) see(p []byte, last bool) bool {
	if t.n == 0 && last { // all at once, which is usual
		return LeavesSomething(p)
	}
	if t.head.postgres(p) {
		return true
	}
	var seam [2*tailSize + 1]byte
	n := copy(seam[:], t.tail[:t.n])
	n += copy(seam[n:], p[:min(len(p), tailSize+1)])
	hit := makesTemporary(seam[:n], last && n == t.n+len(p)) || makesTemporary(p, last)
	if len(p) >= tailSize {
		t.n = copy(t.tail[:], p[len(p)-tailSize:])
		return hit
	}
	keep := min(t.n, tailSize-len(p))
	copy(t.tail[:], t.tail[t.n-keep:t.n])
	t.n = keep + copy(t.tail[keep:], p)
	return hit
}

// LeavesSomething reports whether what a statement does may last as long as its session: it makes a temporary table, or is
// in the syntax of PostgreSQL, whose settings (SET) are the session's. It takes time in proportion to the text.
func LeavesSomething(text []byte) bool {
	var h heading
	return h.postgres(text) || makesTemporary(text, true)
}

// TextLeavesSomething is LeavesSomething for a string, of which it makes no copy.
func TextLeavesSomething(text string) bool {
	return LeavesSomething(unsafe.Slice(unsafe.StringData(text), len(text)))
}

// SyntaxPG is Ydb.Query.SYNTAX_PG, which the protos call deprecated and servers still know.
const SyntaxPG = 2

// InPostgres reports whether the query_content of an ExecuteQueryRequest is in that syntax.
func InPostgres(content []byte) (is bool) {
	EachField(content, func(number protowire.Number, value []byte) {
		if number == 1 {
			v, _ := uvarint(value)
			is = int32(v) == SyntaxPG
		}
	})
	return is
}

// postgres is the line in a text's heading that puts it in that syntax.
const postgres = "--!syntax_pg"

// heading reads the lines in front of a text, which comes in pieces, as ParseTranslationSettings of YDB does
// (yql/essentials/sql/settings/translation_settings.cpp): lines without a word, and those whose first word begins with "--!". Whatever
// else a line has, and what it says that is no setting, is for the node to refuse. It is how much of postgres the line in hand has.
type heading uint8

const (
	otherSetting heading = 254
	headingOver  heading = 255
)

// postgres looks at more of the text; true: it is in the syntax of PostgreSQL.
func (h *heading) postgres(p []byte) bool {
	for _, c := range p {
		switch n := int(*h); {
		case *h == headingOver:
			return false
		case n < len(postgres) && c == postgres[n]:
			if *h++; int(*h) == len(postgres) {
				return true
			}
		case n > 0 && n < len("--!"):
			*h = headingOver
		case c == '\n' || c == '\r':
			*h = 0
		case n > 0:
			*h = otherSetting
		case c != ' ' && c != '\t':
			*h = headingOver
		}
	}
	return false
}

// makesTemporary reports whether a text has the word TEMP or TEMPORARY and then TABLE. If
// it is not the last of its text, it also counts as one if what follows cannot be seen, and will not
// be seen with the next piece either. So does a comment within a comment: where that ends is a matter
// of the dialect.
func makesTemporary(p []byte, last bool) bool {
	left := lookAhead * len(p)
	return searchTemporary(p, last, &left)
}

// lookAhead bounds makesTemporary: what follows the words TEMP of a text are blanks and comments,
// and comments may hold TEMP again. A text counts as one that makes a temporary table when the bytes
// looked at behind those words are more than lookAhead times its size.
const lookAhead = 4

// searchTemporary is makesTemporary. left is how many bytes may be looked at behind words TEMP.
func searchTemporary(p []byte, last bool, left *int) bool {
	if len(p) < 8 {
		return temporaryAt(p, 0, len(p), last, left)
	}
	for q := p; ; q = q[7:] {
		if len(q) < 8 {
			if len(q) < 2 {
				return false
			}
			q = p[len(p)-8:]
		}
		// An byte of x is 0 where there is an m and behind it a p, in any case: few words have them.
		x := binary.LittleEndian.Uint64(q) | 0x2020202020202020
		x = x ^ 0x6d6d6d6d6d6d6d6d | (x^0x7070707070707070)>>8 | 1<<63
		if (x-0x0101010101010101)&^x&0x8080808080808080 != 0 {
			if i := len(p) - len(q); temporaryAt(p, max(0, i-2), i+8, last, left) {
				return true
			}
		}
	}
}

// temporaryAt is searchTemporary for a first word that is in p[from:to].
func temporaryAt(p []byte, from, to int, last bool, left *int) bool {
	for at := from; at+4 <= to; at++ {
		if !hasWord(p[at:], "temp") || at > 0 && isWord(p[at-1]) {
			continue
		}
		rest := p[at+4:]
		if hasWord(rest, "orary") {
			rest = rest[5:]
		}
		follows, known, seen := tableFollows(rest, last)
		if *left -= seen; *left < 0 || known && follows || !known && at < len(p)-tailSize {
			return true
		}
	}
	return false
}

// hasWord reports whether p begins with a word of small letters, in any case.
func hasWord(p []byte, word string) bool {
	if len(p) < len(word) {
		return false
	}
	for i := range len(word) {
		if p[i]|0x20 != word[i] {
			return false
		}
	}
	return true
}

func isWord(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80
}

// tableFollows reports whether the next word is TABLE, whatever blanks and comments come
// before it, and how many bytes it looked at for that. known is false if p ends too early to tell.
func tableFollows(p []byte, last bool) (follows, known bool, seen int) {
	if len(p) > 0 && isWord(p[0]) {
		return false, true, 0 // the word before goes on
	}
	for seen < len(p) {
		switch q := p[seen:]; q[0] {
		case ' ', '\t', '\n', '\v', '\f', '\r':
			seen++
		case '-', '/':
			if len(q) < 2 {
				return false, last, seen
			}
			line := q[0] == '-'
			if open := string(q[:2]); open != "--" && open != "/*" {
				return false, true, seen
			}
			i, end := 0, 0
			if line {
				i, end = bytes.IndexAny(q[2:], yql.LineEnds), 1
			} else {
				i, end = bytes.Index(q[2:], []byte("*/")), 2
			}
			if i < 0 {
				return false, last, len(p)
			}
			// In the ANSI dialect comments nest: this one may end later, or here.
			if !line && bytes.Contains(q[2:2+i+1], []byte("/*")) {
				return true, true, seen + 2 + i + end
			}
			seen += 2 + i + end
		default:
			if hasWord(q, "table") {
				return true, true, seen
			}
			return false, last || len(q) >= len("table"), seen
		}
	}
	return false, last, seen
}
