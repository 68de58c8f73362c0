package snapshot

import (
	"fmt"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/statements"
)

// The answers that findings see only grow, also when a statement with large ones loses its series of metrics to others.
func TestAnswersOnlyGrow(t *testing.T) {
	r, now := statements.New(statements.Config{}), time.Now()
	s := r.NewStripe()
	add := func(text string, n int, took time.Duration) {
		for i := range n {
			s.Add(s.Look(fmt.Sprintf("SELECT %s%d FROM t", text, i)), &statements.Call{Bytes: 1 << 20, Took: took})
		}
		now = now.Add(time.Minute)
		r.Gather(now)
	}
	add("old", 50, time.Millisecond) // as many as there are series
	before, series := answersOf(r), len(r.Series())
	add("busy", 100, time.Second)
	if len(r.Series()) != series {
		t.Fatalf("%d series; want %d, others than before", len(r.Series()), series)
	}
	if got := answersOf(r); got.Calls != before.Calls+100 || got.Bytes != before.Bytes+100<<20 {
		t.Errorf("%+v; want 100 answers more than %+v", got, before)
	}
}
