package upstream

import (
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
)

// maxTries bounds each of the lists in a Report.
const maxTries = 16

// Try is one call to one node on behalf of a request.
type Try struct {
	hop.Done               // sizes are those of a statement with its parameters and of its answer; 0 for other calls
	Attempt  int           // from 1
	At       *cluster.Node // the node; not to be changed
	Session  string        // on which it was made; "": on none
	Commits  bool          // it ends a transaction well, or is one
	Around   bool          // not through the node that owns the session, which got it forwarded
	Span     trace.SpanID  // span that the node was told; zero: the request is not recorded
	Start    time.Time     // when it was sent
	Server   time.Duration // by the server's own clock; 0 without statistics
	Rows     int           // of its answer
}

// Round is how one attempt of a request came to its session.
type Round struct {
	Backoff time.Duration // the pause before the attempt
	Start   time.Time     // when a session was asked for; zero: none was needed
	Acquire time.Duration // until there was one, or none
	Queue   time.Duration // part of it in the pool's queue
	Node    cluster.NodeID
	Refused string    // why there was none; ""
	Created bool      // it was opened meanwhile, from Opening for Open
	Opening time.Time // may be before Start
	Open    time.Duration
}

// Report says where the time of a request went.
type Report struct {
	Node     cluster.NodeID // node that served the last attempt; 0: none did
	Attempts int
	Queue    time.Duration // in the pool's queue, all attempts
	Acquire  time.Duration // asking for sessions, the queue included, all attempts
	Hop      time.Duration // calls to nodes, last attempt
	Server   time.Duration // time by the servers' own clocks; 0 without statistics
	Units    uint64        // request units that nodes reported, all attempts
	Priced   bool          // nodes reported them
	Created  bool          // a session was opened while the request waited
	Unsure   bool          // an attempt before the last one may have run and may have been kept
	Rounds   []Round       // the first ones; at most 16
	Tries    []Try         // the first ones; at most 16
}

// tries collects what happens during one request. A nil one ignores all.
type tries struct {
	began    time.Time
	progress *Progress // of the request; nil: nobody looks
	report   Report
	// Room for what most requests need.
	rounds [1]Round
	hops   [2]Try
}

// begin begins the first attempt.
func (t *tries) begin() {
	t.began = time.Now()
	t.next(0)
}

// next begins another attempt, after a pause.
func (t *tries) next(pause time.Duration) {
	if t.report.Attempts++; t.report.Attempts == 1 {
		t.report.Rounds, t.report.Tries = t.rounds[:0], t.hops[:0]
	}
	t.report.Hop, t.report.Server = 0, 0
	if len(t.report.Rounds) < maxTries {
		t.report.Rounds = append(t.report.Rounds, Round{Backoff: pause})
	}
}

// round is the current attempt's, unless there were too many.
func (t *tries) round() *Round {
	if n := len(t.report.Rounds); n == t.report.Attempts {
		return &t.report.Rounds[n-1]
	}
	return new(Round)
}

// price adds the request units that a node reported.
func (t *tries) price(h *trip) {
	if t != nil && h.priced {
		t.report.Units, t.report.Priced = t.report.Units+h.units, true
	}
}

func (t *tries) add(try Try) {
	if t == nil {
		return
	}
	try.Attempt = t.report.Attempts
	t.report.Node = try.Node
	t.report.Hop += try.Took
	t.report.Server += try.Server
	if len(t.report.Tries) < maxTries {
		t.report.Tries = append(t.report.Tries, try)
	}
}
