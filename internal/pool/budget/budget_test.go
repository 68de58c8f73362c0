package budget

import (
	"slices"
	"testing"
	"time"
)

// fakePool is a pool that a test plays: it says what it is told to, and yields idle sessions first.
type fakePool struct {
	*Member
	waits      bool
	idle, used int
	promised   []*Member // the pools that get the next permits that it gives back
}

func (p *fakePool) Waits() bool { return p.waits }

func (p *fakePool) Rests() (idle, parked int) { return p.idle, 0 }

func (p *fakePool) Yield(to *Member, inUse bool) {
	if p.idle == 0 && !inUse {
		return
	}
	p.Promise(to)
	p.promised = append(p.promised, to)
}

// fakes are pools of one budget. Nothing moves but by the test: Run does not run.
type fakes struct {
	*testing.T
	*Budget
	now   time.Time
	pools []*fakePool
}

func newFakes(t *testing.T, most int) *fakes {
	return &fakes{T: t, Budget: New(most), now: time.Unix(1000, 0)}
}

// add adds a pool that has sessions, all in use.
func (f *fakes) add(group string, most, weight, sessions int) *fakePool {
	f.Helper()
	p := &fakePool{}
	p.Member = NewMember(p, func() int { return weight })
	f.Join(p.Member, group, most)
	f.pools = append(f.pools, p)
	for range sessions {
		if !p.TakeSpare(f.now) {
			f.Fatal("no permit is left")
		}
		p.used++
	}
	return p
}

// want has callers of p wait for sessions. There is no permit.
func (f *fakes) want(p *fakePool, callers int) {
	f.Helper()
	p.waits = true
	if p.Take(f.now, callers, false) {
		f.Fatal("there was a permit")
	}
}

// free has p close a session: one that was promised, if there is one.
func (f *fakes) free(p *fakePool) {
	var to *Member
	if len(p.promised) > 0 {
		to, p.promised = p.promised[0], p.promised[1:]
	}
	if p.idle > 0 {
		p.idle--
	} else {
		p.used--
	}
	p.Put(to)
}

// offered reports whether p was told of a permit, and takes it.
func (f *fakes) offered(p *fakePool) bool {
	select {
	case <-p.Offer():
	default:
		return false
	}
	if !p.Take(f.now, 0, false) {
		f.Error("a pool was told of a permit that it does not get")
	}
	p.used++
	p.waits = false
	return true
}

// later has the time go on and looks once.
func (f *fakes) later(d time.Duration) {
	f.now = f.now.Add(d)
	f.Look(f.now)
}

// expect compares how many sessions each pool was asked to let go.
func (f *fakes) expect(leaving ...int) {
	f.Helper()
	var got []int
	for _, p := range f.pools {
		got = append(got, f.Audit(p.Member).Members[0].Leaving)
	}
	if !slices.Equal(got, leaving) {
		f.Errorf("sessions that pools were asked to let go: %v; want %v", got, leaving)
	}
}

// A permit that comes free goes to one hungry pool.
func TestPermitGoesTo(t *testing.T) {
	tests := map[string]func(f *fakes) (giver, taker *fakePool){
		"the pool with fewer sessions": func(f *fakes) (_, _ *fakePool) {
			a, b := f.add("", 0, 1, 3), f.add("", 0, 1, 1)
			f.want(a, 1)
			f.want(b, 1)
			return a, b
		},
		"the pool with fewer sessions for its weight": func(f *fakes) (_, _ *fakePool) {
			a, b, c := f.add("", 0, 4, 2), f.add("", 0, 1, 1), f.add("", 0, 1, 1)
			f.want(b, 1)
			f.want(a, 1)
			return c, a
		},
		"the first of equals": func(f *fakes) (_, _ *fakePool) {
			a, b, c := f.add("", 0, 1, 2), f.add("", 0, 1, 1), f.add("", 0, 1, 1)
			f.want(c, 1)
			f.want(b, 1)
			return a, c
		},
		"the pool with callers, before one that lacks its minimum": func(f *fakes) (_, _ *fakePool) {
			a, b := f.add("", 0, 1, 0), f.add("", 0, 1, 4)
			f.want(a, 1)
			a.waits = false
			f.want(b, 1)
			return b, b
		},
		"a pool whose group has room": func(f *fakes) (_, _ *fakePool) {
			f.add("group", 2, 1, 2)
			b, c := f.add("group", 2, 1, 0), f.add("", 0, 1, 2)
			f.want(b, 1)
			f.want(c, 1)
			return c, c
		},
		"the next one, if the first wants nothing more": func(f *fakes) (_, _ *fakePool) {
			a, b, c := f.add("", 0, 1, 4), f.add("", 0, 1, 0), f.add("", 0, 1, 0)
			f.want(b, 1)
			f.want(c, 1)
			b.Leave()
			return a, c
		},
	}
	for name, play := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFakes(t, 4)
			giver, taker := play(f)
			f.free(giver)
			for i, p := range f.pools {
				if got := f.offered(p); got != (p == taker) {
					t.Errorf("pool %d was told of a permit: %v", i, got)
				}
			}
			if a := f.Audit(); a.Free != 0 || f.Stats().Used != 4 {
				t.Errorf("%+v, %+v; want every permit in use", a, f.Stats())
			}
		})
	}
}

// A look asks pools to let sessions go.
func TestLookAsks(t *testing.T) {
	tests := map[string]func(f *fakes){
		"the pool with most idle sessions, one for each caller": func(f *fakes) {
			a, b, c := f.add("", 0, 1, 4), f.add("", 0, 1, 4), f.add("", 0, 1, 0)
			a.idle, a.used, b.idle, b.used = 1, 3, 3, 1
			f.want(c, 2)
			f.later(0)
			f.expect(0, 2, 0)
		},
		"a session in use once the need has lasted": func(f *fakes) {
			f.add("", 0, 1, 6)
			f.want(f.add("", 0, 1, 2), 3)
			f.later(HungerFor - 1)
			f.expect(0, 0)
			f.later(1)
			f.expect(1, 0)
			f.later(LookEvery) // one is on its way
			f.expect(1, 0)
			f.later(GoesIn) // and does not come
			f.expect(2, 0)
		},
		"nothing of pools that have no more than the hungry one": func(f *fakes) {
			f.add("", 0, 1, 4)
			f.want(f.add("", 0, 1, 4), 1)
			f.later(time.Hour)
			f.expect(0, 0)
		},
		"the only session of a pool that has had its time, for a pool without one": func(f *fakes) {
			for range 8 {
				f.add("", 0, 1, 1)
			}
			f.want(f.add("", 0, 1, 0), 1)
			f.later(KeepFor - 1)
			f.expect(0, 0, 0, 0, 0, 0, 0, 0, 0)
			f.later(1)
			f.expect(1, 0, 0, 0, 0, 0, 0, 0, 0)
		},
		"the pools of a full group, not others": func(f *fakes) {
			f.add("group", 3, 1, 3)
			b := f.add("", 0, 1, 5)
			b.idle, b.used = 5, 0
			f.want(f.add("group", 3, 1, 0), 1)
			f.later(0)
			f.expect(1, 0, 0)
		},
		"the largest pool of a group whose limit was lowered": func(f *fakes) {
			f.add("group", 8, 1, 5)
			f.add("group", 8, 1, 3)
			f.SetMost(7)
			f.later(0)
			f.expect(1, 0)
			f.later(LookEvery) // one is on its way out already
			f.expect(1, 0)
		},
		"nothing for a pool that wants its minimum": func(f *fakes) {
			a, b := f.add("", 0, 1, 8), f.add("", 0, 1, 0)
			a.idle, a.used = 8, 0
			f.want(b, 1)
			b.waits = false
			f.later(time.Hour)
			f.expect(0, 0)
		},
	}
	for name, play := range tests {
		t.Run(name, func(t *testing.T) { play(newFakes(t, 8)) })
	}
}

// No other pool gets a permit that is set aside. It goes on when its pool quits.
func TestPermitSetAside(t *testing.T) {
	f := newFakes(t, 1)
	a, b, c := f.add("", 0, 1, 1), f.add("", 0, 1, 0), f.add("", 0, 1, 0)
	f.want(b, 1)
	f.free(a)
	if a.Spare() || a.TakeSpare(f.now) {
		t.Error("another pool got the permit that is set aside")
	}
	f.want(c, 1)
	b.Quit()
	if !f.offered(c) || b.Hungry() {
		t.Error("the permit of a pool that quit did not go on")
	}
	if s := f.Stats(); s.Pools != 2 || s.Hungry != 0 || s.Used != 1 {
		t.Errorf("%+v", s)
	}
}

// SetMost serves hungry pools of a group that may have more.
func TestRaisedLimitOfAGroup(t *testing.T) {
	f := newFakes(t, 8)
	p := f.add("group", 2, 1, 2)
	f.want(p, 1)
	if most, grouped := p.Shared(); most != 2 || !grouped {
		t.Errorf("Shared = %d, %t; want 2, true", most, grouped)
	}
	f.SetMost(3)
	if !f.offered(p) {
		t.Error("no permit came")
	}
	p.waits = true
	f.want(p, 1)
	for range 3 {
		f.free(p)
		f.offered(p)
		p.waits = false
	}
	p.Leave()
	p.Quit()
	for p.used > 0 {
		f.free(p)
	}
	if a := f.Audit(p.Member); len(a.Groups) != 0 || a.Free != 8 || a.Members[0].Held != 0 {
		t.Errorf("%+v; want nothing left", a)
	}
}

// A pool without a budget has every permit.
func TestNoBudget(t *testing.T) {
	var m *Member
	if !m.Take(time.Time{}, 1, false) || !m.TakeSpare(time.Time{}) || !m.Spare() || m.Hungry() {
		t.Error("a pool without a budget gets no permit")
	}
	m.Put(nil)
	m.Leave()
	m.Quit()
}
