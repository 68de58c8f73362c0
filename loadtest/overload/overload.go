// Package overload is the experiment that offers more than can be done, with and without what the
// sidecar does about it, and lets an app flood another: docs/concepts/overload.md.
package overload

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The load: statements that the nodes answer after a delay, so that
// sessions are what is short, and not processors.
const (
	sessions      = 6
	service       = 30 * time.Millisecond
	settle        = time.Second            // at the start of each run, which does not count: a burst is no overload
	patience      = 250 * time.Millisecond // deadline of each call where goodput is measured
	floodPatience = 5 * time.Second        // of the calls of two apps
	quietLoad     = 0.35                   // of what can be done, which the app quiet offers; half of that is its share
)

// capacity is how many statements a second the sessions can do.
const capacity = sessions * float64(time.Second) / float64(service)

// The figures that only this experiment has. Latencies are of the calls that were answered well.
const (
	waitP50    = "wait-p50-ns" // in the queue
	waitP99    = "wait-p99-ns"
	refused    = "refused" // share of the calls
	refusedP50 = "refused-p50-ns"
	refusedP99 = "refused-p99-ns"
	late       = "out of time" // share of the calls that ran out of time, in the queue or on a session
)

// Experiment returns the experiment.
func Experiment() lab.Experiment {
	return lab.Experiment{
		Name:  "overload",
		Title: "More than can be done, and an app that floods another",
		Question: fmt.Sprintf(
			`Statements take %v on the nodes and the sidecar has %d sessions, so at most %.0f a second can be done. Calls come at random (Poisson), whatever becomes of those before, and their latency counts from when they were due. The first second
of each run does not count. In the cases *goodput* each call has %v. In the cases *flood* the app quiet offers %.2f of what can be done and loud more and more, each call has %v, and the figures are those of quiet.`,
			service,
			sessions, capacity, patience, quietLoad, floodPatience,
		),
		Apart: true,
		Defaults: func(o *lab.Options) {
			if o.Rounds == 0 && o.Size > lab.Smoke {
				o.Rounds = 3
			}
			if o.MaxRounds == 0 {
				o.MaxRounds = o.Rounds
			}
			if o.Duration == 0 && o.Size > lab.Smoke {
				o.Duration = 4 * time.Second
			}
		},
		Run: run,
	}
}

func run(ctx context.Context, l *lab.Lab) error {
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	if err := cluster.Everywhere(ctx, "delay",
		map[string]any{"delay": service.String(), "methods": []string{"ExecuteQuery"}}); err != nil {
		return err
	}
	if err := goodput(ctx, l, cluster); err != nil {
		return err
	}
	return flood(ctx, l, cluster)
}

// outcome is what became of the calls of one run.
type outcome struct {
	mu             sync.Mutex    // guards late
	good           *lab.Recorder // latencies of those that were answered well
	waits, refused *lab.Recorder // of these, in the queue; times to the refusal
	late           int64
}

// result makes the figures of a run of that length.
func (o *outcome) result(length time.Duration) lab.Result {
	r, waits, refusals := o.good.Open(length, length), o.waits.Result(length), o.refused.Result(length)
	all := float64(max(1, r.Calls+refusals.Calls+o.late))
	r.Figures = lab.Figures{
		lab.Offered:   float64(r.Calls+refusals.Calls+o.late) / length.Seconds(),
		lab.PerSecond: float64(r.Calls) / length.Seconds(), refused: float64(refusals.Calls) / all,
		late:    float64(o.late) / all,
		waitP50: float64(waits.Quantile(50)), waitP99: float64(waits.Quantile(99)),
		refusedP50: float64(refusals.Quantile(50)), refusedP99: float64(refusals.Quantile(99)),
	}
	return r
}

// offer sends calls at random instants, whatever becomes of them.
func offer(ctx context.Context, side *lab.Sidecar, app string, perSecond float64, length, patience time.Duration) lab.Result {
	o := &outcome{good: lab.NewRecorder(), waits: lab.NewRecorder(), refused: lab.NewRecorder()}
	if perSecond == 0 {
		return o.result(length)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "x-sidecar-app", app)
	counts := time.Now().Add(settle)
	lab.Send(ctx, lab.Poisson(perSecond), settle+length, func(ctx context.Context, due time.Time) {
		answer, err := side.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: patience.String()})
		took := time.Since(due)
		if due.Before(counts) {
			return
		}
		switch reason := reasonOf(err); {
		case err == nil && took <= patience:
			o.good.Add(took, nil)
			o.waits.Add(time.Duration(answer.Info.QueueMs*float64(time.Millisecond)), nil)
		case strings.HasPrefix(reason, "SHED_") || reason == "QUEUE_FULL":
			o.refused.Add(took, nil)
		default:
			o.mu.Lock()
			o.late++
			o.mu.Unlock()
		}
	})
	return o.result(length)
}

// reasonOf is the sidecar's code of an error.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

// variants starts a sidecar for each stance, whose settings are its own. Its sessions are open then, and it knows how
// long the work takes. The function that is returned makes variants of a load.
func variants(
	ctx context.Context, l *lab.Lab, cluster *lab.Cluster, stances map[string][]string, names ...string,
) (func(load func(context.Context, *lab.Sidecar, time.Duration) lab.Result) []lab.Variant, error) {
	sides := make([]*lab.Sidecar, len(names))
	for i, name := range names {
		side, err := l.Sidecar(
			ctx, cluster.Endpoint(),
			append([]string{fmt.Sprint("pool.max=", sessions), fmt.Sprint("pool.min=", sessions)}, stances[name]...)...,
		)
		if err != nil {
			return nil, err
		}
		lab.Closed(ctx, sessions, time.Second, func(ctx context.Context) error {
			_, err := side.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			return err
		})
		sides[i] = side
	}
	return func(load func(context.Context, *lab.Sidecar, time.Duration) lab.Result) (all []lab.Variant) {
		for i, name := range names {
			all = append(all, lab.Variant{Name: name, Under: []*lab.Process{sides[i].Process},
				WarmUp: func(context.Context) error { return nil },
				Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
					return load(ctx, sides[i], d), ctx.Err()
				}})
		}
		return all
	}, nil
}

func goodput(ctx context.Context, l *lab.Lab, cluster *lab.Cluster) error {
	const without, defaults = "without (`pool.shed: off`)", "defaults"
	of, err := variants(ctx, l, cluster, map[string][]string{without: {"pool.shed=off"}}, without, defaults)
	if err != nil {
		return err
	}
	var peak, p99 float64 // of the defaults: of all loads, with the least load
	for _, load := range lab.At(l, []float64{2}, []float64{0.5, 1, 1.5, 2, 3, 4}, []float64{0.5, 1, 1.5, 2, 3, 4}) {
		t, err := l.Compare(ctx, lab.Case{Name: fmt.Sprint("goodput-", load), Title: fmt.Sprintf("%g of what can be done is offered", load),
			Figures: []string{lab.Offered, lab.PerSecond, lab.P50, lab.P99, refused, refusedP50, refusedP99, late},
			Variants: of(func(ctx context.Context, side *lab.Sidecar, d time.Duration) lab.Result {
				return offer(ctx, side, "web", load*capacity, d, patience)
			})})
		if err != nil {
			return err
		}
		if t == nil {
			continue
		}
		rate, _ := t.Median(defaults, lab.PerSecond)
		tail, _ := t.Median(defaults, lab.P99)
		if peak = max(peak, rate); p99 == 0 {
			p99 = tail
		}
		if load == 3 {
			of := func(x, y float64) lab.Estimate { return lab.Estimate{Median: x / y, Low: x / y, High: x / y, N: 1} }
			t.Judge("defaults: calls/s, of the peak", ">= 0.90", rate >= 0.9*peak, of(rate, peak))
			t.Judge("defaults: p99, of that with the least load", "<= 2", tail <= 2*p99, of(tail, p99))
		}
	}
	return nil
}

func flood(ctx context.Context, l *lab.Lab, cluster *lab.Cluster) error {
	const without, shares = "without (`apps.max: 1`: both are one app)", "shares"
	of, err := variants(ctx, l, cluster, map[string][]string{without: {"apps.max=1", "apps.limits=somebody"}}, without, shares)
	if err != nil {
		return err
	}
	var before float64 // p99 of the wait beside an app that takes what is left
	for _, load := range lab.At(l, []float64{2}, []float64{0, 1 - quietLoad, 2, 4}, []float64{0, 1 - quietLoad, 2, 4}) {
		t, err := l.Compare(ctx, lab.Case{Name: fmt.Sprint("flood-", load), Title: fmt.Sprintf("loud offers %g of what can be done", load),
			Figures: []string{lab.Offered, waitP50, waitP99, lab.P50, lab.P99, lab.PerSecond, refused, late},
			Variants: of(func(ctx context.Context, side *lab.Sidecar, d time.Duration) (quiet lab.Result) {
				var both sync.WaitGroup
				both.Go(func() { offer(ctx, side, "loud", load*capacity, d, floodPatience) })
				if awake.Sleep(ctx, d/4) { // there is a queue
					quiet = offer(ctx, side, "quiet", quietLoad*capacity, d/2, floodPatience)
				}
				both.Wait()
				return quiet
			})})
		if err != nil {
			return err
		}
		if t == nil {
			continue
		}
		wait, _ := t.Median(shares, waitP99)
		switch {
		case load == 1-quietLoad:
			before = wait
		case load == 4 && before > 0:
			ratio := wait / before
			t.Judge("shares: p99 of the wait, of that beside an app that takes what is left", "<= 1.50", ratio <= 1.5,
				lab.Estimate{Median: ratio, Low: ratio, High: ratio, N: 1})
		}
	}
	return nil
}
