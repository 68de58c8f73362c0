// Package fleet is the experiment that compares sixteen Python processes, each with a pool of its own, with one sidecar.
package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// fleetOptions are the flags of fleet alone.
type fleetOptions struct {
	python  string
	workers int
	rate    int // requests a second of each worker
	burst   int // that come at once to each, every two seconds
}

// Experiment is what many workers of one service cost a cluster, with and without a sidecar.
func Experiment() lab.Experiment {
	var o fleetOptions
	return lab.Experiment{
		Name:  "fleet",
		Title: "Sixteen Python workers, each with a pool of its own, or one sidecar",
		Question: `A service in Python runs as many processes (loadtest/fleet/worker.py, YDB's official SDK), as services in Python do. Each has eight threads and gets a low, constant number of requests, and every two seconds eight at once
at a moment of its own, so that its pool needs eight sessions for a hundredth of the time. The same processes work directly on three nodes, and through one sidecar (wire.mode=transaction, other settings as they come); each with the SDK's
pool, and with a session for every query, as clients without a pool do. Then node 2 is killed: its connections are reset, its sessions are gone, discovery drops it; later node 3 falls silent, as a machine does that loses its power
or its network: nothing is reset, discovery keeps it. Each for some seconds. Calls are retried by the SDK in all variants, as it does by itself for a read (three seconds for each try); what is counted is what the service sees, from the instant at which a
request was due. The load is the same in all variants and far below what any of them can bear, so this says nothing of throughput; load, workers, sidecar and cluster share the cores, and the cluster is
the development cluster: what a session costs a real node is not measured here, only their number.`,
		Flags: func(flags *flag.FlagSet) {
			flags.StringVar(&o.python, "python", ".cache/official/bin/python", "Python with the official SDK, below the module's directory")
			flags.IntVar(&o.workers, "workers", 0, "processes; 0: by the size 2, 8, 16")
			flags.IntVar(&o.rate, "rate", 5, "requests a second of each worker, beside bursts")
			flags.IntVar(&o.burst, "burst", 8, "requests that come to a worker at once, every two seconds")
		},
		Run: func(ctx context.Context, l *lab.Lab) error { return runFleet(ctx, l, o) },
	}
}

func runFleet(ctx context.Context, l *lab.Lab, o fleetOptions) error {
	if o.workers == 0 {
		o.workers = lab.At(l, 2, 8, 16)
	}
	if o.workers < 1 || o.workers > 64 || o.rate < 1 || o.rate > 1000 || o.burst < 0 || o.burst > 100 {
		return fmt.Errorf("workers %d, rate %d, burst %d: want 1 to 64, 1 to 1000, 0 to 100", o.workers, o.rate, o.burst)
	}
	root, err := stand.Root()
	if err != nil {
		return err
	}
	if !filepath.IsAbs(o.python) {
		o.python = filepath.Join(root, o.python)
	}
	if out, err := exec.CommandContext(ctx, o.python, "-c", "import ydb; print(ydb.__version__)").CombinedOutput(); err != nil {
		return fmt.Errorf("no Python with the official SDK at %s: make .cache/official/.installed installs it: %w %s", o.python, err, out)
	} else {
		l.Report.Versions["ydb (Python)"] = strings.TrimSpace(string(out))
	}
	e := &fleetRun{l: l, o: o, script: filepath.Join(root, "loadtest", "fleet", "worker.py"),
		span: lab.At(l, 700*time.Millisecond, 3*time.Second, 6*time.Second)}
	if e.cluster, err = l.Cluster(ctx, 3, "-session-idle", "5s"); err != nil {
		return err
	}
	filler, err := l.Sidecar(ctx, e.cluster.Endpoint())
	if err != nil {
		return err
	}
	err = traffic.Fill(ctx, filler.Client)
	l.End(filler.Process)
	if err != nil {
		return err
	}
	return e.all(ctx)
}

// fleetRun is the experiment under way.
type fleetRun struct {
	l       *lab.Lab
	o       fleetOptions
	script  string
	span    time.Duration // of each phase
	cluster *lab.Cluster
}

// fleetVariant is one way in which the workers work.
type fleetVariant struct {
	name    string
	sidecar bool
	pool    bool // of the SDK
}

var fleetVariants = []fleetVariant{
	{"direct, SDK's pool", false, true},
	{"sidecar, SDK's pool", true, true},
	{"direct, no pool", false, false},
	{"sidecar, no pool", true, false},
}

// The figures of fleet's own.
const (
	fleetSessions = "sessions-on-nodes"    // the most at a time
	fleetCreated  = "sessions-created/s"   // on the nodes
	fleetCalls    = "node-calls/call"      // calls that nodes got for one request
	fleetSockets  = "cluster-descriptors"  // most of them are connections
	fleetWorkers  = "workers-B"            // anonymous memory of all workers
	fleetCluster  = "cluster-B"            // of the cluster
	fleetSidecar  = "sidecar-B"            // of the sidecar
	fleetFailed   = "failed-requests"      // in the time of a fault
	fleetSlow     = "slow-or-failed"       // in the time of a fault
	fleetRecovery = "until-all-work-ns"    // from the fault's begin until the last slow or failed request had ended
	fleetTrouble  = 500 * time.Millisecond // a request that took longer did not work
	fleetPatience = 2 * time.Minute        // for the start of the workers, and for answers after a phase
	fleetLook     = 200 * time.Millisecond // between two looks at the sessions
	fleetKilled   = "node 2 is killed"     // phase
	fleetSilent   = "node 3 falls silent"  // phase
	fleetSteady   = "nothing is broken"    // phase
)

func (e *fleetRun) all(ctx context.Context) error {
	phases := []string{fleetSteady, fleetKilled, fleetSilent}
	variants := fleetVariants
	if e.l.Size == lab.Smoke { // each takes seconds to start; these have all that there is
		variants = []fleetVariant{fleetVariants[0], fleetVariants[3]}
	}
	runs := make([][][]lab.Run, len(phases)) // by phase and variant
	for i := range runs {
		runs[i] = make([][]lab.Run, len(variants))
	}
	// A round takes minutes; the figures of one are those of thousands of requests.
	for round := range max(1, e.l.Rounds/5) {
		for i := range variants {
			i = (i + round) % len(variants)
			got, err := e.variant(ctx, variants[i])
			if err != nil {
				return fmt.Errorf("%s: %w", variants[i].name, err)
			}
			for phase, run := range got {
				runs[phase][i] = append(runs[phase][i], run)
			}
		}
	}
	e.report(variants, runs)
	return nil
}

// empty waits until the nodes have no session: those whose end a silent node did not hear of
// are left over from the variant before, and go when they were idle for some seconds.
func (e *fleetRun) empty(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		sessions, err := e.cluster.Control.Sessions(ctx)
		if err != nil || len(sessions) == 0 {
			return err
		}
		if traffic.Pause(ctx, 200*time.Millisecond) != nil {
			return fmt.Errorf("%d sessions of the variant before are still on the nodes", len(sessions))
		}
	}
}

// variant starts the workers, measures the phases and ends them.
func (e *fleetRun) variant(ctx context.Context, v fleetVariant) (runs []lab.Run, err error) {
	if err := e.empty(ctx); err != nil {
		return nil, err
	}
	url := e.cluster.Endpoint()
	var sidecar *lab.Sidecar
	if v.sidecar {
		if sidecar, err = e.l.Sidecar(ctx, url, "wire.mode=transaction"); err != nil {
			return nil, err
		}
		defer e.l.End(sidecar.Process)
		url = "grpc://" + sidecar.GRPC + "/local"
	}
	workers, err := e.start(ctx, url, v.pool)
	defer func() {
		for _, w := range workers {
			_ = w.Signal(syscall.SIGTERM) // all at once; End waits for each
		}
		for _, w := range workers {
			e.l.End(w)
		}
		e.l.Progress("%s: the workers are stopped", v.name)
	}()
	if err != nil {
		return nil, err
	}
	if err := traffic.Pause(ctx, min(e.span, 3*time.Second)); err != nil { // pools grow to what bursts ask for
		return nil, err
	}
	for _, phase := range []struct {
		name     string
		node     int
		do, undo string
	}{{fleetSteady, 0, "", ""}, {fleetKilled, 1, "kill", "start"}, {fleetSilent, 2, "blackhole", "clear"}} {
		run, err := e.l.Once(ctx, lab.Variant{Name: v.name, Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
			if phase.do == "" {
				return e.steady(ctx, workers, sidecar, d)
			}
			return e.broken(ctx, workers, e.cluster.Nodes[phase.node].ID, phase.do, phase.undo, d)
		}}, e.span)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", phase.name, err)
		}
		e.l.Progress("%s, %s: %d requests", v.name, phase.name, run.Calls)
		runs = append(runs, run)
		if err := traffic.Pause(ctx, e.span/3); err != nil { // the node is found again
			return nil, err
		}
	}
	return runs, nil
}

// start starts the workers at once and waits until each has answered a request.
func (e *fleetRun) start(ctx context.Context, url string, pool bool) (workers []*lab.Process, err error) {
	for i := range e.o.workers {
		env := []string{"PYTHONDONTWRITEBYTECODE=1", "YDB_URL=" + url, fmt.Sprint("RATE=", e.o.rate),
			fmt.Sprint("BURST=", e.o.burst), "POOL=0",
			fmt.Sprintf("OFFSET=%.4f", float64(i)/float64(e.o.workers))}
		if pool {
			env[4] = "POOL=1"
		}
		w, err := e.l.Spawn("workers", stand.Spec{Path: e.o.python, Args: []string{e.script}, Env: env})
		if err != nil {
			return workers, err
		}
		workers = append(workers, w)
	}
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	for _, w := range workers {
		if _, err := w.Ready(ctx); err != nil {
			return workers, err
		}
	}
	return workers, nil
}

// fleetRequest is one that a worker answered.
type fleetRequest struct {
	due   time.Time
	took  time.Duration
	error string
}

func (r fleetRequest) troubled() bool { return r.error != "" || r.took > fleetTrouble }

// requests reads what a worker printed: the requests that ended, and up to when it has told all.
func requests(stdout string) (all []fleetRequest, told time.Time, err error) {
	lines := bufio.NewScanner(strings.NewReader(stdout))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Calls [][3]any
			Told  float64
		}
		text := lines.Bytes()
		if err := json.Unmarshal(text, &line); err != nil {
			continue // the last line may be half there
		}
		for _, c := range line.Calls {
			due, ok := c[0].(float64)
			took, ok2 := c[1].(float64)
			failed, ok3 := c[2].(string)
			if !ok || !ok2 || !ok3 {
				return nil, told, fmt.Errorf("a worker said %.100q", text)
			}
			all = append(all, fleetRequest{seconds(due), time.Duration(took * float64(time.Second)), failed})
		}
		if line.Told != 0 {
			told = seconds(line.Told)
		}
	}
	return all, told, lines.Err()
}

// seconds is an instant of Python's time.time.
func seconds(s float64) time.Time { return time.UnixMicro(int64(s * 1e6)) }

// between waits until every request that was due in a span is answered and returns them.
func (e *fleetRun) between(ctx context.Context, workers []*lab.Process, from, to time.Time) (all []fleetRequest, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fleetPatience, errors.New("requests of the workers went unanswered for two minutes"))
	defer cancel()
	for _, w := range workers {
		for {
			some, told, err := requests(w.Stdout())
			if err != nil {
				return nil, err
			}
			if told.After(to) {
				all = append(all, slices.DeleteFunc(some, func(r fleetRequest) bool { return r.due.Before(from) || !r.due.Before(to) })...)
				break
			}
			if err := traffic.Pause(ctx, 50*time.Millisecond); err != nil {
				return nil, fmt.Errorf("%w\n%s", err, w.Log())
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no request was answered: nothing was measured")
	}
	return all, nil
}

// steady measures the workers while nothing is broken. A failed request is a failed call of the report.
func (e *fleetRun) steady(ctx context.Context, workers []*lab.Process, sidecar *lab.Sidecar, d time.Duration) (lab.Result, error) {
	calls, err := e.cluster.Counter(ctx, "calls")
	if err != nil {
		return lab.Result{}, err
	}
	created, err := e.cluster.Counter(ctx, "sessions_created")
	if err != nil {
		return lab.Result{}, err
	}
	from := time.Now()
	most := 0
	for time.Since(from) < d {
		sessions, err := e.cluster.Control.Sessions(ctx)
		if err != nil {
			return lab.Result{}, err
		}
		most = max(most, len(sessions))
		if err := traffic.Pause(ctx, fleetLook); err != nil {
			return lab.Result{}, err
		}
	}
	to := time.Now()
	callsNow, err := e.cluster.Counter(ctx, "calls")
	if err != nil {
		return lab.Result{}, err
	}
	createdNow, err := e.cluster.Counter(ctx, "sessions_created")
	if err != nil {
		return lab.Result{}, err
	}
	all, err := e.between(ctx, workers, from, to)
	if err != nil {
		return lab.Result{}, err
	}
	r := lab.NewRecorder()
	for _, one := range all {
		var err error
		if one.error != "" {
			err = errors.New(one.error)
		}
		r.Add(one.took, err)
	}
	result := r.Result(to.Sub(from))
	result.Figures = lab.Figures{fleetSessions: float64(most),
		fleetCreated: float64(createdNow-created) / to.Sub(from).Seconds(),
		fleetCalls:   float64(callsNow-calls) / float64(len(all))}
	return result, e.memory(workers, sidecar, result.Figures)
}

// memory notes the anonymous memory of all, and the cluster's descriptors.
func (e *fleetRun) memory(workers []*lab.Process, sidecar *lab.Sidecar, figures lab.Figures) error {
	add := func(name string, p *lab.Process) error {
		n, err := lab.AnonymousOf(p.Pid())
		figures[name] += float64(n)
		return err
	}
	var errs []error
	for _, w := range workers {
		errs = append(errs, add(fleetWorkers, w))
	}
	errs = append(errs, add(fleetCluster, e.cluster.Process))
	if sidecar != nil {
		errs = append(errs, add(fleetSidecar, sidecar.Process))
	}
	descriptors, err := lab.DescriptorsOf(e.cluster.Pid())
	figures[fleetSockets] = float64(descriptors)
	return errors.Join(append(errs, err)...)
}

// broken measures the requests that are due while a node is out. Those that fail are what is measured.
func (e *fleetRun) broken(ctx context.Context, workers []*lab.Process, node uint32, do, undo string, d time.Duration) (lab.Result, error) {
	from := time.Now()
	if err := e.cluster.Control.Do(ctx, node, do, nil); err != nil {
		return lab.Result{}, err
	}
	slept := traffic.Pause(ctx, d)
	to := time.Now()
	if err := e.cluster.Control.Do(context.WithoutCancel(ctx), node, undo, nil); err != nil || slept != nil {
		return lab.Result{}, errors.Join(slept, err)
	}
	all, err := e.between(ctx, workers, from, to)
	if err != nil {
		return lab.Result{}, err
	}
	r := lab.NewRecorder()
	for _, one := range all {
		r.Add(one.took, nil)
	}
	result := r.Result(to.Sub(from))
	result.Figures = trouble(all, from)
	return result, nil
}

// trouble tells what a fault that began at an instant did to the requests due since.
func trouble(all []fleetRequest, begun time.Time) lab.Figures {
	f := lab.Figures{fleetFailed: 0, fleetSlow: 0, fleetRecovery: 0}
	for _, one := range all {
		if one.error != "" {
			f[fleetFailed]++
		}
		if one.troubled() {
			f[fleetSlow]++
			f[fleetRecovery] = max(f[fleetRecovery], float64(one.due.Add(one.took).Sub(begun)))
		}
	}
	return f
}

func (e *fleetRun) report(variants []fleetVariant, runs [][][]lab.Run) {
	c := lab.Case{Baseline: variants[0].name}
	for _, v := range variants {
		c.Variants = append(c.Variants, lab.Variant{Name: v.name})
	}
	c.Name, c.Title = "steady", "Nothing is broken"
	c.Text = fmt.Sprintf(
		"%d workers of 8 threads, each with %d requests a second and %d at once every two seconds. Sessions are the "+
			"most at a time, by the nodes' own list; descriptors of the cluster are mostly connections; memory is "+
			"anonymous, of all workers, of the cluster (three nodes in one process) and of the sidecar.",
		e.o.workers, e.o.rate, e.o.burst,
	)
	c.Figures = []string{fleetSessions, fleetCreated, fleetCalls, fleetSockets, lab.PerSecond, lab.P50, lab.P99,
		"workers-cores", "cluster-cores", "sidecar-cores", fleetWorkers, fleetCluster, fleetSidecar}
	c.Ratios = []string{fleetSessions, "workers-cores", "cluster-cores", fleetCluster}
	direct, through := fleetVariants[0].name, fleetVariants[1].name
	if e.l.Size > lab.Smoke {
		c.Claims = []lab.Claim{
			{Text: "sessions on the nodes, of those of pools in the workers", Variant: through, Figure: fleetSessions,
				Kind: lab.Ratio, Of: direct, Most: 0.5},
			{Text: "CPU of the cluster without a pool, of the same directly", Variant: fleetVariants[3].name,
				Figure: "cluster-cores", Kind: lab.Ratio, Of: fleetVariants[2].name, Most: 0.7},
		}
	}
	e.l.Report.Add(lab.Section{Table: lab.NewTable(c, runs[0])})
	for i, phase := range []struct{ name, title string }{{"killed", fleetKilled}, {"silent", fleetSilent}} {
		c.Name, c.Title = phase.name, strings.ToUpper(phase.title[:1])+phase.title[1:]
		c.Text = fmt.Sprintf(
			"Requests that were due in the %v of the fault, with the SDK's retries. Failed are those that the "+
				"service saw fail; slow or failed those that failed or took longer than %v; all work again when the "+
				"last of these has ended, counted from the fault's begin.",
			e.span, fleetTrouble,
		)
		c.Figures = []string{fleetFailed, fleetSlow, fleetRecovery, lab.PerSecond, lab.P50, lab.P99, lab.Max}
		c.Ratios, c.Claims = []string{}, nil
		if e.l.Size > lab.Smoke {
			c.Claims = []lab.Claim{
				{Text: "failed requests, more than directly", Variant: through, Figure: fleetFailed,
					Kind: lab.Difference, Of: direct, Most: 0.5},
			}
		}
		e.l.Report.Add(lab.Section{Table: lab.NewTable(c, runs[i+1])})
	}
}
