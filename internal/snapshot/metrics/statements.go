package metrics

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/ydb-sidecar/sidecar/internal/statements"
)

// statementRows are the figures of the digests that have series: 50 at most, and one for all others.
var statementRows = []figure{
	counter("ydb.sidecar.statement.calls", "{call}",
		"Calls of a statement, by digest: the 50 with the most time, and other.",
		statementCounts(func(s *statements.Series) uint64 { return s.Calls })),
	counter("ydb.sidecar.statement.failed", "{call}",
		"Calls of a statement that failed.",
		statementCounts(func(s *statements.Series) uint64 { return s.Failed })),
	counter("ydb.sidecar.statement.retries", "{call}",
		"Calls of a statement that were made again.",
		statementCounts(func(s *statements.Series) uint64 { return s.Retries })),
	counter("ydb.sidecar.statement.rows", "{row}",
		"Rows in answers to a statement over the plain API.",
		statementCounts(func(s *statements.Series) uint64 { return s.Rows })),
	counter("ydb.sidecar.statement.bytes", "By",
		"Bytes of answers to a statement.",
		statementCounts(func(s *statements.Series) uint64 { return s.Bytes })),
	amount("ydb.sidecar.statement.time", "s",
		"Time of the calls of a statement, by phase: acquire, hop, and rest, which is all other time.",
		func(m *moment, tell decimals) {
			for i := range m.Digests {
				s := &m.Digests[i]
				with := statementOf(s)
				tell(s.Acquire.Seconds(), append(with, label("ydb.sidecar.phase", "acquire"))...)
				tell(s.Hop.Seconds(), append(with, label("ydb.sidecar.phase", "hop"))...)
				tell(max(s.Took-s.Acquire-s.Hop, 0).Seconds(), append(with, label("ydb.sidecar.phase", "rest"))...)
			}
		}),
}

func statementCounts(of func(*statements.Series) uint64) func(*moment, ints) {
	return func(m *moment, tell ints) {
		for i := range m.Digests {
			tell(int64(of(&m.Digests[i])), statementOf(&m.Digests[i])...)
		}
	}
}

func statementOf(s *statements.Series) []attribute.KeyValue {
	return []attribute.KeyValue{label("ydb.sidecar.digest", s.Digest)}
}
