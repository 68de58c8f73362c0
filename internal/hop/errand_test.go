package hop

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		err  error
		want apps.Reason
	}{
		{&pool.ShedError{Why: pool.ShedDeadline}, apps.ByDeadline},
		{&pool.ShedError{Why: pool.ShedAge}, apps.ByAge},
		{&pool.ShedError{Why: pool.ShedDelay}, apps.ByDelay},
		{&pool.WaitError{}, apps.ByTimeout},
		{fmt.Errorf("x: %w", pool.ErrQueueFull), apps.ByQueue},
		{pool.ErrNoNode, apps.ByOthers},
		{pool.ErrClosed, apps.ByOthers},
	} {
		if got := Refused(c.err); got != c.want {
			t.Errorf("%v: %v; want %v", c.err, got, c.want)
		}
	}
}

func newApp(t testing.TB) (app *apps.Stripe, state func() apps.ClassState) {
	t.Helper()
	all, err := apps.New(apps.Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := all.Of(apps.Caller{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return a.Stripe(0), func() apps.ClassState {
		for _, one := range all.State([apps.Classes]string{}) {
			if one.App == "a" && len(one.Classes) > 0 {
				return one.Classes[0]
			}
		}
		return apps.ClassState{}
	}
}

func TestAsk(t *testing.T) {
	app, _ := newApp(t)
	known := Errand{App: app, Class: pool.Normal, Work: 7}
	for range 100 {
		known.Took(time.Second)
	}
	needs := known.Needs()
	if needs == 0 {
		t.Fatal("nothing is remembered")
	}
	for _, c := range []struct {
		name   string
		errand Errand
		left   time.Duration
		want   pool.Ask
	}{
		{"nobodys", Errand{Class: pool.Normal, Work: 7}, time.Minute, pool.Ask{Class: pool.Normal, Left: time.Minute}},
		{"without_a_deadline", known, 0, pool.Ask{Class: pool.Normal, App: app.Index(), Weight: app.Weight()}},
		{"with_one", known, time.Minute,
			pool.Ask{Class: pool.Normal, App: app.Index(), Weight: app.Weight(), Left: time.Minute, Needs: needs}},
		{"too_late", Errand{Class: pool.Normal}, -time.Second, pool.Ask{Class: pool.Normal, Left: 1}},
		{"other_work", Errand{App: app, Class: pool.Normal, Work: 8}, time.Minute,
			pool.Ask{Class: pool.Normal, App: app.Index(), Weight: app.Weight(), Left: time.Minute}},
	} {
		got := c.errand.Ask(c.left)
		if got != c.want {
			t.Errorf("%s: %+v; want %+v", c.name, got, c.want)
		}
		c.want.Needs = c.errand.Needs()
		if c.errand.Complete(&got); got != c.want {
			t.Errorf("%s, completed: %+v; want %+v", c.name, got, c.want)
		}
	}
}

func TestWhatThePoolSaidIsCounted(t *testing.T) {
	type counts struct{ InUse, Waiting int64 }
	app, state := newApp(t)
	e := Errand{App: app, Class: pool.Normal}
	now := func() (c counts) {
		s := state()
		return counts{s.InUse, s.Waiting}
	}
	for _, step := range []struct {
		name string
		do   func()
		want counts
	}{
		{"asks", func() { _ = app.Ask(uint8(pool.Normal)) }, counts{0, 1}},
		{"gets_none", func() { e.Answered(0, pool.ErrQueueFull) }, counts{0, 0}},
		{"asks_again", func() { _ = app.Ask(uint8(pool.Normal)) }, counts{0, 1}},
		{"gets_one", func() { e.Answered(time.Second, nil) }, counts{1, 0}},
		{"gives_it_back", e.Done, counts{0, 0}},
		{"nobodys_is_not_counted",
			func() { n := Errand{}; n.Answered(0, nil); n.Answered(0, pool.ErrClosed); n.Took(1); n.Done() },
			counts{0, 0}},
	} {
		if step.do(); now() != step.want {
			t.Errorf("%s: %+v; want %+v", step.name, now(), step.want)
		}
	}
	if diff := cmp.Diff(map[string]uint64{"queue_full": 1}, state().Refused); diff != "" {
		t.Error(diff)
	}
}
