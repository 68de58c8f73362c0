package listen

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/audit"
)

// TestFaultsOfPeersDoNotFloodTheLog: net/http writes a line for each connection whose peer breaks the rules.
func TestFaultsOfPeersDoNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		faults := FaultLog(slog.New(slog.NewTextHandler(&out, nil)))
		for range 1000 {
			faults.Print("http2: server connection error from 127.0.0.1:1")
			time.Sleep(10 * time.Microsecond)
		}
		if n := strings.Count(out.String(), "\n"); n != audit.Rate || strings.Contains(out.String(), "errors_without_a_line") {
			t.Errorf("%d lines; want %d: %s", n, audit.Rate, out.String())
		}
		out.Reset()
		time.Sleep(time.Second)
		faults.Print("http: TLS handshake error from 127.0.0.1:2")
		faults.Print("http: TLS handshake error from 127.0.0.1:3")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		const first = `level=WARN msg="http: TLS handshake error from 127.0.0.1:2" errors_without_a_line=990`
		if len(lines) != 2 || !strings.Contains(lines[0], first) || strings.Contains(lines[1], "errors_without_a_line") {
			t.Errorf("got %q", lines)
		}
	})
}
