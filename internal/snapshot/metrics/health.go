package metrics

import (
	"strconv"

	"go.opentelemetry.io/otel/attribute"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// healthRows are what was judged of nodes, and what is wrong.
var healthRows = []figure{
	gauge("ydb.sidecar.panic", "{alarm}",
		"1 while more than half of the nodes are ejected.",
		func(m *moment, tell ints) { tell(one(m.Routed.Panic)) }),
	counter("ydb.sidecar.health.ejections", "{ejection}",
		"Ejections of nodes, by cause.",
		func(m *moment, tell ints) {
			for cause := cluster.CauseTransport; int(cause) < cluster.CauseSize; cause++ {
				tell(int64(m.Judged.Ejections[cause]), label("ydb.sidecar.cause", cause.String()))
			}
		}),
	counter("ydb.sidecar.health.spared", "{node}",
		"Nodes that were too slow and stayed, because so many were ejected already.",
		func(m *moment, tell ints) { tell(int64(m.Judged.Spared)) }),
	counter("ydb.sidecar.health.panics", "{alarm}",
		"How often more than half of the nodes came to be ejected.",
		func(m *moment, tell ints) { tell(int64(m.Judged.Panics)) }),
	counter("ydb.sidecar.health.probes", "{probe}",
		"Probes of nodes, by result.",
		func(m *moment, tell ints) {
			h := &m.Judged
			tell(int64(h.Probes-h.ProbesFailed-h.ProbesSlow), result("good"))
			tell(int64(h.ProbesFailed), result("failed"))
			tell(int64(h.ProbesSlow), result("slow"))
		}),
	gauge("ydb.sidecar.finding", "{finding}",
		"Findings at /state/findings, by code, with the node and the app that they are about. A series without "+
			"node and app is there for each code, 0 if there is no such finding.",
		readFindings),
}

// about is what a finding has series by.
type about struct {
	code, severity string
	node           uint32
	address, app   string
}

// readFindings reads a series for each code, and one for each node and app that a finding is about: at most as
// many as a report has findings.
func readFindings(m *moment, tell ints) {
	counts := map[about]int64{}
	for _, f := range m.Found {
		a := about{code: string(f.Code), severity: string(f.Severity), app: f.App}
		if f.Address != "" { // else the node is that of one session, and another at each sidecar
			a.node, a.address = f.Node, f.Address
		}
		counts[a]++
	}
	for _, kind := range findings.Kinds {
		none := about{code: string(kind.Code), severity: string(kind.Severity)}
		counts[none] += 0
	}
	for a, n := range counts {
		with := []attribute.KeyValue{label("ydb.sidecar.code", a.code), label("ydb.sidecar.severity", a.severity),
			label("db.namespace", m.Database)}
		if a.node != 0 {
			with = append(with, label("ydb.node.id", strconv.FormatUint(uint64(a.node), 10)))
		}
		if a.address != "" {
			with = append(with, label("ydb.node.address", a.address))
		}
		if a.app != "" {
			with = append(with, app(a.app))
		}
		tell(n, with...)
	}
}
