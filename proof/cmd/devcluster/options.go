package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

const (
	defaultPort    = 2136
	defaultControl = "127.0.0.1:8765"
)

// options is the command line.
type options struct {
	config    devcluster.Config
	processes bool
	log       string
	args      []string // as given, for the processes of the nodes
}

// parse reads the command line.
//
// Long: a flat list, a line or a few for each flag.
func parse(args []string, stderr io.Writer) (options, error) {
	o := options{config: devcluster.Default(), log: "json", args: args}
	c := &o.config
	c.Port, c.Control = defaultPort, defaultControl
	c.Users = make(map[string]string)
	f := flag.NewFlagSet("devcluster", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&c.Nodes, "nodes", c.Nodes, "number of nodes")
	f.StringVar(&c.Host, "host", c.Host, "address that the nodes listen on")
	f.IntVar(&c.Port, "port", c.Port, "port of the first node; 0 picks free ports")
	f.StringVar(&c.Control, "control", c.Control, "address of the control API, host:port or unix:/path; empty for none")
	f.StringVar(&c.Database, "database", c.Database, "path of the database")
	f.StringVar(&c.Data, "data", c.Data, "file of the database; empty keeps it in memory")
	f.DurationVar(&c.HopDelay, "hop-delay", c.HopDelay, "delay of each call that one node forwards to another")
	f.Func("locations", "data centres of the nodes in turn, separated by commas (default local)", func(v string) error {
		c.Locations = strings.Split(v, ",")
		return nil
	})
	f.Func("piles", "parts of a cluster in bridge mode, which the nodes belong to in turn: a=PRIMARY,b=SYNCHRONIZED",
		func(v string) (err error) {
			c.Piles, err = devcluster.ParsePiles(v)
			return err
		})
	f.StringVar((*string)(&c.Endpoints), "endpoints", string(devcluster.EndpointsEach),
		"each: discovery lists every node at its own address; merged: all nodes as one entry, at the address of a balancer in this process")
	f.IntVar(&c.QueryLimit, "query-limit", c.QueryLimit,
		"bytes of a statement's text; longer ones are refused; 0: as many as a message has room for")
	f.IntVar(&c.Sessions, "sessions", c.Sessions, "sessions that one node holds")
	f.DurationVar(&c.SessionIdle, "session-idle", c.SessionIdle, "idle time after which a session without attach stream ends")
	f.DurationVar(&c.Cleanup, "cleanup", c.Cleanup,
		"time for which a session rolls back after a call that ran out of time or was cancelled")
	f.DurationVar(&c.HintGrace, "hint-grace", c.HintGrace,
		"soft limit of a session that is asked to close for its own sake; the hard one is twice as long")
	f.Func("shutdown", "soft and hard limit of the sessions of a node that drains (default 2s,10s)", func(v string) (err error) {
		c.Shutdown, err = devcluster.ParseLimits(v)
		return err
	})
	f.BoolVar(&c.Evict, "evict", false, "at -sessions, ask the session to close that was idle for longest, if it was for -session-idle")
	f.BoolVar(&c.Balance, "balance", c.Balance, "place sessions of clients with the session-balancer capability on all nodes in turn")
	f.BoolVar(&c.ConsumedUnits, "consumed-units", false, "report the request units of calls in the trailer x-ydb-consumed-units")
	f.StringVar((*string)(&c.Auth), "auth", "",
		"off: any ticket passes; enforced: every call needs a valid one (default enforced with -user or -token, else off)")
	f.Func("user", "name:password of a user for Login (may repeat)", func(v string) error {
		name, password, ok := strings.Cut(v, ":")
		if !ok {
			return errors.New("must be name:password")
		}
		c.Users[name] = password
		return nil
	})
	f.Func("token", "ticket that is valid without Login (may repeat)", func(v string) error {
		c.Tokens = append(c.Tokens, v)
		return nil
	})
	f.DurationVar(&c.TicketLife, "ticket-life", c.TicketLife, "life of the tickets of Login")
	certificate := f.String("tls-cert", "", "file of the nodes' certificate; serves TLS")
	key := f.String("tls-key", "", "file of the certificate's key")
	f.BoolVar(&o.processes, "processes", false, "run each node as a process of its own")
	f.Func("node", "run only the node with this id", func(v string) error {
		id, err := strconv.ParseUint(v, 10, 32)
		c.Node, c.Nodes = uint32(id), 1
		return err
	})
	f.Func("peers", "nodes in other processes: 1=host:port,2=host:port", func(v string) (err error) {
		c.Peers, err = parsePeers(v)
		return err
	})
	f.StringVar(&c.Advertise, "advertise", c.Advertise,
		"with -node: host:port that discovery tells of the node in place of its own, that of a proxy")
	f.BoolVar(&c.Supervised, "supervised", false, "end when stdin ends (used by -processes)")
	f.StringVar(&o.log, "log", o.log, "format of the logs: json or text")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, errors.New("wrong command line, see above")
	}
	return o, o.finish(f, *certificate, *key)
}

// finish checks what belongs together.
func (o *options) finish(f *flag.FlagSet, certificate, key string) error {
	var errs []error
	if f.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", f.Arg(0)))
	}
	if o.log != "json" && o.log != "text" {
		errs = append(errs, fmt.Errorf("-log %q; must be json or text", o.log))
	}
	if o.config.Node != 0 && o.processes {
		errs = append(errs, errors.New("-node and -processes exclude each other"))
	}
	if len(o.config.Piles) > 0 && o.processes {
		errs = append(errs, errors.New("-piles and -processes exclude each other"))
	}
	if o.config.Endpoints == devcluster.EndpointsMerged && o.processes {
		errs = append(errs, errors.New("-endpoints merged and -processes exclude each other"))
	}
	if len(o.config.Peers) > 0 && (o.config.Node == 0 || o.config.Data == "") {
		errs = append(errs, errors.New("-peers needs -node and -data"))
	}
	if o.config.Node != 0 && !o.config.Supervised { // started by hand, next to others
		if o.config.Port != 0 {
			o.config.Port += int(o.config.Node) - 1
		}
		if !given(f, "control") {
			o.config.Control = ""
		}
	}
	if certificate != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			errs = append(errs, fmt.Errorf("-tls-cert, -tls-key: %w", err))
		}
		o.config.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if err := o.config.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (o options) logger(w io.Writer) *slog.Logger {
	if o.log == "text" {
		return slog.New(slog.NewTextHandler(w, nil))
	}
	return slog.New(slog.NewJSONHandler(w, nil))
}

// running is a cluster in this process or in several.
type running interface {
	Ready(ctx context.Context) (devcluster.Ready, error)
	Close() error
}

func (o options) start(ctx context.Context) (running, error) {
	if !o.processes {
		return devcluster.Start(o.config)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return devcluster.Supervise(ctx, o.config, func(flags ...string) *exec.Cmd {
		// Where flags repeat, the later one counts.
		cmd := exec.Command(self, append(slices.Clone(o.args), flags...)...)
		cmd.Stderr = os.Stderr
		return cmd
	})
}

// given says whether the flag stands in the command line.
func given(f *flag.FlagSet, name string) bool {
	found := false
	f.Visit(func(g *flag.Flag) { found = found || g.Name == name })
	return found
}

// parsePeers reads 1=host:port,2=host:port.
func parsePeers(v string) ([]devcluster.Peer, error) {
	var peers []devcluster.Peer
	for _, part := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' }) {
		number, address, ok := strings.Cut(part, "=")
		id, err := strconv.ParseUint(number, 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q; must be id=host:port", part)
		}
		peers = append(peers, devcluster.Peer{ID: uint32(id), Address: address})
	}
	return peers, nil
}
