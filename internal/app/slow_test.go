package app

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

// A client that sends a part of the headers and then nothing holds its connection for
// no longer than the setting says. (Bodies have a minute: internal/facade.)
func TestSlowRequestsAreEnded(t *testing.T) {
	short.Skip(t, "its peers take seconds each")
	s := start(t, newCluster(t).Endpoint(), "http.header_timeout=200ms")
	for name, sent := range map[string]string{
		"a line":  "POST /v1/que",
		"headers": "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Ty",
		"HTTP/2":  "PRI * HTTP/2.0\r\n\r\nS",
	} {
		conn, err := net.Dial("tcp", s.at.HTTP)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, sent); err != nil {
			t.Fatal(err)
		}
		// A limit for the test alone: without one of the server's it would wait for ever.
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(conn); err != nil {
			t.Errorf("%s: %v after %q; want the server to end it", name, err, answer)
		}
		_ = conn.Close()
	}
}
