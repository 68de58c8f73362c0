// Package knee is the experiment that finds the rate at which latency leaves its band, and whether the
// sidecar's profile changes beyond it.
package knee

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/peers"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Experiment finds where the sidecar breaks, and looks at it there.
func Experiment() lab.Experiment {
	k := new(kneeBench)
	return lab.Experiment{
		Name:  "knee",
		Title: "The knee, and what changes beyond it",
		Question: `The rate of calls rises until their latency leaves a band (its middle value) or a limit (its 99th percentile): that is the knee, found by bisection and confirmed by more runs on both sides. The backend is one process that answers each
statement after a constant time, whatever comes, with answers built before; GET reads 100 bytes, PUT writes 2.5 KB. Where it says GOMAXPROCS=1 the sidecar has one processor, so that it saturates before load and backend, which share the other;
as shipped all three share both. Then the CPU, allocations, contended locks and waits of the sidecar are profiled just below the knee, at it and just above. The line of the pool is made long enough that no call is refused (pool.queue);
everything else is as shipped. HTTP has 64 connections, gRPC 8. Calls are sent in an open loop, and latency counts from the instant at which each was due; the load's own timers make a call up to a millisecond late while it is idle.`,
		Published: `| | published | here |
|---|--:|---|
| GET | 20,000 → 22,000/s | the table of knees |
| PUT | 12,000/s | the table of knees |
| profile beyond the knee | it did not change | the paragraphs on the profiles |

They are of another server in another language on another machine: 8 threads, 64 connections, runs of 50 s, 8.1 GB of data. Here the sidecar has one or two of two cores, which load and backend share with it, runs last a second or so,
and there is no data. What is looked for is the shape: a rate beyond which latency leaves the band while the work for each call stays the same.`,
		Flags: func(f *flag.FlagSet) {
			f.DurationVar(&k.low, "low", 500*time.Microsecond,
				"lower end of the band; a middle latency below it means that the backend's time is not in it")
			f.DurationVar(&k.high, "high", 2*time.Millisecond, "upper end of the band of the middle latency; 0: no band")
			f.DurationVar(&k.p99, "p99", 25*time.Millisecond, "limit of the 99th percentile of the latency; 0: none")
			f.DurationVar(&k.service, "service", 600*time.Microsecond, "constant time in which the backend answers")
			f.DurationVar(&k.probe, "probe", 0, "length of one run of the search; 0: by the size")
			f.IntVar(&k.first, "first", 500, "calls a second that the search begins with; it ends at -max-rate")
			f.StringVar(&k.profiles, "profiles", "",
				"regular `expression` of what is profiled, such as gRPC-GET-GOMAXPROCS1; by default those with one "+
					"processor, as many as the size has time for")
		},
		Defaults: func(o *lab.Options) {
			if o.Duration == 0 {
				o.Duration = [...]time.Duration{time.Second, time.Second, 1200 * time.Millisecond}[o.Size]
			}
			if o.Rounds == 0 && o.MaxRounds == 0 {
				o.Rounds = [...]int{1, 1, 2}[o.Size]
				o.MaxRounds = o.Rounds
			}
		},
		Run:      k.run,
		Children: map[string]lab.Child{kneeBackend: servePaced},
	}
}

// kneeBench is what the flags say, and what the variants share.
type kneeBench struct {
	low, high, p99, service, probe time.Duration
	first                          int
	profiles                       string
}

func (k *kneeBench) check() error {
	if k.low < 0 || k.high < 0 || k.p99 < 0 || k.high > 0 && k.high <= k.low || k.high == 0 && k.p99 == 0 ||
		k.service <= 0 || k.service > time.Second || k.probe < 0 || k.probe > time.Minute || k.first < 10 {
		return fmt.Errorf(
			"band %v to %v, p99 %v, service %v, probe %v, first %d: want a band, a limit or both, a service of at "+
				"most 1s, a probe of at most 1m, at least 10 calls a second",
			k.low, k.high, k.p99, k.service, k.probe, k.first,
		)
	}
	if k.high > 0 && k.service >= k.high {
		return fmt.Errorf("service %v is not below the band's end %v: no call can be in it", k.service, k.high)
	}
	return nil
}

// beyond says which bound a run left; "" if none.
func (k *kneeBench) beyond(f lab.Figures, failed int64) string {
	switch {
	case failed > 0:
		return fmt.Sprintf("%d calls failed", failed)
	case k.high > 0 && f[lab.P50] > float64(k.high):
		return fmt.Sprintf("the middle latency, %.1f ms", f[lab.P50]/1e6)
	case k.p99 > 0 && f[lab.P99] > float64(k.p99):
		return fmt.Sprintf("the 99th percentile, %.1f ms", f[lab.P99]/1e6)
	}
	return ""
}

// attempt is one run of a search.
type attempt struct {
	Rate  int
	Holds bool
}

// The search: how much the rate rises while it holds, how near the two ends come, and how often it starts again.
const (
	kneeRise    = 1.5
	kneeConfirm = 3 // runs, of which the majority counts
	kneeAgain   = 6
)

// findKnee returns the greatest rate that holds, to within the tolerance (a share), the least that does not, and whether the majority
// of more runs said so of both. The knee is 0 if not even first holds; over is 0 if most does.
func findKnee(first, most int, tolerance float64, holds func(rate int) (bool, error)) (knee, over int, confirmed bool, err error) {
	scaled := func(rate int, by float64) int { return min(most, max(first, int(math.Round(float64(rate)*by)))) }
	for rate := first; over == 0; rate = scaled(rate, kneeRise) {
		ok, err := holds(rate)
		if err != nil {
			return 0, 0, false, err
		}
		switch {
		case !ok:
			over = rate
		case rate == most:
			return rate, 0, false, nil
		default:
			knee = rate
		}
	}
	for range kneeAgain {
		for knee > 0 && float64(over-knee) > tolerance*float64(knee) && over-knee > 1 {
			middle := (knee + over) / 2
			ok, err := holds(middle)
			if err != nil {
				return 0, 0, false, err
			}
			if ok {
				knee = middle
			} else {
				over = middle
			}
		}
		ok := false
		if knee > 0 {
			if ok, err = majority(knee, holds); err != nil {
				return 0, 0, false, err
			}
		}
		if knee > 0 && !ok {
			over = knee
			if knee = scaled(knee, 1/kneeRise); knee >= over {
				knee = 0
			}
			continue
		}
		if ok, err = majority(over, holds); err != nil {
			return 0, 0, false, err
		}
		if !ok {
			return knee, over, true, nil
		}
		if knee = over; over == most {
			return most, 0, true, nil
		}
		over = scaled(over, kneeRise)
	}
	return knee, over, false, nil
}

// majority reports whether a rate holds in the majority of kneeConfirm runs.
func majority(rate int, holds func(rate int) (bool, error)) (bool, error) {
	yes := 0
	for n := 1; n <= kneeConfirm; n++ {
		ok, err := holds(rate)
		if err != nil {
			return false, err
		}
		if ok {
			yes++
		}
		if yes > kneeConfirm/2 || n-yes > kneeConfirm/2 {
			break
		}
	}
	return yes > kneeConfirm/2, nil
}

// kneeCase is one face and one kind of call, through one sidecar.
type kneeCase struct {
	name      string
	sidecar   *lab.Sidecar
	processor int // that the sidecar has; 0: as many as there are
	load      func(ctx context.Context, rate int, d time.Duration) lab.Result
	tried     []attempt
	knee      int
	over      int
	confirmed bool
	why       string // what was beyond, just above
	saturated string // just above
	at        []lab.Run
}

// id is the name as one word, for -only, for -profiles and for files: gRPC-GET-GOMAXPROCS1.
func (c *kneeCase) id() string {
	return strings.NewReplacer(", ", "-", "=", "", " ", "-", "/", "-").Replace(c.name)
}

func (k *kneeBench) run(ctx context.Context, l *lab.Lab) error {
	if err := k.check(); err != nil {
		return err
	}
	if k.probe == 0 {
		k.probe = lab.At(l, 100*time.Millisecond, 300*time.Millisecond, 500*time.Millisecond)
	}
	if k.profiles == "" {
		k.profiles = lab.At(l, "^gRPC-GET-GOMAXPROCS1", "GET-GOMAXPROCS1", "GOMAXPROCS1")
	}
	profiled, err := regexp.Compile(k.profiles)
	if err != nil {
		return fmt.Errorf("-profiles: %w", err)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(peers.Garbage))
	spec, err := lab.ChildSpec(l.Experiment, kneeBackend, k.service.String())
	if err != nil {
		return err
	}
	backend, err := l.Start(ctx, "backend", spec)
	if err != nil {
		return err
	}
	var all []*kneeCase
	for _, processors := range lab.At(l, []int{1}, []int{1}, []int{1, 0}) {
		cases, err := k.cases(ctx, l, backend.At["node"], processors)
		if err != nil {
			return err
		}
		all = append(all, slices.DeleteFunc(cases, func(c *kneeCase) bool {
			return !l.Wanted(c.id()) || l.Size == lab.Smoke && !strings.HasPrefix(c.id(), "gRPC-GET")
		})...)
	}
	if len(all) == 0 {
		return nil
	}
	for _, c := range all {
		if err := k.find(ctx, l, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		l.Progress("%s: the knee is at %d/s, after %d runs", c.name, c.knee, len(c.tried))
	}
	l.Report.Add(lab.Section{Title: "Knees", Text: k.text(all), Table: kneeTable(all)})
	for _, c := range all {
		if profiled.MatchString(c.id()) {
			if err := k.profile(ctx, l, c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return nil
}

// kneeConns are the connections of the gRPC faces; of HTTP there are kneeWebConns.
const (
	kneeConns    = 8
	kneeWebConns = 64
	kneeGET      = 100  // bytes of an answer
	kneePUT      = 2500 // of a value that is written
)

const (
	kneeAsks  = "DECLARE $size AS Uint64; DECLARE $parts AS Uint64; DECLARE $id AS Uint64; " // the first two are for the backend
	kneeRead  = kneeAsks + "SELECT payload FROM bench WHERE id = $id"
	kneeWrite = kneeAsks + "DECLARE $payload AS Utf8; UPSERT INTO bench (id, payload) VALUES ($id, $payload)"
)

// cases are all faces and kinds of calls, through new sidecars.
func (k *kneeBench) cases(ctx context.Context, l *lab.Lab, node string, processors int) (all []*kneeCase, err error) {
	var environment []string
	suffix := "as shipped"
	if processors > 0 {
		suffix = fmt.Sprintf("GOMAXPROCS=%d", processors)
		environment = []string{suffix}
	}
	for i, sidecar := range l.Sidecars {
		s, err := l.SidecarOf(
			ctx, sidecar, "grpc://"+node+"/local", environment, "discovery.mode=static", "discovery.nodes=1="+node,
			"pool.queue=100000", "admin.pprof=on",
		)
		if err != nil {
			return nil, err
		}
		conns := []*grpc.ClientConn{s.Conn}
		for len(conns) < kneeConns {
			conn, err := l.Dial(s.GRPC)
			if err != nil {
				return nil, err
			}
			conns = append(conns, conn)
		}
		for _, kind := range []struct {
			name, sql string
			params    map[string]any
		}{
			{"GET", kneeRead, map[string]any{"id": 1, "size": kneeGET, "parts": 1}},
			{"PUT", kneeWrite, map[string]any{"id": 1, "size": 0, "parts": 1, "payload": strings.Repeat("x", kneePUT)}},
		} {
			plain, own := kneeMessages(kind.sql, kind.params)
			web, err := json.Marshal(map[string]any{"sql": kind.sql, "params": kind.params})
			if err != nil {
				return nil, err
			}
			for face, load := range map[string]func(context.Context, int, time.Duration) lab.Result{
				"gRPC": kneeOpen(conns, func(ctx context.Context, conn *grpc.ClientConn) error {
					return conn.Invoke(ctx, sidecarv1.Sidecar_Execute_FullMethodName, plain, long(kneeLeast(kind.params)), checkedAfter)
				}),
				"wire": kneeOpen(conns, func(ctx context.Context, conn *grpc.ClientConn) error { return kneeStream(ctx, conn, own) }),
				"HTTP": kneeWeb(l, "http://"+s.HTTP+"/v1/query", web),
			} {
				all = append(all,
					&kneeCase{name: l.Name(face+", "+kind.name+", "+suffix, i), sidecar: s, processor: processors, load: load})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *kneeCase) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// kneeLeast is how long an answer is at least.
func kneeLeast(params map[string]any) int { return params["size"].(int) }

// find searches a knee.
func (k *kneeBench) find(ctx context.Context, l *lab.Lab, c *kneeCase) (err error) {
	runs := map[int][]lab.Run{}
	try := func(rate int) (bool, error) {
		run, err := l.Once(ctx, c.variant("", rate), k.probe)
		if err != nil {
			return false, err
		}
		if run.Calls == 0 || run.Failed > 0 && rate == k.first {
			return false, fmt.Errorf("%d of %d calls failed at %d/s: %s", run.Failed, run.Calls, rate, run.FirstFail)
		}
		if low := run.Figures[lab.P50]; k.high > 0 && run.Failed == 0 && low < float64(k.low) {
			return false, fmt.Errorf("a middle latency of %v is below the band: give a lower -low or a longer -service", time.Duration(low))
		}
		why := k.beyond(run.Figures, run.Failed)
		if why != "" {
			c.why, c.saturated = why, c.limit(run)
		}
		runs[rate] = append(runs[rate], run)
		c.tried = append(c.tried, attempt{rate, why == ""})
		return why == "", nil
	}
	c.load(ctx, k.first, k.probe) // connections and sessions are opened
	tolerance := lab.At(l, 0.25, 0.1, 0.05)
	if c.knee, c.over, c.confirmed, err = findKnee(k.first, max(k.first, l.MaxRate), tolerance, try); err != nil {
		return err
	}
	for _, run := range runs[c.knee] {
		if run.Failed > 0 {
			continue // one of a minority: the search goes on after it
		}
		run.Figures[kneeRate] = float64(c.knee)
		c.at = append(c.at, run)
	}
	return nil
}

// kneeRate is the figure of the table of knees.
const kneeRate = "knee/s"

// limit names what is the limit of a run: the sidecar, if it has used up what it may.
func (c *kneeCase) limit(run lab.Run) string {
	if c.processor > 0 && run.Figures["sidecar-cores"] >= 0.85*float64(c.processor) {
		return "sidecar"
	}
	return cmp.Or(run.Saturated, "nothing")
}

func (c *kneeCase) variant(name string, rate int) lab.Variant {
	return lab.Variant{Name: name, Under: []*lab.Process{c.sidecar.Process},
		Run: func(ctx context.Context, d time.Duration) (lab.Result, error) { return c.load(ctx, rate, d), nil }}
}

func kneeTable(all []*kneeCase) *lab.Table {
	c := lab.Case{Name: "knees", Title: "Runs at the knee",
		Figures: []string{kneeRate, lab.PerSecond, lab.P50, lab.P99, lab.CPU, "sidecar-cores"}}
	var runs [][]lab.Run
	for _, one := range all {
		c.Variants = append(c.Variants, lab.Variant{Name: one.name})
		runs = append(runs, one.at)
	}
	return lab.NewTable(c, runs)
}

// text is what is not in the table: what broke, who was the limit, and how sure it is.
func (k *kneeBench) text(all []*kneeCase) string {
	var b strings.Builder
	bounds := []string{}
	if k.high > 0 {
		bounds = append(bounds, fmt.Sprintf("a middle latency of %v to %v", k.low, k.high))
	}
	if k.p99 > 0 {
		bounds = append(bounds, fmt.Sprintf("a 99th percentile of at most %v", k.p99))
	}
	fmt.Fprintf(&b,
		"The bounds: %s, and no failed call. The backend takes %v. Runs of the search last %v; a knee is confirmed "+
			"when the majority of three more runs at it hold, and of three just above do not.\n\n",
		strings.Join(bounds, ", "), k.service, k.probe)
	b.WriteString("| | knee | does not hold | what left its bound there last | saturated there | confirmed | runs " +
		"|\n|---|--:|--:|---|---|---|--:|\n")
	for _, c := range all {
		at, over := fmt.Sprintf("%d/s", c.knee), fmt.Sprintf("%d/s", c.over)
		if c.knee == 0 {
			at = fmt.Sprintf("below %d/s", k.first)
		}
		if c.over == 0 {
			at, over = fmt.Sprintf("not reached at %d/s", c.knee), "-"
		}
		confirmed := "no"
		if c.confirmed {
			confirmed = "yes"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %d |\n", c.name, at, over, cmp.Or(c.why, "-"),
			cmp.Or(c.saturated, "-"), confirmed, len(c.tried))
	}
	return b.String()
}

// kneeBackend is the name of the process that answers each statement after a constant time.
const kneeBackend = "backend"

func servePaced(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("arguments %q; want a duration", args)
	}
	service, err := time.ParseDuration(args[0])
	if err != nil {
		return fmt.Errorf("the time of a statement: %w", err)
	}
	return peers.Paced(ctx, os.Stdout, service)
}

// kneeKinds are the profiles, with what their values are and which function a value is put to.
var kneeKinds = [...]struct {
	name, file, title, unit string
	scale                   float64 // from the profile's unit
	by                      func([]string) string
	note                    string
}{
	{"profile", "cpu", "CPU", "us", 1e-3, lab.Leaf, ""},
	{"heap?gc=1", "allocs", "allocations", "KB", 1e-3, lab.Leaf, "One allocation for each 512 KiB is sampled."},
	{"mutex", "mutex", "waits for locks", "us", 1e-3, lab.Waiter, "One wait of ten is sampled."},
	{"block", "block", "waits of goroutines", "us", 1e-3, lab.Waiter,
		"Waits of goroutines that have nothing to do are in it; one for each millisecond is sampled."},
}
