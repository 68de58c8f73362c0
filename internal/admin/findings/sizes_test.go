package findings

import (
	"strings"
	"testing"
	"time"
)

// What answers had is still known after a time without calls, whose latency is the last one: here of the minutes 9 and 10, which are
// the last and the first of base.
func TestSizesOfAnswersOutlastARest(t *testing.T) {
	w, sum := New(), Answers{}
	for i := range 130 {
		p := calm(i + 9*60)
		if i >= 110 {
			all(&p, 40*time.Millisecond)
		}
		if i < 30 || i >= 110 {
			sum.Calls, sum.Bytes = sum.Calls+100, sum.Bytes+100*3000
		}
		p.Answers = sum
		w.Look(p)
	}
	if got := w.Report().Summary; !strings.HasSuffix(got, "; an answer has 3000 bytes on average against 3000 bytes") {
		t.Errorf("%q; want the bytes of an answer before the rest", got)
	}
}

// Slow nodes and large answers show the same latency: CLUSTER_SLOW has the sizes of answers beside it.
func TestClusterSlowHasTheSizesOfAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		was, is uint64 // bytes of an answer; 0: no statement is counted
		want    string
	}{
		"slow nodes":    {3000, 3000, "40 ms against 2.0 ms; an answer has 3000 bytes on average against 3000 bytes"},
		"large answers": {3000, 24 << 20, "40 ms against 2.0 ms; an answer has 24 MiB on average against 3000 bytes"},
		"unknown":       {0, 0, "40 ms against 2.0 ms"},
		"unknown then":  {0, 20 << 10, "40 ms against 2.0 ms"},
	} {
		w, sum := New(), Answers{}
		for i := range 60 {
			p, size := calm(i), tc.was
			if i >= 30 {
				all(&p, 40*time.Millisecond)
				size = tc.is
			}
			if size > 0 {
				sum.Calls, sum.Bytes = sum.Calls+100, sum.Bytes+100*size
			}
			p.Answers = sum
			w.Look(p)
		}
		r := w.Report()
		if len(r.Findings) != 1 || r.Findings[0].Code != ClusterSlow || !strings.HasSuffix(r.Summary, ": "+tc.want) {
			t.Errorf("%s: %v; want %q", name, r.Findings, tc.want)
		}
	}
}
