package systemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// operate runs a command of the sidecar's program against the running one.
func operate(t *testing.T, socket string, args ...string) string {
	t.Helper()
	args = append(args, "-socket", socket)
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "sidecar"), args...).Output()
	if err != nil {
		var said []byte
		if e, ok := err.(*exec.ExitError); ok {
			said = e.Stderr
		}
		t.Fatalf("sidecar %s: %v\n%s%s", strings.Join(args, " "), err, out, said)
	}
	return string(out)
}

// get asks the admin port for a document.
func (s *sidecar) get(t *testing.T, path string) (int, string) {
	t.Helper()
	return askHTTP(t, http.MethodGet, "http://"+s.Admin+path, "")
}

// traffic is calls of both APIs that go on until stop, each to succeed.
type traffic struct {
	tallies [2]*tally
	cancel  context.CancelFunc
	work    sync.WaitGroup
}

func startTraffic(t *testing.T, s *sidecar, each int) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &traffic{cancel: cancel}
	for i, call := range []func() error{
		func() error {
			_, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			return err
		},
		func() error { return post(ctx, s, "application/json", wholeReply) },
	} {
		l.tallies[i] = &tally{kind: []string{"gRPC", "HTTP"}[i]}
		for range each {
			l.work.Go(func() {
				for ctx.Err() == nil && l.tallies[i].count[absent].Load() == 0 {
					if err := call(); ctx.Err() == nil {
						l.tallies[i].add(err, draining)
					}
				}
			})
		}
	}
	t.Cleanup(func() { l.cancel(); l.work.Wait() })
	return l
}

// more waits for n further answers of each kind.
func (l *traffic) more(t *testing.T, n int64) {
	t.Helper()
	var before [2]int64
	for i, tally := range l.tallies {
		before[i] = tally.count[answered].Load()
	}
	eventually(t, patience, "calls are answered", func() string {
		for i, tally := range l.tallies {
			if now := tally.count[answered].Load(); now < before[i]+n {
				return fmt.Sprintf("%s: %d answers", tally.kind, now-before[i])
			}
		}
		return ""
	})
}

// check fails the test if any call was not answered.
func (l *traffic) check(t *testing.T, when string, bad ...outcome) {
	t.Helper()
	for _, tally := range l.tallies {
		for _, o := range bad {
			if n := tally.count[o].Load(); n > 0 {
				err, _ := tally.first.Load("cut")
				t.Errorf("%s: %s: %d calls were %s, the first cut one with %v", when, tally.kind, n,
					[...]string{"answered", "refused", "absent", "cut"}[o], err)
			}
		}
	}
}

func TestLameDuckUnderLoadThenStop(t *testing.T) {
	c := startCluster(t, nil)
	socket := filepath.Join(t.TempDir(), "own", "admin")
	s := startSidecar(t, c, nil, "pool.max=20", "admin.socket="+socket)
	fillBig(t, s)
	l := startTraffic(t, s, 4)
	l.more(t, 20)

	if said := operate(t, socket, "drain", "-lameduck"); !strings.HasPrefix(said, "lame duck") {
		t.Errorf("drain -lameduck says %q", said)
	}
	if code, text := s.get(t, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz = %d %s; want 503", code, text)
	}
	l.more(t, 20)
	// A caller that comes only now is served as well.
	_, late := dial(t, s.GRPC)
	if _, err := late.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}); err != nil {
		t.Errorf("a new connection: %v", err)
	}
	l.check(t, "lame duck", refused, absent, cut)

	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wait, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if exit, err := s.Process.Wait(wait); err != nil || exit != 0 {
		t.Errorf("exit code %d, %v; want 0\n%s", exit, err, stand.LastLines(s.Process.Log(), 10))
	}
	l.work.Wait() // every caller ends when no process listens
	l.check(t, "SIGTERM", cut)
	if count := c.perNode(t); sum(count) != 0 {
		t.Errorf("after the end the nodes hold sessions: %v", count)
	}
}

func TestOperatorBansAndDrainsNodes(t *testing.T) {
	c := startCluster(t, nil)
	socket := filepath.Join(t.TempDir(), "own", "admin")
	s := startSidecar(t, c, nil, "pool.max=30", "pool.min=15", "admin.socket="+socket)
	fillBig(t, s)
	l := startTraffic(t, s, 4)
	// has waits until node 2 has sessions, or has none.
	has := func(some bool, what string) {
		t.Helper()
		eventually(t, patience, what, func() string {
			if n := c.perNode(t)[2]; (n > 0) != some {
				return fmt.Sprintf("node 2 has %d sessions, all have %v", n, c.perNode(t))
			}
			return ""
		})
	}
	has(true, "every node has sessions")
	l.more(t, 20)

	const reason = "a disk fails; see #12"
	if said := operate(t, socket, "ban", "2", "-for", "10m", "-reason", reason); !strings.Contains(said, reason) {
		t.Errorf("ban says %q", said)
	}
	has(false, "the sessions move away from the banned node")
	l.more(t, 20)
	for _, ask := range [][]string{{"why", "2"}, {"nodes"}, {"events"}} {
		said := operate(t, socket, ask...)
		if !strings.Contains(said, reason) {
			t.Errorf("sidecar %s does not give the reason:\n%s", ask[0], said)
		}
	}
	await.True(t, "sidecar findings gives the reason", func() bool { // looked for once a second
		return strings.Contains(operate(t, socket, "findings"), reason)
	})
	var why struct {
		Banned   bool      `json:"banned"`
		BanUntil time.Time `json:"ban_until"`
		Next     string    `json:"next"`
	}
	if _, text := s.get(
		t, "/nodes/2/why",
	); json.Unmarshal([]byte(text), &why) != nil || !why.Banned || time.Until(why.BanUntil) < 9*time.Minute || why.Next == "" {
		t.Errorf("/nodes/2/why: %s", text)
	}
	operate(t, socket, "unban", "2")
	has(true, "the node that is no longer banned gets sessions again")

	operate(t, socket, "drain-node", "2")
	has(false, "the sessions move away from the drained node")
	if said := operate(t, socket, "why", "2"); !strings.Contains(said, "drain") {
		t.Errorf("why does not say that it is drained: %s", said)
	}
	operate(t, socket, "undrain-node", "2")
	has(true, "the node that is no longer drained gets sessions again")
	l.more(t, 20)
	l.cancel()
	l.work.Wait()
	l.check(t, "ban and drain", refused, absent, cut)
}
