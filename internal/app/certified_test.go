package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/proof/certtest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// tlsFiles are settings with which both APIs ask clients for certificates that are among those given.
func tlsFiles(t *testing.T, clients ...certtest.Certificate) (settings []string) {
	t.Helper()
	dir := t.TempDir()
	cert, key, ca := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
	selfSigned(t, cert, key)
	var all bytes.Buffer
	for _, c := range clients {
		all.Write(c.PEM)
	}
	if err := os.WriteFile(ca, all.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"grpc", "http"} {
		settings = append(settings, name+".cert_file="+cert, name+".key_file="+key, name+".client_ca_file="+ca)
	}
	return settings
}

// certified is a client with a certificate, over connections that stay open.
type certified struct {
	s        *sidecar
	grpc     *grpc.ClientConn
	one, two *http.Client // HTTP/1.1 and HTTP/2
}

func (s *sidecar) as(t *testing.T, c certtest.Certificate) certified {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{c.Pair()}}
	conn, err := grpc.NewClient("passthrough:///"+s.at.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	client := func(h2 bool) *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: config.Clone(), ForceAttemptHTTP2: h2}}
	}
	by := certified{s, conn, client(false), client(true)}
	t.Cleanup(func() {
		_ = conn.Close()
		by.one.CloseIdleConnections()
		by.two.CloseIdleConnections()
	})
	return by
}

// post makes a request with headers, which alternate names and values. A refusal of its caller is an error as over gRPC.
func (by certified) post(ctx context.Context, client *http.Client, path, kind, body string, headers []string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+by.s.at.HTTP+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if code, refused := map[int]codes.Code{
		http.StatusUnauthorized: codes.Unauthenticated, http.StatusForbidden: codes.PermissionDenied,
	}[response.StatusCode]; refused {
		return status.Errorf(code, "%s", text)
	}
	return nil
}

// ways are calls with headers for each way in. Rows are for a table that is not there: what matters is who may send them.
func (by certified) ways(mode string) map[string]func(ctx context.Context, headers ...string) error {
	all := map[string]func(ctx context.Context, headers ...string) error{}
	overGRPC := func(what string, call func(ctx context.Context) error) {
		all[what+" over gRPC"] = func(ctx context.Context, headers ...string) error {
			return call(metadata.AppendToOutgoingContext(ctx, headers...))
		}
	}
	for what, call := range by.s.socketCalls(mode) {
		overGRPC(what, func(ctx context.Context) error { return call(ctx, by.grpc) })
	}
	// The server in this process inflates.
	overGRPC("a compressed Execute", func(ctx context.Context) error {
		_, err := sidecarv1.NewSidecarClient(by.grpc).Execute(
			ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}, grpc.UseCompressor(gzip.Name),
		)
		return err
	})
	overGRPC("Ingest", func(ctx context.Context) error {
		stream, err := sidecarv1.NewIngestClient(by.grpc).Ingest(ctx)
		if err != nil {
			return err
		}
		_ = stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: "none"}}})
		_ = stream.CloseSend() // Recv has the error of both
		for err == nil {
			_, err = stream.Recv()
		}
		if code := status.Code(err); code == codes.Unauthenticated || code == codes.PermissionDenied {
			return err
		}
		return nil
	})
	for version, client := range map[string]*http.Client{"HTTP/1.1": by.one, "HTTP/2": by.two} {
		all["a query over "+version] = func(ctx context.Context, headers ...string) error {
			return by.post(ctx, client, "/v1/query", "application/json", `{"sql":"SELECT 1"}`, headers)
		}
		all["ingest over "+version] = func(ctx context.Context, headers ...string) error {
			return by.post(ctx, client, "/v1/ingest/none", "application/x-ndjson", `{"id":1}`+"\n", headers)
		}
	}
	return all
}

// named are the headers of a call that claims an app.
func named(app string) []string { return []string{"x-sidecar-app", app, "x-ydb-application-name", app} }

// A client is the app of a name in its certificate, whichever way it comes, and that app's name is given to nobody else.
func TestCertificatesNameApps(t *testing.T) {
	const secret = "a-secret-of-sixteen-bytes"
	web := certtest.OfNames(t, certtest.Names{Common: "x", DNS: []string{"other.example.org", "web.example.org"}})
	orders := certtest.OfNames(t, certtest.Names{URIs: []string{"spiffe://example.org/orders"}})
	ops, nobody := certtest.OfNames(t, certtest.Names{Common: "ops"}), certtest.OfNames(t, certtest.Names{Common: "web.example.org"})
	for _, mode := range []string{"transaction", "passthrough", "off"} {
		t.Run(mode, func(t *testing.T) {
			settings := append(tlsFiles(t, web, orders, ops, nobody), "wire.mode="+mode, "apps.token=batch="+secret,
				"apps.users=dns:web.example.org=web,uri:spiffe://example.org/orders=orders,cn:ops=ops")
			s := start(t, newCluster(t).Endpoint(), settings...)
			for app, c := range map[string]certtest.Certificate{"web": web, "orders": orders, "ops": ops, "": nobody} {
				for way, call := range s.as(t, c).ways(mode) {
					if app != "" {
						s.eventually(way+" of "+app, func() bool { return call(t.Context(), named(app)...) == nil })
					}
					for _, claim := range []string{"web", "orders", "ops", "batch", "free"} {
						err := call(t.Context(), named(claim)...)
						if free := app == "" && claim == "free"; (err == nil) != (claim == app) && !free {
							t.Errorf("%s of %q that claims %q: %v", way, app, claim, err)
						}
					}
					err := call(t.Context(), "authorization", "Bearer "+secret)
					sdk := strings.HasPrefix(way, "ListEndpoints") || strings.HasPrefix(way, "CreateSession") // UNAUTHORIZED
					if (err == nil) != (app == "") || err != nil && !sdk && status.Code(err) != codes.Unauthenticated {
						t.Errorf("%s of %q with the token of another app: %v", way, app, err)
					}
					// What a client says of its certificate is not heard.
					if err := call(t.Context(), append(named("batch"), "x-sidecar-connection", "1;Y246b3Bz")...); err == nil {
						t.Errorf("%s of %q is let in as another app", way, app)
					}
				}
			}
			for way, call := range s.as(t, nobody).ways(mode) {
				err := call(t.Context())
				if own := strings.HasPrefix(way, "ListEndpoints") || strings.HasPrefix(way, "CreateSession"); (err == nil) != own {
					t.Errorf("%s of nobody's certificate, without a token: %v", way, err)
				}
			}
		})
	}
}

// Other names in apps.users count at once, over connections that are open. Malformed ones change nothing.
func TestReloadOfCertificates(t *testing.T) {
	client := certtest.OfNames(t, certtest.Names{Common: "client"})
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	set := func(users, limits string) {
		write(t, file, fmt.Sprintf("reload.interval: 0s\napps.users: [%q]\napps.limits: [%q]\n", users, limits))
	}
	set("cn:client=web", "*")
	s := startWith(t, file, newCluster(t).Endpoint(), tlsFiles(t, client)...)
	ways := s.as(t, client).ways("transaction")
	is := func(app, other string) {
		t.Helper()
		for way, call := range ways {
			s.eventually(way+" of "+app, func() bool { return call(t.Context(), named(app)...) == nil })
			if err := call(t.Context(), named(other)...); err == nil {
				t.Errorf("%s: %s is %s, too", way, app, other)
			}
		}
	}
	is("web", "orders")
	set("cn:client=orders", "*")
	if _, err := s.Reload("a test", false); err != nil {
		t.Fatal(err)
	}
	is("orders", "web")
	set("cn:=web", "*")
	if _, err := s.Reload("a test", false); err == nil || !strings.Contains(err.Error(), "users[0]") {
		t.Errorf("a malformed name: %v", err)
	}
	is("orders", "web")

	set("cn:client=orders", "orders calls=describe")
	if _, err := s.Reload("a test", false); err != nil {
		t.Fatal(err)
	}
	for way, call := range ways {
		before := len(s.log.String())
		if strings.HasPrefix(way, "ListEndpoints") {
			continue // it is free to every app
		}
		if err := call(t.Context()); err == nil {
			t.Errorf("%s is not denied", way)
		}
		s.eventually("a line for "+way, func() bool {
			line := s.log.String()[before:]
			return strings.Contains(line, "certificate cn:client") && strings.Contains(line, "orders")
		})
	}
}
