package wire

import (
	"container/list"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// Messages of a stream that writes to a topic may belong to a transaction, and then name its
// session, behind what they write. They are no calls on that session: the stream goes to any
// node, which passes them on.

var streamWrite = protocol.Named("/Ydb.Topic.V1.TopicService/StreamWrite")

// topicWriter is the h2.Rewriter of one such stream.
type topicWriter struct {
	messages
	who  *caller
	user string // the caller's identity; "": not known yet
	scan protocol.TopicScan
}

// messages inflates those of a request, for a h2.Rewriter.
type messages struct {
	frames   *frames
	conn     *h2.Conn     // the client's
	encoding string       // of the messages that are compressed
	most     int          // bytes that one may have, inflated
	topic    *topicWriter // the stream that they are for; nil: the server in this process
	message  *inflation   // the last that a goroutine inflates; nil: none
}

// writeTopic has ids of virtual sessions replaced in a stream. While it is not known whose the
// call is, and a message may come for which that matters, the error is h2.ErrPark.
func (f *frames) writeTopic(c *h2.Call, who *caller) error {
	w := &topicWriter{
		messages: messages{frames: f, conn: c.Client(), encoding: string(c.Header(headerEncoding)), most: f.server.h2.Message},
		who:      who,
	}
	w.topic = w
	if !w.known() && f.server.sessions.InTx() > 0 && f.server.identities.Ask(&who.Credentials, c.Client(), mailbox{f, c.Ticket()}) {
		return h2.ErrPark
	}
	c.Rewrite(w)
	c.Data.(*call).writer = w
	return nil
}

func (w *topicWriter) known() bool {
	if w.user == "" {
		w.user, _ = w.frames.server.identities.UserOf(&w.who.Credentials)
	}
	return w.user != ""
}

// Hold implements h2.Rewriter. A message can be in a transaction only if the client has been
// told that one is open, which is noted before it is told.
func (w *topicWriter) Hold(int) bool {
	w.scan = protocol.TopicScan{ID: w.scan.ID[:0]}
	return w.frames.server.sessions.InTx() > 0
}

// See implements h2.Rewriter.
func (w *topicWriter) See(p []byte) { w.scan.Write(p) }

// Edit implements h2.Rewriter. What it does not understand is for the node to judge.
func (w *topicWriter) Edit(edits []h2.Edit) []h2.Edit { return w.edit(edits, &w.scan) }

func (w *topicWriter) edit(edits []h2.Edit, s *protocol.TopicScan) []h2.Edit {
	if !s.OK() {
		return edits
	}
	id, ok := virtual.Parse(s.ID)
	if !ok {
		return edits
	}
	w.known()
	server := w.frames.server.sessions.BoundTo(id, &w.who.Credentials, w.user)
	if server == "" {
		return edits
	}
	s.Replace(server, func(from, to int, with []byte) { edits = append(edits, h2.Edit{From: from, To: to, With: with}) })
	return edits
}

// Inflate implements h2.Rewriter.
func (w *messages) Inflate(t h2.Ticket, pieces [][]byte) {
	m := &inflation{w: w, ticket: t, packed: pieces}
	for _, b := range pieces {
		m.came += len(b)
	}
	m.held = m.came
	w.message = m
	w.frames.server.unpackers.do(w.conn, m, &m.elem)
}

// inflation is a compressed message that a goroutine inflates. What follows it waits.
type inflation struct {
	w      *messages
	ticket h2.Ticket
	came   int
	packed [][]byte      // with its protocol.PrefixSize; nil: it is on its way
	held   int           // bytes that count as waiting; of the shard's turn
	elem   *list.Element // in a line of unpackers, whose lock guards it

	// Of the goroutine until it is done.
	plain [][]byte // with room for its protocol.PrefixSize
	scan  protocol.TopicScan
}

const (
	leastPiece = 32 << 10 // of an inflated message
	mostPiece  = 256 << 10
)

var (
	errLeft          = errors.New("a message that is left as it is")
	errPackedMessage = &h2.Status{Code: int(codes.InvalidArgument),
		Message: "ydb-sidecar: the compressed message cannot be read, or is longer than a message may be " +
			"(api.max_body; 4 MiB in a stream of requests)"}
	errPackedMemory = &h2.Status{Code: int(codes.ResourceExhausted),
		Message: "ydb-sidecar: there is no memory for the compressed message now: write it again, or do not compress it by grpc-encoding"}
)

// drop forgets the message that waits to be inflated: its stream is over.
func (w *messages) drop() {
	if m := w.message; m != nil && w.frames.server.unpackers.drop(w.conn, &m.elem) {
		w.frames.shard.Unhold(m.ticket, m.held)
		m.held = 0
	}
}

// serve inflates the message and has its stream go on. What came behind it goes on in more than one turn.
func (m *inflation) serve(i *inflater) {
	us, shard, more := &m.w.frames.server.unpackers, m.w.frames.shard, false
	if m.packed == nil {
		shard.Do(func(e *h2.Forwarder) { more = e.GoOn(m.ticket) })
	} else {
		err := panics.Call("the inflation of a message", func() error { return m.inflate(i) })
		packed, plain := m.packed, m.plain
		m.packed, m.plain = nil, nil
		shard.Do(func(e *h2.Forwarder) { more = m.goOn(e, packed, plain, err) })
	}
	if more {
		us.do(m.w.conn, m, &m.elem)
	}
}

func (m *inflation) goOn(e *h2.Forwarder, packed, plain [][]byte, err error) (more bool) {
	m.w.frames.shard.Unhold(m.ticket, m.held)
	m.held = 0
	switch topic := m.w.topic; {
	case errors.Is(err, errAbandoned):
		return e.Rewritten(m.ticket, m.came, nil, nil, errPackedMemory)
	case topic == nil && err == nil:
		return e.Rewritten(m.ticket, m.came, plain, nil, nil)
	case topic == nil && !errors.Is(err, errLeft): // the server would inflate it as far as that goes
		return e.Rewritten(m.ticket, m.came, nil, nil, errPackedMessage)
	case err == nil:
		if edits := topic.edit(nil, &m.scan); len(edits) > 0 {
			return e.Rewritten(m.ticket, m.came, plain, edits, nil)
		}
	}
	return e.Rewritten(m.ticket, m.came, packed, nil, nil)
}

// inflate makes the plain message. It ends early if the message is to be left as it is.
func (m *inflation) inflate(i *inflater) error {
	if !canInflate(m.w.encoding) {
		return errLeft
	}
	packed := net.Buffers(slices.Clone(m.packed))
	packed[0] = packed[0][protocol.PrefixSize:]
	defer func() { packed = nil }()
	size := 0
	from, err := i.openAside(m.w.encoding, &packed)
	for err == nil {
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
		i.aside.barren = 0
		if m.w.topic != nil {
			m.scan.Write(b[len(b) : len(b)+n])
		}
		m.plain[last] = b[:len(b)+n]
		if size += n; size > m.w.most {
			return errTooLong
		}
		if m.scan.Bad {
			return errLeft
		}
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	if len(m.plain) > 0 {
		binary.BigEndian.PutUint32(m.plain[0][1:], uint32(size))
	}
	return nil
}

// grow counts the room for another piece before it makes it.
func (m *inflation) grow() (ok bool) {
	size, used := leastPiece, 0
	if last := len(m.plain) - 1; last < 0 {
		used = protocol.PrefixSize
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
