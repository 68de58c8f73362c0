// Command realtest runs against a YDB cluster all that can be proven from outside, and writes
// one report.
//
// It asks for the rules that the development cluster was written after (proof/rules), runs the
// tests of the plain API, of the example apps and of the official Go SDK, the SDK matrix, and, if
// it is told how the cluster is restarted, a load through a sidecar during that. All tables are in one directory
// of the database, which is removed at the end. Credentials come as to the sidecar, in variables;
// none of them gets into the report. docs/dev/real-ydb.md says how to use it.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/rules"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "realtest:", err)
	}
	os.Exit(code)
}

// options are those of the command line.
type options struct {
	ydb, directory, report, restart, sidecar string
	hide, tests, sdks                        bool
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("realtest", flag.ContinueOnError)
	flags.StringVar(&o.ydb, "ydb", "", "the cluster: grpc[s]://host:port/database")
	flags.StringVar(&o.directory, "directory", "sidecar_test_"+time.Now().UTC().Format("20060102_150405"),
		"name of the directory for all tables; it must not exist, and is removed at the end")
	flags.StringVar(&o.report, "report", "report/real-ydb.md", "the file that the report goes to")
	flags.StringVar(&o.restart, "restart", "",
		"a shell command that restarts the cluster node by node and ends when that is done; without it nothing is restarted")
	flags.StringVar(&o.sidecar, "sidecar", "bin/sidecar", "the program for the load during -restart")
	flags.BoolVar(&o.hide, "hide-host", false, "replace the host and the database in the report")
	flags.BoolVar(&o.tests, "tests", true, "run the TestReal tests too, which takes minutes")
	flags.BoolVar(&o.sdks, "sdks", true, "run the SDK matrix too, with the SDKs that are installed here, which takes minutes")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.ydb == "":
		return o, errors.New("-ydb is missing: grpc[s]://host:port/database")
	case strings.Trim(o.directory, "/.") == "" || strings.ContainsAny(o.directory, "/`\"' "):
		return o, fmt.Errorf("-directory = %q; must be one name, without slashes, spaces and quotes", o.directory)
	}
	return o, nil
}

// credentials are those of the variables that a sidecar reads.
type credentials struct {
	kind, token, user, password, caFile, serverName string
}

func read() (c credentials, err error) {
	get := func(name string) string { return os.Getenv("SIDECAR_YDB_" + name) }
	c = credentials{kind: get("AUTH_KIND"), token: get("AUTH_TOKEN"), user: get("AUTH_USER"),
		password: get("AUTH_PASSWORD"), caFile: get("CA_FILE"), serverName: get("SERVER_NAME")}
	file := func(name string, into *string) {
		if path := get(name); path != "" && err == nil {
			var text []byte
			text, err = os.ReadFile(path)
			*into = strings.TrimSpace(string(text))
		}
	}
	switch c.kind {
	case "", "anonymous", "token":
	case "token_file":
		file("AUTH_TOKEN_FILE", &c.token)
	case "static":
		file("AUTH_PASSWORD_FILE", &c.password)
	default:
		err = fmt.Errorf("SIDECAR_YDB_AUTH_KIND = %s; must be anonymous, token, token_file or static here: fetch a token first", c.kind)
	}
	return c, err
}

// secrets are what the report must not have.
func (c credentials) secrets() []string { return []string{c.token, c.user, c.password} }

// target is where the rules are asked.
func target(ctx context.Context, o options, c credentials) (rules.Target, error) {
	var t rules.Target
	u, err := url.Parse(o.ydb)
	if err != nil {
		return t, errors.New("-ydb is no URL") // without its text: it may hold a password
	}
	if u.User != nil {
		return t, errors.New("-ydb has a user; give credentials in variables (docs/dev/real-ydb.md)")
	}
	host, _, _ := strings.Cut(u.Host, ",")
	if _, _, err := net.SplitHostPort(host); err != nil {
		return t, fmt.Errorf("-ydb: %w", err)
	}
	t = rules.Target{Address: host, Database: u.Path, Ticket: c.token, Directory: o.directory}
	if database := u.Query().Get("database"); database != "" {
		t.Database = database
	}
	if strings.Trim(t.Database, "/") == "" {
		return t, errors.New("-ydb has no database: grpc[s]://host:port/database")
	}
	switch u.Scheme {
	case "grpc":
	case "grpcs":
		t.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.serverName}
		if c.caFile != "" {
			pem, err := os.ReadFile(c.caFile)
			if err != nil {
				return t, err
			}
			if t.TLS.RootCAs = x509.NewCertPool(); !t.TLS.RootCAs.AppendCertsFromPEM(pem) {
				return t, fmt.Errorf("%s has no certificate", c.caFile)
			}
		}
	default:
		return t, fmt.Errorf("-ydb: scheme %q; must be grpc or grpcs", u.Scheme)
	}
	if c.kind == "static" {
		if t.Ticket, err = rules.Login(ctx, t, c.user, c.password); err != nil {
			return t, err
		}
	}
	return t, nil
}

// run does everything, writes the report and returns the exit code.
func run(ctx context.Context, args []string) (int, error) {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	} else if err != nil {
		return 2, err
	}
	c, err := read()
	if err != nil {
		return 2, err
	}
	began := time.Now()
	opening, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	t, err := target(opening, o, c)
	if err != nil {
		return 2, hidden(err, c.secrets())
	}
	cluster, err := rules.Open(opening, t)
	if err != nil {
		return 1, hidden(err, append(c.secrets(), t.Ticket))
	}
	defer cluster.Close()

	r := &report{options: o, target: t, began: began, nodes: cluster.Nodes(), secrets: append(c.secrets(), t.Ticket)}
	r.collect(ctx, cluster)
	r.took = time.Since(began)
	text := r.text()
	if err := os.MkdirAll(filepath.Dir(o.report), 0o755); err != nil {
		return 1, err
	}
	if err := os.WriteFile(o.report, []byte(text), 0o644); err != nil {
		return 1, err
	}
	fmt.Println(r.summary())
	if len(r.wrong) > 0 {
		return 1, hidden(errors.New(strings.Join(r.wrong, "; ")), r.secrets)
	}
	return 0, nil
}

// collect fills the report. Whatever goes wrong gets into it.
func (r *report) collect(ctx context.Context, cluster *rules.Cluster) {
	var err error
	if r.before, err = cluster.List(ctx, ""); err != nil {
		r.fail("the list of the database before: %v", err)
		return
	}
	if slices.Contains(r.before, r.options.directory) {
		r.fail("the directory %s exists: choose another one", r.options.directory)
		return
	}
	defer r.cleanUp(cluster)
	if err := cluster.Prepare(ctx); err != nil {
		r.fail("%v", err)
		return
	}
	for _, rule := range rules.All() {
		got := cluster.Ask(ctx, rule)
		r.rules = append(r.rules, got)
		r.progress("%-9s %s", got.Verdict, rule.Name)
		if ctx.Err() != nil {
			r.fail("interrupted")
			return
		}
	}
	if r.options.tests {
		r.runTests(ctx)
	}
	if r.options.sdks && ctx.Err() == nil {
		r.runSDKs(ctx)
	}
	if r.options.restart != "" && ctx.Err() == nil {
		r.runRestart(ctx)
	}
}

// cleanUp removes the directory, also after an interrupt, and lists the database again.
func (r *report) cleanUp(cluster *rules.Cluster) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := cluster.Remove(ctx); err != nil {
		r.fail("the directory %s could not be removed: %v", r.options.directory, err)
	}
	var err error
	if r.after, err = cluster.List(ctx, ""); err != nil {
		r.fail("the list of the database after: %v", err)
		return
	}
	for _, path := range r.after {
		if !slices.Contains(r.before, path) {
			r.left = append(r.left, path)
			if strings.HasPrefix(path+"/", r.options.directory+"/") {
				r.fail("left behind: %s", path)
			}
		}
	}
}
