package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/proof/certtest"
)

// served accepts connections and gives them to f until the test ends.
func served(t *testing.T, f func(*net.TCPConn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c.(*net.TCPConn))
			}()
		}
	}()
	return l.Addr().String()
}

// greeted takes what the client says first, and the call that comes behind the settings.
func greeted(c *net.TCPConn) {
	b := make([]byte, 4096)
	_, _ = c.Read(b)
	_, _ = c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // SETTINGS, empty
	_, _ = c.Read(b)
}

// Why a call got no answer is said in a few words, whichever client asked and whether or not it waits for a
// connection: "rpc error: code = Unavailable desc = connection error: desc = ..." is for programs.
func TestWhyThereIsNoAnswer(t *testing.T) {
	closed := served(t, func(*net.TCPConn) {})
	shut, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shut.Close()
	full := blackHole(t)
	plainHTTP := served(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		_, _ = io.Copy(io.Discard, c)
	})
	late := regexp.MustCompile("^Op on node 7: (no answer in time|the node, or the connection to it, did not take the call)$")
	cert := certtest.Of(t)
	secured := served(t, func(c *net.TCPConn) {
		_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert.Pair()}, NextProtos: []string{"h2"}}).Handshake()
	})
	for _, tc := range []struct {
		name, address string
		tls           bool
		want          string // a regular expression; ADDRESS is the address
	}{
		{"refused", shut.Addr().String(), false, "connection refused by ADDRESS"},
		{"accepted and silent", served(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }), false,
			"no answer in time( from ADDRESS)?"},
		{"no answer to SYN", full, false, "no answer (from ADDRESS to the attempt to connect|in time)"},
		{"closed at once", closed, false,
			"(the node closed the connection, or the network did|the node reset the connection|connection reset by ADDRESS|" +
				"the node, or the connection to it, did not take the call)"},
		{"closed under the call", served(t, func(c *net.TCPConn) { greeted(c) }), false,
			"(the connection to the node was lost.*|the node closed the connection, or the network did)"},
		{"reset under the call", served(t, func(c *net.TCPConn) { greeted(c); _ = c.SetLinger(0) }), false,
			"(the connection to the node was lost.*|the node reset the connection|connection reset by ADDRESS|" +
				"the node closed the connection, or the network did)"},
		{"no such name", "no-such-host.invalid:2136", false, "host name no-such-host.invalid not found"},
		{"no TLS there", plainHTTP, true, "TLS handshake failed: first record does not look like a TLS handshake"},
		{"another authority", secured, true, "TLS handshake failed: .*certificate signed by unknown authority"},
		{"TLS closed", closed, true,
			"(TLS handshake failed: )?(connection reset by ADDRESS|the node closed the connection, or the network did|EOF)"},
		{"no HTTP/2 there", plainHTTP, false,
			"(the node does not speak HTTP/2|cannot connect to the node: a frame is longer .*|the node, .* did not take the call)"},
	} {
		want := regexp.MustCompile("^Op on node 7: " + strings.ReplaceAll(tc.want, "ADDRESS", regexp.QuoteMeta(tc.address)) + "$")
		for name, conn := range bothClients(t, tc.address, tc.tls) {
			for _, waits := range []bool{false, true} {
				t.Run(tc.name+"/"+name, func(t *testing.T) {
					t.Parallel()
					ctx, cancel := context.WithTimeout(t.Context(), connectIn(tc.tls)+600*time.Millisecond)
					defer cancel()
					err := conn.Invoke(ctx, "/a.B/C", new(emptypb.Empty), new(emptypb.Empty), grpc.WaitForReady(waits))
					_, e := failure(ctx, err, true)
					e.Op, e.Node = "Op", 7
					text := e.Error()
					if waits && late.MatchString(text) {
						return // its time ended during an attempt to connect
					}
					if !want.MatchString(text) {
						t.Errorf("%q; want %s\nof %v", text, want, err)
					}
				})
			}
		}
	}
}

// connectIn is what the clients have for a connection. A handshake of TLS takes over a second on a busy machine.
func connectIn(secure bool) time.Duration {
	if secure {
		return 4 * time.Second
	}
	return 400 * time.Millisecond
}

// bothClients are the two clients of an address, each with connectIn to connect.
func bothClients(t *testing.T, address string, secure bool) map[string]grpc.ClientConnInterface {
	t.Helper()
	var conf *tls.Config
	creds := insecure.NewCredentials()
	if secure {
		conf = &tls.Config{ServerName: "localhost", NextProtos: []string{"h2"}}
		creds = credentials.NewTLS(conf)
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return dialAny(ctx, address, func(_ context.Context, host string) ([]string, error) {
			if net.ParseIP(host) == nil {
				return nil, &net.DNSError{Err: "no such host", Name: host, Server: "192.0.2.53:53", IsNotFound: true}
			}
			return []string{host}, nil
		}, func(ctx context.Context, address string) (net.Conn, error) {
			return network.DialContext(ctx, "tcp", address)
		})
	}
	over := client.New(h2.Default())
	t.Cleanup(func() { over.Close() })
	own := over.Connect(client.Target{Dial: func(ctx context.Context) (net.Conn, error) { return dial(ctx, address) },
		TLS: conf, Message: 1 << 20, Timeout: connectIn(secure)})
	t.Cleanup(own.Close)
	other, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds), grpc.WithContextDialer(dial),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectIn(secure)}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	return map[string]grpc.ClientConnInterface{"h2": own, "grpc": other}
}

func TestUnanswered(t *testing.T) {
	const cannot = "the sidecar cannot connect to the node: "
	for _, tc := range []struct{ text, want string }{
		{`connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.1:2136: connect: no route to host"`,
			"no route to 10.0.0.1:2136"},
		{cannot + "dial tcp 10.0.0.1:2136: i/o timeout", "no answer from 10.0.0.1:2136 to the attempt to connect"},
		{cannot + "lookup ydb on 10.0.0.53:53: server misbehaving", "host name ydb cannot be looked up: server misbehaving"},
		{cannot + "h2: the peer did not answer a ping", "no answer in time"},
		{cannot + "remote error: tls: bad certificate", "the node rejected the TLS handshake: bad certificate"},
		{cannot + "dial tcp [::1]:2136: connect: connection refused\nand another one", "connection refused by [::1]:2136"},
		{"error reading from server: read tcp 10.0.0.9:5000->10.0.0.1:2136: read: connection timed out",
			"no answer in time from 10.0.0.1:2136"},
		{"server is shutting down", "UNAVAILABLE: server is shutting down"},
		{"", "UNAVAILABLE"},
	} {
		if got := unanswered(codes.Unavailable, status.Error(codes.Unavailable, tc.text)); got != tc.want {
			t.Errorf("%q is %q; want %q", tc.text, got, tc.want)
		}
	}
	if got := unanswered(codes.Unavailable, status.Error(codes.Unavailable, strings.Repeat("ü", 1000))); len(got) > maxReason {
		t.Errorf("%d bytes", len(got))
	}
	if got := unanswered(codes.Unavailable, errors.New("all nodes are ejected")); got != "all nodes are ejected" {
		t.Errorf("a reason of this process is %q", got)
	}
}
