package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// token is one answer of a provider of credentials.
type token struct {
	value   string
	refresh time.Time // when to ask for the next one; zero: never
	expires time.Time // when it stops working; zero: never
}

// provider fetches a token. Its errors hold no secret.
type provider func(ctx context.Context) (token, error)

// ticketError says that there is no ticket, and why.
type ticketError struct {
	err     error
	refused bool // the provider said no; asking again soon is no use
}

func (e *ticketError) Error() string { return "get credentials: " + e.err.Error() }
func (e *ticketError) Unwrap() error { return e.err }

// errRefused is wrapped by a provider whose answer was no: a wrong password, a revoked key.
var errRefused = errors.New("refused")

const (
	fetchTimeout  = 10 * time.Second       // for one question to a provider
	fetchPauseMin = 100 * time.Millisecond // after a first failure; doubles
	fetchPauseMax = 30 * time.Second
	refetchPause  = 5 * time.Second // least age of a token that is fetched again because a node refused it
)

// ticket is a token in the form that calls need it in. Immutable.
type ticket struct {
	token
	made time.Time
	call metadata.MD // headers of a call
	open metadata.MD // headers of CreateSession

	sent atomic.Pointer[h2.Fields] // call, as they are sent over h2; made when they are needed
}

// tickets holds the current ticket. run is the only goroutine that fetches and
// the only writer of current; calls load a pointer.
type tickets struct {
	fetch   provider // nil: the first ticket is for ever
	headers func(value string) (call, open metadata.MD)
	log     *slog.Logger
	kick    chan struct{} // capacity 1: run should look again

	current atomic.Pointer[ticket]
	refused atomic.Pointer[ticket] // the ticket that a node refused last
	denials atomic.Uint64          // calls of which a node did not accept the ticket

	mu      sync.Mutex // guards all below
	changed chan struct{}
	failure *ticketError // of the last fetch; nil after a good one
}

func newTickets(fetch provider, headers func(string) (call, open metadata.MD), log *slog.Logger) *tickets {
	t := &tickets{fetch: fetch, headers: headers, log: log, kick: make(chan struct{}, 1), changed: make(chan struct{})}
	if fetch == nil {
		t.store(token{})
	}
	return t
}

func (t *tickets) store(k token) {
	call, open := t.headers(k.value)
	t.current.Store(&ticket{token: k, made: time.Now(), call: call, open: open})
}

// fields are the headers of a call as they are sent over h2.
func (k *ticket) fields() *h2.Fields {
	if f := k.sent.Load(); f != nil {
		return f
	}
	var pairs []string
	for name, values := range k.call {
		for _, value := range values {
			pairs = append(pairs, name, value)
		}
	}
	f := h2.NewFields(pairs...)
	k.sent.Store(f)
	return f
}

// outgoing returns ctx with the headers of a call.
func (t *tickets) outgoing(ctx context.Context) (context.Context, error) {
	k, err := t.get(ctx)
	if err != nil {
		return nil, err
	}
	return metadata.NewOutgoingContext(ctx, k.call), nil
}

// working returns the current ticket if it has not expired, else nil.
func (t *tickets) working() *ticket {
	if k := t.current.Load(); k != nil && (k.expires.IsZero() || time.Now().Before(k.expires)) {
		return k
	}
	return nil
}

// lasts reports whether there is a ticket that works for some time, so that get does not wait.
func (t *tickets) lasts() bool {
	k := t.current.Load()
	return k != nil && (k.expires.IsZero() || time.Until(k.expires) > time.Second)
}

// get returns a ticket that works now. It waits for the first one, or for the
// next one if the last has expired, unless the last try to get one failed.
func (t *tickets) get(ctx context.Context) (*ticket, error) {
	for {
		if k := t.working(); k != nil {
			return k, nil
		}
		t.mu.Lock()
		failure, changed := t.failure, t.changed
		t.mu.Unlock()
		if k := t.working(); k != nil { // it came meanwhile, before changed was there
			return k, nil
		}
		if failure != nil {
			return nil, failure
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for credentials: %w", ctx.Err())
		}
	}
}

// reject hears that a node refused the current ticket: a new one may work.
func (t *tickets) reject() {
	t.denials.Add(1)
	k := t.current.Load()
	if t.fetch == nil || k == nil || time.Since(k.made) < refetchPause {
		return
	}
	t.refused.Store(k)
	select {
	case t.kick <- struct{}{}:
	default: // run has yet to come to the last one
	}
}

// table: the driver's own sessions are of the query service.
func (t *tickets) table() bool { return false }

// run fetches tickets ahead of their expiry until ctx ends.
func (t *tickets) run(ctx context.Context) {
	if t.fetch == nil {
		<-ctx.Done()
		return
	}
	pause := fetchPauseMin
	for {
		wait, forever := time.Duration(0), false
		if k := t.current.Load(); k != nil && t.refused.Load() != k {
			wait, forever = time.Until(k.refresh), k.refresh.IsZero()
		}
		if wait <= 0 && !forever {
			err := t.renew(ctx)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				pause = fetchPauseMin
				continue
			}
			wait = pause
			pause = min(2*pause, fetchPauseMax)
			if !awake.Sleep(ctx, wait) {
				return
			}
			continue
		}
		timer := time.NewTimer(wait)
		due := timer.C
		if forever {
			due = nil
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-t.kick:
		case <-due:
		}
		timer.Stop()
	}
}

// renew asks the provider once and tells those who wait.
func (t *tickets) renew(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	k, err := t.fetch(ask)
	if err == nil {
		t.store(k)
	} else if ctx.Err() == nil {
		t.log.Warn("cannot get credentials", "err", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failure = nil
	if err != nil {
		t.failure = &ticketError{err: err, refused: errors.Is(err, errRefused)}
	}
	close(t.changed)
	t.changed = make(chan struct{})
	return err
}
