package app

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/wire"
)

// accounts satisfies wire.Accounts.
type accounts struct {
	driver *upstream.Driver
	config func() *Config // in force
	budget *pool.Budget   // of all pools that it makes
	limits *throttles
	log    *slog.Logger
}

func (a accounts) WhoAmI(ctx context.Context, database, ticket string) (user string, status Ydb.StatusIds_StatusCode) {
	user, err := a.driver.Account(database, false, func() string { return ticket }).WhoAmI(ctx)
	e, ok := errors.AsType[*upstream.Error](err)
	switch {
	case err == nil:
		return user, Ydb.StatusIds_SUCCESS
	case ok && e.Unauthorized():
		return "", Ydb.StatusIds_UNAUTHORIZED
	case ok && (e.Code == codes.Unimplemented || e.Status == Ydb.StatusIds_UNSUPPORTED):
		return "", Ydb.StatusIds_SUCCESS // it names nobody, ever
	}
	return "", Ydb.StatusIds_UNAVAILABLE
}

func (a accounts) Pool(c wire.TenantConfig) wire.TenantPool {
	p := pool.New(tenantPool(a.config().Pool), opener{a.driver.Account(c.Database, c.Table, c.Ticket), c}, a.log).Within(a.budget)
	if a.limits == nil {
		return p
	}
	return throttled{p, a.limits, a.limits.add(p)}
}

// tenantPool is a configuration for the pool of a caller.
func tenantPool(c pool.Config) pool.Config {
	c.Min = 0 // nobody knows whether the tenant comes again
	return c
}

// opener opens sessions for a tenant.
type opener struct {
	account *upstream.Account
	tenant  wire.TenantConfig
}

// Open satisfies pool.Opener.
func (o opener) Open(ctx context.Context, node cluster.NodeID, retire func(reason string)) (pool.Resource, error) {
	ticket := ""
	if o.tenant.Ticket != nil {
		ticket = o.tenant.Ticket()
	}
	r, err := o.account.Open(ctx, node, retire)
	if e, ok := errors.AsType[*upstream.Error](err); ok && e.Unauthorized() {
		o.tenant.Refused(ticket, "")
	}
	return r, err
}
