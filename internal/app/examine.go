package app

import (
	"context"
	"io"
	"log/slog"

	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/telemetry"
)

// Examine tries out, from here, all that a sidecar with that configuration needs, and
// tells each check. It opens no port, and one session, which it deletes. It reports
// whether nothing failed.
func Examine(ctx context.Context, c *Config, version string, tell func(Exam)) bool {
	x := &exam{tell: tell}
	x.add("config", Good, "", "all settings are valid")
	x.machine(machine{files: listen.OpenFiles, memory: containerMemory})
	examineCluster(ctx, x, *c, version)
	return !x.bad
}

// examineCluster makes the parts below the APIs, for one examination.
func examineCluster(ctx context.Context, x *exam, c Config, version string) {
	c.Pool.Min = 0
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	tel, err := telemetry.New(ctx, c.Telemetry, func(string) string { return "" }, c.Tracing, version, log)
	if err != nil {
		x.add("parts", Bad, "", "%v", err)
		return
	}
	defer func() { _ = tel.Shutdown(context.WithoutCancel(ctx)) }()
	k, err := newCore(c, tel, version, log)
	if err != nil {
		x.add("tls files", Bad, "Check the files that the message names.", "%v", err)
		return
	}
	defer func() { _ = k.driver.Close() }()
	x.cluster(ctx, parts{
		mode: c.Discovery.Mode, dials: c.Discovery.Mode == discovery.ModeYDB || c.YDB.Auth.Kind == "static",
		driver: k.driver, judge: k.judge, discovery: k.discovery, attention: k.attention,
		pool: k.pool, apps: k.apps, router: k.router, client: k.client,
	})
}
