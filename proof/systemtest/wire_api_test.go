package systemtest

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ydb-sidecar/sidecar/proof/certtest"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The plain API is what it always was on a port that serves YDB's own protocol too.
func TestPlainAPIBesideSDKs(t *testing.T) {
	everyMode(t, func(t *testing.T, through []string) {
		c := startCluster(t, nil)
		s := startSidecar(t, c, nil, through...)
		t.Run("contract", func(t *testing.T) {
			contract.Run(t, contract.Target{HTTP: "http://" + s.HTTP, GRPC: s.GRPC})
		})
		t.Run("health", func(t *testing.T) { healthAndReflection(t, s.Conn) })
		t.Run("apps", func(t *testing.T) { appsBesideSDK(t, s) })
		if n := c.sum(t, "forwarded"); n != 0 {
			t.Errorf("%d calls did not go to the owner of their session", n)
		}
	})
}

// healthAndReflection are asked for as grpcurl and grpc-health-probe do.
func healthAndReflection(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	health := healthv1.NewHealthClient(conn)
	for _, service := range []string{"", sidecarv1.Sidecar_ServiceDesc.ServiceName} {
		if r, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service}); err != nil ||
			r.Status != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", service, r, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	watch, err := health.Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.Status != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("watched: %v, %v", r, err)
	}
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var services []string
	for _, request := range []*reflectionv1.ServerReflectionRequest{
		{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}},
		{
			MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{
				FileContainingSymbol: sidecarv1.Sidecar_ServiceDesc.ServiceName,
			},
		},
	} {
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
		reply, err := stream.Recv()
		if err != nil || reply.GetErrorResponse() != nil {
			t.Fatalf("reflection: %v, %v", reply, err)
		}
		for _, service := range reply.GetListServicesResponse().GetService() {
			services = append(services, service.Name)
		}
	}
	if !slices.Contains(services, sidecarv1.Sidecar_ServiceDesc.ServiceName) ||
		!slices.Contains(services, healthv1.Health_ServiceDesc.ServiceName) {
		t.Errorf("reflection lists %v", services)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("reflection ended with %v", err)
	}
	err = conn.Invoke(ctx, "/sidecar.v1.Sidecar/NoSuchMethod", &emptypb.Empty{}, &emptypb.Empty{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that is not there: %v", err)
	}
}

// appsBesideSDK runs the apps, over gRPC, while an SDK works over the same port.
func appsBesideSDK(t *testing.T, s *sidecar) {
	db := openSDK(t, s.sdk())
	must(t, db, "CREATE TABLE load (id Uint64, PRIMARY KEY (id))")
	load := loadSDK(t, db, 4)
	all := []app{python(t, "grpc://"+s.GRPC), node(t, "grpc://"+s.GRPC)}
	all[0].run(t, "init")
	var args []string
	processes := make([]*stand.Process, len(all))
	for i, a := range all {
		ledger := filepath.Join(t.TempDir(), "ledger")
		args = append(args, "--ledger", ledger)
		processes[i] = a.start(t, nil, "run", "--seconds", "3", "--ledger", ledger)
	}
	for i, a := range all {
		if said := a.finish(t, processes[i]); said["placed"] == nil || said["gave up"] != nil {
			t.Errorf("%s placed %v orders and gave up on %v; want some and none", a.name, said["placed"], said["gave up"])
		}
	}
	if said := all[1].run(t, append([]string{"check"}, args...)...); said["ok"] != true {
		t.Errorf("%s says of the books: %v", all[1].name, said["wrong"])
	}
	load.allWell(t, sdkPatience)
}

// What holds for the plain API when the sidecar stops, or is replaced, does so here.
func TestStopUnderLoadBesideSDKs(t *testing.T) {
	everyMode(t, func(t *testing.T, through []string) { stopUnderLoad(t, through...) })
}

func TestReplacedUnderLoadBesideSDKs(t *testing.T) {
	everyMode(t, func(t *testing.T, through []string) { replaceUnderLoad(t, 2, through...) })
}

// certify makes a self-signed certificate for the loopback interface.
func certify(t *testing.T) (certFile, keyFile string, parsed *x509.Certificate) {
	t.Helper()
	c, dir := certtest.Of(t), t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := c.Write(certFile, keyFile); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile, c.Leaf
}

// TLS to the nodes and to clients, with certificates of their own: SDKs and the plain
// API work from end to end, and who does not trust the sidecar gets nowhere.
func TestSDKsWithTLS(t *testing.T) {
	nodeCert, nodeKey, nodeParsed := certify(t)
	cert, key, parsed := certify(t)
	everyMode(t, func(t *testing.T, through []string) {
		c := startCluster(t, nil, "-tls-cert", nodeCert, "-tls-key", nodeKey)
		s := startSidecarAt(t, "grpcs://"+c.Nodes[0].Address+"/local", nil, append(through,
			"ydb.ca_file="+nodeCert, "grpc.cert_file="+cert, "grpc.key_file="+key, "pool.min=0")...)
		url := "grpcs://" + s.GRPC + "/local"

		db := openSDK(t, url, ydbsdk.WithCertificate(parsed))
		must(t, db, "CREATE TABLE load (id Uint64, PRIMARY KEY (id))")
		fillLarge(t, db, 5000)
		var work sync.WaitGroup
		for caller := range 8 {
			work.Go(func() {
				for range 10 {
					if err := oneSDKCall(t.Context(), db, caller); err != nil {
						t.Error(err)
					}
				}
			})
		}
		work.Wait()
		found, err := db.Discovery().Discover(t.Context())
		if err != nil || len(found) != 1 || found[0].Address() != s.GRPC {
			t.Errorf("discovery tells %v, %v; want %s alone", found, err, s.GRPC)
		}
		if said := javaClient(t, url, "YDB_CA="+cert); said == "" {
			t.Error("the Java client said nothing")
		}

		roots := x509.NewCertPool()
		roots.AddCert(parsed)
		trusting := credentials.NewClientTLSFromCert(roots, "")
		contract.Run(t, contract.Target{HTTP: "http://" + s.HTTP, GRPC: s.GRPC, TLS: trusting})
		conn, err := grpc.NewClient("passthrough:///"+s.GRPC, grpc.WithTransportCredentials(trusting))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		healthAndReflection(t, conn)
		if n := c.sum(t, "forwarded"); n != 0 {
			t.Errorf("%d calls did not go to the owner of their session", n)
		}

		for name, wrong := range map[string]string{"the nodes' certificate": url, "no TLS": s.sdk()} {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			db, err := ydbsdk.Open(ctx, wrong, ydbsdk.WithCertificate(nodeParsed))
			cancel()
			if err == nil {
				t.Errorf("a client with %s gets in", name)
				closeSDK(t, db)
			}
		}
	})
}
