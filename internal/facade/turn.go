package facade

import (
	"context"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/upstream"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Turn is a call of Execute that needs no goroutine while its statement is with the node: Service.Turn sends the statement, and Resume does
// the rest once the answer is here, or whatever else has become of it. Both run what Execute runs.
type Turn struct {
	s      *Service
	c      call
	ctx    context.Context
	cancel context.CancelFunc
	req    sidecarv1.ExecuteRequest
	in     executeRequest
	st     *statement
	m      *mode
	call   upstream.Call
	own    *room
	rows   protoSink
	err    error // of the beginning; nil: the statement is to run
}

// Caller is what Turn wants to know of a call.
type Caller struct {
	Headers    func(each func(name, value []byte)) bool // but for gRPC's own; valid until Turn returns. False: there are some of which only a server of gRPC knows what to say
	Connection uint64                                   // a number that no other one of this process has
	User       uint32                                   // that its program runs as, if Local
	Local      bool                                     // it came over a Unix socket of this machine
}

// ExecutePath is the path of the calls that Turn begins.
var ExecutePath = methodPath("Execute")

// Turn begins a call of Execute, and does not wait. via carries the statement, if it can be sent at once. Nil: the call is none for here, and
// nothing has happened. Otherwise Resume must be called.
func (s *Service) Turn(ctx context.Context, caller Caller, request []byte, via upstream.Via) *Turn {
	d, ok := s.deps.Driver.(driver)
	if !ok || s.deps.Memory.Tight() {
		return nil
	}
	t := &Turn{s: s}
	if proto.Unmarshal(request, &t.req) != nil || t.req.Tx != nil {
		return nil
	}
	t.c.name, t.c.from = "Execute", caller.Connection
	ctx, headers, ok := t.greet(ctx, caller)
	if !ok {
		return nil
	}
	if t.ctx, t.err = s.enter(ctx, &t.c); t.err == nil {
		t.err = t.c.run(func() error { return t.begin(headers, len(request)) })
	}
	if t.err == nil {
		whole := false
		defer func() {
			if !whole { // a panic, which is for whoever's turn this is
				s.end(t.ctx, &t.c, errUntold)
				t.cancel()
			}
		}()
		t.call.Ahead = d.client.Ahead(t.ctx, &t.call, via, t.request)
		whole = true
	}
	return t
}

// greet reads the headers, of which it returns the size.
func (t *Turn) greet(in context.Context, caller Caller) (_ context.Context, size int, ok bool) {
	c := &t.c
	app, application, priority := "", "", ""
	var trace propagation.MapCarrier
	var tokens []string
	ok = caller.Headers(func(name, value []byte) {
		size += len(name) + len(value)
		switch string(name) {
		case "x-sidecar-app":
			set(&app, value)
		case "x-ydb-application-name":
			set(&application, value)
		case "authorization":
			tokens = append(tokens, string(value))
		case "x-ydb-priority":
			set(&c.priority, value)
		case "priority":
			set(&priority, value)
		case "traceparent", "tracestate":
			if trace == nil {
				trace = propagation.MapCarrier{}
			}
			if trace[string(name)] == "" {
				trace[string(name)] = string(value)
			}
		}
	})
	// No peer calls over the data path.
	c.claim, c.priority = claimBy(app, application, tokens), priorityOfHeaders(c.priority, priority)
	c.claim.User, c.claim.Local = caller.User, caller.Local
	if trace != nil {
		in = extract(in, trace)
	}
	return in, size, ok
}

// set keeps the first value of a header.
func set(s *string, value []byte) {
	if *s == "" {
		*s = string(value)
	}
}

// begin is all of Execute but the statement itself.
func (t *Turn) begin(headers, size int) error {
	s, c := t.s, &t.c
	if err := s.weigh(c, headers, size, nil, &t.req); err != nil {
		return err
	}
	t.in = s.executeOf(&t.req)
	var err error
	if t.st, t.m, err = s.compose(t.ctx, c, t.in); err != nil {
		return err
	}
	ctx, cancel, call, err := s.begin(t.ctx, c, t.in.timeout, t.in.priority)
	if err != nil {
		return err
	}
	t.ctx, t.cancel, t.call = ctx, cancel, call
	t.call.Idempotent = t.in.idempotent
	if err := s.fresh(c); err != nil {
		return err
	}
	t.own = t.in.room(s, c)
	s.classify(&t.call, t.st)
	return nil
}

func (t *Turn) request() *Ydb_Query.ExecuteQueryRequest {
	return t.st.request(t.m.single(), t.own)
}

// Context ends when the call does, or is to.
func (t *Turn) Context() context.Context { return t.ctx }

// Here reports whether Resume does not wait, given the messages of an answer with their prefixes, which has ended well. Then
// Resume is to be called at once.
func (t *Turn) Here(answer []byte) bool {
	if t.err != nil || t.call.Ahead == nil || !t.call.Ahead.Here(answer) {
		return false
	}
	t.own.here = true
	return true
}

// Resume ends the call.
func (t *Turn) Resume() (proto.Message, metadata.MD, error) {
	s, c := t.s, &t.c
	var res *sidecarv1.ExecuteResponse
	err := t.err
	if err == nil {
		err = c.run(func() error {
			done, err := s.executeAlone(t.ctx, c, t.call, t.in.spec, t.st, t.m, t.own, &t.rows)
			if err != nil {
				return err
			}
			if res = t.rows.response(c, done); c.app.Metered() {
				c.count(proto.Size(res))
			}
			return nil
		})
	}
	fault := s.end(t.ctx, c, err)
	if t.cancel != nil {
		t.cancel()
	}
	var trailer metadata.MD
	if timing := serverTiming(c.info); timing != "" {
		trailer = metadata.MD{keyServerTiming: {timing}}
	}
	if fault != nil {
		return nil, trailer, fault.status(c.traceID)
	}
	return res, trailer, nil
}
