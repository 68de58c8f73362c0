package app

import (
	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
)

// newSource says what the views look at. Call it once all parts are made.
func (a *App) newSource() snapshot.Source {
	c := &a.config
	s := snapshot.Source{
		NodeSources: snapshot.NodeSources{
			Hold: a.core.ways.Hold, Pool: a.core.pool, Pools: a.core.pools, OwnPools: a.core.ownPools,
			Limits: a.limitsState, Router: a.core.router, Detector: a.core.detector,
			Driver: a.core.driver, Discovery: a.core.discovery, Client: a.core.client,
		},
		EdgeSources: snapshot.EdgeSources{
			API: a.api, Wire: a.wire, Stalled: a.turning, XDS: a.xds, Apps: a.core.apps,
			Clients: a.clientsByAPI, Doors: a.doorsState, Access: a.access, Statements: a.statements,
		},
		ProcessSources: snapshot.ProcessSources{
			Self: snapshot.SelfOf(a.version), Started: a.started,
			Starting: snapshot.StartSettings{
				TraceLink: c.Admin.TraceLink, TxMax: c.Facade.Tx.Max, ServerSessions: c.Wire.ServerSessions, Discovery: c.Discovery.Mode,
			},
			Settings: func() snapshot.LiveSettings {
				now := a.now()
				return snapshot.LiveSettings{PoolMin: now.Pool.Min, Queue: now.Pool.Queue, HeldLong: now.Admin.HeldLong}
			},
			Stage: a.phase.get, Phase: a.phase.state, Replaced: a.restart.Replaced, Memory: a.memory, Requests: a.requests,
			History: a.history, Events: a.events, Findings: a.findings,
			Reloads: a.reload.counts.State,
			Certs: func() map[string]*certs.Keeper {
				return map[string]*certs.Keeper{
					"grpc": a.certs.grpc, "http": a.certs.http, "admin": a.certs.admin, "xds": a.certs.xds,
					"ydb": a.core.driver.Certs(), "discovery.xds": a.core.discovery.Certs(),
				}
			},
			Lost: a.lines.Lost,
		},
	}
	if a.xds != nil {
		s.XDSAddress = a.listeners.XDS.Addr().String()
	}
	return s
}

func (a *App) limitsState() *snapshot.LimitsState {
	if a.core.limits == nil {
		return nil
	}
	out := &snapshot.LimitsState{Own: *a.core.limits.StateOf(a.core.limit), Floor: a.now().Pool.AdaptiveFloor}
	out.Changes, out.Callers = a.core.limits.Sums(a.core.limit)
	return out
}

// clientsByAPI is how many connections of clients are open at each listener of the APIs.
func (a *App) clientsByAPI() map[string]int {
	all := map[string]int{}
	for name, l := range a.listeners.OfAPI() {
		all[name] = l.Conns.Size()
	}
	return all
}

func (a *App) doorsState() snapshot.DoorsState {
	out := snapshot.DoorsState{Refused: map[string]int64{}, Failed: map[string]int64{}}
	for name, d := range a.doors() {
		out.Refused[name], out.Failed[name] = d.Refused(), d.Failures()
	}
	out.Failed["takeover"] = a.restart.Failures()
	return out
}
