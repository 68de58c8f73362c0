package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// drain stops a sidecar, or makes it not ready.
func drain(i *invocation) func() error {
	o := i.stopFlags()
	i.set.BoolVar(&o.lameDuck, "lameduck", false,
		"Make the sidecar not ready and end optional work; it serves on, and the command returns at once")
	i.set.BoolVar(&o.off, "off", false, "Make the sidecar ready again after -lameduck")
	i.set.BoolVar(&o.wait, "wait", false, "Return when the sidecar has stopped, and show meanwhile what it waits for")
	return func() error { return i.stop(o) }
}

// shutdown stops a sidecar and waits until it has stopped.
func shutdown(i *invocation) func() error {
	o := i.stopFlags()
	o.wait = true
	i.set.BoolVar(&o.wait, "wait", true, "Return when the sidecar has stopped; -wait=false returns at once")
	return func() error { return i.stop(o) }
}

// stopping is how a sidecar is to stop.
type stopping struct {
	lameDuck, off, wait, yes bool
	grace                    *time.Duration
}

func (i *invocation) stopFlags() *stopping {
	o := &stopping{grace: i.duration("timeout", 0, "Cut off what is still open after this `time`, in place of drain.grace")}
	i.set.BoolVar(&o.yes, "yes", false, "Stop the sidecar without asking at a terminal")
	return o
}

func (i *invocation) stop(o *stopping) error {
	query := url.Values{"mode": {"graceful"}}
	switch {
	case (o.lameDuck || o.off) && (o.lameDuck && o.off || o.wait || *o.grace != 0):
		return i.usageFault("-lameduck and -off each stand alone: leave out the other, -wait and -timeout")
	case o.lameDuck:
		query.Set("mode", "lameduck")
	case o.off:
		query.Set("mode", "off")
	case *o.grace != 0:
		query.Set("timeout", o.grace.String())
	}
	op, err := i.operate()
	if err != nil {
		return err
	}
	ctx, cancel := i.interruptible()
	defer cancel()
	if !o.lameDuck && !o.off && !o.yes && i.asks {
		if err := i.confirm(ctx, op); err != nil {
			return err
		}
	}
	text, err := op.ask(ctx, http.MethodPost, "/drain", query)
	if err != nil {
		return err
	}
	if o.wait {
		return op.watch(ctx, i.stdout, text)
	}
	_, line, err := progressLine(text)
	if err == nil {
		_, err = fmt.Fprintln(i.stdout, line)
	}
	return err
}

// confirm asks whether the sidecar is to stop. No answer but y or yes means no.
func (i *invocation) confirm(ctx context.Context, op *operator) error {
	if _, err := op.ask(ctx, http.MethodGet, "/drain", nil); err != nil {
		return err // without a sidecar there is nothing to ask
	}
	if _, err := fmt.Fprintf(
		i.stdout, "This stops the sidecar at %s. Apps that use it get errors until it runs again. Go on? [y/N] ", op.at,
	); err != nil {
		return err
	}
	answers := make(chan string, 1)
	go func() {
		defer close(answers)
		_ = panics.Call("reading an answer", func() error { // without an answer nothing is stopped
			line, _ := bufio.NewReader(i.stdin).ReadString('\n') // an error leaves what there is of the line
			answers <- strings.ToLower(strings.TrimSpace(line))
			return nil
		})
	}()
	select {
	case answer := <-answers:
		if answer == "y" || answer == "yes" {
			return nil
		}
		return errors.New("not stopped: the answer was not yes")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// watch says how the end goes on, until nobody answers any more.
func (op *operator) watch(ctx context.Context, to io.Writer, text []byte) error {
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	var said time.Time
	for last := ""; ; {
		stage, line, err := progressLine(text)
		if err != nil {
			return err
		}
		if stage != last || time.Since(said) >= watchPause {
			fmt.Fprintln(to, line)
			last, said = stage, time.Now()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if text, err = op.ask(ctx, http.MethodGet, "/drain", nil); isNobody(err) {
			_, err := fmt.Fprintln(to, "stopped")
			return err
		} else if err != nil {
			return err
		}
	}
}

// progressLine writes what GET /drain shows for people.
func progressLine(text []byte) (stage, line string, err error) {
	var now struct {
		Stage    string `json:"stage"`
		WaitsFor string `json:"waits_for"`
		LeftMS   int64  `json:"left_ms"`
	}
	if err := read(text, &now); err != nil {
		return "", "", err
	}
	line = now.Stage
	if now.WaitsFor != "" {
		line += "; waits for " + now.WaitsFor
	}
	if now.LeftMS > 0 {
		line += fmt.Sprintf("; at most %v", (time.Duration(now.LeftMS) * time.Millisecond).Round(time.Second))
	}
	return now.Stage, line, nil
}
