package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/app"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

const (
	// hurryLimit is how long an end at once may take.
	hurryLimit = time.Second
	// sameSignal is how long a second signal may come after the first and mean the same:
	// some programs that stop a process signal it and its group.
	sameSignal = time.Second
)

// serve runs the sidecar.
func serve(i *invocation) func() error {
	takeOver := i.set.Bool("takeover", false, "Replace the sidecar that runs with the same takeover.socket, without rejecting a call; "+
		"if none runs, start as usual")
	return func() error { return i.serve(*takeOver) }
}

// serve runs the sidecar until a signal or an order ends it.
func (i *invocation) serve(takeOver bool) error {
	// The reader of stdout or stderr may end. Without this, Go's runtime ends the process
	// with the next line.
	signal.Ignore(syscall.SIGPIPE)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	origin := app.Origin{File: i.file, Environ: i.environ, Assignments: i.assignments}
	c, settings, err := origin.Load()
	if err != nil {
		return err
	}
	tuneMemory(i.environ)
	begin := app.New
	if takeOver {
		begin = app.Replace
	}
	sidecar, err := begin(c, settings, programVersion(), i.stderr)
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
		i.heed(over, stop, now)
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
	ready := app.NewLines(i.stdout) // stdout may have no reader either
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
