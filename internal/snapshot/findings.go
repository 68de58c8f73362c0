package snapshot

import (
	"errors"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// useLeast is how long a session must be in use to be looked at one by one.
const useLeast = time.Second

// Picture is the state of this moment, as findings look at it.
func (s *Source) Picture() findings.Picture {
	now := s.look(ofPool | ofNodes | ofHealth | ofApps)
	p, d := &now.Pool, &now.Discovery
	out := findings.Picture{
		At: now.At, Stage: now.Stage.String(), Panic: now.Routed.Panic,
		Pool: findings.Pool{
			Max: p.Max, Limit: p.Limit, Min: p.Min, Sessions: p.Sessions, Busy: p.InUse, Idle: p.Idle, Creating: p.Opening,
			Waiting: p.InLine(), Oldest: p.Oldest, Paused: p.Pause, TimedOut: p.TimedOut, Refused: p.Refused,
			Created: p.Created, Failed: p.Failed, OpenError: lineOf(p.OpenErr),
		},
		Discovery: findings.Discovery{Failures: d.Failures, Grace: d.Grace, Error: lineOf(d.Err)}, HeldLong: now.Settings.HeldLong,
		MemoryTight: s.Memory.Tight(), Panics: findings.Panics(panics.Stats()),
		Nodes: NodePictures(now.Routed, now.Judged), Apps: appPictures(now.Apps),
	}
	reloads := s.Reloads()
	out.Config.Pending, out.Config.Faults = reloads.Pending, len(reloads.Faults)
	if len(reloads.Faults) > 0 {
		out.Config.Fault = findings.OneLine(errors.New(reloads.Faults[0]))
	}
	for _, n := range p.Shed {
		out.Pool.Shed += n
	}
	if s.Wire != nil {
		out.Pool.Starved = s.Wire.Starved()
	}
	if err := s.Stalled(); err != nil {
		out.Stalled = err.Error()
	}
	denied, missing := s.Driver.Credentials() // missing: not one that is on its way
	out.Denied = denied
	switch {
	case missing != nil:
		out.Credentials = findings.OneLine(missing)
	case unauthorized(d.Err):
		out.Credentials = out.Discovery.Error
	case unauthorized(p.OpenErr):
		out.Credentials = out.Pool.OpenError
	}
	out.Answers = answersOf(s.Statements)
	for _, u := range s.Statements.Unusual() {
		one := findings.Statement{Digest: u.ID.String(), Kind: u.Kind, App: u.App, Calls: u.Calls}
		if u.Many {
			one.Texts = u.Texts
		}
		if u.Slow {
			one.Took, one.Usual = u.Took, u.Usual
		}
		out.Statements = append(out.Statements, one)
	}
	for _, l := range s.SessionLines(useLeast) {
		out.SessionUses = append(out.SessionUses, findings.SessionUse{
			Session: l.Session, App: l.App, Node: l.Node, Trace: l.Trace, Held: time.Duration(l.HeldMS) * time.Millisecond,
			Transaction: l.transaction, Busy: l.Busy,
		})
	}
	return out
}

// appPictures are the apps, as findings look at them.
func appPictures(all []apps.State) (out []findings.App) {
	for _, app := range all {
		one := findings.App{Name: app.App}
		most := uint64(0)
		for _, c := range app.Classes {
			for _, limit := range []string{"open", "sessions", "calls_per_second", "bytes_per_second"} {
				n := c.Refused[limit]
				one.Limited += n
				if n > most {
					most, one.Limit = n, limit
				}
			}
			one.Waiting += c.Waiting
			one.Lost += c.Refusals()
		}
		one.Lost -= one.Limited
		out = append(out, one)
	}
	return out
}

// answersOf are the answers of all statements.
func answersOf(r *statements.Recorder) findings.Answers {
	total := r.Total()
	return findings.Answers{Calls: total.Calls, Bytes: total.Bytes}
}

// NodePictures are the nodes, as findings look at them.
func NodePictures(routed routing.Stats, judged pessimize.Stats) (all []findings.Node) {
	counted := make(map[cluster.NodeID]pessimize.NodeStats, len(judged.Nodes))
	for _, n := range judged.Nodes {
		counted[n.Node] = n
	}
	for _, n := range routed.Nodes {
		v, c := n.Node.Condition, counted[n.Node.ID]
		gone := v.Draining && !c.Listed && !c.Drained && c.Hinted.IsZero()
		one := findings.Node{
			ID: uint32(n.Node.ID), Address: n.Node.Address, Health: v.Health.String(), Cause: causeOf(v), Reason: v.Reason, Since: v.Since,
			Usable: n.Node.Use.String() == "new", Unreachable: v.Unreachable, Banned: v.Banned, BanReason: v.BanReason,
			Draining: v.Draining, Gone: gone, Missing: n.Node.Missing, Unwell: n.Node.Unwell,
			Succeeded: c.Succeeded, Timed: c.Timed, Refused: c.Congested[cluster.CongestedUnknown] + c.Congested[cluster.CongestedNode],
			Tables: congested(c, cluster.CongestedTable), Disk: congested(c, cluster.CongestedDisk),
			Quota: congested(c, cluster.CongestedQuota), Pools: congested(c, cluster.CongestedPool),
		}
		if c.Recent > 0 { // else the latency is of calls that are long over
			one.Latency, one.Median = n.Node.Load.Latency(), c.Median
		}
		all = append(all, one)
	}
	return all
}

func congested(n pessimize.NodeStats, by cluster.Congestion) findings.Congested {
	return findings.Congested{Calls: n.Congested[by], Subject: n.Subjects[by]}
}

// unauthorized reports whether the cluster did not accept the credentials, or they lack a right.
func unauthorized(err error) bool {
	e, ok := errors.AsType[*upstream.Error](err)
	return ok && (e.Unauthorized() || e.Denied())
}
