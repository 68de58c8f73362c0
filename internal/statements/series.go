package statements

import (
	"cmp"
	"slices"
)

// The series of metrics: a digest has one or counts as the rest.
const (
	mostSeries = 50
	keepsRank  = 75 // a digest keeps its series up to this place, by time
)

// series are the digests that have one.
type series struct {
	n    int
	rest Sums // of the calls of all others, while they had none
}

// enter gives a digest a series, if there is room. It counts from here on.
func (s *series) enter(d *digest) {
	if s.n < mostSeries {
		d.shown, d.from = true, d.total.Sums
		s.n++
	}
}

// chooseLocked gives series to the digests whose calls took the most time. A series is taken only from a digest that has
// fallen well behind, so that those of digests with about the same time do not come and go.
func (r *Recorder) chooseLocked() {
	all := make([]*digest, 0, len(r.digests))
	for _, d := range r.digests {
		all = append(all, d)
	}
	byWeight(all)
	last := len(all) - 1
	for _, d := range all[:min(len(all), mostSeries)] {
		if d.shown {
			continue
		}
		if r.series.n >= mostSeries {
			for last > keepsRank && !all[last].shown {
				last--
			}
			if last <= keepsRank {
				return
			}
			all[last].shown = false
			r.series.n--
		}
		r.series.enter(d)
	}
}

func byWeight(all []*digest) {
	slices.SortFunc(all, func(a, b *digest) int { return cmp.Or(cmp.Compare(b.weight(), a.weight()), cmp.Compare(a.id, b.id)) })
}

// Series is what metrics have of a digest.
type Series struct {
	Digest, Kind string
	Sums         // since the digest has a series; they only grow
}

// Series returns the series of metrics. The last one is of all calls whose digest had none when they ended.
func (r *Recorder) Series() (all []Series) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.digests {
		if d.shown {
			all = append(all, Series{d.id.String(), d.kind, d.total.since(&d.from)})
		}
	}
	return append(all, Series{"other", "", r.series.rest})
}

// since is what was added after old.
func (s Sums) since(old *Sums) Sums {
	s.Calls -= old.Calls
	s.Failed -= old.Failed
	s.Retries -= old.Retries
	s.Rows -= old.Rows
	s.Bytes -= old.Bytes
	s.Acquire -= old.Acquire
	s.Hop -= old.Hop
	s.Took -= old.Took
	return s
}
