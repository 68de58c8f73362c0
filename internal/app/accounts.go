package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/adaptive"
	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// identities satisfies virtual.Cluster.
type identities struct {
	driver *upstream.Driver
	config func() *Config // in force
	births sync.Locker    // see reloader
	budget *pool.Budget   // of the pools that it makes for callers
	own    *pool.Budget   // of the pools with the sidecar's own credentials, and of the pool of the plain API; nil: there are none
	plain  *pool.Pool     // of the plain API
	limits *adaptive.Limits
	log    *slog.Logger
}

func (a identities) WhoAmI(ctx context.Context, database, ticket string) (user string, status Ydb.StatusIds_StatusCode) {
	account := a.driver.SessionOpener(database, false, func() string { return ticket })
	user, err := account.WhoAmI(ctx)
	e, ok := errors.AsType[*upstream.Error](err)
	for range whoElse { // another node knows as well
		if !ok || e.Verdict.Retry != ydbstatus.RetryAlways || !awake.Sleep(ctx, whoPause) {
			break
		}
		user, err = account.WhoAmI(ctx)
		e, ok = errors.AsType[*upstream.Error](err)
	}
	switch {
	case err == nil:
		return user, Ydb.StatusIds_SUCCESS
	case ok && e.Unauthorized():
		return "", Ydb.StatusIds_UNAUTHORIZED
	case ok && (e.Code == codes.Unimplemented || e.Status != 0 && e.Verdict.Retry == ydbstatus.RetryNever):
		// The node answered that it cannot name a user: a cluster that enforces no tickets does
		// so with GENERIC_ERROR. Calls with such a ticket are the node's to accept or to reject.
		return "", Ydb.StatusIds_SUCCESS
	}
	return "", Ydb.StatusIds_UNAVAILABLE
}

// After a node that could not answer WhoAmI so many others are asked, after such a pause.
const (
	whoElse  = 2
	whoPause = 20 * time.Millisecond
)

func (a identities) Pool(c virtual.PoolConfig) virtual.OwnedPool {
	a.births.Lock()
	defer a.births.Unlock()
	own := c.Own && a.own != nil
	in := a.config().Pool
	if own {
		in = a.plain.Config() // an operator may have resized it
	}
	p := pool.New(poolConfigFor(in), opener{a.driver.SessionOpener(c.Database, c.Table, c.Ticket).Named(c.Application), c}, a.log)
	if own {
		p.WithinGroup(a.own, ownGroup, c.Weight)
	} else {
		p.WithinGroup(a.budget, c.Identity, c.Weight)
	}
	p.Pause(a.plain.Paused())
	if a.limits == nil {
		return p
	}
	var bounds func() adaptive.Config
	if own {
		bounds = boundsOfOwn(p)
	}
	return throttled{p, a.limits, a.limits.Add(p, bounds)}
}

// ownGroup is the group of the pools of the sidecar's own identity.
const ownGroup = "own"

// namesFor is the most apps of an identity that have sessions of their own: each can have some of pool.max.
func namesFor(c pool.Config) int { return c.Max / sessionsForName }

const sessionsForName = 4

// poolConfigFor is the configuration of the pool of an identity.
func poolConfigFor(c pool.Config) pool.Config {
	c.Min = 0 // the caller may never come again
	return c
}

// opener opens sessions for the pool of an identity.
type opener struct {
	sessions *upstream.SessionOpener
	config   virtual.PoolConfig
}

// Open satisfies pool.Opener.
func (o opener) Open(ctx context.Context, node cluster.NodeID, retire func(reason string)) (pool.Resource, error) {
	ticket := ""
	if o.config.Ticket != nil {
		ticket = o.config.Ticket()
	}
	r, err := o.sessions.Open(ctx, node, retire)
	if e, ok := errors.AsType[*upstream.Error](err); ok && e.Unauthorized() {
		o.config.Refused(ticket)
	}
	return r, err
}

// limitsFor keeps the adaptive limits of all pools; nil without pool.adaptive.
func limitsFor(c pool.Config) *adaptive.Limits {
	if !c.Adaptive {
		return nil
	}
	return adaptive.NewLimits(lawOf(c))
}

// lawOf bounds the adaptive limit of a pool.
func lawOf(c pool.Config) adaptive.Config {
	return adaptive.Default(min(c.AdaptiveFloor, c.Max), c.Max)
}

// boundsOfOwn are those that a pool of the sidecar's own identity brings along.
func boundsOfOwn(p *pool.Pool) func() adaptive.Config {
	return func() adaptive.Config { return lawOf(p.Config()) }
}

// throttled is a pool with an adaptive limit.
type throttled struct {
	*pool.Pool
	all *adaptive.Limits
	own *adaptive.Limit
}

// Report tells what came of a call on a session of the pool.
func (p throttled) Report(o cluster.Outcome) { p.own.Meter().Report(o) }

// Close closes the pool.
func (p throttled) Close(ctx context.Context) error {
	p.all.Remove(p.own)
	return p.Pool.Close(ctx)
}
