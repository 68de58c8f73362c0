// Command sidecar owns the YDB sessions of a host or pod and serves the plain
// API, over gRPC and HTTP, to apps that know nothing of sessions and nodes.
//
// When it serves, it prints one line of JSON with its addresses on stdout; logs go to stderr, and are
// dropped while it has no reader. SIGTERM and SIGINT stop it in good order (exit code 0), a second one
// at once if it comes a second later or more; SIGHUP has it read its configuration again. It exits
// with 1 and one line when it cannot start, or when something was cut off at the end, and with 2 for a
// wrong command line. Commands for a running sidecar exit with 3 when none answers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/ydb-sidecar/sidecar/internal/app"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

const (
	exitFailed = 1
	exitUsage  = 2
	exitNobody = 3
)

const (
	// hurryLimit is how long an end at once may take.
	hurryLimit = time.Second
	// sameSignal is how long a second signal may come after the first and mean the same:
	// some who stop a process signal it and its group.
	sameSignal = time.Second
	// flushLimit is how long the last lines may take to be read.
	flushLimit = 250 * time.Millisecond
)

// command is one of the words that may follow the name of the program.
type command struct {
	name string
	does string
	run  func(e *environment, args []string) error
}

var commands = []command{
	{"serve", "run the sidecar", serve},
	{"check-config", "report all faults of the configuration, or print it (-print)", checkConfig},
	{"wait", "wait until a sidecar has started, or (-deep) until it has a good node", wait},
	{"doctor", "try out all that a sidecar needs, from the name to a query, and say what to do", examine},
	{"version", "print the version, the commit, Go's version and the platform; --version does, too", printVersion},
}

// environment is what a command may use of the process.
type environment struct {
	stdout, stderr io.Writer
	environ        []string
	signals        <-chan os.Signal // the ones that mean the end
	exit           func(code int)   // at once
}

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	// Stderr may have no reader: code that writes to it must not wait. That includes libraries.
	stderr := app.NewLines(os.Stderr)
	log.SetOutput(stderr)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, stderr))
	exit := func(code int) {
		stderr.Flush(flushLimit)
		os.Exit(code)
	}
	exit(run(&environment{stdout: os.Stdout, stderr: stderr, environ: os.Environ(), signals: signals, exit: exit}, os.Args[1:]))
}

// errUsage wraps a fault of the command line that has been explained already.
var errUsage = errors.New("wrong command line")

func run(e *environment, args []string) int {
	if len(args) == 0 {
		usage(e.stderr)
		return exitUsage
	}
	if slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		usage(e.stdout)
		return 0
	}
	name := args[0]
	if name == "-version" || name == "--version" {
		name = "version"
	}
	all := slices.Concat(commands, operations)
	i := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	if i < 0 {
		fmt.Fprintf(e.stderr, "sidecar: there is no command %q; try: sidecar help\n", args[0])
		return exitUsage
	}
	err := all[i].run(e, args[1:])
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return exitUsage
	case isNobody(err):
		fmt.Fprintf(e.stderr, "sidecar: %s\n", app.FaultLine(err))
		return exitNobody
	default:
		fmt.Fprintf(e.stderr, "sidecar: %s\n", app.FaultLine(err))
		return exitFailed
	}
}

func usage(w io.Writer) {
	fmt.Fprintf(w, "usage: sidecar COMMAND [flags]\n\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-14s %s\n", c.name, c.does)
	}
	fmt.Fprintf(w, "\nfor a running sidecar (-socket or -admin say which):\n\n")
	for _, c := range operations {
		fmt.Fprintf(w, "  %-14s %s\n", c.name, c.does)
	}
	fmt.Fprintf(w, "\nsidecar COMMAND -h lists the flags. Every setting is one name in the file, as SIDECAR_NAME and as -set name=value.\n")
}

// options are the flags that make up a configuration.
type options struct {
	file        string
	assignments []app.Assignment
}

func flags(e *environment, name string, o *options) *flag.FlagSet {
	set := flag.NewFlagSet("sidecar "+name, flag.ContinueOnError)
	set.SetOutput(e.stderr)
	set.StringVar(&o.file, "config", "", "`file` of settings, YAML")
	set.Func("set", "a setting, as `name=value`; may be repeated", func(text string) error {
		o.assignments = append(o.assignments, app.Assignment{Setting: text, Source: "-set"})
		return nil
	})
	for _, short := range []struct{ flag, setting, usage string }{
		{"ydb", "ydb.url", "the cluster, as `grpc://host:port/database`"},
		{"grpc", "grpc.listen", "`host:port` of the gRPC API"},
		{"http", "http.listen", "`host:port` of the HTTP API"},
		{"admin", "admin.listen", "`host:port` of the admin API"},
		{"socket", "admin.socket", "`path` of the admin API's Unix socket"},
		{"log", "log.format", "`json` or text"},
	} {
		set.Func(short.flag, short.usage+" ("+short.setting+")", func(text string) error {
			o.assignments = append(o.assignments, app.Assignment{Setting: short.setting + "=" + text, Source: "-" + short.flag})
			return nil
		})
	}
	return set
}

// parse parses flags; the flag package has then explained what is wrong.
func parse(set *flag.FlagSet, args []string) error {
	if err := set.Parse(args); err != nil {
		return explained(err)
	}
	if set.NArg() > 0 {
		fmt.Fprintf(set.Output(), "%s: unexpected %q\n", set.Name(), set.Arg(0))
		return errUsage
	}
	return nil
}

// explained turns an error of the flag package, which has told it already, into
// a code.
func explained(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	return fmt.Errorf("%w: %w", errUsage, err)
}

func serve(e *environment, args []string) error {
	var o options
	set := flags(e, "serve", &o)
	takeOver := set.Bool("takeover", false,
		"take the place of the sidecar that runs with the same takeover.socket, without refusing a call; if there is none, start as usual")
	if err := parse(set, args); err != nil {
		return err
	}
	// The reader of stdout or stderr may end. Without this, Go's runtime ends the process
	// with the next line.
	signal.Ignore(syscall.SIGPIPE)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	origin := app.Origin{File: o.file, Environ: e.environ, Assignments: o.assignments}
	c, settings, err := origin.Load()
	if err != nil {
		return err
	}
	tuneMemory(e.environ)
	begin := app.New
	if *takeOver {
		begin = app.Replace
	}
	sidecar, err := begin(c, settings, programVersion(), e.stderr)
	if err != nil {
		return err
	}
	sidecar.LoadedFrom(origin)
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	hurry, now := context.WithCancel(context.Background())
	defer now()
	over := make(chan struct{})
	listened := make(chan struct{})
	go func() {
		defer close(listened)
		e.heed(over, stop, now)
	}()
	reloads := make(chan struct{})
	go func() {
		defer close(reloads)
		for {
			select {
			case <-hangups:
				// it is logged and counted
				_ = panics.Call("a reload", func() error { _, err := sidecar.Reload("SIGHUP", false); return err })
			case <-over:
				return
			}
		}
	}()
	ready := app.NewLines(e.stdout) // stdout may have no reader either
	err = sidecar.Run(ctx, hurry, ready)
	ready.Flush(flushLimit)
	close(over)
	<-listened
	<-reloads
	return err
}

// heed stops on the first signal and hurries on the next that is not the same one.
func (e *environment) heed(over <-chan struct{}, stop context.CancelCauseFunc, now context.CancelFunc) {
	select {
	case s := <-e.signals:
		stop(fmt.Errorf("signal: %v", s))
	case <-over:
		return
	}
	for first := time.Now(); time.Since(first) < sameSignal; {
		select {
		case <-e.signals:
		case <-over:
			return
		}
	}
	now()
	select {
	case <-time.After(hurryLimit):
		e.exit(exitFailed)
	case <-over:
	}
}

func checkConfig(e *environment, args []string) error {
	var o options
	set := flags(e, "check-config", &o)
	show := set.Bool("print", false, "print every setting, its value and where that comes from")
	if err := parse(set, args); err != nil {
		return err
	}
	_, settings, err := app.Load(o.file, e.environ, o.assignments)
	if err != nil {
		return err
	}
	for _, warning := range settings.Warnings() {
		if _, err := fmt.Fprintln(e.stderr, warning); err != nil {
			return err
		}
	}
	if !*show {
		_, err := fmt.Fprintln(e.stdout, "the configuration is good")
		return err
	}
	var text strings.Builder
	for _, s := range settings.List() {
		fmt.Fprintf(&text, "%s: %q # %s\n", s.Name, s.Value, s.Source)
	}
	_, err = io.WriteString(e.stdout, text.String())
	return err
}
