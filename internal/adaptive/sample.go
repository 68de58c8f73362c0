package adaptive

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Sample is what came of some calls.
type Sample struct {
	Calls   uint64 // calls that did their work
	Logs    int64  // the sum of their latencies' logarithms, see logOf
	Refused uint64 // for load that is not one table's, a quota's or a resource pool's

	// Of Calls, those that began while all sidecars held back.
	QuietCalls uint64
	QuietLogs  int64
}

// logUnit is 1 in the logarithms of a Sample.
const logUnit = 1 << 10

// logOf is the logarithm of a latency in nanoseconds, to the base 2, in units of
// 1/logUnit.
func logOf(latency time.Duration) int64 {
	return int64(math.Log2(float64(max(latency, 1))) * logUnit)
}

// Served adds a call that did its work. quiet says that it began while all held back.
func (s *Sample) Served(latency time.Duration, quiet bool) {
	l := logOf(latency)
	s.Calls++
	s.Logs += l
	if quiet {
		s.QuietCalls++
		s.QuietLogs += l
	}
}

func (s *Sample) add(t Sample) {
	s.Calls += t.Calls
	s.Logs += t.Logs
	s.Refused += t.Refused
	s.QuietCalls += t.QuietCalls
	s.QuietLogs += t.QuietLogs
}

// Meter collects the outcomes of calls from any goroutine. It takes no lock and does
// not allocate.
type Meter struct {
	began   time.Time // of its clock
	span    [2]atomic.Int64
	mean    atomic.Int64 // of the last window; 0: unknown
	stripes [8]stripe
}

type stripe struct {
	calls, refused, quietCalls atomic.Uint64
	logs, quietLogs            atomic.Int64
	_                          [88]byte // away from the next one and from its prefetch
}

// NewMeter returns a meter whose clock begins now.
func NewMeter() *Meter { return &Meter{began: time.Now()} }

// Now is the time of the meter's clock, for Law.Step.
func (m *Meter) Now() time.Duration { return time.Since(m.began) }

// The answers that say that nodes have too much to do, as cluster.Outcome spells them.
// One shard, the disk space, a quota or a resource pool bears no more, whatever this
// sidecar's other calls do.
const (
	overloaded = "OVERLOADED"         // YDB's
	exhausted  = "RESOURCE_EXHAUSTED" // gRPC's
)

// Report adds what came of a call on a session of the pool. Only statements and
// commits count: what else is done on a session takes another time.
func (m *Meter) Report(o cluster.Outcome) {
	if o.Kind != cluster.CallExecute && o.Kind != cluster.CallCommit {
		return
	}
	latency := o.Latency
	switch {
	case (o.Congestion == cluster.CongestedUnknown || o.Congestion == cluster.CongestedNode) &&
		(o.Detail == overloaded || o.Detail == exhausted):
		m.stripes[0].refused.Add(1)
		return
	case o.Blame == cluster.BlameSuccess && latency > 0:
	case o.Waited > 0:
		// It took at least so long, which is worth knowing if others were faster.
		if mean := m.mean.Load(); mean == 0 || logOf(o.Waited) < mean {
			return
		}
		latency = o.Waited
	default:
		return
	}
	l, began := logOf(latency), int64(m.Now()-latency)
	s := &m.stripes[(latency^latency>>7)&7]
	s.calls.Add(1)
	s.logs.Add(l)
	if began >= m.span[0].Load() && began < m.span[1].Load() {
		s.quietCalls.Add(1)
		s.quietLogs.Add(l)
	}
}

// Take returns what was reported since it was called last. Under load a call may be
// split between two samples; nothing is lost.
func (m *Meter) Take() Sample {
	var sum Sample
	for i := range m.stripes {
		s := &m.stripes[i]
		sum.add(
			Sample{Calls: s.calls.Swap(0), Logs: s.logs.Swap(0), Refused: s.refused.Swap(0),
				QuietCalls: s.quietCalls.Swap(0), QuietLogs: s.quietLogs.Swap(0)},
		)
	}
	return sum
}

// Follow tells the meter what a law needs of it: to be called after each Step.
func (m *Meter) Follow(l *Law) {
	from, to := l.Quiet()
	m.span[0].Store(int64(from))
	m.span[1].Store(int64(to))
	m.mean.Store(int64(l.latency * logUnit))
}
