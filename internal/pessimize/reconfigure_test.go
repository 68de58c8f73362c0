package pessimize

import (
	"errors"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func TestReconfigure(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.fail(1, errors.New("down"))
		w.prober.fail(2, errors.New("down"))
		c := Default()
		c.TransportFailures = 4
		w.Reconfigure(c)
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 3)
		w.is(1, cluster.Suspect)
		c.TransportFailures, c.ProbeInterval = 3, time.Hour
		w.Reconfigure(c)
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
		w.is(1, cluster.Ejected)
		// The floor is beside the counters that calls write to.
		c.LatencyFloor = time.Minute
		w.Reconfigure(c)
		for id, s := range *w.signs.Load() {
			if got := time.Duration(s.floor.Load()); got != time.Minute {
				t.Errorf("node %d: floor %v; want 1m", id, got)
			}
		}
	})
}
