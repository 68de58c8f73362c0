package systemtest

import (
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// A client that watches the health of the sidecar holds up neither a hot restart nor a
// stop: both have an hour for what is under way, and that is nothing.
func TestWatchesHoldUpNoStop(t *testing.T) {
	c := startCluster(t, nil)
	settings := []string{"takeover.socket=" + filepath.Join(t.TempDir(), "takeover.sock"), "drain.grace=1h"}
	s := startSidecar(t, c, nil, settings...)
	watch := func() healthv1.Health_WatchClient {
		t.Helper()
		conn, _ := dial(t, s.GRPC)
		watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if now, err := watch.Recv(); err != nil || now.Status != healthv1.HealthCheckResponse_SERVING {
			t.Fatalf("the health is %v, %v", now, err)
		}
		return watch
	}
	ended := func(w healthv1.Health_WatchClient) {
		t.Helper()
		if now, err := w.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("at its end the watch says %v, %v; want UNAVAILABLE", now, err)
		}
	}
	first := watch()
	exited(t, s.replace(t, c, settings...))
	ended(first) // without a word of NOT_SERVING: another process serves
	second := watch()
	s.endsWell(t)
	if now, err := second.Recv(); err != nil || now.Status != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("at the stop the watch says %v, %v; want NOT_SERVING", now, err)
	}
	ended(second)
	c.noSessions(t)
}
