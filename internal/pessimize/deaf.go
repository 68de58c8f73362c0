package pessimize

import "github.com/ydb-sidecar/sidecar/internal/cluster"

// Deaf is a Detector that does not hear that some nodes shut down: none, where health.shutdown is
// off, and none behind an address that several share, because the others stay.
type Deaf struct {
	*Detector
	To func(cluster.NodeID) bool // reports whether the shutdown of a node is not heard
}

// Report is Detector.Report. A refusal because of a shutdown that is not heard counts as one by load.
func (d Deaf) Report(o cluster.Outcome) {
	if o.Blame == cluster.BlameDraining && d.To(o.Node) {
		if o.Blame = cluster.BlameRefusal; o.Kind == cluster.CallControl {
			return // an announcement, and no refusal
		}
	}
	d.Detector.Report(o)
}
