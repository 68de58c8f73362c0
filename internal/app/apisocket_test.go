package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// over asks the HTTP API of a Unix socket.
func over(t *testing.T, path, name string) (int, string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(
		t.Context(), http.MethodPost, "http://localhost/v1/query", strings.NewReader(`{"sql":"SELECT 1"}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if name != "" {
		request.Header.Set("X-Sidecar-App", name)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// Over the Unix socket the kernel says who calls; nobody gets that name over TCP.
func TestHTTPSocketKnowsItsPeers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the kernel does not say who the peer is")
	}
	c := newCluster(t)
	path := filepath.Join(t.TempDir(), "api")
	s := start(t, c.Endpoint(), "http.socket="+path, fmt.Sprintf("apps.users=%d=web", os.Getuid()),
		"apps.token=batch=a-secret-of-sixteen-bytes")
	for name, want := range map[string]int{"": 200, "web": 200, "batch": 403, "other-name": 403} {
		if status, text := over(t, path, name); status != want {
			t.Errorf("claiming %q: %d %s; want %d", name, status, text, want)
		}
	}
	if status, text := s.fetch(http.MethodPost, "http://"+s.at.HTTP+"/v1/query", `{"sql":"SELECT 1"}`); status != http.StatusUnauthorized {
		t.Errorf("over TCP: %d %s; want 401", status, text)
	}
	var seen []apps.State
	s.state("/state/apps", &seen)
	served := uint64(0)
	for _, a := range seen {
		if a.App == "web" {
			for _, one := range a.Classes {
				served += one.Served
			}
		}
	}
	if served != 2 {
		t.Errorf("web was served %d times; want 2: %+v", served, seen)
	}
	if status, text := s.get("/metrics"); status != 200 || !strings.Contains(text, `ydb_sidecar_app="web"`) ||
		strings.Contains(text, "secret-of") {
		t.Errorf("/metrics: %d, web: %v", status, strings.Contains(text, `ydb_sidecar_app="web"`))
	}
	if _, text := s.get("/config"); strings.Contains(text, "secret-of") {
		t.Error("/config shows a token")
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left behind")
	}
	if strings.Contains(s.log.String(), "secret-of") {
		t.Error("the log has a token")
	}
}

// socketCalls are calls for each way in which a gRPC listener serves them, by name.
func (s *sidecar) socketCalls(mode string) map[string]func(ctx context.Context, conn *grpc.ClientConn) error {
	calls := map[string]func(ctx context.Context, conn *grpc.ClientConn) error{
		"Execute": func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := sidecarv1.NewSidecarClient(conn).Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			return err
		},
		"ExecuteStream": func(ctx context.Context, conn *grpc.ClientConn) error {
			stream, err := sidecarv1.NewSidecarClient(conn).ExecuteStream(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			for err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		},
	}
	if mode != "off" {
		calls["ListEndpoints"] = func(ctx context.Context, conn *grpc.ClientConn) error {
			answer, err := Ydb_Discovery_V1.NewDiscoveryServiceClient(conn).ListEndpoints(
				ctx, &Ydb_Discovery.ListEndpointsRequest{Database: "/local"},
			)
			if err != nil {
				return err
			}
			if got := answer.GetOperation(); got.GetStatus() != Ydb.StatusIds_SUCCESS {
				return status.Error(codes.Unauthenticated, got.String())
			}
			var list Ydb_Discovery.ListEndpointsResult
			if err := answer.GetOperation().GetResult().UnmarshalTo(&list); err != nil {
				return err
			}
			if at := list.GetEndpoints()[0]; conn.Target() != "passthrough:///"+s.at.GRPC &&
				fmt.Sprintf("%s:%d", at.GetAddress(), at.GetPort()) != s.at.GRPC {
				s.Errorf("SDKs are sent to %v; want the port of %s", at, s.at.GRPC)
			}
			return nil
		}
		calls["CreateSession"] = func(ctx context.Context, conn *grpc.ClientConn) error {
			answer, err := Ydb_Query_V1.NewQueryServiceClient(conn).CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
			if err == nil && answer.GetStatus() != Ydb.StatusIds_SUCCESS {
				err = status.Error(codes.Unauthenticated, answer.String())
			}
			return err
		}
	}
	return calls
}

// The same over gRPC: for calls that are served where they arrive, those that go on to the server in this process, and YDB's own
// protocol, whose ListEndpoints names the port, because no answer can name a socket.
func TestGRPCSocketKnowsItsPeers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the kernel does not say who the peer is")
	}
	for _, mode := range []string{"transaction", "passthrough", "off"} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t)
			path := filepath.Join(t.TempDir(), "grpc")
			s := start(t, c.Endpoint(), "wire.mode="+mode, "grpc.socket="+path,
				fmt.Sprintf("apps.users=%d=web", os.Getuid()), "apps.token=batch=a-secret-of-sixteen-bytes")
			conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			calls := s.socketCalls(mode)
			for what, call := range calls {
				s.eventually(what, func() bool { return call(t.Context(), conn) == nil })
				for name, good := range map[string]bool{"web": true, "batch": false, "other-name": false} {
					ctx := metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", name, "x-ydb-application-name", name)
					if err := call(ctx, conn); (err == nil) != good {
						t.Errorf("%s of somebody who claims %q: %v", what, name, err)
					}
				}
				// What a client says of the user is not heard.
				ctx := metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", "web", "x-ydb-application-name",
					"web", "x-sidecar-connection", fmt.Sprintf("1 %d", os.Getuid()))
				if err := call(ctx, s.conn); err == nil {
					t.Errorf("%s over TCP is let in as a user", what)
				}
			}
			if err := s.stop(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(path); err == nil {
				t.Error("the socket is left behind")
			}
		})
	}
}

// What comes over the socket does not leave the machine: it is plaintext beside TLS.
func TestGRPCSocketIsPlaintext(t *testing.T) {
	for _, mode := range []string{"transaction", "off"} {
		dir := t.TempDir()
		path, cert, key := filepath.Join(dir, "grpc"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
		selfSigned(t, cert, key)
		s := start(t, newCluster(t).Endpoint(), "wire.mode="+mode, "grpc.socket="+path, "grpc.cert_file="+cert, "grpc.key_file="+key)
		conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		s.eventually("served", func() bool {
			_, err := sidecarv1.NewSidecarClient(conn).Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			return err == nil
		})
		if _, err := sidecarv1.NewSidecarClient(s.conn).Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}); err == nil {
			t.Error("over TCP it is plaintext, too")
		}
		_ = conn.Close()
	}
}

// Two listeners under one name would take it from each other.
func TestSocketsHaveNamesOfTheirOwn(t *testing.T) {
	origin := Origin{Assignments: []Assignment{{"grpc.socket=/run/a", "test"}, {"http.socket=/run/a", "test"}}}
	if _, _, err := origin.Load(); err == nil ||
		!strings.Contains(err.Error(), `http.socket = "/run/a"; must be another path than that of grpc.socket`) {
		t.Errorf("two of one name: %v", err)
	}
}
