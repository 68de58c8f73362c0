package grpcapi

import (
	"context"
	"net"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// InlineCall is a call over gRPC that begins in the turn in which its request arrives.
type InlineCall struct {
	core.InlineCall
	api    *API
	values int // values of the parameters of a request that was read without a message
}

// answering is the job of a call of gRPC.
type answering interface {
	core.Job
	// read reads the request. m is its message; nil: it was read without one. False: its call cannot be inline.
	read(t *InlineCall, request []byte) (m proto.Message, ok bool)
	// rest makes the first call, or waits for its answer, and what follows. It appends the encoded answer.
	rest(t *InlineCall, b []byte) ([]byte, error)
}

// jobs are the methods of gRPC whose calls may be inline, by path.
var jobs = map[string]struct {
	name string
	make func(a *API) answering
}{
	sidecarv1.Sidecar_Execute_FullMethodName:   {"Execute", func(a *API) answering { return &executing{api: a} }},
	sidecarv1.Sidecar_Begin_FullMethodName:     {"Begin", func(*API) answering { return new(beginning) }},
	sidecarv1.Sidecar_Commit_FullMethodName:    {"Commit", newCommitting},
	sidecarv1.Sidecar_Rollback_FullMethodName:  {"Rollback", newRollingBack},
	sidecarv1.KeyValue_Get_FullMethodName:      {core.CallKVGet, func(a *API) answering { return &kvGetting{api: a} }},
	sidecarv1.KeyValue_BatchGet_FullMethodName: {core.CallKVBatchGet, func(a *API) answering { return &kvBatchGetting{api: a} }},
	sidecarv1.KeyValue_Put_FullMethodName:      {core.CallKVPut, func(a *API) answering { return &kvPutting{api: a} }},
	sidecarv1.KeyValue_Delete_FullMethodName:   {core.CallKVDelete, func(a *API) answering { return &kvDeleting{api: a} }},
}

// Caller is what an inline call needs to know of its caller.
type Caller struct {
	// Headers calls each with every header except those of gRPC itself; they are valid until the call has begun. False: there
	// are some that only a server of gRPC can answer.
	Headers    func(each func(name, value []byte)) bool
	Connection uint64 // a number that no other one of this process has
	User       uint32 // user that its program runs as, if Local
	Local      bool   // it came over a Unix socket of this machine
	Remote     net.Addr

	Certificate *apps.Certificate // of its client, verified; nil: none
}

// Begin begins a call, and does not wait. ctx ends with the call, or when its caller no longer waits
// for the answer. via carries the first call to a node. Nil: the call cannot be begun in a turn, and
// nothing has happened. Otherwise Resume must be called.
type Begin func(ctx *callctx.Context, caller Caller, request []byte, via upstream.Via) *InlineCall

// InlineCalls calls each with the path of every method whose calls may be inline, and what begins one.
func (a *API) InlineCalls(each func(path string, begin Begin)) {
	if a.core.Client == nil {
		return
	}
	for path, kind := range jobs {
		if a.core.Deprecated.Within(requestOf(path)) {
			continue // fields that are read by hand are not noted
		}
		each(path, func(ctx *callctx.Context, caller Caller, request []byte, via upstream.Via) *InlineCall {
			if a.core.Deps.Memory.Tight() {
				return nil
			}
			j := kind.make(a)
			t := &InlineCall{InlineCall: core.InlineCall{Core: a.core, Job: j}, api: a}
			t.Call.Name, t.Call.From, t.Call.Begun = kind.name, caller.Connection, ctx
			m, ok := j.read(t, request)
			if !ok {
				return nil
			}
			in, headers, ok := greet(ctx, &t.Call, caller)
			if !ok {
				return nil
			}
			t.Begin(in, via, func() error {
				if m == nil {
					return a.weighRead(&t.Call, headers, len(request), nil, func() int { return t.values })
				}
				return a.weigh(&t.Call, headers, len(request), nil, m)
			})
			return t
		})
	}
}

// requestOf is the request of a method of ours, by its path.
func requestOf(path string) protoreflect.MessageDescriptor {
	name := strings.ReplaceAll(path[1:], "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		panic(err) // the paths are those of generated code
	}
	return d.(protoreflect.MethodDescriptor).Input()
}

// greet notes what the headers of a call say, and returns their size.
func greet(in context.Context, c *core.Call, caller Caller) (_ context.Context, size int, ok bool) {
	var h heard
	if !caller.Headers(h.header) || h.repeated() {
		return in, 0, false
	}
	// The other process does not call over the data path.
	c.Caller, c.Priority = core.CallerBy(h.app, h.application, h.tokens), core.PriorityOfHeaders(h.ydbPriority, h.priority)
	c.Caller.User, c.Caller.Local, c.Caller.Remote = caller.User, caller.Local, caller.Remote
	c.Caller.Certificate = caller.Certificate
	if h.trace != nil {
		in = core.Extract(in, h.trace)
	}
	return in, h.size, true
}

// heard is what the headers of a call say.
type heard struct {
	app, application      string
	ydbPriority, priority string
	apps, priorities      int // headers that may be there once: those of app, and of ydbPriority
	tokens                []string
	trace                 propagation.MapCarrier // nil: they name none
	size                  int
}

// repeated reports whether one of core.OnceHeaders came again. Its call does not begin in a turn: the usual way rejects it.
func (h *heard) repeated() bool { return h.apps > 1 || h.priorities > 1 }

// header notes a header.
func (h *heard) header(name, value []byte) {
	h.size += len(name) + len(value)
	switch string(name) {
	case "x-sidecar-app":
		set(&h.app, value)
		h.apps++
	case "x-ydb-application-name":
		set(&h.application, value)
	case "authorization":
		h.tokens = append(h.tokens, string(value))
	case "x-ydb-priority":
		set(&h.ydbPriority, value)
		h.priorities++
	case "priority":
		set(&h.priority, value)
	case "traceparent", "tracestate":
		if h.trace == nil {
			h.trace = propagation.MapCarrier{}
		}
		if h.trace[string(name)] == "" {
			h.trace[string(name)] = string(value)
		}
	}
}

// set keeps the first value of a header.
func set(s *string, value []byte) {
	if *s == "" {
		*s = string(value)
	}
}

// Resume ends the call, and appends the encoded answer. The trailer alternates names and values.
func (t *InlineCall) Resume(b []byte) (answer []byte, trailer []string, err error) {
	c := &t.Call
	fault := t.Finish(func() (err error) {
		if answer, err = t.Job.(answering).rest(t, b); err == nil && c.App.Metered() {
			c.Count(len(answer) - len(b))
		}
		return err
	})
	trailer = t.api.trailer(c, fault)
	if fault != nil {
		return nil, trailer, StatusOf(fault, c.TraceID)
	}
	return answer, trailer, nil
}

// readMessage reads a request as a message.
func readMessage(request []byte, m proto.Message) (proto.Message, bool) {
	return m, proto.Unmarshal(request, m) == nil
}

// encode appends an answer that is a message, if there was no error.
func encode(b []byte, m proto.Message, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	if b, err = (proto.MarshalOptions{}).MarshalAppend(b, m); err != nil {
		return nil, core.Faultf(core.CodeInternal, "the answer cannot be encoded: %v", err)
	}
	return b, nil
}

// executing is one over gRPC.
type executing struct {
	core.Executing
	api  *API
	req  readRequest
	rows protoSink
}

func (j *executing) read(t *InlineCall, request []byte) (m proto.Message, ok bool) {
	j.Out, j.req.values.depth = &j.rows, t.Core.Cfg.API.MaxDepth
	if j.req.read(request) {
		j.In, t.values = j.req.ExecuteRequest, j.req.values.count()
	} else {
		whole := new(sidecarv1.ExecuteRequest)
		if m, ok = readMessage(request, whole); !ok {
			return nil, false
		}
		j.In = core.ExecuteOf(whole, j.api.params())
	}
	return m, j.In.Tx == nil || t.Core.Other.Owner(j.In.Tx.ID) == nil
}

func (j *executing) rest(t *InlineCall, b []byte) ([]byte, error) {
	done, err := j.Run(&t.InlineCall)
	if err != nil {
		return nil, err
	}
	return j.rows.appendResponse(b, &t.Call, done)
}

// beginning is a call of Begin over gRPC.
type beginning struct{ core.Beginning }

func (j *beginning) read(_ *InlineCall, request []byte) (proto.Message, bool) {
	if readTexts(request, &j.In.Mode, &j.In.Timeout, &j.In.Priority) {
		return nil, true
	}
	req := new(sidecarv1.BeginRequest)
	err := proto.Unmarshal(request, req)
	j.In = core.BeginOf(req)
	return req, err == nil
}

func (j *beginning) rest(t *InlineCall, b []byte) ([]byte, error) {
	res, err := j.Run(&t.InlineCall)
	if err != nil {
		return nil, err
	}
	const tx, info = 1, 2 // of BeginResponse
	b = messageField(b, tx, func(b []byte) []byte { return appendTx(b, res.Tx) })
	return messageField(b, info, func(b []byte) []byte { return appendInfo(b, res.Info) }), nil
}

// endRequest is a request of Commit, or of Rollback.
type endRequest[T any] interface {
	*T
	proto.Message
	GetId() string
	GetTimeout() string
}

// ending is a call of Commit, or of Rollback, over gRPC.
type ending[T any, R endRequest[T]] struct{ core.Ending }

func (j *ending[T, R]) read(t *InlineCall, request []byte) (m proto.Message, ok bool) {
	if !readTexts(request, &j.ID, &j.Timeout) {
		req := R(new(T))
		if proto.Unmarshal(request, req) != nil {
			return nil, false
		}
		m, j.ID, j.Timeout = req, req.GetId(), req.GetTimeout()
	}
	return m, t.Core.Other.Owner(j.ID) == nil
}

func (j *ending[T, R]) rest(t *InlineCall, b []byte) ([]byte, error) {
	if err := j.Run(&t.InlineCall); err != nil {
		return nil, err
	}
	return appendInfoAlone(b, t.Call.Info), nil
}

func newCommitting(*API) answering {
	return new(ending[sidecarv1.CommitRequest, *sidecarv1.CommitRequest])
}

func newRollingBack(*API) answering {
	return &ending[sidecarv1.RollbackRequest, *sidecarv1.RollbackRequest]{Ending: core.Ending{Back: true}}
}
