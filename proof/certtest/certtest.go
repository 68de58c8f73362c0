// Package certtest makes the certificates of tests and experiments. It owns
// what such a certificate looks like. What always holds: each is its own
// authority, for 127.0.0.1 and its names (localhost), has a serial number of its own, and
// is valid from an hour ago for a day.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net"
	"net/url"
	"os"
	"testing"
	"time"
)

// Name is what certificates are for, beside 127.0.0.1.
const Name = "localhost"

// Certificate is one that is its own authority.
type Certificate struct {
	PEM, Key []byte // the certificate and its private key, both PEM
	Leaf     *x509.Certificate
}

// Names are what a certificate says of its holder.
type Names struct {
	Common string
	DNS    []string
	URIs   []string
}

// New makes a certificate.
func New() (Certificate, error) { return Named(Names{Common: Name, DNS: []string{Name}}) }

// Named makes a certificate with names.
func Named(names Names) (Certificate, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(math.MaxInt64-1))
	if err != nil {
		return Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: names.Common},
		DNSNames: names.DNS, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	for _, text := range names.URIs {
		uri, err := url.Parse(text)
		if err != nil {
			return Certificate{}, err
		}
		template.URIs = append(template.URIs, uri)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return Certificate{}, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return Certificate{}, err
	}
	block := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	return Certificate{PEM: block("CERTIFICATE", der), Key: block("PRIVATE KEY", key), Leaf: leaf}, nil
}

// Of makes a certificate for a test.
func Of(t testing.TB) Certificate {
	t.Helper()
	return OfNames(t, Names{Common: Name, DNS: []string{Name}})
}

// OfNames makes a certificate with names for a test.
func OfNames(t testing.TB, names Names) Certificate {
	t.Helper()
	c, err := Named(names)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Pair is what a server of TLS takes.
func (c Certificate) Pair() tls.Certificate {
	pair, err := tls.X509KeyPair(c.PEM, c.Key)
	if err != nil {
		panic(fmt.Sprintf("a certificate that was just made: %v", err))
	}
	return pair
}

// Pool trusts the certificate alone.
func (c Certificate) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.Leaf)
	return pool
}

// Write writes the two files. Each one changes in one step, as in volumes of secrets.
func (c Certificate) Write(cert, key string) error {
	write := func(path string, b []byte) error {
		return errors.Join(os.WriteFile(path+".next", b, 0o600), os.Rename(path+".next", path))
	}
	return errors.Join(write(cert, c.PEM), write(key, c.Key))
}
