package protocol

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// placeOf is a field in a message: where it begins, what it holds, where it ends.
type placeOf struct{ from, start, to int }

// topicPath leads to the session in a StreamWriteMessage.FromClient: write_request.tx.session.
var topicPath = [...]uint64{2, 3, 2}

// TopicScan finds it while the bytes stream past, and takes time in proportion to them. It is bad if there may be
// another reading of the message.
type TopicScan struct {
	places [len(topicPath)]placeOf
	depth  int    // of the messages in hand
	ID     []byte // the session, as far as it is here
	Bad    bool   // there may be another reading of the message

	at, from int    // bytes so far; where the field in hand begins
	skip     int    // bytes of its value still to come
	tag      uint64 // of the field; 0: the tag is not here yet
	varint   uint64 // in hand
	shift    uint
	inID     bool
}

// Write looks at more of the message.
func (s *TopicScan) Write(p []byte) {
	for len(p) > 0 && !s.Bad {
		if s.skip > 0 {
			n := min(s.skip, len(p))
			if s.inID {
				s.ID = append(s.ID, p[:n]...)
			}
			s.skip, s.at, p = s.skip-n, s.at+n, p[n:]
			s.inID = s.inID && s.skip > 0
			continue
		}
		c := p[0]
		s.at, p = s.at+1, p[1:]
		if s.varint |= uint64(c&0x7f) << s.shift; c >= 0x80 || s.shift == 63 && c > 1 {
			s.shift += 7
			s.Bad = s.shift > 63 || c < 0x80
			continue
		}
		v := s.varint
		s.varint, s.shift = 0, 0
		if s.tag == 0 {
			s.begin(v)
		} else {
			s.value(v)
		}
	}
}

// begin is for a field's tag.
func (s *TopicScan) begin(tag uint64) {
	number := tag >> 3
	s.Bad = number == 0 || number >= 1<<29
	switch s.tag = tag; tag & 7 {
	case typeVarint, typeBytes:
	case typeFixed64:
		s.ends(8)
	case typeFixed32:
		s.ends(4)
	default: // groups, which nobody writes
		s.Bad = true
	}
}

// value is for a varint, or the length of what is longer.
func (s *TopicScan) value(v uint64) {
	if s.tag&7 == typeVarint {
		s.ends(0)
		return
	}
	if v > math.MaxInt32 {
		s.Bad = true
		return
	}
	number := s.tag >> 3
	switch {
	case s.depth == 0 && (number == 1 || number == 3): // of the oneof
		s.Bad = true
	case s.depth == len(topicPath) || number != topicPath[s.depth]:
		s.ends(int(v))
	case s.places[s.depth].to > 0: // again
		s.Bad = true
	default:
		s.places[s.depth] = placeOf{s.from, s.at, s.at + int(v)}
		if s.depth == len(topicPath)-1 {
			s.Bad = v > maxTopicID
			s.inID = v > 0
			s.ends(int(v))
			return
		}
		if s.fits(int(v)); !s.Bad {
			s.depth++
			s.ends(0)
		}
	}
}

const maxTopicID = 256 // virtual sessions have shorter ones

// fits looks whether the field in hand ends within its message.
func (s *TopicScan) fits(more int) {
	s.Bad = s.Bad || s.depth > 0 && s.at+more > s.places[s.depth-1].to
}

// ends is for a field of which so many bytes are still to come.
func (s *TopicScan) ends(more int) {
	s.fits(more)
	s.skip, s.tag, s.from = more, 0, s.at+more
	for s.depth > 0 && s.from == s.places[s.depth-1].to {
		s.depth--
	}
}

// OK reports whether the session is in the message, which is whole.
func (s *TopicScan) OK() bool {
	return !s.Bad && s.skip == 0 && s.at == s.from && s.depth == 0 && s.places[len(topicPath)-1].to > 0
}

// Replace tells what has to change, in order of places, for the session to be another one.
func (s *TopicScan) Replace(session string, edit func(from, to int, with []byte)) {
	var heads [len(topicPath)][]byte
	size := len(session) // of what the field in hand is to hold
	for i := len(topicPath) - 1; i >= 0; i-- {
		heads[i] = protowire.AppendVarint(protowire.AppendTag(nil, protowire.Number(topicPath[i]), protowire.BytesType), uint64(size))
		if p := &s.places[i]; i > 0 {
			outer := &s.places[i-1]
			size += len(heads[i]) + outer.to - outer.start - (p.to - p.from)
		}
	}
	last := len(topicPath) - 1
	for i, head := range heads[:last] {
		edit(s.places[i].from, s.places[i].start, head)
	}
	edit(s.places[last].from, s.places[last].to, append(heads[last], session...))
}
