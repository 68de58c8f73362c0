package pool

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
)

// Resource is what a session is to the pool: something on a node to delete.
type Resource interface {
	// Close deletes the session on its node. It is called once, on a goroutine of
	// its own, and must return soon after ctx ends. An error is logged, no more.
	Close(ctx context.Context) error
}

// Opener opens sessions.
type Opener interface {
	// Open creates a session on node. It is called on a goroutine of its own and
	// must return soon after ctx ends; ctx belongs to the pool, not to a caller. An error whose method
	// Denied reports true says that a right is missing, and its method Message what callers are told.
	//
	// retire says that the session must not be used again: its stream ended, the
	// node hinted at its shutdown. It may be called from any goroutine, at any time
	// from now on, any number of times. An idle session is then closed at once, a
	// session in use is closed at its release.
	Open(ctx context.Context, node cluster.NodeID, retire func(reason string)) (Resource, error)
}

// Session is one session on one node. Between Acquire and Release or Discard it
// belongs to one caller.
//
// Wide: each group of fields has another owner, and all of them are in one object, aligned with cache lines.
// What each checkout needs comes first: with many sessions in use it is not in the processor's cache.
type Session struct {
	// retired is set once, to the reason.
	retired atomic.Pointer[string]
	node    *node
	name    string // of the resource, if it has one

	// User is for the caller that uses the session. The pool does not look at it.
	User any

	// Owned by the caller that uses the session, or has taken it from a slot or a stack.
	uses     uint32 // how often it was checked out
	slot     uint32 // the slot to go back to: that of the P that checked it out
	inUse    bool
	recovers bool // see Pool.Recover

	index uint16 // of its cell
	res   Resource
	conn  *queue.Conn // connection for which it counts, if a caller waited for it; nil: none

	// Owned by sweeps, which hold the session as well as Pool.mu.
	seenUses uint32
	seenAt   time.Time

	// Guarded by Pool.mu.
	expires  time.Time      // by its age; zero: never, which is so while Config.Age is 0
	gone     bool           // closing, or closed
	aside    bool           // in node.aside
	going    bool           // counted in node.going
	yieldFor *budget.Member // the pool for whose sake it goes, see promiseLocked; nil: none

	prev *Session // in node.first
	next *Session

	hold atomic.Pointer[Hold] // see Note

	_ [8]byte // 192 bytes in all: objects of this size begin with a cache line
}

// Node returns the node that the session lives on.
func (s *Session) Node() cluster.NodeID { return s.node.id }

// Home returns where the session lives, for Ask.Near.
func (s *Session) Home() Home { return Home{s.node} }

// Name returns what the resource says it is called (ID() string), or "".
func (s *Session) Name() string { return s.name }

// Resource returns what Opener.Open returned.
func (s *Session) Resource() Resource { return s.res }

// Valid reports whether the session may be used for new work. A session that
// turned invalid while it is in use should be let go soon; what is open on it may
// finish.
func (s *Session) Valid() bool { return s.retired.Load() == nil }

// Retired returns why the session must not be used again, or "" if it is valid.
func (s *Session) Retired() string {
	if r := s.retired.Load(); r != nil {
		return *r
	}
	return ""
}

// Grant is a session that was checked out, and how it came.
type Grant struct {
	*Session
	Waited  time.Duration // in the queue; 0 if one was free
	Created bool          // it was opened while the caller waited
}
