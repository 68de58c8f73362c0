package officialtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-sdk/v3"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// certificate makes a self-signed certificate for the loopback interface.
func certificate(t *testing.T) (tls.Certificate, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, parsed
}

// Rule 4: over TLS the endpoints say so, or the client would drop them all. The
// nodes forward to each other as ever.
func TestRule04Security(t *testing.T) {
	pair, parsed := certificate(t)
	cluster := startCluster(t, func(c *devcluster.Config) {
		c.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		c.Balance = true
	})
	db := open(t, cluster.Endpoint(), ydb.WithCertificate(parsed))
	for range 3 {
		execute(t, db, "SELECT 1")
	}
	found, err := db.Discovery().Discover(testContext(t))
	if err != nil || len(found) != 3 {
		t.Errorf("discovered %v, %v", found, err)
	}
}
