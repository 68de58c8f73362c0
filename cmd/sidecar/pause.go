package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"
)

// pause has calls wait, and with -wait returns when nothing is under way at any node.
func pause(e *environment, args []string) error {
	var o options
	set := flags(e, "pause", &o)
	wait := set.Bool("wait", false, "return when nothing is under way at any node, and say meanwhile what is")
	limit := set.Duration("timeout", time.Minute, "with -wait: give up after this `time`; calls stay paused")
	if err := parse(set, args); err != nil {
		return err
	}
	op, err := operate(e, o)
	if err != nil {
		return err
	}
	ctx, cancel := e.interruptible()
	defer cancel()
	text, err := op.ask(ctx, http.MethodPost, "/pool/pause", nil)
	if err != nil {
		return err
	}
	if !*wait {
		return sayPool(e.stdout, text)
	}
	limited, end := context.WithTimeout(ctx, *limit)
	defer end()
	return op.untilQuiet(ctx, limited, e, *limit)
}

// untilQuiet returns when nothing is under way at any node, or an error when limited ends.
func (op *operator) untilQuiet(ctx, limited context.Context, e *environment, limit time.Duration) error {
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	var said time.Time
	for {
		text, err := op.ask(ctx, http.MethodGet, "/state/pause", nil)
		if err != nil {
			return err
		}
		var now struct {
			Paused   bool   `json:"paused"`
			Quiet    bool   `json:"quiet"`
			WaitsFor string `json:"waits_for"`
		}
		if err := read(text, &now); err != nil {
			return err
		}
		waitsFor := cmp.Or(now.WaitsFor, "nothing")
		switch {
		case now.Quiet:
			_, err := fmt.Fprintln(e.stdout, "paused; nothing is under way at any node")
			return err
		case !now.Paused:
			return fmt.Errorf("calls were resumed meanwhile; under way at nodes: %s", waitsFor)
		case limited.Err() != nil && ctx.Err() == nil:
			return fmt.Errorf("paused, but still under way at nodes after %v: %s; sidecar calls and sidecar sessions list them",
				limit, waitsFor)
		case time.Since(said) >= watchPause:
			fmt.Fprintf(e.stdout, "paused; waits for %s\n", waitsFor)
			said = time.Now()
		}
		select {
		case <-tick.C:
		case <-limited.Done():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
