package wire

import (
	"errors"
	"strconv"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

const scope = "github.com/ydb-sidecar/sidecar/internal/wire"

// instruments are shared by all forwarders.
type instruments struct {
	tracer   *tracing.Tracer // nil: spans are not exported
	wait     metric.Float64Histogram
	duration metric.Float64Histogram
}

func newInstruments(tracer *tracing.Tracer, mp metric.MeterProvider) (*instruments, error) {
	t := &instruments{tracer: tracer}
	m := mp.Meter(scope)
	var errs [2]error
	t.wait, errs[0] = m.Float64Histogram("ydb.sidecar.forward.wait", metric.WithUnit("s"),
		metric.WithDescription("Time in the sidecar of forwarded calls that had to wait, until they went to a node."))
	t.duration, errs[1] = m.Float64Histogram("ydb.sidecar.forward.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of a forwarded call, from its coming to its last part."))
	return t, errors.Join(errs[:]...)
}

// maxSeries bounds the attribute sets of a histogram; past it, the node is left out.
const maxSeries = 1024

// seriesKey is what tells series apart.
type seriesKey struct {
	node   cluster.NodeID
	method *Method // nil: not one of YDB's
	status Ydb.StatusIds_StatusCode
	code   codes.Code // counts without a status
}

// series holds prebuilt attributes, so that recording allocates nothing. One
// goroutine at a time may use it.
type series map[seriesKey][]metric.RecordOption

func (s series) options(k seriesKey) []metric.RecordOption {
	o, ok := s[k]
	if ok {
		return o
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
	full := len(s) >= maxSeries
	if k.node != 0 && !full {
		attrs = append(attrs, attribute.String("ydb.node.id", strconv.FormatUint(uint64(k.node), 10)))
	}
	o = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
	if !full {
		s[k] = o
	}
	return o
}

func nameOf(m *Method) string {
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
