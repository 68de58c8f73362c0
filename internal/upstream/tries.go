package upstream

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// maxTries bounds the list of tries in a Report.
const maxTries = 16

// Try is one call to one node on behalf of a request.
type Try struct {
	Attempt  int // from 1
	Node     cluster.NodeID
	Op       string
	Status   string        // of YDB, or gRPC's code when none came
	Duration time.Duration // from sending to the last part
	First    time.Duration // to the first part; 0: none came
	Server   time.Duration // by the server's own clock; 0 without statistics
}

// Report says where the time of a request went.
type Report struct {
	Node     cluster.NodeID // that served the last attempt; 0: none did
	Attempts int
	Queue    time.Duration // in the line for a session, all attempts
	Acquire  time.Duration // asking for sessions, the line included, all attempts
	Hop      time.Duration // calls to nodes, last attempt
	Server   time.Duration // the same by the servers' own clocks; 0 without statistics
	Created  bool          // a session was opened while the request waited
	Unsure   bool          // an attempt before the last one may have run and may have been kept
	Tries    []Try         // the first ones; at most 16
}

// tries collects what happens during one request. A nil one ignores all.
type tries struct {
	report Report
}

// next begins another attempt.
func (t *tries) next() {
	t.report.Attempts++
	t.report.Hop, t.report.Server = 0, 0
}

func (t *tries) number() int {
	if t == nil {
		return 1
	}
	return t.report.Attempts
}

func (t *tries) add(try Try) {
	if t == nil {
		return
	}
	try.Attempt = t.report.Attempts
	t.report.Node = try.Node
	t.report.Hop += try.Duration
	t.report.Server += try.Server
	if len(t.report.Tries) < maxTries {
		t.report.Tries = append(t.report.Tries, try)
	}
}
