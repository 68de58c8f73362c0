package client

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
)

// call is one call. One goroutine drives it, and hears from the shard's turn what comes.
type call struct {
	conn *Conn
	ctx  context.Context
	o    options

	driving

	request h2.Request // constant from start on
	ticket  h2.Ticket  // of the shard's turn
	hurried bool       // of the shard's turn: it had the next attempt to connect made at once
	whole   bool       // the answer is one message: there is no use in waking up before its end

	wake   chan struct{} // capacity 1; nil: the goroutine has not waited
	inline *InlineStream // it was begun in the shard's turn; nil

	mu sync.Mutex // guards all below
	arriving
	progress
	ending
}

// driving is what the goroutine of a call knows.
type driving struct {
	started bool
	tries   int
	unwatch func() bool // of a call that lasts: its context is not watched any more
	out     buffer      // messages that are being read
	body    buffer      // the request
	at      int         // in body
	taken   int         // bytes read that the shard has not heard of
}

// arriving is what has come of the answer.
type arriving struct {
	in   buffer // not taken yet
	ripe int    // bytes of in that are whole messages
	due  int    // bytes for Consumed
}

// progress is how far a call is.
type progress struct {
	waiting bool // the goroutine does
	begun   bool // the shard has it, or is about to
	sent    bool // the request is on its way, or about to be
	gone    bool // the goroutine has lost interest
	over    bool // no more comes
	again   bool // surely no node has seen it: it may be sent again
}

// ending is how a call ended.
type ending struct {
	err      error // why it failed; nil: the answer is whole
	statuses statusOf
	header   metadata.MD
	trailer  metadata.MD
}

// statusOf is what the headers of an answer say of its end.
type statusOf struct {
	http    int
	code    int // -1: not said
	message string
	details string
	bad     string // the content type, if it is not gRPC's
}

const (
	prefix   = 5         // flag and length before a message
	keptSize = 128 << 10 // of the largest buffer that is kept
	// bytes of a message that room is made for when its length is known: the largest part of an
	// answer that is asked for
	grown = 1 << 20
	step  = 64 << 10 // bytes read before the shard hears of it
	// bytes read before the shard hears of it if the goroutine waits, and bytes of a message of
	// which the rest may have no room in the window: with
	low = 8 << 10
	//                     half a window of credit less than the window that a node has while memory is short, see h2.Forwarder.Tight
	maxTries = 3 // of a call that surely no node has seen
	pause    = 50 * time.Millisecond
)

var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 1<<10)
	return &b
}}

// buffer is one of the pool's, and what it holds now.
type buffer struct {
	of *[]byte // nil: none
	b  []byte
}

func newBuffer() buffer {
	of := buffers.Get().(*[]byte)
	return buffer{of, (*of)[:0]}
}

// add appends to the buffer.
func (x *buffer) add(p []byte) {
	if x.of == nil {
		*x = newBuffer()
	}
	x.b = append(x.b, p...)
}

// recycle gives it back.
func (x *buffer) recycle() {
	if x.of != nil && cap(x.b) <= keptSize {
		*x.of = x.b
		buffers.Put(x.of)
	}
	*x = buffer{}
}

func (c *Conn) newCall(ctx context.Context, method string, opts []grpc.CallOption, turn *InlineStream) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, &Error{Status: status.FromContextError(err), NotSent: true}
	}
	k := &call{conn: c, ctx: ctx, inline: turn}
	k.o.read(opts)
	k.request = h2.Request{Fields: c.fields(method), Lasts: k.o.lasts, Listener: k}
	if turn != nil {
		k.request.Client = turn.Client
	}
	h := k.o.headers
	if h != nil {
		k.request.More, k.request.Once = h.Fields, h.Once
	}
	if k.request.More == nil {
		k.request.More = outgoing(ctx)
	}
	if k.o.lasts { // nobody may be waiting when its context ends
		k.unwatch = context.AfterFunc(ctx, k.leave)
	}
	if h != nil {
		if h.call.Store(k); h.cancelled.Load() { // before there was a call
			k.abort()
		}
	}
	return k, nil
}

// outgoing are the headers of a context.
func outgoing(ctx context.Context) *h2.Fields {
	md, ok := metadata.FromOutgoingContext(ctx)
	if !ok {
		return nil
	}
	pairs := make([]string, 0, 2*len(md))
	for name, values := range md {
		for _, value := range values {
			if strings.HasSuffix(name, "-bin") {
				value = base64.RawStdEncoding.EncodeToString([]byte(value))
			}
			pairs = append(pairs, name, value)
		}
	}
	return h2.NewFields(pairs...)
}

// send sends the one request.
func (k *call) send(m any) error {
	if k.started {
		return errTwice
	}
	k.body = newBuffer()
	b := append(k.body.b, 0, 0, 0, 0, 0)
	var err error
	switch m := m.(type) {
	case Sender:
		b, err = m.AppendMessage(b)
	case proto.Message:
		b, err = proto.MarshalOptions{}.MarshalAppend(b, m)
	default:
		err = fmt.Errorf("a request is no %T", m)
	}
	if err != nil {
		return &Error{Status: status.Newf(codes.Internal, "the request cannot be encoded: %v", err), NotSent: true}
	}
	size := len(b) - prefix
	if size > k.conn.target.Message {
		return &Error{
			Status: status.Newf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", size,
				k.conn.target.Message),
			NotSent: true,
		}
	}
	binary.BigEndian.PutUint32(b[1:], uint32(size))
	k.body.b, k.request.Body = b, b
	k.started = true
	if k.inline != nil {
		k.beginHere()
		return nil
	}
	k.begin()
	return k.departed()
}

// begin has the shard send the call.
func (k *call) begin() {
	k.prepare()
	k.conn.client.shard.Together((*starting)(k))
}

func (k *call) prepare() {
	if end, ok := k.ctx.Deadline(); ok {
		k.request.Timeout = max(time.Until(end), time.Nanosecond)
	}
	k.tries++
	k.mu.Lock()
	k.begun = true
	k.mu.Unlock()
}

// departed waits until the call is on its way, unless the connection is known to work.
func (k *call) departed() error {
	if k.whole || k.conn.ready.Load() {
		return nil
	}
	for {
		k.mu.Lock()
		sent, over, again, err := k.sent, k.over, k.again, k.err
		if !sent && !over {
			k.waitLocked()
		}
		k.mu.Unlock()
		switch {
		case over && again:
			if err := k.retry(); err != nil {
				return err
			}
			continue
		case over && errors.As(err, new(*Error)) && !sent:
			return err
		case sent, over:
			return nil
		}
		if err := k.wait(); err != nil {
			return err
		}
	}
}

// wait waits for the shard, or the end of the call's context.
func (k *call) wait() error {
	select {
	case <-k.wake:
		return nil
	case <-k.ctx.Done():
	}
	k.mu.Lock()
	over := k.over
	k.waiting = false
	k.mu.Unlock()
	if over {
		return nil
	}
	k.leave()
	return k.late()
}

// late is the error of a call whose context has ended.
func (k *call) late() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &Error{Status: status.FromContextError(k.ctx.Err()), NotSent: !k.sent}
}

// leave resets the node's stream, if the call is not over.
func (k *call) leave() {
	k.mu.Lock()
	left := k.gone || k.over
	k.gone = true
	k.mu.Unlock()
	if !left {
		k.conn.client.shard.Together((*leaving)(k))
	}
}

// abort ends the call, whatever its goroutine does.
func (k *call) abort() {
	k.mu.Lock()
	left := k.gone || k.over
	begun := k.begun // else the shard has nothing to end, and this may be its turn
	if !left || k.again {
		unsent := !k.sent || k.again
		k.gone, k.again, k.err = true, false, &Error{
			Status: status.New(codes.Canceled, "the call was cancelled"), NotSent: unsent, Here: true,
		}
		k.endLocked()
	}
	k.mu.Unlock()
	if !left && begun {
		k.conn.client.shard.Together((*leaving)(k))
	}
	k.tellInline(false)
}

// retry sends a call again that surely no node has seen, or returns why not.
func (k *call) retry() error {
	more := k.tries < maxTries
	if !more || k.o.patient {
		if more = k.o.patient; more {
			t := time.NewTimer(pause)
			defer t.Stop()
			select {
			case <-t.C:
			case <-k.ctx.Done():
				more = false
			}
		}
	}
	k.mu.Lock()
	if more = more && k.again; more { // else it was aborted meanwhile
		k.over, k.again, k.sent, k.err = false, false, false, nil
		k.statuses = statusOf{}
	}
	err := k.err
	k.mu.Unlock()
	if more {
		k.begin()
	}
	return err
}

// next returns the next message; io.EOF behind the last one.
func (k *call) next() ([]byte, error) {
	if !k.started {
		return nil, errors.New("h2/client: there is no request yet")
	}
	for {
		if message := k.take(); message != nil {
			return message, nil
		}
		k.consumed(step)
		k.mu.Lock()
		switch {
		case k.ripe > 0:
			k.out, k.in = k.in, k.out
			if k.in.b = k.in.b[:0]; k.ripe < len(k.out.b) { // the start of another one
				k.in.add(k.out.b[k.ripe:])
			}
			k.out.b, k.at, k.ripe = k.out.b[:k.ripe], 0, 0
			k.mu.Unlock()
			continue
		case k.over:
			err, again := k.err, k.again
			k.mu.Unlock()
			if again {
				if err = k.retry(); err == nil {
					continue
				}
			}
			if err == nil {
				err = io.EOF
			}
			return nil, err
		case k.gone:
			k.mu.Unlock()
			return nil, k.late()
		}
		k.out.recycle() // a stream may wait long
		if k.at = 0; len(k.in.b) == 0 {
			k.in.recycle()
		}
		k.waitLocked()
		wants := len(k.in.b) >= low
		k.mu.Unlock()
		if k.consumed(low); wants {
			k.conn.client.shard.Together((*wanting)(k))
		}
		if err := k.wait(); err != nil {
			return nil, err
		}
	}
}

// take takes the next message of out, or returns nil.
func (k *call) take() []byte {
	if k.at == len(k.out.b) {
		return nil
	}
	p := k.out.b[k.at:]
	n := prefix + int(binary.BigEndian.Uint32(p[1:]))
	k.at += n
	k.taken += n
	return p[:n:n]
}

// consumed tells the shard how much was read, if it is that much. Of a call that lasts it does so at once: for the
// few bytes that are left nobody would come again.
func (k *call) consumed(least int) {
	if k.taken < least && !(k.o.lasts && k.taken > 0) {
		return
	}
	k.mu.Lock()
	k.due += k.taken
	over := k.over
	k.mu.Unlock()
	if k.taken = 0; !over { // else the shard has nothing of it any more, and this may be its turn
		k.conn.client.shard.Together((*giving)(k))
	}
}

// receive reads the next message into m.
func (k *call) receive(m any) error {
	p, err := k.next()
	if err == io.EOF && k.whole {
		return &Error{Status: status.New(codes.Internal, "cardinality violation: received no response message from "+
			"non-server-streaming RPC")}
	}
	if err != nil {
		return err
	}
	if p[0] != 0 {
		k.leave()
		return &Error{Status: status.New(codes.Internal, "the node compressed its answer, which it was not asked to")}
	}
	switch m := m.(type) {
	case Receiver:
		err = m.ReadMessage(p[prefix:])
	case proto.Message:
		err = proto.Unmarshal(p[prefix:], m)
	default:
		err = fmt.Errorf("an answer is no %T", m)
	}
	if err != nil {
		k.leave()
		return &Error{Status: status.Newf(codes.Internal, "the answer cannot be decoded: %v", err)}
	}
	if k.whole {
		return k.end()
	}
	return nil
}

// end reads the end of an answer of one message.
func (k *call) end() error {
	switch _, err := k.next(); {
	case err == io.EOF:
		return nil
	case err == nil:
		k.leave()
		return &Error{Status: status.New(codes.Internal, "cardinality violation: expected <EOF> for non "+
			"server-streaming RPCs, but received another message")}
	default:
		return err
	}
}

// tell gives the options what they ask for, and what is not needed any more to others.
func (k *call) tell() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.o.peer != nil && k.sent {
		k.o.peer.PeerAddr.Addr = reached{}
	}
	if k.o.header != nil {
		*k.o.header.HeaderAddr = k.header
	}
	if k.o.trailer != nil {
		*k.o.trailer.TrailerAddr = k.trailer
	}
	if k.over && k.unwatch != nil { // not before the goroutine knows the end: the call may be made again
		k.unwatch()
	}
	if k.over && !k.gone { // else the shard may still have it
		k.in.recycle()
		k.out.recycle()
		k.at = 0
		k.body.recycle()
		k.request.Body = nil
	}
}

// reached is the address of a node that a call was sent to; which, its connection knows.
type reached struct{}

var _ net.Addr = reached{}

func (reached) Network() string { return "h2" }
func (reached) String() string  { return "node" }

// starting, leaving, giving and wanting are what a call wants of the shard.
type (
	starting call
	leaving  call
	giving   call
	wanting  call
)

var _, _, _, _ driver.Job = (*starting)(nil), (*leaving)(nil), (*giving)(nil), (*wanting)(nil)

// Turn implements driver.Job.
func (s *starting) Turn(f *h2.Forwarder) {
	k := (*call)(s)
	began := false
	defer func() {
		if !began { // a panic, which the shard deals with
			k.fail(&Error{Status: status.New(codes.Internal, "the sidecar failed while it sent the call"), Here: true})
		}
	}()
	k.mu.Lock()
	gone := k.gone
	k.mu.Unlock()
	if gone {
		began = true
		k.fail(&Error{Status: status.New(codes.Canceled, "the call was given up before it was sent"), NotSent: true})
		return
	}
	conn, err := k.conn.up.Conn()
	if err != nil && k.o.patient && !k.hurried {
		k.hurried = true
		k.conn.up.Hurry() // what failed before the call began is no reason to wait
		conn, err = k.conn.up.Conn()
	}
	if err != nil {
		began = true
		k.refuse(err)
		return
	}
	k.ticket = f.Start(conn, &k.request)
	began = true
}

// Turn implements driver.Job.
func (s *leaving) Turn(f *h2.Forwarder) { f.Abandon(s.ticket) }

// Turn implements driver.Job.
func (s *giving) Turn(f *h2.Forwarder) {
	s.mu.Lock()
	n := s.due
	s.due = 0
	s.mu.Unlock()
	f.Consumed(s.ticket, n)
}

// Turn implements driver.Job.
func (s *wanting) Turn(f *h2.Forwarder) { f.Want(s.ticket) }

// fail ends a call that is not with the forwarder.
func (k *call) fail(err error) {
	defer k.tellInline(true)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.over {
		k.err = err
		k.endLocked()
	}
}

// refuse ends a call that has no connection to go over.
func (k *call) refuse(err error) {
	k.conn.ready.Store(false)
	text := err.Error()
	if st, ok := errors.AsType[*h2.Status](err); ok {
		text = st.Message
	}
	defer k.tellInline(true)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err, k.again = &Error{Status: status.New(codes.Unavailable, text), NotSent: true}, k.o.patient
	k.endLocked()
}

// endLocked wakes the goroutine at the end.
func (k *call) endLocked() {
	k.over = true
	k.wakeLocked()
}

// waitLocked says that the goroutine is about to wait.
func (k *call) waitLocked() {
	k.waiting = true
	if k.wake == nil {
		k.wake = make(chan struct{}, 1)
	}
}

func (k *call) wakeLocked() {
	if k.waiting {
		k.waiting = false
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}
