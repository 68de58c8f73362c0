package wire

import (
	"strconv"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
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

// maxSeries bounds the attribute sets of a histogram; past it, the node is left
// out, and then there are no more than methods times statuses.
const maxSeries = 1024

// seriesKey is what tells series apart.
type seriesKey struct {
	node   cluster.NodeID
	method *protocol.Method // nil: not one of YDB's
	status Ydb.StatusIds_StatusCode
	code   codes.Code // counts without a status
}

// series are the cells of one place that calls end at. One goroutine at a time may
// use it.
type series map[seriesKey]*cells

// cells count the calls of a series.
type cells struct {
	set            attribute.Set
	duration, wait *latency.Cell // wait: nil before one waited
}

// add counts a call, of whose time it waited for so long.
func (s series) add(t *instruments, k seriesKey, took, waited time.Duration) {
	c := s[k]
	if c == nil {
		c = s.more(t, k)
	}
	c.duration.Add(took)
	if waited > 0 { // most go on with the bytes that brought them
		if c.wait == nil {
			c.wait = t.wait.NewCell(c.set)
		}
		c.wait.Add(waited)
	}
}

// more returns the cells of a series that is new.
func (s series) more(t *instruments, k seriesKey) *cells {
	if len(s) >= maxSeries {
		k.node = 0
		if c := s[k]; c != nil {
			return c
		}
	}
	attrs := []attribute.KeyValue{attribute.String("db.system.name", "ydb"), attribute.String("db.operation.name", nameOf(k.method))}
	if k.status != Ydb.StatusIds_SUCCESS && (k.status != 0 || k.code != codes.OK) {
		attrs = append(attrs, attribute.String("db.response.status_code", statusName(k.status, k.code)))
	}
	// For gRPC's own family, which internal/telemetry makes of this one.
	path, code := "_OTHER", codes.OK
	if k.method != nil {
		path = k.method.Path[1:]
	}
	if k.status == 0 {
		code = k.code
	}
	attrs = append(attrs, attribute.String("rpc.method", path), attribute.String("rpc.response.status_code", ydbstatus.CodeName(code)))
	if k.node != 0 {
		attrs = append(attrs, attribute.String("ydb.node.id", strconv.FormatUint(uint64(k.node), 10)))
	}
	set := attribute.NewSet(attrs...)
	c := &cells{set: set, duration: t.duration.NewCell(set)}
	s[k] = c
	return c
}

func nameOf(m *protocol.Method) string {
	if m == nil {
		return "other"
	}
	return m.Name()
}

func statusName(status Ydb.StatusIds_StatusCode, code codes.Code) string {
	if status != 0 {
		return ydbstatus.StatusName(status)
	}
	return ydbstatus.CodeName(code)
}

const traceparent = tracing.Header

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
