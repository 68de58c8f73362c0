package systemtest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Clients on Unix sockets lose nothing either while one process takes the place of another, those that dial meanwhile included; and
// a process that gives a socket up leaves no name behind.
func TestReplacedBehindUnixSocketsNoCallFails(t *testing.T) {
	c := startCluster(t, nil)
	dir := t.TempDir()
	at := map[string]string{"grpc": filepath.Join(dir, "grpc"), "http": filepath.Join(dir, "http")}
	takeover := "takeover.socket=" + filepath.Join(dir, "run", "takeover.sock")
	settings := []string{takeover, "grpc.socket=" + at["grpc"], "http.socket=" + at["http"]}
	s := startSidecar(t, c, nil, settings...)
	c.everywhere(t, "delay", map[string]any{"delay": "10ms", "methods": []string{"ExecuteQuery"}})

	overGRPC := func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := sidecarv1.NewSidecarClient(conn).Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
		return err
	}
	dialGRPC := func() (*grpc.ClientConn, error) {
		return grpc.NewClient("unix:"+at["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	lasting, err := dialGRPC()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lasting.Close() })
	client := func(fresh bool) *http.Client {
		transport := &http.Transport{DisableKeepAlives: fresh, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", at["http"])
		}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	kept, fresh := client(false), client(true)
	kinds := []func(context.Context) error{
		func(ctx context.Context) error { return overGRPC(ctx, lasting) },
		func(ctx context.Context) error {
			conn, err := dialGRPC()
			if err != nil {
				return err
			}
			defer conn.Close()
			return overGRPC(ctx, conn)
		},
		func(ctx context.Context) error {
			_, err := say(ctx, kept, "http://localhost/v1/query", `{"sql":"SELECT 1"}`)
			return err
		},
		func(ctx context.Context) error {
			_, err := say(ctx, fresh, "http://localhost/v1/query", `{"sql":"SELECT 1"}`)
			return err
		},
	}
	load := call(t, 2*len(kinds), func(ctx context.Context, caller int) error { return kinds[caller%len(kinds)](ctx) })
	for range 4 {
		old := s.replace(t, c, settings...)
		before := load.total()
		eventually(t, patience, "calls go on", func() string {
			if n := load.total() - before; n < 100 {
				return fmt.Sprint(n)
			}
			return ""
		})
		exited(t, old)
	}
	load.stop()
	if err := load.err(); err != nil {
		t.Errorf("a call failed: %v", err)
	}
	exited(t, s.replace(t, c, takeover))
	for what, path := range at {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s.socket is left behind by a process whose successor has none", what)
		}
	}
}
