package systemtest

import (
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// officialClient is the test of an official client in its own language, which also
// runs against the development cluster itself: see package officialtest.
type officialClient struct {
	name  string
	spec  func(t *testing.T) stand.Spec
	proof string // in its output: that many of its tests ran
}

const officialTests = "proof/devcluster/officialtest/testdata"

var officialClients = []officialClient{
	{"python", func(t *testing.T) stand.Spec {
		return stand.Spec{
			Path: officialPython(t),
			Args: []string{"-W", "error::ResourceWarning", "-m", "unittest", "-v", "test_official"},
			Dir:  filepath.Join(standtest.Root(t), officialTests, "python"),
		}
	}, `Ran 1\d tests`},
	{"node", func(t *testing.T) stand.Spec {
		return stand.Spec{Path: "node", Args: []string{"--test", "official.test.mjs"},
			Dir: filepath.Join(standtest.Root(t), officialTests, "node")}
	}, `# pass 5`},
}

// The official clients of other languages pass their tests through the sidecar with
// credentials of their own, of which the sidecar knows nothing.
func TestOfficialClientsThroughTheSidecar(t *testing.T) { everyMode(t, everyOfficialClient) }

func TestOfficialClientsInSessionMode(t *testing.T) { everyOfficialClient(t, inMode("session")) }

func everyOfficialClient(t *testing.T, through []string) {
	const password = "not to be logged"
	kind := "1"
	if !slices.Contains(through, "wire.mode=passthrough") {
		kind = "virtual"
	}
	for _, client := range officialClients {
		t.Run(client.name, func(t *testing.T) {
			c := startCluster(t, nil, "-nodes", "9", "-user", "root:"+password, "-token", "fixed", "-token", "of the sidecar")
			s := startSidecar(t, c, nil, append(through, "pool.min=0", "ydb.auth.kind=token", "ydb.auth.token=of the sidecar")...)
			spec := client.spec(t)
			spec.Env = []string{"YDB_ENDPOINT=" + s.GRPC, "YDB_CONTROL=" + c.Address, "YDB_USER=root", "YDB_PASSWORD=" + password,
				"YDB_SIDECAR=" + kind, "PYTHONDONTWRITEBYTECODE=1"}
			p := standtest.Start(t, spec)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			code, err := p.Wait(ctx)
			out := p.Stdout() + p.Log()
			if err != nil || code != 0 || !regexp.MustCompile(client.proof).MatchString(out) {
				t.Fatalf("exit code %d, %v; want 0 and %q\n%s", code, err, client.proof, out)
			}
			if n := c.sum(t, "forwarded"); n != 0 {
				t.Errorf("%d calls did not go to the owner of their session", n)
			}
			c.clean(t, through)
			if log := s.Process.Log(); strings.Contains(log, password) {
				t.Errorf("the password is in the log:\n%s", log)
			}
		})
	}
}

// javaClient runs the program of testdata/java against a URL and returns what it said.
func javaClient(t *testing.T, url string, env ...string) string {
	t.Helper()
	p := standtest.Start(t, stand.Spec{
		Path: "java",
		Args: []string{"-cp", filepath.Join(standtest.Root(t), ".cache", "java", "*"), filepath.Join("testdata", "java", "Client.java")},
		Env:  append(env, "YDB_URL="+url),
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if code, err := p.Wait(ctx); err != nil || code != 0 || !strings.HasSuffix(p.Stdout(), "closed: ok\n") {
		t.Fatalf("java: exit code %d, %v\n%s%s(its jars come with make deps)", code, err, p.Stdout(), stand.LastLines(p.Log(), 20))
	}
	return p.Stdout()
}

// The Java client sees the same through the sidecar as directly.
func TestJavaClientThroughTheSidecar(t *testing.T) {
	cluster := func(t *testing.T) *ydb {
		return startCluster(t, nil, "-user", "root:1234", "-token", "of the sidecar")
	}
	env := []string{"YDB_USER=root", "YDB_PASSWORD=1234"}
	want := javaClient(t, cluster(t).Endpoint(), env...)
	everyMode(t, func(t *testing.T, through []string) {
		c := cluster(t)
		s := startSidecar(t, c, nil, append(through, "pool.min=0", "ydb.auth.kind=token", "ydb.auth.token=of the sidecar")...)
		if got := javaClient(t, s.sdk(), env...); got != want {
			t.Errorf("through the sidecar:\n%sdirectly:\n%s", got, want)
		}
		if owned, forwarded := c.sum(t, "owned"), c.sum(t, "forwarded"); forwarded != 0 || owned < 30 {
			t.Errorf("%d calls went to the owner of their session and %d did not", owned, forwarded)
		}
		c.clean(t, through)
	})
}
