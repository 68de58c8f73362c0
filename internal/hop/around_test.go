package hop

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func TestDetours(t *testing.T) {
	const silence = 4 * time.Second
	here := cluster.View{Nodes: []cluster.ViewNode{{Node: cluster.Node{ID: 1}}, {Node: cluster.Node{ID: 2}}}}
	missing := cluster.View{Nodes: []cluster.ViewNode{{Node: cluster.Node{ID: 1, Missing: true}}}}
	gone := cluster.View{Nodes: []cluster.ViewNode{{Node: cluster.Node{ID: 1}, Gone: true}}}
	for _, c := range []struct {
		name    string
		silence time.Duration
		live    func(*Detours, *Detour)
		want    error
		after   time.Duration
	}{
		{"silent", silence, func(*Detours, *Detour) {}, ErrUnanswered, silence},
		{"no_limit", 0, func(_ *Detours, d *Detour) { d.Heard(); d.Hush() }, nil, 0},
		{"heard_in_time", silence, func(_ *Detours, d *Detour) { time.Sleep(silence - 1); d.Heard() }, ErrUnanswered, 2*silence - 1},
		{"nobody_waits", silence, func(_ *Detours, d *Detour) { d.Hush() }, nil, 0},
		{"somebody_waits_again", silence, func(_ *Detours, d *Detour) { d.Hush(); time.Sleep(time.Hour); d.Heard() },
			ErrUnanswered, time.Hour + silence},
		{"a_part_of_the_limit_is_left", silence, func(_ *Detours, d *Detour) { d.Wait(time.Second) }, ErrUnanswered, time.Second},
		{"over", silence, func(all *Detours, d *Detour) { d.End(); all.SetView(gone) }, nil, 0},
		{"the_owner_left", 0, func(all *Detours, _ *Detour) { time.Sleep(time.Second); all.SetView(gone) }, ErrHomeNodeLeft, time.Second},
		{"the_owner_is_not_listed", 0, func(all *Detours, _ *Detour) { all.SetView(cluster.View{}) }, ErrHomeNodeLeft, 0},
		{"the_owner_is_in_doubt", 0, func(all *Detours, _ *Detour) { all.SetView(missing) }, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all Detours
				all.SetView(here)
				cut := make(chan error, 1)
				start := time.Now()
				var after time.Duration
				d, left := all.Begin(1, c.silence, func(why error) {
					after = time.Since(start)
					cut <- why
				})
				if left {
					t.Error("the owner has left at once")
				}
				c.live(&all, d)
				time.Sleep(2 * silence)
				synctest.Wait()
				var got error
				select {
				case got = <-cut:
				default:
				}
				if got != c.want || after != c.after {
					t.Errorf("it ended after %v with %v; want %v, %v", after, got, c.after, c.want)
				}
				d.End()
				if n := all.Len(); n != 0 {
					t.Errorf("%d calls are still watched", n)
				}
			})
		})
	}
}

func TestADetourWhoseOwnerHasLeftBefore(t *testing.T) {
	var all Detours
	d, left := all.Begin(1, 0, func(why error) { t.Errorf("it was cut: %v", why) })
	defer d.End()
	if !left {
		t.Error("the owner is taken to be there")
	}
}

// To cut a call is to write to sockets, and to wait for whoever does.
func TestNoLockIsHeldWhileCallsAroundALostOwnerAreCut(t *testing.T) {
	var all Detours
	all.SetView(cluster.View{Nodes: []cluster.ViewNode{{Node: cluster.Node{ID: 1}}}})
	cut := 0
	for range 2 {
		d, _ := all.Begin(1, 0, func(error) {
			if cut++; !all.mu.TryLock() {
				t.Error("the lock is held")
				return
			}
			all.mu.Unlock()
		})
		defer d.End()
	}
	all.SetView(cluster.View{})
	if cut != 2 {
		t.Errorf("%d calls were cut; want 2", cut)
	}
}
