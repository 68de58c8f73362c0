// Package acquire measures what it costs to get a session from a pool: the CPU
// time of a process whose tasks acquire, read through the sidecar and release, less
// that of the same process without a pool; and the same with loops that do nothing
// but acquire and release.
//
// What always holds: a pool and the same tasks without one are measured in the same
// process, shortly one after the other; all pools are behind the same interface and
// can be waited for with a context; tasks, sessions and windows are bounded.
//
// The benchmarks of internal/pool measure that pool alone. This experiment sets it beside
// six others, puddle among them, with real reads, and beside a published measurement by
// the method of that measurement.
package acquire

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// Figures of its own.
const (
	cpuRead   = "cpu-ns/read"  // of the process with the tasks
	stubRead  = "stub-ns/read" // the same without a pool
	poolRead  = "pool-ns/read" // the difference
	poolOp    = "pool-ns/op"
	stubOp    = "stub-ns/op"
	allocated = "allocated/op"
	waitP50   = "wait-p50-ns"
	waitP99   = "wait-p99-ns"
	waitRatio = "wait-p99-of-p50"
	evenness  = "least-of-most-served"
	threadOp  = "thread-ns/op"
	fewest    = 50    // sessions where tasks wait
	noObjects = 0.004 // objects an operation that are the runtime's own
)

// published is a row of the talk: CPU milliseconds between asking for a session and having it.
type published struct {
	cores, tasks int
	old, new     float64
}

// talk is what was published.
var talk = []published{
	{2, 500, 0.31, 0.236}, {2, 1000, 2.21, 0.5}, {2, 2000, 16.8, 1.13},
	{8, 500, 0.319, 0.07}, {8, 1000, 0.96, 0.17}, {8, 2000, 1.00, 0.43},
	{32, 1000, 0.04, 0.008}, {32, 2000, 0.12, 0.01}, {32, 5000, 0.2, 0.027},
}

// tasksFor are the numbers of tasks that were published for so many cores, or those for 2.
func tasksFor(cores int) (all []int) {
	for _, row := range talk {
		if row.cores == cores {
			all = append(all, row.tasks)
		}
	}
	if all == nil {
		return tasksFor(2)
	}
	return all
}

// Experiment returns the experiment.
func Experiment() lab.Experiment {
	cores := 0
	return lab.Experiment{
		Name:  "acquire",
		Title: "What it costs to get a session",
		Question: `Tasks acquire a session, make a read through the sidecar (ExecuteDataQuery of ` + "`" + statement +
			"`" + ` over YDB's own protocol, wire.mode=passthrough, so that each session is one on a node) and release it, in a
process of its own whose GOMAXPROCS is -cores. In front of the sessions is one of seven pools, or none: then the first tasks have a session each for good, as many as there are sessions, and the others wait for the
end; so there are as many tasks, and as many reads under way, as with a pool. The cost of a pool is the CPU time of the process for a read, less that of the same without a pool, measured in the same process directly before or after. All
that is in a read's own cost (gRPC, the kernel) is in both, and is some hundred times what a pool takes where nobody waits: a difference of less than a twentieth of a read is noise, whatever its sign.

Then, named as such, loops without reads: goroutines that only acquire and release, by the CPU time of the process, less the loop without a pool; and the method of the talk as it was, a locked OS thread for each task and the CPU clock of that thread read before asking and after having.

No delay is injected. The cluster is the development cluster; it, the sidecar and the process with the tasks share the processors of this machine.`,
		Published: publishedText(),
		Flags: func(f *flag.FlagSet) {
			f.IntVar(&cores, "cores", min(2, runtime.NumCPU()), "processors of the process with the tasks (GOMAXPROCS)")
		},
		Defaults: func(o *lab.Options) {
			if o.Size == lab.Full && o.Rounds == 0 && o.MaxRounds == 0 {
				o.Rounds, o.MaxRounds = 6, 6 // as many as a verdict needs: there are many cases
			}
		},
		Run:      func(ctx context.Context, l *lab.Lab) error { return run(ctx, l, cores) },
		Children: map[string]lab.Child{childName: serve},
	}
}

func publishedText() string {
	var b strings.Builder
	b.WriteString("CPU milliseconds between asking for a session and having it, of a Java pool before and after it " +
		"was made lock-free:\n\n| cores | tasks | before | after | ratio |\n|--:|--:|--:|--:|--:|\n")
	for _, row := range talk {
		fmt.Fprintf(&b, "| %d | %d | %g | %g | %.1f |\n", row.cores, row.tasks, row.old, row.new, row.old/row.new)
	}
	b.WriteString(`
Those are milliseconds and ours are microseconds or less. Their tasks were threads of a JVM, or callbacks on its pools, that contended for monitors: to park a thread and to wake it is a matter for the kernel, and contended threads do it again and again. Ours are
goroutines: a task that waits costs the same whatever their number, so no pool here can become as slow as theirs with 2000 tasks, the classic one included, and the factor between old and new cannot be as large. It is a factor of the pool's own work, not of the kernel's. It was also another machine, client and network.
`)
	return b.String()
}

func run(ctx context.Context, l *lab.Lab, cores int) error {
	if cores < 1 || cores > runtime.NumCPU() {
		return fmt.Errorf("-cores %d: this machine has %d", cores, runtime.NumCPU())
	}
	cluster, err := l.Cluster(ctx, 3, "-sessions", "10000")
	if err != nil {
		return err
	}
	sidecar, err := l.Sidecar(ctx, cluster.Endpoint(), "wire.mode=passthrough")
	if err != nil {
		return err
	}
	spec, err := lab.ChildSpec(l.Experiment, childName, "-sidecar", sidecar.GRPC)
	if err != nil {
		return err
	}
	spec.Env = []string{fmt.Sprintf("GOMAXPROCS=%d", cores)}
	child, err := l.Start(ctx, "tasks", spec)
	if err != nil {
		return err
	}
	m := &measurement{lab: l, address: child.At["http"], cores: cores, tasks: tasksFor(cores)}
	l.Defer(m.client.CloseIdleConnections)
	if l.Size == lab.Smoke {
		m.tasks = []int{100}
	}
	for _, part := range []func(context.Context) error{m.reads, m.enough, m.goals, m.waits, m.threads} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// measurement is one run of the experiment.
type measurement struct {
	lab     *lab.Lab
	client  http.Client
	address string // of the child
	cores   int
	tasks   []int
	turn    atomic.Int64
}

// compared are the pools that claims and baselines name.
var compared = []string{classic, lists, puddled, ours}

// variants are the pools under one order. Windows last a part of the time of a run.
func (m *measurement) variants(o order, part int, figures func(answer) lab.Figures, names ...string) (all []lab.Variant) {
	if m.lab.Size == lab.Smoke && len(names) == 0 {
		names = compared
	}
	if len(names) == 0 {
		for _, shape := range shapes {
			if shape.name != stub {
				names = append(names, shape.name)
			}
		}
	}
	for _, name := range names {
		all = append(all, lab.Variant{Name: name, WarmUp: func(context.Context) error { return nil }, // each window has its own
			Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
				o := o
				o.Pool = name
				o.Window, o.Flip = d/time.Duration(part), m.turn.Add(1)%2 == 0
				a, err := ask(ctx, &m.client, m.address, o)
				if err != nil {
					return lab.Result{}, err
				}
				if a.Pool.Operations == 0 || a.Stub.Operations == 0 && o.Kind != threads {
					return lab.Result{}, fmt.Errorf("nothing was done in %v: %+v", o.Window, a)
				}
				f := figures(a)
				f[lab.PerSecond] = float64(a.Pool.Operations) / a.Pool.Took.Seconds()
				return lab.Result{Closed: true, Calls: a.Pool.Operations, Failed: a.Pool.Failed + a.Stub.Failed,
					FirstFail: a.Pool.First + a.Stub.First, Took: a.Pool.Took, Figures: f}, nil
			}})
	}
	return all
}

func readFigures(a answer) lab.Figures {
	return lab.Figures{cpuRead: a.Pool.CPU, stubRead: a.Stub.CPU, poolRead: a.Pool.CPU - a.Stub.CPU, waitP50: a.Pool.P50,
		waitP99: a.Pool.P99}
}

func loopFigures(a answer) lab.Figures {
	f := lab.Figures{poolOp: a.Pool.CPU - a.Stub.CPU, stubOp: a.Stub.CPU,
		allocated: max(0, a.Pool.Allocated-a.Stub.Allocated), evenness: a.Pool.Evenness}
	if a.Pool.P50 > 0 {
		f[waitP50], f[waitP99], f[waitRatio] = a.Pool.P50, a.Pool.P99, a.Pool.P99/a.Pool.P50
	}
	return f
}

func threadFigures(a answer) lab.Figures {
	return lab.Figures{threadOp: a.Pool.CPU, waitP50: a.Pool.P50, waitP99: a.Pool.P99}
}

// reads is the headline.
func (m *measurement) reads(ctx context.Context) error {
	var costs []cost
	for _, tasks := range m.tasks {
		t, err := m.lab.Compare(ctx, lab.Case{
			Name:     fmt.Sprintf("reads-%d", tasks),
			Title:    fmt.Sprintf("%d tasks, %d sessions, %d cores: CPU for a read", tasks, min(tasks, fewest), m.cores),
			Baseline: classic, Ratios: []string{cpuRead}, Figures: []string{lab.PerSecond, cpuRead, stubRead, poolRead, waitP50, waitP99},
			Variants: m.variants(order{Kind: reads, Tasks: tasks, Sessions: min(tasks, fewest)}, 8, readFigures),
		})
		if err != nil {
			return err
		}
		if t != nil {
			c := cost{cores: m.cores, tasks: tasks}
			c.old, c.new = t.Row(classic).Figures[poolRead], t.Row(ours).Figures[poolRead]
			costs = append(costs, c)
		}
	}
	if len(costs) > 0 {
		m.lab.Report.Add(lab.Section{Title: "Next to the talk", Text: beside(costs)})
	}
	return nil
}

// cost is what a read's session cost here, ns of CPU.
type cost struct {
	cores, tasks int
	old, new     lab.Estimate
}

// beside puts our rows next to the published ones.
func beside(costs []cost) string {
	var b strings.Builder
	b.WriteString("CPU for the session of a read: of the classic pool (list, map and queue behind one lock) and of " +
		"the new one, theirs between asking and having, ours of acquiring and releasing, less no pool. There is no " +
		"ratio where one of the two cannot be told from nothing.\n\n" +
		"| cores | tasks | published, ms | ratio | here, us | ratio |\n|--:|--:|--:|--:|--:|--:|\n")
	for _, row := range talk {
		here, ratio := "unmeasured: needs such a machine", "-"
		for _, c := range costs {
			if c.cores != row.cores || c.tasks != row.tasks {
				continue
			}
			here = between(c.old) + " → " + between(c.new)
			if c.old.Low > 0 && c.new.Low > 0 { // else one of them, or both, are lost in the noise
				ratio = fmt.Sprintf("%.1f", c.old.Median/c.new.Median)
			}
		}
		if strings.HasPrefix(here, "unmeasured") && runtime.NumCPU() >= row.cores {
			here = fmt.Sprintf("not measured in this run (-cores %d)", row.cores)
		}
		fmt.Fprintf(&b, "| %d | %d | %g → %g | %.1f | %s | %s |\n", row.cores, row.tasks, row.old, row.new, row.old/row.new, here, ratio)
	}
	return b.String()
}

// between shows nanoseconds as microseconds, with what they lie between.
func between(e lab.Estimate) string {
	return fmt.Sprintf("%.1f (%.1f–%.1f)", e.Median/1e3, e.Low/1e3, e.High/1e3)
}

// enough is the same with a session for every task.
func (m *measurement) enough(ctx context.Context) error {
	tasks := m.tasks[len(m.tasks)-1]
	_, err := m.lab.Compare(ctx, lab.Case{
		Name: fmt.Sprintf("enough-%d", tasks), Title: fmt.Sprintf("%d tasks, a session for each, %d cores: CPU for a read", tasks, m.cores),
		Text:     "Nobody ever waits, and all tasks have a read under way.",
		Baseline: classic, Ratios: []string{cpuRead}, Figures: []string{lab.PerSecond, cpuRead, stubRead, poolRead},
		Variants: m.variants(order{Kind: reads, Tasks: tasks, Sessions: tasks}, 8, readFigures, classic, puddled, ours),
	})
	return err
}

// goals are the bare loops in which no task waits.
func (m *measurement) goals(ctx context.Context) error {
	one := func(o order, title string, most float64) error {
		how := "acquire and release, nothing else, but that each lets others run after 64 turns"
		if o.Kind == yielded {
			how = "each lets others run while it has a session"
		}
		_, err := m.lab.Compare(ctx, lab.Case{
			Name: fmt.Sprintf("%s-%d", o.Kind, o.Tasks), Title: "Bare loop: " + title,
			Text: fmt.Sprintf(
				"CPU of the process for an acquire and a release, less the loop without a pool. %d goroutines, %d sessions, %s.",
				o.Tasks, o.Sessions, how,
			),
			Baseline: ours, Ratios: []string{poolOp}, Figures: []string{poolOp, stubOp, allocated},
			Claims: []lab.Claim{
				{Text: title, Variant: ours, Figure: poolOp, Most: most},
				{Text: "and nothing is allocated", Variant: ours, Figure: allocated, Most: noObjects},
			},
			Variants: m.variants(o, 25, loopFigures, append([]string{"mutex and stack"}, compared...)...),
		})
		return err
	}
	if err := one(order{Kind: loop, Tasks: 1, Sessions: fewest}, "one task", 30); err != nil {
		return err
	}
	several := lab.At(m.lab, []int{2}, []int{2, 2000}, []int{2, 16, 2000})
	for _, n := range several {
		if err := one(order{Kind: loop, Tasks: n, Sessions: max(n, fewest)}, fmt.Sprintf("%d tasks, nobody waits", n), 60); err != nil {
			return err
		}
	}
	for _, n := range several {
		if n == 16 {
			continue // it is as with 2
		}
		if err := one(order{Kind: yielded, Tasks: n, Sessions: max(n, fewest)},
			fmt.Sprintf("%d tasks that yield, nobody waits", n), 100); err != nil {
			return err
		}
	}
	return nil
}

// waits are the bare loops in which most tasks wait.
func (m *measurement) waits(ctx context.Context) error {
	var least, most float64
	for i, tasks := range m.tasks {
		c := lab.Case{
			Name: fmt.Sprintf("wait-%d", tasks), Title: fmt.Sprintf("Bare loop: %d tasks, %d sessions", tasks, fewest),
			Text: "CPU of the process for an acquire and a release, less the loop without a pool, in which as " +
				"many goroutines take turns as there are sessions. Who has a session lets others run once.",
			Baseline: ours, Ratios: []string{poolOp},
			Figures: []string{lab.PerSecond, poolOp, stubOp, allocated, waitP50, waitP99, waitRatio, evenness},
			Claims: []lab.Claim{
				{Text: "getting a session by waiting", Variant: ours, Figure: poolOp, Most: 1800},
				{Text: "and nothing is allocated", Variant: ours, Figure: allocated, Most: noObjects},
				{Text: "of puddle's", Variant: ours, Figure: poolOp, Kind: lab.Ratio, Of: puddled, Most: 0.55},
				{Text: "of three lists' behind one lock", Variant: ours, Figure: poolOp, Kind: lab.Ratio, Of: lists, Most: 0.75},
				{Text: "the least served task has of the most served", Variant: ours, Figure: evenness, Least: 0.95},
				{Text: "the p99 wait of the middle one", Variant: ours, Figure: waitRatio, Most: 1.3},
			},
			Variants: m.variants(order{Kind: yielded, Tasks: tasks, Sessions: fewest}, 8, loopFigures),
		}
		t, err := m.lab.Compare(ctx, c)
		if err != nil {
			return err
		}
		if t == nil {
			continue
		}
		figure, _ := t.Median(ours, poolOp)
		if i == 0 {
			least = figure
		}
		most = figure
		if i > 0 && i == len(m.tasks)-1 && least > 0 {
			times := most / least
			t.Judge(fmt.Sprintf("flat in the number of tasks: %d next to %d", tasks, m.tasks[0]), "<= 1.20",
				times <= 1.2, lab.Estimate{Median: times, Low: times, High: times, N: 1})
		}
	}
	return nil
}

// threads is the method of the talk as it was.
func (m *measurement) threads(ctx context.Context) error {
	rounds, most := m.lab.Rounds, m.lab.MaxRounds
	defer func() { m.lab.Rounds, m.lab.MaxRounds = rounds, most }()
	m.lab.Rounds, m.lab.MaxRounds = min(rounds, 3), min(most, 3) // it takes longest to start, and says least
	for _, tasks := range m.tasks {
		_, err := m.lab.Compare(ctx, lab.Case{
			Name: fmt.Sprintf("threads-%d", tasks), Title: fmt.Sprintf("Locked OS threads: %d tasks, %d sessions", tasks, fewest),
			Text: "CPU of the thread from asking for a session to having it, less what it takes to read that " +
				"clock. With a thread for each task this measures how the kernel puts threads to sleep and wakes " +
				"them, whatever the pool: a Go program does not work like that.",
			Baseline: ours, Ratios: []string{threadOp}, Figures: []string{lab.PerSecond, threadOp, waitP50, waitP99},
			Variants: m.variants(order{Kind: threads, Tasks: tasks, Sessions: fewest}, 8, threadFigures, classic, puddled, ours),
		})
		if err != nil {
			return err
		}
	}
	return nil
}
