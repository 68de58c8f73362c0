package app

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/devcluster"
)

// Somebody who connects and says nothing, as a pool of connections does ahead of
// need, is owed nothing: the stop neither waits for him nor calls it a fault.
func TestSilentClientsDoNotHoldUpTheStop(t *testing.T) {
	c, err := devcluster.Start(devcluster.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	s := start(t, c.Endpoint())
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	var silent []net.Conn
	for _, address := range []string{s.at.GRPC, s.at.HTTP} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		silent = append(silent, conn)
	}
	begun := time.Now()
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if took := time.Since(begun); took > closeServers-time.Second {
		t.Errorf("the stop took %v; want less than its limit of %v", took, closeServers)
	}
	for _, conn := range silent {
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("the connection to %v ended with %v; want a close", conn.RemoteAddr(), err)
		}
	}
}
