package systemtest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// A process that did not run for a while, because it was stopped or its machine suspended,
// does not take itself for one that hangs.
func TestStoppedTimeIsNoHang(t *testing.T) {
	t.Parallel()
	s := startSidecarAt(t, "grpc://127.0.0.1:1/local", nil)
	for _, stopped := range []time.Duration{1500 * time.Millisecond, 1500 * time.Millisecond, 1500 * time.Millisecond, 12 * time.Second} {
		var asking []net.Conn
		for range 8 {
			asking = append(asking, knock(t, s.Admin, "GET /buildinfo HTTP/1.1\r\nHost: localhost\r\n\r\n"))
		}
		var answers []*bufio.Reader
		answer := func(i int) (int, string) {
			response, err := http.ReadResponse(answers[i], nil)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			return response.StatusCode, string(text)
		}
		for i, conn := range asking { // all are accepted
			answers = append(answers, bufio.NewReader(conn))
			answer(i)
		}
		if err := s.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for _, conn := range asking { // the first work of the process when it goes on
			if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(stopped) // this is the fault, no wait for one
		if err := s.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		for i, conn := range asking {
			if status, text := answer(i); status != http.StatusOK {
				t.Errorf("/livez after %v: %d %s", stopped, status, text)
			}
			conn.Close()
		}
	}
	s.endsWell(t)
	if log := s.Process.Log(); strings.Contains(log, "SHARD_STALLED") {
		t.Errorf("a finding although no shard stalled:\n%s", stand.LastLines(log, 5))
	}
}
