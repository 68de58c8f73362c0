package core

import (
	"sync/atomic"

	"github.com/ydb-sidecar/sidecar/internal/lease"
)

// TxEnd says how an interactive transaction ended. Only txCommitted has kept anything, and txFailed may have.
type TxEnd uint8

// The ends of transactions.
const (
	txCommitted  TxEnd = iota
	txRolledBack       // by its caller
	txFailed           // a statement or the commit failed
	txLost             // its session was lost, with the node or without, or the database ended it
	txTimeout          // the deadline of a call of it came first
	txCancelled        // the caller of a statement went away
	txIdle             // nothing was sent for tx.idle
	txExpired          // it was open for tx.max
	txDrained          // the sidecar stopped
	txEnds       = int(txDrained) + 1
)

// String is the word for it in metrics, spans and /state/api.
func (e TxEnd) String() string {
	return [txEnds]string{"committed", "rolled_back", "failed", "lost", "timeout", "cancelled", "idle", "expired", "drained"}[e]
}

// endOf says how a transaction ended whose lease has ended so.
func (t *transaction) endOf(why lease.Reason) TxEnd {
	switch why {
	case lease.Finished:
		return txCommitted
	case lease.Abandoned:
		return txRolledBack
	case lease.Idle:
		return txIdle
	case lease.Expired:
		return txExpired
	case lease.Unused, lease.Closed:
		return txDrained
	case lease.Killed:
		return txLost
	}
	switch {
	case t.maxed:
		return txExpired
	case t.fate == nil:
		return txFailed
	case t.fate.Code == codeTxLost:
		return txLost
	case t.fate.Code == CodeDeadline:
		return txTimeout
	case t.fate.Code == codeCancelled:
		return txCancelled
	}
	return txFailed
}

// counts are what the API counts itself, beside the histograms of calls.
type counts struct {
	ended     [txEnds]atomic.Uint64
	replayed  atomic.Uint64
	truncated atomic.Uint64
	unknown   atomic.Uint64
}

// Counts are counters of the API.
type Counts struct {
	Ended     map[string]uint64 `json:"transactions_ended"` // interactive ones, by how
	Replayed  uint64            `json:"replayed"`           // repeats of steps that got the stored outcome
	Truncated uint64            `json:"truncated"`          // calls whose reply lacks rows, because a limit was reached
	Unknown   uint64            `json:"outcome_unknown"`    // statements and calls that failed and may have run
}

func (n *counts) read() Counts {
	out := Counts{Ended: make(map[string]uint64, txEnds), Replayed: n.replayed.Load(), Truncated: n.truncated.Load(),
		Unknown: n.unknown.Load()}
	for end := range n.ended {
		out.Ended[TxEnd(end).String()] = n.ended[end].Load()
	}
	return out
}

// count counts a call that has ended, with what came of it.
func (n *counts) count(c *Call, f *Fault) {
	switch {
	case f != nil && f.Unknown:
		n.unknown.Add(1)
	case f == nil && c.cut.Load():
		n.truncated.Add(1)
	}
}
