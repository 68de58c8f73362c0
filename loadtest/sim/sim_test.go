package sim

import (
	"slices"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

// TestCourse has 300 sidecars on 30 nodes go the course that 10,000 on 1,000 go for
// docs/dev/adaptive.md, and judges them in the same way.
func TestCourse(t *testing.T) {
	_, verdicts := Course(Default(short.Of(300, 50), short.Of(30, 5)))
	for _, v := range verdicts {
		if t.Log(v); !v.OK() {
			t.Errorf("%v", v)
		}
	}
}

// TestCourseFailsWithoutLaw is what the judgements are worth: with a fixed limit they fail.
func TestCourseFailsWithoutLaw(t *testing.T) {
	c := Default(short.Of(50, 10), short.Of(5, 3))
	c.Fixed = true
	_, verdicts := Course(c)
	if bad := slices.IndexFunc(verdicts, func(v Verdict) bool { return !v.OK() }); bad < 0 {
		t.Errorf("all is well with a fixed limit: %v", verdicts)
	}
}

func TestSameSeedSameCourse(t *testing.T) {
	c := Default(short.Of(50, 10), short.Of(5, 3))
	a, _ := Course(c)
	b, _ := Course(c)
	if !slices.Equal(a.Seconds, b.Seconds) {
		t.Error("two runs with the same seed differ")
	}
}

// The big run takes a minute because nothing is allocated on the way.
func TestRunDoesNotAllocate(t *testing.T) {
	w := New(Default(50, 5))
	for i := range 50 {
		w.Want(i, 50)
	}
	if n := testing.AllocsPerRun(1, func() { w.Run(20_000_000_000) }); n > 0 {
		t.Errorf("%v allocations in 20 s; want none", n)
	}
}
