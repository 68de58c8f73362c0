package chaos

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// classes are the kinds of errors in the order of the pictures.
var classes = []string{"idempotent", "safe", "unknown", "final"}

// sections are the table, and two pictures of the worst run of each row.
func (r *Report) sections() []lab.Section {
	all := []lab.Section{{Text: r.Markdown()}}
	for _, one := range r.Rows {
		if one.Worst != nil {
			for _, picture := range one.Worst.pictures() {
				all = append(all, lab.Section{Picture: picture})
			}
		}
	}
	return all
}

// pictures show throughput, errors by class and what the sidecar thought of each node over time, and the p99.
func (r *Result) pictures() []*lab.Picture {
	good, p99, failed := lab.Line{Name: "good"}, lab.Line{Name: "p99"}, make([]lab.Line, len(classes))
	for _, one := range r.Seconds {
		if one.At < r.Begun {
			continue
		}
		good.X, good.Y = append(good.X, one.At), append(good.Y, one.Good)
		p99.Y = append(p99.Y, one.P99)
		for i, class := range classes {
			failed[i].Name = class
			failed[i].Y = append(failed[i].Y, float64(one.Failed[class])/grain.Seconds())
		}
	}
	if len(good.X) == 0 {
		return nil
	}
	p99.X = good.X
	lines := []lab.Line{good}
	for _, line := range failed {
		if slices.Max(line.Y) > 0 {
			line.X = good.X
			lines = append(lines, line)
		}
	}
	verdict := "good"
	if !r.OK {
		verdict = "missed"
	}
	title := fmt.Sprintf("%s (seed %d, %d operations a second): %s", r.Event, r.Seed, r.Rate, verdict)
	last := good.X[len(good.X)-1]
	marks := r.marks(good.X[0], last)
	return []*lab.Picture{
		{Title: title, X: "s", Y: "calls a second", Lines: lines, Marks: marks, Bands: r.bands(good.X[0], last)},
		{Title: title, X: "s", Y: "ms", LogY: true, Lines: []lab.Line{p99}, Marks: marks},
	}
}

// marks are what the harness did; names of more than eight would cover each other.
func (r *Result) marks(first, last float64) (all []lab.Mark) {
	for _, e := range r.Events {
		if e.At >= first && e.At <= last {
			all = append(all, lab.Mark{At: e.At, Name: e.What})
		}
	}
	for i := range all {
		if len(all) > 8 {
			all[i].Name = ""
		}
	}
	return all
}

// bands are the states of each node; equal neighbours are one band.
func (r *Result) bands(first, last float64) (all []lab.Band) {
	seen := map[uint32]bool{}
	for _, tick := range r.Ticks {
		for id := range tick.Nodes {
			seen[id] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		begun := len(all)
		for _, tick := range r.Ticks {
			state, at := tick.Nodes[id], min(last, max(first, tick.At))
			if len(all) > begun {
				all[len(all)-1].To = at
			}
			if len(all) == begun || all[len(all)-1].State != state {
				all = append(all, lab.Band{Name: fmt.Sprintf("node %d", id), State: state, From: at, To: at})
			}
		}
		all[len(all)-1].To = last
	}
	return slices.DeleteFunc(all, func(b lab.Band) bool { return b.State == "" || b.To <= b.From })
}
