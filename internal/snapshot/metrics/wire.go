package metrics

import (
	"go.opentelemetry.io/otel/attribute"
)

// wireRows are the figures of the data path. With wire.mode off they have no values.
var wireRows = []figure{
	counter("ydb.sidecar.forward.calls", "{call}",
		"Calls that came over the data path, by how they ended.",
		func(m *moment, tell ints) {
			if m.Wire == nil {
				return
			}
			for end, n := range m.Wire.Ends {
				tell(int64(n), label("ydb.sidecar.end", end))
			}
		}),
	counter("ydb.sidecar.forward.abuses", "{abuse}",
		"What peers of the data path did only by fault or ill will.",
		func(m *moment, tell ints) {
			if m.Wire == nil {
				return
			}
			for abuse, n := range m.Wire.Abuses {
				tell(int64(n), label("ydb.sidecar.abuse", abuse))
			}
		}),
	counter("ydb.sidecar.forward.bytes", "By",
		"Bytes of the data path, by peer and direction.",
		func(m *moment, tell ints) {
			if m.Wire == nil {
				return
			}
			tell(int64(m.Wire.ClientIn), peer("client"), direction("in"))
			tell(int64(m.Wire.ClientOut), peer("client"), direction("out"))
			tell(int64(m.Wire.NodeIn), peer("node"), direction("in"))
			tell(int64(m.Wire.NodeOut), peer("node"), direction("out"))
		}),
	level("ydb.sidecar.forward.connections", "{connection}",
		"Connections of the data path, by peer.",
		func(m *moment, tell ints) {
			if m.Wire == nil {
				return
			}
			tell(int64(m.Wire.Clients), peer("client"))
			tell(int64(m.Wire.Nodes), peer("node"))
		}),
	level("ydb.sidecar.forward.held", "{call}",
		"Calls that wait in the data path.",
		func(m *moment, tell ints) {
			if m.Wire != nil {
				tell(int64(m.Wire.Held))
			}
		}),
	level("ydb.sidecar.forward.buffered", "By",
		"Bytes that wait for slow readers.",
		func(m *moment, tell ints) {
			if m.Wire != nil {
				tell(int64(m.Wire.Buffered))
			}
		}),
	counter("ydb.sidecar.forward.unread", "{reading}",
		"Readings of a shard of the data path that were not possible in time: what is shown of it is what it was "+
			"before.",
		func(m *moment, tell ints) {
			if m.Wire != nil {
				tell(int64(m.Wire.Unread))
			}
		}),
	level("ydb.sidecar.virtual.sessions", "{session}",
		"Sessions of SDKs, by whether a session of the pool is bound to them.",
		func(m *moment, tell ints) {
			if v := m.virtual(); v != nil {
				tell(int64(v.Bound), attribute.Bool("ydb.sidecar.bound", true))
				tell(int64(v.Sessions-v.Bound), attribute.Bool("ydb.sidecar.bound", false))
			}
		}),
	level("ydb.sidecar.virtual.pools", "{pool}",
		"Pools of callers' identities and of their apps.",
		func(m *moment, tell ints) {
			if v := m.virtual(); v != nil {
				tell(int64(len(v.Pools)))
			}
		}),
	counter("ydb.sidecar.virtual.unnamed", "{caller}",
		"Connections and sessions of SDKs whose app got no sessions of its own, because the identity has as many "+
			"such apps as it may (apps.sessions).",
		func(m *moment, tell ints) {
			if v := m.virtual(); v != nil {
				tell(int64(v.Unnamed))
			}
		}),
}

// xdsRows are those of xds.enabled.
var xdsRows = []figure{
	level("ydb.sidecar.xds.streams", "{stream}",
		"Streams of xDS clients, by flavor: envoy or grpc.",
		func(m *moment, tell ints) {
			for flavor, n := range m.XDS.Streams {
				tell(int64(n), label("ydb.sidecar.flavor", string(flavor)))
			}
		}),
	level("ydb.sidecar.xds.nodes", "{node}",
		"Nodes published over xDS, by health status.",
		func(m *moment, tell ints) {
			for status, n := range m.XDS.Nodes {
				tell(int64(n), label("ydb.sidecar.state", status))
			}
		}),
	counter("ydb.sidecar.xds.publications", "{publication}",
		"Times that something was published over xDS.",
		func(m *moment, tell ints) { tell(int64(m.XDS.Published)) }),
	counter("ydb.sidecar.xds.responses", "{response}",
		"Answers sent to xDS clients.",
		func(m *moment, tell ints) { tell(int64(m.XDS.Responses)) }),
	counter("ydb.sidecar.xds.nacks", "{response}",
		"Answers that an xDS client refused: the log says why.",
		func(m *moment, tell ints) { tell(int64(m.XDS.Nacks)) }),
	counter("ydb.sidecar.xds.refused", "{stream}",
		"Streams refused because as many were open as there may be.",
		func(m *moment, tell ints) { tell(int64(m.XDS.Refused)) }),
}
