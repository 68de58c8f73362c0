package chaos

import (
	"slices"
	"sync"
	"time"
)

// sample is one operation of the open-loop generator, or one stream.
type sample struct {
	kind       string
	idempotent bool
	due        time.Duration // since the start of the run
	sent       time.Duration
	ended      time.Duration
	over       time.Duration // how long after the deadline of its last call the answer came; negative: before
	failed     *failure      // nil: a good answer
	commit     bool          // it failed in the call that commits
}

// recorder keeps every sample.
type recorder struct {
	begun time.Time

	mu   sync.Mutex // guards all
	all  []sample
	most sample // the one with the worst over
}

func (r *recorder) now() time.Duration { return time.Since(r.begun) }

func (r *recorder) add(s sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) == 0 || s.over > r.most.over {
		r.most = s
	}
	r.all = append(r.all, s)
}

// count returns how many samples were due within [from, to) and have ended.
func (r *recorder) count(from, to time.Duration) int { return len(r.within(from, to)) }

// within returns the samples of operations (no streams) that were due within [from, to).
func (r *recorder) within(from, to time.Duration) []sample {
	return r.find(func(s sample) bool { return s.kind != stream && s.due >= from && s.due < to })
}

func (r *recorder) find(want func(sample) bool) []sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []sample
	for _, s := range r.all {
		if want(s) {
			out = append(out, s)
		}
	}
	return out
}

// Window is the latency of the operations that were due in a span of time, from
// the instant at which each was due; failed ones count as well.
type Window struct {
	From   float64 `json:"from_s"` // since the start of the run
	To     float64 `json:"to_s"`
	Calls  int     `json:"calls"`
	Failed int     `json:"failed"`
	P50    float64 `json:"p50_ms"`
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
}

func (r *recorder) window(from, to time.Duration) Window {
	return windowOf(from, to, r.within(from, to))
}

func windowOf(from, to time.Duration, all []sample) Window {
	w := Window{From: from.Seconds(), To: to.Seconds()}
	var took []time.Duration
	for _, s := range all {
		took = append(took, s.ended-s.due)
		if s.failed != nil {
			w.Failed++
		}
	}
	w.Calls = len(took)
	slices.Sort(took)
	w.P50, w.P99, w.Max = ms(quantile(took, 0.5)), ms(quantile(took, 0.99)), ms(quantile(took, 1))
	return w
}

// quantile returns the smallest of the sorted values that a share q does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
