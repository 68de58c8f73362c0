package history

import (
	"slices"
	"strconv"
	"time"
)

// Series are the points of one series, oldest first.
type Series []float32

// MarshalJSON writes four digits of each point, which is all that a chart shows.
func (s Series) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 2+6*len(s))
	b = append(b, '[')
	for i, v := range s {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, float64(v), 'g', 4, 64)
	}
	return append(b, ']'), nil
}

// History is a run of points.
type History struct {
	StepMS int64                        `json:"step_ms"`
	First  uint64                       `json:"first"` // number of the first point here; there are none if it is greater than Last
	Last   uint64                       `json:"last"`  // number of the newest point; the first of all is 1
	At     int64                        `json:"at_ms"` // of the newest: milliseconds since 1970
	All    map[string]Series            `json:"all"`
	Errors map[string]Series            `json:"errors"`        // per second, by kind; those that came in this time
	Caller []string                     `json:"caller_errors"` // kinds in Errors that are errors of callers
	Nodes  map[uint32]map[string]Series `json:"nodes"`
}

// Since returns the points after the one of that number, and all that there are
// if there is no such point.
func (r *Recorder) Since(after uint64) History {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := after + 1
	if after > r.last || first+Points <= r.last {
		first = r.last - min(r.last, Points) + 1
	}
	h := History{StepMS: int64(Step / time.Millisecond), First: first, Last: r.last, At: r.at.UnixMilli(),
		All: make(map[string]Series, seriesSize), Errors: map[string]Series{}, Caller: []string{},
		Nodes: make(map[uint32]map[string]Series, len(r.nodes))}
	for s, name := range seriesNames {
		h.All[name] = r.series[s].cut(first, r.last, 1, r.last)
	}
	for status, k := range r.kinds {
		if s := k.points.cut(first, r.last, 1, r.last); s.any() {
			h.Errors[status] = s
			if k.caller {
				h.Caller = append(h.Caller, status)
			}
		}
	}
	slices.Sort(h.Caller)
	for id, n := range r.nodes {
		one := make(map[string]Series, nodeSeriesSize)
		for s, name := range nodeNames {
			one[name] = n.series[s].cut(first, r.last, n.since, n.seen)
		}
		h.Nodes[id] = one
	}
	return h
}

// cut copies the points from first to last; those outside of since to seen are 0.
func (from *ring) cut(first, last, since, seen uint64) Series {
	out := make(Series, last+1-first)
	for n := max(first, since); n <= min(last, seen); n++ {
		out[n-first] = from[n%Points]
	}
	return out
}

func (s Series) any() bool {
	for _, v := range s {
		if v != 0 {
			return true
		}
	}
	return false
}
