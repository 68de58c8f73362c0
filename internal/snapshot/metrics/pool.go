package metrics

import (
	"github.com/ydb-sidecar/sidecar/internal/adaptive"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// poolRows are the figures of the pool of the plain API, and sums over the pools of callers.
var poolRows = []figure{
	level("db.client.connection.count", "{connection}",
		"Sessions by state.",
		func(m *moment, tell ints) {
			tell(int64(m.Pool.Idle), m.pool, state("idle"))
			tell(int64(m.Pool.InUse), m.pool, state("used"))
			tell(int64(m.Pool.Opening), m.pool, state("creating"))
			tell(int64(m.Pool.Closing), m.pool, state("closing"))
			if v := m.virtual(); v != nil && len(v.Pools) > 0 {
				sum := sumOf(v.Pools)
				tell(int64(sum.Idle), callers, state("idle"))
				tell(int64(sum.InUse), callers, state("used"))
				tell(int64(sum.Opening), callers, state("creating"))
				tell(int64(sum.Closing), callers, state("closing"))
			}
		}),
	level("db.client.connection.max", "{connection}",
		"Limit of sessions.",
		func(m *moment, tell ints) {
			tell(int64(m.Pool.Max), m.pool)
			if m.virtual() != nil {
				tell(int64(m.Starting.ServerSessions), callers)
			}
		}),
	level("db.client.connection.idle.min", "{connection}",
		"Sessions kept open.",
		func(m *moment, tell ints) { tell(int64(m.Settings.PoolMin), m.pool) }),
	level("db.client.connection.pending_requests", "{request}",
		"Callers in the queue for a session, by class.",
		func(m *moment, tell ints) {
			for class, n := range m.Pool.Waiting {
				tell(int64(n), m.pool, priority(pool.Class(class).String()))
			}
			if v := m.virtual(); v != nil {
				tell(int64(sumOf(v.Pools).Waiting), callers, priority(pool.Normal.String()))
			}
		}),
	counter("db.client.connection.timeouts", "{timeout}",
		"Callers who left the queue without a session: their time was up, or they went away.",
		func(m *moment, tell ints) { tell(int64(m.Pool.TimedOut), m.pool) }),
	counter("ydb.query.session.pending_requests", "{request}",
		"Callers that came to the queue for a session so far: of YDB's family, unlike "+
			"db.client.connection.pending_requests, which is how many are in it.",
		func(m *moment, tell ints) {
			tell(int64(m.Pool.Queued), label("ydb.query.session.pool.name", m.Database))
		}),
	gauge("ydb.sidecar.pool.moving", "{pool}",
		"1 while sessions are being moved towards an even spread.",
		func(m *moment, tell ints) { tell(one(m.Pool.Moving), m.pool) }),
	counter("ydb.sidecar.pool.refused", "{request}",
		"Callers rejected because the queue was full.",
		func(m *moment, tell ints) { tell(int64(m.Pool.Refused), m.pool) }),
	counter("ydb.sidecar.pool.shed", "{request}",
		"Callers rejected though the queue had room, by reason.",
		func(m *moment, tell ints) {
			for why, n := range m.Pool.Shed {
				tell(int64(n), m.pool, reason(pool.Shed(why).String()))
			}
		}),
	counter("ydb.sidecar.pool.created", "{connection}",
		"Sessions opened.",
		func(m *moment, tell ints) { tell(int64(m.Pool.Created), m.pool) }),
	counter("ydb.sidecar.pool.failed", "{connection}",
		"Sessions that could not be opened.",
		func(m *moment, tell ints) { tell(int64(m.Pool.Failed), m.pool) }),
	counter("ydb.sidecar.pool.closed", "{connection}",
		"Sessions ended.",
		func(m *moment, tell ints) { tell(int64(m.Pool.Closed), m.pool) }),
	counter("ydb.sidecar.pool.moved", "{connection}",
		"Sessions let go for the sake of another node.",
		func(m *moment, tell ints) { tell(int64(m.Pool.Moved), m.pool) }),
	level("ydb.sidecar.pool.paced", "{connection}",
		"Sessions that are wanted and wait for the pace of opening.",
		func(m *moment, tell ints) { tell(int64(m.Pool.Paced), m.pool) }),
	decimal("ydb.sidecar.retry.budget", "{retry}",
		"Retries that could be sent at once now.",
		func(m *moment, tell decimals) { tell(m.RetryBudget) }),
}

// limitRows are those of pool.adaptive.
var limitRows = []figure{
	decimal("ydb.sidecar.pool.limit", "{connection}",
		"Adaptive limit of sessions in use.",
		func(m *moment, tell decimals) {
			tell(m.Limits.Own.Limit, m.pool)
			tell(m.Limits.Callers, callers)
		}),
	gauge("ydb.sidecar.pool.limit.floor", "{connection}",
		"Floor of the adaptive limit: pool.adaptive_floor, or pool.max if that is less.",
		func(m *moment, tell ints) { tell(int64(min(m.Limits.Floor, m.Pool.Max)), m.pool) }),
	counter("ydb.sidecar.pool.limit.changes", "{change}",
		"Changes of the adaptive limits, by reason.",
		func(m *moment, tell ints) {
			for why, n := range m.Limits.Changes {
				tell(int64(n), reason(adaptive.Reason(why).String()))
			}
		}),
}
