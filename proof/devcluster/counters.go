package devcluster

import "sync/atomic"

// counters count what one life of a node did.
type counters struct {
	calls, owned, forwarded, received, relayed  atomic.Int64
	statements                                  atomic.Int64
	sessionsCreated                             atomic.Int64
	transactions, commits, rollbacks, conflicts atomic.Int64
	failures                                    atomic.Int64
	late                                        atomic.Int64
}

// Counters is what a node did since it started.
//
// Wide: it is one flat JSON object of the control API, with a member for each counter.
type Counters struct {
	Calls     int64 `json:"calls"`     // calls of every kind, of clients and other nodes
	Owned     int64 `json:"owned"`     // session calls of clients, the session being here
	Forwarded int64 `json:"forwarded"` // session calls of clients, sent on to the owner
	Received  int64 `json:"received"`  // session calls that another node sent on to here
	// writes to a topic in a transaction of another node's session: they come where their stream
	// is
	Relayed         int64 `json:"relayed"`
	Statements      int64 `json:"statements"`       // requests executed that carried a statement
	Compilations    int64 `json:"compilations"`     // texts compiled; others came from the cache
	Sessions        int64 `json:"sessions"`         // live now
	SessionsCreated int64 `json:"sessions_created"` // ever
	Transactions    int64 `json:"transactions"`     // begun under transaction control
	Open            int64 `json:"open"`             // transactions open now
	Commits         int64 `json:"commits"`
	Rollbacks       int64 `json:"rollbacks"`     // asked for by clients
	Conflicts       int64 `json:"conflicts"`     // answers ABORTED
	Failures        int64 `json:"failures"`      // answers that are not SUCCESS
	Late            int64 `json:"late"`          // bulk upserts that failed and whose rows are still to be written, now
	DrainRefused    int64 `json:"drain_refused"` // creations of sessions that the drain under way refused
	DrainLate       int64 `json:"drain_late_ms"` // the last of them came so long after clients could first know of it
}

func (s *server) snapshot() Counters {
	n := &s.counters
	c := Counters{
		Calls: n.calls.Load(), Owned: n.owned.Load(), Forwarded: n.forwarded.Load(), Received: n.received.Load(), Relayed: n.relayed.Load(),
		Statements: n.statements.Load(), Compilations: int64(s.plans.Compilations()),
		SessionsCreated: n.sessionsCreated.Load(), Transactions: n.transactions.Load(), Commits: n.commits.Load(),
		Rollbacks: n.rollbacks.Load(), Conflicts: n.conflicts.Load(), Failures: n.failures.Load(), Late: n.late.Load(),
	}
	for _, info := range s.sessions.infos() {
		c.Sessions++
		c.Open += int64(info.Transactions)
	}
	refused, late := s.sessions.sawDrain()
	c.DrainRefused, c.DrainLate = refused, late.Milliseconds()
	return c
}
