package pool

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
)

// Ask is who wants a session, and what is known of the work.
type Ask struct {
	Class  Class
	App    uint8         // a number for the app that asks; each has a queue of its own in the class
	From   uint64        // a number for the connection that asks; in the queue connections take turns; 0: all that say nothing are one
	Weight uint16        // of the app's queue next to the others in the class; 0 counts as 1
	Needs  time.Duration // about how long the work needs the session; 0: unknown
	Left   time.Duration // time until the outcome is of no use any more; 0: unknown
	Near   Home          // from where a session is preferred, for a caller that has had one there
}

// Home is where a session lives. The zero Home is nowhere.
type Home struct{ node *node }

// hopeless reports whether the work cannot be done in time even if it begins now.
func (a Ask) hopeless() bool { return a.Left > 0 && a.Left < a.Needs }

// Waiter stands in the queue for a caller that does not block. It may be used
// again once it was told or cancelled, not before.
type Waiter = queue.Waiter[handover]

// handover is how the caller of a waiter is told.
type handover struct {
	told    func(Grant, error) // nil: the caller blocks on done
	done    chan struct{}      // has room for one
	session *Session           // what is handed over; nil: refused
}

// NewWaiter returns a waiter that tells its caller through told, which must not
// be nil. See Pool.Wait.
func NewWaiter(told func(Grant, error)) *Waiter {
	if told == nil {
		panic("pool: a waiter that cannot be told")
	}
	return &Waiter{Handover: handover{told: told}}
}

// queue returns the part of the configuration that is the queue's.
func (c *Config) queue() queue.Config {
	return queue.Config{Size: c.Queue, Shares: c.Shares.byClass(), Deadline: c.Shed, Age: c.QueueAge, Target: c.QueueTarget}
}
