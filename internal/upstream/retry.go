package upstream

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// RetryConfig bounds what retries may add to the load (settings retry.*).
type RetryConfig struct {
	Share float64 `yaml:"share"` // Retries per call; 0 to 1
	// Retries per second in addition to retry.share, so that quiet times may retry as well
	PerSecond float64 `yaml:"per_second"`
	// Number of retries that may be saved up; at least pool.max is used
	Burst int `yaml:"burst"`
}

// DefaultRetry is 20 % of the calls and 10 a second.
func DefaultRetry() RetryConfig { return RetryConfig{Share: 0.2, PerSecond: 10} }

// Validate reports every fault of c.
func (c RetryConfig) Validate() error {
	var errs []error
	if !(c.Share >= 0 && c.Share <= 1) {
		errs = append(errs, config.Faultf("share", " = %v; must be 0 to 1", c.Share))
	}
	if !(c.PerSecond >= 0 && c.PerSecond <= 1e6) {
		errs = append(errs, config.Faultf("per_second", " = %v; must be 0 to 1000000", c.PerSecond))
	}
	if c.Burst < 0 {
		errs = append(errs, config.Faultf("burst", " = %d; must be >= 0", c.Burst))
	}
	return errors.Join(errs...)
}

// budget is the retry budget of the process. A call costs one atomic addition;
// the account is settled only when somebody wants to retry.
type budget struct {
	config RetryConfig
	calls  atomic.Uint64

	mu     sync.Mutex // guards all below
	tokens float64
	seen   uint64 // calls credited
	at     time.Time
}

func newBudget(c RetryConfig) *budget {
	return &budget{config: c, tokens: float64(c.Burst), at: time.Now()}
}

// take takes one token; false if none is left.
func (b *budget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked()
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// left is how many there are.
func (b *budget) left() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked()
	return b.tokens
}

func (b *budget) settleLocked() {
	now, calls := time.Now(), b.calls.Load()
	b.tokens += float64(calls-b.seen)*b.config.Share + now.Sub(b.at).Seconds()*b.config.PerSecond
	b.tokens = min(b.tokens, float64(b.config.Burst))
	b.seen, b.at = calls, now
}

// The slots of exponential backoff: a pause is drawn from 0 to slot·2^n, n from
// 0 and at most maxDoubling. Full jitter spreads those who failed together.
const (
	fastSlot    = 5 * time.Millisecond
	slowSlot    = 500 * time.Millisecond
	maxDoubling = 6

	// maxInstant is how often BackoffNone really means no pause within one
	// request; a node that lost all its sessions must not be stormed.
	maxInstant = 3
)

// pauses draws the pauses of one request.
type pauses struct{ instant, fast, slow int }

func (p *pauses) next(kind ydbstatus.Backoff) time.Duration {
	if kind == ydbstatus.BackoffNone {
		if p.instant < maxInstant {
			p.instant++
			return 0
		}
		kind = ydbstatus.BackoffFast
	}
	slot, n := fastSlot, &p.fast
	if kind == ydbstatus.BackoffSlow {
		slot, n = slowSlot, &p.slow
	}
	top := slot << min(*n, maxDoubling)
	*n++
	return rand.N(top + 1)
}
