package driver

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/conformance"
)

// selfSigned makes a certificate for localhost.
func selfSigned(t testing.TB) (tls.Certificate, *x509.CertPool) {
	certificate, key, err := conformance.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return pair, pool
}
