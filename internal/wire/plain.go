package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/http1"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Idle connections of HTTP/1.1 are parked with a shard, which serves the ordinary requests that come
// over them; see package http1. Those that need not wait are begun in the turn of the shard, as in
// turn.go; for the others there is a goroutine.

// Plain serves such requests.
type Plain struct {
	Handler http.Handler
	// Begin begins a request with its body, and does not wait; nil: it is none for that, and nothing
	// has happened. ctx is the context of the request, which ends when the answer is no longer waited
	// for. via is as for Begin. nil: none is begun so.
	Begin func(ctx *callctx.Context, r *http.Request, body []byte, via Via) InlineRequest
	// Idle is how long a connection is kept after a request until the next; 0: for ever.
	Idle time.Duration
}

// InlineRequest is a request that was begun so. One of Resume and Serve is called, once.
type InlineRequest interface {
	// Context ends when the node's answer is no longer waited for.
	Context() *callctx.Context
	// Here reports whether Resume does not wait, when all bytes of an answer of a node are here, and that has ended well.
	Here(answer []byte) bool
	// Resume does the rest. pieces are all that goes out, and stay as they are. last: the answer is to
	// say that the connection ends after it.
	Resume(last bool) (pieces [][]byte)
	// Serve does the rest, and may wait.
	Serve(w http.ResponseWriter)
}

// ParkedHandler handles what happens to a parked connection. Its methods must not block.
type ParkedHandler interface {
	// Context is that of its requests. It does not end.
	Context() context.Context
	// Serves reports whether a request that comes now is to be served here.
	Serves() bool
	// Ends reports whether an answer that goes out now is to be the last of the connection.
	Ends() bool
	// Busy says whether a request is under way from now on.
	Busy(bool)
	// Back gives the connection back, once, with what was read of it and not served. came is as for
	// driver.ParkedHandler, and set if something was read.
	Back(came bool, read []byte)
}

const (
	// A request that does not come whole within partTime, or in mostParts, or when a shard keeps
	// mostPartly of such requests, is for net/http.
	partTime   = time.Second
	mostParts  = 16
	mostPartly = 1 << 20

	// mostPlain is mostAnswer where the answer becomes JSON: each row repeats the names of its columns.
	mostPlain = 4 << 10
)

// Parked is a connection that is parked.
type Parked struct {
	frames  *frames
	conn    net.Conn
	handler ParkedHandler
	parked  *driver.Parked

	// Of the shard's turns, and after the connection was given back of whoever has it:
	read  []byte        // of a request that is not whole
	parts int           // in which it came
	head  *http.Request // its head, once that is here
	size  int           // of the head, in bytes
	post  bool          // the last request was a POST: an empty line may follow its body, as net/http has it
	now   *plainRequest // the request under way; nil: none
}

// Park parks a connection of HTTP/1.1 without TLS over which no request is under way, until then
// (zero: for ever). Nil: it cannot be parked, and no method of the guest is called.
func (s *Server) Park(conn net.Conn, until time.Time, guest ParkedHandler) *Parked {
	n := int(s.parked.Add(1))
	p := &Parked{frames: s.shards[n%len(s.shards)], conn: conn, handler: guest}
	p.parked = p.frames.shard.Prepare(conn, (*parkedEvents)(p))
	if !p.parked.Park(until) {
		return nil
	}
	return p
}

// Stop takes the connection back, with what was read, and Back is not called. False: Back is called, once a request under way is answered.
func (p *Parked) Stop() (read []byte, ok bool) {
	if !p.parked.Stop() {
		return nil, false
	}
	(*parkedEvents)(p).forget()
	return p.read, true
}

// Answering is how many requests of connections that are parked are under way.
func (s *Server) Answering() int { return int(s.answering.Load()) }

// parkedEvents is for driver.ParkedHandler.
type parkedEvents Parked

// forget has what is read count no more. It may be called outside of turns.
func (o *parkedEvents) forget() { o.frames.partly.Add(-int64(len(o.read))) }

// Came implements driver.ParkedHandler.
func (o *parkedEvents) Came(b []byte) driver.Next {
	old := len(o.read)
	if o.post && old == 0 {
		o.post = false
		if b = bytes.TrimPrefix(b, []byte("\r\n")); len(b) == 0 {
			return driver.Stays
		}
	}
	if old > 0 {
		o.forget()
		o.read = append(o.read, b...)
		b = o.read
	}
	state := http1.Other
	if o.handler.Serves() {
		var body []byte
		if body, state = o.request(b, old); state == http1.Whole {
			r := o.head
			o.read, o.parts, o.head = nil, 0, nil
			o.start(r, body)
			return driver.Busy
		}
	}
	if old == 0 {
		o.read = bytes.Clone(b)
	}
	kept := o.frames.partly.Add(int64(len(o.read)))
	if o.parts++; state == http1.Other || o.parts > mostParts || kept > mostPartly {
		return driver.Returns
	}
	if o.parts == 1 {
		o.parked.Sooner(time.Now().Add(partTime))
	}
	return driver.Stays
}

// request looks for a request in what is here, of which old bytes were before.
func (o *parkedEvents) request(b []byte, old int) (body []byte, state http1.State) {
	if o.head == nil {
		if o.head, o.size, state = http1.Head(b, old); state != http1.Whole {
			return nil, state
		}
	}
	return http1.Body(o.head, b[o.size:])
}

// Left implements driver.ParkedHandler.
func (o *parkedEvents) Left() {
	if o.now != nil {
		o.now.ctx.Cancel(nil)
	}
}

// Rests implements driver.ParkedHandler.
func (o *parkedEvents) Rests() driver.Next {
	o.over()
	o.handler.Busy(false)
	if !o.handler.Serves() {
		return driver.Returns
	}
	if idle := o.frames.server.deps.Plain.Idle; idle > 0 {
		o.parked.Until(time.Now().Add(idle))
	}
	return driver.Stays
}

// over says that the request under way has ended.
func (o *parkedEvents) over() {
	o.now = nil
	o.frames.server.answering.Add(-1)
}

// Back implements driver.ParkedHandler.
func (o *parkedEvents) Back(came bool) {
	if o.now != nil {
		o.now.ctx.Cancel(nil)
		o.over()
	}
	o.forget()
	o.handler.Back(came || len(o.read) > 0, o.read)
}

// plainRequest is a request under way.
type plainRequest struct {
	of  *Parked
	r   *http.Request
	ctx callctx.Context // of r

	inlineState
	does InlineRequest // it was begun in the turn; nil
}

// start begins with a request, in a turn.
func (o *parkedEvents) start(r *http.Request, body []byte) {
	s := o.frames.server
	v := &plainRequest{of: (*Parked)(o)}
	v.ctx.Values = o.handler.Context()
	v.r = r.WithContext(&v.ctx)
	o.now, o.post = v, r.Method == http.MethodPost
	s.answering.Add(1)
	o.handler.Busy(true)
	if begin := s.deps.Plain.Begin; begin != nil && v.begin(begin, body) {
		return
	}
	if len(body) > 0 {
		v.r.Body = io.NopCloser(bytes.NewReader(bytes.Clone(body)))
	}
	s.plainCalls.Add(1)
	s.unary.Do(v)
}

// begin begins the request in the turn; false: it is none for that.
func (v *plainRequest) begin(begin func(*callctx.Context, *http.Request, []byte, Via) InlineRequest, body []byte) bool {
	f := v.of.frames
	v.frames, v.rest = f, v
	v.stream.Most, v.stream.Ready = mostPlain, v.ready
	v.does = begin(&v.ctx, v.r, body, v)
	if v.does == nil {
		return false
	}
	f.server.plainCalls.Add(1)
	v.does.Context().Watch(func() {
		if v.stream.Stop() {
			f.server.unary.Do(v)
		}
	})
	v.wait()
	return true
}

// ready goes on with a request that was begun in a turn.
func (v *plainRequest) ready(over bool) {
	here := false
	if over {
		here = panics.Call("an answer to the plain API", func() error {
			if answer, ok := v.stream.Answer(); !ok || len(answer) > mostPlain || !v.does.Here(answer) {
				return errWaits
			}
			return nil
		}) == nil
	}
	if !here {
		v.toGoroutine()
		return
	}
	defer v.of.frames.server.plainCalls.Done()
	v.does.Context().Unwatch()
	last := v.of.handler.Ends()
	var pieces [][]byte
	v.frames.inTurn.Store(true) // see ahead.ready
	err := panics.Call("a request of the plain API", func() error { pieces = v.does.Resume(last); return nil })
	v.ctx.Cancel(nil)
	v.of.parked.AnswerNow(pieces, last || err != nil)
}

var errWaits = errors.New("wire: the rest of a request has to wait for something")

// toGoroutine has a goroutine do the rest of a request that was begun in a turn.
func (v *plainRequest) toGoroutine() {
	v.does.Context().Unwatch()
	v.of.frames.server.unary.Do(v)
}

// Serve implements unary.Job.
func (v *plainRequest) Serve() {
	s := v.of.frames.server
	defer s.plainCalls.Done()
	w := http1.NewWriter(v.of.conn)
	w.Last, w.Close = v.of.parked.Sending, v.of.handler.Ends
	last := true
	func() {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				_ = panics.Caught("a request of HTTP/1.1", p)
			}
		}()
		if v.does != nil {
			v.does.Serve(w)
		} else {
			s.deps.Plain.Handler.ServeHTTP(w, v.r)
		}
		last = w.End()
	}()
	v.ctx.Cancel(nil)
	v.of.parked.Answered(last)
}
