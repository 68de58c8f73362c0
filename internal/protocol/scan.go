package protocol

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"unsafe"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// want is a field that a scan looks for, by its number and what it is.
type want struct {
	number uint32
	what   what
	in     *Fields // of a message
	oneof  uint32  // number of the other field of a oneof, of which a message has one; 0: it is in none
}

// bit is what is noted once the field was seen, or the other one of its oneof.
func (w *want) bit() uint32 { return 1 << max(w.number, w.oneof) }

// Fields are those that a scan looks for in a message.
type Fields struct {
	at  [16]uint8 // by number: its place in all, from 1; 0: not looked for
	all []want
}

// fields makes such of wants with numbers below 16.
func fields(all ...want) *Fields {
	ws := &Fields{all: all}
	for i, w := range all {
		ws.at[w.number] = uint8(i + 1)
	}
	return ws
}

// of returns the want for a field; nil: it is not looked for. nil wants nothing.
func (ws *Fields) of(number uint64, isNumber bool) *want {
	if ws == nil || number >= uint64(len(ws.at)) || ws.at[number] == 0 {
		return nil
	}
	w := &ws.all[ws.at[number]-1]
	if w.what.isNumber() != isNumber {
		return nil
	}
	return w
}

type what uint8

const (
	wantMessage what = iota // its fields
	wantSession             // that it is there
	wantTx                  // a transaction's id, in a request
	wantBegin               // that it is there
	wantCommit              // a bool
	wantText                // whether it leaves something on its session
	wantSyntax              // the same
	wantStatus              // YDB's status
	wantMeta                // that it is there, and its fields
	wantMetaTx              // a transaction's id, in an answer
	wantQueryID             // the octets themselves, into scan.into
	wantOnce                // nothing but that it is there once
)

// wire types of protobuf
const (
	typeVarint  = 0
	typeFixed64 = 1
	typeBytes   = 2
	typeFixed32 = 5
)

// Found is what a scan has seen in all messages so far.
type Found struct {
	Session   bool
	HasTx     bool // a transaction is named
	Begin     bool
	Commit    bool
	Temporary bool // something is left on the session that lasts as long as it does: a temporary table, settings of PostgreSQL's syntax
	HasMeta   bool
	Messages  uint32 // whole ones, or as many as can be counted
	Status    Ydb.StatusIds_StatusCode
	Tx        uint64 // Hash the id
	MetaTx    uint64 // the same, of the last answer that had one; 0: it was empty
}

// Scan finds a few fields of gRPC messages by their paths while the octets stream past. It
// keeps nothing of them and allocates nothing (but pieces, once). What it says is what a decoder of protobuf
// would say, or it refuses: where a field that it looks for comes twice, or both of a oneof.
type Scan struct {
	Found
	wants  *Fields
	left   uint64 // octets of the value in hand
	status int32  // of this message
	state  uint8
	bad    bool // refused

	// Of use seldom.
	value   uint64  // varint in hand
	Into    *[]byte // for the id of a prepared query; nil: nowhere
	At      Span    // of the field, in the last message that was here whole and had it
	*pieces         // nil: there was no use for it yet
}

// pieces is what a scan knows of a message that comes in pieces, which is seldom.
type pieces struct {
	shift  uint8  // of the varint in hand
	typ    uint8  // wire type of the field in hand
	depth  int8   // of levels
	want   *want  // of the field in hand; nil: not looked for
	at     uint64 // octets of the message so far
	levels [maxDepth]level
	text   temporary
}

// Span is where a field is in a message, and its value.
type Span struct{ From, Value, To int }

// level is a message within the message.
type level struct {
	wants *Fields
	end   uint64 // where it ends
	seen  uint32 // of wants, bit by bit
}

// maxDepth is that of the deepest path, plus one.
const maxDepth = 6

// states of a scan
const (
	inPrefix uint8 = iota // value and left count
	inTag
	inVarint
	inLength
	inSkip
	inID
	inText
	inQueryID
)

// Start starts over.
func (s *Scan) Start(wants *Fields) {
	s.Found, s.wants = Found{}, wants
	if s.left, s.state, s.bad = 0, inPrefix, false; s.Into != nil {
		s.Into = nil
	}
}

// Whole reports that the octets so far are whole messages, and not refused.
func (s *Scan) Whole() bool { return !s.bad && s.state == inPrefix && s.left == 0 }

// idSeed keeps those who choose ids from finding two of one hash.
var idSeed = rand.Uint64() | 1

const hashPrime = 1099511628211

// Hash is what Found has of an id: FNV-1a from a secret start; 0 for no octets.
func Hash(id []byte) uint64 {
	if len(id) == 0 {
		return 0
	}
	h := idSeed
	for _, c := range id {
		h = (h ^ uint64(c)) * hashPrime
	}
	return h
}

// Opened is the transaction that an answer has named so far, Hash its id; 0: none, or a part of its id is yet to come.
func (s *Scan) Opened() uint64 {
	if s.state == inID {
		return 0
	}
	return s.MetaTx
}

// Write looks at more octets. False: they are refused, and so is all that follows.
func (s *Scan) Write(p []byte) bool {
	for len(p) > 0 && !s.bad {
		switch s.state {
		case inPrefix:
			if size := sizeOf(p); s.left == 0 && size > 0 && size <= len(p) && p[0] == 0 {
				s.Message(p[PrefixSize:size])
				p = p[size:]
				continue
			}
			p = s.prefix(p)
		case inTag, inVarint, inLength:
			p = s.varint(p)
		default:
			n := min(s.left, uint64(len(p)))
			s.see(p[:n], n == s.left)
			s.left -= n
			s.at += n
			p = p[n:]
			if s.left == 0 {
				s.next()
			}
		}
	}
	return !s.bad
}

// sizeOf is the size of the message that p begins with, and its prefix; 0: it is not known yet.
func sizeOf(p []byte) int {
	if len(p) < PrefixSize {
		return 0
	}
	return PrefixSize + int(binary.BigEndian.Uint32(p[1:]))
}

// Message is write for a message that is here whole, which is usual, without its prefix.
func (s *Scan) Message(p []byte) bool {
	s.status = 0
	if s.fields(p, s.wants) {
		s.messageEnds()
	}
	return !s.bad
}

// Learned is the start of a message that was scanned, behind a session's id that came first:
// the same statement comes again and again, with other parameters behind it.
type Learned struct {
	wants *Fields
	start []byte // to the end of the last field that was looked for
	seen  uint32
	found Found
}

const (
	maxLearned  = 1 << 10 // octets of a start
	leastBehind = 16      // octets that tell starts apart
)

// Again is message for a request, of which the start may be known.
func (s *Scan) Again(p []byte, known *[16]Learned) bool {
	if len(p) < 2 || p[0] != 1<<3|typeBytes || p[1] >= 0x80 || int(p[1])+2+leastBehind > len(p) {
		return s.Message(p)
	}
	s.status = 0
	from := int(p[1]) + 2
	rest := p[from:]
	h := (binary.LittleEndian.Uint64(rest)*hashPrime ^ binary.LittleEndian.Uint64(rest[8:])) * hashPrime
	k := &known[h>>60]
	if k.wants == s.wants && bytes.HasPrefix(rest, k.start) {
		s.Found, s.At = k.found, Span{0, 2, from}
		if _, _, ok := s.fieldsFrom(p, from+len(k.start), k.seen, s.wants); ok {
			s.messageEnds()
		}
		return !s.bad
	}
	to, seen, ok := s.fieldsFrom(p, 0, 0, s.wants)
	if !ok {
		return false
	}
	if s.At.From == 0 && s.At.To == from && to > from && to-from <= maxLearned {
		k.wants, k.start, k.seen, k.found = s.wants, append(k.start[:0], p[from:to]...), seen, s.Found
	}
	s.messageEnds()
	return true
}

// fields looks at the fields of a message, or of one within it, that is here whole. It is
// written for few instructions: with many calls in flight each one that runs costs.
func (s *Scan) fields(all []byte, ws *Fields) bool {
	_, _, ok := s.fieldsFrom(all, 0, 0, ws)
	return ok
}

// fieldsFrom is fields for those from all[at:], behind some that were seen, by number. It returns where
// the last one ended that was looked for, and all that were seen.
func (s *Scan) fieldsFrom(all []byte, at int, seen uint32, ws *Fields) (last int, _ uint32, ok bool) {
	for at < len(all) {
		from := at
		tag := uint64(all[at])
		if at++; tag >= 0x80 {
			if tag, at = long(all, from); at == 0 {
				return 0, 0, s.refuse()
			}
		}
		number := tag >> 3
		if number == 0 || number >= 1<<29 {
			return 0, 0, s.refuse()
		}
		var w *want
		if number < uint64(len(ws.at)) && ws.at[number] != 0 {
			w = &ws.all[ws.at[number]-1]
		}
		switch typ := tag & 7; typ {
		case typeVarint, typeBytes:
			if at == len(all) {
				return 0, 0, s.refuse()
			}
			v := uint64(all[at])
			if at++; v >= 0x80 {
				if v, at = long(all, at-1); at == 0 {
					return 0, 0, s.refuse()
				}
			}
			value := at
			if typ == typeBytes {
				if v > uint64(len(all)-at) {
					return 0, 0, s.refuse()
				}
				at += int(v)
			}
			if w == nil || w.what.isNumber() != (typ == typeVarint) {
				continue
			}
			if seen&w.bit() != 0 {
				return 0, 0, s.refuse()
			}
			seen |= w.bit()
			switch {
			case typ == typeVarint:
				s.number(w, v)
			case w.what == wantSession:
				s.Session, s.At = true, Span{from, value, at}
			case !s.field(w, all[value:at]):
				return 0, 0, false
			}
			last = at
		case typeFixed64, typeFixed32:
			size := 4
			if typ == typeFixed64 {
				size = 8
			}
			if at += size; at > len(all) {
				return 0, 0, s.refuse()
			}
		default: // groups, which nobody writes
			return 0, 0, s.refuse()
		}
	}
	return last, seen, true
}

// long is binary.Uvarint of p[at:], and where it ends; 0: it does not, or is too long.
func long(p []byte, at int) (v uint64, to int) {
	v, n := binary.Uvarint(p[at:])
	if n <= 0 {
		return 0, 0
	}
	return v, at + n
}

// field looks at the value of a field that is here whole.
func (s *Scan) field(w *want, value []byte) bool {
	if s.meet(w); s.bad {
		return false
	}
	switch w.what {
	case wantTx:
		s.Tx = Hash(value)
	case wantMetaTx:
		s.MetaTx = Hash(value)
	case wantText:
		s.Temporary = s.Temporary || LeavesSomething(value)
	case wantQueryID:
		if s.Into != nil && len(value) <= MaxQueryID {
			*s.Into = append(*s.Into, value...)
		}
	case wantMeta, wantMessage:
		return s.fields(value, w.in)
	}
	return true
}

// meet notes that a field is there, which is not a number.
func (s *Scan) meet(w *want) {
	switch w.what {
	case wantSession:
		s.Session = true
	case wantTx:
		s.HasTx, s.Tx = true, 0
		s.bad = s.bad || s.Begin
	case wantMetaTx:
		s.MetaTx = 0
	case wantBegin:
		s.Begin = true
		s.bad = s.bad || s.HasTx
	case wantMeta:
		s.HasMeta, s.MetaTx = true, 0
	}
}

func (s *Scan) refuse() bool {
	s.bad = true
	return false
}

// prefix reads the flag and length before a message.
func (s *Scan) prefix(p []byte) []byte {
	if s.left == 0 && len(p) >= PrefixSize {
		s.value, s.left = uint64(p[0])<<32|uint64(binary.BigEndian.Uint32(p[1:])), PrefixSize
		p = p[PrefixSize:]
	} else {
		if s.left == 0 {
			s.value = 0
		}
		s.value = s.value<<8 | uint64(p[0])
		s.left++
		p = p[1:]
	}
	if s.left < PrefixSize {
		return p
	}
	if s.value>>32 != 0 { // compressed
		s.bad = true
		return nil
	}
	if s.pieces == nil {
		s.pieces = new(pieces)
	}
	s.levels[0] = level{wants: s.wants, end: s.value}
	s.depth, s.at, s.left, s.status, s.text = 0, 0, 0, 0, temporary{}
	s.next()
	return p
}

// next goes on after a field, out of the messages that end with it.
func (s *Scan) next() {
	s.state, s.value, s.shift = inTag, 0, 0
	for s.at == s.levels[s.depth].end {
		if s.depth--; s.depth < 0 {
			s.messageEnds()
			return
		}
	}
}

func (s *Scan) messageEnds() {
	s.state, s.left = inPrefix, 0
	if s.Messages = max(s.Messages, s.Messages+1); s.Messages == 1 || s.status != int32(Ydb.StatusIds_SUCCESS) {
		s.Status = Ydb.StatusIds_StatusCode(s.status)
	}
}

// varint reads a tag, a length or a value.
func (s *Scan) varint(p []byte) []byte {
	for i, c := range p {
		if s.at == s.levels[s.depth].end || s.shift == 63 && c > 1 {
			s.bad = true
			return nil
		}
		s.at++
		s.value |= uint64(c&0x7f) << s.shift
		if c < 0x80 {
			switch v := s.value; s.state {
			case inTag:
				s.tag(v)
			case inLength:
				s.length(v)
			default:
				if s.want != nil {
					s.number(s.want, v)
				}
				s.next()
			}
			return p[i+1:]
		}
		s.shift += 7
	}
	return nil
}

// tag begins a field.
func (s *Scan) tag(v uint64) {
	number := v >> 3
	s.typ, s.want, s.value, s.shift = uint8(v&7), nil, 0, 0
	if number == 0 || number >= 1<<29 {
		s.bad = true
		return
	}
	switch s.typ {
	case typeVarint:
		s.state = inVarint
	case typeBytes:
		s.state = inLength
	case typeFixed64:
		s.length(8)
	case typeFixed32:
		s.length(4)
	default: // groups, which nobody writes
		s.bad = true
		return
	}
	if s.typ != typeVarint && s.typ != typeBytes {
		return
	}
	l := &s.levels[s.depth]
	if w := l.wants.of(number, s.typ == typeVarint); w != nil {
		s.want = w
		s.bad = s.bad || l.seen&w.bit() != 0
		l.seen |= w.bit()
	}
}

func (w what) isNumber() bool { return w == wantCommit || w == wantStatus || w == wantSyntax }

// number takes the value of a varint.
func (s *Scan) number(w *want, v uint64) {
	switch w.what {
	case wantStatus:
		s.status = int32(v)
	case wantSyntax:
		s.Temporary = s.Temporary || v == SyntaxPG
	default:
		s.Commit = v != 0
	}
}

// length begins the value of a field that is so long.
func (s *Scan) length(n uint64) {
	if n > s.levels[s.depth].end-s.at {
		s.bad = true
		return
	}
	s.left, s.state = n, inSkip
	if w := s.want; w != nil {
		s.meet(w)
		switch w.what {
		case wantTx, wantMetaTx:
			s.state = inID
		case wantText:
			s.state = inText
		case wantQueryID:
			if s.Into != nil && n <= MaxQueryID {
				s.state = inQueryID
			}
		case wantMeta, wantMessage:
			s.depth++
			s.levels[s.depth] = level{wants: w.in, end: s.at + n}
			s.next()
			return
		}
	}
	if n == 0 {
		s.next()
	}
}

// see looks at octets of the value in hand.
func (s *Scan) see(p []byte, last bool) {
	switch s.state {
	case inID:
		h := &s.Tx
		if s.want.what == wantMetaTx {
			h = &s.MetaTx
		}
		if *h == 0 {
			*h = idSeed
		}
		for _, c := range p {
			*h = (*h ^ uint64(c)) * hashPrime
		}
	case inQueryID:
		*s.Into = append(*s.Into, p...)
	case inText:
		s.Temporary = s.Temporary || s.text.see(p, last)
	}
}

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
		// An octet of x is 0 where there is an m and behind it a p, in any case: few words have them.
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
				i, end = bytes.IndexAny(q[2:], "\r\n"), 1
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
