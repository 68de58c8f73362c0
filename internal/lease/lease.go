// Package lease ties an unguessable token to something that one caller holds
// over several calls: the session of an interactive transaction.
//
// It owns the table of leases and their clocks, and knows nothing of what is
// leased. What always holds:
//
//   - A lease is used by one call at a time: whoever has an ActiveStep is alone.
//   - A numbered step (Step.Seq) runs at most once. A repeat gets the stored
//     outcome of the last step or is refused; a repeat that comes while the first
//     is still running waits for it.
//   - Every value granted is handed to the end function exactly once, outside all
//     locks, and never while an ActiveStep is open: at the end of the last step, after
//     Config.Idle (or what EndUnused says) without a call, after Config.Max
//     whatever happens, or at Close.
//   - An ended lease is remembered for Config.Idle, so that the repeat of its last
//     call (a commit whose answer got lost) is answered too. Open and remembered
//     leases are bounded by Config.Limit each.
package lease

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Config bounds leases.
type Config struct {
	// Time without a call after which an interactive transaction ends
	Idle time.Duration `yaml:"idle"`
	// Age at which an interactive transaction ends, even while it is in use
	Max   time.Duration `yaml:"max"`
	Limit int           `yaml:"limit"` // Largest number of open interactive transactions
	// Largest size in bytes of the kept outcome of the last step, which answers its repeat. 0: none is
	// kept
	Replay int `yaml:"replay"`
}

// Default returns the settings of a fresh installation.
func Default() Config {
	return Config{Idle: 30 * time.Second, Max: 5 * time.Minute, Limit: 1000, Replay: 16 << 10}
}

// Doubt returns what is odd about a valid configuration, as a sentence without a full stop; "": nothing is.
func (c Config) Doubt() string {
	if c.Idle <= c.Max {
		return ""
	}
	return fmt.Sprintf("%v has no effect: tx.max = %v ends every transaction before it is idle for that long", c.Idle, c.Max)
}

// Validate names every setting that cannot work.
func (c Config) Validate() error {
	var errs []error
	if c.Idle <= 0 {
		errs = append(errs, config.Faultf("idle", " = %v; must be > 0", c.Idle))
	}
	if c.Max <= 0 {
		errs = append(errs, config.Faultf("max", " = %v; must be > 0", c.Max))
	}
	if c.Limit < 1 {
		errs = append(errs, config.Faultf("limit", " = %d; must be >= 1", c.Limit))
	}
	if c.Replay < 0 {
		errs = append(errs, config.Faultf("replay", " = %d; must be >= 0", c.Replay))
	}
	return errors.Join(errs...)
}

// The refusals of Open and Take. None of them has changed anything.
var (
	ErrLimit     = errors.New("lease: as many leases are open as allowed")
	ErrDraining  = errors.New("lease: draining; no new leases")
	ErrMalformed = errors.New("lease: not a token")
	ErrForeign   = errors.New("lease: the token is of another process, or forgotten")
	ErrBusy      = errors.New("lease: another call is using it")
	ErrRepeated  = errors.New("lease: this step was run, and its outcome is not kept")
	ErrOrder     = errors.New("lease: the step is out of order")
)

// EndedError refuses a step of a lease that is over.
type EndedError struct {
	Why Reason
	Seq uint64 // the last step that was run
}

func (e *EndedError) Error() string { return "lease: ended: " + e.Why.String() }

// OrderError is an ErrOrder that says what was expected.
type OrderError struct {
	Seq  uint64 // the step that was asked for
	Next uint64 // the step that may come next
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("%v: got %d, the next one is %d", ErrOrder, e.Seq, e.Next)
}

// Is makes OrderError an ErrOrder.
func (e *OrderError) Is(target error) bool { return target == ErrOrder }

// Reason says why a lease is over.
type Reason uint8

// The reasons.
const (
	Open      Reason = iota // it is not
	Finished                // its holder finished it successfully (committed)
	Abandoned               // its holder gave it up (rolled back)
	Failed                  // a step failed
	Idle                    // not used for Config.Idle
	Unused                  // not used for the time of EndUnused
	Expired                 // older than Config.Max
	Closed                  // the table was closed
	Killed                  // EndIdle ended it
)

func (r Reason) String() string {
	return [...]string{"open", "finished", "abandoned", "failed", "idle", "unused", "expired", "closed", "killed"}[r%9]
}

// Step is one call on a lease.
type Step struct {
	// Seq numbers the steps of a lease from 1; 0 means that the caller does not
	// number this one: it takes the next number, and a repeat would be a new step.
	Seq uint64
	// Print is a fingerprint of what the step does. A repeat must have the same one.
	Print uint64
	// Final marks a step that ends the lease and has no number (commit,
	// rollback): it waits for a running step, and its repeat gets its outcome.
	Final bool
}

// repeats tells whether s is the same call as last, sent again.
func (s Step) repeats(last Step) bool {
	return s == last && (s.Seq > 0 || s.Final)
}

// Table holds the leases of values V with outcomes O. Create it with New, and
// let one goroutine Run it.
type Table[V, O any] struct {
	cfg      Config
	end      func(V, Reason)
	instance string

	wake chan struct{} // capacity 1: for Run, leases may end earlier than it thinks

	mu       sync.Mutex // guards what follows, and every lease in it
	leases   map[string]*lease[V, O]
	open     int            // leases in the map that have not ended
	ended    []*lease[V, O] // in order of end, oldest first
	draining bool           // no Open
	closed   bool           // no Take either
	unused   unused
	empty    chan struct{}  // closed when draining and no lease is open
	ending   sync.WaitGroup // calls of end; Add only under mu, before closed or by an ActiveStep that is still open
}

// unused is the rule of EndUnused; the zero value is none.
type unused struct {
	since time.Time // it was made; what was before does not count
	after time.Duration
}

type lease[V, O any] struct {
	token   string
	value   V
	granted time.Time
	touched time.Time     // when the last step ended; for an ended lease, when that was
	why     Reason        // Open until it ends
	busy    chan struct{} // non-nil while an ActiveStep is open; closed when it ends
	running Step          // step of the open ActiveStep
	last    Step          // the last step that was run
	seq     uint64        // its number, also when the caller gave none
	outcome O
	kept    bool // outcome holds the outcome of last
}

// New returns a table whose values are given back by end, which may block (the
// table never calls it under a lock) but must end by itself. cfg must be valid.
func New[V, O any](cfg Config, end func(V, Reason)) *Table[V, O] {
	var id [instanceBytes]byte
	rand.Read(id[:])
	return &Table[V, O]{
		cfg: cfg, end: end, instance: string(id[:]),
		leases: make(map[string]*lease[V, O]), empty: make(chan struct{}), wake: make(chan struct{}, 1),
	}
}

// Open makes a lease and returns its first turn, which must be ended with Grant
// followed by Keep or End, or with Drop. The first step is not yet one of the
// lease: see ActiveStep.Count.
func (t *Table[V, O]) Open() (*ActiveStep[V, O], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.draining:
		return nil, ErrDraining
	case t.open >= t.cfg.Limit:
		return nil, ErrLimit
	}
	now := time.Now()
	l := &lease[V, O]{token: t.token(), granted: now, touched: now, busy: make(chan struct{})}
	t.leases[l.token] = l
	t.open++
	return &ActiveStep[V, O]{table: t, lease: l}, nil
}

// Take asks for the turn to run step on the lease of token. Exactly one of the
// three results says what to do: run it and end the turn; answer with the
// stored outcome, since the step is a repeat; or refuse with the error, one of
// the above or ctx's.
func (t *Table[V, O]) Take(ctx context.Context, token string, step Step) (*ActiveStep[V, O], *O, error) {
	for {
		turn, outcome, wait, err := t.try(token, step)
		if wait == nil {
			return turn, outcome, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// Now is Take for whoever cannot wait: nil if there is anything else to do than to run the step.
func (t *Table[V, O]) Now(token string, step Step) *ActiveStep[V, O] {
	turn, _, _, _ := t.try(token, step)
	return turn
}

// try is one try of Take; wait is the end of the running step to wait for.
func (t *Table[V, O]) try(token string, step Step) (turn *ActiveStep[V, O], outcome *O, wait chan struct{}, err error) {
	switch instance, ok := parse(token); {
	case !ok:
		return nil, nil, nil, ErrMalformed
	case instance != t.instance:
		return nil, nil, nil, ErrForeign
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.leases[token]
	switch {
	case l == nil:
		return nil, nil, nil, ErrForeign
	case l.busy != nil && (step.Final || step.repeats(l.running)):
		return nil, nil, l.busy, nil
	case l.busy != nil:
		return nil, nil, nil, ErrBusy
	case step.repeats(l.last):
		if !l.kept {
			return nil, nil, nil, ErrRepeated
		}
		stored := l.outcome
		return nil, &stored, nil, nil
	case l.why != Open:
		return nil, nil, nil, &EndedError{Why: l.why, Seq: l.seq}
	case t.closed:
		return nil, nil, nil, &EndedError{Why: Closed, Seq: l.seq}
	case step.Seq != 0 && step.Seq != l.seq+1:
		return nil, nil, nil, &OrderError{Seq: step.Seq, Next: l.seq + 1}
	}
	if why := t.over(l, time.Now()); why != Open {
		// Its time is up and Run has not come by yet.
		t.endLocked(l, why)
		return nil, nil, nil, &EndedError{Why: why, Seq: l.seq}
	}
	l.busy, l.running = make(chan struct{}), step
	return &ActiveStep[V, O]{table: t, lease: l, step: step, count: !step.Final}, nil, nil, nil
}

// Info is what Look tells of a lease.
type Info struct {
	Seq     uint64        // the last step that was run; 0: none
	Age     time.Duration // since it was granted
	Expires time.Duration // until it ends if nothing is sent; 0 if it has ended
	Why     Reason        // Open, or why it has ended
	Busy    bool          // a step is running
}

// Look reports on the lease of token without using it; the value is only for
// reading what does not change.
func (t *Table[V, O]) Look(token string) (Info, V, error) {
	var none V
	instance, ok := parse(token)
	if !ok {
		return Info{}, none, ErrMalformed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.leases[token]
	if instance != t.instance || l == nil {
		return Info{}, none, ErrForeign
	}
	now := time.Now()
	info := Info{Seq: l.seq, Age: now.Sub(l.granted), Why: l.why, Busy: l.busy != nil}
	if info.Why == Open {
		info.Expires = t.left(l, now)
	}
	return info, l.value, nil
}

// Instance returns what names this table, and with it the process, in every
// token that it grants.
func (t *Table[V, O]) Instance() string { return encoding.EncodeToString([]byte(t.instance)) }

// InstanceOf returns the Instance of the table that granted token; "" if it is
// not a token.
func InstanceOf(token string) string {
	instance, ok := parse(token)
	if !ok {
		return ""
	}
	return encoding.EncodeToString([]byte(instance))
}

// Size returns the number of open leases.
func (t *Table[V, O]) Size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open
}

// All returns what Look tells of every open lease, with its value, oldest first.
func (t *Table[V, O]) All() ([]Info, []V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	var infos []Info
	var values []V
	for _, l := range slices.SortedFunc(maps.Values(t.leases), func(a, b *lease[V, O]) int { return a.granted.Compare(b.granted) }) {
		if l.why == Open {
			infos = append(infos, Info{Seq: l.seq, Age: now.Sub(l.granted), Expires: t.left(l, now), Busy: l.busy != nil})
			values = append(values, l.value)
		}
	}
	return infos, values
}

// Run ends leases whose time is up until ctx ends, then closes the table:
// every lease that is left ends, and Run returns when all values were given back.
func (t *Table[V, O]) Run(ctx context.Context) error {
	for {
		timer := time.NewTimer(t.sweep())
		select {
		case <-ctx.Done():
			timer.Stop()
			t.Close()
			return nil
		case <-timer.C:
		case <-t.wake:
			timer.Stop()
		}
	}
}

// EndUnused makes every lease end that is not used for that time from now on, if
// Config.Idle does not end it before.
func (t *Table[V, O]) EndUnused(after time.Duration) {
	t.mu.Lock()
	t.unused = unused{since: time.Now(), after: after}
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // Run has yet to come to the last one
	}
}

// EndIdle ends the leases whose value match accepts and on which no step runs.
func (t *Table[V, O]) EndIdle(match func(V) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.leases {
		if l.why == Open && l.busy == nil && match(l.value) {
			t.endLocked(l, Killed)
		}
	}
}

// Drain refuses new leases, and waits until none is open or ctx ends.
func (t *Table[V, O]) Drain(ctx context.Context) error {
	t.mu.Lock()
	if !t.draining {
		t.draining = true
		t.emptyLocked()
	}
	t.mu.Unlock()
	select {
	case <-t.empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends every lease, a busy one when its turn ends, and returns when the
// values of all were given back. Calls that hold a turn must have been told to stop.
func (t *Table[V, O]) Close() {
	t.mu.Lock()
	t.draining, t.closed = true, true
	for _, l := range t.leases {
		if l.why == Open && l.busy == nil {
			t.endLocked(l, Closed)
		}
	}
	t.emptyLocked()
	t.mu.Unlock()
	<-t.empty
	t.ending.Wait()
}

// sweep ends what is over, forgets what ended long ago, and returns the time
// until it must be called again. A lease granted meanwhile cannot end earlier.
func (t *Table[V, O]) sweep() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	next := min(t.cfg.Idle, t.cfg.Max)
	if !t.unused.since.IsZero() {
		next = min(next, t.unused.after)
	}
	for _, l := range t.leases {
		switch why := t.over(l, now); {
		case l.why != Open:
		case l.busy != nil:
			// Its turn sees to it when it ends, unless Max comes soon after that.
			if left := t.cfg.Max - now.Sub(l.granted); left > 0 {
				next = min(next, left)
			}
		case why != Open:
			t.endLocked(l, why)
		default:
			next = min(next, t.left(l, now))
		}
	}
	for len(t.ended) > 0 && now.Sub(t.ended[0].touched) >= t.cfg.Idle {
		t.forgetLocked()
	}
	if len(t.ended) > 0 {
		next = min(next, t.cfg.Idle-now.Sub(t.ended[0].touched))
	}
	return next
}

// over says whether the time of an idle lease is up, and which.
func (t *Table[V, O]) over(l *lease[V, O], now time.Time) Reason {
	switch {
	case now.Sub(l.granted) >= t.cfg.Max:
		return Expired
	case now.Sub(l.touched) >= t.cfg.Idle:
		return Idle
	case !now.Before(t.idleEnd(l)):
		return Unused
	}
	return Open
}

// left returns the time until a lease ends if nothing is sent.
func (t *Table[V, O]) left(l *lease[V, O], now time.Time) time.Duration {
	return max(0, min(t.idleEnd(l).Sub(now), t.cfg.Max-now.Sub(l.granted)))
}

// idleEnd is when a lease ends that is not used any more.
func (t *Table[V, O]) idleEnd(l *lease[V, O]) time.Time {
	end := l.touched.Add(t.cfg.Idle)
	if t.unused.since.IsZero() {
		return end
	}
	from := t.unused.since
	if l.touched.After(from) {
		from = l.touched
	}
	if sooner := from.Add(t.unused.after); sooner.Before(end) {
		return sooner
	}
	return end
}

// endLocked ends a lease that no turn holds and gives its value back.
func (t *Table[V, O]) endLocked(l *lease[V, O], why Reason) {
	value := l.value
	t.ending.Go(func() {
		defer panics.Go("the end of a transaction")
		t.end(value, why)
	})
	t.buryLocked(l, why)
}

// buryLocked marks a lease as ended and remembers it for a while.
func (t *Table[V, O]) buryLocked(l *lease[V, O], why Reason) {
	l.why, l.touched = why, time.Now()
	t.open--
	t.ended = append(t.ended, l)
	if len(t.ended) > t.cfg.Limit {
		t.forgetLocked()
	}
	t.emptyLocked()
}

func (t *Table[V, O]) forgetLocked() {
	delete(t.leases, t.ended[0].token)
	t.ended[0] = nil
	t.ended = t.ended[1:]
}

// emptyLocked tells Drain and Close when the last lease is gone.
func (t *Table[V, O]) emptyLocked() {
	if !t.draining || t.open > 0 {
		return
	}
	select {
	case <-t.empty:
	default:
		close(t.empty)
	}
}

// The form of a token: a prefix that tells people what it is, then the instance
// and a random number in URL-safe base64.
const (
	tokenPrefix   = "tx_"
	instanceBytes = 8
	randomBytes   = 16
)

var encoding = base64.RawURLEncoding.Strict()

func (t *Table[V, O]) token() string {
	var b [instanceBytes + randomBytes]byte
	copy(b[:], t.instance)
	rand.Read(b[instanceBytes:])
	return tokenPrefix + encoding.EncodeToString(b[:])
}

// parse returns the instance that made a token.
func parse(token string) (instance string, ok bool) {
	text, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok || len(text) != encoding.EncodedLen(instanceBytes+randomBytes) {
		return "", false
	}
	b, err := encoding.DecodeString(text)
	if err != nil || len(b) != instanceBytes+randomBytes {
		return "", false // a line break inside is skipped by the decoder
	}
	return string(b[:instanceBytes]), true
}
