package overhead

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// startSessions is pool.min of the sidecars that are started.
const startSessions = 20

// startCase is how long it takes from the start of the program to its first answer.
func startCase(ctx context.Context, l *lab.Lab) error {
	if !l.Wanted("start") {
		return nil
	}
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	c := lab.Case{Name: "start", Title: "From the start of the program to the first answer",
		Text: fmt.Sprintf(
			`The latencies are from the start of the process to the answer to its first call of the plain API over gRPC, a statement, which is sent as soon as it says that it serves; three nodes,
pool.min=%d. *ready-ns* is until it says so, *warm-ns* until the pool has its %d sessions: all but the first four are opened at a pace, about one in 50 ms, so that processes that start together do not press the cluster together.
The waiting client asks for the state of the pool every 5 ms.`,
			startSessions, startSessions,
		),
		Figures: []string{lab.P50, lab.Max, "ready-ns", "warm-ns"}, Ratios: []string{}}
	for i, program := range l.Sidecars {
		name := l.Name("sidecar", i)
		c.Variants = append(c.Variants, lab.Variant{Name: name, WarmUp: func(context.Context) error { return nil },
			Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
				return starts(ctx, l, program, cluster.Endpoint(), d)
			}})
		c.Claims = append(c.Claims,
			lab.Claim{Text: "start to first served call (pool.min=20, three nodes), ns", Variant: name, Figure: lab.P50,
				Kind: lab.Value, Most: float64(150 * time.Millisecond)})
	}
	_, err = l.Compare(ctx, c)
	return err
}

// starts starts sidecars, one after the other, as often as fits into the time, at least once.
func starts(ctx context.Context, l *lab.Lab, program, endpoint string, d time.Duration) (lab.Result, error) {
	r, begun := lab.NewRecorder(), time.Now()
	var ready, warm time.Duration
	n := 0
	for ; n == 0 || time.Since(begun) < d; n++ {
		one := time.Now()
		side, err := l.SidecarOf(ctx, program, endpoint, nil, fmt.Sprintf("pool.min=%d", startSessions))
		if err != nil {
			return lab.Result{}, err
		}
		ready += time.Since(one)
		_, err = side.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "10s"})
		r.Add(time.Since(one), err)
		err = poolHas(ctx, side, func(p *sidecarv1.PoolStatus) bool { return p.Idle+p.Busy >= startSessions })
		warm += time.Since(one)
		if l.End(side.Process); err != nil {
			return lab.Result{}, err
		}
	}
	result := r.Result(time.Since(begun))
	result.Closed = true
	result.Figures = lab.Figures{"ready-ns": float64(ready) / float64(n), "warm-ns": float64(warm) / float64(n)}
	return result, nil
}

// poolHas waits until the pool of a sidecar is as f wants it, but not for ever.
func poolHas(ctx context.Context, side *lab.Sidecar, f func(*sidecarv1.PoolStatus) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the pool did not get its sessions within 30s"))
	defer cancel()
	for {
		status, err := side.Client.Status(ctx, &sidecarv1.StatusRequest{})
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if f(status.GetPool()) {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
