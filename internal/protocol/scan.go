package protocol

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"

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
	wantSession             // whether it is there
	wantTx                  // a transaction's id, in a request
	wantBegin               // whether it is there
	wantCommit              // a bool
	wantText                // whether it leaves something on its session
	wantSyntax              // whether it leaves something on its session
	wantStatus              // YDB's status
	wantMeta                // whether it is there, and its fields
	wantMetaTx              // a transaction's id, in an answer
	wantQueryID             // the bytes themselves, into scan.into
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
	MetaTx    uint64 // Hash of the id in the last tx_meta of the answer; 0: it was empty
}

// Scan finds a few fields of gRPC messages by their paths while the bytes stream past. It
// keeps nothing of them and allocates nothing (but pieces, once). What it says is what a decoder of protobuf
// would say, or it refuses: where a field that it looks for comes twice, or both of a oneof.
type Scan struct {
	Found
	wants  *Fields
	left   uint64 // bytes of the value in hand
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
	at     uint64 // bytes of the message so far
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

// Whole reports that the bytes so far are whole messages, and not refused.
func (s *Scan) Whole() bool { return !s.bad && s.state == inPrefix && s.left == 0 }

// idSeed keeps those who choose ids from finding two of one hash.
var idSeed = rand.Uint64() | 1

const hashPrime = 1099511628211

// Hash is what Found has of an id: FNV-1a from a secret start; 0 for no bytes.
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

// Write looks at more bytes. False: they are refused, and so is all that follows.
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
	maxLearned  = 1 << 10 // bytes of a start
	leastBehind = 16      // bytes that tell starts apart
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
//
// Long: each field of each request passes through this loop, and a call for a part of it costs more than the part.
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

// see looks at bytes of the value in hand.
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
