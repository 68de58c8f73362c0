package metrics

import (
	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// nodeRows are the figures of each node. What only rises, and latencies, have no sum over nodes without series of
// their own: these are not always the same.
var nodeRows = []figure{
	level("ydb.sidecar.node.sessions", "{connection}",
		"Sessions by node and state.",
		func(m *moment, tell ints) {
			for _, n := range m.ofSessions {
				tell(n.idle, n.label(), state("idle"))
				tell(n.used, n.label(), state("used"))
				tell(n.creating, n.label(), state("creating"))
			}
		}),
	level("ydb.sidecar.node.calls", "{call}",
		"Calls open on a node.",
		func(m *moment, tell ints) {
			for _, n := range m.ofNodes {
				tell(n.calls, n.label())
			}
		}),
	counter("ydb.sidecar.node.refused", "{call}",
		"Calls not sent because of routing.max_calls_per_node.",
		func(m *moment, tell ints) {
			for _, n := range m.ofNodes {
				if n.one != nil {
					tell(int64(n.one.Refused), n.label())
				}
			}
		}),
	gauge("ydb.sidecar.node.health", "{node}",
		"1 for the state that a node is in.",
		func(m *moment, tell ints) {
			for _, n := range m.ofNodes {
				for h, count := range n.health {
					tell(count, n.label(), label("ydb.sidecar.health", cluster.Health(h).String()))
				}
			}
		}),
	gauge("ydb.sidecar.node.mark", "{node}",
		"1 while a node has that mark: banned by an operator, leaving, unreachable.",
		func(m *moment, tell ints) {
			for _, n := range m.ofNodes {
				tell(n.banned, n.label(), label("ydb.sidecar.mark", "banned"))
				tell(n.draining, n.label(), label("ydb.sidecar.mark", "leaving"))
				tell(n.unreachable, n.label(), label("ydb.sidecar.mark", "unreachable"))
			}
		}),
	decimal("ydb.sidecar.node.weight", "{weight}",
		"Part of new load that a node gets, relative to the other nodes.",
		func(m *moment, tell decimals) {
			for _, n := range m.ofNodes {
				tell(n.weight, n.label())
			}
		}),
	decimal("ydb.sidecar.node.latency", "s",
		"Decayed latency of the calls to a node that did their work.",
		func(m *moment, tell decimals) {
			for _, n := range m.ofNodes {
				if n.one != nil {
					tell(n.one.Node.Load.Latency().Seconds(), n.label())
				}
			}
		}),
}

// routingRows are what routing and discovery know of all nodes.
var routingRows = []figure{
	counter("ydb.sidecar.routing.forwarded", "{call}",
		"Calls of open transactions sent around an unreachable owner.",
		func(m *moment, tell ints) { tell(int64(m.Routed.Forwarded)) }),
	counter("ydb.sidecar.routing.scattered", "{call}",
		"Calls sent to a random node because routing.affinity is off.",
		func(m *moment, tell ints) { tell(int64(m.Routed.Scattered)) }),
	gauge("ydb.sidecar.routing.departed", "{node}",
		"Nodes that left discovery and are still addressed for what is open there.",
		func(m *moment, tell ints) { tell(int64(m.Routed.Departed)) }),
	decimal("ydb.sidecar.routing.local", "1",
		"Part of new load that stays in the preferred zones.",
		func(m *moment, tell decimals) { tell(m.Routed.Local) }),
	gauge("ydb.sidecar.discovery.failures", "{failure}",
		"Failures of discovery in a row.",
		func(m *moment, tell ints) { tell(int64(m.Discovery.Failures)) }),
	gauge("ydb.sidecar.discovery.unidentified", "{address}",
		"Addresses that discovery names without a node id, and that did not tell theirs: they get no calls.",
		func(m *moment, tell ints) { tell(int64(len(m.Discovery.Source.Unidentified))) }),
	gauge("ydb.sidecar.discovery.missing", "{node}",
		"Nodes that vanished from discovery in numbers and are kept until that is sure.",
		func(m *moment, tell ints) { tell(int64(m.Discovery.Missing)) }),
	counter("ydb.sidecar.discovery.held", "{node}",
		"Nodes that came to be missing: they vanished from discovery in numbers, and were kept until that was "+
			"sure.",
		func(m *moment, tell ints) { tell(int64(m.Kept)) }),
	gauge("ydb.sidecar.discovery.left_out", "{node}",
		"Nodes that discovery lists and that are not used: it lists more than 16384.",
		func(m *moment, tell ints) { tell(int64(m.Discovery.Topology.LeftOut)) }),
}
