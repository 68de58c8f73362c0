package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The load of overload: statements that the nodes answer after a delay, so that
// sessions are what is short, and not processors.
const (
	overloadSessions = 6
	overloadService  = 30 * time.Millisecond
	overloadSettle   = time.Second            // at the start of each run, which does not count: a burst is no overload
	overloadPatience = 250 * time.Millisecond // deadline of each call where goodput is measured
	floodPatience    = 5 * time.Second        // of the calls of two apps
)

// overload offers more than can be done, with and without what the sidecar does about
// it, and lets an app flood another: docs/overload.md.
func overload(ctx context.Context, args []string) error {
	o := options{}
	flags := flag.NewFlagSet("overload", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin", "bin", "directory of sidecar and devcluster")
	flags.StringVar(&o.out, "out", "report/overload", "directory of the tables")
	flags.IntVar(&o.repeats, "repeats", 3, "runs of each measurement; the medians count")
	flags.DurationVar(&o.duration, "duration", 4*time.Second, "of one run, after a second that does not count")
	parts := flags.String("parts", "goodput,flood", "what is measured")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.repeats < 1 || o.duration < 500*time.Millisecond {
		return fmt.Errorf("arguments %q, repeats %d, duration %v: want none, at least 1, 500ms", flags.Args(), o.repeats, o.duration)
	}
	l := lab.New(o.bin, o.repeats, o.duration)
	defer l.Stop()
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	for _, node := range cluster.Nodes {
		if err := cluster.Control.Do(ctx, node.ID, "delay", map[string]any{"delay": overloadService.String(), "methods": []string{"ExecuteQuery"}}); err != nil {
			return err
		}
	}
	var text strings.Builder
	for part := range strings.SplitSeq(*parts, ",") {
		switch part {
		case "goodput":
			err = goodput(ctx, o, l, cluster, &text)
		case "flood":
			err = flood(ctx, o, l, cluster, &text)
		default:
			err = fmt.Errorf("parts: %q; want goodput, flood", part)
		}
		if err != nil {
			return err
		}
	}
	fmt.Print(text.String())
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "overload.md"), []byte(text.String()), 0o644)
}

// seen is what became of the calls of one run.
type seen struct {
	good    []time.Duration // latencies of those that were answered well
	waits   []time.Duration // of these, in line
	refused []time.Duration // times to the refusal
	vain    int             // ran out of their time, in line or on a session
	length  time.Duration
}

func (r seen) perSecond() float64 { return float64(len(r.good)) / r.length.Seconds() }

// at returns a quantile.
func at(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[min(len(d)-1, int(q*float64(len(d))))]
}

// offer sends calls at random instants (Poisson), whatever becomes of them.
func offer(ctx context.Context, side *lab.Sidecar, app string, perSecond float64, length, patience time.Duration) seen {
	out := seen{length: length}
	if perSecond == 0 {
		return out
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "x-sidecar-app", app)
	r := rand.New(rand.NewPCG(1, uint64(perSecond)))
	var mu sync.Mutex
	var calls sync.WaitGroup
	begun := time.Now()
	counts := begun.Add(overloadSettle)
	for due := begun; due.Before(counts.Add(length)) && rest(ctx, time.Until(due)); due = due.Add(time.Duration(r.ExpFloat64() / perSecond * float64(time.Second))) {
		calls.Go(func() {
			answer, err := side.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: patience.String()})
			took := time.Since(due)
			if due.Before(counts) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			switch reason := reasonOf(err); {
			case err == nil && took <= patience:
				out.good = append(out.good, took)
				out.waits = append(out.waits, time.Duration(answer.Info.QueueMs*float64(time.Millisecond)))
			case strings.HasPrefix(reason, "SHED_") || reason == "QUEUE_FULL":
				out.refused = append(out.refused, took)
			default:
				out.vain++
			}
		})
	}
	calls.Wait()
	return out
}

// rest waits; it reports whether ctx still goes on.
func rest(ctx context.Context, d time.Duration) bool {
	if d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
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

// middle returns the median of a figure of the runs.
func middle(runs []seen, figure func(seen) float64) float64 {
	all := make([]float64, len(runs))
	for i, r := range runs {
		all[i] = figure(r)
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// quantile is that of some durations of a run, in milliseconds, as a figure.
func quantile(of func(seen) []time.Duration, q float64) func(seen) float64 {
	return func(r seen) float64 { return float64(at(of(r), q)) / float64(time.Millisecond) }
}

// part is what part of all calls of a run some are, as a figure.
func part(of func(seen) int) func(seen) float64 {
	return func(r seen) float64 { return 100 * float64(of(r)) / float64(max(1, len(r.good)+len(r.refused)+r.vain)) }
}

func good(r seen) []time.Duration    { return r.good }
func waits(r seen) []time.Duration   { return r.waits }
func refused(r seen) []time.Duration { return r.refused }

// stance is a sidecar with some settings.
type stance struct {
	name     string
	settings []string
	side     *lab.Sidecar
}

// turns runs each load on a sidecar of each stance, in turn, o.repeats times. The runs
// are by the stance's name and by load.
func turns(ctx context.Context, o options, l *lab.Lab, cluster *lab.Cluster, all []stance, loads []float64, run func(side *lab.Sidecar, load float64) seen) (map[string]map[float64][]seen, error) {
	runs := map[string]map[float64][]seen{}
	for i, v := range all {
		side, err := l.Sidecar(ctx, cluster.Endpoint(), append([]string{fmt.Sprint("pool.max=", overloadSessions), fmt.Sprint("pool.min=", overloadSessions)}, v.settings...)...)
		if err != nil {
			return nil, err
		}
		all[i].side, runs[v.name] = side, map[float64][]seen{}
		defer l.End(side.Process)
		// Sessions are open and the time of the work is known.
		lab.Closed(ctx, overloadSessions, time.Second, func(ctx context.Context) error {
			_, err := side.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			return err
		})
	}
	for range o.repeats {
		for _, load := range loads {
			for _, v := range all {
				runs[v.name][load] = append(runs[v.name][load], run(v.side, load))
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
			}
		}
	}
	return runs, nil
}

func goodput(ctx context.Context, o options, l *lab.Lab, cluster *lab.Cluster, out *strings.Builder) error {
	all := []stance{
		{name: "without (`pool.shed: off`)", settings: []string{"pool.shed=off"}},
		{name: "defaults"},
	}
	capacity := float64(overloadSessions) / overloadService.Seconds()
	loads := []float64{0.5, 1, 1.5, 2, 3, 4}
	runs, err := turns(ctx, o, l, cluster, all, loads, func(side *lab.Sidecar, load float64) seen {
		return offer(ctx, side, "web", load*capacity, o.duration, overloadPatience)
	})
	if err != nil {
		return err
	}
	peak := map[string]float64{}
	for name, byLoad := range runs {
		for _, some := range byLoad {
			peak[name] = max(peak[name], middle(some, seen.perSecond))
		}
	}
	fmt.Fprintf(out, "Statements of %v on %d sessions, so at most %.0f a second; each call has %v, calls come at random; medians of %d runs of %v, of which the first second does not count.\n\n", overloadService, overloadSessions, capacity, overloadPatience, o.repeats, o.duration)
	fmt.Fprintf(out, "| | offered | answered in time, a second | of its peak | p50 | p99 | refused | after p50 | p99 | out of time |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, v := range all {
		normal := middle(runs[v.name][loads[0]], quantile(good, 0.99))
		for _, load := range loads {
			r := runs[v.name][load]
			rate, p99 := middle(r, seen.perSecond), middle(r, quantile(good, 0.99))
			fmt.Fprintf(out, "| %s | %gx | %.0f | %.0f %% | %.1f ms | %.1f ms (%.1fx) | %.0f %% | %.1f ms | %.1f ms | %.0f %% |\n", v.name, load, rate, 100*rate/peak[v.name],
				middle(r, quantile(good, 0.5)), p99, p99/normal, middle(r, part(func(r seen) int { return len(r.refused) })),
				middle(r, quantile(refused, 0.5)), middle(r, quantile(refused, 0.99)), middle(r, part(func(r seen) int { return r.vain })))
		}
	}
	return nil
}

func flood(ctx context.Context, o options, l *lab.Lab, cluster *lab.Cluster, out *strings.Builder) error {
	all := []stance{
		{name: "without (`apps.max: 1`: both are one app)", settings: []string{"apps.max=1", "apps.limits=somebody"}},
		{name: "shares"},
	}
	capacity := float64(overloadSessions) / overloadService.Seconds()
	const own = 0.35 // of the capacity, of which half is its share
	loads := []float64{0, 1 - own, 2, 4}
	runs, err := turns(ctx, o, l, cluster, all, loads, func(side *lab.Sidecar, load float64) (quiet seen) {
		var both sync.WaitGroup
		both.Go(func() { offer(ctx, side, "loud", load*capacity, o.duration, floodPatience) })
		if rest(ctx, o.duration/4) { // the line is there
			quiet = offer(ctx, side, "quiet", own*capacity, o.duration/2, floodPatience)
		}
		both.Wait()
		return quiet
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe app `quiet` offers %.2fx of what can be done, `loud` more and more; the figures are those of `quiet`. Each call has %v.\n\n", own, floodPatience)
	fmt.Fprintf(out, "| | `loud` offers | wait p50 | p99 | call p50 | p99 | answered | not |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, v := range all {
		for _, load := range loads {
			r := runs[v.name][load]
			fmt.Fprintf(out, "| %s | %gx | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.0f | %.0f |\n", v.name, load,
				middle(r, quantile(waits, 0.5)), middle(r, quantile(waits, 0.99)), middle(r, quantile(good, 0.5)), middle(r, quantile(good, 0.99)),
				middle(r, func(r seen) float64 { return float64(len(r.good)) }), middle(r, func(r seen) float64 { return float64(len(r.refused) + r.vain) }))
		}
	}
	return nil
}
