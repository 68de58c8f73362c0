package app

import (
	"context"
	"log/slog"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

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
func (a *App) heed(cluster.Conditions) {
	select {
	case a.judged <- struct{}{}:
	default:
	}
}

// tellNodes adds what the judge has noted since its event of that number to the
// events, and returns the number of the last.
func (a *App) tellNodes(after uint64) uint64 {
	for _, e := range a.core.detector.Events(after) {
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
		a.log.Info("no longer: "+f.Text, "finding", f.Code, "node", f.Node, "app", f.App, "after",
			p.At.Sub(f.Since).Round(time.Millisecond).String())
		a.events.Add(eventOf(f, string(f.Code), ""))
	}
}

func eventOf(f findings.Finding, from, to string) admin.Event {
	return admin.Event{Node: cluster.NodeID(f.Node), App: f.App, Kind: "finding", From: from, To: to, Reason: f.Text}
}

// healthUpstream is the service of grpc.health.v1 that says whether any node is good.
const healthUpstream = "ydb.upstream"
