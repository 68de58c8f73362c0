package virtual

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// Cluster is what the server needs of the cluster on behalf of its callers.
type Cluster interface {
	// WhoAmI names the user of a ticket; user is "" if the cluster names none. The
	// status is SUCCESS, UNAUTHORIZED, or UNAVAILABLE: no node could be asked.
	WhoAmI(ctx context.Context, database, ticket string) (user string, status Ydb.StatusIds_StatusCode)
	// Pool makes a pool for an identity. It has run nothing and knows no node.
	Pool(PoolConfig) OwnedPool
}

// PoolConfig is what sessions of an identity's pool are opened with.
type PoolConfig struct {
	Database string
	Table    bool          // they are of the table service
	Ticket   func() string // of the moment, "" for none; nil: the sidecar's own credentials

	// An identity may have several pools, which together get what one does.
	Identity    string     // equal for all pools of an identity in a database and a service
	Own         bool       // it is the sidecar's own, as of PoolsConfig.Own
	Application string     // the app that its sessions are for; "": any without sessions of its own
	Weight      func() int // of the pool, next to the others of the identity

	// Refused hears that a node opens no session for this ticket: it does not accept it.
	Refused func(ticket string)
}

// OwnedPool is the pool of an identity; *pool.Pool satisfies it.
type OwnedPool interface {
	Pool
	SetView(cluster.View)
	Run(context.Context) error
	Quiet(bool)
	Busy() bool
	Close(context.Context) error
}

// Meter hears what came of the calls on a pool's sessions.
type Meter = interface{ Report(cluster.Outcome) }

// IdentityPool is the pool of an identity in a database, or of one app of it.
type IdentityPool struct {
	Pool  Pool
	Meter Meter // of the pool; nil: it does not want to know

	name   poolKey
	mine   OwnedPool              // Pool, if it was made here
	ticket atomic.Pointer[string] // what sessions are opened with: of whoever needed one last

	gone    atomic.Bool // its pool is closed, or about to be
	left    atomic.Bool // it was closed because another one needed the room
	wasUsed atomic.Bool // a session of it, since the last sweep; calls write it only if it is not set

	sessions atomic.Int64 // of clients; changed when one is first used and when it ends

	// Guarded by IdentityPools.mu.
	used  time.Time
	ended chan struct{} // closed when mine.Run has
}

// OpensWith says with which ticket sessions are to be opened from now on.
func (t *IdentityPool) OpensWith(ticket *string) { t.ticket.Store(ticket) }

// is reports whether two are of one identity.
func (t *IdentityPool) is(other *IdentityPool) bool {
	return t == other || t != nil && other != nil && t.name.identity() == other.name.identity()
}

// isUser reports whether both are pools of one user in one database, of any service.
func (t *IdentityPool) isUser(other *IdentityPool) bool {
	return t == other || other != nil && t.name.database == other.name.database && t.name.user == other.name.user
}

// What a user is called that the cluster does not name. A name of the cluster's begins with "user ".
const (
	ownUser   = "own"
	anonymous = "anonymous"
)

// Credentials are what calls come with. It belongs to one goroutine at a time; what is exported is constant.
type Credentials struct {
	Ticket       string            // "": none
	Database     string            // in the spelling of PoolsConfig.Database
	Hash         [sha256.Size]byte // of both
	ConnSessions *ConnSessions     // of the connection, whatever ticket its calls come with; nil: its sessions are not counted

	pools   [2]*IdentityPool // by service, the table service behind; nil: not looked for yet
	unnamed [2]uint64        // by service: what IdentityPools.names said when its app got no pool of its own; 0: it has what it is to have
}

// NewCredentials returns those of a ticket and database.
func NewCredentials(database, ticket string) Credentials {
	return Credentials{Ticket: ticket, Database: database, Hash: sha256.Sum256([]byte(database + "\x00" + ticket))}
}

const (
	MaxPools      = 1000             // of identities, at a time
	maxIdentities = 10_000           // tickets remembered
	maxAsks       = 32               // questions under way at a time whose ticket it is, of one connection each
	maxOfClient   = 32               // questions of one connection
	maxFurther    = 1024             // questions behind the first of their connection, of all connections
	maxWaiters    = 1 << 16          // calls that wait for one answer
	identityTTL   = time.Hour        // after that is asked again whose it is; nodes look at the ticket of every call anyway
	refusalTTL    = time.Second      // so long a ticket is not asked about again
	askTimeout    = 5 * time.Second  // for one question
	poolIdle      = 10 * time.Minute // a pool that nobody used is closed
)

// Why a caller has no pool. ErrAsked is no refusal: it is being found out, or the pool is being made, and the Waiter is told.
var (
	ErrAsked        = errors.New("it is not known yet whose ticket it is, or the pool is being made")
	ErrPools        = errors.New("there are as many pools of identities as the sidecar's memory allows, 1000 at the most; try again later")
	ErrAsks         = errors.New("too many new tickets on the connection at a time; try again")
	ErrUnauthorized = errors.New("the cluster does not accept the call's credentials (header x-ydb-auth-ticket)")
	ErrNobodyKnows  = errors.New("no node could be asked whose credentials these are; the call was not sent")
)

// Refusal is err of the identity's pool as its callers are told it: a pool that made room for another is closed, too.
func (t *IdentityPool) Refusal(err error) error {
	if t.left.Load() && errors.Is(err, pool.ErrClosed) {
		return ErrPools
	}
	return err
}

// close closes the pool and waits for it.
func (t *IdentityPool) close(ctx context.Context) error {
	err := panics.Call("the closing of a pool", func() error { return t.mine.Close(ctx) })
	<-t.ended
	return err
}
