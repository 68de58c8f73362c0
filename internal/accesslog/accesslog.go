// Package accesslog writes one line of the log for each call that is worth one:
// none, those that failed, those that were slow too, or all.
//
// What always holds: a call that no rule is for costs two atomic loads; no call
// waits for the log, whose writer is Run alone; so many lines a second are
// written at most; of more calls one in N has a line, by chance, and the line says
// N, so that sums can be made; failed and slow calls share no lines with others;
// calls left out are counted and the count is logged; a line has neither
// parameters nor results, and a statement's text only if asked for.
package accesslog

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// The values of Config.Access.
const (
	Off    = "off"
	Errors = "errors"
	Slow   = "slow" // and errors
	All    = "all"
)

// Config is a part of the section "log" of the configuration.
type Config struct {
	// Calls that get a log line: off, errors, slow (errors, and calls as slow as log.access_slow) or all
	Access string        `yaml:"access"`
	Slow   time.Duration `yaml:"access_slow"` // Time from which a call is slow
	// Largest number of call lines per second. Of more calls, one in N has a line, which names N
	// (sampled). With log.access=all, half of the lines are for failed and slow calls. Calls that are left
	// out are counted, and the count is logged
	Rate int `yaml:"access_rate"`
	// Log the text of statements of the plain API in the lines of calls, up to 1 KiB each. Statements may
	// hold secrets
	Statements bool `yaml:"access_statements"`
}

// Default returns the defaults.
func Default() Config { return Config{Access: Off, Slow: time.Second, Rate: 100} }

// maxRate bounds Config.Rate.
const maxRate = 1_000_000

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var errs []error
	if !slices.Contains([]string{Off, Errors, Slow, All}, c.Access) {
		errs = append(errs, config.Faultf("access", " = %q; must be off, errors, slow or all", c.Access))
	}
	if c.Slow <= 0 {
		errs = append(errs, config.Faultf("access_slow", " = %v; must be > 0", c.Slow))
	}
	if c.Rate < 1 || c.Rate > maxRate {
		errs = append(errs, config.Faultf("access_rate", " = %d; must be 1 to %d", c.Rate, maxRate))
	}
	return errors.Join(errs...)
}

// Call is one call that is over. What is empty is left out.
// Wide: a field for each part of a line, which writers fill in one literal.
type Call struct {
	API      string // grpc, http, or ydb for forwarded calls
	Method   string // package.Service/Method
	Route    string // of HTTP, with its method: "POST /v1/query"
	Status   string // in the answer to the caller: of gRPC, YDB or HTTP
	Reason   string // code of the failure; "": it went well
	App      string
	Class    string
	Mode     string // of a call that is a transaction by itself
	Node     uint32
	Attempts uint32
	Sampled  int // number of calls that the line stands for, as Wants said
	Took     time.Duration
	Phases   [4]Phase // where the time went
	Request  int      // bytes
	Answer   int      // bytes
	TraceID  string
	SQL      string // shown with Config.Statements alone
}

// Phase is a part of a call's time. Without a name there is none.
type Phase struct {
	Name string // such as "queue_ms"
	MS   float64
}

// backlog is how many lines may wait for the writer.
const backlog = 256

// Log decides and writes. A nil one wants nothing. It is safe for concurrent use.
type Log struct {
	out   *slog.Logger
	rules atomic.Pointer[rules]
	lines chan Call
	bad   sampler       // of calls that failed or were slow
	other sampler       // of all others
	left  atomic.Uint64 // lines left out since the last report
	lost  atomic.Uint64 // lines left out so far
	start time.Time
}

// rules are what Config says. Immutable.
type rules struct {
	Config
	failed, slow, all bool
	bad, other        int // lines a second
}

// New returns a log that writes to out while Run runs.
func New(c Config, out *slog.Logger) *Log {
	l := &Log{out: out, lines: make(chan Call, backlog), start: time.Now()}
	l.Set(c)
	return l
}

// Set changes the rules, which must be valid, from now on.
func (l *Log) Set(c Config) {
	r := &rules{
		Config: c,
		failed: c.Access != Off, slow: c.Access == Slow || c.Access == All, all: c.Access == All,
		bad: c.Rate,
	}
	if r.all {
		r.other = max(1, c.Rate/2)
		r.bad = max(1, c.Rate-r.other)
	}
	l.rules.Store(r)
}

// Config is what the rules are of.
func (l *Log) Config() Config { return l.rules.Load().Config }

// On reports whether any call may get a line.
func (l *Log) On() bool { return l != nil && l.rules.Load().failed }

// Wants reports whether a call gets a line, which Write must be told then, and for how many calls the line stands; 0: it gets
// none. It counts what is left out.
func (l *Log) Wants(failed bool, took time.Duration) (sampled int) {
	if l == nil {
		return 0
	}
	r := l.rules.Load()
	bad := failed || r.slow && took >= r.Slow
	if !r.failed || !bad && !r.all {
		return 0
	}
	if now := int64(time.Since(l.start)); bad {
		sampled = l.bad.pick(r.bad, now)
	} else {
		sampled = l.other.pick(r.other, now)
	}
	if sampled == 0 {
		l.leave()
	}
	return sampled
}

// burst is how many seconds' lines may come at once.
const burst = 1

func (l *Log) leave() {
	l.left.Add(1)
	l.lost.Add(1)
}

// Left is how many lines were left out so far.
func (l *Log) Left() uint64 {
	if l == nil {
		return 0
	}
	return l.lost.Load()
}

// Write has a call's line written. It does not wait: if the writer cannot keep up
// the line is left out.
func (l *Log) Write(c Call) {
	select {
	case l.lines <- c:
	default:
		l.leave()
	}
}

// report is how often it is logged that lines were left out.
const report = 10 * time.Second

// Run writes until ctx ends, and then what waits.
func (l *Log) Run(ctx context.Context) error {
	tick := time.NewTicker(report)
	defer tick.Stop()
	for {
		select {
		case c := <-l.lines:
			l.write(c)
		case <-tick.C:
			l.tell()
		case <-ctx.Done():
			for len(l.lines) > 0 {
				l.write(<-l.lines)
			}
			l.tell()
			return nil
		}
	}
}

// tell says how many lines were left out.
func (l *Log) tell() {
	if n := l.left.Swap(0); n > 0 {
		l.out.Warn("calls left out of the access log", "calls", n, "setting", "log.access_rate")
	}
}

// maxSQL is how much of a statement is shown, in bytes.
const maxSQL = 1 << 10

func (l *Log) write(c Call) {
	attrs := make([]slog.Attr, 0, 20)
	text := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	number := func(name string, n int64) {
		if n != 0 {
			attrs = append(attrs, slog.Int64(name, n))
		}
	}
	text("face", c.API)
	text("method", c.Method)
	text("route", c.Route)
	text("status", c.Status)
	text("reason", c.Reason)
	text("app", c.App)
	text("class", c.Class)
	text("mode", c.Mode)
	number("node", int64(c.Node))
	number("attempts", int64(c.Attempts))
	number("sampled", int64(c.Sampled))
	attrs = append(attrs, slog.Float64("total_ms", Milliseconds(c.Took)))
	for _, p := range c.Phases {
		if p.Name != "" {
			attrs = append(attrs, slog.Float64(p.Name, p.MS))
		}
	}
	number("request_bytes", int64(c.Request))
	number("answer_bytes", int64(c.Answer))
	text("trace_id", c.TraceID)
	if l.rules.Load().Statements {
		text("sql", clip(c.SQL))
	}
	level := slog.LevelInfo
	if c.Reason != "" {
		level = slog.LevelWarn
	}
	l.out.LogAttrs(context.Background(), level, "call", attrs...)
}

// Milliseconds is d, to the microsecond.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// clip shortens a text to maxSQL, at a whole character.
func clip(s string) string {
	if len(s) <= maxSQL {
		return s
	}
	n := maxSQL
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}
