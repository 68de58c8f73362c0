// Package shares is the experiment with few sessions for interactive and batch work: a partition, one queue,
// or shares with guarantees.
package shares

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The load of shares.
const (
	sharesStatement = 3 * time.Millisecond  // injected at the nodes
	sharesFan       = 4                     // calls at once
	sharesSteps     = 5                     // of a sequence: one call, then sharesFan at once
	sharesLimit     = 25 * time.Millisecond // p99 of a burst
	sharesProbes    = 6                     // of the search: the rate is found to a 64th of what the slots could do
)

// The ways to divide the slots.
const (
	byPartition = "partition"
	byOneLine   = "one line"
	byShares    = "shared"
)

// Figures of its own.
const (
	interactiveRate = "interactive/s" // calls
	batchRate       = "batch/s"       // calls
)

// Experiment compares ways to divide few sessions between interactive and batch work.
var Experiment = lab.Experiment{
	Name:  "shares",
	Title: "Few sessions for interactive and batch work",
	Question: `A slot is a session that may be in use: pool.max, 1 to 6 of them. Interactive work fans out: a sequence is five steps, each one call and then four at once, which the next step waits for. As many such sequences run at a time as there are slots, and
beside them as many batch workers, which never pause. The slots are divided in three ways:

- *partition*: half of them for each class and nothing for the other; two sidecars with a pool each. One slot cannot be parted.
- *one line*: all slots for all, first come, first served; both classes are the same priority.
- *shared*: all slots for all, with the sidecar's classes at their defaults: interactive goes first, batch has at least 5 % of the sessions handed out while it waits (pool.shares), and what one does not use the other has.

The time of a statement is injected: the nodes answer after 3 ms. So slots are what is short, as with statements that wait for a disk, and not the processors, which load, sidecars and nodes share here. Sequences and batch are closed loops: what is slow slows them down, and
whatever one class gains the other has less of, which is shown. Then micro-bursts, an open loop: four calls at once, again and again at even distances, while batch runs; latency counts from the instant at which the burst was due to its last answer. Searched for is the highest rate at which p99 is
at most 25 ms; a 20th below it each way is measured.`,
	Published: `The sequence time of a system that served both kinds of work (in units of its own; less is better): 508 with 6 cores, 746 with 4, and 389 with 4 and shared threads. To give batch a thread of its own on 2 cores made it worse.

Theirs were threads on cores, ours are sessions of a database whose statements take a fixed time, so only the order can be compared: shared before the partition, also with fewer slots. How far they are apart depends on how much of everything is asked for.`,
	Defaults: func(o *lab.Options) {
		if o.Size == lab.Full {
			if o.Rounds == 0 {
				o.Rounds = 6
			}
			if o.MaxRounds == 0 {
				o.MaxRounds = 6
			}
			if o.Duration == 0 {
				o.Duration = 700 * time.Millisecond
			}
		}
	},
	Run: measureShares,
}

// lane is where the calls of a class go: to which sidecar, with what priority.
type lane struct {
	sidecar  int
	priority string
}

// plan is a way to divide slots.
type plan struct {
	name               string
	slots              []int // of each sidecar
	interactive, batch lane
}

// plans are the ways to divide so many slots.
func plans(slots int) (all []plan) {
	if slots > 1 {
		all = append(all, plan{byPartition, []int{slots - slots/2, slots / 2}, lane{0, "interactive"}, lane{1, "batch"}})
	}
	return append(all,
		plan{byOneLine, []int{slots}, lane{0, "normal"}, lane{0, "normal"}},
		plan{byShares, []int{slots}, lane{0, "interactive"}, lane{0, "batch"}})
}

// mix is the load on the slots of one plan.
type mix struct {
	plan
	under              []*lab.Process
	interactive, batch lab.Call
	workers            int
}

// sequence makes the steps of one sequence.
func (m mix) sequence(ctx context.Context) error {
	for range sharesSteps {
		if err := m.interactive(ctx); err != nil {
			return err
		}
		if err := m.burst(ctx); err != nil {
			return err
		}
	}
	return nil
}

// burst makes calls at once.
func (m mix) burst(ctx context.Context) error {
	errs := make([]error, sharesFan)
	var calls sync.WaitGroup
	for i := range errs {
		calls.Go(func() { errs[i] = m.interactive(ctx) })
	}
	calls.Wait()
	return errors.Join(errs...)
}

// beside runs batch while the interactive work goes on, each unit of which is so many calls.
func (m mix) beside(ctx context.Context, calls int64, work func() lab.Result) lab.Result {
	var over atomic.Bool
	var done atomic.Int64
	fails := make([]error, m.workers)
	var workers sync.WaitGroup
	begun := time.Now()
	for i := range m.workers {
		workers.Go(func() {
			for !over.Load() && ctx.Err() == nil && fails[i] == nil {
				fails[i] = m.batch(ctx)
				done.Add(1)
			}
		})
	}
	r := work()
	r.Figures = lab.Figures{batchRate: float64(done.Load()) / time.Since(begun).Seconds(),
		interactiveRate: float64(r.Calls*calls) / r.Took.Seconds()}
	over.Store(true)
	workers.Wait()
	for _, err := range fails {
		if err != nil && ctx.Err() == nil {
			if r.Failed++; r.FirstFail == "" {
				r.FirstFail = "batch: " + err.Error()
			}
		}
	}
	return r
}

// sequences is the closed loop.
func (m mix) sequences() lab.Variant {
	return lab.Variant{Name: m.name, Under: m.under, Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
		return m.beside(ctx, sharesSteps*(1+sharesFan), func() lab.Result { return lab.Closed(ctx, m.workers, d, m.sequence) }), nil
	}}
}

// bursts is the open loop.
func (m mix) bursts(perSecond float64) lab.Variant {
	pacer := vegeta.Rate{Freq: max(1, int(perSecond*1000)), Per: 1000 * time.Second}
	return lab.Variant{Name: m.name, Under: m.under, Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
		return m.beside(ctx, sharesFan, func() lab.Result { return lab.Open(ctx, pacer, d, m.burst) }), nil
	}}
}

// highest searches for the greatest x of up to most that is good, by so many halvings. 0: none that was tried is.
func highest(most float64, halvings int, good func(x float64) (bool, error)) (best float64, err error) {
	for range halvings {
		x := (best + most) / 2
		ok, err := good(x)
		if err != nil {
			return 0, err
		}
		if ok {
			best = x
		} else {
			most = x
		}
	}
	return best, nil
}

// bearable finds how many bursts a second have a p99 within the limit.
func (m mix) bearable(ctx context.Context, l *lab.Lab) (float64, error) {
	most := float64(m.slots[m.plan.interactive.sidecar]) / sharesStatement.Seconds() / sharesFan
	return highest(most, sharesProbes, func(rate float64) (bool, error) {
		for range 2 { // whatever else the machine does may spoil one
			run, err := l.Once(ctx, m.bursts(rate), l.Duration*2/3)
			if err != nil || run.Failed == 0 && run.Calls > 0 && run.Figures[lab.P99] <= float64(sharesLimit) {
				return err == nil, err
			}
		}
		return false, nil
	})
}

func measureShares(ctx context.Context, l *lab.Lab) error {
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	if err := cluster.Everywhere(ctx, "delay",
		map[string]any{"delay": sharesStatement.String(), "share": 1, "methods": []string{"ExecuteQuery"}}); err != nil {
		return err
	}
	var sequences, bursts []*lab.Table
	for _, slots := range lab.At(l, []int{2}, []int{2, 4}, []int{1, 2, 4, 6}) {
		s, b, err := divideSlots(ctx, l, cluster, slots)
		if err != nil {
			return err
		}
		if s != nil {
			sequences = append(sequences, s)
		}
		if b != nil {
			bursts = append(bursts, b)
		}
	}
	if len(sequences) > 0 {
		l.Report.Add(lab.Section{Picture: lab.Bars("Sequence time by slots", lab.Mean, sequences...)})
	}
	if len(bursts) > 0 {
		l.Report.Add(
			lab.Section{Picture: lab.Bars("Interactive calls a second in bursts at p99 <= 25 ms, by slots", interactiveRate, bursts...)},
		)
	}
	return nil
}

// serve starts the sidecars of a plan.
func (p plan) serve(ctx context.Context, l *lab.Lab, cluster *lab.Cluster, workers int) (mix, error) {
	m := mix{plan: p, workers: workers}
	var clients []sidecarv1.SidecarClient
	for _, size := range p.slots {
		s, err := l.Sidecar(
			ctx, cluster.Endpoint(), fmt.Sprint("pool.max=", size), fmt.Sprint("pool.max_per_node=", size),
			fmt.Sprint("pool.min=", size),
		)
		if err != nil {
			return m, err
		}
		clients, m.under = append(clients, s.Client), append(m.under, s.Process)
	}
	call := func(to lane) lab.Call {
		return func(ctx context.Context) error {
			_, err := clients[to.sidecar].Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Priority: to.priority})
			return err
		}
	}
	m.interactive, m.batch = call(p.interactive), call(p.batch)
	return m, nil
}

// compareSequences measures sequences with each mix.
func compareSequences(ctx context.Context, l *lab.Lab, name string, slots int, mixes []mix) (*lab.Table, error) {
	c := lab.Case{Name: name, Title: fmt.Sprintf("Sequences, %d slots", slots), Baseline: byOneLine,
		Ratios: []string{lab.Mean},
		Text: fmt.Sprintf("The latency is that of a whole sequence of %d calls. %d sequences at a time, %d batch workers.",
			sharesSteps*(1+sharesFan), slots, slots),
		Figures: []string{lab.Mean, lab.P50, lab.P99, interactiveRate, batchRate}}
	if slots <= 4 { // the more there are, the less it matters
		c.Claims = append(c.Claims,
			lab.Claim{Text: "shared is before one line", Variant: byShares, Figure: lab.Mean, Kind: lab.Ratio, Of: byOneLine, Most: 1})
		if slots > 1 {
			c.Claims = append(c.Claims,
				lab.Claim{Text: "one line is before a partition", Variant: byOneLine, Figure: lab.Mean, Kind: lab.Ratio,
					Of: byPartition, Most: 1})
		}
	}
	for _, m := range mixes {
		c.Variants = append(c.Variants, m.sequences())
	}
	return l.Compare(ctx, c)
}

// compareBursts measures the highest rate of bursts with each mix that has one.
func compareBursts(ctx context.Context, l *lab.Lab, name string, slots int, mixes []mix) (*lab.Table, error) {
	c := lab.Case{Name: name, Title: fmt.Sprintf("Bursts of %d, %d slots", sharesFan, slots),
		Baseline: byOneLine, Ratios: []string{interactiveRate, batchRate},
		Text: fmt.Sprintf("%d batch workers. The rate is a 20th below the highest that was found to have a p99 of at most %v.",
			slots, sharesLimit),
		Figures: []string{interactiveRate, lab.P50, lab.P99, batchRate}}
	for _, m := range mixes {
		rate, err := m.bearable(ctx, l)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", c.Name, m.name, err)
		}
		if rate == 0 {
			c.Text += fmt.Sprintf(" With %s no rate that was tried has it.", m.name)
			continue
		}
		c.Variants = append(c.Variants, m.bursts(rate*0.95))
		c.Claims = append(c.Claims,
			lab.Claim{Text: "p99 of a burst, " + m.name, Variant: m.name, Figure: lab.P99, Most: float64(sharesLimit)})
	}
	return l.Compare(ctx, c)
}

// divideSlots measures the ways to divide the slots.
func divideSlots(ctx context.Context, l *lab.Lab, cluster *lab.Cluster, slots int) (sequences, bursts *lab.Table, err error) {
	name := func(what string) string { return fmt.Sprintf("%s-%d", what, slots) }
	if !l.Wanted(name("sequences")) && !l.Wanted(name("bursts")) {
		return nil, nil, nil
	}
	var mixes []mix
	for _, p := range plans(slots) {
		m, err := p.serve(ctx, l, cluster, slots)
		for _, process := range m.under {
			defer l.End(process)
		}
		if err != nil {
			return nil, nil, err
		}
		mixes = append(mixes, m)
	}
	if sequences, err = compareSequences(ctx, l, name("sequences"), slots, mixes); err != nil || !l.Wanted(name("bursts")) {
		return sequences, nil, err
	}
	bursts, err = compareBursts(ctx, l, name("bursts"), slots, mixes)
	return sequences, bursts, err
}
