package doctor

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/discovery/dnstest"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/proof/certtest"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/clustertest"
)

// nobody is an address without a listener: no other program takes such a port.
const nobody = "127.0.0.1:1"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// prober asks nodes by way of the driver, which is made after the judge.
type prober struct{ driver *upstream.Driver }

func (p *prober) Probe(ctx context.Context, id cluster.NodeID) error { return p.driver.Probe(ctx, id) }

// partsOf makes what an examination uses, from the real parts.
func partsOf(t *testing.T, c upstream.Config) Parts {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	asks, router := new(prober), routing.New(routing.Default())
	judge := pessimize.New(pessimize.Default(), asks, log)
	driver, err := upstream.New(c, upstream.Deps{Ways: hop.Ways{Router: router, Health: judge}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = driver.Close() })
	asks.driver = driver
	registry, err := apps.New(apps.Default(), log)
	if err != nil {
		t.Fatal(err)
	}
	few := pool.Default()
	few.Min = 0 // an examination opens the one session that it uses
	sessions, finder := pool.New(few, driver, log), discovery.New(discovery.Default(), driver, log)
	client, err := upstream.NewClient(driver, sessions, upstream.DefaultRetry(), few.Max)
	if err != nil {
		t.Fatal(err)
	}
	attention := discovery.NewAttention(finder.Refresh)
	finder.Subscribe(judge.SetTopology)
	finder.Subscribe(router.SetTopology)
	judge.Subscribe(router.SetConditions)
	router.Subscribe(driver.SetView)
	router.Subscribe(sessions.SetView)
	return Parts{
		Mode: discovery.ModeYDB, Dials: true, Driver: driver, Detector: judge, Discovery: finder,
		Attention: attention, Pool: sessions, Apps: registry, Router: router, Client: client,
	}
}

// step is what a check is expected to say.
type step struct {
	check  string
	result Result
	text   string // a part of its text
	do     string // a part of what to do; "": nothing is to be done
}

// compare fails the test unless the checks are those.
func compare(t *testing.T, got []Exam, want []step) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(e Exam, s step) bool {
		said := strings.Contains(e.Text, s.text) && strings.Contains(e.Do, s.do) && (e.Do == "") == (s.do == "")
		return e.Check == s.check && e.Result == s.result && said
	}) {
		t.Errorf("the checks are\n%+v; want\n%+v", got, want)
	}
}

// plain is a cluster without TLS that accepts connections; the steps after those
// are in rest.
func plain(rest ...step) []step {
	return append([]step{
		{"dns", Good, "127.0.0.1: 127.0.0.1, in ", ""},
		{"tcp", Good, ": connected in ", ""},
		{"tls", Good, "not used: ydb.url begins with grpc://", ""},
	}, rest...)
}

// The steps of a call that goes well, from its credentials on.
var well = []step{
	{"credentials", Good, "there are some, or none are needed", ""},
	{"discovery", Good, "3 nodes", ""},
	{"session", Good, "opened on node ", ""},
	{"query", Good, "SELECT 1 in ", ""},
}

// skipped are the steps from the one named on that are not tried.
func skipped(from string) (all []step) {
	for _, s := range well[slices.IndexFunc(well, func(s step) bool { return s.check == from }):] {
		all = append(all, step{s.check, Skipped, "not tried: an earlier step failed", ""})
	}
	return all
}

// badToken makes a cluster refuse the credentials of the sidecar.
func badToken(c *upstream.Config) { c.Auth.Kind, c.Auth.Token = "token", "another" }

func asksForTokens(c *devcluster.Config) { c.Tokens = []string{"the right one"} }

// fails makes every node answer a method with a status.
func fails(method, status string) func(*testing.T, *devcluster.Cluster) {
	return func(t *testing.T, c *devcluster.Cluster) {
		for id := range uint32(3) {
			errs := devcluster.Errors{Status: status, Share: 1, Methods: []string{method}}
			if err := c.Node(id + 1).Errors(errs); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestCluster has clusters examined that do what the name says. An examination
// leaves no session, whatever it finds.
func TestCluster(t *testing.T) {
	const rights = "Check ydb.auth (kind, and the token, files or variables it names)"
	refused := []step{well[0], {"discovery", Bad, "UNAUTHENTICATED", "Check ydb.auth"}}
	for _, tc := range []struct {
		name    string
		cluster func(*devcluster.Config)
		fault   func(*testing.T, *devcluster.Cluster)
		config  func(*upstream.Config)
		parts   func(*Parts)
		want    []step
	}{
		{name: "all is well", want: plain(well...)},
		{name: "the addresses of ydb.url are not called", parts: func(p *Parts) { p.Dials = false }, want: well},
		{
			name: "one address of two is dead", config: func(c *upstream.Config) {
				c.URL = strings.Replace(c.URL, "grpc://", "grpc://"+nobody+",", 1)
			},
			want: slices.Concat([]step{
				{"dns", Good, "127.0.0.1", ""},
				{"tcp", Bad, "refused", "Check the port in ydb.url, whether the node runs"},
			}, plain(well...)),
		},
		{
			name: "another database", config: func(c *upstream.Config) { c.URL = strings.Replace(c.URL, "/local", "/other", 1) },
			want: plain(slices.Concat([]step{
				well[0], {"discovery", Bad, "/other", "Check the database in ydb.url: the path"},
			}, skipped("session"))...),
		},
		{
			name: "a token is refused", cluster: asksForTokens, config: badToken,
			want: plain(slices.Concat(refused, skipped("session"))...),
		},
		{
			name: "a token is accepted", cluster: asksForTokens,
			config: func(c *upstream.Config) { c.Auth.Kind, c.Auth.Token = "token", "the right one" },
			want:   plain(well...),
		},
		{
			name: "a password is refused", cluster: func(c *devcluster.Config) { c.Users = map[string]string{"ann": "secret"} },
			config: func(c *upstream.Config) { c.Auth.Kind, c.Auth.User, c.Auth.Password = "static", "ann", "guessed" },
			want:   plain(slices.Concat([]step{{"credentials", Bad, "UNAUTHORIZED", rights}}, skipped("discovery"))...),
		},
		{
			name: "no session is opened", fault: fails("CreateSession", "UNAUTHORIZED"),
			want: plain(slices.Concat(well[:2], []step{
				{"session", Bad, "UNAUTHORIZED", "Check the account's right to connect"},
			}, skipped("query"))...),
		},
		{
			name: "no statement is executed", fault: fails("ExecuteQuery", "UNAUTHORIZED"),
			want: plain(slices.Concat(well[:3], []step{{"query", Bad, "UNAUTHORIZED", "Check the account's rights"}})...),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nodes := clustertest.Start(t, tc.cluster)
			config := upstream.Default()
			config.URL = nodes.Endpoint()
			if tc.config != nil {
				tc.config(&config)
			}
			if tc.fault != nil {
				tc.fault(t, nodes)
			}
			parts := partsOf(t, config)
			if tc.parts != nil {
				tc.parts(&parts)
			}
			examine(t, parts, tc.want)
			if left := nodes.Sessions(); len(left) > 0 {
				t.Errorf("the examination left %v", left)
			}
		})
	}
}

// examine has a cluster examined, and compares what is told with what is wanted.
func examine(t *testing.T, p Parts, want []step) {
	t.Helper()
	var got []Exam
	x := New(func(e Exam) { got = append(got, e) })
	x.Cluster(t.Context(), p)
	compare(t, got, want)
	if good := !slices.ContainsFunc(want, func(s step) bool { return s.result == Bad }); x.Good() != good {
		t.Errorf("the examination reports %v; want %v", x.Good(), good)
	}
}

// What to do about a list of nodes that does not come depends on where it comes from.
func TestWhereNodesComeFrom(t *testing.T) {
	nodes := clustertest.Start(t, asksForTokens)
	for mode, do := range map[string]string{
		discovery.ModeYDB: "Check ydb.auth",
		discovery.ModeDNS: "Check discovery.dns_name and the DNS server",
		discovery.ModeXDS: "Check discovery.xds_url, xds_cluster, the token and the files of TLS",
	} {
		t.Run(mode, func(t *testing.T) {
			config := upstream.Default()
			config.URL = nodes.Endpoint()
			badToken(&config)
			parts := partsOf(t, config)
			parts.Mode, parts.Dials = mode, false
			want := []step{well[0], {"discovery", Bad, "UNAUTHENTICATED", do}}
			examine(t, parts, append(want, skipped("session")...))
		})
	}
}

// TestTLS examines a cluster with TLS: with a certificate for decades, with one
// for a day, and with one that the sidecar has no reason to trust.
func TestTLS(t *testing.T) {
	server := httptest.NewTLSServer(nil) // for its certificate
	t.Cleanup(server.Close)
	lasting := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	soon := certtest.Of(t)
	after := func(s step, rest []step) []step {
		return append([]step{{"dns", Good, "127.0.0.1", ""}, {"tcp", Good, "connected", ""}, s}, rest...)
	}
	for _, tc := range []struct {
		name  string
		shown tls.Certificate
		trust []byte
		want  []step
	}{
		{"good", server.TLS.Certificates[0], lasting, after(step{"tls", Good, "TLS 1.3 in ", ""}, well)},
		{"expires", soon.Pair(), soon.PEM, after(step{
			"tls", Warn, "the certificate expires in ", "Have the cluster's certificate renewed",
		}, well)},
		{"unknown authority", soon.Pair(), lasting, after(step{"tls", Bad, "certificate", "Check ydb.ca_file"}, skipped("credentials"))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nodes := clustertest.Start(t, func(c *devcluster.Config) {
				c.TLS = &tls.Config{Certificates: []tls.Certificate{tc.shown}, NextProtos: []string{"h2"}}
			})
			config := upstream.Default()
			config.URL, config.CAFile = nodes.Endpoint(), filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(config.CAFile, tc.trust, 0o600); err != nil {
				t.Fatal(err)
			}
			examine(t, partsOf(t, config), tc.want)
		})
	}
}

// TestUnknownHost examines a cluster whose host has no address.
func TestUnknownHost(t *testing.T) {
	dns, system := dnstest.Start(t), net.DefaultResolver
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, dns.Addr)
	}
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: dial}
	t.Cleanup(func() { net.DefaultResolver = system })
	config := upstream.Default()
	config.URL = "grpc://nobody.test.:2136/local"
	examine(t, partsOf(t, config), append([]step{
		{"dns", Bad, "nobody.test.", "Check the host in ydb.url"},
	}, skipped("credentials")...))
}

// TestMachine examines what the system gives.
func TestMachine(t *testing.T) {
	files := func(most uint64, ok bool) func() (uint64, bool) {
		return func() (uint64, bool) { return most, ok }
	}
	memory := func(free, limit uint64, ok bool) func() (uint64, uint64, bool) {
		return func() (uint64, uint64, bool) { return free, limit, ok }
	}
	clock := step{"clock", Good, "20", ""}
	for name, tc := range map[string]struct {
		machine Machine
		want    []step
	}{
		"no limits": {
			Machine{files(0, false), memory(0, 0, false)},
			[]step{clock, {"limits", Good, "no limit of open files", ""}, {"memory", Good, "no limit by a cgroup", ""}},
		},
		"enough": {
			Machine{files(4096, true), memory(64<<20, 256<<20, true)},
			[]step{clock, {"limits", Good, "4096 files may be open", ""}, {"memory", Good, "64 MiB of 256 MiB are free", ""}},
		},
		"too little": {
			Machine{files(4095, true), memory(63<<20, 256<<20, true)},
			[]step{
				clock, {"limits", Warn, "4095 files may be open at a time, fewer than 4096", "Raise it: ulimit -n"},
				{"memory", Warn, "63 MiB of 256 MiB", "Give the container more memory"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []Exam
			x := New(func(e Exam) { got = append(got, e) })
			x.Machine(tc.machine)
			compare(t, got, tc.want)
			if !x.Good() {
				t.Error("what the machine lacks is a failure; want a warning")
			}
		})
	}
}

// TestEachStepHasABound has a cluster that never answers: a step waits for ten
// seconds, and what depends on it is not tried.
func TestEachStepHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []Exam
		x, began := New(func(e Exam) { got = append(got, e) }), time.Now()
		for _, check := range []string{"discovery", "session"} {
			x.step(t.Context(), check, always("Look at it."), func(ctx context.Context) (string, error) {
				return "", until(ctx, func() (bool, error) { return false, errors.New("not asked for") })
			})
		}
		compare(t, got, []step{
			{"discovery", Bad, "no answer in time", "Look at it."},
			{"session", Skipped, "not tried", ""},
		})
		if took := time.Since(began); took != examStep {
			t.Errorf("the steps took %v; want %v", took, examStep)
		}
	})
}
