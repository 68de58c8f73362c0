package wire

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/history"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// Fallback carries calls by grpc-go, message by message, without decoding them. It
// costs several times what frames cost, and is what data_path.driver=grpc names.
type Fallback struct {
	deps        Deps
	config      Config
	instruments *instruments
	meter       *history.Meter  // nil: none
	services    map[string]bool // of the server it is joined with

	mu     sync.Mutex // guards series
	series series

	open     atomic.Int64    // calls, without those that keep a session attached
	attached context.Context // of those
	detach   context.CancelFunc
	released sync.Once
}

// NewFallback returns the fallback; Options and Register join it with a server.
func NewFallback(config Config, deps Deps) (*Fallback, error) {
	var err error
	if deps.Apps == nil {
		deps.Apps, err = apps.New(apps.Default(), nil)
	}
	f := &Fallback{deps: deps, config: config, instruments: newInstruments(&deps), series: series{}, meter: meterOf(deps.History)}
	f.attached, f.detach = context.WithCancel(context.Background())
	return f, err
}

// Release lets the server stop while clients keep sessions attached: those end once
// no other call is open. Clients hear first that they should go, for which there is quiet.
func (f *Fallback) Release() { f.released.Do(func() { time.AfterFunc(quiet, f.endSessions) }) }

// quiet is how often it is looked whether a call is open.
const quiet = 200 * time.Millisecond

func (f *Fallback) endSessions() {
	if f.open.Load() > 0 {
		time.AfterFunc(quiet, f.endSessions)
		return
	}
	f.detach()
}

// Options are what a server needs to carry calls of services that it does not have.
func (f *Fallback) Options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnknownServiceHandler(f.handle), grpc.ForceServerCodecV2(passing)}
}

// Register adds ListEndpoints to the server, which must have all its services.
func (f *Fallback) Register(server *grpc.Server) {
	f.services = servicesOf(server)
	(&endpoints{advertise: f.config.Advertise, secure: f.deps.TLS != nil, databases: servedBy(f.config, f.deps)}).register(server)
}

// message is one message as it came.
type message struct{ data mem.BufferSlice }

func (m *message) free() {
	if m != nil {
		m.data.Free()
	}
}

// codec passes messages of forwarded calls and encodes all others.
type codec struct{ encoding.CodecV2 }

var passing = codec{encoding.GetCodecV2(encodingproto.Name)}

// Marshal gives the message's reference away.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*message); ok {
		return m.data, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	data.Ref()
	m.data = data
	return nil
}

func (f *Fallback) handle(_ any, in grpc.ServerStream) error {
	path, _ := grpc.MethodFromServerStream(in)
	m := methods[path]
	if m == nil && f.services[serviceOf(path)] {
		return status.Errorf(codes.Unimplemented, "unknown method %s", path)
	}
	bytes := 0
	var first *message // looked at here: a client may wait for an answer's headers before it sends any
	owner := cluster.NodeID(0)
	c := &carried{in: in, method: m, began: time.Now()}
	if m != attachSession { // which is no load
		app, err := f.enter(in.Context(), m)
		c.app = app
		if app != nil {
			defer func() { app.Leave(bytes) }()
		}
		if err != nil {
			return f.refuse(c, refusalOf(err, 0))
		}
	}
	if m != nil && m.session != nil {
		first = new(message)
		if err := in.RecvMsg(first); errors.Is(err, io.EOF) {
			first = nil
		} else if err != nil {
			return err
		} else {
			head := first.data.MaterializeToBuffer(mem.DefaultBufferPool())
			session, _ := sessionOf(head.ReadOnlyData(), true, m.session)
			owner = ownerOf(session)
			head.Free()
		}
	}
	c.began = time.Now()
	node, err := place(f.deps.counts(m), owner, false)
	if err != nil {
		first.free()
		return f.refuse(c, refusalOf(err, owner))
	}
	if m == attachSession {
		c.attached = f.attached
	} else {
		f.open.Add(1)
		defer f.open.Add(-1)
	}
	c.run(f, node, path, first)
	bytes = int(c.request.Load()) + c.answer
	f.tell(c, node)
	switch {
	case c.attached != nil && (c.attached.Err() != nil || c.lost && c.answer > 0):
		return nil // the session is over, which ends the call well
	case c.unsent != nil:
		return refusalOf(c.unsent, owner).send(in, m)
	case c.lost && m != nil && m.lost.Body != nil && (c.answer == 0 || m.lost.Stream):
		return in.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(m.lost.Body)}})
	}
	return c.err
}

// enter counts a call as one of its app, which is returned if that has to be undone.
func (f *Fallback) enter(ctx context.Context, m *Method) (*apps.Stripe, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	first := func(name string) string {
		if v := md.Get(name); len(v) > 0 {
			return v[0]
		}
		return ""
	}
	for {
		app, err := f.deps.Apps.Of(apps.Claim{Name: first("x-ydb-application-name"), Token: apps.Bearer(first("authorization"))})
		if err != nil {
			return nil, err
		}
		count := app.Stripe(0)
		if !count.Enter() { // its place went to another name
			continue
		}
		if m != nil && m.depends() {
			return count, nil
		}
		return count, count.Admit(uint8(class))
	}
}

// send answers a call with the refusal.
func (r refusal) send(in grpc.ServerStream, m *Method) error {
	if body := r.body(m); body != nil {
		return in.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(body)}})
	}
	return status.Error(r.code, r.text)
}

// carried is one call.
type carried struct {
	in     grpc.ServerStream
	method *Method
	traced traced
	app    *apps.Stripe // nil: nobody's

	attached context.Context // when it ends, so does the call; nil: it keeps no session attached

	began, first time.Time // of the answer
	status       Ydb.StatusIds_StatusCode
	request      atomic.Int64 // octets
	answer       int
	err          error
	unsent       error // why it was not sent
	lost         bool  // the node was, in mid call
}

// both directions stream: grpc-go does not mind.
var anyStream = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

func (c *carried) run(f *Fallback, node cluster.NodeID, path string, first *message) {
	ctx, cancel := context.WithCancel(f.outgoing(c))
	defer cancel()
	if c.attached != nil {
		defer context.AfterFunc(c.attached, cancel)()
	}
	out, end, err := f.deps.Nodes.Stream(ctx, node, anyStream, path, grpc.ForceCodecV2(passing))
	if err != nil {
		first.free()
		if c.err = err; c.in.Context().Err() == nil {
			c.unsent = err
		}
		return
	}
	defer end()
	go c.send(out, first) // ends with the client's stream, which ends with the handler
	c.receive(out)
}

// outgoing is the context of the call to the node, with the caller's metadata but
// what belongs to the hop.
func (f *Fallback) outgoing(c *carried) context.Context {
	ctx := c.in.Context()
	md, _ := metadata.FromIncomingContext(ctx)
	md = md.Copy()
	for name := range md {
		if name == "authorization" && f.deps.Apps.HasTokens() || strings.HasPrefix(name, ":") || strings.HasPrefix(name, "grpc-") || name == "content-type" || name == "user-agent" || name == "te" {
			delete(md, name)
		}
	}
	if tracer := f.instruments.tracer; tracer != nil {
		var parent []byte
		if named := md.Get(traceparent); len(named) > 0 {
			parent = []byte(named[0])
		}
		if c.traced.begin(tracer, parent); c.traced.parent != "" {
			md.Set(traceparent, c.traced.parent)
		}
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// send passes the request on: m, if that is not nil, and what follows.
func (c *carried) send(out grpc.ClientStream, m *message) {
	for {
		if m == nil {
			m = new(message)
			if err := c.in.RecvMsg(m); errors.Is(err, io.EOF) {
				_ = out.CloseSend() // it always returns nil
				return
			} else if err != nil {
				return // the client is gone, which ends the context
			}
		}
		c.request.Add(int64(m.data.Len()))
		if out.SendMsg(m) != nil {
			return // receive learns why
		}
		m = nil
	}
}

// receive passes the answer back.
func (c *carried) receive(out grpc.ClientStream) {
	md, err := out.Header()
	if err == nil && md != nil { // else there are only trailers
		_ = c.in.SendHeader(md) // it fails when the client is gone
	}
	for {
		m := new(message)
		err := out.RecvMsg(m)
		if c.first.IsZero() {
			c.first = time.Now()
		}
		if err != nil {
			trailer := out.Trailer()
			c.in.SetTrailer(trailer)
			// A node that says so itself does it in trailers, which have a content type if they are
			// all; and calls on a connection that is silent are cancelled here.
			code := status.Code(err)
			c.lost = (code == codes.Unavailable || code == codes.Canceled && c.in.Context().Err() == nil) && len(trailer) == 0
			if !errors.Is(err, io.EOF) {
				c.err = err
			}
			if cause := context.Cause(out.Context()); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
				c.err = status.Error(codes.Unavailable, "the connection to the node was lost; the call may have been executed: "+cause.Error())
			}
			return
		}
		if c.answer == 0 && c.method != nil {
			c.status = c.method.statusIn(m.data)
		}
		c.answer += m.data.Len()
		if c.err = c.in.SendMsg(m); c.err != nil {
			return
		}
	}
}

// statusIn is status for a message without its prefix.
func (m *Method) statusIn(data mem.BufferSlice) Ydb.StatusIds_StatusCode {
	if len(data) == 0 {
		return 0
	}
	head := data[0].ReadOnlyData()
	return m.statusOf(head[:min(len(head), 64)])
}

// tell says what came of a call.
func (f *Fallback) tell(c *carried, node cluster.NodeID) {
	gone := c.in.Context().Err() != nil || c.attached != nil && c.attached.Err() != nil
	s := ydbstatus.Signs{Status: c.status, Code: status.Code(c.err), CallerGone: gone}
	byCode(&s)
	o, _ := judged(node, c.method, s)
	took, first := time.Since(c.began), time.Duration(0)
	if !c.first.IsZero() && c.answer > 0 {
		first = c.first.Sub(c.began)
	}
	o.Latency = first
	if s.CallerGone && first == 0 {
		o.Waited = took
	}
	f.deps.counts(c.method).Leave(o)
	f.deps.Judge.Report(o)
	key := seriesKey{node, c.method, s.Status, s.Code}
	logCall(f.deps.Access, passed{key: key, app: c.app, trace: traceOf(c.in.Context()), took: took, first: first, request: int(c.request.Load()), answer: c.answer})
	f.mu.Lock()
	f.series.add(f.instruments, key, took, 0)
	f.mu.Unlock()
	kept, id := c.traced.keep(f.instruments.tracer, &key, s.CallerGone, took)
	if kept {
		c.traced.spans(f.instruments.tracer, &passage{
			seriesKey: key, left: s.CallerGone, took: took, first: first, forwarded: c.unsent == nil, request: int(c.request.Load()), answer: c.answer,
		})
	}
	remember(f.meter, key, nil, id, took, 0)
}
