package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// Figures are what a run gave, by names that end in their unit:
// "-ns" (a duration), "-B" (bytes), "/s" (a rate); others are plain numbers or
// shares of 1. What is behind a "/" is what it is of: "cpu-ns/call".
type Figures map[string]float64

// The figures that every run has, those of the latencies only if there were calls.
const (
	PerSecond = "calls/s"      // that were answered
	Offered   = "offered/s"    // that were due
	Mean      = "mean-ns"      // latency
	P50       = "p50-ns"       // latency
	P90       = "p90-ns"       // latency
	P99       = "p99-ns"       // latency
	P999      = "p99.9-ns"     // latency
	Max       = "max-ns"       // latency
	CPU       = "cpu-ns/call"  // of the process under test
	LoadCPU   = "load-ns/call" // of this process, which has the clients in it
	RSS       = "rss-B"        // of the process under test, when the run ended
	RowsPerS  = "rows/s"       // if the result has rows
	RowCPU    = "cpu-ns/row"   // of the process under test, if the result has rows
	Others    = "other-cores"  // used by programs that are not ours
	// The CPU time of each role is "NAME-cores": of the roles that were started, and of load, this process.
)

// Variant is one way to do the work of a case.
type Variant struct {
	Name string
	// Under is the processes under test, whose CPU and memory are reported by call. None: the load itself does the work.
	Under []*Process
	Run   func(ctx context.Context, d time.Duration) (Result, error)
	// WarmUp runs before the first run; by default Run does, for the time of Options.WarmUp.
	WarmUp func(ctx context.Context) error
	// Ready makes ready before each run what is not measured: connections, a warm-up of its own.
	Ready func(ctx context.Context) error
	// Foreign variants are not the project's: their failed calls are shown, and do not fail the experiment.
	Foreign bool
}

// Claim is what shall be true of a variant's figure. It is judged by the runs:
// a ratio or difference of those of the same round.
type Claim struct {
	Text    string
	Variant string
	Figure  string
	Kind    Kind
	Of      string // the other variant of Ratio and Difference
	Most    float64
	Least   float64 // used if Most is 0
}

// Kind is how a claim's value is made.
type Kind int

// The kinds.
const (
	Value      Kind = iota
	Ratio           // this variant's figure by that of Of
	Difference      // this variant's figure less that of Of
)

// Case is one comparison.
type Case struct {
	Name     string // no blanks: it is part of names in runs.txt
	Title    string
	Text     string   // Markdown under the title
	Baseline string   // the variant that others are compared with; none if empty
	Figures  []string // the columns of its table; nil means DefaultFigures
	Ratios   []string // of these of the figures the table has the ratio to the baseline; nil means CPU, P50, P99
	Added    []string // and of these what is more than the baseline's
	Claims   []Claim
	Variants []Variant
	Quiet    float64 // cores that other programs may use in a run before it is made again, once; 0 means 0.2
	Chart    string  // a figure that the picture shows; "" means none
}

// DefaultFigures are the columns of a table.
var DefaultFigures = []string{PerSecond, P50, P99, P999, CPU, RSS}

// Wanted tells whether -only has a case of this name measured.
func (l *Lab) Wanted(name string) bool { return l.only == nil || l.only.MatchString(name) }

// Compare measures the variants of a case in turn and adds its table to the report. With rounds
// to spare it goes on until each claim is decided. A case that Only does not match is left out, and nil returned.
func (l *Lab) Compare(ctx context.Context, c Case) (*Table, error) {
	if !l.Wanted(c.Name) {
		return nil, nil
	}
	t := newTable(c)
	for _, v := range c.Variants {
		if err := v.warm(ctx, l); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", c.Name, v.Name, err)
		}
	}
	for round := 0; round < l.MaxRounds; round++ {
		if round >= l.Rounds && t.decided() {
			break
		}
		for _, i := range Order(len(c.Variants), round) {
			run, err := l.calm(ctx, c, c.Variants[i])
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", c.Name, c.Variants[i].Name, err)
			}
			t.Rows[i].Runs = append(t.Rows[i].Runs, run)
		}
		l.Progress("%s: round %d", c.Name, round+1)
	}
	t.summarize()
	l.Report.Add(Section{Table: t})
	if c.Chart != "" {
		l.Report.Add(Section{Picture: Bars(c.Title, c.Chart, t)})
	}
	return t, nil
}

// Order is the order of n variants in a round: each begins later than in the one before, and every
// second goes backwards, so that none always runs after the same other.
func Order(n, round int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = (i + round) % n
	}
	if round%2 == 1 {
		slices.Reverse(all)
	}
	return all
}

func (v Variant) warm(ctx context.Context, l *Lab) error {
	if v.WarmUp != nil {
		return v.WarmUp(ctx)
	}
	_, err := v.Run(ctx, l.Options.WarmUp)
	return err
}

// calm makes a run, and one more if other programs disturbed it; of the two the
// calmer counts, but one in which calls failed always does.
func (l *Lab) calm(ctx context.Context, c Case, v Variant) (Run, error) {
	quiet := c.Quiet
	if quiet == 0 {
		quiet = 0.2
	}
	one, err := l.Once(ctx, v, l.Options.Duration)
	if err != nil || one.Failed > 0 || one.Figures[Others] <= quiet || l.Size == Smoke {
		return one, err
	}
	again, err := l.Once(ctx, v, l.Options.Duration)
	if err != nil {
		return one, err
	}
	return calmer(one, again), nil
}

// calmer returns the run that counts of two. One in which calls failed always does.
func calmer(one, again Run) Run {
	if one.Failed == 0 && (again.Failed > 0 || again.Figures[Others] < one.Figures[Others]) {
		one = again
	}
	one.Again = true
	return one
}

// Once makes one run and reads what every process used in it. It is in no table: searches take it.
func (l *Lab) Once(ctx context.Context, v Variant, d time.Duration) (Run, error) {
	if err := context.Cause(ctx); err != nil {
		return Run{}, err
	}
	if v.Ready != nil {
		if err := v.Ready(ctx); err != nil {
			return Run{}, err
		}
	}
	before, err := l.used()
	if err != nil {
		return Run{}, err
	}
	result, err := v.Run(ctx, d)
	if err != nil {
		return Run{}, err
	}
	after, err := l.used()
	if err != nil {
		return Run{}, err
	}
	return finish(v, result, before, after), nil
}

// finish makes a run's figures of its result and of what was used.
func finish(v Variant, result Result, before, after used) Run {
	run := Run{Closed: result.Closed, Calls: result.Calls, Failed: result.Failed, FirstFail: result.FirstFail,
		Figures: Figures{}, hist: result.hist}
	took := after.at.Sub(before.at)
	f := run.Figures
	if h := result.hist; h != nil && result.Calls > 0 {
		at := func(p float64) float64 { return float64(time.Duration(h.ValueAtPercentile(p)) * grain) }
		f[PerSecond], f[Offered] = float64(result.Calls-result.Failed)/result.Took.Seconds(), result.Offered
		f[Mean], f[P50], f[P90], f[P99], f[P999], f[Max] = h.Mean()*float64(grain), at(50), at(90), at(99), at(99.9), float64(
			time.Duration(h.Max())*grain,
		)
	}
	var sum time.Duration // of all of ours
	roles := map[string]time.Duration{}
	for pid, u := range after.processes {
		// A process that was started meanwhile has used all of it meanwhile.
		cpu := u.CPU - before.processes[pid].CPU
		sum += cpu
		roles[u.role] += cpu
	}
	for role, cpu := range roles {
		f[role+"-cores"] = cpu.Seconds() / took.Seconds()
	}
	f[Others] = max(0, (after.machine-before.machine-sum).Seconds()/took.Seconds())
	var under time.Duration
	for _, p := range v.Under {
		under += after.processes[p.Pid()].CPU - before.processes[p.Pid()].CPU
		f[RSS] += float64(after.processes[p.Pid()].RSS)
	}
	if result.Calls > 0 {
		f[LoadCPU] = float64(roles["load"]) / float64(result.Calls)
	}
	if len(v.Under) > 0 && result.Calls > 0 {
		f[CPU] = float64(under) / float64(result.Calls)
	}
	if result.Rows > 0 {
		f[RowsPerS] = float64(result.Rows) / result.Took.Seconds()
		if len(v.Under) > 0 {
			f[RowCPU] = float64(under) / float64(result.Rows)
		}
	}
	for name, value := range result.Figures {
		f[name] = value
	}
	run.Saturated = saturated(roles, f[Others], took)
	return run
}

// saturated names what used the processors up: the role that took most of them if hardly any of them was idle.
func saturated(roles map[string]time.Duration, others float64, took time.Duration) string {
	cores := float64(runtime.NumCPU())
	most, sum := "", others
	for role, cpu := range roles {
		sum += cpu.Seconds() / took.Seconds()
		if most == "" || cpu > roles[most] || cpu == roles[most] && role < most {
			most = role
		}
	}
	if sum < 0.9*cores {
		return ""
	}
	if most == "" || others > roles[most].Seconds()/took.Seconds() {
		return "other programs"
	}
	return most
}

// used is what everything has used until now.
type used struct {
	at        time.Time
	machine   time.Duration
	processes map[int]processUsed
}

type processUsed struct {
	stand.Usage
	role string
}

func (l *Lab) used() (u used, err error) {
	u.processes = map[int]processUsed{}
	read := func(pid int, role string) error {
		usage, err := stand.ReadUsage(pid)
		if errors.Is(err, os.ErrNotExist) {
			return nil // it was ended or killed on purpose
		}
		u.processes[pid] = processUsed{usage, role}
		return err
	}
	errs := []error{read(os.Getpid(), "load")}
	for _, p := range l.processes {
		errs = append(errs, read(p.Pid(), p.Role))
	}
	u.machine, err = stand.ReadMachine()
	u.at = time.Now()
	return u, errors.Join(append(errs, err)...)
}
