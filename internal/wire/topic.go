package wire

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/h2"
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
	message  []byte // that is held, as far as it came
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
	w.message = w.message[:0]
	return w.frames.server.virtual.inTx.Load() > 0
}

// See implements h2.Rewriter.
func (w *topicWriter) See(p []byte) { w.message = append(w.message, p...) }

// Edit implements h2.Rewriter.
func (w *topicWriter) Edit(edits []h2.Edit) []h2.Edit { return w.edit(edits, w.message) }

// Inflate implements h2.Rewriter. The message is inflated in a turn of its own.
func (w *topicWriter) Inflate(t h2.Ticket, pieces [][]byte) {
	packed := slices.Concat(pieces...)
	go w.frames.shard.Do(func(e *h2.Forwarder) {
		message, edits := [][]byte{packed}, []h2.Edit(nil)
		if canInflate(w.encoding) {
			plain, err := w.frames.inflater.inflate(nil, w.encoding, packed[prefix:], w.frames.server.h2.Message)
			if err == nil {
				if edits = w.edit(nil, plain); len(edits) > 0 {
					message = [][]byte{slices.Concat(packed[:prefix], plain)}
				}
			}
		}
		e.Unhold(t, len(packed))
		for more := e.Rewritten(t, len(packed), message, edits, nil); more; {
			more = e.GoOn(t)
		}
	})
}

// edit puts the id of the server's session into a message. What it does not understand is for the
// node to judge.
func (w *topicWriter) edit(edits []h2.Edit, message []byte) []h2.Edit {
	at, ok := findTopicSession(message)
	if !ok {
		return edits
	}
	id, ok := parseVirtual(message[at[2].start:at[2].to])
	if !ok {
		return edits
	}
	w.known()
	server := w.frames.server.virtual.boundTo(id, w)
	if server == "" {
		return edits
	}
	return append(edits, h2.Edit{To: len(message), With: replaceAt(nil, message, at[:], server)})
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

// place of a field in a message: where it begins, what it holds, where it ends.
type placeOf struct {
	number          protowire.Number
	from, start, to int
}

// findTopicSession finds write_request.tx.session in a StreamWriteMessage.FromClient. It is not ok if
// there is none, or there may be another reading of the message.
func findTopicSession(message []byte) (at [3]placeOf, ok bool) {
	whole := placeOf{to: len(message)}
	for _, other := range []protowire.Number{1, 3} { // of the oneof
		if p, ok := once(message, whole, other); !ok || p.to > 0 {
			return at, false
		}
	}
	for i, number := range []protowire.Number{2, 3, 2} {
		if at[i], ok = once(message, whole, number); !ok || at[i].to == 0 {
			return at, false
		}
		whole = at[i]
	}
	return at, true
}

// once finds a length-delimited field within another. to 0: it is not there. It is not ok if
// it comes twice, or the other cannot be read.
func once(message []byte, in placeOf, number protowire.Number) (found placeOf, ok bool) {
	for at := in.start; at < in.to; {
		n, kind, tag := protowire.ConsumeTag(message[at:in.to])
		if tag < 0 {
			return found, false
		}
		size := protowire.ConsumeFieldValue(n, kind, message[at+tag:in.to])
		if size < 0 {
			return found, false
		}
		if n == number && kind == protowire.BytesType {
			if found.to > 0 {
				return found, false
			}
			_, length := protowire.ConsumeVarint(message[at+tag:])
			found = placeOf{number, at, at + tag + length, at + tag + size}
		}
		at += tag + size
	}
	return found, true
}

// replaceAt appends message to b with value in the place of the innermost of those fields.
func replaceAt(b, message []byte, at []placeOf, value string) []byte {
	last := len(at) - 1
	size := len(value) // of what the field in hand is to hold
	sizes := make([]int, len(at))
	for i := last; i >= 0; i-- {
		sizes[i] = size
		size = protowire.SizeTag(at[i].number) + protowire.SizeBytes(size)
		if i > 0 {
			size += at[i-1].to - at[i-1].start - (at[i].to - at[i].from)
		}
	}
	from := 0
	for i, p := range at {
		b = append(b, message[from:p.from]...)
		b = protowire.AppendVarint(protowire.AppendTag(b, p.number, protowire.BytesType), uint64(sizes[i]))
		from = p.start
	}
	return append(append(b, value...), message[at[last].to:]...)
}
