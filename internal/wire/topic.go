package wire

import (
	"container/list"
	"errors"
	"io"
	"math"
	"net"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Messages of a stream that writes to a topic may belong to a transaction, and then name its
// session, behind what they write. They are no calls on that session: the stream goes to any
// node, which passes them on.

var streamWrite = methods["/Ydb.Topic.V1.TopicService/StreamWrite"]

// topicWriter is the h2.Rewriter of one such stream.
type topicWriter struct {
	frames   *frames
	who      *caller
	user     string // the caller's identity; "": not known yet
	encoding string // of its compressed messages
	scan     topicScan
	message  *topicMessage // the last that a goroutine inflates; nil: none
}

// writeTopic has ids of virtual sessions replaced in a stream. While it is not known whose the
// call is, and a message may come for which that matters, the error is h2.ErrPark.
func (f *frames) writeTopic(c *h2.Call, who *caller) error {
	w := &topicWriter{frames: f, who: who, encoding: string(c.Header(headerEncoding))}
	if ts := f.server.tenants; !w.known() && f.server.virtual.inTx.Load() > 0 {
		if _, refused := ts.refused.Get(string(who.hash[:])); !refused && ts.ask(who, mailbox{f, c.Ticket()}) {
			return h2.ErrPark
		}
	}
	c.Rewrite(w)
	c.Data.(*call).writer = w
	return nil
}

func (w *topicWriter) known() bool {
	if ts := w.frames.server.tenants; ts.own {
		w.user = ownUser
	} else if w.user == "" {
		w.user, _ = ts.userOf(w.who)
	}
	return w.user != ""
}

// Hold implements h2.Rewriter. A message can be in a transaction only if the client has been
// told that one is open, which is noted before it is told.
func (w *topicWriter) Hold(int) bool {
	w.scan = topicScan{id: w.scan.id[:0]}
	return w.frames.server.virtual.inTx.Load() > 0
}

// See implements h2.Rewriter.
func (w *topicWriter) See(p []byte) { w.scan.write(p) }

// Edit implements h2.Rewriter. What it does not understand is for the node to judge.
func (w *topicWriter) Edit(edits []h2.Edit) []h2.Edit { return w.edit(edits, &w.scan) }

func (w *topicWriter) edit(edits []h2.Edit, s *topicScan) []h2.Edit {
	if !s.ok() {
		return edits
	}
	id, ok := parseVirtual(s.id)
	if !ok {
		return edits
	}
	w.known()
	server := w.frames.server.virtual.boundTo(id, w)
	if server == "" {
		return edits
	}
	return s.replace(edits, server)
}

// Inflate implements h2.Rewriter.
func (w *topicWriter) Inflate(t h2.Ticket, pieces [][]byte) {
	m := &topicMessage{w: w, ticket: t, packed: pieces}
	for _, b := range pieces {
		m.came += len(b)
	}
	m.held = m.came
	w.message = m
	w.frames.server.unpackers.do(m, &m.place)
}

// topicMessage is a compressed message of such a stream that a goroutine inflates. What follows it waits.
type topicMessage struct {
	w      *topicWriter
	ticket h2.Ticket
	came   int
	packed [][]byte      // with its prefix; nil: it is on its way
	held   int           // bytes that count as waiting; of the shard's turn
	place  *list.Element // among unpackers.waiting, whose lock guards it

	// Of the goroutine until it is done.
	plain [][]byte // with room for its prefix
	scan  topicScan
}

const (
	leastPiece = 32 << 10 // of an inflated message
	mostPiece  = 256 << 10
)

var (
	errLeft        = errors.New("a message that is left as it is")
	errTopicMemory = &h2.Status{Code: int(codes.ResourceExhausted), Message: "ydb-sidecar: there is no memory for the compressed message now: write it again, or do not compress it by grpc-encoding"}
)

// drop forgets the message that waits to be inflated: its stream is over.
func (w *topicWriter) drop() {
	if m := w.message; m != nil && w.frames.server.unpackers.drop(&m.place) {
		w.frames.shard.Unhold(m.ticket, m.held)
		m.held = 0
	}
}

// serve inflates the message and has its stream go on. What came behind it goes on in more than one turn.
func (m *topicMessage) serve(i *inflater) {
	us, shard, more := &m.w.frames.server.unpackers, m.w.frames.shard, false
	if m.packed == nil {
		shard.Do(func(e *h2.Forwarder) { more = e.GoOn(m.ticket) })
	} else {
		err := panics.Call("the inflation of a message", func() error { return m.inflate(i, m.w.frames.server.h2.Message) })
		packed, plain := m.packed, m.plain
		m.packed, m.plain = nil, nil
		shard.Do(func(e *h2.Forwarder) { more = m.goOn(e, packed, plain, err) })
	}
	if more {
		us.do(m, &m.place)
	}
}

func (m *topicMessage) goOn(e *h2.Forwarder, packed, plain [][]byte, err error) (more bool) {
	m.w.frames.shard.Unhold(m.ticket, m.held)
	m.held = 0
	if errors.Is(err, errAbandoned) {
		return e.Rewritten(m.ticket, m.came, nil, nil, errTopicMemory)
	}
	if err == nil {
		if edits := m.w.edit(nil, &m.scan); len(edits) > 0 {
			return e.Rewritten(m.ticket, m.came, plain, edits, nil)
		}
	}
	return e.Rewritten(m.ticket, m.came, packed, nil, nil)
}

// inflate makes the plain message. It ends early if the message is to be left as it is.
func (m *topicMessage) inflate(i *inflater, most int) error {
	if !canInflate(m.w.encoding) {
		return errLeft
	}
	packed := net.Buffers(slices.Clone(m.packed))
	packed[0] = packed[0][prefix:]
	defer func() { packed = nil }()
	from, err := i.open(m.w.encoding, &packed)
	for size := 0; err == nil; {
		last := len(m.plain) - 1
		if last < 0 || len(m.plain[last]) == cap(m.plain[last]) {
			if !m.grow() {
				return errAbandoned
			}
			last++
		}
		b := m.plain[last]
		var n int
		n, err = from.Read(b[len(b):cap(b)])
		m.scan.write(b[len(b) : len(b)+n])
		m.plain[last] = b[:len(b)+n]
		if size += n; size > most || m.scan.bad {
			return errLeft
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// grow counts the room for another piece before it makes it.
func (m *topicMessage) grow() (ok bool) {
	size, used := leastPiece, 0
	if last := len(m.plain) - 1; last < 0 {
		used = prefix
	} else {
		size = min(2*cap(m.plain[last]), mostPiece)
	}
	m.w.frames.shard.Do(func(e *h2.Forwarder) {
		if ok = e.Hold(m.ticket, size); ok {
			m.held += size
		}
	})
	if ok {
		m.plain = append(m.plain, make([]byte, used, size))
	}
	return ok
}

// boundTo returns the id of the server session that the caller's virtual one has; "": none.
func (vs *virtuals) boundTo(id virtualID, w *topicWriter) string {
	s := vs.of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.byID.get(id)
	if v == nil || v.lease == nil {
		return ""
	}
	if name := v.tenant.name; v.maker != w.who.hash && (name.user != w.user || name.database != w.who.database) {
		return ""
	}
	return v.lease.Name()
}

// countTxLocked counts the sessions that have a transaction open.
func (vs *virtuals) countTxLocked(v *virtual) {
	switch open := v.lease != nil && v.n > 0; {
	case open && !v.inTx:
		vs.inTx.Add(1)
		v.inTx = true
	case !open && v.inTx:
		vs.inTx.Add(-1)
		v.inTx = false
	}
}

// placeOf is a field in a message: where it begins, what it holds, where it ends.
type placeOf struct{ from, start, to int }

// topicPath leads to the session in a StreamWriteMessage.FromClient: write_request.tx.session.
var topicPath = [...]uint64{2, 3, 2}

// topicScan finds it while the bytes stream past, and takes time in proportion to them. It is bad if there may be
// another reading of the message.
type topicScan struct {
	places [len(topicPath)]placeOf
	depth  int // of the messages in hand
	id     []byte
	bad    bool

	at, from int    // bytes so far; where the field in hand begins
	skip     int    // bytes of its value still to come
	tag      uint64 // of it; 0: that is not here yet
	varint   uint64 // in hand
	shift    uint
	inID     bool
}

// write looks at more of the message.
func (s *topicScan) write(p []byte) {
	for len(p) > 0 && !s.bad {
		if s.skip > 0 {
			n := min(s.skip, len(p))
			if s.inID {
				s.id = append(s.id, p[:n]...)
			}
			s.skip, s.at, p = s.skip-n, s.at+n, p[n:]
			s.inID = s.inID && s.skip > 0
			continue
		}
		c := p[0]
		s.at, p = s.at+1, p[1:]
		if s.varint |= uint64(c&0x7f) << s.shift; c >= 0x80 || s.shift == 63 && c > 1 {
			s.shift += 7
			s.bad = s.shift > 63 || c < 0x80
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
func (s *topicScan) begin(tag uint64) {
	number := tag >> 3
	s.bad = number == 0 || number >= 1<<29
	switch s.tag = tag; tag & 7 {
	case typeVarint, typeBytes:
	case typeFixed64:
		s.ends(8)
	case typeFixed32:
		s.ends(4)
	default: // groups, which nobody writes
		s.bad = true
	}
}

// value is for a varint, or the length of what is longer.
func (s *topicScan) value(v uint64) {
	if s.tag&7 == typeVarint {
		s.ends(0)
		return
	}
	if v > math.MaxInt32 {
		s.bad = true
		return
	}
	number := s.tag >> 3
	switch {
	case s.depth == 0 && (number == 1 || number == 3): // of the oneof
		s.bad = true
	case s.depth == len(topicPath) || number != topicPath[s.depth]:
		s.ends(int(v))
	case s.places[s.depth].to > 0: // again
		s.bad = true
	default:
		s.places[s.depth] = placeOf{s.from, s.at, s.at + int(v)}
		if s.depth == len(topicPath)-1 {
			s.bad = v > maxTopicID
			s.inID = v > 0
			s.ends(int(v))
			return
		}
		if s.fits(int(v)); !s.bad {
			s.depth++
			s.ends(0)
		}
	}
}

const maxTopicID = 256 // virtual sessions have shorter ones

// fits looks whether the field in hand ends within its message.
func (s *topicScan) fits(more int) {
	s.bad = s.bad || s.depth > 0 && s.at+more > s.places[s.depth-1].to
}

// ends is for a field of which so many bytes are still to come.
func (s *topicScan) ends(more int) {
	s.fits(more)
	s.skip, s.tag, s.from = more, 0, s.at+more
	for s.depth > 0 && s.from == s.places[s.depth-1].to {
		s.depth--
	}
}

// ok reports whether the session is in the message, which is whole.
func (s *topicScan) ok() bool {
	return !s.bad && s.skip == 0 && s.at == s.from && s.depth == 0 && s.places[len(topicPath)-1].to > 0
}

// replace appends what has to change for the session to be another one.
func (s *topicScan) replace(edits []h2.Edit, session string) []h2.Edit {
	first, size := len(edits), len(session) // of what the field in hand is to hold
	for i := len(topicPath) - 1; i >= 0; i-- {
		p := &s.places[i]
		head := protowire.AppendVarint(protowire.AppendTag(nil, protowire.Number(topicPath[i]), protowire.BytesType), uint64(size))
		e := h2.Edit{From: p.from, To: p.start, With: head}
		if i == len(topicPath)-1 {
			e.To, e.With = p.to, append(head, session...)
		}
		if edits = append(edits, e); i > 0 {
			outer := &s.places[i-1]
			size += len(head) + outer.to - outer.start - (p.to - p.from)
		}
	}
	slices.Reverse(edits[first:])
	return edits
}
