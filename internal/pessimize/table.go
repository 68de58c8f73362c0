package pessimize

import "github.com/ydb-sidecar/sidecar/internal/cluster"

// event is what can happen to a node.
type event uint8

const (
	sign     event = iota // a bad sign that is not enough alone
	hard                  // transport_failures reached
	soft                  // refusals reached, in a row or as a share
	slow                  // calls or probes much slower than those of the other nodes
	good                  // quiet since the last bad sign, and calls succeed
	rested                // the ejection time is over
	answered              // enough probes in a row were answered
	failed                // a probe failed
	events   = int(failed) + 1
)

func (e event) String() string {
	return [...]string{
		"a bad sign",
		"`health.transport_failures` transport errors in a row",
		"`health.refusals` refusals in a row, or `health.refusal_share` of the calls",
		"calls or probes much slower than on the other nodes (below)",
		"1 s without a bad sign, and calls succeed",
		"the ejection time is over",
		"probes answered: 1 of a suspect, 2 in a row of an ejected node",
		"a probe was not answered, or a connection is dead",
	}[e]
}

// table has the next state for each state and event. It is the whole state
// machine; docs/concepts/health.md shows it. No way leads from Ejected to Healthy but
// through Probing, and none out of Probing but through answered probes.
var table = [4][events]cluster.Health{
	cluster.Healthy: {
		sign: cluster.Suspect, hard: cluster.Ejected, soft: cluster.Ejected, slow: cluster.Ejected, good: cluster.Healthy,
		rested: cluster.Healthy, answered: cluster.Healthy, failed: cluster.Ejected,
	},
	cluster.Suspect: {
		sign: cluster.Suspect, hard: cluster.Ejected, soft: cluster.Ejected, slow: cluster.Ejected, good: cluster.Healthy,
		rested: cluster.Suspect, answered: cluster.Healthy, failed: cluster.Ejected,
	},
	cluster.Ejected: {
		sign: cluster.Ejected, hard: cluster.Ejected, soft: cluster.Ejected, slow: cluster.Ejected, good: cluster.Ejected,
		rested: cluster.Probing, answered: cluster.Ejected, failed: cluster.Ejected,
	},
	cluster.Probing: {
		sign: cluster.Probing, hard: cluster.Probing, soft: cluster.Probing, slow: cluster.Probing, good: cluster.Probing,
		rested: cluster.Probing, answered: cluster.Healthy, failed: cluster.Probing,
	},
}
