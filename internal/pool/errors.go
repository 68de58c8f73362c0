package pool

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
)

// What callers branch on, beside *WaitError.
var (
	// ErrClosed means that Close was called.
	ErrClosed = errors.New("pool: closed")
	// ErrQueueFull means that the queue was full, or became full of callers that go first.
	ErrQueueFull = errors.New("pool: too many callers wait for a session")
	// errFullPaused is an ErrQueueFull of a pool that hands out no session because an operator paused it.
	errFullPaused = fmt.Errorf("%w: the pool is paused by an operator", ErrQueueFull)
	// ErrNoNode means that no node is known that may get new sessions.
	ErrNoNode = errors.New("pool: no eligible node known")
)

// Shed is why a caller was refused though the queue had room for it.
type Shed uint8

// The reasons.
const (
	ShedDeadline Shed = iota // it could not have been done in time
	ShedAge                  // it waited for Config.QueueAge
	// it waited for Config.QueueTarget in a queue that does not go away, or came to one in which
	// many were lost lately
	ShedDelay

	shedSize = int(ShedDelay) + 1
)

// String returns the word for metrics.
func (s Shed) String() string {
	return [shedSize]string{"deadline", "age", "delay"}[min(int(s), shedSize-1)]
}

// ShedError says why a caller was rejected before its context ended.
type ShedError struct {
	Why    Shed
	Class  Class
	Waited time.Duration // in the queue; 0: it was refused as it came
	Ahead  time.Duration // what it would have had to wait, if it was refused as it came; 0: nothing, or unknown
	Needs  time.Duration // for the work itself; 0: unknown
	Left   time.Duration // until its deadline; 0: unknown
	Limit  time.Duration // the setting, for ShedAge and ShedDelay
	Retry  time.Duration // when trying again may make sense
	Paused bool          // see Pool.Pause
}

func (e *ShedError) Error() string {
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	switch {
	case e.Why == ShedAge:
		return fmt.Sprintf("pool: waited %v for a session; pool.queue_age is %v", round(e.Waited), e.Limit)
	case e.Why == ShedDelay && e.Ahead > 0:
		return fmt.Sprintf(
			"pool: of the app's calls that wait for a session one in %d or more is turned away; this one would have had to wait %v",
			queue.LostShare, round(e.Ahead),
		)
	case e.Why == ShedDelay:
		return fmt.Sprintf("pool: waited %v for a session while there are too few of them; pool.queue_target is %v",
			round(e.Waited), e.Limit)
	case e.Waited > 0:
		return fmt.Sprintf("pool: waited %v for a session; of the time for the work, about %v, only %v is left",
			round(e.Waited), round(e.Needs), round(e.Left))
	}
	return fmt.Sprintf("pool: the deadline is in %v; the wait for a session takes about %v and the work about %v",
		round(e.Left), round(e.Ahead), round(e.Needs))
}

const (
	retryLeast = 10 * time.Millisecond
	retryMost  = 5 * time.Second
)

// retryAfter makes a hint of what one has, or would have, waited.
func retryAfter(wait time.Duration) time.Duration { return min(max(wait, retryLeast), retryMost) }

// WaitError says why a caller's context ended before it got a session.
type WaitError struct {
	Class   Class
	Waited  time.Duration
	Busy    int   // sessions in use by others
	Opening int   // sessions being opened
	Live    int   // sessions open, in use or idle
	Max     int   // the limit of the pool
	Limit   int   // sessions that SetLimit allows in use, if that is less than Max; else 0
	Shared  int   // the limit of all pools in the budget, if that is what the caller waited for; else 0
	Grouped bool  // Shared is the limit of a group of pools, which is Config.Max
	Nodes   int   // nodes that may get new sessions
	Open    error // the last failure to open a session, if it came during the wait or none was opened since
	Cause   error // of the context's end
	Paused  bool  // see Pool.Pause
}

func (e *WaitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pool: waited %v for a session: %d of at most %d in use", e.Waited.Round(time.Microsecond), e.Busy, e.Max)
	if e.Limit > 0 {
		fmt.Fprintf(&b, ", %d allowed now, by what the cluster bears (pool.adaptive)", e.Limit)
	}
	if e.Opening > 0 {
		fmt.Fprintf(&b, ", %d being opened", e.Opening)
	}
	switch {
	case e.Grouped:
		fmt.Fprintf(&b, ", all %d sessions of the pools of this identity's apps taken", e.Shared)
	case e.Shared > 0:
		fmt.Fprintf(&b, ", all %d sessions of all pools taken", e.Shared)
	}
	if e.Paused {
		b.WriteString(", the pool is paused by an operator")
	}
	if e.Nodes == 0 {
		b.WriteString(", no eligible node")
	}
	if e.Open != nil {
		fmt.Fprintf(&b, "; last failure to open one: %v", e.Open)
	}
	fmt.Fprintf(&b, ": %v", e.Cause)
	return b.String()
}

// Paused reports whether an error of this package came of Pool.Pause: the caller got no session while
// an operator kept them back.
func Paused(err error) bool {
	if e, ok := errors.AsType[*WaitError](err); ok {
		return e.Paused
	}
	if e, ok := errors.AsType[*ShedError](err); ok {
		return e.Paused
	}
	return errors.Is(err, errFullPaused)
}

// DeniedError says that no session is there, and that the sidecar lacks the right to open one: waiting
// does not help.
type DeniedError struct {
	Text string // of the node, for the caller
	Open error
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("pool: no session may be opened: %v", e.Open)
}

// Unwrap returns what the Opener said.
func (e *DeniedError) Unwrap() error { return e.Open }

// Unwrap returns why the context ended.
func (e *WaitError) Unwrap() error { return e.Cause }
