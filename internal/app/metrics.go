package app

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ydb-sidecar/sidecar/internal/adaptive"
	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// instruments are the figures that the parts count in atomics of their own and
// that are read when somebody asks. Histograms are fed by their parts.
type instruments struct {
	sessions  metric.Int64ObservableUpDownCounter // by state
	max       metric.Int64ObservableUpDownCounter
	idleMin   metric.Int64ObservableUpDownCounter
	waiting   metric.Int64ObservableUpDownCounter // by class
	timeouts  metric.Int64ObservableCounter
	refused   metric.Int64ObservableCounter
	queued    metric.Int64ObservableCounter
	moving    metric.Int64ObservableGauge
	budget    metric.Float64ObservableGauge
	build     metric.Int64ObservableGauge // by version
	unlogged  metric.Int64ObservableCounter
	dropped   metric.Int64ObservableCounter
	caught    metric.Int64ObservableCounter
	created   metric.Int64ObservableCounter
	failed    metric.Int64ObservableCounter
	closed    metric.Int64ObservableCounter
	ofNode    metric.Int64ObservableUpDownCounter // sessions by node and state
	calls     metric.Int64ObservableUpDownCounter // by node
	overload  metric.Int64ObservableCounter       // by node
	health    metric.Int64ObservableGauge         // by node
	panics    metric.Int64ObservableGauge
	forwarded metric.Int64ObservableCounter
	scattered metric.Int64ObservableCounter
	open      metric.Int64ObservableUpDownCounter
	guests    metric.Int64ObservableUpDownCounter // by face
	declined  metric.Int64ObservableCounter
	leases    metric.Int64ObservableUpDownCounter
	discovery metric.Int64ObservableGauge
	nameless  metric.Int64ObservableGauge
	missing   metric.Int64ObservableGauge
	kept      metric.Int64ObservableCounter
	departed  metric.Int64ObservableGauge
	leftOut   metric.Int64ObservableGauge
	marks     metric.Int64ObservableGauge   // by node: banned, leaving, unreachable
	weight    metric.Float64ObservableGauge // by node
	latency   metric.Float64ObservableGauge // by node
	local     metric.Float64ObservableGauge
	ejections metric.Int64ObservableCounter // by cause
	spared    metric.Int64ObservableCounter
	alarms    metric.Int64ObservableCounter
	findings  metric.Int64ObservableGauge   // by code
	probes    metric.Int64ObservableCounter // by result
	moved     metric.Int64ObservableCounter
	paced     metric.Int64ObservableUpDownCounter
	stage     metric.Int64ObservableGauge
	left      metric.Float64ObservableGauge
	carried   metric.Int64ObservableCounter       // by end
	abuses    metric.Int64ObservableCounter       // by kind
	bytes     metric.Int64ObservableCounter       // by peer and direction
	links     metric.Int64ObservableUpDownCounter // by peer
	held      metric.Int64ObservableUpDownCounter
	buffered  metric.Int64ObservableUpDownCounter
	unread    metric.Int64ObservableCounter
	virtual   metric.Int64ObservableUpDownCounter
	pools     metric.Int64ObservableUpDownCounter
	unnamed   metric.Int64ObservableCounter
	shed      metric.Int64ObservableCounter       // by reason
	appOpen   metric.Int64ObservableUpDownCounter // by app
	appUse    metric.Int64ObservableUpDownCounter // by app, class and state
	appServed metric.Int64ObservableCounter       // by app and class
	appDenied metric.Int64ObservableCounter       // by app, class and reason
	lowered   metric.Int64ObservableCounter       // by app
	appUnits  metric.Int64ObservableCounter       // by app
	appWait   metric.Float64ObservableGauge       // by app, class and quantile
	limit     metric.Float64ObservableGauge       // nil without pool.adaptive, like changes
	memory    metric.Int64ObservableGauge         // by kind; nil without a guard, like the next three
	tight     metric.Int64ObservableGauge
	large     metric.Int64ObservableCounter
	slowed    metric.Int64ObservableCounter
	requests  metric.Int64ObservableGauge
	unroomed  metric.Int64ObservableCounter
	changes   metric.Int64ObservableCounter // by reason
	reloads   metric.Int64ObservableCounter // by result
	restart   metric.Int64ObservableGauge
	certs     metric.Int64ObservableCounter // by section and result
	crowded   metric.Int64ObservableCounter // by face
	unheard   metric.Int64ObservableCounter // by face

	xds xdsInstruments
}

// observe registers the figures of all parts.
func (a *App) observe(provider metric.MeterProvider) error {
	meter := provider.Meter("github.com/ydb-sidecar/sidecar/internal/app")
	var in instruments
	var all []metric.Observable
	var errs []error
	level := func(to *metric.Int64ObservableUpDownCounter, name, unit, text string) {
		i, err := meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		*to, all, errs = i, append(all, i), append(errs, err)
	}
	count := func(to *metric.Int64ObservableCounter, name, unit, text string) {
		i, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		*to, all, errs = i, append(all, i), append(errs, err)
	}
	gauge := func(to *metric.Int64ObservableGauge, name, unit, text string) {
		i, err := meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(text))
		*to, all, errs = i, append(all, i), append(errs, err)
	}
	decimal := func(to *metric.Float64ObservableGauge, name, unit, text string) {
		i, err := meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(text))
		*to, all, errs = i, append(all, i), append(errs, err)
	}
	count(&in.reloads, "ydb.sidecar.config.reloads", "{reload}", "Times that the configuration was read again, by result: ok or failed, which changed nothing.")
	count(&in.crowded, "ydb.sidecar.connections.refused", "{connection}", "Connections closed because as many were open as there may be (connections.each, and twice as many on all listeners together; those of which no request has come are closed first; of HTTP/2 on a listener of the HTTP API as many as half of the memory limit has room for. 64 on each listener of operators; idle ones are closed first), by face.")
	count(&in.unheard, "ydb.sidecar.connections.failed", "{failure}", "Attempts to accept a connection that failed, such as for want of descriptors, and were tried again, by face.")
	count(&in.certs, "ydb.sidecar.tls.reloads", "{reload}", "Times that files of TLS were read again, by section of settings and result: ok or failed, after which those of before count.")
	if a.xds != nil {
		level(&in.xds.streams, "ydb.sidecar.xds.streams", "{stream}", "Streams of xDS clients, by flavor: envoy or grpc.")
		level(&in.xds.nodes, "ydb.sidecar.xds.nodes", "{node}", "Nodes published over xDS, by health status.")
		count(&in.xds.published, "ydb.sidecar.xds.publications", "{publication}", "Times that something was published over xDS.")
		count(&in.xds.responses, "ydb.sidecar.xds.responses", "{response}", "Answers sent to xDS clients.")
		count(&in.xds.nacks, "ydb.sidecar.xds.nacks", "{response}", "Answers that an xDS client refused: the log says why.")
		count(&in.xds.refused, "ydb.sidecar.xds.refused", "{stream}", "Streams refused because as many were open as there may be.")
	}
	gauge(&in.restart, "ydb.sidecar.config.pending", "{setting}", "Settings that were changed and count only after a restart.")
	level(&in.sessions, "db.client.connection.count", "{connection}", "Sessions by state.")
	level(&in.max, "db.client.connection.max", "{connection}", "Limit of sessions.")
	level(&in.idleMin, "db.client.connection.idle.min", "{connection}", "Sessions kept open.")
	level(&in.waiting, "db.client.connection.pending_requests", "{request}", "Callers in line for a session, by class.")
	count(&in.timeouts, "db.client.connection.timeouts", "{timeout}", "Callers whose time was up in the line.")
	count(&in.queued, "ydb.query.session.pending_requests", "{request}", "Callers that came to the line for a session so far: of YDB's family, unlike db.client.connection.pending_requests, which is how many are in it.")
	gauge(&in.moving, "ydb.sidecar.pool.moving", "{pool}", "1 while sessions are being moved towards an even spread.")
	decimal(&in.budget, "ydb.sidecar.retry.budget", "{retry}", "Retries that could be sent at once now.")
	gauge(&in.build, "ydb.sidecar.build.info", "{build}", "1, with the version of the program and of Go.")
	count(&in.unlogged, "ydb.sidecar.log.suppressed", "{line}", "Lines of the access log that were left out: log.access_rate.")
	count(&in.dropped, "ydb.sidecar.log.dropped", "{line}", "Lines of the log that were dropped because nobody read standard error fast enough.")
	count(&in.caught, "ydb.sidecar.caught.panics", "{panic}", "Panics that were caught: each is a fault of the sidecar, and the log has its stack.")
	count(&in.refused, "ydb.sidecar.pool.refused", "{request}", "Callers turned away because the line was full.")
	count(&in.created, "ydb.sidecar.pool.created", "{connection}", "Sessions opened.")
	count(&in.failed, "ydb.sidecar.pool.failed", "{connection}", "Sessions that could not be opened.")
	count(&in.closed, "ydb.sidecar.pool.closed", "{connection}", "Sessions ended.")
	level(&in.ofNode, "ydb.sidecar.node.sessions", "{connection}", "Sessions by node and state.")
	level(&in.calls, "ydb.sidecar.node.calls", "{call}", "Calls open on a node.")
	count(&in.overload, "ydb.sidecar.node.refused", "{call}", "Calls not sent because of routing.max_calls_per_node.")
	gauge(&in.health, "ydb.sidecar.node.health", "{node}", "1 for the state that a node is in.")
	gauge(&in.panics, "ydb.sidecar.panic", "{alarm}", "1 while more than half of the nodes are ejected.")
	count(&in.forwarded, "ydb.sidecar.routing.forwarded", "{call}", "Calls of open transactions sent around an unreachable owner.")
	count(&in.scattered, "ydb.sidecar.routing.scattered", "{call}", "Calls sent to a random node because routing.affinity is off.")
	level(&in.open, "ydb.sidecar.api.open", "{call}", "Calls open at the API.")
	level(&in.guests, "ydb.sidecar.api.connections", "{connection}", "Connections of clients, by face.")
	count(&in.declined, "ydb.sidecar.api.refused", "{call}", "Calls refused for api.max_open or while draining.")
	level(&in.leases, "ydb.sidecar.transactions", "{transaction}", "Open interactive transactions.")
	gauge(&in.discovery, "ydb.sidecar.discovery.failures", "{failure}", "Failures of discovery in a row.")
	gauge(&in.nameless, "ydb.sidecar.discovery.unidentified", "{address}", "Addresses that discovery names without a node id, and that did not tell theirs: they get no calls.")
	gauge(&in.missing, "ydb.sidecar.discovery.missing", "{node}", "Nodes that vanished from discovery in numbers and are kept until that is sure.")
	count(&in.kept, "ydb.sidecar.discovery.held", "{node}", "Nodes that came to be missing: they vanished from discovery in numbers, and were kept until that was sure.")
	gauge(&in.leftOut, "ydb.sidecar.discovery.left_out", "{node}", "Nodes that discovery lists and that are not used: it lists more than 16384.")
	gauge(&in.departed, "ydb.sidecar.routing.departed", "{node}", "Nodes that left discovery and are still addressed for what is open there.")
	gauge(&in.marks, "ydb.sidecar.node.mark", "{node}", "1 while a node has that mark: banned by an operator, leaving, unreachable.")
	decimal(&in.weight, "ydb.sidecar.node.weight", "{weight}", "Part of new load that a node gets, relative to the other nodes.")
	decimal(&in.latency, "ydb.sidecar.node.latency", "s", "Decayed latency of the calls to a node that did their work.")
	decimal(&in.local, "ydb.sidecar.routing.local", "1", "Part of new load that stays in the preferred zones.")
	count(&in.ejections, "ydb.sidecar.health.ejections", "{ejection}", "Ejections of nodes, by cause.")
	count(&in.spared, "ydb.sidecar.health.spared", "{node}", "Nodes that were too slow and stayed, because so many were ejected already.")
	count(&in.alarms, "ydb.sidecar.health.panics", "{alarm}", "How often more than half of the nodes came to be ejected.")
	gauge(&in.findings, "ydb.sidecar.finding", "{finding}", "What /state/findings says is wrong, by code: how many findings.")
	count(&in.probes, "ydb.sidecar.health.probes", "{probe}", "Probes of nodes, by result.")
	count(&in.moved, "ydb.sidecar.pool.moved", "{connection}", "Sessions let go for the sake of another node.")
	level(&in.paced, "ydb.sidecar.pool.paced", "{connection}", "Sessions that are wanted and wait for the pace of opening.")
	gauge(&in.stage, "ydb.sidecar.drain.stage", "{process}", "1 for the stage of its life that the process is in.")
	decimal(&in.left, "ydb.sidecar.drain.left", "s", "Until what is open is cut off, while the process ends.")
	count(&in.carried, "ydb.sidecar.forward.calls", "{call}", "Calls that came over the data path, by how they ended.")
	count(&in.abuses, "ydb.sidecar.forward.abuses", "{abuse}", "What peers of the data path did only by fault or ill will.")
	count(&in.bytes, "ydb.sidecar.forward.bytes", "By", "Bytes of the data path, by peer and direction.")
	level(&in.links, "ydb.sidecar.forward.connections", "{connection}", "Connections of the data path, by peer.")
	level(&in.held, "ydb.sidecar.forward.held", "{call}", "Calls that wait in the data path.")
	level(&in.buffered, "ydb.sidecar.forward.buffered", "By", "Bytes that wait for slow readers.")
	count(&in.unread, "ydb.sidecar.forward.unread", "{reading}", "Readings of a shard of the data path that were not possible in time: what is shown of it is what it was before.")
	level(&in.pools, "ydb.sidecar.virtual.pools", "{pool}", "Pools of callers' identities and of their apps.")
	count(&in.unnamed, "ydb.sidecar.virtual.unnamed", "{caller}", "Connections and sessions of SDKs whose app got no sessions of its own, because the identity has as many such apps as it may (apps.sessions).")
	level(&in.virtual, "ydb.sidecar.virtual.sessions", "{session}", "Sessions of SDKs, by whether a session of the pool is bound to them.")
	count(&in.shed, "ydb.sidecar.pool.shed", "{request}", "Callers turned away though the line had room, by reason.")
	level(&in.appOpen, "ydb.sidecar.app.open", "{call}", "Calls open, by app.")
	level(&in.appUse, "ydb.sidecar.app.sessions", "{connection}", "Sessions that an app uses or waits for, by class.")
	count(&in.appServed, "ydb.sidecar.app.served", "{connection}", "Sessions that an app got, by class.")
	count(&in.appDenied, "ydb.sidecar.app.refused", "{call}", "Calls of an app that were refused, by class and reason.")
	count(&in.lowered, "ydb.sidecar.app.lowered", "{call}", "Calls of an app that asked for the class system and ran as interactive (apps.limits: class=system).")
	count(&in.appUnits, "ydb.sidecar.app.consumed_units", "{unit}", "Request units that the nodes reported for the calls of an app.")
	decimal(&in.appWait, "ydb.sidecar.app.wait", "s", "Wait for a session in the last minute, by app, class and quantile.")
	gauge(&in.requests, "ydb.sidecar.memory.requests", "By", "Memory that requests of the plain API hold, and as much as they may.")
	count(&in.unroomed, "ydb.sidecar.memory.requests.refused", "{request}", "Requests of the plain API for which there was no memory: refused, or ended because they came slowly, or with most others on their connection, while others asked.")
	if a.memory != nil {
		gauge(&in.memory, "ydb.sidecar.memory", "By", "Memory that is in use for good, and the limit that the guard goes by.")
		gauge(&in.tight, "ydb.sidecar.memory.tight", "{alarm}", "1 while memory is short.")
		count(&in.large, "ydb.sidecar.memory.refused", "{call}", "Large work refused because memory was short.")
		count(&in.slowed, "ydb.sidecar.memory.slowed", "{part}", "Parts of streams that had to wait because memory was short.")
	}
	if a.core.limits != nil {
		decimal(&in.limit, "ydb.sidecar.pool.limit", "{connection}", "Adaptive limit of sessions in use.")
		count(&in.changes, "ydb.sidecar.pool.limit.changes", "{change}", "Changes of the adaptive limits, by reason.")
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("make instruments: %w", err)
	}
	if _, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error { a.read(o, &in); return nil }, all...); err != nil {
		return fmt.Errorf("register instruments: %w", err)
	}
	return nil
}

func (a *App) read(o metric.Observer, in *instruments) {
	name := attribute.String("db.client.connection.pool.name", a.core.driver.Database())
	with := func(more ...attribute.KeyValue) metric.ObserveOption {
		return metric.WithAttributes(append(more, name)...)
	}
	state := func(s string) attribute.KeyValue { return attribute.String("db.client.connection.state", s) }

	p := a.core.pool.Stats()
	o.ObserveInt64(in.sessions, int64(p.Idle), with(state("idle")))
	o.ObserveInt64(in.sessions, int64(p.Leased), with(state("used")))
	o.ObserveInt64(in.sessions, int64(p.Opening), with(state("creating")))
	o.ObserveInt64(in.sessions, int64(p.Closing), with(state("closing")))
	o.ObserveInt64(in.max, int64(p.Max), with())
	o.ObserveInt64(in.idleMin, int64(a.now().Pool.Min), with())
	for class, n := range p.Waiting {
		o.ObserveInt64(in.waiting, int64(n), with(attribute.String("ydb.sidecar.priority", pool.Class(class).String())))
	}
	o.ObserveInt64(in.timeouts, int64(p.TimedOut), with())
	o.ObserveInt64(in.queued, int64(p.Queued), metric.WithAttributes(attribute.String("ydb.query.session.pool.name", a.core.driver.Database())))
	o.ObserveInt64(in.moving, one(p.Moving), with())
	o.ObserveFloat64(in.budget, a.core.client.Budget())
	o.ObserveInt64(in.build, 1, metric.WithAttributes(attribute.String("ydb.sidecar.version", a.version), attribute.String("process.runtime.version", runtime.Version())))
	o.ObserveInt64(in.unlogged, int64(a.access.Left()))
	o.ObserveInt64(in.dropped, int64(a.lines.Lost()))
	o.ObserveInt64(in.caught, int64(panics.Stats().Count))
	o.ObserveInt64(in.refused, int64(p.Refused), with())
	o.ObserveInt64(in.created, int64(p.Created), with())
	o.ObserveInt64(in.failed, int64(p.Failed), with())
	o.ObserveInt64(in.closed, int64(p.Closed), with())
	o.ObserveInt64(in.moved, int64(p.Moved), with())
	o.ObserveInt64(in.paced, int64(p.Paced), with())

	b := a.requests.State()
	for kind, n := range map[string]int64{"used": b.Held, "limit": b.Most} {
		o.ObserveInt64(in.requests, n, metric.WithAttributes(attribute.String("ydb.sidecar.kind", kind)))
	}
	o.ObserveInt64(in.unroomed, int64(b.Refused), metric.WithAttributes(attribute.String("ydb.sidecar.reason", "refused")))
	o.ObserveInt64(in.unroomed, int64(b.Ended), metric.WithAttributes(attribute.String("ydb.sidecar.reason", "slow")))
	if a.memory != nil {
		m := a.memory.State()
		for kind, n := range map[string]uint64{"used": m.Used, "limit": m.Limit} {
			o.ObserveInt64(in.memory, int64(n), metric.WithAttributes(attribute.String("ydb.sidecar.kind", kind)))
		}
		o.ObserveInt64(in.tight, one(m.Tight))
		o.ObserveInt64(in.large, int64(m.Refused))
		o.ObserveInt64(in.slowed, int64(m.Slowed))
	}
	if ts := a.core.limits; ts != nil {
		changes, callers := ts.Sums(a.core.limit)
		o.ObserveFloat64(in.limit, ts.StateOf(a.core.limit).Limit, with())
		o.ObserveFloat64(in.limit, callers, metric.WithAttributes(attribute.String("db.client.connection.pool.name", "callers")))
		for reason, n := range changes {
			o.ObserveInt64(in.changes, int64(n), metric.WithAttributes(attribute.String("ydb.sidecar.reason", adaptive.Reason(reason).String())))
		}
	}

	r := a.core.router.Stats()
	a.readNodes(o, in, p.Nodes, r.Nodes)
	o.ObserveFloat64(in.local, r.Local)
	h := a.core.judge.Stats()
	for cause := cluster.CauseTransport; int(cause) < cluster.CauseSize; cause++ {
		o.ObserveInt64(in.ejections, int64(h.Ejections[cause]), metric.WithAttributes(attribute.String("ydb.sidecar.cause", cause.String())))
	}
	o.ObserveInt64(in.spared, int64(h.Spared))
	o.ObserveInt64(in.alarms, int64(h.Panics))
	found := a.findings.Report().Findings
	for _, kind := range findings.Kinds {
		n := 0
		for _, f := range found {
			if f.Code == kind.Code {
				n++
			}
		}
		o.ObserveInt64(in.findings, int64(n), metric.WithAttributes(attribute.String("ydb.sidecar.code", string(kind.Code))))
	}
	for result, n := range map[string]uint64{"good": h.Probes - h.ProbesFailed - h.ProbesSlow, "failed": h.ProbesFailed, "slow": h.ProbesSlow} {
		o.ObserveInt64(in.probes, int64(n), metric.WithAttributes(attribute.String("ydb.sidecar.result", result)))
	}
	for s := starting; s <= deleting; s++ {
		o.ObserveInt64(in.stage, one(a.phase.get() == s), metric.WithAttributes(attribute.String("ydb.sidecar.stage", s.String())))
	}
	o.ObserveFloat64(in.left, a.phase.left().Seconds())
	o.ObserveInt64(in.panics, one(r.Panic))
	o.ObserveInt64(in.forwarded, int64(r.Forwarded))
	o.ObserveInt64(in.scattered, int64(r.Scattered))
	api := a.api.State()
	o.ObserveInt64(in.open, int64(api.OpenCalls))
	for face, l := range a.listeners.OfAPI() {
		o.ObserveInt64(in.guests, int64(l.Conns.Size()), metric.WithAttributes(attribute.String("ydb.sidecar.face", face)))
	}
	o.ObserveInt64(in.declined, int64(api.Refused))
	o.ObserveInt64(in.leases, int64(api.Transactions))
	known := a.core.discovery.State()
	o.ObserveInt64(in.discovery, int64(known.Failures))
	o.ObserveInt64(in.missing, int64(known.Missing))
	o.ObserveInt64(in.kept, int64(a.core.discovery.Held()))
	o.ObserveInt64(in.leftOut, int64(known.Topology.LeftOut))
	o.ObserveInt64(in.departed, int64(r.Departed))
	o.ObserveInt64(in.nameless, int64(len(known.Source.Unidentified)))
	for why, n := range p.Shed {
		o.ObserveInt64(in.shed, int64(n), with(attribute.String("ydb.sidecar.reason", pool.Shed(why).String())))
	}
	a.readReloads(o, in)
	a.readCerts(o, in)
	for face, d := range a.doors() {
		face := metric.WithAttributes(attribute.String("ydb.sidecar.face", face))
		o.ObserveInt64(in.crowded, d.Refused(), face)
		o.ObserveInt64(in.unheard, d.Failures(), face)
	}
	o.ObserveInt64(in.unheard, a.restart.Failures(), metric.WithAttributes(attribute.String("ydb.sidecar.face", "takeover")))
	a.readApps(o, in)
	a.readWire(o, in)
	a.readXDS(o, &in.xds)
}

// xdsInstruments are nil while xds.enabled is off.
type xdsInstruments struct {
	streams, nodes                       metric.Int64ObservableUpDownCounter
	published, responses, nacks, refused metric.Int64ObservableCounter
}

func (a *App) readXDS(o metric.Observer, in *xdsInstruments) {
	if a.xds == nil {
		return
	}
	s := a.xds.Stats()
	for flavor, n := range s.Streams {
		o.ObserveInt64(in.streams, int64(n), metric.WithAttributes(attribute.String("ydb.sidecar.flavor", string(flavor))))
	}
	for state, n := range s.Nodes {
		o.ObserveInt64(in.nodes, int64(n), metric.WithAttributes(attribute.String("ydb.sidecar.state", state)))
	}
	o.ObserveInt64(in.published, int64(s.Published))
	o.ObserveInt64(in.responses, int64(s.Responses))
	o.ObserveInt64(in.nacks, int64(s.Nacks))
	o.ObserveInt64(in.refused, int64(s.Refused))
}

// readReloads reads what came of reloads.
func (a *App) readReloads(o metric.Observer, in *instruments) {
	o.ObserveInt64(in.reloads, a.reload.good.Load(), metric.WithAttributes(attribute.String("ydb.sidecar.result", "ok")))
	o.ObserveInt64(in.reloads, a.reload.bad.Load(), metric.WithAttributes(attribute.String("ydb.sidecar.result", "failed")))
	o.ObserveInt64(in.restart, a.reload.pending.Load())
}

// readApps reads the figures of apps, of which there are at most apps.max and two.
func (a *App) readApps(o metric.Observer, in *instruments) {
	for _, s := range a.core.apps.State(classNames) {
		app := attribute.String("ydb.sidecar.app", s.App)
		o.ObserveInt64(in.appOpen, s.Open, metric.WithAttributes(app))
		o.ObserveInt64(in.lowered, int64(s.Lowered), metric.WithAttributes(app))
		o.ObserveInt64(in.appUnits, int64(s.Units), metric.WithAttributes(app))
		for _, c := range s.Classes {
			class := attribute.String("ydb.sidecar.priority", c.Class)
			o.ObserveInt64(in.appUse, c.Waiting, metric.WithAttributes(app, class, attribute.String("ydb.sidecar.state", "waiting")))
			o.ObserveInt64(in.appUse, c.InUse, metric.WithAttributes(app, class, attribute.String("ydb.sidecar.state", "used")))
			o.ObserveInt64(in.appServed, int64(c.Served), metric.WithAttributes(app, class))
			for reason, n := range c.Refused {
				o.ObserveInt64(in.appDenied, int64(n), metric.WithAttributes(app, class, attribute.String("ydb.sidecar.reason", reason)))
			}
			o.ObserveFloat64(in.appWait, c.WaitP50/1000, metric.WithAttributes(app, class, attribute.String("ydb.sidecar.quantile", "0.5")))
			o.ObserveFloat64(in.appWait, c.WaitP99/1000, metric.WithAttributes(app, class, attribute.String("ydb.sidecar.quantile", "0.99")))
		}
	}
}

// readWire reads the figures of the data path.
func (a *App) readWire(o metric.Observer, in *instruments) {
	if a.wire == nil {
		return
	}
	s := a.wire.Stats()
	for end, n := range s.Ends {
		o.ObserveInt64(in.carried, int64(n), metric.WithAttributes(attribute.String("ydb.sidecar.end", end)))
	}
	for abuse, n := range s.Abuses {
		o.ObserveInt64(in.abuses, int64(n), metric.WithAttributes(attribute.String("ydb.sidecar.abuse", abuse)))
	}
	for _, b := range []struct {
		peer, direction string
		n               uint64
	}{{"client", "in", s.ClientIn}, {"client", "out", s.ClientOut}, {"node", "in", s.NodeIn}, {"node", "out", s.NodeOut}} {
		o.ObserveInt64(in.bytes, int64(b.n), metric.WithAttributes(attribute.String("ydb.sidecar.peer", b.peer), attribute.String("ydb.sidecar.direction", b.direction)))
	}
	o.ObserveInt64(in.links, int64(s.Clients), metric.WithAttributes(attribute.String("ydb.sidecar.peer", "client")))
	o.ObserveInt64(in.links, int64(s.Nodes), metric.WithAttributes(attribute.String("ydb.sidecar.peer", "node")))
	o.ObserveInt64(in.held, int64(s.Held))
	o.ObserveInt64(in.buffered, int64(s.Buffered))
	o.ObserveInt64(in.unread, int64(s.Unread))
	if v := s.Virtual; v != nil {
		o.ObserveInt64(in.virtual, int64(v.Bound), metric.WithAttributes(attribute.Bool("ydb.sidecar.bound", true)))
		o.ObserveInt64(in.virtual, int64(v.Sessions-v.Bound), metric.WithAttributes(attribute.Bool("ydb.sidecar.bound", false)))
		callers := attribute.String("db.client.connection.pool.name", "callers") // all together: there may be a thousand
		sums, waiting := map[string]int{}, 0
		for _, p := range v.Pools {
			sums["idle"] += p.Idle
			sums["used"] += p.Leased
			sums["creating"] += p.Opening
			sums["closing"] += p.Closing
			waiting += p.Waiting
		}
		for state, n := range sums {
			o.ObserveInt64(in.sessions, int64(n), metric.WithAttributes(callers, attribute.String("db.client.connection.state", state)))
		}
		o.ObserveInt64(in.waiting, int64(waiting), metric.WithAttributes(callers, attribute.String("ydb.sidecar.priority", pool.Normal.String())))
		o.ObserveInt64(in.max, int64(a.config.Wire.ServerSessions), metric.WithAttributes(callers))
		o.ObserveInt64(in.pools, int64(len(v.Pools)))
		o.ObserveInt64(in.unnamed, int64(v.Unnamed))
	}
}

func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}
