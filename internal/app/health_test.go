package app

import (
	"testing"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// A client that watches the health of the sidecar is told that it no longer serves, and
// does not hold up the stop, whichever server the client is connected to.
func TestStopEndsWatches(t *testing.T) {
	for _, mode := range []string{"off", "passthrough", "transaction"} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t)
			s := start(t, c.Endpoint(), "wire.mode="+mode, "drain.grace=1h")
			var all []healthv1.Health_WatchClient
			for _, service := range []string{"", "sidecar.v1.Sidecar", "sidecar.v1.KeyValue"} {
				watch, err := healthv1.NewHealthClient(s.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{Service: service})
				if err != nil {
					t.Fatal(err)
				}
				if now, err := watch.Recv(); err != nil || now.Status != healthv1.HealthCheckResponse_SERVING {
					t.Fatalf("health of %q: %v, %v", service, now, err)
				}
				all = append(all, watch)
			}
			if err := s.stop(); err != nil {
				t.Errorf("Run = %v; want nil: nothing was cut off", err)
			}
			for i, watch := range all {
				if now, err := watch.Recv(); err != nil || now.Status != healthv1.HealthCheckResponse_NOT_SERVING {
					t.Errorf("watch %d after the signal: %v, %v; want NOT_SERVING", i, now, err)
				}
				if now, err := watch.Recv(); status.Code(err) != codes.Unavailable {
					t.Errorf("watch %d after that: %v, %v; want UNAVAILABLE", i, now, err)
				}
			}
		})
	}
}
