package chaos

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// Options say how to run.
type Options struct {
	Bin      string        // directory of the built programs
	Quick    bool          // a fixed low rate and short windows: goals that depend on the machine's speed are shown and not judged
	Apps     bool          // the Python and the Node app work as well
	Break    string        // switch a mechanism off: health, drain, affinity, shutdown, forward; "" none
	Duration time.Duration // of the random mix
	Settings []string      // more settings of the sidecar, name=value
	Log      io.Writer     // what happens, a line each
	Logs     string        // directory for the log of the sidecar of a run that missed a goal
}

// Breaks are the mechanisms that can be switched off, by the settings that do so. What
// is judged then must fail: the test of the test.
var Breaks = map[string][]string{
	"health": {"health.transport_failures=1000000", "health.refusals=1000000", "health.refusal_min=1000000000", "health.refusal_share=1",
		"health.latency_factor=1000", "health.latency_floor=1h", "health.silence=0s", "health.idle_probe=0s"},
	"drain":    {"drain.grace=0s"},
	"affinity": {"routing.affinity=off"},
	"shutdown": {"health.shutdown=off"},
	"forward":  {"routing.forward_silence=0s"},
}

// Proofs are the rows that must show that a mechanism is off, and a part of the name of
// the goal that must then be missed.
var Proofs = []struct{ Break, Row, Missed string }{
	{"health", "refuse", "out of use"},
	{"drain", "sigterm", "no answer is cut"},
	{"affinity", "kill", "affinity"},
	{"shutdown", "drain", "asked for no session"},
	{"shutdown", "drain_silent", "asked for no session"},
	{"shutdown", "drain_hints", "asked for no session"},
}

// base are the settings of every run that are not the defaults.
var base = []string{
	"pool.min=30", "pool.max=60", // enough sessions to tell how even they are
	"admin.pprof=on", // goroutines are counted
	"log.level=info",
}

const (
	windowCalls  = 2000 // least calls of a latency window
	quickCalls   = 150
	quickRate    = 80
	mostRate     = 400 // operations a second, whatever the capacity
	loadShare    = 0.4 // of the capacity
	ratio        = 1.5 // of the p99 of the window without fault
	slack        = time.Second
	quickSlack   = 4 * time.Second // after hangAfter no caller waits any more
	capacitySpan = 3 * time.Second
	ejectionWait = 12 * time.Second // for an ejection that does not come
)

// Goal is one thing that must be so.
type Goal struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Got   string `json:"got"`
	Timed bool   `json:"timed,omitempty"` // depends on the speed of the machine
}

// Result is what came of one run. Wide: it is what report.json has of a run, flat.
type Result struct {
	Row      string                    `json:"row"`
	Event    string                    `json:"event"`
	Seed     uint64                    `json:"seed"`
	OK       bool                      `json:"ok"`
	Capacity float64                   `json:"capacity_per_second,omitempty"`
	Rate     int                       `json:"rate_per_second"`
	Begun    float64                   `json:"begun_s"` // when the operations began
	Goals    []Goal                    `json:"goals"`
	Figures  map[string]any            `json:"figures"`
	Normal   *Window                   `json:"normal,omitempty"`
	After    *Window                   `json:"after,omitempty"`
	Others   float64                   `json:"other_cores"` // used by other programs during the windows
	Errors   map[string]int            `json:"errors"`      // by kind, code and class
	Books    *Books                    `json:"books"`
	Apps     map[string]map[string]any `json:"apps,omitempty"`
	Events   []Event                   `json:"events"`
	Seconds  []Second                  `json:"seconds"`
	Ticks    []Tick                    `json:"-"`
}

// quiet is how many cores other programs may use during a latency window.
const quiet = 0.2

// Disturbed says that goals were missed, but only ones that depend on the speed of the
// machine, and that other programs were busy meanwhile: the run says nothing.
func (r *Result) Disturbed() bool {
	for _, g := range r.Failed() {
		if !g.Timed {
			return false
		}
	}
	return !r.OK && r.Others > quiet
}

// Failed returns the goals that were missed.
func (r *Result) Failed() (missed []Goal) {
	for _, g := range r.Goals {
		if !g.OK {
			missed = append(missed, g)
		}
	}
	return missed
}

// run is one row with one seed, under way.
type run struct {
	o        Options
	row      row
	random   *rand.Rand
	stack    *stack
	sidecar  *sidecar
	settings map[string]string // of the sidecar
	load     *load
	rec      *recorder
	line     *timeline
	result   *Result

	stopLoad   context.CancelFunc
	background sync.WaitGroup
	course
}

// course is what has happened in a run so far, as far as its goals depend on it.
type course struct {
	over      bool          // the sidecar was ended by the row itself
	forwarded int64         // calls that a node sent on to another before anything was broken
	deaf      bool          // calls may go unanswered: the sidecar is killed
	event     time.Duration // when the first fault began; 0: not yet
}

// row is one kind of event.
type row struct {
	name      string
	event     string
	cluster   []string // flags of the development cluster
	together  bool     // the nodes are one process, as some of those flags want
	links     bool     // proxies stand between the sidecar and the nodes
	busy      bool     // the apps work as much as they can
	sets      []string // settings of the sidecar
	successor bool     // the sidecar can be taken over from
	// do makes it happen under load, and returns what judges it when everything is quiet.
	do func(*script) (judge func())
}

// Run runs one row and judges it.
func Run(ctx context.Context, o Options, name string, seed uint64) (*Result, error) {
	for _, one := range rows() {
		if one.name == name {
			result, err := one.run(ctx, o, seed)
			if err != nil {
				return nil, fmt.Errorf("chaos: %s, seed %d: %w", name, seed, err)
			}
			return result, nil
		}
	}
	return nil, fmt.Errorf("chaos: there is no row %q; there are %s", name, strings.Join(Rows(), ", "))
}

// Rows returns the names of all rows.
func Rows() (names []string) {
	for _, one := range rows() {
		names = append(names, one.name)
	}
	return names
}

func (w row) run(ctx context.Context, o Options, seed uint64) (*Result, error) {
	if _, ok := Breaks[o.Break]; o.Break != "" && !ok {
		return nil, fmt.Errorf("cannot break %q; choose health, drain, affinity, shutdown or forward", o.Break)
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	args := []string{"-nodes", "3"}
	if !w.together {
		args = append(args, "-processes")
	}
	s, err := startStack(ctx, o.Bin, append(args, w.cluster...)...)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	if w.links {
		if err := s.link(ctx); err != nil {
			return nil, err
		}
	}
	rec := &recorder{begun: time.Now()}
	r := &run{o: o, row: w, random: rand.New(rand.NewPCG(seed, 0)), stack: s, rec: rec,
		line:   &timeline{stack: s, recorder: rec},
		load:   &load{ledger: &ledger{}, recorder: rec, timeout: callTimeout},
		result: &Result{Row: w.name, Event: w.event, Seed: seed, Figures: map[string]any{}, Errors: map[string]int{}}}
	if o.Quick {
		r.load.timeout = quickTimeout
	}
	defer func() {
		if r.sidecar != nil {
			r.sidecar.close()
		}
	}()
	if err := r.all(ctx, seed); err != nil {
		return nil, fmt.Errorf("%w\nthe cluster said last:\n%s", err, stand.LastLines(s.started[0].Log(), 6))
	}
	return r.result, nil
}

// all is the run from the first to the last word.
func (r *run) all(ctx context.Context, seed uint64) (err error) {
	if r.sidecar, err = r.stack.sidecar(ctx, r.flags()); err != nil {
		return err
	}
	if r.settings, err = r.sidecar.settings(ctx); err != nil {
		return err
	}
	if err := prepare(ctx, r.sidecar.apis[0]); err != nil {
		return err
	}
	r.load.apis.Store(&r.sidecar.apis)
	var shop *apps
	if r.o.Apps {
		workers, pause := "1", "0.3" // beside a latency window they must not take the machine
		if r.row.busy {
			workers, pause = "2", "0.1"
		}
		if shop, err = startApps(ctx, r.stack, r.sidecar, workers, pause); err != nil {
			return err
		}
	}
	goroutines, err := r.sidecar.goroutines(ctx)
	if err != nil {
		return err
	}
	r.result.Rate = quickRate
	if !r.o.Quick {
		r.load.closed(ctx, 16, time.Second, seed) // compiles, connects, opens
		r.result.Capacity = r.load.closed(ctx, 16, capacitySpan, seed+1)
		r.result.Rate = max(1, min(mostRate, int(loadShare*r.result.Capacity)))
	}
	r.line.watch(r.sidecar)
	r.startLoad(ctx, seed)
	defer func() {
		r.stopLoad() // again is fine
		r.background.Wait()
	}()
	r.log("%s, seed %d: %d operations a second (capacity %.0f)", r.row.name, seed, r.result.Rate, r.result.Capacity)
	if err := traffic.Pause(ctx, time.Second); err != nil {
		return err
	}
	_, before := r.line.sums()
	s := &script{run: r, ctx: ctx}
	judge := r.row.do(s)
	if s.err != nil {
		return s.err
	}
	_, after := r.line.sums()
	return r.end(ctx, shop, judge, goroutines, after-before)
}

// flags are the settings of the sidecar under test.
func (r *run) flags() []string {
	all := slices.Concat(base, r.row.sets, r.o.Settings, Breaks[r.o.Break])
	if r.row.successor {
		all = append(all, "takeover.socket="+filepath.Join(r.stack.dir, "takeover.sock"))
	}
	return all
}

func (r *run) startLoad(ctx context.Context, seed uint64) {
	ctx, r.stopLoad = context.WithCancel(ctx)
	r.result.Begun = r.rec.now().Seconds()
	r.background.Go(func() { r.load.generate(ctx, r.result.Rate, seed) })
	for i := range 2 {
		r.background.Go(func() { r.load.streams(ctx, i, 300*time.Millisecond) }) // 4 pauses: over a second
	}
	r.background.Go(func() { r.line.run(ctx) })
}

// end stops everything, compares what was told with what is there, and judges.
func (r *run) end(ctx context.Context, shop *apps, judge func(), goroutines int, forwarded int64) error {
	var err error
	if shop != nil {
		if r.result.Apps, err = shop.close(ctx); err != nil {
			return err
		}
	}
	r.stopLoad()
	r.background.Wait()
	if err := r.stack.heal(ctx); err != nil {
		return err
	}
	if !r.over {
		if err := r.endSidecar(ctx, goroutines); err != nil {
			return err
		}
	}
	// Another sidecar reads the tables: the books do not depend on the one under test.
	auditor, err := r.stack.sidecar(ctx, []string{"log.level=warn"})
	if err != nil {
		return err
	}
	defer auditor.close()
	if r.result.Books, err = r.load.ledger.check(ctx, auditor.apis[0]); err != nil {
		return err
	}
	r.goal("the books: money conserved, every acknowledged write there, none twice, none that was denied",
		r.result.Books.WrongCount == 0, "%d wrong: %s", r.result.Books.WrongCount, strings.Join(r.result.Books.Wrong, "; "))
	if shop != nil {
		wrong, err := shop.check(ctx, auditor)
		if err != nil {
			return err
		}
		r.goal("the books of the Python and Node apps", len(wrong) == 0, "%d wrong: %v", len(wrong), wrong)
		for name, said := range r.result.Apps {
			r.goal("no error of "+name+" that repeating would not mend", said["exit code"] == 0, "%v", said["errors"])
		}
	}
	r.goal("affinity: no call is forwarded while nothing is broken", r.forwarded == 0, "%d forwarded", r.forwarded)
	r.figure("calls forwarded around a node out of reach", forwarded-r.forwarded)
	judge()
	r.common()
	r.finish()
	return nil
}

// endSidecar stops the sidecar and counts what it leaves behind.
func (r *run) endSidecar(ctx context.Context, goroutines int) error {
	if err := traffic.Pause(ctx, 500*time.Millisecond); err != nil { // what the last calls left is cleaned up
		return err
	}
	r.sidecar.apis[1].Close() // idle connections of callers are not what calls left
	if err := traffic.Pause(ctx, 200*time.Millisecond); err != nil {
		return err
	}
	now, err := r.sidecar.goroutines(ctx)
	if err != nil {
		return err
	}
	allowed := goroutines + 4*r.number("pool.max") // each session has a stream, and every node and caller a connection
	r.goal("no goroutine left by calls", now <= allowed, "%d at the start, %d at the end of %d operations", goroutines, now, len(r.rec.all))
	code, said, err := r.sidecar.end(ctx)
	if err != nil {
		return err
	}
	r.exits(code, said)
	return r.noSessions(ctx, orphanLife+5*time.Second)
}

// exits is the goal about the end of the sidecar; said is the end of its log.
func (r *run) exits(code int, said string) {
	if code == 0 {
		said = ""
	}
	r.goal("the sidecar exits 0", code == 0, "%d %s", code, said)
}

// noSessions counts the sessions on the nodes until there are none.
func (r *run) noSessions(ctx context.Context, within time.Duration) error {
	deadline := time.Now().Add(within)
	for {
		sessions, err := r.stack.control.Sessions(ctx)
		if err != nil {
			return err
		}
		if len(sessions) == 0 || time.Now().After(deadline) {
			r.goal("no session left on the nodes", len(sessions) == 0, "%d left", len(sessions))
			return nil
		}
		if err := traffic.Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// finish fills in what the report shows.
func (r *run) finish() {
	r.result.Ticks, r.result.Events = r.line.copy()
	r.result.Seconds = r.rec.seconds()
	r.result.OK = true
	for _, g := range r.result.Goals {
		if !g.OK && !(g.Timed && r.o.Quick) {
			r.result.OK = false
		}
		if !g.OK {
			r.log("MISSED: %s: %s", g.Name, g.Got)
		}
	}
	verdict := "ok"
	if !r.result.OK {
		verdict = "FAILED"
		r.keepLog()
	}
	r.log("%s, seed %d: %s; %v", r.result.Row, r.result.Seed, verdict, r.result.Figures)
}

// keepLog writes what the sidecar said where Options.Logs wants it.
func (r *run) keepLog() {
	if r.o.Logs == "" {
		return
	}
	name := filepath.Join(r.o.Logs, fmt.Sprintf("%s-%d.log", r.result.Row, r.result.Seed))
	err := os.MkdirAll(r.o.Logs, 0o755)
	if err == nil {
		err = os.WriteFile(name, []byte(r.sidecar.Log()), 0o600)
	}
	if err != nil {
		r.log("the sidecar's log is lost: %v", err)
		return
	}
	r.log("the sidecar's log: %s", name)
}

func (r *run) goal(name string, ok bool, format string, args ...any) {
	r.result.Goals = append(r.result.Goals, Goal{Name: name, OK: ok, Got: fmt.Sprintf(format, args...)})
}

// timed is a goal that depends on the speed of the machine.
func (r *run) timed(name string, ok bool, format string, args ...any) {
	r.goal(name, ok, format, args...)
	r.result.Goals[len(r.result.Goals)-1].Timed = true
}

func (r *run) figure(name string, value any) {
	if d, ok := value.(time.Duration); ok {
		value = ms(d)
		name += " ms"
	}
	r.result.Figures[name] = value
}

func (r *run) log(format string, args ...any) {
	fmt.Fprintf(r.o.Log, "%6.1fs "+format+"\n", append([]any{r.rec.now().Seconds()}, args...)...)
}

// act does something to a node and returns when it began and when it was done.
func (r *run) act(ctx context.Context, node uint32, what string, body any) (at, done time.Duration, err error) {
	at = r.rec.now()
	if r.event == 0 {
		r.event = at
	}
	r.line.event(fmt.Sprintf("%s node %d", what, node))
	r.log("%s node %d %v", what, node, orNothing(body))
	err = r.stack.act(ctx, node, what, body)
	return at, r.rec.now(), err
}

func orNothing(body any) any {
	if body == nil {
		return ""
	}
	return body
}

// failures returns what failed among the operations and streams that ended at or after an instant.
func (r *run) failures(from time.Duration) []sample {
	return r.rec.find(func(s sample) bool { return s.failed != nil && s.ended >= from })
}

func describe(all []sample) string {
	var texts []string
	for _, s := range all {
		texts = append(texts,
			fmt.Sprintf("%s at %.2f s for %v: %s (%s)", s.kind, s.sent.Seconds(),
				(s.ended-s.sent).Round(time.Millisecond), s.failed, s.failed.class()))
	}
	return some(texts)
}

// failing returns those of the failures from an instant on that are so.
func (r *run) failing(from time.Duration, so func(sample) bool) []sample {
	return r.rec.find(func(s sample) bool { return s.failed != nil && s.ended >= from && so(s) })
}

// none is the goal that nothing failed like the operations that are given.
func (r *run) none(name string, bad []sample) {
	r.goal(name, len(bad) == 0, "%s", describe(bad))
}

// noErrors is the goal that nothing fails from an instant on.
func (r *run) noErrors(name string, from time.Duration) { r.none(name, r.failures(from)) }

// idempotentWork is the goal that no idempotent call fails from an instant on.
func (r *run) idempotentWork(from time.Duration) {
	r.none("no idempotent call fails", r.failing(from, func(s sample) bool { return s.idempotent }))
}
