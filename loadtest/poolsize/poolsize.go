// Package poolsize is the experiment that finds how many sessions are enough.
package poolsize

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

// The load of pool-size.
const (
	poolSizeCallers   = 64
	poolSizeRate      = 500                  // calls a second of the open loop
	poolSizeStatement = 5 * time.Millisecond // injected at the nodes
	poolSizeNear      = 0.05                 // how near to the best is as good
)

// Experiment finds how many sessions are enough.
var Experiment = lab.Experiment{
	Name:  "pool-size",
	Title: "How large a pool should be",
	Question: `Point reads through one sidecar, with pool.max from 1 to 200 and three nodes that answer after 5 ms: an injected delay, which stands for statements that wait for disks and other nodes. Without one the nodes, which share the processors with the load, would be busy
with a few calls at a time, and more sessions could never pay. First 64 callers in a closed loop, which take all they can get; then 500 calls a second in an open one. What a pool that is too small costs is the wait for a session; what one that is too large costs is memory, here and on the nodes (the sidecar's
is shown, after the runs), and the sessions' own upkeep.

Recommended is the least pool.max whose throughput in the closed loop and whose p99 in the open loop are within 5 % of the best; a p99 that its interval does not tell from that counts as within.`,
	Defaults: func(o *lab.Options) {
		if o.Size == lab.Full && o.Duration == 0 && o.Rounds == 0 && o.MaxRounds == 0 {
			o.Duration, o.Rounds, o.MaxRounds = 1200*time.Millisecond, 6, 6 // there are eight pools
		}
	},
	Run: measurePoolSizes,
}

func measurePoolSizes(ctx context.Context, l *lab.Lab) error {
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	sizes := lab.At(l, []int{1, 50}, []int{1, 5, 20, 50, 200}, []int{1, 2, 5, 10, 20, 50, 100, 200})
	closed := lab.Case{Name: fmt.Sprint("closed", poolSizeCallers),
		Title: fmt.Sprintf("%d callers, pool.max as in the first column", poolSizeCallers), Baseline: "50",
		Ratios: []string{lab.PerSecond, lab.P99}}
	open := lab.Case{Name: fmt.Sprint("open", poolSizeRate),
		Title: fmt.Sprintf("%d calls a second, pool.max as in the first column", poolSizeRate), Baseline: "50",
		Ratios: []string{lab.P50, lab.P99}}
	for i, size := range sizes {
		s, err := l.Sidecar(
			ctx, cluster.Endpoint(), "pool.max="+strconv.Itoa(size), "pool.max_per_node="+strconv.Itoa(size),
			"pool.min="+strconv.Itoa(size),
		)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := traffic.Fill(ctx, s.Client); err != nil {
				return err
			}
		}
		read := traffic.OverSidecar(s.Client)
		v := lab.Variant{Name: strconv.Itoa(size), Under: []*lab.Process{s.Process}}
		v.Run = func(ctx context.Context, d time.Duration) (lab.Result, error) {
			return lab.Closed(ctx, poolSizeCallers, d, read), nil
		}
		closed.Variants = append(closed.Variants, v)
		if float64(size)/poolSizeStatement.Seconds() < poolSizeRate {
			open.Text += fmt.Sprintf("A pool of %d can make %.0f statements a second, so it is left out. ", size,
				float64(size)/poolSizeStatement.Seconds())
			continue // it would fall behind for as long as the run lasts
		}
		v.Run = func(ctx context.Context, d time.Duration) (lab.Result, error) {
			return lab.Open(ctx, lab.Rate(poolSizeRate), d, read), nil
		}
		open.Variants = append(open.Variants, v)
	}
	if err := cluster.Everywhere(ctx, "delay",
		map[string]any{"delay": poolSizeStatement.String(), "share": 1, "methods": []string{"ExecuteQuery"}}); err != nil {
		return err
	}
	return compareSizes(ctx, l, closed, open)
}

// compareSizes measures the closed and the open loop, draws both, and says what follows.
func compareSizes(ctx context.Context, l *lab.Lab, closed, open lab.Case) error {
	full, err := l.Compare(ctx, closed)
	if err != nil {
		return err
	}
	steady, err := l.Compare(ctx, open)
	if err != nil {
		return err
	}
	if err := draw(l, full, true); err != nil {
		return err
	}
	if err := draw(l, steady, false); err != nil {
		return err
	}
	if full != nil && steady != nil {
		l.Report.Add(lab.Section{Title: "Recommendation", Text: recommend(full, steady)})
	}
	return nil
}

// draw adds the pictures of a table by pool.max, of calls a second only if they differ. A table of nil was left out.
func draw(l *lab.Lab, t *lab.Table, differ bool) error {
	if t == nil {
		return nil
	}
	rate, wait := lab.Line{Name: "calls/s"}, lab.Line{Name: "p99, us"}
	for _, row := range t.Rows {
		size, err := strconv.Atoi(row.Variant)
		if err != nil {
			return err
		}
		rate.X, rate.Y = append(rate.X, float64(size)), append(rate.Y, row.Figures[lab.PerSecond].Median)
		wait.X, wait.Y = append(wait.X, float64(size)), append(wait.Y, row.Figures[lab.P99].Median/1e3)
	}
	if differ {
		l.Report.Add(
			lab.Section{
				Picture: &lab.Picture{Title: "Calls a second by pool.max, " + t.Name, X: "pool.max", Y: "calls/s",
					LogX: true, Lines: []lab.Line{rate}},
			},
		)
	}
	l.Report.Add(
		lab.Section{
			Picture: &lab.Picture{Title: "p99 by pool.max, " + t.Name, X: "pool.max", Y: "us", LogX: true, Lines: []lab.Line{wait}},
		},
	)
	return nil
}

// enough is the first row, in order of size, that is as good as the best: by the
// median where more is better, and by the lower end of the interval where less is.
func enough(t *lab.Table, figure string, more bool) (least *lab.Row) {
	best := math.Inf(1)
	if more {
		best = 0
	}
	for _, row := range t.Rows {
		if e, ok := row.Figures[figure]; ok && more {
			best = max(best, e.Median)
		} else if ok {
			best = min(best, e.Median)
		}
	}
	for _, row := range t.Rows {
		e, ok := row.Figures[figure]
		if ok && (more && e.Median >= best*(1-poolSizeNear) || !more && e.Low <= best*(1+poolSizeNear)) {
			return row
		}
	}
	return nil
}

// recommend says what the runs say, in words that can be repeated elsewhere.
func recommend(full, steady *lab.Table) string {
	busy, calm := enough(full, lab.PerSecond, true), enough(steady, lab.P99, false)
	if busy == nil || calm == nil {
		return "Nothing was measured."
	}
	rate := busy.Figures[lab.PerSecond].Median
	text := fmt.Sprintf(
		"With statements of %v (injected) a pool of %s sessions made as many calls a second as any up to 200, "+
			"within 5 %%, for %d callers (%.0f/s), and one of %s was enough for the best p99 at %d calls a second.",
		poolSizeStatement, busy.Variant, poolSizeCallers, rate, calm.Variant, poolSizeRate,
	)
	return text +
		fmt.Sprintf(
			" The rule of thumb, rate x time of a statement, gives %.0f and %.1f: take twice that, so that bursts "+
				"find a session, and no more than the cluster can run at once.",
			math.Ceil(rate*poolSizeStatement.Seconds()), poolSizeRate*poolSizeStatement.Seconds(),
		)
}
