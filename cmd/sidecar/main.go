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

	"golang.org/x/term"
	"google.golang.org/grpc/grpclog"

	"github.com/ydb-sidecar/sidecar/internal/app"
)

const (
	exitFailed = 1
	exitUsage  = 2
	exitNobody = 3
)

// flushLimit is how long the last lines may take to be read.
const flushLimit = 250 * time.Millisecond

// environment is what a command may use of the process.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	asks           bool             // a person is at the terminal, to answer a question
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
	exit(run(&environment{
		stdin: os.Stdin, stdout: os.Stdout, stderr: stderr, environ: os.Environ(),
		asks:    term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())),
		signals: signals, exit: exit,
	}, os.Args[1:]))
}

// variable returns the value of a variable of the process; "": there is none.
func (e *environment) variable(name string) (value string) {
	for _, v := range e.environ {
		if key, text, _ := strings.Cut(v, "="); key == name {
			value = text
		}
	}
	return value
}

func run(e *environment, args []string) int {
	if len(args) == 0 {
		generalHelp(e.stderr)
		return exitUsage
	}
	name := args[0]
	switch {
	case slices.Contains([]string{"-h", "-help", "--help"}, name):
		name = "help"
	case slices.Contains([]string{"-version", "--version"}, name):
		name = "version"
	case name == completeCommand:
		return e.code(complete(e, args[1:]))
	}
	c, ok := findCommand(name)
	if !ok {
		return e.code(e.noCommand(name))
	}
	i := invoke(e, c)
	err := i.parse(args[1:])
	if errors.Is(err, flag.ErrHelp) {
		i.writeHelp(e.stdout)
		return 0
	}
	if err == nil {
		err = i.run()
	}
	return e.code(err)
}

// code reports an error, if it is not explained yet, and returns the exit code for it.
func (e *environment) code(err error) int {
	switch {
	case err == nil:
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
