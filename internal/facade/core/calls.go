package core

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// ErrEnded is the cause of the end of a call that an operator ended. It is an ErrCut: what that does to reading and
// sending it does, too.
var ErrEnded = fmt.Errorf("facade: ended by an operator: %w", ErrCut)

// shown is what operators see of an open call. The call writes it, and whoever lists calls reads it meanwhile.
type shown struct {
	app   atomic.Pointer[apps.Stripe]
	sql   atomic.Pointer[string]
	mode  atomic.Pointer[mode] // nil: it is not a transaction by itself, its statements differ, or that is not known yet
	class atomic.Uint32
	way   upstream.Progress
}

// states notes the statement of a call, or the first of more.
func (c *Call) states(sql string) {
	c.SQL = sql
	c.shown.sql.CompareAndSwap(nil, &c.SQL)
}

// RunsIn notes the mode of a call that is a transaction by itself, or of all transactions of a call.
func (c *Call) RunsIn(m *mode) { c.shown.mode.Store(m) }

// modeName is the name of the mode of a call that is a transaction by itself; "" of any other.
func (c *Call) modeName() string {
	if m := c.shown.mode.Load(); m != nil {
		return m.name
	}
	return ""
}

// Progress is where the requests of a call note how far they have come.
func (c *Call) Progress() *upstream.Progress { return &c.shown.way }

// traceOf is the id of the trace with which errors and spans of a call come; zero: there is none.
func (c *Call) traceOf() trace.TraceID {
	if span := c.trace.Span(); span.IsValid() {
		return span.TraceID()
	}
	return c.leadsTo
}

// describe describes a call that is in the gate.
func (v *admittedCall) describe(now time.Time, hold *hop.Hold) hop.OpenCall {
	c := v.of
	phase, attempt, node := c.shown.way.Get()
	out := hop.OpenCall{
		ID: v.id(), API: "grpc", Name: c.Name, Class: pool.Class(c.shown.class.Load()).String(),
		Phase: hold.Seen(phase).String(), Mode: c.modeName(),
		Age: now.Sub(c.began).Milliseconds(), Node: node, Attempt: attempt,
	}
	if c.Route != nil {
		out.API = "http"
	}
	if app := c.shown.app.Load(); app != nil {
		out.App = app.Name()
	}
	if sql := c.shown.sql.Load(); sql != nil {
		out.Digest = statements.Digest(*sql).String()
	}
	if id := v.trace; id.IsValid() {
		out.Trace = id.String()
	}
	if c.From != 0 {
		out.From = "connection " + strconv.FormatUint(c.From, 10)
	}
	return out
}

// id names the call.
func (v *admittedCall) id() string { return "p" + strconv.FormatUint(v.number, 10) }

// Calls lists the open calls of an app (empty: of all) that have lasted for least, the oldest first, at most most of them.
// more is how many others there are.
func (s *Service) Calls(app string, least time.Duration, most int) (list []hop.OpenCall, more int) {
	now := time.Now()
	var found []*admittedCall
	s.gate.each(func(v *admittedCall) bool {
		c := v.of
		if now.Sub(c.began) < least {
			return false // further ones came later
		}
		if app != "" {
			if of := c.shown.app.Load(); of == nil || of.Name() != app {
				return true
			}
		}
		if len(found) < most {
			found = append(found, v)
		} else {
			more++
		}
		return true
	})
	for _, v := range found {
		list = append(list, v.describe(now, s.Deps.Hold))
	}
	return list, more
}

// EndCalls ends the open calls of that id, or of the trace of that id, and returns what they were.
func (s *Service) EndCalls(id string) (ended []hop.OpenCall) {
	now := time.Now()
	var found []*admittedCall
	s.gate.each(func(v *admittedCall) bool {
		if v.id() == id || v.trace.IsValid() && v.trace.String() == id {
			found = append(found, v)
			v.cut(ErrEnded)
		}
		return true
	})
	for _, v := range found {
		ended = append(ended, v.describe(now, s.Deps.Hold))
	}
	return ended
}
