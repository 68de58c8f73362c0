package systemtest

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/certtest"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// TestNodeClientOverTLS runs the installed npm package over gRPC with TLS against sidecars: with the right certificates, with wrong ones
// and with none. The package's own tests have HTTP with TLS.
func TestNodeClientOverTLS(t *testing.T) {
	dir, certificates := installNode(t), t.TempDir()
	withModules(t, dir, "@grpc")
	file := func(name string) string { return filepath.Join(certificates, name) }
	for _, name := range []string{"server", "client", "stranger"} {
		if err := certtest.Of(t).Write(file(name+".pem"), file(name+".key")); err != nil {
			t.Fatal(err)
		}
	}
	c := startCluster(t, nil)
	own := []string{"grpc.cert_file=" + file("server.pem"), "grpc.key_file=" + file("server.key")}
	port := func(settings ...string) string {
		_, port, err := net.SplitHostPort(startSidecar(t, c, nil, settings...).GRPC)
		if err != nil {
			t.Fatal(err)
		}
		return port
	}
	env := []string{
		"CERTIFICATES=" + certificates, "PLAIN=" + port(), "SECURE=" + port(own...),
		"MUTUAL=" + port(append(own, "grpc.client_ca_file="+file("client.pem"))...),
	}
	text, err := os.ReadFile(filepath.Join(standtest.Root(t), "clients", "node", "test", "installed", "tls.test.mjs"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "tls.test.mjs"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	command(t, dir, "env", append(env, "node", "--test", "tls.test.mjs")...)
}
