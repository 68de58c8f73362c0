package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// restarted is what calls through a sidecar saw while the cluster restarted.
type restarted struct {
	took   time.Duration
	calls  int
	errors map[string]int // by code
	worst  time.Duration
	output string // of the command, its end
	err    error  // of the command
	lost   int    // rows that were acknowledged and are not there
	checks bool   // they could be counted
}

func (r *restarted) failed() (n int) {
	for _, count := range r.errors {
		n += count
	}
	return n
}

func (r *restarted) text() string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"Eight callers wrote and read through one sidecar, one call after the other, from 2 s before the restart "+
			"until 5 s after it.\n\n| | |\n|---|---|\n")
	fmt.Fprintf(&b, "| took | %v |\n| calls | %d |\n| worst call | %v |\n", r.took.Round(time.Second), r.calls,
		r.worst.Round(time.Millisecond))
	for _, code := range slices.Sorted(maps.Keys(r.errors)) {
		fmt.Fprintf(&b, "| failed: %s | %d |\n", cell(code), r.errors[code])
	}
	if r.checks {
		fmt.Fprintf(&b, "| rows acknowledged and not there | %d |\n", r.lost)
	}
	if r.err != nil {
		fmt.Fprintf(&b, "| the command | %s |\n", cell(r.err.Error()))
	}
	if r.output != "" {
		fmt.Fprintf(&b, "\n```\n%s\n```\n", cut(r.output, 3000))
	}
	return b.String()
}

const callers = 8

// runRestart runs the command, with load through a sidecar.
func (r *report) runRestart(ctx context.Context) {
	var access []string
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "SIDECAR_YDB_") {
			access = append(access, v)
		}
	}
	side, err := stand.StartSidecar(ctx, stand.Serve{Program: r.options.sidecar, URL: r.options.ydb, Env: access})
	if err != nil {
		r.fail("restart: %v", err)
		return
	}
	defer func() {
		side.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if code, err := side.Stop(ctx); code != 0 || err != nil {
			r.fail("restart: the sidecar ended with exit code %d, %v", code, err)
		}
	}()
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	table := "`" + r.options.directory + "/restart`"
	if _, err := side.Client.Execute(
		starting,
		statement("CREATE TABLE "+table+" (caller Uint64 NOT NULL, n Uint64 NOT NULL, PRIMARY KEY (caller, n))"),
	); err != nil {
		r.fail("restart: %v", err)
		return
	}
	r.progress("the restart: %s", r.options.restart)
	r.restart = under(ctx, side.Client, table, func() ([]byte, error) {
		return exec.CommandContext(ctx, "sh", "-c", r.options.restart).CombinedOutput()
	}, 2*time.Second, 5*time.Second)
	if r.restart.err != nil {
		r.fail("the command of the restart: %v", r.restart.err)
	}
	if r.restart.lost > 0 {
		r.fail("restart: %d rows were acknowledged and are not there", r.restart.lost)
	}
}

func statement(sql string) *sidecarv1.ExecuteRequest {
	return &sidecarv1.ExecuteRequest{Sql: sql, Idempotent: true}
}

// under runs a command under load, which begins before and ends after it.
func under(ctx context.Context, api sidecarv1.SidecarClient, table string, command func() ([]byte, error),
	before, after time.Duration) *restarted {
	r := &restarted{errors: map[string]int{}}
	began := time.Now()
	loading, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex // guards r and the next two
	acknowledged := 0
	var unsure []string // conditions of rows whose write failed: they may be there
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for n := 0; loading.Err() == nil; n++ {
				called := time.Now()
				// A call that has begun is let finish: what it says counts.
				one, cancel := context.WithTimeout(ctx, time.Minute)
				_, err := api.Execute(one, statement(fmt.Sprintf("UPSERT INTO %s (caller, n) VALUES (%dul, %dul)", table, caller, n)))
				if err == nil {
					_, readErr := api.Execute(
						one,
						statement(fmt.Sprintf("SELECT n FROM %s WHERE caller = %dul AND n = %dul", table, caller, n)),
					)
					mu.Lock()
					acknowledged++
					r.note(readErr, time.Since(called))
					mu.Unlock()
				}
				cancel()
				mu.Lock()
				if r.note(err, time.Since(called)); err != nil {
					unsure = append(unsure, fmt.Sprintf("caller = %dul AND n = %dul", caller, n))
				}
				mu.Unlock()
			}
		})
	}
	wait(ctx, before)
	output, err := command()
	wait(ctx, after)
	stop()
	all.Wait()
	r.took, r.err = time.Since(began), err
	r.output = strings.TrimSpace(string(output[max(0, len(output)-3000):]))
	there, err := count(ctx, api, table, "true")
	for _, row := range unsure {
		if err == nil {
			var one int
			one, err = count(ctx, api, table, row)
			there -= one
		}
	}
	if r.checks = err == nil; r.checks {
		r.lost = max(0, acknowledged-there)
	} else {
		r.errors["count: "+code(err)]++
	}
	return r
}

func count(ctx context.Context, api sidecarv1.SidecarClient, table, where string) (int, error) {
	answer, err := api.Execute(ctx, statement("SELECT COUNT(*) AS n FROM "+table+" WHERE "+where))
	if err != nil {
		return 0, err
	}
	if len(answer.GetRows()) != 1 {
		return 0, fmt.Errorf("%d rows of a count", len(answer.GetRows()))
	}
	return int(answer.GetRows()[0].GetValues()[0].GetUint64Value()), nil
}

// note counts a call.
func (r *restarted) note(err error, took time.Duration) {
	r.calls++
	r.worst = max(r.worst, took)
	if err != nil {
		r.errors[code(err)]++
	}
}

// code is the sidecar's word for an error.
func code(err error) string {
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(*sidecarv1.Error); ok {
			return d.GetCode()
		}
	}
	return status.Code(err).String()
}

// wait lasts for a time, or until the context ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
