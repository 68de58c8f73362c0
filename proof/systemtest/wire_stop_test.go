package systemtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// Answers that are due when SIGTERM comes are given; sessions of clients, each of
// which is a call that never ends, do not hold up the end, and are over after it.
func TestStopUnderSDKLoadCutsNoAnswer(t *testing.T) {
	everyMode(t, func(t *testing.T, through []string) {
		c := startCluster(t, nil)
		s := startSidecar(t, c, nil, through...)
		var clients []*ydbsdk.Driver
		for range 3 {
			db, err := ydbsdk.Open(t.Context(), s.sdk(), slowCreates, slowDeletes)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close(context.Background()) }() // it may say that its sessions are gone
			clients = append(clients, db)
		}
		c.everywhere(t, "delay", map[string]any{"delay": "100ms", "methods": []string{"ExecuteQuery"}})
		before := c.sum(t, "statements")
		var told atomic.Int64
		load := call(t, 24, func(ctx context.Context, caller int) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // the client does not take it for an answer that no process listens
			defer cancel()
			return clients[caller%3].Query().Do(ctx, func(ctx context.Context, s query.Session) error {
				err := s.Exec(ctx, "SELECT 1")
				if err == nil {
					told.Add(1)
				}
				return err
			})
		})
		eventually(t, patience, "calls are answered", func() string {
			if n := load.total(); n < 100 {
				return fmt.Sprint(n)
			}
			return ""
		})
		early := told.Load()
		s.endsWell(t)
		load.finish()
		if told.Load() == early {
			t.Error("no call was under way: this proves nothing")
		}
		if ran := c.sum(t, "statements") - before; ran != told.Load() {
			t.Errorf("the nodes ran %d statements and the callers had the answers to %d", ran, told.Load())
		}
		c.noSessions(t)
		t.Logf("%d answers", told.Load())
	})
}

// endsWell sends SIGTERM and waits for exit code 0.
func (s *sidecar) endsWell(t *testing.T) {
	t.Helper()
	start := time.Now()
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	if code, err := s.Process.Wait(ctx); err != nil || code != 0 {
		t.Errorf("exit code %d, %v; want 0\n%s", code, err, stand.LastLines(s.Process.Log(), 10))
	}
	t.Logf("it took %v to end", time.Since(start).Round(time.Millisecond))
}

// A long call is waited for as long as drain.grace says, and cut after that.
func TestStopWaitsForALongSDKCall(t *testing.T) {
	everyMode(t, func(t *testing.T, through []string) {
		c := startCluster(t, nil)
		s := startSidecar(t, c, nil, append(through, "drain.grace=20s")...)
		db, err := ydbsdk.Open(t.Context(), s.sdk())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close(context.Background()) }()
		do := func() error {
			return db.Query().Do(t.Context(), func(ctx context.Context, s query.Session) error { return s.Exec(ctx, "SELECT 1") })
		}
		if err := do(); err != nil { // from now on it has a session
			t.Fatal(err)
		}
		resting := s.openCalls(t, 0)
		c.everywhere(t, "delay", map[string]any{"delay": "9s", "methods": []string{"ExecuteQuery"}})
		answered := make(chan error, 1)
		go func() { answered <- do() }()
		s.openCalls(t, resting+1)
		s.endsWell(t)
		if err := <-answered; err != nil {
			t.Errorf("the call under way: %v", err)
		}
	})
}

// openCalls waits until for a moment the same number of calls to nodes are open, at least that
// many, and returns how many. Attach streams are calls as well.
func (s *sidecar) openCalls(t *testing.T, least int) (open int) {
	t.Helper()
	same := 0
	eventually(t, patience, fmt.Sprintf("at least %d calls are under way", least), func() string {
		var state struct{ Nodes []struct{ Calls int } }
		if code := callJSON(t, "GET", "http://"+s.Admin+"/state/nodes", "", &state); code != 200 {
			t.Fatalf("/state/nodes: %d", code)
		}
		n := 0
		for _, node := range state.Nodes {
			n += node.Calls
		}
		if same++; n != open || n < least {
			open, same = n, 0
		}
		if same < 5 {
			return fmt.Sprint(n)
		}
		return ""
	})
	return open
}

// While the sidecar is replaced, calls go on over connections to the new process, on
// the sessions that clients have. Those are attached over connections to the old one,
// which lets them go after drain.grace; the clients make new ones. The node hears of it
// last, so it cancels nothing that runs in them.
func TestReplacedUnderSDKLoad(t *testing.T) {
	everyMode(t, func(t *testing.T, through []string) {
		c := startCluster(t, nil)
		settings := append(through, "takeover.socket="+filepath.Join(t.TempDir(), "takeover.sock"), "drain.grace=4s")
		s := startSidecar(t, c, nil, settings...)
		db := openSDK(t, s.sdk(), slowCreates)
		must(t, db, "CREATE TABLE load (id Uint64, PRIMARY KEY (id))")
		load, python := loadSDK(t, db, 12), loadPython(t, s)
		goesOn := func() {
			t.Helper()
			load.goesOn(t, 20)
			python.goesOn(t, 20)
		}
		goesOn()
		for _, delay := range []string{"0s", "100ms"} { // with the second a call is under way in most sessions at any time
			c.everywhere(t, "delay", map[string]any{"delay": delay, "methods": []string{"ExecuteQuery"}})
			old := s.replace(t, c, settings...)
			goesOn()
			exited(t, old)
			goesOn()
		}
		load.allWell(t, sdkPatience)
		python.allWell(t)
		if n := c.sum(t, "forwarded"); n != 0 {
			t.Errorf("%d calls did not go to the owner of their session", n)
		}
		closeSDK(t, db)
		s.endsWell(t)
		c.noSessions(t)
	})
}

// pythonLoad is the official Python client at work that is safe to repeat.
type pythonLoad struct {
	app
	process *stand.Process
	count   string // file that grows by a byte with each success
}

func loadPython(t *testing.T, s *sidecar) *pythonLoad {
	t.Helper()
	l := &pythonLoad{app: app{name: "python"}, count: filepath.Join(t.TempDir(), "count")}
	l.process = standtest.Start(t, stand.Spec{
		Path: officialPython(t), Args: []string{filepath.Join("testdata", "python", "load.py")},
		Env: []string{"YDB_URL=" + "grpc://" + s.GRPC, "YDB_COUNT=" + l.count},
	})
	return l
}

// goesOn waits for n more successes.
func (l *pythonLoad) goesOn(t *testing.T, n int64) {
	t.Helper()
	size := func() int64 {
		if info, err := os.Stat(l.count); err == nil {
			return info.Size()
		}
		return 0
	}
	before := size()
	eventually(t, patience, "the Python client goes on", func() string {
		if more := size() - before; more < n {
			return fmt.Sprintf("%d more\n%s", more, stand.LastLines(l.process.Log(), 5))
		}
		return ""
	})
}

// allWell ends the load, of which no call may have failed.
func (l *pythonLoad) allWell(t *testing.T) {
	t.Helper()
	if err := l.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	said := l.finish(t, l.process)
	if failed := said["failed"].([]any); len(failed) > 0 {
		t.Errorf("the Python client: %v", failed)
	}
	t.Logf("python: %v", said)
}
