package pessimize

import (
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/latency"
)

// signs is what calls told about one node. Report writes it from any goroutine
// with single atomic operations; Run reads it. A success costs two additions
// and loads: the rows are written only when there is something to clear.
// Wide: counters of one node, placed by the cores that write them.
type signs struct {
	succeeded atomic.Uint64 // calls that did their work
	refused   atomic.Uint64 // calls refused by the node for itself, without creations of sessions
	broken    atomic.Uint64 // transport errors
	bad       atomic.Uint64 // all bad signs
	hints     atomic.Uint64 // announcements of shutdown
	foreign   atomic.Uint64 // refusals because the node serves another database
	silent    atomic.Uint64 // probes on a connection in use that found it dead
	late      atomic.Uint64 // calls that were given up, and whose wait counts as a latency

	brokenRow  atomic.Int64 // transport errors since the node last answered anything
	refusedRow atomic.Int64 // refusals since the last success

	last atomic.Pointer[cluster.Outcome] // the newest bad sign
	lost atomic.Uint64                   // Outcome.Lost of the newest that had one

	// What had too much to do, by what it was, and its newest name; without creations of sessions.
	congested [cluster.CongestionSize]atomic.Uint64
	subjects  [cluster.CongestionSize]atomic.Pointer[string]
	// watched is set by Run while the next success is news to it.
	watched atomic.Bool

	// floor is the least wait for an answer that never came which counts as a
	// latency: it took at least as long. Shorter ones say nothing, because they
	// would make a node look fast whose callers give up early.
	floor atomic.Int64 // nanoseconds
	_     [24]byte     // the counters above and below are written by different cores
	times [timedKinds]latency.Histogram
	// slowOver is set by Run: the latency, in nanoseconds, over which a call counts
	// as slow; 0: it is not known what is normal. slowRow is how many did in a row.
	slowOver, slowRow [timedKinds]atomic.Int64
}

// few is how many slow calls in a row raise a doubt that probes then settle. A
// node that turns slow may get no more of them: the load rules shun it.
const few = 2

// add takes one outcome and reports whether Run should look at it now.
func (s *signs) add(o cluster.Outcome) (news bool) {
	if o.Congestion != cluster.CongestedNothing && o.Kind != cluster.CallOpen {
		s.congestion(o)
	}
	switch o.Blame {
	case cluster.BlameSuccess:
		s.succeeded.Add(1)
		if o.Latency > 0 && !o.Waits {
			news = s.took(o.Kind, o.Latency)
		}
		if s.brokenRow.Load() != 0 {
			s.brokenRow.Store(0)
		}
		if s.refusedRow.Load() != 0 {
			s.refusedRow.Store(0)
		}
		return news || s.watched.Load() && s.watched.CompareAndSwap(true, false)
	case cluster.BlameRefusal:
		s.brokenRow.Store(0) // it answered
		if o.Kind != cluster.CallOpen {
			// A node that takes no more sessions still serves those it has.
			s.refused.Add(1)
			s.refusedRow.Add(1)
		}
	case cluster.BlameTransport:
		if o.Lost != 0 && s.lost.Swap(o.Lost) == o.Lost {
			return false // all that one connection takes with it is one sign
		}
		if o.Kind == cluster.CallProbe {
			s.silent.Add(1)
		}
		s.broken.Add(1)
		s.brokenRow.Add(1)
	case cluster.BlameDraining:
		s.hints.Add(1)
		return true
	case cluster.BlameForeign:
		s.foreign.Add(1)
		return true
	default:
		if o.Waits || int64(o.Waited) < s.floor.Load() {
			return false
		}
		s.late.Add(1)
		return s.took(o.Kind, o.Waited)
	}
	kept := o // a copy, so that only bad signs allocate
	s.last.Store(&kept)
	s.bad.Add(1)
	return true
}

// congestion counts an answer that says what had too much to do: whatever that is, the node answered.
func (s *signs) congestion(o cluster.Outcome) {
	s.congested[o.Congestion].Add(1)
	if was := s.subjects[o.Congestion].Load(); o.Subject != "" && (was == nil || *was != o.Subject) {
		s.subjects[o.Congestion].Store(&o.Subject)
	}
	if s.brokenRow.Load() != 0 {
		s.brokenRow.Store(0)
	}
}

// took counts a latency of a kind that is compared.
func (s *signs) took(kind cluster.CallKind, d time.Duration) (news bool) {
	k := int(kind) - int(firstTimed)
	if uint(k) >= uint(timedKinds) {
		return false
	}
	s.times[k].Add(d)
	if over := s.slowOver[k].Load(); over != 0 && int64(d) >= over {
		return s.slowRow[k].Add(1) == few
	}
	if s.slowRow[k].Load() != 0 {
		s.slowRow[k].Store(0)
	}
	return false
}

// clear forgets the rows: the node starts again.
func (s *signs) clear() {
	s.brokenRow.Store(0)
	s.refusedRow.Store(0)
}
