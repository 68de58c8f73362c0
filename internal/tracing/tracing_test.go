package tracing

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func always() bool { return true }

func recorded(c Config, head Sampler, room Room) (*Tracer, *tracetest.SpanRecorder) {
	rec := tracetest.NewSpanRecorder()
	return New(
		sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec), sdktrace.WithIDGenerator(Generator{}),
			sdktrace.WithSampler(sdktrace.AlwaysSample())),
		room, c, head,
	), rec
}

func remote(flags trace.TraceFlags) trace.SpanContext {
	state, _ := trace.ParseTraceState("vendor=1")
	return trace.NewSpanContext(
		trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: flags, TraceState: state, Remote: true},
	)
}

func TestWhichCallsAreKept(t *testing.T) {
	tail := Config{Errors: true, Slow: time.Second}
	for name, c := range map[string]struct {
		config Config
		head   Sampler
		parent trace.SpanContext
		failed bool
		took   time.Duration
		want   bool
	}{
		"the_sampler_picked_it":            {Config{}, Ratio(1), trace.SpanContext{}, false, 0, true},
		"the_sampler_left_it":              {tail, Ratio(0), trace.SpanContext{}, false, 999 * time.Millisecond, false},
		"the_callers_trace_is_recorded":    {Config{}, Ratio(0), remote(trace.FlagsSampled), false, 0, true},
		"the_callers_trace_is_not":         {tail, Ratio(1), remote(0), false, 0, false},
		"not_recorded_by_the_caller_fails": {tail, Ratio(1), remote(0), true, 0, true},
		"it_failed":                        {tail, Ratio(0), trace.SpanContext{}, true, 0, true},
		"it_failed_and_nobody_cares":       {Config{Slow: time.Second}, Ratio(0), trace.SpanContext{}, true, 0, false},
		"it_was_slow":                      {tail, Ratio(0), trace.SpanContext{}, false, time.Second, true},
		"it_was_slow_and_nobody_cares":     {Config{Errors: true}, Ratio(0), trace.SpanContext{}, false, time.Hour, false},
		"no_regard_for_the_caller":         {Config{}, Sampler{bound: 0}, remote(trace.FlagsSampled), false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			tr, _ := recorded(c.config, c.head, always)
			call := tr.Begin(c.parent)
			if got := tr.Keep(&call, c.failed, c.took); got != c.want {
				t.Errorf("kept: %v; want %v", got, c.want)
			}
			full, _ := recorded(c.config, c.head, func() bool { return false })
			if call := full.Begin(c.parent); call.Sampled() || full.Keep(&call, c.failed, c.took) {
				t.Error("kept although there is no room")
			}
		})
	}
	var off *Tracer
	if c := off.Begin(remote(trace.FlagsSampled)); c.Span().IsValid() || off.Keep(&c, true, time.Hour) {
		t.Error("a tracer that is not there keeps a call")
	}
}

func TestTheTailIsLimitedPerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, _ := recorded(Config{Errors: true, Tail: 3}, Ratio(0), always)
		kept := func() (n int) {
			for range 10 {
				if c := tr.Begin(trace.SpanContext{}); tr.Keep(&c, true, 0) {
					n++
				}
			}
			return n
		}
		for range 2 {
			if n := kept(); n != 3 {
				t.Errorf("%d kept in a second; want 3", n)
			}
			time.Sleep(time.Second)
		}
		if tr.Limited() != 14 {
			t.Errorf("%d limited; want 14", tr.Limited())
		}
	})
}

// TestSpansHaveTheIDsThatWereTold: what is made in the end has the ids, the parent and the
// times of what happened.
func TestSpansHaveTheIDsThatWereTold(t *testing.T) {
	for name, parent := range map[string]trace.SpanContext{"a_root": {}, "below_the_caller": remote(trace.FlagsSampled),
		"kept_by_the_tail": remote(0)} {
		t.Run(name, func(t *testing.T) {
			tr, rec := recorded(Config{Errors: true}, Ratio(1), always)
			call := tr.Begin(parent)
			if !tr.Keep(&call, true, 0) {
				t.Fatal("not kept")
			}
			hop, start := NewSpanID(), time.Now().Add(-time.Hour)
			root := tr.Root(&call, Span{Name: "call", Start: start, Took: time.Minute, Failed: "NO"})
			tr.Below(root, Span{Name: "hop", ID: hop, Kind: trace.SpanKindClient, Start: start, Took: time.Second})
			spans := rec.Ended()
			if len(spans) != 2 {
				t.Fatalf("%d spans; want 2", len(spans))
			}
			r, h := spans[0], spans[1]
			if r.SpanContext().SpanID() != call.Span().SpanID() || r.SpanContext().TraceID() != call.Span().TraceID() ||
				r.Parent().SpanID() != parent.SpanID() || !r.SpanContext().IsSampled() {
				t.Errorf("the root is %+v below %+v; was told as %+v", r.SpanContext(), r.Parent(), call.Span())
			}
			if h.SpanContext().SpanID() != hop || h.Parent().SpanID() != r.SpanContext().SpanID() ||
				h.SpanContext().TraceID() != r.SpanContext().TraceID() {
				t.Errorf("the hop is %+v below %+v", h.SpanContext(), h.Parent())
			}
			if parent.IsValid() && (r.SpanContext().TraceID() != parent.TraceID() || h.SpanContext().TraceState().Get("vendor") != "1") {
				t.Errorf("the hop is in %+v; the caller's span is %+v", h.SpanContext(), parent)
			}
			if !r.StartTime().Equal(start) || r.EndTime().Sub(r.StartTime()) != time.Minute || r.Status().Description != "NO" {
				t.Errorf("the root took from %v to %v, %v", r.StartTime(), r.EndTime(), r.Status())
			}
		})
	}
}

func TestParseSampler(t *testing.T) {
	given := Ratio(0.25)
	for text, want := range map[string]Sampler{
		"":                               given,
		"always_on":                      {bound: 1 << 63},
		"always_off":                     {},
		"traceidratio 0.5":               {bound: 1 << 62},
		"parentbased_always_on":          {byParent: true, bound: 1 << 63},
		"parentbased_always_off":         {byParent: true},
		"parentbased_traceidratio":       {byParent: true, bound: 1 << 63},
		"parentbased_traceidratio 0.125": {byParent: true, bound: 1 << 60},
	} {
		name, argument, _ := strings.Cut(text, " ")
		if got, err := ParseSampler(name, argument, given); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"jaeger_remote", "parentbased_", "traceidratio 2", "traceidratio x",
		"traceidratio NaN", "traceidratio -1"} {
		name, argument, _ := strings.Cut(text, " ")
		if s, err := ParseSampler(name, argument, given); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%q: %+v, %v; want an error that says what is wanted", text, s, err)
		}
	}
}

// TestSampleIsOpenTelemetrys: whoever else sees a trace decides the same about it.
func TestSampleIsOpenTelemetrys(t *testing.T) {
	for _, share := range []float64{0, 0.01, 0.5, 1} {
		sdk := sdktrace.TraceIDRatioBased(share)
		for range 1000 {
			id := newTraceID()
			want := sdk.ShouldSample(
				sdktrace.SamplingParameters{ParentContext: context.Background(), TraceID: id},
			).Decision == sdktrace.RecordAndSample
			if got := Ratio(share).Sample(trace.SpanContext{}, id); got != want {
				t.Errorf("%v of %v: %v; the SDK says %v", share, id, got, want)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for _, c := range []Config{{Ratio: -1}, {Ratio: 1.1}, {Slow: -1}, {Tail: -1}} {
		if c.Validate() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// TestNothingIsAllocatedForCallsThatAreNotRecorded is the steady path of a sampler that picks few.
func TestNothingIsAllocatedForCallsThatAreNotRecorded(t *testing.T) {
	tr, _ := recorded(Default(), Ratio(0), always)
	parent := []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	for name, header := range map[string][]byte{"of_a_caller_without_a_trace": nil, "of_one_that_is_not_recorded": parent} {
		if n := testing.AllocsPerRun(1000, func() {
			c := tr.Begin(Parse(header))
			if c.Sampled() || tr.Keep(&c, false, time.Millisecond) {
				t.Error("kept")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations; want none", name, n)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-04", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{Header: value})
		want, got := trace.SpanContextFromContext(ctx), Parse([]byte(value))
		if len(value) == headerLength+1 {
			return // OpenTelemetry takes a dash at the end, which W3C does not
		}
		if !got.Equal(want) {
			t.Fatalf("%q: %+v; OpenTelemetry reads %+v", value, got, want)
		}
		if got.IsValid() && got.IsSampled() {
			if again := Parse(
				[]byte(Format(got.TraceID(), got.SpanID())),
			); again.TraceID() != got.TraceID() || again.SpanID() != got.SpanID() || !again.IsSampled() {
				t.Fatalf("%q becomes %+v", value, again)
			}
		}
	})
}

// BenchmarkBegin is what a call costs that is not recorded.
func BenchmarkBegin(b *testing.B) {
	tr, _ := recorded(Default(), Ratio(0.01), always)
	header := []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	for name, header := range map[string][]byte{"without_a_trace": nil, "not_recorded_by_the_caller": header} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := tr.Begin(Parse(header))
				tr.Keep(&c, false, 0)
			}
		})
	}
}
