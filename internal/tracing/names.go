package tracing

import (
	"net"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// The names of spans are those of YDB's SDKs, where they have one: a trace looks
// the same with the sidecar and without. docs/operations/tracing.md has the tree.
const (
	Try         = "ydb.Try"
	GetSession  = "ydb.GetSession"
	Create      = "ydb.CreateSession"
	Queue       = "ydb.sidecar.queue"
	Transaction = "ydb.sidecar.transaction"
)

// Hop is the name of the span of a call to a node.
func Hop(op string) string {
	switch op {
	case "CommitTransaction":
		return "ydb.Commit"
	case "RollbackTransaction":
		return "ydb.Rollback"
	}
	return "ydb." + op
}

// Address names a node's host:port.
func Address(text string) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return nil
	}
	number, _ := strconv.Atoi(port)
	return []attribute.KeyValue{attribute.String("server.address", host), attribute.Int("server.port", number)}
}

// Milliseconds is a time as spans have it.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
