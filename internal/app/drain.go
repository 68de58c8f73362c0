package app

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/lifecycle"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
)

// phase is the stage of a process, for every goroutine to read.
type phase struct {
	now atomic.Int32

	mu       sync.Mutex // guards changes of now, and all below
	since    time.Time
	deadline time.Time     // of the stage; zero: none
	cutAt    time.Time     // when drain.grace is over; zero before it began
	cause    string        // why it stops
	grace    time.Duration // in place of drain.grace; negative: that
	stop     context.CancelCauseFunc
	stopping chan struct{} // closed when the end begins
}

func (p *phase) get() stage { return stage(p.now.Load()) }

// begin makes the process serve; stop begins its end.
func (p *phase) begin(stop context.CancelCauseFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop, p.grace, p.stopping = stop, -1, make(chan struct{})
	p.setLocked(serving, 0)
}

// enter begins a stage of the end, which may last for limit; 0: no limit.
func (p *phase) enter(s stage, limit time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setLocked(s, limit)
}

func (p *phase) setLocked(s stage, limit time.Duration) {
	p.since, p.deadline = time.Now(), time.Time{}
	if limit > 0 {
		p.deadline = p.since.Add(limit)
	}
	p.now.Store(int32(s))
}

// left is the time until the deadline of the stage; 0 if it has none.
func (p *phase) left() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deadline.IsZero() {
		return 0
	}
	return max(0, time.Until(p.deadline))
}

// state is all of it, at one moment.
func (p *phase) state() snapshot.PhaseState {
	p.mu.Lock()
	out := snapshot.PhaseState{Stage: p.get(), Since: p.since, Cause: p.cause, Deadline: p.deadline}
	p.mu.Unlock()
	out.Left = p.left()
	return out
}

// What may be left to do when drain.grace is over, and by when at the latest after it,
// whatever clients and nodes do. Together with what calls take that were cut off, and
// what parts take to stop, it is less than the 5 s that operators are told.
const (
	clientsGone     = 2 * time.Second
	deletionsBegun  = 2250 * time.Millisecond // the last of them; each has pool.delete_timeout
	telemetryTold   = 4500 * time.Millisecond
	leastForNothing = 100 * time.Millisecond // for what is done at once when nobody stalls
)

// drainFor is how long the stage draining lasts at most.
func (p *phase) drainFor(grace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setLocked(draining, grace)
	p.cutAt = p.since.Add(grace)
}

// within is limit, or what is left until late after the end of drain.grace if that is less.
func (p *phase) within(limit, late time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cutAt.IsZero() {
		return limit
	}
	return max(leastForNothing, min(limit, time.Until(p.cutAt.Add(late))))
}

// letGo has clients that speak HTTP/1.1 close their connections after the
// answer, once the process drains: HTTP/2 has GOAWAY for that.
func (p *phase) letGo(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && p.get() >= draining {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// addPhases is the shutdown order of ARCHITECTURE.md. life ends with the cause
// of the end, unless a part that failed is that.
func (a *App) addPhases(life context.Context, group *lifecycle.Group, s *servers) {
	group.Part("drain progress", a.logProgress)
	group.Phase("not ready", 0, func(ctx context.Context) error {
		a.beginEnd(context.Cause(life))
		if a.restart.Replaced() {
			return a.handClientsOver(ctx)
		}
		select {
		case <-time.After(a.now().Drain.Delay):
		case <-ctx.Done():
		}
		return nil
	})
	group.Phase("finish calls and transactions", 0, func(ctx context.Context) error {
		grace := a.grace()
		a.phase.drainFor(grace)
		a.api.EndUnused(a.now().Drain.Idle)
		if a.wire != nil {
			a.wire.EndUnused(a.now().Drain.Idle)
		}
		ctx, cancel := context.WithTimeoutCause(ctx, grace, errGrace)
		defer cancel()
		return a.api.Drain(ctx)
	})
	// An idle client of gRPC that does not react to GOAWAY, because it hangs, is
	// closed by the server after 6 s: this is later, because that is no fault.
	const forClients = closeServers + 2*time.Second
	group.Phase("let clients go", 0, func(ctx context.Context) error {
		limit := forClients
		if s.detach != nil { // SDKs learn only now that they should go: what they have under way has the rest of drain.grace
			limit = max(limit, a.phase.left())
		}
		limit = a.phase.within(limit, clientsGone)
		a.phase.enter(lettingGo, limit)
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := s.letGo(ctx)
		a.restart.Finish(ctx)
		return err
	})
	group.Phase("delete sessions", 0, func(ctx context.Context) error {
		limit := a.phase.within(a.now().Pool.DeleteTimeout+time.Second, deletionsBegun)
		a.phase.enter(deleting, limit)
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		var callers chan error
		if a.wire != nil {
			callers = make(chan error, 1)
			go func() {
				callers <- panics.Call("the end of callers' pools", func() error { return a.wire.ClosePools(ctx) })
			}()
		}
		err := a.core.pool.Close(ctx)
		if callers != nil {
			err = errors.Join(err, <-callers)
		}
		return err
	})
}

var errGrace = errors.New("drain.grace is over")

func (a *App) beginEnd(cause error) {
	p := &a.phase
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cause = "a part failed"
	if cause != nil {
		p.cause = cause.Error()
	}
	p.setLocked(leaving, a.now().Drain.Delay)
	a.notReady()
	a.core.ways.Hold.Set(false)
	a.core.pool.Pause(false) // callers that wait are still served; see runOwn for the rest
	close(p.stopping)
}

// notReady tells probes and gRPC's health checks, and ends optional work.
func (a *App) notReady() {
	if !a.restart.Replaced() { // GOAWAY sends who watches it to the new process
		a.health.Shutdown()
	}
	a.quiet(true)
}

// quiet has the pools neither move sessions nor open them ahead of need.
func (a *App) quiet(on bool) {
	a.core.pool.Quiet(on)
	if a.wire != nil {
		a.wire.Quiet(on)
	}
}

func (a *App) grace() time.Duration {
	a.phase.mu.Lock()
	defer a.phase.mu.Unlock()
	if a.phase.grace >= 0 {
		return a.phase.grace
	}
	return a.now().Drain.Grace
}

// drainer is what operators may do to the process.
type drainer struct{ *App }

var _ admin.Process = drainer{}

// The refusals of drainer.
var (
	errStarting = errors.New("the sidecar is starting")
	errStopping = errors.New("the sidecar is stopping already, which cannot be taken back")
)

// LameDuck is idempotent.
func (d drainer) LameDuck(on bool) error {
	p := &d.phase
	p.mu.Lock()
	defer p.mu.Unlock()
	switch now := p.get(); {
	case now == starting:
		return errStarting
	case now > lameDuck && !on:
		return errStopping
	case now > lameDuck, on == (now == lameDuck):
		return nil
	case on:
		p.cause = "operator"
		p.setLocked(lameDuck, 0)
		d.notReady()
		d.log.Info("lame duck: not ready, but serving everything until it is taken back or SIGTERM comes")
	default:
		p.cause = ""
		p.setLocked(serving, 0)
		d.health.Resume()
		d.quiet(false)
		d.log.Info("no longer lame duck")
	}
	return nil
}

// Stop begins the end once; again it changes nothing.
func (d drainer) Stop(grace time.Duration) error {
	p := &d.phase
	p.mu.Lock()
	stop, stopping := p.stop, p.stopping
	if stop != nil && p.get() <= lameDuck {
		p.grace = grace
	}
	p.mu.Unlock()
	if stop == nil {
		return errStarting
	}
	stop(errOperator)
	<-stopping // soon: the first phase says so
	return nil
}

var errOperator = errors.New("asked by an operator")

// Progress says what the process does now and what it waits for.
func (d drainer) Progress() any { return d.views.Progress() }

// progressEvery is the time between two lines of the log while the process ends.
const progressEvery = 3 * time.Second

// logProgress says what the end waits for. It returns nil.
func (a *App) logProgress(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.phase.stopping:
	}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			now := a.views.Progress()
			a.log.Info("stopping: "+now.Stage, "waits_for", now.WaitsFor, "calls", now.Calls, "transactions", now.Transactions,
				"sessions", now.Sessions, "connections", now.Connections, "left", (time.Duration(now.LeftMS) * time.Millisecond).String())
		}
	}
}
