package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// holderLeast is how long a session must be in use to be looked at one by one.
const holderLeast = time.Second

// watch looks for what is wrong until ctx ends, and logs each finding when it
// begins and when it ends. It returns nil.
func (a *App) watch(ctx context.Context) error {
	tick := time.NewTicker(findings.Every)
	defer tick.Stop()
	for told := uint64(0); ; {
		told = a.tellNodes(told)
		select {
		case <-ctx.Done():
			return nil
		case <-a.judged:
		case <-tick.C:
			a.look()
		}
	}
}

// heed has watch look when the judge has come to new verdicts.
func (a *App) heed(cluster.Verdicts) {
	select {
	case a.judged <- struct{}{}:
	default:
	}
}

// tellNodes adds what the judge has noted since its event of that number to the
// events, and returns the number of the last.
func (a *App) tellNodes(after uint64) uint64 {
	for _, e := range a.core.judge.Events(after) {
		a.events.Add(admin.Event{Time: e.Time, Node: e.Node, Kind: string(e.Kind), From: e.From, To: e.To, Reason: e.Reason})
		after = e.Seq
	}
	return after
}

// look takes a picture, and tells what it shows that is new.
func (a *App) look() {
	p := a.views.Picture()
	good := healthv1.HealthCheckResponse_NOT_SERVING
	if a.goodNode() == nil {
		good = healthv1.HealthCheckResponse_SERVING
	}
	a.health.SetServingStatus(healthUpstream, good)
	began, ended := a.findings.Look(p)
	for _, f := range began {
		level := slog.LevelInfo
		if f.Severity != findings.Note {
			level = slog.LevelWarn
		}
		a.log.Log(context.Background(), level, f.Text, "finding", f.Code, "do", f.Do, "node", f.Node, "app", f.App, "trace_id", f.Trace)
		a.events.Add(eventOf(f, "", string(f.Code)))
	}
	for _, f := range ended {
		a.log.Info("no longer: "+f.Text, "finding", f.Code, "node", f.Node, "app", f.App, "after", p.At.Sub(f.Since).Round(time.Millisecond).String())
		a.events.Add(eventOf(f, string(f.Code), ""))
	}
}

func eventOf(f findings.Finding, from, to string) admin.Event {
	return admin.Event{Node: cluster.NodeID(f.Node), App: f.App, Kind: "finding", From: from, To: to, Reason: f.Text}
}

// healthUpstream is the service of grpc.health.v1 that says whether any node is good.
const healthUpstream = "ydb.upstream"

// Picture is the state of this moment, as findings look at it.
func (s *source) Picture() findings.Picture {
	p, routed, judged, d := s.Pool.Stats(), s.Router.Stats(), s.Judge.Stats(), s.Discovery.State()
	out := findings.Picture{
		At: time.Now(), Stage: s.Stage().String(), Panic: routed.Panic,
		Pool: findings.Pool{
			Max: p.Max, Limit: p.Limit, Min: p.Min, Sessions: p.Sessions, Busy: p.Leased, Idle: p.Idle, Creating: p.Opening,
			Waiting: p.InLine(), Oldest: p.Oldest, Paused: p.Pause, TimedOut: p.TimedOut, Refused: p.Refused, Created: p.Created, Failed: p.Failed,
		},
		Discovery: findings.Discovery{Failures: d.Failures, Grace: d.Grace}, HeldLong: s.Settings().HeldLong,
		MemoryTight: s.Memory.Tight(), Panics: findings.Panics(panics.Stats()), Nodes: pictures(routed, judged),
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
	if p.OpenErr != nil {
		out.Pool.OpenError = oneLine(p.OpenErr)
	}
	if d.Err != nil {
		out.Discovery.Error = oneLine(d.Err)
	}
	denied, missing := s.Driver.Credentials() // missing: not one that is on its way
	out.Denied = denied
	switch {
	case missing != nil:
		out.Credentials = oneLine(missing)
	case unauthorized(d.Err):
		out.Credentials = out.Discovery.Error
	case unauthorized(p.OpenErr):
		out.Credentials = out.Pool.OpenError
	}
	for _, l := range s.SessionLines(holderLeast) {
		out.Holders = append(out.Holders, findings.Holder{
			Session: l.Session, App: l.App, Node: l.Node, Trace: l.Trace, Held: time.Duration(l.HeldMS) * time.Millisecond,
			Transaction: l.transaction, Busy: l.Busy,
		})
	}
	for _, app := range s.Apps.State(classNames) {
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
		}
		out.Apps = append(out.Apps, one)
	}
	return out
}

// pictures are the nodes, as findings look at them.
func pictures(routed routing.Stats, judged pessimize.Stats) (all []findings.Node) {
	counted := make(map[cluster.NodeID]pessimize.NodeStats, len(judged.Nodes))
	for _, n := range judged.Nodes {
		counted[n.Node] = n
	}
	for _, n := range routed.Nodes {
		v, c := n.Node.Verdict, counted[n.Node.ID]
		gone := v.Leaving && !c.Listed && !c.Drained && c.Hinted.IsZero()
		one := findings.Node{
			ID: uint32(n.Node.ID), Address: n.Node.Address, Health: v.Health.String(), Cause: causeOf(v), Reason: v.Reason, Since: v.Since,
			Usable: n.Node.Use.String() == "new", Unreachable: v.Unreachable, Banned: v.Banned, Leaving: v.Leaving, Gone: gone, Missing: n.Node.Missing, Unwell: n.Node.Unwell,
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

// maxLine bounds an error in a finding, in bytes.
const maxLine = 200

func oneLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n") // the first of several
	text = strings.Join(strings.Fields(text), " ")
	return strings.ToValidUTF8(text[:min(len(text), maxLine)], "")
}
