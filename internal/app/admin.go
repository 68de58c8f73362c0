package app

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/audit"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	"github.com/ydb-sidecar/sidecar/internal/snapshot/kill"
)

// newAdmin says what the admin API asks and shows.
func (a *App) newAdmin() *admin.Server {
	listening := admin.Check{Name: "listening", Ask: func() error {
		if s := a.phase.get(); s != serving {
			return errors.New(s.String())
		}
		return nil
	}}
	killer := kill.Killer{Views: &a.views.Source, Log: a.log}
	return admin.New(a.config.Admin, admin.Deps{
		Guard: a.guard, Metrics: a.telemetry.Metrics(),
		Nodes:   nodes{a.core.detector},
		Process: drainer{a},
		Kill:    killer.Session,
		EndCall: killer.Calls,
		Pool:    pools{a},
		Logging: logging{a}, Audit: audit.New(a.log), Peer: listen.PeerOf,
		Events: a.events,
		Page:   a.views.PageState,
		Reload: func(dryRun bool) (any, error) {
			done, err := a.Reload("POST /reload", dryRun)
			if err != nil {
				return nil, err
			}
			return done, nil
		},
		Reloaded:  func() any { return a.reload.last.Load() },
		Documents: a.documents(),
		Checks: admin.Checks{
			Live:    []admin.Check{{Name: "data path", Ask: a.turning}},
			Ready:   []admin.Check{listening},
			Started: []admin.Check{listening, {Name: "warm", Ask: a.warm}},
			Deep:    []admin.Check{{Name: "node", Ask: a.goodNode}},
			Vital: []admin.Check{
				{Name: "routing", Ask: func() error { a.core.router.Stats(); return nil }},
				{Name: "pool", Ask: func() error { a.core.pool.Stats(); return nil }},
				{Name: "api", Ask: func() error { a.api.State(); return nil }},
				{Name: "discovery", Ask: func() error { a.core.discovery.State(); return nil }},
			},
		},
	})
}

// documents are what the admin API shows as JSON, by path.
func (a *App) documents() map[string]func(admin.Query) any {
	return map[string]func(admin.Query) any{
		"/buildinfo":      func(admin.Query) any { return a.views.BuildState(Commit) },
		"/config":         func(admin.Query) any { return a.reload.current.Load().settings.List() },
		"/state/findings": func(admin.Query) any { return a.findings.Report() },
		"/state/pool":     func(admin.Query) any { return a.views.PoolState() },
		"/state/pause":    func(admin.Query) any { return a.views.QuietState() },
		"/state/sessions": func(q admin.Query) any { return a.views.SessionsState(q) },
		"/state/calls":    func(q admin.Query) any { return a.views.CallsState(q) },
		"/state/queue":    func(admin.Query) any { return a.views.QueueState() },
		"/state/memory":   func(admin.Query) any { return a.views.MemoryState() },
		"/state/apps":     func(admin.Query) any { return a.core.apps.State(snapshot.ClassNames) },
		"/state/nodes":    func(admin.Query) any { return a.views.NodesState() },
		"/state/transactions": func(q admin.Query) any {
			state := a.views.TransactionsState()
			state.Transactions = admin.First(q, state.Transactions)
			return state
		},
		"/state/statements":  func(q admin.Query) any { return a.statements.Document(q.By, q.Window, q.Limit) },
		"/state/ingest":      func(q admin.Query) any { return admin.First(q, a.api.Streams()) },
		"/state/connections": func(q admin.Query) any { return a.views.ConnectionsState(q) },
		"/state/xds":         func(q admin.Query) any { return a.views.XDSState(q) },
	}
}

// turning reports the shards of the data path that do not turn.
func (a *App) turning() error {
	if a.wire == nil {
		return nil
	}
	var texts []string
	for _, s := range a.wire.Stalled() {
		which := "the shard of the sidecar's own calls"
		if s.Shard < a.wire.Shards() {
			which = fmt.Sprintf("shard %d of %d", s.Shard, a.wire.Shards())
		}
		texts = append(texts, fmt.Sprintf("%s has not turned for %s", which, findings.Span(s.For)))
	}
	if texts == nil {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// warm reports that there is a node and the least number of sessions, or that
// startup.wait is over: a cluster that is away must not keep the app from
// starting.
func (a *App) warm() error {
	if time.Since(a.started) >= a.now().Startup.Wait {
		return nil
	}
	if err := a.usableNode(); err != nil {
		return err
	}
	if !a.core.pool.Warm() {
		return errors.New("pool.min sessions are not open yet")
	}
	return nil
}

func (a *App) usableNode() error {
	for _, n := range a.core.router.View().Nodes {
		if n.Use == cluster.UseNew {
			return nil
		}
	}
	return errors.New("no node is known yet")
}

// goodNode is the deep check: some node may be used and is believed to work.
func (a *App) goodNode() error {
	view := a.core.router.View()
	for _, n := range view.Nodes {
		if n.Use == cluster.UseNew && n.Condition.Health <= cluster.Suspect {
			return nil
		}
	}
	if len(view.Nodes) == 0 {
		if state := a.core.discovery.State(); state.Err != nil {
			return fmt.Errorf("no node is known: %w", state.Err)
		}
		return errors.New("no node is known yet")
	}
	return fmt.Errorf("none of %d nodes is healthy", len(view.Nodes))
}

// Commit is that of the sources, set by make and deploy/image; "" where the program was
// built otherwise, and Go may know it.
var Commit string

// BuildInfo returns the build of this program, whose version is given.
func BuildInfo(version string) snapshot.Build { return snapshot.BuildOf(version, Commit) }
