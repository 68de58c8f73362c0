// Package memguard keeps a process below the memory limit of its Go runtime (GOMEMLIMIT).
//
// Budget bounds what all requests take together: at the bound it ends requests that are still coming,
// for others. Guard ends nothing. It owns one bit, tight: memory that is in use for good has come
// within a headroom of the limit. While it is, new large work is to be refused (Refuse) and streams
// are to be slowed (Slow, and whatever Watch was told to do). What always holds: what has begun goes
// on; the bit is one atomic load for those who ask; it is set and cleared by one goroutine, that of
// Run, at different levels, so that it does not flutter.
//
// Memory in use for good is what the last garbage collection found alive and what the
// runtime needs beside the heap. What was allocated since may be garbage: with it counted
// the guard would close whenever the collector is lazy, as it may be below the limit.
//
// An idle process hardly collects, and keeps what a burst took: the guard gives it back to the system.
package memguard

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Config is the section "memory".
type Config struct {
	// Percent of the memory limit (GOMEMLIMIT, or 90 % of the container's) below which new large work is
	// rejected and streams are slowed. 0 to 80; 0: never
	Headroom int `yaml:"headroom"`
	// Size in bytes from which a request, or an answer that is held whole, is large work; at least 1024
	Large int `yaml:"large"`
	// Percent of the memory limit for requests of the plain API while they are received, decoded and under
	// way; 1 to 80. One app may take half of it. 12.5 % of both is for requests of up to 64 KiB only.
	// Without a memory limit, 4 GiB counts
	Requests int `yaml:"requests"`
}

// Default returns the defaults.
func Default() Config { return Config{Headroom: 20, Large: 64 << 10, Requests: 40} }

// Validate returns the first fault of c.
func (c Config) Validate() error {
	if c.Headroom < 0 || c.Headroom > 80 {
		return config.Faultf("headroom", " = %d; must be 0 to 80", c.Headroom)
	}
	if c.Large < 1<<10 {
		return config.Faultf("large", " = %d; must be at least 1024", c.Large)
	}
	if c.Requests < 1 || c.Requests > 80 {
		return config.Faultf("requests", " = %d; must be 1 to 80", c.Requests)
	}
	return nil
}

const (
	lookEvery    = 200 * time.Millisecond // between looks
	collectEvery = 2 * time.Second        // between collections that the guard asks for
	slowFor      = 100 * time.Millisecond // how long a stream waits for memory before each part, at most
	logEvery     = 30 * time.Second       // between lines of the log
	easePart     = 1.5                    // headrooms that must be free before the guard opens again

	restsAfter = 10 * time.Second // without a collection after which the process counts as idle
	// bytes more than the least it ever held that it keeps then for what comes next, or an eighth
	// of those if that is more
	keeps = 6 << 20

	// Giving back is tried again after againAfter, and takes no more than a part in againTimes of the time: what was in use the last
	// time can be garbage by now, and nothing else tells.
	againAfter = 30 * time.Second
	againTimes = 200
)

// Guard is the guard of a process. A nil one never closes.
type Guard struct {
	config  Config
	limit   uint64 // bytes
	log     *slog.Logger
	usage   func() Usage // replaced in tests
	collect func()       // collects garbage; replaced in tests
	yield   func()       // gives memory back to the system; replaced in tests

	shown

	mu    sync.Mutex    // guards all below
	eased chan struct{} // closed when it opens again; replaced when it closes
	watch []func(tight bool)
	since time.Time
	said
}

// shown is what State shows, beside since when.
type shown struct {
	tight   atomic.Bool
	refused atomic.Uint64
	slowed  atomic.Uint64
	used    atomic.Uint64
	closed  atomic.Uint64 // times
}

// said is what the log was told of closings. Guard.mu guards it.
type said struct {
	logged time.Time
	unsaid uint64 // closings since then
}

// Usage is what the runtime uses.
type Usage struct {
	Used        uint64 // bytes, for good
	Held        uint64 // bytes that the system has given it, Used included
	Collections uint64 // so far
}

// New returns a guard for the limit that the runtime has now. Without a limit, or with
// headroom 0, it returns nil.
func New(config Config, log *slog.Logger) *Guard {
	limit, ok := Limit()
	if config.Headroom == 0 || !ok {
		return nil
	}
	return WithLimit(config, uint64(limit), log)
}

// WithLimit returns a guard for a limit in bytes that may not be the runtime's.
func WithLimit(config Config, limit uint64, log *slog.Logger) *Guard {
	return &Guard{config: config, limit: limit, log: log, usage: newGauge().read, collect: runtime.GC, yield: giveBack,
		eased: make(chan struct{})}
}

// Tight reports whether memory is short.
func (g *Guard) Tight() bool { return g != nil && g.tight.Load() }

// Watch has f called whenever Tight changes, by the goroutine of Run. It must be called
// before Run.
func (g *Guard) Watch(f func(tight bool)) {
	if g != nil {
		g.watch = append(g.watch, f)
	}
}

// Large is the size in bytes above which work is large.
func (g *Guard) Large() int {
	if g == nil {
		return math.MaxInt
	}
	return g.config.Large
}

// Refuse returns why new work of that many bytes is refused, or "".
func (g *Guard) Refuse(bytes int) string {
	if !g.Tight() || bytes <= g.config.Large {
		return ""
	}
	g.refused.Add(1)
	return fmt.Sprintf(
		"memory is short: less than %d%% (memory.headroom) of %d MiB are left, and this takes more than %d bytes "+
			"(memory.large); try again, raise the memory limit of the sidecar (GOMEMLIMIT, or its container's), or send less at a time",
		g.config.Headroom, g.limit>>20, g.config.Large,
	)
}

// Slow waits while memory is short, for a tenth of a second at most, or until ctx ends.
// It is for streams, before they take in the next part.
func (g *Guard) Slow(ctx context.Context) {
	if !g.Tight() {
		return
	}
	g.slowed.Add(1)
	g.mu.Lock()
	eased := g.eased
	g.mu.Unlock()
	timer := time.NewTimer(slowFor)
	defer timer.Stop()
	select {
	case <-eased:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// State is what there is to know of a guard.
type State struct {
	Limit   uint64    `json:"limit"` // bytes; 0: no guard
	Used    uint64    `json:"used"`  // bytes, for good
	Tight   bool      `json:"tight"`
	Since   time.Time `json:"since,omitzero"` // it is so
	Closed  uint64    `json:"closed"`         // times
	Refused uint64    `json:"refused"`        // large work
	Slowed  uint64    `json:"slowed"`         // parts of streams that had to wait
}

// State returns the state of the guard.
func (g *Guard) State() State {
	if g == nil {
		return State{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return State{Limit: g.limit, Used: g.used.Load(), Tight: g.tight.Load(), Since: g.since, Closed: g.closed.Load(),
		Refused: g.refused.Load(), Slowed: g.slowed.Load()}
}

// Run looks at the memory until ctx ends. It returns nil.
func (g *Guard) Run(ctx context.Context) error {
	if g == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var collections uint64 // at the last one that was asked for, or seen
	var asked time.Time
	least := uint64(math.MaxUint64) // bytes that it ever held
	var again time.Time             // giving back is not tried before
	for {
		u := g.usage()
		least = min(least, u.Held)
		g.used.Store(u.Used)
		g.look(u.Used)
		// The figure is that of the last collection. While calls are refused there may be
		// no reason for another one, and it would never fall.
		if now := time.Now(); u.Collections != collections {
			collections, asked = u.Collections, now
		} else if g.tight.Load() && now.Sub(asked) >= collectEvery {
			g.collect()
			asked = now
		} else if u.Held > least+max(keeps, least/8) && now.Sub(asked) >= restsAfter && !now.Before(again) {
			g.yield()
			collections, asked = g.usage().Collections, now
			again = now.Add(max(againAfter, againTimes*time.Since(now)))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// giveBack gives memory that is not in use back to the system.
func giveBack() {
	runtime.GC() // what is pooled goes with the second collection
	debug.FreeOSMemory()
}

// look closes or opens the guard.
func (g *Guard) look(used uint64) {
	headroom := float64(g.limit) * float64(g.config.Headroom) / 100
	was := g.tight.Load()
	switch left := float64(g.limit) - float64(used); {
	case !was && left < headroom:
	case was && left > min(easePart*headroom, (float64(g.limit)+headroom)/2):
	default:
		return
	}
	g.mu.Lock()
	now := time.Now()
	g.since = now
	if was {
		g.tight.Store(false)
		close(g.eased)
	} else {
		g.eased = make(chan struct{})
		g.tight.Store(true)
		g.closed.Add(1)
		if g.unsaid++; now.Sub(g.logged) >= logEvery {
			g.log.Warn("memory is short: new large work is refused and streams are slowed", "used_mib", used>>20, "limit_mib", g.limit>>20,
				"headroom_percent", g.config.Headroom, "times", g.unsaid, "help", "raise the memory limit (GOMEMLIMIT, or the container's)")
			g.logged, g.unsaid = now, 0
		}
	}
	g.mu.Unlock()
	for _, f := range g.watch {
		f(!was)
	}
}

// gauge reads the runtime's figures.
type gauge [6]metrics.Sample

func newGauge() *gauge {
	var g gauge
	for i, name := range []string{
		"/gc/heap/live:bytes", "/memory/classes/total:bytes", "/memory/classes/heap/released:bytes",
		"/memory/classes/heap/objects:bytes", "/memory/classes/heap/free:bytes", "/gc/cycles/total:gc-cycles",
	} {
		g[i].Name = name
	}
	return &g
}

func (g *gauge) read() Usage {
	metrics.Read(g[:])
	v := func(i int) uint64 { return g[i].Value.Uint64() }
	// All that is mapped except the heap's free parts, with what lives in place of what
	// was allocated.
	beside := v(1) - min(v(1), v(2)+v(3)+v(4))
	return Usage{Used: v(0) + beside, Held: v(1) - min(v(1), v(2)), Collections: v(5)}
}
