package driver

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/certtest"
)

// selfSigned makes a certificate for localhost.
func selfSigned(t testing.TB) (tls.Certificate, *x509.CertPool) {
	c := certtest.Of(t)
	return c.Pair(), c.Pool()
}

// tapped is a connection whose bytes are kept as they come.
type tapped struct {
	net.Conn
	came []byte
}

func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.came = append(c.came, p[:n]...)
	return n, err
}

// The last that comes over TLS is the alert that nothing more does: else the end may be an attacker's, and
// some clients take it for a fault.
func TestTLSEndsWithItsAlert(t *testing.T) {
	certificate, roots := selfSigned(t)
	s := runShard(t, nil)
	raw, server := socketPair(t)
	s.Accept(server, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}})
	tap := &tapped{Conn: raw}
	// its records say what they are
	client := tls.Client(tap,
		&tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS12})
	c := newCaller(client)
	c.WritePing(false, [8]byte{})
	for {
		fr, err := c.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if fr.Header().Type == http2.FramePing {
			break
		}
	}
	c.WriteRawFrame(http2.FramePing, 0, 1, nil) // ends the connection
	if _, err := io.Copy(io.Discard, client); err != nil {
		t.Error(err)
	}
	last := byte(0)
	for rest := tap.came; len(rest) >= 5; rest = rest[min(len(rest), 5+int(binary.BigEndian.Uint16(rest[3:]))):] {
		last = rest[0]
	}
	const alert = 21
	if last != alert {
		t.Errorf("the last record is of type %d; want %d, an alert", last, alert)
	}
}

// A connection to a node that is cut during its handshake ends. Without the shard's lock around what hangUp looks at, -race says so.
func TestCutDuringTheHandshake(t *testing.T) {
	_, roots := selfSigned(t)
	s := runShard(t, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() // accepts nothing: the kernel does, and no answer comes
	up := s.Upstream(dialTCP(listener.Addr().String()), &tls.Config{RootCAs: roots, ServerName: "localhost"})
	s.Do(func(*h2.Forwarder) { up.Conn() })
	shaking := func() (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for l := range s.links {
			if l.tls != nil {
				n++
			}
		}
		return n
	}
	await.True(t, "the handshake begins", func() bool { return shaking() == 1 })
	s.Do(func(*h2.Forwarder) { up.Cut() })
	await.True(t, "the connection ends", func() bool { return shaking() == 0 })
}
