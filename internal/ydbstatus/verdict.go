// Package ydbstatus is THE table from a status to a verdict: whether a call may
// be sent again, after which backoff, whether its session survives, and what it
// says about the node. Everybody who acts on an error acts on this verdict.
//
// It is pure: no I/O, no state. docs/reference/statuses.md is generated from the table.
package ydbstatus

import "github.com/ydb-sidecar/sidecar/internal/cluster"

// Retry says when a call may be sent again.
type Retry uint8

// The answers.
const (
	RetryNever      Retry = iota // it would fail again, or the caller must decide
	RetryIdempotent              // it may have run: only if the caller said that it is idempotent
	RetryAlways                  // it surely did not run, or was rolled back
)

func (r Retry) String() string { return [...]string{"never", "idempotent", "always"}[r%3] }

// Backoff is the kind of pause before the next try.
type Backoff uint8

// The kinds; internal/upstream has the durations.
const (
	BackoffNone Backoff = iota
	BackoffFast
	BackoffSlow
)

func (b Backoff) String() string { return [...]string{"none", "fast", "slow"}[b%3] }

// Verdict is what to do about one outcome.
type Verdict struct {
	Retry       Retry
	Backoff     Backoff
	DropSession bool
	SessionGone bool // the node does not know the session any more: nothing is left to delete there
	Unknown     bool // the call may have taken effect, and the sidecar cannot tell
	Blame       cluster.Blame
	Congestion  cluster.Congestion // what has too much to do; CongestedNothing: that is not why
}
