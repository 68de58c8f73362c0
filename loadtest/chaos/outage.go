package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// struckTable is the table whose calls the faults of the database strike: the idempotent upserts.
const struckTable = "written"

// struckRatio is the most that the p99 of the other tables' calls may grow.
const struckRatio = 1.3

// outageOf is a row in which the database, and no node, rejects a part of the calls of one
// table, on all nodes alike: no node is ejected, calls on other tables do not notice, and the
// sidecar names what it is. Windows with and without the fault take turns, so that what else
// the machine does strikes both alike.
func outageOf(fault stand.Fault, finding, says string) func(*script) func() {
	return func(r *script) func() {
		r.normal()
		shares := []float64{1, 0.02, 0.2, 1, 0.5}
		if r.o.Quick {
			shares = []float64{1}
		}
		begun := r.rec.now()
		r.event = begun
		var ratios []float64
		said, told := "nothing", false
		for _, share := range shares {
			without := r.measure()
			fault.Share = share
			with := r.struck(fault, func() {
				if !told {
					said, told = r.tells(finding, says)
				}
			})
			if r.err != nil {
				return nil
			}
			n, a := r.rec.others(without), r.rec.others(with)
			r.log("others: p99 %.1f ms without, %.1f ms with", n.P99, a.P99)
			ratios = append(ratios, round(a.P99/n.P99))
			r.result.Normal, r.result.After = &n, &a
			r.result.Others = round(max(r.result.Others, without.others, with.others))
		}
		ejected := ask(r, r.ejections)
		return func() {
			sorted := slices.Sorted(slices.Values(ratios))
			median := sorted[len(sorted)/2]
			r.figure("p99 of other tables with/without, each pair", ratios)
			r.figure("p99 after/normal", median)
			r.goal("no node is ejected", len(ejected) == 0, "%d: %s", len(ejected), strings.Join(ejected, "; "))
			r.goal(fmt.Sprintf("the finding is %s and names %q", finding, says), told, "%s", said)
			r.none("calls on other tables do not fail", r.failing(begun, func(s sample) bool { return s.kind != write }))
			r.timed(
				fmt.Sprintf("p99 of calls on other tables within %.1f of that without, by the median of %d pairs",
					struckRatio, len(ratios)),
				median <= struckRatio, "%.2f, of %.2f to %.2f", median, sorted[0], sorted[len(sorted)-1],
			)
		}
	}
}

// struck makes a fault of the database, measures a window with it, does what is to be done before it
// ends, and lets the retries of what it struck end.
func (r *script) struck(fault stand.Fault, before func()) span {
	r.line.event(fmt.Sprintf("%s for %.0f %%", fault.Kind, 100*fault.Share))
	r.log("%s for %.0f %% of the calls on %s", fault.Kind, 100*fault.Share, struckTable)
	id := ask(r, func(ctx context.Context) (string, error) { return r.stack.control.AddFault(ctx, fault) })
	with := r.measure()
	before()
	r.try(func(ctx context.Context) error { return r.stack.control.RemoveFault(ctx, id) })
	r.sleep(time.Second)
	return with
}

// tells waits until the sidecar has a finding whose text names something, and returns what it has.
func (r *script) tells(finding, says string) (said string, ok bool) {
	_, ok = r.until(r.rec.now(), 10*time.Second, func() (told bool) {
		r.try(func(ctx context.Context) (err error) {
			said, told, err = r.finds(ctx, finding, says)
			return err
		})
		return told
	})
	return said, ok
}

// others is the window of the operations that do not touch the struck table.
func (r *recorder) others(s span) Window {
	return windowOf(s.from, s.to, slices.DeleteFunc(r.within(s.from, s.to), func(s sample) bool { return s.kind == write }))
}

// finds reports whether the sidecar has a finding whose text names something, and what it has.
func (r *run) finds(ctx context.Context, code, says string) (said string, ok bool, err error) {
	var state struct {
		Findings []struct{ Code, Text string }
	}
	if err := r.sidecar.read(ctx, "/state/findings", &state); err != nil {
		return "", false, err
	}
	var all []string
	for _, f := range state.Findings {
		all = append(all, f.Code+": "+f.Text)
		ok = ok || f.Code == code && strings.Contains(f.Text, says)
	}
	return strings.Join(all, "; "), ok, nil
}

// ejections are the nodes that the sidecar took out of use, by its events.
func (r *run) ejections(ctx context.Context) (all []string, err error) {
	data, err := r.sidecar.Get(ctx, "/events")
	if err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var event struct {
			Node       uint32
			To, Reason string
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, fmt.Errorf("admin /events: %w", err)
		}
		if event.To == "ejected" {
			all = append(all, fmt.Sprintf("node %d: %s", event.Node, event.Reason))
		}
	}
	return all, nil
}
