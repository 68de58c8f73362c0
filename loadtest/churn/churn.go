// Package churn is the experiment that finds what callers leave behind in the sidecar that come and go by
// thousands, cancel their calls, or read slowly.
package churn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/soak"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Experiment looks for what callers leave behind who come and go, give up, or dawdle.
var Experiment = lab.Experiment{
	Name:  "churn",
	Title: "Callers who come and go, give up, or dawdle",
	Question: `Clients connect, make one verified call and leave: 64 at a time over each face, then all of them at once, a third over each. Then half of all calls are cancelled at random moments
(the nodes answer after 2 ms, an injected delay, so that the moments hit calls under way). Then slow readers take a table of some megabytes, each a few rows at a time. After each stage the callers are gone, some
seconds pass, the sidecar collects its garbage, and what it holds is read from its admin API, from the nodes' own list of sessions and from /stand. The sidecar refuses nobody for want of time (` + "`pool.shed=off`" + `): all are to be served. All stages run twice: what the second lap adds to the first is a leak, what
the first adds to the start may be caches and memory that Go keeps for later. The latencies are those of clients that share two cores with everything else; they say nothing.`,
	Run: runChurn,
}

// A caller makes its call within this time, or it has failed.
const callTime = 20 * time.Second

// What may be left by a whole lap of stages, more than before it. A connection
// or two of the experiment's own are among it, and timers of the runtime.
const (
	leftGoroutines  = 20
	leftDescriptors = 10
	leftMemory      = 8e6 // bytes: the grain at which Go gives memory back
)

func runChurn(ctx context.Context, l *lab.Lab) error {
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	s, err := l.Sidecar(ctx, cluster.Endpoint(), "admin.pprof=on", "pool.min=10", "pool.shed=off")
	if err != nil {
		return err
	}
	if err := traffic.Fill(ctx, s.Client); err != nil {
		return err
	}
	if err := fillWide(ctx, s.Client, lab.At(l, 500, 5000, 10_000)); err != nil {
		return err
	}
	c := &churning{l: l, cluster: cluster, sidecar: s, rest: lab.At(l, 300*time.Millisecond, 2*time.Second, 4*time.Second),
		clients: lab.At(l, 60, 600, 5000), calls: lab.At(l, 300, 3000, 20_000), readers: lab.At(l, 6, 30, 60),
		rows: lab.At(l, 500, 5000, 10_000),
		span: lab.At(l, 300*time.Millisecond, 2*time.Second, 5*time.Second)}
	stages := c.stages()
	if err := c.warmUp(ctx, stages); err != nil {
		return err
	}
	start, err := c.settled(ctx)
	if err != nil {
		return err
	}
	runs, laps := make([][]lab.Run, len(stages)), []lab.Gauges{}
	for lap := range lab.At(l, 1, 2, 2) {
		for i, one := range stages {
			run, err := c.measure(ctx, one)
			if err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
			runs[i] = append(runs[i], run)
			l.Progress("lap %d, %s: %d calls, peak %.0f connections, %.1f MB", lap+1, one.name, run.Calls,
				run.Figures["peak-"+lab.Clients], run.Figures["peak-"+lab.Anonymous]/1e6)
		}
		left, err := c.settled(ctx)
		if err != nil {
			return err
		}
		laps = append(laps, left)
	}
	return c.report(ctx, stages, runs, start, laps)
}

// churning is the experiment under way.
type churning struct {
	l       *lab.Lab
	cluster *lab.Cluster
	sidecar *lab.Sidecar
	rest    time.Duration // after a stage, before what is left is counted
	clients int           // of a stage of visits
	calls   int           // of the storm
	readers int
	rows    int           // that each of them reads
	span    time.Duration // in which it reads them, at least
}

// stage is one way to trouble the sidecar. It returns when its callers are gone.
type stage struct {
	name string
	run  func(ctx context.Context, r *lab.Recorder, figures lab.Figures) error
}

func (c *churning) stages() (all []stage) {
	for _, kind := range traffic.FaceKinds {
		all = append(all, stage{"come and go, " + kind, func(ctx context.Context, r *lab.Recorder, _ lab.Figures) error {
			c.visits(ctx, r, 64, c.clients, func(int) string { return kind }, func() {})
			return nil
		}})
	}
	return append(all, stage{"all at once", c.crowd}, stage{"half is cancelled", c.storm}, stage{"slow readers", c.slowReaders})
}

// warmUp has every code run once, so that its one-time costs are not taken for leaks.
func (c *churning) warmUp(ctx context.Context, stages []stage) error {
	small := *c
	small.clients, small.calls, small.readers, small.span = 20, 64, 3, 0
	for _, one := range small.stages() {
		r := lab.NewRecorder()
		if err := one.run(ctx, r, lab.Figures{}); err != nil {
			return fmt.Errorf("warm up, %s: %w", one.name, err)
		}
		if result := r.Result(time.Second); result.Failed > 0 {
			return fmt.Errorf("warm up, %s: %s", one.name, result.FirstFail)
		}
	}
	return nil
}

// settled waits until the callers' traces are gone, has the garbage collected and reads what is held.
func (c *churning) settled(ctx context.Context) (lab.Gauges, error) {
	if err := traffic.Pause(ctx, c.rest); err != nil {
		return lab.Gauges{}, err
	}
	// What one collection finds unreachable can have finalizers; the second one takes it.
	if _, err := c.sidecar.Gauges(ctx, true); err != nil {
		return lab.Gauges{}, err
	}
	return traffic.AtRest(ctx, c.sidecar, 20*time.Second)
}

// measure runs a stage and notes what the sidecar held before, at most and afterwards.
func (c *churning) measure(ctx context.Context, one stage) (lab.Run, error) {
	before, err := c.sidecar.Gauges(ctx, false)
	if err != nil {
		return lab.Run{}, err
	}
	figures := lab.Figures{}
	run, err := c.l.Once(
		ctx,
		lab.Variant{Name: one.name, Under: []*lab.Process{c.sidecar.Process},
			Run: func(ctx context.Context, _ time.Duration) (lab.Result, error) {
				watching, stop := context.WithCancel(ctx)
				peak := make(chan lab.Figures, 1)
				go func() { peak <- watch(watching, c.sidecar, 250*time.Millisecond) }()
				r, begun := lab.NewRecorder(), time.Now()
				err := one.run(ctx, r, figures)
				result := r.Result(time.Since(begun))
				stop()
				// A stage can know its peak better than who looks from time to time.
				for name, value := range <-peak {
					figures["peak-"+name] = max(figures["peak-"+name], value)
				}
				result.Closed, result.Figures = true, figures
				return result, err
			}},
		0,
	)
	if err != nil {
		return run, err
	}
	after, err := c.settled(ctx)
	maps.Copy(run.Figures, prefixed("before-", before.Figures()))
	maps.Copy(run.Figures, prefixed("after-", after.Figures()))
	return run, err
}

func prefixed(prefix string, f lab.Figures) lab.Figures {
	out := lab.Figures{}
	for name, value := range f {
		out[prefix+name] = value
	}
	return out
}

// watch returns the greatest of each gauge until ctx ends.
func watch(ctx context.Context, s *lab.Sidecar, every time.Duration) lab.Figures {
	most := lab.Figures{}
	for {
		// One that cannot be read is left out: the sidecar is very busy.
		if g, err := s.Gauges(ctx, false); err == nil {
			atMost(most, g.Figures())
		}
		if traffic.Pause(ctx, every) != nil {
			return most
		}
	}
}

// atMost makes each of most at least what it is in f.
func atMost(most, f lab.Figures) {
	for name, value := range f {
		most[name] = max(most[name], value)
	}
}

// visits has n clients connect, call once, wait for hold and leave, so many of them at a time.
func (c *churning) visits(ctx context.Context, r *lab.Recorder, atATime, n int, kind func(i int) string, hold func()) {
	each(atATime, n, func(i int) {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		begun := time.Now()
		f, err := traffic.DialFace(kind(i), c.sidecar, 1)
		if err == nil {
			err = traffic.VerifiedRead(ctx, f)
		}
		r.Add(time.Since(begun), err)
		hold()
		if f != nil {
			f.Close()
		}
	})
}

// each calls f for 0 to n-1, so many at a time, and waits for all.
func each(atATime, n int, f func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(atATime, n) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				f(int(i))
			}
		})
	}
	workers.Wait()
}

// crowd has all clients connected at the same time. They connect 64 at a time: what is asked is what they take, not who is first.
func (c *churning) crowd(ctx context.Context, r *lab.Recorder, figures lab.Figures) (err error) {
	var inside sync.WaitGroup
	inside.Add(c.clients)
	leave, connecting := make(chan struct{}), make(chan struct{}, 64)
	var gone sync.WaitGroup
	for i := range c.clients {
		connecting <- struct{}{}
		gone.Go(func() {
			c.visits(ctx, r, 1, 1, func(int) string { return traffic.FaceKinds[i%len(traffic.FaceKinds)] }, func() {
				<-connecting
				inside.Done()
				<-leave
			})
		})
	}
	inside.Wait()
	peak, err := c.sidecar.Gauges(ctx, false)
	atMost(figures, prefixed("peak-", peak.Figures()))
	close(leave)
	gone.Wait()
	return err
}

// storm cancels every second call at a random moment.
func (c *churning) storm(ctx context.Context, r *lab.Recorder, figures lab.Figures) error {
	defer func() { _ = c.cluster.Everywhere(context.WithoutCancel(ctx), "clear", nil) }() // if it fails, so does what follows
	if err := c.cluster.Everywhere(ctx, "delay", map[string]any{"delay": "2ms", "methods": []string{"ExecuteQuery"}}); err != nil {
		return err
	}
	faces, err := c.faces(64)
	if err != nil {
		return err
	}
	defer closeAll(faces)
	var hit atomic.Int64
	each(64, c.calls, func(i int) {
		call, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		f, begun := faces[i%len(faces)], time.Now()
		if i/len(faces)%2 == 1 {
			defer time.AfterFunc(rand.N(20*time.Millisecond), cancel).Stop()
		}
		var err error
		if i/len(faces)%8 < 2 { // a stream in four
			err = f.Stream(call, soak.Stream, func(int) {})
		} else {
			err = traffic.VerifiedRead(call, f)
		}
		if err != nil && call.Err() != nil && ctx.Err() == nil && !errors.Is(call.Err(), context.DeadlineExceeded) {
			hit.Add(1)
			err = nil // that was asked for
		}
		r.Add(time.Since(begun), err)
	})
	figures["cancelled-calls"] = float64(hit.Load())
	if hit.Load() == 0 {
		return errors.New("no call was cancelled before it ended: nothing was measured")
	}
	return nil
}

// faces makes a caller of each kind; a face over wire keeps so many sessions.
func (c *churning) faces(sessions int) (all []traffic.Face, err error) {
	for _, kind := range traffic.FaceKinds {
		f, err := traffic.DialFace(kind, c.sidecar, sessions)
		if err != nil {
			return all, err
		}
		all = append(all, f)
	}
	return all, nil
}

func closeAll(faces []traffic.Face) {
	for _, f := range faces {
		f.Close()
	}
}

// slowReaders has each reader take all of the wide table, as slowly as the span says.
func (c *churning) slowReaders(ctx context.Context, r *lab.Recorder, _ lab.Figures) error {
	each(c.readers, c.readers, func(i int) {
		ctx, cancel := context.WithTimeout(ctx, c.span+callTime)
		defer cancel()
		begun, seen := time.Now(), 0
		f, err := traffic.DialFace(traffic.FaceKinds[i%len(traffic.FaceKinds)], c.sidecar, 1)
		if err == nil {
			defer f.Close()
			err = f.Stream(ctx, wideSQL, func(rows int) {
				seen += rows
				if seen%100 < rows { // it takes as much of the time as it has of the rows
					time.Sleep(time.Until(begun.Add(c.span * time.Duration(seen) / time.Duration(c.rows))))
				}
			})
		}
		if err == nil && seen < c.rows {
			err = fmt.Errorf("a slow reader got %d rows; want %d", seen, c.rows)
		}
		r.Add(time.Since(begun), err)
	})
	return nil
}

// The wide table is what slow readers read: rows of 1 KB.
const (
	wideCreate = `CREATE TABLE IF NOT EXISTS wide (id Uint64, payload Utf8, PRIMARY KEY (id))`
	wideSQL    = `SELECT id, payload FROM wide`
)

func fillWide(ctx context.Context, client sidecarv1.SidecarClient, rows int) error {
	if _, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: wideCreate, Timeout: "20s"}); err != nil {
		return fmt.Errorf("create the wide table: %w", err)
	}
	payload := &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: strings.Repeat("w", 1000)}}
	for from := 0; from < rows; from += 1000 {
		request := &sidecarv1.BulkUpsertRequest{Table: "wide", Timeout: "20s"}
		for id := from; id < min(rows, from+1000); id++ {
			request.Rows = append(request.Rows,
				&sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{"id": traffic.Unsigned(uint64(id)), "payload": payload}})
		}
		if _, err := client.BulkUpsert(ctx, request); err != nil {
			return fmt.Errorf("fill the wide table: %w", err)
		}
	}
	return nil
}

func (c *churning) report(ctx context.Context, stages []stage, runs [][]lab.Run, start lab.Gauges, laps []lab.Gauges) error {
	shown := lab.Case{Name: "stages", Title: "What the sidecar held: before a stage, at most, and after it",
		Text: fmt.Sprintf(
			`%d clients in each stage of visits, %d calls in the storm, %d readers of %d rows of 1 KB. Memory is anonymous: what no file is behind. Sessions in use are of the pool; sessions of SDKs that were
never attached to, because the call that made them was cancelled, are kept for ten minutes, as YDB does.`,
			c.clients,
			c.calls, c.readers, c.rows,
		)}
	for _, name := range []string{lab.Anonymous, lab.Heap, lab.Goroutines, lab.Descriptors, lab.Clients, lab.Busy, lab.Virtual} {
		for _, when := range []string{"before-", "peak-", "after-"} {
			if when == "before-" && (name == lab.Busy || name == lab.Virtual || name == lab.Clients) {
				continue // as after the stage in the line above
			}
			shown.Figures = append(shown.Figures, when+name)
		}
	}
	shown.Figures = append([]string{lab.PerSecond, "cancelled-calls"}, shown.Figures...)
	for _, one := range stages {
		shown.Variants = append(shown.Variants, lab.Variant{Name: one.name})
	}
	t := lab.NewTable(shown, runs)
	sessions, err := c.cluster.Control.Sessions(ctx)
	if err != nil {
		return err
	}
	last := laps[len(laps)-1]
	for _, v := range leaks(start, laps, len(sessions)) {
		t.Judge(v.text, fmt.Sprintf("<= %.4g", v.most), v.value <= v.most, lab.Estimate{Median: v.value, Low: v.value, High: v.value, N: 1})
		if v.value > v.most && (v.hard || c.l.Size > lab.Smoke) {
			c.l.Report.Fault("%s: %.4g; want at most %.4g", v.text, v.value, v.most)
		}
	}
	c.l.Report.Add(lab.Section{Table: t})
	var b strings.Builder
	b.WriteString("| | goroutines | descriptors | anonymous memory | heap | sessions | in use | of SDKs " +
		"|\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	line := func(name string, g lab.Gauges) {
		fmt.Fprintf(&b, "| %s | %d | %d | %.1f MB | %.1f MB | %d | %d | %d |\n", name, g.Goroutines, g.Descriptors,
			float64(g.Anonymous)/1e6, float64(g.Heap)/1e6, g.Sessions, g.Busy, g.Virtual)
	}
	line("before the first lap", start)
	for i, g := range laps {
		line(fmt.Sprintf("after lap %d", i+1), g)
	}
	fmt.Fprintf(&b, "\nThe nodes' own list has %d sessions at the end; the sidecar says %d.", len(sessions), last.Sessions)
	c.l.Report.Add(lab.Section{Title: "From lap to lap", Text: b.String()})
	return nil
}

// leak is a thing that must not grow.
type leak struct {
	text        string
	value, most float64
	hard        bool // it does not depend on time or size
}

// leaks judges what is left after the laps; listed is the number of sessions that the nodes know.
func leaks(start lab.Gauges, laps []lab.Gauges, listed int) []leak {
	last, first := laps[len(laps)-1], start
	if len(laps) > 1 {
		first = laps[0]
	}
	// A session of the pool has a goroutine and a half; those that the pool opened meanwhile are no leak.
	return []leak{
		{"sessions in use when nobody calls", float64(last.Busy), 0, true},
		{"callers in line when nobody calls", float64(last.Waiting), 0, true},
		{"sessions on the nodes that the sidecar does not know", float64(listed - last.Sessions), 0, false},
		{"goroutines, more than after the first lap", float64(last.Goroutines - first.Goroutines),
			leftGoroutines + traffic.KeptGoroutines + 2*float64(max(0, last.Sessions-first.Sessions)), false},
		{"goroutines, more than before the first lap", float64(last.Goroutines - start.Goroutines),
			leftGoroutines + traffic.KeptGoroutines + 2*float64(max(0, last.Sessions-start.Sessions)), false},
		{"descriptors, more than before the first lap", float64(last.Descriptors - start.Descriptors), leftDescriptors, false},
		{"MB of anonymous memory, more than after the first lap", float64(last.Anonymous-first.Anonymous) / 1e6, leftMemory / 1e6, false},
		{"MB of live heap, more than after the first lap", float64(last.Heap-first.Heap) / 1e6, leftMemory / 1e6, false},
	}
}
