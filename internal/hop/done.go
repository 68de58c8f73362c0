package hop

import (
	"strconv"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// maxSeries bounds the attribute sets of a histogram of calls; past it, those without a call for some minutes make room,
// or the node is left out, and then there are no more than methods times statuses. maxFailed of them are for calls that failed.
const (
	maxSeries = 1024
	maxFailed = maxSeries / 4
)

// Series counts the calls of a histogram by their keys. Calls that failed have room of their own: the nodes that work
// well may be more than there is room for, and which node has turned bad is what people look for.
type Series struct{ well, failed *latency.Series[Key] }

// NewSeries returns the series of a histogram of calls, which all have the attributes of more.
func NewSeries(d *latency.Durations, more ...attribute.KeyValue) Series {
	attributes := func(k Key) []attribute.KeyValue { return append(k.attributes(), more...) }
	of := func(most int) *latency.Series[Key] {
		return latency.NewSeries(d, most, attributes, func(k Key) Key { k.Node = 0; return k })
	}
	return Series{of(maxSeries - maxFailed), of(maxFailed)}
}

// Add counts one call. It allocates nothing, unless its key is new.
func (s Series) Add(k Key, took time.Duration) {
	if k.Failed() {
		s.failed.Add(k, took)
	} else {
		s.well.Add(k, took)
	}
}

// Key is what tells the series of calls apart in metrics.
type Key struct {
	Node   cluster.NodeID   // 0: none was entered
	Method *protocol.Method // nil: not one of YDB's
	// of the answer; 0: none, also where the sidecar told the caller one in place of an answer
	// that did not come
	Status Ydb.StatusIds_StatusCode
	Code   codes.Code // of gRPC; counts without a status
}

// Failed reports whether the call did not do its work.
func (k *Key) Failed() bool { return ydbstatus.Failed(k.Status, k.Code) }

// Result is how the call ended: see ydbstatus.Name.
func (k *Key) Result() string { return ydbstatus.Name(k.Status, k.Code) }

// Op is the name of the method.
func (k *Key) Op() string {
	if k.Method == nil {
		return "other"
	}
	return k.Method.Name()
}

// Path is the method as package.Service/Method, or other for one that is not YDB's.
func (k *Key) Path(other string) string {
	if k.Method == nil {
		return other
	}
	return k.Method.Path[1:]
}

// Endless reports whether clients end the call when they like: its time means nothing.
func (k *Key) Endless() bool { return k.Method != nil && k.Method.Endless }

// Attributes describe the call in metrics, except its node. Those of gRPC are for a family that internal/telemetry
// makes of others; a status of YDB comes with gRPC's OK.
func (k *Key) attributes() []attribute.KeyValue {
	code := codes.OK
	if k.Status == 0 {
		code = k.Code
	}
	attrs := []attribute.KeyValue{
		attribute.String("db.system.name", "ydb"), attribute.String("db.operation.name", k.Op()),
		attribute.String("rpc.method", k.Path("_OTHER")), attribute.String("rpc.response.status_code", ydbstatus.CodeName(code)),
	}
	if k.Node != 0 {
		attrs = append(attrs, attribute.String("ydb.node.id", strconv.FormatUint(uint64(k.Node), 10)))
	}
	if k.Failed() {
		attrs = append(attrs, attribute.String("db.response.status_code", k.Result()), attribute.String("error.type", k.Result()))
	}
	return attrs
}

// Failure describes a call that failed in spans.
func (k *Key) Failure() []attribute.KeyValue {
	kind := "ydb_error"
	if k.Status == 0 {
		kind = "transport_error"
	}
	return []attribute.KeyValue{attribute.String("error.type", kind), attribute.String("db.response.status_code", k.Result())}
}

// Done is what a call leaves behind. The caller of Leave writes it once; Ways adds the node and the verdict.
type Done struct {
	Key
	Verdict ydbstatus.Verdict // zero if no node was entered

	Sent    bool          // a node had it, or may have had it
	Partial bool          // the node had no more than a part of its request
	Left    bool          // the caller let it go, which is no failure
	Took    time.Duration // all of it
	Waited  time.Duration // time until it was sent
	First   time.Duration // from its sending to the first part of the answer; 0: none came

	Request, Answer int // bytes

	App *apps.Stripe // on whose behalf; nil: nobody's
}
