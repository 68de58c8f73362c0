package upstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Pool is where a Client gets sessions; *pool.Pool satisfies it. Resources must
// be the *Session values that Driver.Open made.
type Pool interface {
	Acquire(ctx context.Context, by pool.Ask) (pool.Grant, error)
	Release(*pool.Session)
	Discard(*pool.Session)
	Recover(*pool.Session)
}

// Call describes a request to Client.
type Call struct {
	Name       string           // for traces and metrics: one of a few constants
	App        *apps.Stripe     // on whose behalf; nil: nobody's, and nothing is counted
	From       uint64           // a number for the connection that it came over: see pool.Ask; 0: unknown
	Work       uint64           // one number for one kind of work, whose times are remembered; see apps.Stripe.Needs
	Method     *protocol.Method // of the calls made through Any
	Class      pool.Class       // its priority in the queue for a session
	Effects    yql.Effects      // of its statements; Reads in an open transaction: also those before only read
	Idempotent bool             // it may be sent again although a first try may have run
	Patient    bool             // while App has as many sessions as it may, it waits for one
	Passed     bool             // whoever makes it through Any has passed hop.Hold
	Progress   *Progress        // how far it has come; nil: nobody looks
	Ahead      *Ahead           // its first attempt; nil: it has not begun
}

// tries are those of its first attempt, if that has begun, or new ones.
func (c *Call) tries() *tries {
	if c.Ahead != nil {
		return &c.Ahead.tries
	}
	return &tries{progress: c.Progress}
}

// Client runs requests on sessions of a pool. It is safe for concurrent use.
type Client struct {
	d      *Driver
	pool   Pool
	budget *budget
}

// NewClient joins a driver and a pool. The burst of the retry budget is at least
// poolMax: when a node dies, every session on it may need one retry at once.
func NewClient(d *Driver, p Pool, retry RetryConfig, poolMax int) (*Client, error) {
	if err := retry.Validate(); err != nil {
		return nil, fmt.Errorf("retry: %w", err)
	}
	retry.Burst = max(retry.Burst, poolMax, 1)
	return &Client{d: d, pool: p, budget: newBudget(retry)}, nil
}

// Budget is how many retries could be sent at once now.
func (c *Client) Budget() float64 { return c.budget.left() }

// Burst is how many retries could be sent at once at most.
func (c *Client) Burst() int { return c.budget.config.Burst }

// Do runs f on a session: it acquires one, calls f, and lets the session go,
// back to the pool if it is clean. When f fails with an *Error, f may be called
// again on another session: as its verdict and c.Idempotent allow, after a
// pause, within ctx's deadline and the budget of the process. The calls that f
// makes on the session are judged and reported one by one.
//
// f must not keep the session, must use the ctx it is given, and must be able
// to run again from the start; it returns Final(err) once that is impossible.
//
// The error is f's last one; a *pool.WaitError, *pool.ShedError, pool.ErrQueueFull
// or pool.ErrClosed when no session was to be had; an *apps.Refusal; an *Error.
func (c *Client) Do(ctx context.Context, call Call, f func(ctx context.Context, s *Session) error) (Report, error) {
	t := call.tries()
	err := c.retry(ctx, call, t, func() error {
		held, err := c.acquire(ctx, call, t)
		call.Ahead = nil
		if err != nil {
			return err
		}
		defer held.finish()
		held.s.effects = call.Effects
		err = held.run(ctx, t, f)
		held.remember(ctx, err)
		return err
	})
	return t.report, err
}

// BeginTx acquires a session and keeps it for the caller, who must end it with
// Release. begin, if not nil, runs on it first and is retried like the f of Do;
// the session on which it succeeds is the one that is kept.
func (c *Client) BeginTx(ctx context.Context, call Call, begin func(ctx context.Context, s *Session) error) (*TxSession, Report, error) {
	t := call.tries()
	var leased *TxSession
	err := c.retry(ctx, call, t, func() error {
		held, err := c.acquire(ctx, call, t)
		call.Ahead = nil
		if err != nil {
			return err
		}
		if begin != nil {
			if err := held.run(ctx, t, begin); err != nil {
				held.finish()
				return err
			}
		}
		note := held.note
		note.Transaction = true
		held.session.Note(&note)
		leased = &TxSession{c: c, held: held}
		return nil
	})
	return leased, t.report, err
}

// Any makes a call that is bound to no session on a node that routing picks. f
// uses conn for one unary call of call.Method, and returns transport errors
// as they are and YDB's through Check or CheckOperation. Retries are those of Do. While an operator has
// paused calls it waits, unless call.Passed; the error is a *hop.PausedError if ctx ends before they are resumed.
func (c *Client) Any(ctx context.Context, call Call, f func(ctx context.Context, conn grpc.ClientConnInterface) error) (Report, error) {
	t := tries{progress: call.Progress}
	err := c.retry(ctx, call, &t, func() error {
		if !call.Passed {
			if c.d.deps.Hold.On() {
				t.at(hop.Paused, 0)
			}
			leave, err := c.d.deps.Hold.Pass(ctx)
			if err != nil {
				return err
			}
			defer leave()
		}
		h, err := c.d.start(ctx, target{method: call.Method, weight: weight{kind: call.Method.Kind}, tries: &t, app: call.App})
		if err != nil {
			return err
		}
		var trailer metadata.MD
		err = panics.Call("a call to a node", func() error {
			return f(h.ctx, &callConn{cc: h.conn.cc, options: []grpc.CallOption{grpc.Peer(&h.peer), &h.headers, grpc.Trailer(&trailer)}})
		})
		h.price(trailer)
		if _, ok := errors.AsType[*answer](err); ok || err == nil {
			h.arrived()
		}
		if e := h.end(err); e != nil {
			return e
		}
		return nil
	})
	return t.report, err
}

// retry calls attempt until it succeeds, or must not or cannot be repeated.
func (c *Client) retry(ctx context.Context, call Call, t *tries, attempt func() error) error {
	c.budget.calls.Add(1)
	if t.report.Attempts == 0 {
		t.begin()
	}
	defer c.d.tel.asked(call.Name, t, t.began)
	var p pauses
	for {
		err := attempt()
		if err == nil {
			return nil
		}
		kind, free, ok := c.again(ctx, call, err)
		if !ok {
			return err
		}
		pause := p.next(kind)
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= pause {
			return err // it would only be late
		}
		if !free {
			if !c.budget.take() {
				c.d.tel.retries.Add(ctx, 1, retryDenied)
				return err
			}
			c.d.tel.retries.Add(ctx, 1, retrySent)
		}
		t.at(hop.InBackoff, 0)
		if pause > 0 && !awake.Sleep(ctx, pause) {
			return err
		}
		if e, ok := errors.AsType[*Error](err); ok && e.Verdict.Unknown {
			// Whatever comes of the next attempt, this one may have been kept.
			t.report.Unsure = true
		}
		t.next(pause)
	}
}

// again tells whether a failed attempt may be repeated, and whether that costs
// nothing: nothing was sent because there was no node to send to.
func (c *Client) again(ctx context.Context, call Call, err error) (kind ydbstatus.Backoff, free, ok bool) {
	if over(ctx) || isFinal(err) || errors.Is(err, ErrKilled) {
		return 0, false, false
	}
	if errors.Is(err, pool.ErrNoNode) {
		return ydbstatus.BackoffFast, true, true
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return 0, false, false
	}
	switch e.Verdict.Retry {
	case ydbstatus.RetryAlways:
		return e.Verdict.Backoff, e.unrouted, true
	case ydbstatus.RetryIdempotent:
		return e.Verdict.Backoff, e.unrouted, call.Idempotent
	}
	return 0, false, false
}

// acquire takes a session from the pool, and notes its time.
func (c *Client) acquire(ctx context.Context, call Call, t *tries) (*held, error) {
	var start time.Time
	var by pool.Ask
	switch a := call.Ahead; {
	case a != nil && a.held != nil:
		return a.held, nil
	case a != nil && a.err != nil:
		return nil, a.err
	case a != nil && a.wait != nil:
		g, err := a.wait.over(ctx)
		return c.answered(ctx, call, t, a.start, g, err)
	case a != nil && a.asked:
		start, by = a.start, a.by
	default:
		if err := call.allowed(ctx); err != nil {
			return nil, err
		}
		start = time.Now()
		by = call.ask(ctx, start)
	}
	t.at(hop.InQueue, 0)
	g, err := c.pool.Acquire(ctx, by)
	return c.answered(ctx, call, t, start, g, err)
}

// answered notes what the pool said to one who asked at start. It returns the session, or err.
func (c *Client) answered(ctx context.Context, call Call, t *tries, start time.Time, g pool.Grant, err error) (*held, error) {
	took := time.Since(start)
	call.errand().Answered(g.Waited, err)
	t.report.Acquire += took
	c.d.tel.acquired(took, err)
	round := t.round()
	round.Start, round.Acquire, round.Queue = start, took, g.Waited
	if err != nil {
		if w, ok := errors.AsType[*pool.WaitError](err); ok {
			t.report.Queue += w.Waited
			round.Queue = w.Waited
		}
		round.Refused = hop.Refused(err).String()
		return nil, err
	}
	t.report.Queue += g.Waited
	t.report.Created = t.report.Created || g.Created
	s, ok := g.Resource().(*Session)
	if !ok {
		panic("upstream: the pool holds a resource that Driver.Open did not make")
	}
	round.Node, round.Created, round.Opening, round.Open = g.Node(), g.Created, s.opening, s.open
	h := &held{c: c, session: g.Session, s: s, errand: call.errand()}
	s.app = call.App
	h.note = pool.Hold{Since: start.Add(took), Trace: trace.SpanContextFromContext(ctx).TraceID(), App: call.App.Name()}
	g.Note(&h.note)
	return h, nil
}

// allowed counts the session that the app asks for. The error says that it has as many as it
// may; otherwise Answered of its errand must be told what came of it.
func (c *Call) allowed(ctx context.Context) error {
	switch {
	case c.App == nil:
		return nil
	case c.Patient:
		return c.App.Await(ctx, uint8(c.Class))
	default:
		return c.App.Ask(uint8(c.Class))
	}
}

// ask is what the pool is asked for.
func (c *Call) ask(ctx context.Context, now time.Time) pool.Ask {
	left := time.Duration(0)
	if end, ok := ctx.Deadline(); ok {
		left = end.Sub(now)
	}
	by := c.errand().Ask(left)
	c.errand().Complete(&by)
	by.From = c.From
	return by
}

func (c *Call) errand() hop.Errand { return hop.Errand{App: c.App, Class: c.Class, Work: c.Work} }

// held is a session between acquire and finish.
type held struct {
	c       *Client
	session *pool.Session
	s       *Session
	errand  hop.Errand
	note    pool.Hold // as the pool has it
}

// remember keeps how long the work took that ended with err. What ran out of time
// would have taken longer; other failures say nothing.
func (h *held) remember(ctx context.Context, err error) {
	if err == nil || over(ctx) && errors.Is(ended(ctx), context.DeadlineExceeded) {
		h.errand.Took(time.Since(h.note.Since))
	}
}

// run calls f on the session as one attempt.
func (h *held) run(ctx context.Context, t *tries, f func(context.Context, *Session) error) (err error) {
	h.s.tries = t
	defer func() {
		if v := recover(); v != nil {
			h.s.spoiled, err = true, panics.Caught("work on a session", v)
		}
		h.s.tries, h.s.effects, h.s.ahead = nil, yql.Whole, nil
	}()
	err = f(ctx, h.s)
	if err != nil && h.s.tx != "" && !h.s.busy && !h.s.spoiled && !over(ctx) {
		// One call saves deleting the session and opening another.
		if lost := h.s.Rollback(ctx); lost != nil {
			h.s.spoiled = true
		}
	}
	return err
}

// finish lets the session go: back to the pool if the next caller can use it.
func (h *held) finish() {
	defer h.errand.Done()
	h.c.d.tel.use.Add(time.Since(h.note.Since))
	if h.s.stream != nil {
		h.s.stream.Close() // f left it half-read
	}
	h.session.Note(nil)
	switch {
	case h.s.clean():
		h.c.pool.Release(h.session)
	case h.s.recoverable():
		h.c.pool.Recover(h.session)
	default:
		h.c.pool.Discard(h.session)
	}
}

// TxSession is a session held for an interactive transaction. It is used by one
// goroutine at a time.
type TxSession struct {
	c    *Client
	held *held
}

// Session is the session itself.
func (l *TxSession) Session() *Session { return l.held.s }

// Valid reports whether the session still lives. It may turn false at any time;
// then the next call fails, and what was open is rolled back.
func (l *TxSession) Valid() bool { return l.held.session.Valid() }

// Run calls f on the session, once: a transaction that failed half-way
// cannot be repeated from here. Its calls are judged and reported like those of Do.
func (l *TxSession) Run(ctx context.Context, call Call, f func(ctx context.Context, s *Session) error) (_ Report, err error) {
	t := call.tries()
	if t.report.Attempts == 0 {
		t.begin()
	}
	l.c.budget.calls.Add(1)
	l.held.s.tries, l.held.s.effects = t, call.Effects
	defer func() {
		if v := recover(); v != nil {
			l.held.s.spoiled, err = true, panics.Caught("work on a session", v)
		}
		l.held.s.tries, l.held.s.effects, l.held.s.ahead = nil, yql.Whole, nil
	}()
	err = f(ctx, l.held.s)
	return t.report, err
}

// Release lets the session go: to the pool if keep is true and nothing is open
// on it, else it is deleted, which rolls back. It is called once.
func (l *TxSession) Release(keep bool) {
	if !keep {
		l.held.s.spoiled = true
	}
	l.held.finish()
}
