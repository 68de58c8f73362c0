// Package lifecycle runs named parts and ends them in phases.
//
// A Group owns the goroutines of its parts and waits for all of them. What
// always holds:
//
//   - Parts run until every phase is over: a phase may rely on all of them.
//   - Phases run one after another, in the order they were added, whatever
//     becomes of the earlier ones, each within its limit.
//   - The end begins when the context of Run ends or when any part returns, and
//     never twice.
//   - A part that panics is a part that failed, and so is a phase.
//   - Run returns only when all parts have returned, or names those that do not.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// stopLimit is how long parts may take to return once their context ended.
const stopLimit = 2 * time.Second

// ErrHurried is among the errors of Run when hurry ended before all phases did.
var ErrHurried = errors.New("stopped at once, before the end was orderly")

// Group is built by one goroutine, and then run once.
type Group struct {
	log    *slog.Logger
	parts  []part
	phases []phase
}

type part struct {
	name string
	run  func(context.Context) error
}

type phase struct {
	name  string
	limit time.Duration
	end   func(context.Context) error
}

// New returns an empty group.
func New(log *slog.Logger) *Group { return &Group{log: log} }

// Part adds a part. run is to last until its context ends or until a phase made
// it superfluous; returning earlier, or with an error, ends the whole group.
func (g *Group) Part(name string, run func(context.Context) error) {
	g.parts = append(g.parts, part{name, run})
}

// Phase adds a phase. The context of end ends after limit (0: no limit) and when
// there is hurry; end must then return soon.
func (g *Group) Phase(name string, limit time.Duration, end func(context.Context) error) {
	g.phases = append(g.phases, phase{name, limit, end})
}

// ended is how a part returned.
type ended struct {
	name string
	err  error
}

// Run starts all parts, waits until ctx ends or a part returns, then runs the
// phases and stops the parts. When hurry ends, the phases' contexts end as
// well. It returns what went wrong, joined: parts that failed or returned too
// early, phases that failed, parts that did not stop, and ErrHurried.
func (g *Group) Run(ctx, hurry context.Context) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	returned := make(chan ended, len(g.parts))
	running := make([]string, len(g.parts))
	for i, p := range g.parts {
		running[i] = p.name
		go func() { returned <- ended{p.name, panics.Call(p.name, func() error { return p.run(life) })} }()
	}
	gone := func(e ended) {
		running = slices.DeleteFunc(running, func(name string) bool { return name == e.name })
	}

	var errs []error
	select {
	case <-ctx.Done():
		g.log.Info("stopping", "cause", context.Cause(ctx))
	case e := <-returned:
		gone(e)
		if e.err == nil {
			e.err = errors.New("ended by itself")
		}
		errs = append(errs, fmt.Errorf("%s: %w", e.name, e.err))
		g.log.Error("stopping, because a part ended", "part", e.name, "err", e.err)
	}
	errs = append(errs, g.end(hurry)...)

	stop()
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	for len(running) > 0 {
		select {
		case e := <-returned:
			gone(e)
			if e.err != nil && !errors.Is(e.err, context.Canceled) {
				errs = append(errs, fmt.Errorf("%s: %w", e.name, e.err))
			}
		case <-limit.C:
			return errors.Join(append(errs, fmt.Errorf("did not stop within %v: %s", stopLimit, strings.Join(running, ", ")))...)
		}
	}
	return errors.Join(errs...)
}

// end runs the phases.
func (g *Group) end(hurry context.Context) (errs []error) {
	for _, p := range g.phases {
		began := time.Now()
		limited, cancel := hurry, context.CancelFunc(func() {})
		if p.limit > 0 {
			limited, cancel = context.WithTimeout(hurry, p.limit)
		}
		err := panics.Call(p.name, func() error { return p.end(limited) })
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
			g.log.Warn("stopping: a phase failed", "phase", p.name, "took", time.Since(began).String(), "err", err)
			continue
		}
		g.log.Info("stopping: a phase is over", "phase", p.name, "took", time.Since(began).String())
	}
	if hurry.Err() != nil {
		errs = append(errs, ErrHurried)
	}
	return errs
}
