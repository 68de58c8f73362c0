package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/proc"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// directSessions is how many sessions the direct client has: as many as pool.max.
const directSessions = 50

// variant is one way to make the calls, measured again and again in turn.
type variant struct {
	name string
	pid  int // of the sidecar that is measured; 0: none
	run  func(ctx context.Context, duration time.Duration) result
}

// bench makes all measurements, one after the other.
func bench(ctx context.Context, o options) (*report, error) {
	s, err := startStack(ctx, o.bin)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	r := &report{Rate: o.rate, Repeats: o.repeats, Duration: o.duration.String()}
	// Memory first: of a process that has done nothing yet.
	if err := r.memory(ctx, s); err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	on, err := s.sidecar(ctx, "pool.min=50", fmt.Sprintf("admin.pprof=%t", o.profile))
	if err != nil {
		return nil, err
	}
	off, err := s.sidecar(ctx, "pool.min=50", "routing.affinity=off")
	if err != nil {
		return nil, err
	}
	d, err := dialDirect(ctx, s, directSessions)
	if err != nil {
		return nil, err
	}
	defer d.close()
	if err := fill(ctx, on.client); err != nil {
		return nil, err
	}
	attacked := func(side *sidecar) variant {
		return variant{pid: side.process.Pid(), run: func(ctx context.Context, d time.Duration) result {
			return attack(ctx, side.http, o.rate, d)
		}}
	}
	open := func(c call) func(context.Context, time.Duration) result {
		return func(ctx context.Context, d time.Duration) result { return openLoop(ctx, o.rate, d, c) }
	}
	through := overSidecar(on.client)
	r.Affinity, err = measure(ctx, s, o, []variant{
		attacked(on).named("HTTP, affinity on"),
		attacked(off).named("HTTP, affinity off"),
	})
	if err != nil {
		return nil, err
	}
	r.Added, err = measure(ctx, s, o, []variant{
		{"direct", 0, open(d.read)},
		{"sidecar, gRPC", on.process.Pid(), open(through)},
	})
	if err != nil {
		return nil, err
	}
	var closed []variant
	for _, n := range []int{1, 16, 64} {
		closed = append(closed, variant{fmt.Sprintf("gRPC, %d in flight", n), on.process.Pid(), func(ctx context.Context, d time.Duration) result {
			return closedLoop(ctx, n, d, through)
		}})
	}
	if r.CPU, err = measure(ctx, s, o, closed); err != nil || !o.profile {
		return r, err
	}
	return r, profile(ctx, on, through, filepath.Join(o.out, "cpu.pprof"))
}

// profile writes a CPU profile of a sidecar with 64 calls in flight.
func profile(ctx context.Context, side *sidecar, c call, path string) error {
	const span = 5 * time.Second
	ctx, cancel := context.WithCancel(ctx)
	var load sync.WaitGroup
	load.Go(func() { closedLoop(ctx, 64, span+time.Minute, c) }) // until the profile is there
	defer load.Wait()
	defer cancel()
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", side.admin, int(span.Seconds()))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err != nil || response.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("profile: %s", response.Status), err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return os.WriteFile(path, data, 0o644)
}

func (v variant) named(name string) variant {
	v.name = name
	return v
}

// warmUp runs before the first measured run of each variant.
const warmUp = 500 * time.Millisecond

// quiet is how many cores other programs may use during a run; with more the
// run is repeated, once.
const quiet = 0.2

// measure runs the variants in turn, forwards and backwards by turns so that a
// drift of the machine hits all alike.
func measure(ctx context.Context, s *stack, o options, variants []variant) ([]*series, error) {
	all := make([]*series, len(variants))
	for i, v := range variants {
		all[i] = &series{Name: v.name}
		v.run(ctx, warmUp)
	}
	for repeat := range o.repeats {
		for i := range variants {
			if repeat%2 == 1 {
				i = len(variants) - 1 - i
			}
			one, err := once(ctx, s, variants[i], o.duration)
			if err == nil && one.Others > quiet {
				one, err = once(ctx, s, variants[i], o.duration)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", variants[i].name, err)
			}
			all[i].Runs = append(all[i].Runs, one)
		}
	}
	for _, one := range all {
		one.summarize()
	}
	return all, nil
}

func once(ctx context.Context, s *stack, v variant, duration time.Duration) (measured, error) {
	if err := ctx.Err(); err != nil {
		return measured{}, err
	}
	before, err := s.totals(ctx, v.pid)
	if err != nil {
		return measured{}, err
	}
	m := measured{result: v.run(ctx, duration)}
	after, err := s.totals(ctx, v.pid)
	if err != nil {
		return measured{}, err
	}
	if m.Calls > 0 {
		m.CPU = (after.cpu - before.cpu) / time.Duration(m.Calls)
	}
	if calls := after.owned + after.forwarded - before.owned - before.forwarded; calls > 0 {
		m.Forwarded = float64(after.forwarded-before.forwarded) / float64(calls)
	}
	m.Others = max(0, float64(after.machine-before.machine-after.ours+before.ours)/float64(after.at.Sub(before.at)))
	return m, nil
}

// totals are counters that only grow.
type totals struct {
	at               time.Time
	cpu              time.Duration // of the sidecar that is measured
	ours             time.Duration // of this process and all it started
	machine          time.Duration // of everything that runs
	owned, forwarded int64
}

func (s *stack) totals(ctx context.Context, pid int) (t totals, err error) {
	if t.owned, err = s.counters(ctx, "owned"); err != nil {
		return t, err
	}
	if t.forwarded, err = s.counters(ctx, "forwarded"); err != nil {
		return t, err
	}
	pids := []int{os.Getpid()}
	for _, p := range s.started {
		pids = append(pids, p.Pid())
	}
	for _, one := range pids {
		usage, err := proc.ReadUsage(one)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was ended on purpose, before this measurement
		}
		if err != nil {
			return t, err
		}
		t.ours += usage.CPU
		if one == pid {
			t.cpu = usage.CPU
		}
	}
	t.at = time.Now()
	t.machine, err = proc.ReadMachine()
	return t, err
}

// openCalls is how many calls are held open for the memory figure.
const openCalls = 1000

// memory measures a sidecar at rest and with openCalls calls in flight, which
// the nodes hold by answering late.
func (r *report) memory(ctx context.Context, s *stack) error {
	side, err := s.sidecar(ctx, fmt.Sprintf("pool.max=%d", openCalls), fmt.Sprintf("pool.max_per_node=%d", openCalls))
	if err != nil {
		return err
	}
	if err := overStatus(ctx, side.client); err != nil {
		return err
	}
	idle, err := proc.ReadUsage(side.process.Pid())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, node := range s.nodes {
		if err := s.control.Do(ctx, node.ID, "delay", map[string]any{"delay": "30s", "share": 1, "methods": []string{"ExecuteQuery"}}); err != nil {
			return err
		}
	}
	calls, hold := context.WithCancel(ctx)
	var open sync.WaitGroup
	for range openCalls {
		open.Go(func() {
			// It ends by the cancel below; what it says is of no interest.
			_, _ = side.client.Execute(calls, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "50s"})
		})
	}
	defer open.Wait()
	defer hold()
	for {
		status, err := side.client.Status(ctx, &sidecarv1.StatusRequest{})
		if err != nil {
			return err
		}
		if status.Pool.Busy == openCalls {
			break
		}
		fmt.Fprintf(os.Stderr, "holding %d of %d calls\n", status.Pool.Busy, openCalls)
		time.Sleep(200 * time.Millisecond)
	}
	busy, err := proc.ReadUsage(side.process.Pid())
	if err != nil {
		return err
	}
	r.RSSIdle, r.RSSOpen, r.OpenCalls = idle.RSS, busy.RSS, openCalls
	hold()
	open.Wait()
	for _, node := range s.nodes {
		if err := s.control.Do(ctx, node.ID, "clear", nil); err != nil {
			return err
		}
	}
	return s.end(side)
}

// overStatus makes one cheap call, so that the connection and its buffers exist.
func overStatus(ctx context.Context, client sidecarv1.SidecarClient) error {
	_, err := client.Status(ctx, &sidecarv1.StatusRequest{})
	return err
}
