package virtual

import (
	"testing"
	"testing/synctest"
	"time"
)

// Whoever creates sessions and leaves them there keeps nobody out for long, and ends no session that is used or attached to.
func TestSessionsThatNobodyUsesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 50
		vs, own, who, mallory := New(Config{Sessions: most}), new(IdentityPool), &Credentials{}, &Credentials{Hash: [32]byte{1}}
		own.wasUsed.Store(true)
		create := func(who *Credentials, stripe int) *Session { return vs.Create(vs.Stripe(stripe), who, nil, false) }
		used, attached := create(who, 0), create(who, 1)
		if _, err := vs.Enter(used.id, who, own, nil, false, nil); err != nil {
			t.Fatal(err)
		}
		vs.Settle(vs.Stripe(0), &Use{Identity: own, Session: used}, new(Outcome))
		if _, err := vs.Attach(attached, new(attachment), nil); err != nil {
			t.Fatal(err)
		}
		flood := func() (made int) {
			for create(mallory, made) != nil {
				made++
			}
			return made
		}
		if n := flood(); n != most-2 {
			t.Fatalf("%d were made", n)
		}
		if create(who, 2) != nil {
			t.Error("what has just been made was ended")
		}
		for round := range 10 {
			time.Sleep(young)
			v := create(who, round)
			if v == nil {
				t.Fatalf("round %d: there is no room", round)
			}
			flood()
			if seen, _ := vs.See(v.id, who, nil); seen != v { // it has the time to be used
				t.Errorf("round %d: the session has ended at once", round)
			}
			vs.End(v)
		}
		for name, v := range map[string]*Session{"used": used, "attached": attached} {
			if seen, _ := vs.See(v.id, who, own); seen != v {
				t.Errorf("the session that is %s has ended", name)
			}
		}
		if n := vs.n.Load(); n > most {
			t.Errorf("%d sessions", n)
		}
	})
}

// One connection that takes all sessions, used or attached to, makes room for others until they have as many. It displaces nobody.
func TestWhoHasMostSessionsMakesRoom(t *testing.T) {
	for name, keep := range map[string]func(*testing.T, *Sessions, *Session, *Credentials, *IdentityPool){
		"attached": func(t *testing.T, vs *Sessions, v *Session, _ *Credentials, _ *IdentityPool) {
			if _, err := vs.Attach(v, new(attachment), nil); err != nil {
				t.Fatal(err)
			}
		},
		"used": func(t *testing.T, vs *Sessions, v *Session, who *Credentials, own *IdentityPool) {
			if _, err := vs.Enter(v.id, who, own, nil, false, nil); err != nil {
				t.Fatal(err)
			}
			vs.Settle(vs.Of(v.id), &Use{Identity: own, Session: v}, new(Outcome))
		},
	} {
		t.Run(name, func(t *testing.T) {
			const most = 1000
			vs, own := New(Config{Sessions: most}), new(IdentityPool)
			own.wasUsed.Store(true)
			caller := func(n byte) *Credentials { return &Credentials{Hash: [32]byte{n}, ConnSessions: new(ConnSessions)} }
			create := func(who *Credentials) *Session {
				v := vs.Create(vs.Stripe(int(who.Hash[0])), who, nil, false)
				if v != nil {
					keep(t, vs, v, who, own)
				}
				return v
			}
			mallory, alice, bob := caller(0), caller(1), caller(2)
			first := create(alice)
			for create(mallory) != nil {
			}
			if n := mallory.ConnSessions.has(); n != most-1 {
				t.Fatalf("one connection made %d", n)
			}
			for i := range most / 4 {
				if create(bob) == nil {
					t.Fatalf("bob got %d sessions", i)
				}
				if create(mallory) != nil {
					t.Fatal("mallory got one more")
				}
			}
			if seen, _ := vs.See(first.id, alice, own); seen != first {
				t.Error("alice, who has one session, lost it")
			}
			for create(bob) != nil {
			}
			if a, b, m := alice.ConnSessions.has(), bob.ConnSessions.has(), mallory.ConnSessions.has(); a != 1 ||
				b < m-1 || b > m || a+b+m != most {
				t.Errorf("%d, %d and %d sessions", a, b, m)
			}
			vs.Close()
			if n := alice.ConnSessions.has() + bob.ConnSessions.has() + mallory.ConnSessions.has(); n != 0 || vs.n.Load() != 0 {
				t.Errorf("%d are counted after the end, %d are there", n, vs.n.Load())
			}
		})
	}
}

// Sessions that were created over many connections, used once and left there make room after a minute.
func TestSessionsThatAreLeftMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 50
		vs, own := New(Config{Sessions: most}), new(IdentityPool)
		own.wasUsed.Store(true)
		create := func() *Session {
			return vs.Create(vs.Stripe(0), &Credentials{ConnSessions: new(ConnSessions)}, nil, false)
		}
		for v := create(); v != nil; v = create() {
			if _, err := vs.Enter(v.id, &Credentials{}, own, nil, false, nil); err != nil {
				t.Fatal(err)
			}
			vs.Settle(vs.Stripe(0), &Use{Identity: own, Session: v}, new(Outcome))
		}
		time.Sleep(left - time.Second)
		if create() != nil {
			t.Error("a session that was used just now was ended")
		}
		time.Sleep(time.Second)
		if create() == nil {
			t.Error("there is no room")
		}
	})
}
