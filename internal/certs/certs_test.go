package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

// The system's authorities are those of a file here, so that there are any.
func TestMain(m *testing.M) {
	if err := os.Setenv("SSL_CERT_FILE", filepath.Join("testdata", "system.pem")); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

var serial atomic.Int64

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key, file: filepath.Join(t.TempDir(), "ca.pem"), cert: &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: "an authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0), KeyUsage: x509.KeyUsageCertSign,
	}}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	put(t, a.file, "CERTIFICATE", der)
	return a
}

func put(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	write(t, path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// write writes a file at a time of its own: clocks of files are coarse.
func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, text, 0o600), os.Chtimes(path, time.Time{}, time.Unix(1<<20+serial.Add(1), 0))); err != nil {
		t.Fatal(err)
	}
}

// below is an authority that a has signed.
func (a *authority) below() *authority {
	a.t.Helper()
	b := newAuthority(a.t)
	b.cert.Subject.CommonName = "an authority below"
	der, err := x509.CreateCertificate(rand.Reader, b.cert, a.cert, &b.key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	put(a.t, b.file, "CERTIFICATE", der)
	return b
}

// linked is pair, the certificate followed by that of the authority.
func (a *authority) linked(name string) (cert, key string) {
	a.t.Helper()
	cert, key = a.pair(name, never)
	own, err := os.ReadFile(cert)
	link, err2 := os.ReadFile(a.file)
	if err := errors.Join(err, err2, os.WriteFile(cert, append(own, link...), 0o600)); err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// issue writes a certificate and its key.
func (a *authority) issue(cert, key, name string, until time.Time) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: name}, NotBefore: time.Unix(0, 0), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		leaf.IPAddresses = []net.IP{ip}
	} else {
		leaf.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	put(a.t, cert, "CERTIFICATE", der)
	text, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	put(a.t, key, "EC PRIVATE KEY", text)
}

var never = time.Unix(1<<33, 0)

// pair is issue for a fresh pair of files.
func (a *authority) pair(name string, until time.Time) (cert, key string) {
	dir := a.t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	a.issue(cert, key, name, until)
	return cert, key
}

// shake has both sides shake hands over a real connection, and a byte go each way.
func shake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			defer conn.Close()
			s := tls.Server(conn, server)
			if err := s.Handshake(); err != nil {
				return err
			}
			_, err = io.Copy(s, s)
			return err
		}()
	}()
	clientErr = func() error {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		c := tls.Client(conn, client)
		if err := c.Handshake(); err != nil {
			return err
		}
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 1)) // with TLS 1.3 a server refuses the client's certificate only now
		return err
	}()
	return <-done, clientErr
}

func keeper(t *testing.T, files Files) *Keeper {
	t.Helper()
	k, err := New("test", files, []string{"h2"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestHandshakes(t *testing.T) {
	good, strange := newAuthority(t), newAuthority(t)
	cert, key := good.pair("node", never)
	own, ownKey := good.pair("client", never)
	server := Files{Cert: cert, Key: key}
	mutual := Files{Cert: cert, Key: key, CA: good.file}
	for name, tc := range map[string]struct {
		server, client Files
		as             string
		change         func(server, client *tls.Config)
		fault          string // "": none
	}{
		"plain_tls":  {server, Files{CA: good.file}, "node", nil, ""},
		"an_address": {files(good.pair("127.0.0.1", never)), Files{CA: good.file}, "127.0.0.1", nil, ""},
		"another_address": {files(good.pair("127.0.0.1", never)), Files{CA: good.file}, "127.0.0.2", nil,
			"certificate is valid for 127.0.0.1"},
		"no_name":               {server, Files{CA: good.file}, "", nil, "no name to check"},
		"another_name":          {server, Files{CA: good.file}, "other", nil, "certificate is valid for node"},
		"expired":               {files(good.pair("node", time.Unix(1, 0))), Files{CA: good.file}, "node", nil, "expired"},
		"another_authority":     {files(strange.pair("node", never)), Files{CA: good.file}, "node", nil, "unknown authority"},
		"only_the_systems":      {server, Files{}, "node", nil, "unknown authority"},
		"an_authority_between":  {files(good.below().linked("node")), Files{CA: good.file}, "node", nil, ""},
		"none_between":          {files(good.below().pair("node", never)), Files{CA: good.file}, "node", nil, "unknown authority"},
		"a_client_with_one":     {mutual, with(files(good.below().linked("client")), good.file), "node", nil, ""},
		"besides_the_systems":   {server, Files{CA: good.file, System: true}, "node", nil, ""},
		"mutual":                {mutual, Files{Cert: own, Key: ownKey, CA: good.file}, "node", nil, ""},
		"no_client_certificate": {mutual, Files{CA: good.file}, "node", nil, "certificate required"},
		"a_strange_client": {mutual, with(files(strange.pair("client", never)), good.file), "node", nil,
			"unknown certificate authority"},
		"an_expired_client": {mutual, with(files(good.pair("client", time.Unix(1, 0))), good.file), "node", nil,
			"expired certificate"},
		"tls_1.1_from_the_client": {server, Files{CA: good.file}, "node",
			func(_, c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 },
			"protocol version"},
		"tls_1.1_from_the_server": {server, Files{CA: good.file}, "node", func(s, _ *tls.Config) { *s = old(s) }, "protocol version"},
		"tls_1.2": {mutual, Files{Cert: own, Key: ownKey, CA: good.file}, "node",
			func(_, c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, ""},
		"tls_1.2_without_a_client": {mutual, Files{CA: good.file}, "node",
			func(_, c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
			"certificate required|handshake failure|bad certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := keeper(t, tc.server).Server(), keeper(t, tc.client).Client(tc.as)
			if tc.change != nil {
				tc.change(s, c)
			}
			_, err := shake(t, s, c)
			ok := err == nil && tc.fault == ""
			for _, fault := range strings.Split(tc.fault, "|") {
				ok = ok || err != nil && fault != "" && strings.Contains(err.Error(), fault)
			}
			if !ok {
				t.Errorf("the client got %v; want %q", err, tc.fault)
			}
		})
	}
}

func files(cert, key string) Files { return Files{Cert: cert, Key: key} }

func with(f Files, ca string) Files {
	f.CA = ca
	return f
}

// old is a server that speaks TLS 1.1 at most.
func old(s *tls.Config) tls.Config {
	c, _ := s.GetConfigForClient(nil)
	return tls.Config{Certificates: c.Certificates, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
}

// TestFilesAreReadAgain changes the files of a server and a client. Long: each
// step begins with the files that the one before left.
func TestFilesAreReadAgain(t *testing.T) {
	first, second := newAuthority(t), newAuthority(t)
	cert, key := first.pair("node", never)
	own, ownKey := first.pair("client", never)
	copyFile := func(from, to string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(t, to, text)
	}
	serverCA, clientCA := filepath.Join(t.TempDir(), "ca"), filepath.Join(t.TempDir(), "ca")
	copyFile(first.file, serverCA)
	copyFile(first.file, clientCA)
	server := keeper(t, Files{Cert: cert, Key: key, CA: serverCA})
	client := keeper(t, Files{Cert: own, Key: ownKey, CA: clientCA})
	if at := server.Expires(); !at.Equal(never) {
		t.Errorf("the certificate expires at %v; want %v", at, never)
	}
	if at := keeper(t, Files{CA: serverCA}).Expires(); !at.IsZero() {
		t.Errorf("no certificate expires at %v", at)
	}
	changes := 0
	client.OnChange(func() { changes++ })
	s, c := server.Server(), client.Client("node") // made once
	c.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	look := func() {
		for range 2 {
			server.look()
			client.look()
		}
	}
	works := func(when string, want bool) {
		t.Helper()
		if _, err := shake(t, s, c); (err == nil) != want {
			t.Errorf("%s: %v; want it to work: %v", when, err, want)
		}
	}
	look()
	works("at first", true)
	if good, bad := server.Readings(); good != 0 || bad != 0 {
		t.Errorf("read %d times again, %d failed, though nothing changed", good, bad)
	}

	// The server moves to another authority, which the client does not know yet.
	second.issue(cert, key, "node", never)
	look()
	works("with a server's certificate of an unknown authority", false)
	copyFile(second.file, clientCA)
	look()
	works("after the client was told", true)
	if changes != 1 {
		t.Errorf("%d changes of the client; want 1", changes)
	}
	// The server no longer believes the authority of the client, also when the client
	// would resume.
	copyFile(second.file, serverCA)
	look()
	works("with a client of an authority that is gone", false)
	second.issue(own, ownKey, "client", never)
	look()
	works("with a new client's certificate", true)

	for name, spoil := range map[string]func(){
		"a_key_of_another_certificate": func() { _, other := second.pair("node", never); copyFile(other, key) },
		"no_key":                       func() { _ = os.Remove(key) },
		"nonsense":                     func() { _ = os.WriteFile(cert, []byte("x"), 0o600) },
		"an_authority_of_nothing":      func() { _ = os.WriteFile(serverCA, nil, 0o600) },
		"a_large_file": func() {
			copyFile(second.file, serverCA) // good except for its size
			if err := os.Truncate(serverCA, maxFile+1); err != nil {
				t.Fatal(err)
			}
		},
	} {
		_, before := server.Readings()
		spoil()
		look()
		look() // it is not told twice
		if _, bad := server.Readings(); bad != before+1 {
			t.Errorf("%s: %d readings failed; want %d", name, bad, before+1)
		}
		works(name, true)
		second.issue(cert, key, "node", never)
		copyFile(second.file, serverCA)
		look()
	}
}

// A pair of files is not written in one step.
func TestFilesThatStillChangeAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		cert, key := a.pair("node", never)
		k := keeper(t, Files{Cert: cert, Key: key})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); k.Run(ctx) }()
		next, nextKey := a.pair("node", never)
		time.Sleep(every / 2)
		move := func(from, to string, age time.Duration) {
			t.Helper()
			if err := errors.Join(os.Rename(from, to), os.Chtimes(to, time.Time{}, time.Unix(1, 0).Add(age))); err != nil {
				t.Fatal(err)
			}
		}
		move(next, cert, 0)
		time.Sleep(every) // seen once
		move(nextKey, key, 0)
		time.Sleep(3 * every)
		if good, bad := k.Readings(); good != 1 || bad != 0 {
			t.Errorf("read %d times again, %d failed; want 1, 0", good, bad)
		}
		cancel()
		<-done
	})
}

// Handshakes go on while files change, and none fails.
func TestRotationUnderLoad(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.pair("node", never)
	server, client := keeper(t, Files{Cert: cert, Key: key, CA: a.file}), keeper(t, with(files(a.pair("client", never)), a.file))
	s, c := server.Server(), client.Client("node")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var shakes atomic.Int64
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if serverErr, err := shake(t, s, c); err != nil {
					t.Errorf("a handshake failed: %v, %v", err, serverErr)
					return
				}
				shakes.Add(1)
			}
		})
	}
	for range 10 {
		a.issue(cert, key, "node", never)
		server.look()
		server.look()
		was := shakes.Load()
		await.True(t, "four handshakes more", func() bool { return shakes.Load() >= was+4 || t.Failed() })
	}
	close(stop)
	wg.Wait()
	if good, bad := server.Readings(); good != 10 || bad != 0 {
		t.Errorf("read %d times again, %d failed; want 10, 0", good, bad)
	}
}

func TestValidate(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.pair("node", never)
	_, other := a.pair("node", never)
	for fault, s := range map[string]Server{
		"": {},
		"cert_file and key_file are set together": {CertFile: cert},
		"client_ca_file needs cert_file":          {ClientCAFile: a.file},
		"cert_file: stat /none":                   {CertFile: "/none", KeyFile: key},
		"key_file: stat /none":                    {CertFile: cert, KeyFile: "/none"},
		"private key does not match":              {CertFile: cert, KeyFile: other},
		"holds no PEM certificate":                {CertFile: cert, KeyFile: key, ClientCAFile: key},
	} {
		if err := s.Validate(); (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%+v: %v; want %q", s, err, fault)
		}
	}
	if err := (Server{CertFile: cert, KeyFile: key, ClientCAFile: a.file}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestPinned(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.pair("node", never)
	s := Server{CertFile: cert, KeyFile: key, ClientCAFile: a.file}
	client, err := s.Pinned()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shake(t, keeper(t, s.files()).Server(), client); err != nil {
		t.Errorf("the listener itself: %v", err)
	}
	if _, err := shake(t, keeper(t, files(a.pair("node", never))).Server(), client); err == nil {
		t.Error("another certificate of the same authority and name was believed")
	}
	if c, err := (Server{}).Pinned(); c != nil || err != nil {
		t.Errorf("plaintext: %v, %v", c, err)
	}
}

// A client may believe the authorities of the system besides its own.
func TestAuthoritiesOfTheSystem(t *testing.T) {
	a := newAuthority(t)
	own, err := os.ReadFile(a.file)
	if err != nil {
		t.Fatal(err)
	}
	both, err := x509.SystemCertPool()
	if err != nil {
		t.Fatal(err)
	}
	alone := x509.NewCertPool()
	alone.AppendCertsFromPEM(own)
	both.AppendCertsFromPEM(own)
	if both.Equal(alone) {
		t.Fatal("the system has no authority")
	}
	if !keeper(t, Files{CA: a.file, System: true}).Roots().Equal(both) {
		t.Error("with System: other authorities than the system's and its own")
	}
	if !keeper(t, Files{CA: a.file}).Roots().Equal(alone) {
		t.Error("without: not its own alone")
	}
}

func TestNilIsPlaintext(t *testing.T) {
	k, err := ForListener("x", Server{}, nil, nil)
	if k != nil || err != nil || k.Server() != nil {
		t.Errorf("%v, %v", k, err)
	}
	k.Run(t.Context())
	if _, err := ForListener("grpc", Server{CertFile: "/none", KeyFile: "/none"}, nil, nil); err == nil ||
		!strings.HasPrefix(err.Error(), "grpc.cert_file") {
		t.Errorf("error %v; want it to name the setting", err)
	}
}
