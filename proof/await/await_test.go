package await

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// failing notes that a test was failed.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(string, ...any) { f.text = "failed" }

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, looks := time.Now(), 0
		True(t, "a second", func() bool { looks++; return time.Since(began) >= time.Second })
		if took := time.Since(began); took > 1050*time.Millisecond || looks < 20 || looks > 80 {
			t.Errorf("seen after %v and %d looks", took, looks)
		}
		Right(t, "at once", func() string { return "" })
		looks = 0
		if got := Within(time.Second, func() string { looks++; return strconv.Itoa(looks) }); got != strconv.Itoa(looks) || looks < 2 {
			t.Errorf("the last of %d texts is %q", looks, got)
		}
		for name, wait := range map[string]func(testing.TB){
			"true":  func(t testing.TB) { True(t, "never", func() bool { return false }) },
			"right": func(t testing.TB) { Right(t, "never", func() string { return "no" }) },
		} {
			f, began := &failing{TB: t}, time.Now()
			if wait(f); f.text == "" || time.Since(began) > Limit+time.Second {
				t.Errorf("%s: %q after %v", name, f.text, time.Since(began))
			}
		}
	})
}
