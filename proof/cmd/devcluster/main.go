// Command devcluster runs a YDB-wire-compatible cluster for development and
// tests: see docs/dev/devcluster.md. When it is ready it prints one line of JSON on
// stdout with the addresses; logs go to stderr. SIGTERM and SIGINT stop it in
// good order (exit code 0); it exits with 1 and one line when it cannot start
// or stop, and with 2 for a wrong command line.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	options, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "devcluster: %v\n", err)
		return exitUsage
	}
	log := options.logger(stderr)
	if err := serve(ctx, options, stdin, stdout, log); err != nil {
		log.Error("devcluster failed", "err", err)
		return exitFailed
	}
	return 0
}

// serve runs the cluster until ctx ends or, for a node under a supervisor,
// until the supervisor is gone.
func serve(ctx context.Context, o options, stdin io.Reader, stdout io.Writer, log *slog.Logger) (err error) {
	tracing, err := startTracing(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tracing.stop()) }()
	o.config.Tracer, o.config.Log = tracing.provider(), log

	if o.config.Supervised {
		var gone context.CancelFunc
		ctx, gone = context.WithCancel(ctx)
		defer gone()
		go func() { // ends with the process
			_, _ = io.Copy(io.Discard, stdin) // any end of the pipe is the supervisor's end
			gone()
		}()
	}
	cluster, err := o.start(ctx)
	if err != nil {
		return err
	}
	ready, err := cluster.Ready(ctx)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(ready)
	}
	if err != nil {
		return errors.Join(err, cluster.Close())
	}
	<-ctx.Done()
	log.Info("stopping")
	return cluster.Close()
}
