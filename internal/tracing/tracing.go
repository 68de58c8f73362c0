// Package tracing decides which calls become spans, and makes the spans of a call
// when it has ended, from what was noted of it on its way.
//
// A call is recorded because the caller's trace is, or a sampler picked it when it
// began; or, by the rules of the tail, because it failed or was slow. What always
// holds: a call that is not recorded costs no allocation and no span; the ids that a
// recorded call sends on to a node are those of the spans that are made in the end;
// what the rules of the tail keep is bounded per second, and when spans cannot be
// sent away none are made.
package tracing

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Config is the section "tracing" of the configuration.
type Config struct {
	// Share of calls without a trace of their caller that are recorded, 0 to 1. OTEL_TRACES_SAMPLER takes
	// its place if it is set
	Ratio  float64 `yaml:"ratio"`
	Errors bool    `yaml:"errors"` // Record failed calls, whatever the sampling decided
	// Time from which a call is recorded as slow, whatever the sampling decided. 0: never
	Slow time.Duration `yaml:"slow"`
	// Largest number of calls per second that are recorded because they failed or were slow. 0: no limit
	Tail int `yaml:"tail"`
}

// Default returns the defaults.
func Default() Config {
	return Config{Ratio: 1, Errors: true, Slow: time.Second, Tail: 100}
}

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var errs []error
	if !(c.Ratio >= 0 && c.Ratio <= 1) {
		errs = append(errs, fault{"ratio", fmt.Sprintf(" = %v; must be from 0 to 1", c.Ratio)})
	}
	if c.Slow < 0 {
		errs = append(errs, fault{"slow", fmt.Sprintf(" = %v; must be >= 0", c.Slow)})
	}
	if c.Tail < 0 {
		errs = append(errs, fault{"tail", fmt.Sprintf(" = %d; must be >= 0", c.Tail)})
	}
	return errors.Join(errs...)
}

// fault is what is wrong with a setting: a config.Fault without that package.
type fault struct{ setting, what string }

// Error implements error.
func (f fault) Error() string { return f.setting + f.what }

// OfSetting returns the setting's name within its section.
func (f fault) OfSetting() string { return f.setting }

// Room says whether spans can be sent away; when it says no, it counts what is not made.
type Room func() bool

// Tracer makes spans. It is safe for concurrent use; nil makes none.
type Tracer struct {
	spans   trace.Tracer
	room    Room
	rules   atomic.Pointer[rules]
	second  atomic.Uint64 // the second since 1970 <<32 | calls kept by the tail in it
	limited atomic.Uint64
}

type rules struct {
	Config
	head Sampler
}

// New returns a tracer over a provider that takes its ids from Generator and
// records every span that Forced reports.
func New(tp trace.TracerProvider, room Room, c Config, head Sampler) *Tracer {
	t := &Tracer{spans: tp.Tracer("github.com/ydb-sidecar/sidecar"), room: room}
	t.Set(c, head)
	return t
}

// Config is what the rules are of.
func (t *Tracer) Config() Config { return t.rules.Load().Config }

// Set changes the rules for calls that begin from now on.
func (t *Tracer) Set(c Config, head Sampler) { t.rules.Store(&rules{c, head}) }

// Limited is how many calls were not recorded because of Config.Tail.
func (t *Tracer) Limited() uint64 { return t.limited.Load() }

// Call is what is known of the span of a call from its beginning. The zero Call
// is one that nobody traces.
type Call struct {
	own    trace.SpanContext
	parent trace.SpanContext
}

// Begin decides about a call of a caller whose span is parent, if that is valid.
func (t *Tracer) Begin(parent trace.SpanContext) (c Call) {
	if t == nil {
		return c
	}
	own := trace.SpanContextConfig{TraceID: parent.TraceID(), SpanID: NewSpanID(), TraceState: parent.TraceState()}
	if parent.IsValid() {
		c.parent = parent
	} else {
		own.TraceID = newTraceID()
	}
	if t.Picks(parent, own.TraceID) {
		own.TraceFlags = trace.FlagsSampled
	}
	c.own = trace.NewSpanContext(own)
	return c
}

// Picks reports whether a call of that trace is recorded whatever comes of it.
func (t *Tracer) Picks(parent trace.SpanContext, id trace.TraceID) bool {
	return t.rules.Load().head.Sample(parent, id) && t.room()
}

// Sampled reports whether the call is recorded whatever comes of it.
func (c *Call) Sampled() bool { return c.own.IsSampled() }

// OfCaller reports whether the call is part of a trace that its caller began.
func (c *Call) OfCaller() bool { return c.parent.IsValid() }

// Span is the call's own span; it is not valid if nobody traces. Unless the call is
// recorded, it leads nowhere.
func (c *Call) Span() trace.SpanContext { return c.own }

// Wants tells whether the rules are for making the spans of a call that ended so.
func (t *Tracer) Wants(c *Call, failed bool, took time.Duration) bool {
	if t == nil || !c.own.IsValid() {
		return false
	}
	r := t.rules.Load()
	return c.own.IsSampled() || failed && r.Errors || r.Slow > 0 && took >= r.Slow
}

// Keep decides whether to make the spans of a call that has ended, or is sure to end
// so. It is asked once for a call that Wants is for, and may be for others.
func (t *Tracer) Keep(c *Call, failed bool, took time.Duration) bool {
	if !t.Wants(c, failed, took) {
		return false
	}
	if c.own.IsSampled() {
		return true
	}
	if !t.within(t.rules.Load().Tail) {
		t.limited.Add(1)
		return false
	}
	return t.room()
}

// within counts one more call of this second, if that is allowed.
func (t *Tracer) within(most int) bool {
	if most == 0 {
		return true
	}
	now := uint64(time.Now().Unix()) << 32
	for {
		old := t.second.Load()
		next := now | 1
		if old&^uint64(1<<32-1) == now {
			if old&(1<<32-1) >= uint64(most) {
				return false
			}
			next = old + 1
		}
		if t.second.CompareAndSwap(old, next) {
			return true
		}
	}
}

// Span is one span that has ended.
type Span struct {
	ID         trace.SpanID // the one that others know; zero: a new one
	Name       string
	Kind       trace.SpanKind
	Start      time.Time
	Took       time.Duration
	Attributes []attribute.KeyValue
	Links      []trace.Link
	Failed     string // why the span has the status error; "" if it has not
}

// Root makes the span of a call itself, of which ID is ignored, and returns what its children are below.
func (t *Tracer) Root(c *Call, s Span) trace.SpanContext {
	s.ID = c.own.SpanID()
	return t.make(c.parent, c.own.TraceID(), s)
}

// Below makes a span below parent, and returns what its own children are below.
func (t *Tracer) Below(parent trace.SpanContext, s Span) trace.SpanContext {
	if !s.ID.IsValid() {
		s.ID = NewSpanID()
	}
	return t.make(parent, parent.TraceID(), s)
}

func (t *Tracer) make(parent trace.SpanContext, id trace.TraceID, s Span) trace.SpanContext {
	ctx := context.WithValue(context.Background(), forced{}, ids{id, s.ID})
	if parent.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, parent)
	}
	_, span := t.spans.Start(
		ctx, s.Name, trace.WithSpanKind(s.Kind), trace.WithTimestamp(s.Start), trace.WithAttributes(s.Attributes...),
		trace.WithLinks(s.Links...),
	)
	if s.Failed != "" {
		span.SetStatus(codes.Error, s.Failed)
	}
	span.End(trace.WithTimestamp(s.Start.Add(s.Took)))
	return span.SpanContext()
}

// forced is the key of the ids of a span that is made in any case.
type forced struct{}

type ids struct {
	trace trace.TraceID
	span  trace.SpanID
}

// Forced reports whether the span that is started with ctx is one of a Tracer.
func Forced(ctx context.Context) bool {
	_, ok := ctx.Value(forced{}).(ids)
	return ok
}

// Generator gives spans their ids, those of a Tracer the ids that were told to
// others. It is an IDGenerator of the SDK.
type Generator struct{}

// NewIDs returns the ids of a span without a parent.
func (Generator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if id, ok := ctx.Value(forced{}).(ids); ok {
		return id.trace, id.span
	}
	return newTraceID(), NewSpanID()
}

// NewSpanID returns the id of a span with a parent.
func (Generator) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if id, ok := ctx.Value(forced{}).(ids); ok {
		return id.span
	}
	return NewSpanID()
}

func newTraceID() (id trace.TraceID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id
}

// NewSpanID returns the id of a span that is made later.
func NewSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}
