package pool

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// What callers branch on, beside *WaitError.
var (
	// ErrClosed means that Close was called.
	ErrClosed = errors.New("pool: closed")
	// ErrQueueFull means that the line was full, or became full of callers who go first.
	ErrQueueFull = errors.New("pool: too many callers wait for a session")
	// ErrNoNode means that no node is known that may get new sessions.
	ErrNoNode = errors.New("pool: no eligible node known")
)

// WaitError says why a caller's context ended before it got a session.
type WaitError struct {
	Class   Class
	Waited  time.Duration
	Busy    int   // sessions leased to others
	Opening int   // sessions being opened
	Live    int   // sessions open, leased or idle
	Max     int   // the limit of the pool
	Shared  int   // the limit of all pools in the budget, if that is what the caller waited for; else 0
	Nodes   int   // nodes that may get new sessions
	Open    error // the last failure to open a session, if it came during the wait or none was opened since
	Cause   error // of the context's end
}

func (e *WaitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pool: waited %v for a session: %d of at most %d in use", e.Waited.Round(time.Microsecond), e.Busy, e.Max)
	if e.Opening > 0 {
		fmt.Fprintf(&b, ", %d being opened", e.Opening)
	}
	if e.Shared > 0 {
		fmt.Fprintf(&b, ", all %d sessions of all pools taken", e.Shared)
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

// Unwrap returns why the context ended.
func (e *WaitError) Unwrap() error { return e.Cause }
