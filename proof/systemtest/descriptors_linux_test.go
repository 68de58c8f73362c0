package systemtest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// startWithFiles runs a sidecar that may have that number of files open, of a cluster that is away.
func startWithFiles(t *testing.T, files int, settings ...string) *sidecar {
	t.Helper()
	args := []string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files), filepath.Join(bin, "sidecar"), "serve",
		"-ydb", "grpc://127.0.0.1:1/local", "-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0", "-admin", "127.0.0.1:0"}
	for _, s := range settings {
		args = append(args, "-set", s)
	}
	return reach(t, standtest.Start(t, stand.Spec{Path: "/bin/sh", Args: args}))
}

// crowd opens connections that say nothing.
func crowd(t *testing.T, n int, addresses ...string) (leave func()) {
	t.Helper()
	var all []net.Conn
	leave = func() {
		for _, conn := range all {
			_ = conn.Close()
		}
	}
	t.Cleanup(leave)
	for i := range n {
		conn, err := net.DialTimeout("tcp", addresses[i%len(addresses)], 10*time.Second)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		all = append(all, conn)
	}
	return leave
}

// answers asks over a connection of its own.
func answers(url string) error {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s %v", response.Status, text, err)
	}
	return nil
}

func (s *sidecar) files(t *testing.T) int {
	t.Helper()
	n, err := stand.Descriptors(s.Process.Pid())
	if err != nil {
		t.Fatalf("the process is gone: %v\n%s", err, s.Process.Log())
	}
	return n
}

// With few descriptors a crowd of idle connections gets only those that nothing else needs.
func TestFewDescriptors(t *testing.T) {
	s := startWithFiles(t, 256)
	eventually(t, patience, "it warns", func() string {
		if log := s.Process.Log(); !strings.Contains(log,
			`"setting":"connections.each, all listeners together","configured":20000,"in_force":144,"open_files":256`) {
			return log
		}
		return ""
	})
	leave := crowd(t, 300, s.GRPC, s.HTTP)
	for range 20 {
		for _, probe := range []string{"/livez", "/readyz"} {
			if err := answers("http://" + s.Admin + probe); err != nil {
				t.Errorf("during the flood: %v", err)
			}
		}
	}
	if n := s.files(t); n > 256*3/4 {
		t.Errorf("%d descriptors in use", n)
	}
	if log := s.Process.Log(); strings.Contains(log, "connections cannot be accepted") {
		t.Errorf("it ran out of descriptors:\n%s", stand.LastLines(log, 5))
	}
	leave()
	eventually(t, patience, "it serves again", func() string {
		if err := answers("http://" + s.HTTP + "/openapi.yaml"); err != nil {
			return err.Error()
		}
		return ""
	})
}

// A process without a descriptor left lives, says so once, and serves again when there
// is one.
func TestOutOfDescriptors(t *testing.T) {
	s := startWithFiles(t, 256)
	// As another process may use up the system's: there is room for four connections.
	limit := fmt.Sprintf("--nofile=%d:256", s.files(t)+4)
	if out, err := exec.Command("prlimit", "--pid", fmt.Sprint(s.Process.Pid()), limit).CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no prlimit")
	} else if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	leave := crowd(t, 300, s.GRPC, s.HTTP)
	const says = "connections cannot be accepted"
	for _, setting := range []string{"grpc.listen", "http.listen"} {
		eventually(t, patience, setting+" runs out of descriptors", func() string {
			if log := s.Process.Log(); !strings.Contains(log, says) || !strings.Contains(log, setting) {
				return stand.LastLines(log, 5)
			}
			return ""
		})
	}
	time.Sleep(2 * time.Second) // a few attempts more
	s.files(t)
	if n := strings.Count(s.Process.Log(), says); n > 3 {
		t.Errorf("logged %d times; want once for each listener:\n%s", n, stand.LastLines(s.Process.Log(), 10))
	}
	leave()
	for _, url := range []string{"http://" + s.Admin + "/livez", "http://" + s.Admin + "/metrics", "http://" + s.HTTP + "/openapi.yaml"} {
		eventually(t, patience, "it serves again", func() string {
			if err := answers(url); err != nil {
				return err.Error()
			}
			return ""
		})
	}
}
