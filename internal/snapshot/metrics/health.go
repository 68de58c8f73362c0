package metrics

import (
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
		"What /state/findings says is wrong, by code: how many findings.",
		func(m *moment, tell ints) {
			for _, kind := range findings.Kinds {
				n := int64(0)
				for _, f := range m.Found {
					n += one(f.Code == kind.Code)
				}
				tell(n, label("ydb.sidecar.code", string(kind.Code)))
			}
		}),
}
