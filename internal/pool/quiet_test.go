package pool

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(20)
		cfg.Min = 20
		f := newServers(1, 2)
		p := start(t, cfg, f, view(1))
		time.Sleep(time.Minute)
		if got := f.live(); got[0] != 20 {
			t.Fatalf("sessions by node %v; want 20 on the first", got)
		}
		p.Quiet(true)
		p.SetView(view(1, 2))
		time.Sleep(time.Minute)
		if got := f.live(); got[0] != 20 || got[1] != 0 {
			t.Errorf("sessions by node %v while it is quiet; want them where they were", got)
		}
		p.SetView(view(2)) // node 1 must be left all the same
		time.Sleep(time.Minute)
		if got := f.sum(); got != 0 {
			t.Errorf("%d sessions; want none: nobody asked", got)
		}
		checkOut(t, p, 1)()
		if got := f.live(); got[0] != 0 || got[1] != 1 {
			t.Errorf("sessions by node %v; want the one that was asked for", got)
		}
		p.Quiet(false)
		time.Sleep(time.Minute)
		if got := f.live(); got[1] != 20 {
			t.Errorf("sessions by node %v when it is no longer quiet; want the minimum", got)
		}
	})
}
