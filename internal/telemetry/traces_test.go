package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

// collects is an exporter to a collector that may be away, or hang.
type collects struct {
	mu    sync.Mutex // guards all below
	err   error
	hangs bool
	tries int
	got   int // spans
}

func (c *collects) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries++
	if c.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if c.err == nil {
		c.got += len(spans)
	}
	return c.err
}

func (c *collects) Shutdown(context.Context) error { return nil }

func (c *collects) set(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// seen returns the tries and the spans that arrived.
func (c *collects) seen() (tries, got int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tries, c.got
}

func ended(q *queue, n int) {
	for range n {
		q.OnEnd(tracetest.SpanStub{Name: "call"}.Snapshot())
	}
}

var small = batching{queue: 8, batch: 4, delay: time.Second, timeout: 30 * time.Second}

func TestTheQueue(t *testing.T) {
	away := errors.New("away")
	for name, test := range map[string]func(t *testing.T, q *queue, c *collects, log *bytes.Buffer){
		"sends_a_full_batch_at_once_and_the_rest_in_time": func(t *testing.T, q *queue, c *collects, _ *bytes.Buffer) {
			ended(q, 5)
			synctest.Wait()
			if _, got := c.seen(); got != 4 {
				t.Errorf("%d spans at once; want a batch of 4", got)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if _, got := c.seen(); got != 5 {
				t.Errorf("%d spans after a second; want 5", got)
			}
		},
		"sends_what_is_left_at_the_end": func(t *testing.T, q *queue, c *collects, _ *bytes.Buffer) {
			ended(q, 3)
			if err := q.Shutdown(t.Context()); err != nil || c.got != 3 {
				t.Errorf("%d spans, %v; want 3", c.got, err)
			}
		},
		"drops_what_does_not_fit_and_sends_the_rest_when_the_collector_is_back": func(t *testing.T, q *queue,
			c *collects, log *bytes.Buffer) {
			c.set(away)
			ended(q, 4)
			synctest.Wait()
			ended(q, 20) // eight find a place
			if q.dropped.Load() != 12 || q.room() || q.dropped.Load() != 13 {
				t.Errorf("%d dropped; want 12, and one more asked for in vain", q.dropped.Load())
			}
			time.Sleep(3 * time.Second)
			c.set(nil)
			time.Sleep(time.Minute)
			synctest.Wait()
			if _, got := c.seen(); got != 12 || q.exported.Load() != 12 || q.lost.Load() != 0 {
				t.Errorf("%d spans arrived, %d lost; want 12 and none", got, q.lost.Load())
			}
			if text := log.String(); strings.Count(text, "cannot be sent") != 1 || strings.Count(text, "sent again") != 1 {
				t.Errorf("log:\n%s", text)
			}
		},
		"gives_a_batch_up_in_the_end_and_says_so_once_a_minute": func(t *testing.T, q *queue, c *collects, log *bytes.Buffer) {
			c.set(away)
			ended(q, 4)
			time.Sleep(time.Minute)
			synctest.Wait()
			if tries, _ := c.seen(); q.lost.Load() != 4 || tries != maxExports {
				t.Errorf("%d lost after %d tries; want 4 after %d", q.lost.Load(), tries, maxExports)
			}
			for range 100 {
				ended(q, 1)
				time.Sleep(6 * time.Second)
			}
			if n := strings.Count(log.String(), "\n"); n > 12 {
				t.Errorf("%d lines in eleven minutes", n)
			}
		},
		"waits_for_no_collector_that_is_away": func(t *testing.T, q *queue, c *collects, _ *bytes.Buffer) {
			c.set(away)
			ended(q, 4)
			synctest.Wait()
			ended(q, 6)
			start := time.Now()
			before, _ := c.seen()
			err := q.Shutdown(t.Context())
			if tries, _ := c.seen(); err != nil || time.Since(start) != 0 || tries != before {
				t.Errorf("it took %v and %d tries, %v", time.Since(start), tries-before, err)
			}
			if q.lost.Load() != 10 {
				t.Errorf("%d lost; want 10", q.lost.Load())
			}
		},
		"waits_for_a_collector_that_hangs_no_longer_than_two_seconds": func(t *testing.T, q *queue, c *collects, _ *bytes.Buffer) {
			c.hangs = true
			ended(q, 8)
			synctest.Wait()
			start := time.Now()
			if err := q.Shutdown(t.Context()); err != nil || time.Since(start) != flushTime {
				t.Errorf("it took %v, %v; want %v", time.Since(start), err, flushTime)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				c := &collects{}
				q := newQueue(c, small, slog.New(slog.NewTextHandler(&log, nil)))
				test(t, q, c, &log)
				_ = q.Shutdown(context.Background())
			})
		})
	}
}

// TestSpansOfCalls: what the tail keeps is exported, what it does not is not; spans of
// other parts are picked as calls are.
func TestSpansOfCalls(t *testing.T) {
	rec := &collects{}
	tel := set(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_SAMPLER": "always_off"})
	tel.queue.out = rec // nothing was sent yet
	for _, failed := range []bool{true, false} {
		if c := tel.Tracer().Begin(trace.SpanContext{}); tel.Tracer().Keep(&c, failed, 0) {
			tel.Tracer().Root(&c, tracing.Span{Name: "call", Start: time.Now()})
		}
	}
	_, span := tel.Tracers().Tracer("test").Start(t.Context(), "of another part")
	span.End()
	shutDown(t, tel)
	if _, got := rec.seen(); got != 1 {
		t.Errorf("%d spans are sent; want that of the failed call", got)
	}
	if err := tel.SetTracing(tracing.Config{}); err != nil {
		t.Fatal(err)
	}
	if c := tel.Tracer().Begin(trace.SpanContext{}); tel.Tracer().Keep(&c, true, 0) {
		t.Error("a failed call is kept although tracing.errors is off by now")
	}
}

func TestWhatBecameOfSpansIsCounted(t *testing.T) {
	tel := set(t, map[string]string{"OTEL_TRACES_EXPORTER": "otlp"})
	defer shutDown(t, tel)
	tel.queue.dropped.Add(7)
	page := httptest.NewRecorder()
	tel.Metrics().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`ydb_sidecar_tracing_spans_total{outcome="dropped"} 7`, `ydb_sidecar_tracing_limited_total 0`} {
		if !strings.Contains(page.Body.String(), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestTheRatioIsTheSettingsUnlessAVariableSaysMore(t *testing.T) {
	for name, c := range map[string]struct {
		sampler string
		want    bool
	}{"setting": {"", false}, "variable": {"parentbased_always_on", true}} {
		t.Run(name, func(t *testing.T) {
			getenv := environment(map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": c.sampler})
			tel, err := New(t.Context(), Default(), getenv, tracing.Config{}, "", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer shutDown(t, tel)
			if call := tel.Tracer().Begin(trace.SpanContext{}); call.Sampled() != c.want {
				t.Errorf("picked: %v; want %v", call.Sampled(), c.want)
			}
		})
	}
}
