package wire

import (
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

// instruments are shared by all forwarders.
type instruments struct {
	tracer   *tracing.Tracer // nil: spans are not exported
	wait     *latency.Durations
	duration *latency.Durations
}

func newInstruments(deps *Deps) *instruments {
	histogram := deps.Durations
	if histogram == nil {
		histogram = func(string, string) *latency.Durations { return latency.NewDurations(nil) }
	}
	return &instruments{
		tracer:   deps.Tracer,
		wait:     histogram("ydb.sidecar.forward.wait", "Time in the sidecar of forwarded calls that had to wait, until they went to a node."),
		duration: histogram("ydb.sidecar.forward.duration", "Time of a forwarded call, from its coming to its last part."),
	}
}

// series are the cells of one place that calls end at. One goroutine at a time may
// use it.
type series map[hop.Key]*cells

// cells count the calls of a series.
type cells struct {
	set            attribute.Set
	duration, wait *latency.Cell // wait: nil before one waited
}

// add counts a call.
func (s series) add(t *instruments, d *hop.Done) {
	c := s[d.Key]
	if c == nil {
		c = s.more(t, d.Key)
	}
	c.duration.Add(d.Took)
	if d.Waited > 0 { // most go on with the bytes that brought them
		if c.wait == nil {
			c.wait = t.wait.NewCell(c.set)
		}
		c.wait.Add(d.Waited)
	}
}

// more returns the cells of a series that is new.
func (s series) more(t *instruments, k hop.Key) *cells {
	if len(s) >= hop.MaxSeries {
		k.Node = 0
		if c := s[k]; c != nil {
			return c
		}
	}
	attrs := k.Attributes()
	if k.Node != 0 {
		attrs = append(attrs, attribute.String("ydb.node.id", strconv.FormatUint(uint64(k.Node), 10)))
	}
	set := attribute.NewSet(attrs...)
	c := &cells{set: set, duration: t.duration.NewCell(set)}
	s[k] = c
	return c
}

const traceparent = tracing.Header

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
