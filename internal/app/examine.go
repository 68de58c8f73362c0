package app

import (
	"context"
	"io"
	"log/slog"

	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/doctor"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/telemetry"
)

// Examine tries out, from here, all that a sidecar with that configuration needs, and
// tells each check. It opens no port, and one session, which it deletes. It reports
// whether nothing failed.
func Examine(ctx context.Context, c *Config, version string, tell func(doctor.Exam)) bool {
	x := doctor.New(tell)
	x.Add("config", doctor.Good, "", "all settings are valid")
	x.Machine(doctor.Machine{Files: listen.OpenFiles, Memory: containerMemory})
	examineCluster(ctx, x, *c, version)
	return x.Good()
}

// examineCluster makes the parts below the APIs, for one examination.
func examineCluster(ctx context.Context, x *doctor.Examination, c Config, version string) {
	c.Pool.Min = 0
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	tel, err := telemetry.New(ctx, c.Telemetry, func(string) string { return "" }, c.Tracing, version, log)
	if err != nil {
		x.Add("parts", doctor.Bad, "", "%v", err)
		return
	}
	defer func() { _ = tel.Shutdown(context.WithoutCancel(ctx)) }()
	k, err := newCore(c, tel, version, log)
	if err != nil {
		x.Add("tls files", doctor.Bad, "Check the files that the message names.", "%v", err)
		return
	}
	defer func() { _ = k.driver.Close() }()
	x.Cluster(ctx, doctor.Parts{
		Mode: c.Discovery.Mode, Dials: c.Discovery.Mode == discovery.ModeYDB || c.YDB.Auth.Kind == "static",
		Driver: k.driver, Detector: k.detector, Discovery: k.discovery, Attention: k.attention,
		Pool: k.pool, Apps: k.apps, Router: k.router, Client: k.client,
	})
}
