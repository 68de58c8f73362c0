package app

import (
	"context"
	"log/slog"
	"sync"

	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// listenerCerts are the files of TLS of the listeners; nil ones speak plaintext.
type listenerCerts struct{ grpc, http, admin, xds *certs.Keeper }

func newListenerCerts(c *Config, log *slog.Logger) (l listenerCerts, err error) {
	if l.grpc, err = certs.ForListener("grpc", c.GRPC.TLS, []string{"h2"}, log); err != nil {
		return l, err
	}
	if l.http, err = certs.ForListener("http", c.HTTP.TLS, []string{"h2", "http/1.1"}, log); err != nil {
		return l, err
	}
	if l.admin, err = certs.ForListener("admin", c.Admin.TLS, []string{"h2", "http/1.1"}, log); err != nil || !c.XDS.Enabled {
		return l, err
	}
	l.xds, err = certs.ForListener("xds", c.XDS.TLS, []string{"h2"}, log)
	return l, err
}

// run reads files again that have changed, until ctx ends. It returns nil.
func (l *listenerCerts) run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, k := range []*certs.Keeper{l.grpc, l.http, l.admin, l.xds} {
		running.Go(func() { panics.Keep(ctx, "the watch of certificates", func() { k.Run(ctx) }) })
	}
	<-ctx.Done()
	running.Wait()
	return nil
}
