package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// pause makes calls wait, and with -wait returns when nothing is under way at any node.
func pause(i *invocation) func() error {
	wait := i.set.Bool("wait", false, "Return when nothing is under way at any node, and show meanwhile what is")
	limit := i.duration("timeout", time.Minute, "Give up after this `time` with -wait (1m); calls stay paused")
	return func() error { return i.pause(*wait, *limit) }
}

// pause makes calls wait. With wait it returns when nothing is under way at any node, or an error after limit.
func (i *invocation) pause(wait bool, limit time.Duration) error {
	op, err := i.operate()
	if err != nil {
		return err
	}
	ctx, cancel := i.interruptible()
	defer cancel()
	text, err := op.ask(ctx, http.MethodPost, "/pool/pause", nil)
	if err != nil {
		return err
	}
	if !wait {
		return sayPool(i.stdout, text)
	}
	limited, end := context.WithTimeout(ctx, limit)
	defer end()
	return op.untilQuiet(ctx, limited, i.stdout, limit)
}

// untilQuiet returns when nothing is under way at any node, or an error when limited ends.
func (op *operator) untilQuiet(ctx, limited context.Context, to io.Writer, limit time.Duration) error {
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
			_, err := fmt.Fprintln(to, "paused; nothing is under way at any node")
			return err
		case !now.Paused:
			return fmt.Errorf("calls were resumed meanwhile; under way at nodes: %s", waitsFor)
		case limited.Err() != nil && ctx.Err() == nil:
			return fmt.Errorf("paused, but still under way at nodes after %v: %s; sidecar calls and sidecar sessions list them",
				limit, waitsFor)
		case time.Since(said) >= watchPause:
			fmt.Fprintf(to, "paused; waits for %s\n", waitsFor)
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
