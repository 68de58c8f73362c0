package adaptive

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config bounds a law.
type Config struct {
	Floor  int           // the limit never falls below; 1 to Max
	Max    int           // nor rises above
	Window time.Duration // between changes, at least
	Period time.Duration // between marks, the same for all sidecars of a cluster
}

// Default returns the settings for a pool with these limits of sessions.
func Default(floor, most int) Config {
	return Config{Floor: floor, Max: most, Window: 500 * time.Millisecond, Period: 10 * time.Second}
}

// Validate returns all faults of c, joined.
func (c Config) Validate() error {
	var errs []error
	if c.Floor < 1 || c.Floor > c.Max {
		errs = append(errs, fmt.Errorf("floor = %d; must be 1 to max = %d", c.Floor, c.Max))
	}
	if c.Window < 10*time.Millisecond || c.Period < 10*c.Window {
		errs = append(errs, fmt.Errorf("window = %v, period = %v; must be at least 10ms, and ten windows", c.Window, c.Period))
	}
	return errors.Join(errs...)
}

// The law's figures. docs/dev/adaptive.md shows what they come to.
const (
	gain      = 0.9  // growth in a window, in sessions
	unproven  = 0.1  // growth in a window, in sessions, while the base is not known
	brake     = 0.15 // decrease in a window, of the limit, times the excess of latency
	tolerance = 1.1  // latency may be so many times the base before it counts
	startPart = 5    // a law begins with this part of the maximum
	burst     = 1.5  // growth in a window, of the limit, until latency is first seen to rise

	tolerated = 0.005 // so small a part of the calls may be refused: a hot partition does so, which a lower limit does not cool
	cutMost   = 0.5   // decrease in a window, of the limit, at most

	enough  = 32 // calls that make a window, unless it is
	longest = 10 // times Config.Window

	quietDepth  = 0.7   // part of the calls in flight without queues that is kept at a mark
	quietBlind  = 0.5   // part of the limit that is kept at a mark while the base is unknown
	quietLength = 10    // a mark lasts 1/quietLength of a period,
	quietCalls  = 3     // or quietCalls times the latency if that is longer,
	quietMost   = 3     // but at most 1/quietMost of a period
	quietLead   = 0.25  // part of a mark that passes before calls count: queues take time to empty
	baseMemory  = 0.93  // what the marks before weigh, each
	baseBriefly = 0.5   // what they weigh if the mark differs from them by more than chance explains: it shows
	baseBelow   = -0.07 // less, in units of the logarithm (5 %): they had not seen the cluster without queues, or
	baseAbove   = 0.26  // more (20 %): statements are others now
)

// Reason is why a limit changed in a window.
type Reason uint8

// The reasons.
const (
	Grown   Reason = iota // callers waited, and latency was near its base
	Latency               // latency was too high
	Refused               // a node refused a call for load
	Unused                // the limit was far above what was used
	numReasons
)

// Reasons is the number of reasons, for arrays indexed by Reason.
const Reasons = int(numReasons)

// String returns the name used as a metric's label.
func (r Reason) String() string {
	return [...]string{"grown", "latency", "refused", "unused"}[r]
}

// Use is how a pool was used since the last Step.
type Use struct {
	Peak    int  // sessions in use at a time, at most
	Limited bool // callers waited because of the limit
}

// Law is the limit of one pool. It belongs to one goroutine.
type Law struct {
	config  Config
	limit   float64
	carry   float64 // of the limit, what is less than a session and comes to one with time
	whole   int     // limit with carry, as a number of sessions
	changes [Reasons]uint64

	measured
	learned
	marks
}

// measured is what the present window has shown.
type measured struct {
	window  Sample
	peak    int
	limited bool
	lately  bool          // limited in the window before
	began   time.Duration // of the window
}

// learned is what past windows and marks have shown.
type learned struct {
	latency float64 // mean of the last window with calls, as a logarithm; 0: unknown
	base    float64 // mean latency of the marks, as a logarithm; 0: unknown
	weight  float64 // calls that base rests on
	used    float64 // peak of the windows, falling slowly
	rising  bool    // latency has not been seen to rise since the start, or since the limit was far above what was used
}

// marks are the moments in which all sidecars hold back.
type marks struct {
	mark   time.Duration // when the last mark began
	hush   time.Duration // how long it lasts
	depth  float64       // what is held of the limit meanwhile
	heard  Sample        // what began quietly since
	folded bool          // heard is in base
	hushed bool          // the mark is not over
}

// New returns the law of a pool that is not used yet. config must be valid.
func New(config Config) *Law {
	l := new(Law)
	l.Init(config)
	return l
}

// Init makes l what New returns, for laws that lie in an array.
func (l *Law) Init(config Config) {
	*l = Law{config: config, learned: learned{rising: true}, marks: marks{folded: true, mark: -config.Period}}
	l.limit = l.start()
	l.whole = int(l.limit)
}

// Reconfigure puts another configuration into force, which must be valid. What the law
// has learned stays, and so does the limit as far as it is within the new bounds.
func (l *Law) Reconfigure(config Config) {
	l.config = config
	l.bound()
	l.whole, l.carry = int(l.limit), 0
}

// bound keeps the limit between floor and maximum.
func (l *Law) bound() {
	l.limit = min(max(l.limit, float64(l.config.Floor)), float64(l.config.Max))
}

// start is what a law begins with.
func (l *Law) start() float64 { return float64(max(l.config.Floor, l.config.Max/startPart)) }

// Limit is how many sessions may be in use now.
func (l *Law) Limit() int {
	if l.hushed {
		return max(int(l.limit*l.depth+0.5), l.config.Floor)
	}
	return l.whole
}

// Quiet is the span of the clock of Step in which calls began that are to count as
// Sample.QuietCalls. It changes once in a period.
func (l *Law) Quiet() (from, to time.Duration) {
	return l.mark + time.Duration(float64(l.hush)*quietLead), l.mark + l.hush
}

// State is what there is to know of a law.
type State struct {
	Limit   float64       // outside marks
	Base    time.Duration // latency without queues; 0: unknown
	Latency time.Duration // mean of the last window; 0: unknown
	Changes [Reasons]uint64
}

// State returns the law's state.
func (l *Law) State() State {
	return State{Limit: l.limit, Base: timeOf(l.base), Latency: timeOf(l.latency), Changes: l.changes}
}

func timeOf(log float64) time.Duration {
	if log == 0 {
		return 0
	}
	return time.Duration(math.Exp2(log))
}

// Step tells the law what was measured since it was called last, the time by any
// clock that only goes forward, and the time since the Unix epoch, which marks go by.
// It returns when it wants to be called again, by the first clock; that is between
// Config.Window/10 and Config.Window from now. Being called later only costs precision.
func (l *Law) Step(now, wall time.Duration, s Sample, u Use) (next time.Duration) {
	phase := wall % l.config.Period
	l.atMark(now, phase)
	l.heard.add(s)
	if !l.folded && phase >= l.config.Period/2 {
		l.fold()
	}
	if now < l.began {
		s = Sample{Refused: s.Refused}
	}
	l.window.add(s)
	l.peak, l.limited = max(l.peak, u.Peak), l.limited || u.Limited
	if l.hushed { // latency is low because all hold back
		l.open(now)
		return min(l.mark+l.hush, now+l.config.Window)
	}
	age := now - l.began
	if age >= l.config.Window && l.window.Calls+l.window.Refused >= enough || age >= longest*l.config.Window {
		l.decide()
		l.lately = l.limited
		l.window = Sample{}
		l.open(now)
	}
	step := l.config.Window / 2
	if l.began == now {
		step = l.config.Window
	}
	return now + max(min(step, l.config.Period-phase), l.config.Window/10)
}

// atMark sees to the beginning and the end of marks.
func (l *Law) atMark(now, phase time.Duration) {
	if l.hushed && now >= l.mark+l.hush {
		l.hushed = false
		l.open(now + 2*timeOf(l.latency)) // the queues are to be as they were
	}
	if began := now - phase; began-l.mark > l.config.Period/2 { // clocks may differ a little, and be set
		l.mark = began
		l.hush = min(max(l.config.Period/quietLength, quietCalls*timeOf(l.latency)), l.config.Period/quietMost)
		l.hushed = phase < l.hush
		l.heard, l.folded = Sample{}, false
		switch {
		case !l.lately:
			l.depth = 1 // it does not make the queues
		case l.base == 0 || l.latency == 0:
			l.depth = quietBlind
		default:
			l.depth = quietDepth / max(1, math.Exp2(l.latency-l.base))
		}
	}
}

// open begins a window. Refusals that were not dealt with count in it.
func (l *Law) open(now time.Duration) {
	l.window, l.peak, l.limited, l.began = Sample{Refused: l.window.Refused}, 0, false, now
}

// fold lets what began quietly count.
func (l *Law) fold() {
	l.folded = true
	if l.heard.QuietCalls == 0 {
		return
	}
	n := float64(l.heard.QuietCalls)
	mean := float64(l.heard.QuietLogs) / n / logUnit
	memory := baseMemory
	if d := mean - l.base; d < baseBelow || d > baseAbove {
		memory = baseBriefly
	}
	l.weight *= memory
	l.base = (l.base*l.weight + mean*n) / (l.weight + n)
	l.weight += n
}

// decide changes the limit at the end of a window.
func (l *Law) decide() {
	w, used := &l.window, float64(l.peak)
	if w.Calls > 0 {
		l.latency = float64(w.Logs) / float64(w.Calls) / logUnit
	}
	l.used = max(used, l.used-(l.used-used)/64)
	// What the limit falls by, in parts of it: because of refusals, and of latency.
	refused, slow := 0.0, 0.0
	if w.Refused > 0 {
		refused = max(0, float64(w.Refused)/float64(w.Refused+w.Calls)-tolerated)
	}
	l.rising = l.rising && refused == 0
	was := l.limit
	switch spare := max(l.start(), 2*l.used); {
	case !l.limited:
		if l.limit > spare {
			l.limit -= (l.limit - spare) / 16
			l.rising = refused == 0
		}
	case w.Calls == 0:
	case l.base == 0:
		l.limit += unproven
	default:
		excess := math.Exp2(l.latency-l.base) - tolerance
		l.rising = l.rising && excess < 0
		if l.rising {
			l.limit *= burst
			break
		}
		l.limit += gain
		slow = brake * max(0, excess)
	}
	l.limit -= was * min(cutMost, refused+slow)
	why := Unused
	switch {
	case l.limit > was:
		why = Grown
	case refused > slow:
		why = Refused
	case slow > 0:
		why = Latency
	}
	l.bound()
	l.carry += l.limit
	l.whole = int(l.carry)
	l.carry -= float64(l.whole)
	if l.limit != was {
		l.changes[why]++
	}
}
