package memguard

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// begun returns a reservation of a group that holds n bytes, of a request that is coming or whole.
func begun(t *testing.T, b *Budget, group *Group, n int, end func()) *Reservation {
	t.Helper()
	s := new(Reservation)
	s.Begin(b, group, 0)
	if end != nil {
		s.Coming(end)
	}
	if why := s.Take(n); why != "" {
		t.Fatalf("%d bytes: %s", n, why)
	}
	return s
}

func refused(t *testing.T, s *Reservation, n int) {
	t.Helper()
	if why := s.Take(n); !strings.Contains(why, "memory.requests") {
		t.Errorf("%d bytes more: %q", n, why)
	}
}

func TestBudget(t *testing.T) {
	for name, run := range map[string]func(t *testing.T, b *Budget, one, other *Group){
		"an app has half of it": func(t *testing.T, b *Budget, one, other *Group) {
			s := begun(t, b, one, 500, nil)
			refused(t, s, 1)
			o := begun(t, b, other, 500, nil)
			refused(t, o, 1)
			s.Release()
			begun(t, b, one, 500, nil).Release()
			o.Release()
		},
		"what is given back is while others are being refused": func(t *testing.T, b *Budget, one, _ *Group) {
			s := begun(t, b, one, 500, nil)
			b.held.Add(1000)
			one.Add(1000)
			if why := s.Take(-400); why != "" || s.held != 100 {
				t.Errorf("%d bytes are held: %q", s.held, why)
			}
			b.held.Add(-1000)
			one.Add(-1000)
			s.Release()
		},
		"who waits is refused once": func(t *testing.T, b *Budget, one, _ *Group) {
			s, before := begun(t, b, one, 500, nil), b.State().Refused
			refused(t, s, 1)
			if why := s.TakeAgain(1); why == "" || b.State().Refused != before+1 {
				t.Errorf("%d refused: %q", b.State().Refused-before, why)
			}
			s.Release()
		},
		"what is not an app's has all of it": func(t *testing.T, b *Budget, _, _ *Group) {
			s := begun(t, b, nil, 1000, nil)
			refused(t, s, 1)
			s.Release()
		},
		"what is whole stays": func(t *testing.T, b *Budget, one, other *Group) {
			s := begun(t, b, one, 500, func() { t.Error("ended") })
			if time.Sleep(time.Hour); !s.Came() {
				t.Error("it was not ended")
			}
			o := begun(t, b, other, 500, nil)
			refused(t, o, 1)
			o.Release()
			s.Release()
		},
		"what has just begun to come stays": func(t *testing.T, b *Budget, one, _ *Group) {
			s := begun(t, b, one, 400, func() { t.Error("ended") })
			time.Sleep(patience - 1)
			o := begun(t, b, one, 100, nil)
			refused(t, o, 1)
			o.Release()
			s.Release()
		},
		"what comes slowly makes room, the largest first": func(t *testing.T, b *Budget, one, _ *Group) {
			ended := ""
			small := begun(t, b, one, 200, func() { ended += "small " })
			large := begun(t, b, one, 300, func() { ended += "large " })
			time.Sleep(patience)
			s := begun(t, b, one, 300, nil)
			if ended != "large " {
				t.Errorf("ended: %s", ended)
			}
			refused2 := large.Take(1)
			if large.Came() || !strings.Contains(refused2, "slowly") {
				t.Errorf("what was ended goes on: %q", refused2)
			}
			if !small.Came() {
				t.Error("the small one does not")
			}
			for _, s := range []*Reservation{small, large, s} {
				s.Release()
			}
		},
		"of those of which more has come lately none, while there are others": func(t *testing.T, b *Budget, one, _ *Group) {
			ended := ""
			silent := begun(t, b, one, 100, func() { ended += "silent " })
			large := begun(t, b, one, 200, func() { ended += "large " })
			time.Sleep(patience - 1)
			if why := large.Take(100); why != "" {
				t.Error(why)
			}
			time.Sleep(time.Millisecond)
			s := begun(t, b, one, 200, nil)
			if ended != "silent " {
				t.Errorf("ended: %s", ended)
			}
			s.Release()
			s = begun(t, b, one, 300, nil) // it goes next: all that come have lasted long
			if ended != "silent large " {
				t.Errorf("ended: %s", ended)
			}
			for _, s := range []*Reservation{silent, large, s} {
				s.Release()
			}
		},
		"what is whole takes more without the lock": func(t *testing.T, b *Budget, one, _ *Group) {
			s := begun(t, b, one, 100, func() { t.Error("ended") })
			s.Came()
			b.mu.Lock()
			if why := s.Take(100); why != "" {
				t.Error(why)
			}
			s.Release()
			b.mu.Unlock()
		},
		"of the same app, if its half is full": func(t *testing.T, b *Budget, one, other *Group) {
			o := begun(t, b, other, 400, func() { t.Error("the other app's was ended") })
			ended := false
			s := begun(t, b, one, 300, func() { ended = true })
			time.Sleep(patience)
			begun(t, b, one, 300, nil).Release()
			if !ended {
				t.Error("none was ended")
			}
			s.Release()
			o.Release()
		},
		"it may end others that come, not itself": func(t *testing.T, b *Budget, one, _ *Group) {
			s := begun(t, b, one, 500, func() { t.Error("ended") })
			time.Sleep(patience)
			refused(t, s, 1)
			s.Release()
		},
		"of the connection from which most are coming the newest makes room at once": func(t *testing.T, b *Budget, one, other *Group) {
			ended := ""
			var all []*Reservation
			for i, connection := range []uint64{1, 1, 2, 2, 2, 3} {
				s := new(Reservation)
				s.Begin(b, []*Group{one, other}[i/3], connection)
				s.Coming(func() { ended += fmt.Sprint(i, " ") })
				if why := s.Take(160); why != "" {
					t.Fatal(why)
				}
				all = append(all, s)
			}
			for i, c := range []struct {
				group      *Group
				connection uint64
				ended      string
			}{
				{nil, 3, "4 "}, // with it, connection 3 has two
				{nil, 3, ""},   // it has as many as the others
				{nil, 4, "1 "}, // connection 1 has two, as 2 has; it is the first of them
				{one, 4, ""},   // the whole budget is full, and with it 4 has two
				{nil, 5, "3 "}, // what is over does not count for a connection
				{one, 6, ""},   // all have one
				{nil, 0, ""},   // a connection of no number has one
			} {
				ended = ""
				s := new(Reservation)
				s.Begin(b, c.group, c.connection)
				s.Coming(func() { t.Errorf("step %d was ended", i) })
				if why := s.Take(160); ended != c.ended || (why == "") != (c.ended != "") {
					t.Errorf("step %d: ended %q, want %q; refused: %q", i, ended, c.ended, why)
				}
				all = append(all, s)
			}
			for _, s := range all {
				s.Release()
			}
		},
		"of the same app alone, if its half is full, whatever others have on the connection": func(t *testing.T,
			b *Budget, one, other *Group) {
			ended := ""
			var all []*Reservation
			for i, c := range []struct {
				group      *Group
				connection uint64
			}{{other, 1}, {other, 1}, {other, 1}, {one, 2}, {one, 2}} {
				s := new(Reservation)
				s.Begin(b, c.group, c.connection)
				s.Coming(func() { ended += fmt.Sprint(i, " ") })
				n := 50
				if c.group == one {
					n = 250
				}
				if why := s.Take(n); why != "" {
					t.Fatal(why)
				}
				all = append(all, s)
			}
			s := new(Reservation)
			s.Begin(b, one, 3)
			if why := s.Take(250); why != "" || ended != "4 " {
				t.Errorf("ended %q: %q", ended, why)
			}
			for _, s := range append(all, s) {
				s.Release()
			}
		},
		"less is always taken": func(t *testing.T, b *Budget, one, _ *Group) {
			s := begun(t, b, one, 500, nil)
			if why := s.Take(-200); why != "" {
				t.Error(why)
			}
			begun(t, b, one, 200, nil).Release()
			s.Release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := OfBytes(1000)
				var one, other Group
				run(t, b, &one, &other)
				if b.State().Held != 0 || one.Load() != 0 || other.Load() != 0 || b.coming.Len() > 0 || len(b.from) > 0 || len(b.by) > 0 {
					t.Errorf("left: %+v, %d, %d, %d coming of %v", b.State(), one.Load(), other.Load(), b.coming.Len(), b.from)
				}
			})
		})
	}
}

// A small request is not refused because others of its app, or of all, have much.
func TestTheLastEighthIsForSmallRequests(t *testing.T) {
	const most = 64 * smallRequest
	b, one, other := OfBytes(most), new(Group), new(Group)
	large := begun(t, b, one, most/2-most/16, nil)
	refused(t, large, 1)
	refused(t, begun(t, b, one, smallRequest, nil), 1) // it is no longer small
	for range most/16/smallRequest - 1 {
		begun(t, b, one, smallRequest, nil)
	}
	refused(t, begun(t, b, one, 0, nil), 1) // an app has half
	begun(t, b, other, most/2-most/8, nil)
	refused(t, begun(t, b, other, 0, nil), smallRequest+1)
	begun(t, b, other, smallRequest, nil)
	if held := b.State().Held; held != most-most/8+smallRequest {
		t.Errorf("%d bytes are held", held)
	}
}

// What cannot fit is refused, and ends no other request. A large request has small ones end last.
func TestWhoHasToGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 64 * smallRequest
		b, one, other := OfBytes(most), new(Group), new(Group)
		ended := map[string]int{}
		comes := func(g *Group, name string, n int) *Reservation {
			return begun(t, b, g, n, func() { ended[name]++ })
		}
		small := comes(nil, "small", smallRequest)
		large := comes(other, "large", most*7/16-4*smallRequest)
		largest := comes(one, "largest", most*7/16-1)
		time.Sleep(2 * patience)
		large.Take(1)
		largest.Take(1) // only the small one has stood still
		refused(t, begun(t, b, one, 0, nil), most)
		refused(t, begun(t, b, nil, 0, nil), most)
		refused(t, begun(t, b, one, 0, nil), most/2)
		if len(ended) > 0 {
			t.Errorf("%v had to go for what cannot fit", ended)
		}
		if why := begun(t, b, nil, 0, nil).Take(4 * smallRequest); why != "" || ended["largest"] != 1 || len(ended) != 1 {
			t.Errorf("%q; %v had to go", why, ended)
		}
		small.Release()
	})
}

// A small request that is the newest of a connection does not keep its large ones.
func TestSmallNewestKeepsNothing(t *testing.T) {
	const most = 64 * smallRequest
	b, group := OfBytes(most), new(Group)
	ended := ""
	comes := func(name string, connection uint64, n int) {
		s := new(Reservation)
		s.Begin(b, nil, connection)
		s.Coming(func() { ended += name })
		if why := s.Take(n); why != "" {
			t.Fatal(why)
		}
	}
	for range 3 {
		comes("crowd ", 1, most/8)
	}
	comes("newest ", 1, 1)
	comes("other ", 2, most/8)
	comes("other ", 2, most/8)
	if why := begun(t, b, group, 0, nil).Take(most*3/8 - 1); why != "" || ended != "crowd " {
		t.Errorf("%q; ended: %s", why, ended)
	}
}

// A request that is too large for all of the memory hears that it always will be.
func TestTooLargeForever(t *testing.T) {
	const most = 64 * smallRequest
	for _, c := range []struct {
		name  string
		group *Group
		held  int // by another request
		takes int
		never bool
		why   string // "": it is taken
	}{
		{"all but what small ones have", nil, 0, most * 7 / 8, false, ""},
		{"more", nil, 0, most*7/8 + 1, true, "this request needs more than 3584 KiB"},
		{"half of it of an app", new(Group), 0, most * 7 / 16, false, ""},
		{"more than half of it of an app", new(Group), 0, most*7/16 + 1, true, "this request needs more than 1792 KiB"},
		{"what others hold", nil, most / 2, most / 2, false, "requests hold 2 MiB of memory, and 3 MiB"},
	} {
		b := OfBytes(most)
		if c.held > 0 {
			begun(t, b, nil, c.held, nil).Came()
		}
		s := begun(t, b, c.group, 0, nil)
		why := s.Take(c.takes)
		if (why == "") != (c.why == "") || !strings.HasPrefix(why, c.why) {
			t.Errorf("%s: %q; want %q", c.name, why, c.why)
		}
		if why != "" && s.Fits(c.takes) == c.never {
			t.Errorf("%s: it fits: %t", c.name, c.never)
		}
	}
}

// Without a budget there is always enough.
func TestNoBudget(t *testing.T) {
	var s Reservation
	s.Begin(nil, nil, 0)
	s.Coming(func() { t.Error("ended") })
	if why := s.Take(1 << 40); why != "" || !s.Came() {
		t.Error(why)
	}
	s.Release()
}

// Giving back needs no room: for a moment a request that is being refused has taken more than there is.
func TestGivingBackNeedsNoRoom(t *testing.T) {
	b := OfBytes(1000)
	var one Group
	slow := begun(t, b, nil, 100, func() { t.Error("a request that comes was ended for one that gives back") })
	s := begun(t, b, &one, 400, nil)
	b.held.Add(900) // of the one that is refused
	one.Add(900)
	if why := s.Take(-300); why != "" || one.Load() != 1000 {
		t.Errorf("%q, the group has %d", why, one.Load())
	}
	b.held.Add(-900)
	one.Add(-900)
	slow.Release()
	s.Release()
	if b.State() != (BudgetState{Most: 1000}) || one.Load() != 0 {
		t.Errorf("%+v, the group has %d", b.State(), one.Load())
	}
}
