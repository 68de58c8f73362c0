package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// Result is what came of one check.
type Result string

// The results.
const (
	Good    Result = "ok"
	Warn    Result = "warn" // it works, but
	Bad     Result = "FAIL"
	Skipped Result = "-" // one before it failed
)

// Exam is one check.
type Exam struct {
	Check  string `json:"check"`
	Result Result `json:"result"`
	Text   string `json:"text"`
	Do     string `json:"do,omitempty"` // what to do about it
}

// Bounds of an examination.
const (
	examStep  = 10 * time.Second // for one check
	examFiles = 4096             // open files that a sidecar should be allowed
	examTLS   = 14 * 24 * time.Hour
)

// Examination collects the checks of one examination.
type Examination struct {
	tell   func(Exam)
	bad    bool // something failed
	failed bool // so that what depends on it is skipped
}

// New begins an examination that tells each check.
func New(tell func(Exam)) *Examination { return &Examination{tell: tell} }

// Good reports whether nothing failed.
func (x *Examination) Good() bool { return !x.bad }

// Add tells a check. do is what to do about one that did not go well.
func (x *Examination) Add(check string, result Result, do, format string, args ...any) {
	e := Exam{Check: check, Result: result, Text: fmt.Sprintf(format, args...)}
	if result == Bad || result == Warn {
		e.Do = do
	}
	x.bad, x.failed = x.bad || result == Bad, x.failed || result == Bad
	x.tell(e)
}

// Machine is what the system gives.
type Machine struct {
	Files  func() (most uint64, ok bool)        // files that may be open; not ok: no limit is known
	Memory func() (free, limit uint64, ok bool) // of the container; not ok: no limit
}

// Parts are those below the APIs that an examination uses. None of them runs yet.
type Parts struct {
	Mode      string // of discovery
	Dials     bool   // the addresses of ydb.url are called
	Driver    *upstream.Driver
	Detector  *pessimize.Detector
	Discovery *discovery.Discovery
	Attention *discovery.Attention
	Pool      *pool.Pool
	Apps      *apps.Registry
	Router    *routing.Router
	Client    *upstream.Client
}

// Machine checks what the system gives.
func (x *Examination) Machine(m Machine) {
	if built := buildTime(); !built.IsZero() && time.Now().Before(built) {
		x.Add("clock", Bad, "Set the clock: certificates and tokens are judged by it.",
			"it is %s, before this program was made", time.Now().Format(time.RFC3339))
	} else {
		x.Add("clock", Good, "", "%s", time.Now().Format(time.RFC3339))
	}
	const raise = "Raise it: ulimit -n, LimitNOFILE= of systemd, or the container's limits. Each client and each node takes a file."
	switch n, ok := m.Files(); {
	case !ok:
		x.Add("limits", Good, "", "the system has no limit of open files that can be read")
	case n < examFiles:
		x.Add("limits", Warn, raise, "%d files may be open at a time, fewer than %d", n, examFiles)
	default:
		x.Add("limits", Good, "", "%d files may be open at a time", n)
	}
	if left, limit, ok := m.Memory(); ok {
		result := Good
		if left < 64<<20 {
			result = Warn
		}
		x.Add("memory", result, "Give the container more memory.", "%d MiB of %d MiB are free", left>>20, limit>>20)
	} else {
		x.Add("memory", Good, "", "no limit by a cgroup")
	}
}

// buildTime is when the program's sources were committed; zero: unknown.
func buildTime() (at time.Time) {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" {
				at, _ = time.Parse(time.RFC3339, s.Value)
			}
		}
	}
	return at
}

// Cluster goes the way of a call, from the name to the rows.
func (x *Examination) Cluster(ctx context.Context, p Parts) {
	if p.Dials {
		reached := 0
		for _, address := range p.Driver.Addresses() {
			if x.reach(ctx, &p, address) {
				reached++
			}
		}
		x.failed = reached == 0
	}
	x.talk(ctx, &p)
}

// reach tries one address of ydb.url.
func (x *Examination) reach(ctx context.Context, p *Parts, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, examStep)
	defer cancel()
	host, _, _ := net.SplitHostPort(address)
	began := time.Now()
	ips, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		x.Add("dns", Bad, "Check the host in ydb.url, and the resolver of this machine or pod (/etc/resolv.conf).", "%s: %v", host, err)
		return false
	}
	x.Add("dns", Good, "", "%s: %s, in %s", host, strings.Join(ips[:min(len(ips), 4)], ", "), findings.Span(time.Since(began)))
	began = time.Now()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		x.Add("tcp", Bad, "Check the port in ydb.url, whether the node runs, and firewalls or NetworkPolicies between.",
			"%s: %v", address, err)
		return false
	}
	defer conn.Close()
	x.Add("tcp", Good, "", "%s: connected in %s", address, findings.Span(time.Since(began)))
	conf := p.Driver.TLS(cluster.Node{Address: address})
	if conf == nil {
		x.Add("tls", Good, "", "%s: not used: ydb.url begins with grpc://", address)
		return true
	}
	began = time.Now()
	secure := tls.Client(conn, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		x.Add("tls", Bad, "Check ydb.ca_file, that the certificate names this host, and whether the port speaks TLS (grpcs://) at all.",
			"%s: %v", address, err)
		return false
	}
	leaf := secure.ConnectionState().PeerCertificates[0]
	if left := time.Until(leaf.NotAfter); left < examTLS {
		x.Add("tls", Warn, "Have the cluster's certificate renewed.", "%s: the certificate expires in %s", address, findings.Span(left))
	} else {
		x.Add("tls", Good, "", "%s: %s in %s; the certificate expires in %d days", address,
			tls.VersionName(secure.ConnectionState().Version), findings.Span(time.Since(began)), int(left.Hours()/24))
	}
	return true
}

// talk asks the cluster, step by step, while the parts run.
func (x *Examination) talk(ctx context.Context, p *Parts) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{
		p.Driver.Run, p.Detector.Run, p.Discovery.Run, p.Attention.Run, p.Pool.Run, p.Apps.Run,
	} {
		// it is logged, and the step that needs it fails
		wg.Go(func() { _ = panics.Call("a part of doctor", func() error { return run(ctx) }) })
	}
	defer func() {
		over, end := context.WithTimeout(context.WithoutCancel(ctx), examStep)
		_ = p.Pool.Close(over)
		end()
		cancel()
		wg.Wait()
	}()
	const account = "Check ydb.auth (kind, and the token, files or variables it names), and the account's rights to the database."
	x.step(ctx, "credentials", always(account), p.credentials)
	source := func(err error) string {
		if deniesAccount(err) {
			return account
		}
		return "Check the database in ydb.url: the path behind the port, such as /local or /prod/shop. " +
			"The cluster does not serve this one."
	}
	switch p.Mode {
	case discovery.ModeDNS:
		source = always("Check discovery.dns_name and the DNS server; a node tells its id by the answer to CreateSession, " +
			"so it must be reachable and accept the credentials.")
	case discovery.ModeXDS:
		source = always("Check discovery.xds_url, xds_cluster, the token and the files of TLS, and what the control plane says.")
	}
	x.step(ctx, "discovery", source, p.nodes)
	x.step(ctx, "session", always("Check the account's right to connect, and whether the cluster has reached its limit of sessions."),
		p.session)
	x.step(ctx, "query", always("Check the account's rights, and the cluster's own state."), p.query)
}

// A hint says what to do about an error.
type hint func(error) string

// always is a hint that is the same for every error.
func always(text string) hint { return func(error) string { return text } }

// deniesAccount reports whether a node rejected the credentials or the account's rights, by gRPC's code or by YDB's status.
func deniesAccount(err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return true
	default:
		return strings.Contains(err.Error(), "UNAUTHORIZED") || strings.Contains(err.Error(), "Unauthenticated")
	}
}

// credentials waits until the driver has a ticket.
func (p *Parts) credentials(ctx context.Context) (string, error) {
	return "there are some, or none are needed", until(ctx, func() (bool, error) {
		if _, err := p.Driver.Ticket(); err == nil {
			return true, nil
		}
		_, missing := p.Driver.Credentials()
		return missing != nil, missing
	})
}

// nodes waits until discovery finds nodes.
func (p *Parts) nodes(ctx context.Context) (string, error) {
	err := until(ctx, func() (bool, error) {
		d := p.Discovery.State()
		return len(p.Router.View().Nodes) > 0 || d.Err != nil, d.Err
	})
	return fmt.Sprintf("%d nodes", len(p.Router.View().Nodes)), err
}

// own is the call of an examination.
var own = upstream.Call{Name: "doctor", Class: pool.System, Idempotent: true}

// session opens a session, which stays in the pool.
func (p *Parts) session(ctx context.Context) (text string, err error) {
	began := time.Now()
	_, err = p.Client.Do(ctx, own, func(_ context.Context, s *upstream.Session) error {
		text = fmt.Sprintf("opened on node %d in %s", s.Node(), findings.Span(time.Since(began)))
		return nil
	})
	return text, err
}

// query executes a statement on that session, or on another one.
func (p *Parts) query(ctx context.Context) (string, error) {
	began := time.Now()
	_, err := p.Client.Do(ctx, own, func(ctx context.Context, s *upstream.Session) error {
		began = time.Now()
		stream, err := s.Execute(ctx, upstream.Statement{Text: "SELECT 1"})
		if err != nil {
			return err
		}
		for {
			if _, err := stream.Next(); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
	})
	return "SELECT 1 in " + findings.Span(time.Since(began)), err
}

// step makes one check, unless one before it failed.
func (x *Examination) step(ctx context.Context, check string, do hint, f func(context.Context) (string, error)) {
	if x.failed {
		x.Add(check, Skipped, "", "not tried: an earlier step failed")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, examStep)
	defer cancel()
	text, err := f(ctx)
	if err != nil {
		x.Add(check, Bad, do(err), "%s", findings.OneLine(err))
		return
	}
	x.Add(check, Good, "", "%s", text)
}

// until asks every 10 ms until there is an answer, or ctx ends.
func until(ctx context.Context, ask func() (bool, error)) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if done, err := ask(); done {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.New("no answer in time")
		}
	}
}
