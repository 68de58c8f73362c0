package listen

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Health is grpc.health.v1. A Watch lasts as long as its client wants, and no stop waits
// for that: Release ends it.
type Health struct {
	*health.Server
	Release context.CancelFunc // ends all calls of Watch
	ctx     context.Context    // ends with Release
}

// NewHealth returns a Health on which the services are to be set.
func NewHealth() *Health {
	w := &Health{Server: health.NewServer()}
	w.ctx, w.Release = context.WithCancel(context.Background())
	return w
}

// Watch implements grpc.health.v1. Its last message is the state of that time, whatever
// ends it here.
func (w *Health) Watch(in *healthv1.HealthCheckRequest, client healthv1.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	defer context.AfterFunc(w.ctx, cancel)()
	own := &watch{Health_WatchServer: client, ctx: ctx}
	err := w.Server.Watch(in, own)
	if w.ctx.Err() == nil || client.Context().Err() != nil {
		return err
	}
	if now, err := w.Check(ctx, in); err == nil && now.Status != own.told {
		_ = client.Send(now) // it fails only when the client is gone
	}
	return status.Error(codes.Unavailable, "this sidecar is stopping")
}

// watch is the stream of one Watch.
type watch struct {
	healthv1.Health_WatchServer
	ctx  context.Context
	told healthv1.HealthCheckResponse_ServingStatus // last
}

// Context ends with the client's call, and with Health.Release.
func (w *watch) Context() context.Context { return w.ctx }

// Send notes what the client is told.
func (w *watch) Send(m *healthv1.HealthCheckResponse) error {
	w.told = m.Status
	return w.Health_WatchServer.Send(m)
}
