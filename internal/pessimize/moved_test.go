package pessimize

import (
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// What explains the health of a node and what explains that it leaves or stays are two things: neither hides the
// other, and neither is given as the reason of the other.
func TestReasonsAreOfWhatTheyExplain(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		check := func(when string, id cluster.NodeID, reason, published string, says ...string) {
			t.Helper()
			why, _ := w.Why(id)
			first, rest, _ := strings.Cut(why.Summary, ". ")
			if _, explained, _ := strings.Cut(first, ": "); explained != reason || why.Reason != reason {
				t.Errorf("%s: %q and reason %q; want %q", when, first, why.Reason, reason)
			}
			for _, part := range says {
				if !strings.Contains(rest, part) {
					t.Errorf("%s: %q does not say %q", when, rest, part)
				}
			}
			if strings.Contains(rest, "announced") && !strings.HasPrefix(published, "announced its shutdown") {
				t.Errorf("%s: %q speaks of an announcement", when, rest)
			}
			if got := w.conditions()[id].Reason; got != published {
				t.Errorf("%s: published %q; want %q", when, got, published)
			}
		}
		const broken = "UNAVAILABLE on execute; 2 transport errors in a row"
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		w.report(3, cluster.CallControl, cluster.BlameForeign, 1)
		check("ejected", 1, broken, broken)
		check("foreign", 3, "", "serves another database", "It serves another database.")
		w.SetTopology(nodes(3, 4))
		w.settle()
		check("left, healthy", 2, "", "left discovery", "Discovery does not list it.")
		check("left, ejected", 1, broken, "left discovery; "+broken, "Discovery does not list it.")
		w.SetTopology(nodes(1, 2, 3, 4))
		w.settle()
		check("back, healthy", 2, "", "back in discovery", "It is back in discovery.")
		check("back, ejected", 1, broken, "back in discovery; "+broken, "It is back in discovery.")
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
		check("answers", 1, "2 probes answered", "2 probes answered")
		w.report(2, cluster.CallControl, cluster.BlameDraining, 1)
		w.report(2, cluster.CallExecute, cluster.BlameTransport, 1)
		check("suspect", 2, "UNAVAILABLE on execute", "announced its shutdown; UNAVAILABLE on execute", "It announced its shutdown.")
		w.awaitHealth(2, cluster.Healthy, Default().Leaving+5*time.Second)
		check("stays because it answers", 2, "probe answered", "probe answered")
	})
}
