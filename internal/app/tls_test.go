package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/proof/certtest"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// selfSigned writes a certificate that is its own authority, and its key, and
// returns its serial number.
func selfSigned(t *testing.T, cert, key string) (serial int64) {
	t.Helper()
	c := certtest.Of(t)
	if err := c.Write(cert, key); err != nil {
		t.Fatal(err)
	}
	return c.Leaf.SerialNumber.Int64()
}

// overGRPC asks the gRPC API once, over a connection of its own.
func (s *sidecar) overGRPC(config *tls.Config) error {
	conn, err := grpc.NewClient("passthrough:///"+s.at.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}

// overXDS asks for one resource of xDS, over a connection of its own.
func (s *sidecar) overXDS(config *tls.Config) error {
	conn, err := grpc.NewClient("passthrough:///"+s.at.XDS, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(
		&discoveryv3.DiscoveryRequest{Node: &corev3.Node{UserAgentName: "envoy"}, TypeUrl: resourcev3.ClusterType},
	); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// overHTTP asks for a document once, over HTTP/2 or HTTP/1.1.
func overHTTP(t *testing.T, address, path string, config *tls.Config, h2 bool) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: h2, DisableKeepAlives: true}}
	response, err := client.Get("https://" + address + path)
	if err == nil {
		response.Body.Close()
		if want := map[bool]int{true: 2, false: 1}[h2]; response.ProtoMajor != want {
			t.Errorf("HTTP/%d over TLS; want %d", response.ProtoMajor, want)
		}
	}
	return err
}

// underLoad asks in each way again and again until stop is called.
func underLoad(t *testing.T, ways map[string]func(*tls.Config) error, config func(way string) *tls.Config) (stop func()) {
	over := make(chan struct{})
	var asking sync.WaitGroup
	for way, ask := range ways {
		asking.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if err := ask(config(way)); err != nil {
					t.Errorf("%s while files change: %v", way, err)
					return
				}
			}
		})
	}
	return func() {
		close(over)
		asking.Wait()
	}
}

// Every listener speaks TLS and wants a client's certificate, with the SDK proxy
// and without it; files change under load and no call fails.
func TestEveryListenerSpeaksMutualTLS(t *testing.T) {
	short.Skip(t, "it holds listeners under load")
	for name, settings := range map[string][]string{
		"frames": nil, "off": {"wire.mode=off"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cert, key, ca := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
			clientCert, clientKey := filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
			selfSigned(t, cert, key)
			selfSigned(t, clientCert, clientKey)
			text, err := os.ReadFile(clientCert)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(ca, text, 0o600); err != nil {
				t.Fatal(err)
			}
			settings = append(settings, "xds.enabled=on", "xds.address=127.0.0.1:0")
			for _, name := range []string{"grpc", "http", "admin", "xds"} {
				settings = append(settings, name+".cert_file="+cert, name+".key_file="+key, name+".client_ca_file="+ca)
			}
			s := start(t, nowhere, settings...)
			own, err := tls.LoadX509KeyPair(clientCert, clientKey)
			if err != nil {
				t.Fatal(err)
			}
			// The number of the certificate that a listener showed last; what it is worth is a test of certs.
			shown := map[string]*atomic.Int64{}
			secure := func(way string, certs ...tls.Certificate) *tls.Config {
				last := shown[way]
				return &tls.Config{InsecureSkipVerify: true, Certificates: certs, VerifyConnection: func(c tls.ConnectionState) error {
					last.Store(c.PeerCertificates[0].SerialNumber.Int64())
					return nil
				}}
			}
			ways := map[string]func(*tls.Config) error{
				"grpc":    s.overGRPC,
				"xds":     s.overXDS,
				"http/1":  func(c *tls.Config) error { return overHTTP(t, s.at.HTTP, "/v1/openapi.yaml", c, false) },
				"http/2":  func(c *tls.Config) error { return overHTTP(t, s.at.HTTP, "/v1/openapi.yaml", c, true) },
				"admin":   func(c *tls.Config) error { return overHTTP(t, s.at.Admin, "/livez", c, false) },
				"admin/2": func(c *tls.Config) error { return overHTTP(t, s.at.Admin, "/livez", c, true) },
			}
			for way, ask := range ways {
				shown[way] = new(atomic.Int64)
				if err := ask(secure(way, own)); err != nil {
					t.Errorf("%s: %v", way, err)
				}
				if (way == "grpc" || way == "xds") && name != "frames" {
					continue // a client of gRPC tries again until its time is up: once is enough
				}
				if err := ask(secure(way)); err == nil {
					t.Errorf("%s: served without a client's certificate", way)
				}
			}
			stop := underLoad(t, ways, func(way string) *tls.Config { return secure(way, own) })
			serial := selfSigned(t, cert, key)
			for way, last := range shown {
				s.eventually("the new certificate, "+way, func() bool { return t.Failed() || last.Load() == serial })
			}
			stop()
		})
	}
}

// longHandshakes makes two long handshakes that end, one well; they count no more.
func (s *sidecar) longHandshakes(address string, conns *listen.Conns) (hangUp func()) {
	s.Helper()
	long := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	for i := range 60 {
		long.NextProtos = append(long.NextProtos, strings.Repeat(string(rune('A'+i)), 200))
	}
	good, err := tls.Dial("tcp", address, long)
	if err != nil {
		s.Fatal(err)
	}
	s.eventually("a handshake that is over does not count", func() bool { return conns.Headers.State().Held == 0 })
	odd := long.Clone()
	odd.NextProtos = append(odd.NextProtos[1:], "odd")
	bad, err := tls.Dial("tcp", address, odd)
	return func() {
		_ = good.Close()
		if err == nil {
			_ = bad.Close() // it was refused afterwards
		}
	}
}

// Handshakes of TLS that are not whole count on all connections of a listener together, where HTTP/2
// is all that is spoken over it, and those that are over do not.
func TestHandshakesAreBounded(t *testing.T) {
	const most, clients = 256 << 10, 30
	record := append([]byte{22, 3, 1, 0x40, 0}, make([]byte, 1<<14)...) // of a handshake
	first := bytes.Clone(record)
	copy(first[5:], []byte{1, 0, 0xff, 0}) // ClientHello, of 65,280 bytes
	for name, tc := range map[string]struct {
		settings []string
		at       func(*sidecar) (address string, conns *listen.Conns)
	}{
		"grpc": {nil, func(s *sidecar) (string, *listen.Conns) { return s.at.GRPC, s.listeners.GRPC.Conns }},
		"grpc without wire.": {[]string{"wire.mode=off"}, func(s *sidecar) (string, *listen.Conns) {
			return s.at.GRPC, s.listeners.GRPC.Conns
		}},
		"xds": {[]string{"xds.enabled=on", "xds.address=127.0.0.1:0"}, func(s *sidecar) (string, *listen.Conns) {
			return s.at.XDS, s.listeners.XDS.Conns
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
			selfSigned(t, cert, key)
			settings := tc.settings
			for _, name := range []string{"grpc", "xds"} {
				settings = append(settings, name+".cert_file="+cert, name+".key_file="+key)
			}
			s := start(t, nowhere, settings...)
			address, conns := tc.at(s)
			if conns.Headers == nil {
				t.Fatal("they do not count")
			}
			conns.Headers = memguard.OfBytes(most) // no client has come yet
			defer s.longHandshakes(address, conns)()
			var all []net.Conn
			ended := make(chan error, clients)
			for range clients {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				all = append(all, conn)
				for _, b := range [][]byte{first, record, record} {
					_, _ = conn.Write(b) // fails when it has ended
				}
				go func() { // until conn is closed
					_, err := conn.Read(make([]byte, 1))
					ended <- err
				}()
			}
			for range clients - most/(listen.HeadTwice*3<<14) - 1 {
				if err := <-ended; err == nil {
					t.Error("a byte came")
				}
			}
			if held := conns.Headers.State().Held; held > most {
				t.Errorf("%d bytes are held; want at most %d", held, most)
			}
			for _, conn := range all {
				_ = conn.Close()
			}
			s.eventually("handshakes that failed do not count", func() bool { return conns.Headers.State().Held == 0 })
			short, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			if err != nil {
				t.Fatalf("a short handshake: %v", err)
			}
			_ = short.Close()
		})
	}
}
