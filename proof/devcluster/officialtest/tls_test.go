package officialtest

import (
	"crypto/tls"
	"testing"

	"github.com/ydb-platform/ydb-go-sdk/v3"

	"github.com/ydb-sidecar/sidecar/proof/certtest"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// Rule 4: over TLS the endpoints say so, or the client would drop them all. The
// nodes forward to each other as ever.
func TestRule04Security(t *testing.T) {
	certificate := certtest.Of(t)
	cluster := startCluster(t, func(c *devcluster.Config) {
		c.TLS = &tls.Config{Certificates: []tls.Certificate{certificate.Pair()}, MinVersion: tls.VersionTLS12}
		c.Balance = true
	})
	db := open(t, cluster.Endpoint(), ydb.WithCertificate(certificate.Leaf))
	for range 3 {
		execute(t, db, "SELECT 1")
	}
	found, err := db.Discovery().Discover(testContext(t))
	if err != nil || len(found) != 3 {
		t.Errorf("discovered %v, %v", found, err)
	}
}
