package upstream

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Stream is the answer to one statement, part by part, or to a call of one message that was sent
// ahead, which is only received or closed. A part is read only when Next asks for it, so a slow reader
// slows the node down. The driving goroutine of its session owns it.
type Stream struct {
	s    *Session
	h    *trip // nil once ended
	rpc  grpc.ClientStream
	sent sending // of a statement

	repeat

	err     error // what Next returns from now on; io.EOF after a complete answer
	first   time.Duration
	meta    bool // tx_meta came
	trailer metadata.MD
	out, in measured
	options [2]grpc.CallOption // of the first sending
	part    Part
}

// repeat is what a Stream needs to be sent again.
type repeat struct {
	ctx     context.Context
	begun   bool // a part has come: it is not sent again
	weight  weight
	spoiled bool // the session was before
	reroute hop.Reroutes
}

// openStream starts a call with one request. Its error
// means that nothing was sent; a connection that breaks while the request is on
// its way shows in the first RecvMsg, with its true cause.
func openStream(ctx context.Context, cc grpc.ClientConnInterface, desc *grpc.StreamDesc, method string, req any,
	options ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := cc.NewStream(ctx, desc, method, options...)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	return stream, nil
}

var (
	serverStream = grpc.StreamDesc{ServerStreams: true}
	oneMessage   = grpc.StreamDesc{} // of an answer
)

// Execute sends a statement, to the resource pool of the app if it names none. The answer must be
// read to io.EOF, or closed, before the next call on the session. An *Error
// returned here means that surely nothing was sent; what the node says comes
// from Next.
func (s *Session) Execute(ctx context.Context, st Statement) (*Stream, error) {
	if st.Within && st.TxID == "" {
		return nil, errNoTx // without an id the node would commit it at once
	}
	w := s.weigh(&st)
	if protocol.TextLeavesSomething(st.Text) {
		s.spoiled = true // the next caller is to see nothing of it
	}
	if s.app != nil && st.Pool == "" {
		st.Pool = s.app.ResourcePool()
	}
	t := &Stream{s: s, sent: sending{st, s.id}, repeat: repeat{ctx: ctx, weight: w}, part: Part{known: &s.d.known}}
	if err := t.open(); err != nil {
		return nil, err
	}
	return t, nil
}

// open sends the statement.
func (t *Stream) open() error {
	s := t.s
	for {
		t.spoiled = s.spoiled
		h, err := s.begin(t.ctx, methodExecute, t.weight)
		if err != nil {
			return err
		}
		t.out = measured{message: &t.sent}
		var cc grpc.ClientConnInterface = h.conn.cc
		if s.via != nil && h.entry.Node == s.Node() {
			cc = s.via
		}
		var rpc grpc.ClientStream
		h.headers.Arrived = t.sent.Arrived
		err = h.guard(func() (err error) {
			rpc, err = openStream(h.ctx, cc, &serverStream, methodExecute.Path, &t.out, t.with(h)...)
			return err
		})
		if err == nil {
			h.sent, h.sizes[0] = true, t.out.size
			if h.detour != nil {
				h.detour.Hush() // until somebody waits for the answer
			}
			t.h, t.rpc, s.stream = h, rpc, t
			return nil
		}
		err = s.end(h, err)
		if !s.again(t.ctx, &t.reroute, err, t.spoiled) {
			return err
		}
	}
}

// with returns the options of the call.
func (t *Stream) with(h *trip) []grpc.CallOption {
	o := t.options[:]
	if o[0] != nil { // a call that failed may still read them
		o = make([]grpc.CallOption, len(o))
	}
	o[0], o[1] = measuring, &h.headers
	return o
}

// again sends the statement again that failed before it was sent, if that may help. False: t.err says why not.
func (t *Stream) again() bool {
	if t.begun || !t.s.again(t.ctx, &t.reroute, t.err, t.spoiled) {
		return false
	}
	t.err = t.open()
	return t.err == nil
}

// weight is what is at stake with a call: see ydbstatus.Signs.
type weight struct {
	kind       cluster.CallKind
	undone     bool
	inParts    bool
	schema     bool
	leavesNoTx bool // however it ends
}

// weigh tells what is at stake with a statement.
func (s *Session) weigh(st *Statement) weight {
	free := !st.controlled()
	w := weight{kind: cluster.CallExecute, leavesNoTx: s.tx == "" && (free || st.Begin != nil && st.Commit)}
	switch {
	case st.Explain:
		w.undone = true // it is only looked at
	case s.effects == yql.Reads:
		w.undone = true
	case free:
		w.inParts, w.schema = s.effects == yql.Parts, s.effects == yql.Schema
	case st.Begin != nil && readOnly(st.Begin), st.Within && s.readOnly:
		w.undone = true
	case st.Commit:
		w.kind = cluster.CallCommit
	default:
		w.undone = true // only a later commit would keep it
	}
	return w
}

// Next returns the next part; io.EOF after the last one, else an *Error. The part is
// good until the next call of Next or Close.
func (t *Stream) Next() (*Part, error) {
	if t.h == nil {
		return nil, t.err
	}
	h := t.h
	if h.detour != nil {
		h.detour.Heard()
		defer h.detour.Hush()
	}
	part := &t.part
	t.in.message = part
	err := t.rpc.RecvMsg(&t.in)
	t.in.message = nil
	t.h.sizes[1] = t.in.size
	switch {
	case errors.Is(err, io.EOF) && !t.begun:
		t.done(errNoPart)
		return nil, t.err
	case errors.Is(err, io.EOF):
		t.done(nil)
		if t.err == nil {
			t.err = io.EOF
		}
		return nil, t.err
	case err != nil:
		if t.done(err); t.again() {
			return t.Next()
		}
		return nil, t.err
	}
	t.begun = true
	t.h.arrived()
	t.first = t.h.first
	if err := Check(part.GetStatus(), part.GetIssues()); err != nil {
		t.drain()
		t.done(err)
		return nil, t.err
	}
	t.note(part)
	return part, nil
}

// errNoPart is the end of an answer that says nothing: not even that the statement succeeded.
var errNoPart = status.Error(codes.Unknown, "the answer has no part")

// drain reads the end of the answer after its last message, so that the trailers
// are known and the session is free on the node as well.
func (t *Stream) drain() {
	// A part that is not SUCCESS is the last; one more means a broken server.
	if err := t.rpc.RecvMsg(&measured{message: new(Ydb_Query.ExecuteQueryResponsePart)}); !errors.Is(err, io.EOF) {
		t.s.spoiled = true
	}
}

// note keeps what a part says about transaction and time.
func (t *Stream) note(part *Part) {
	t.h.rows += len(part.Rows)
	if stats := part.GetExecStats(); stats != nil {
		t.h.server = time.Duration(stats.GetTotalDurationUs()) * time.Microsecond
	}
	if !t.sent.controlled() || part.GetTxMeta() == nil {
		return
	}
	t.meta = true
	t.s.tx = part.GetTxMeta().GetId()
	if begin := t.sent.Begin; begin != nil {
		t.s.readOnly = readOnly(begin)
	}
}

// done ends the hop; t.err stays nil after success.
func (t *Stream) done(err error) {
	t.part.release()
	t.trailer = t.rpc.Trailer()
	t.s.trailer(t.trailer)
	h := t.h
	h.price(t.trailer)
	t.h, t.s.stream = nil, nil
	if e := t.s.end(h, err); e != nil {
		t.err = e
		return
	}
	switch {
	case t.meta: // it told what is open: EXPLAIN with a commit flag, say, commits nothing
	case t.sent.Commit:
		t.s.tx, t.s.spoiled = "", true // the answer to a commit has tx_meta
	case t.sent.Begin != nil && t.s.tx == "":
		t.s.spoiled = true // a transaction may be open whose id we do not know
	}
}

// Close ends a stream that was not read to its end: the call is cancelled. After the end it does nothing.
func (t *Stream) Close() {
	t.part.release()
	if t.h == nil {
		return
	}
	h := t.h
	t.h, t.err = nil, context.Canceled
	h.cut(context.Canceled)
	for {
		// The end must be seen, so that gRPC lets go of the stream and tells
		// whether it was sent.
		if err := t.rpc.RecvMsg(&measured{message: new(Ydb_Query.ExecuteQueryResponsePart)}); err != nil {
			break
		}
	}
	t.s.busy, t.s.stream = false, nil
	t.s.inDoubt(h, true)
	h.price(t.rpc.Trailer()) // the answer may have been at its end
	h.abandon()
}

// First is the time from sending to the first part; 0 if none came.
func (t *Stream) First() time.Duration { return t.first }

// Trailer is what the server sent after the last part; nil before.
func (t *Stream) Trailer() metadata.MD { return t.trailer }
