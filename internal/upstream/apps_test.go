package upstream

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

var classNames = [apps.Classes]string{"normal", "system", "interactive", "batch"}

// Whatever becomes of a call, what its app uses is counted while it uses it, and taken
// back; beyond its quota it gets no session.
func TestSessionsOfAnAppAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		all, err := apps.New(apps.Config{Max: 5, Limits: []string{"web sessions=2"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		web, err := all.Of(apps.Claim{Name: "web"})
		if err != nil {
			t.Fatal(err)
		}
		state := func() apps.ClassState {
			for _, one := range all.State(classNames) {
				if one.App == "web" && len(one.Classes) > 0 {
					return one.Classes[0]
				}
			}
			return apps.ClassState{}
		}
		call := Call{App: web.Stripe(0), Class: pool.Normal, Work: 1}
		var inside apps.ClassState
		if _, err := s.client.Do(within(t, time.Second), call, func(context.Context, *Session) error {
			inside = state()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if inside.InUse != 1 || inside.Waiting != 0 || inside.Served != 1 {
			t.Errorf("during a call: %+v", inside)
		}
		if _, err := s.client.Do(within(t, time.Second), call, func(context.Context, *Session) error { return errors.New("no") }); err == nil {
			t.Error("no error")
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = s.client.Do(within(t, time.Second), call, func(context.Context, *Session) error { panic("x") })
		}()
		var held []*Leased
		for range 2 {
			l, _, err := s.client.Lease(within(t, time.Second), call, nil)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, l)
		}
		_, err = s.query(within(t, time.Second), call, plain)
		if e, ok := errors.AsType[*apps.Refusal](err); !ok || e.Why != apps.BySessions {
			t.Errorf("beyond the quota: %v", err)
		}
		if now := state(); now.InUse != 2 || now.Refused["sessions"] != 1 {
			t.Errorf("two leased: %+v", now)
		}
		for _, l := range held {
			l.Release(true)
		}
		if _, err := s.query(within(t, time.Second), call, plain); err != nil {
			t.Error(err)
		}
		if end := state(); end.InUse != 0 || end.Waiting != 0 || end.Served != 6 {
			t.Errorf("at the end: %+v", end)
		}
	})
}

// Once it is known how long a statement takes, a call with less time than that is
// refused before anything is sent; another statement is not.
func TestWorkThatCannotBeDoneInTimeIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		var sent atomic.Int64
		s.byID[1].onExecute = func(r *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			sent.Add(1)
			time.Sleep(100 * time.Millisecond)
			return s.byID[1].answer(r, stream)
		}
		all, err := apps.New(apps.Default(), nil)
		if err != nil {
			t.Fatal(err)
		}
		web, err := all.Of(apps.Claim{Name: "web"})
		if err != nil {
			t.Fatal(err)
		}
		call := Call{App: web.Stripe(0), Class: pool.Normal, Work: 1}
		for range 20 {
			if _, err := s.query(within(t, time.Second), call, plain); err != nil {
				t.Fatal(err)
			}
		}
		sent.Store(0)
		began := time.Now()
		_, err = s.query(within(t, 50*time.Millisecond), call, plain)
		if e, ok := errors.AsType[*pool.ShedError](err); !ok || e.Why != pool.ShedDeadline || sent.Load() != 0 || time.Since(began) != 0 {
			t.Errorf("with half the time: %v after %v, %d sent; want it shed at once", err, time.Since(began), sent.Load())
		}
		call.Work = 2
		if _, err = s.query(within(t, 50*time.Millisecond), call, plain); sent.Load() != 1 {
			t.Errorf("work of which nothing is known: %v, %d sent", err, sent.Load())
		}
		// What ran out of its time is known to take at least so long.
		if _, err = s.query(within(t, 20*time.Millisecond), call, plain); sent.Load() != 1 {
			t.Errorf("the same again: %v, %d sent; want nothing more", err, sent.Load())
		}
		time.Sleep(time.Second) // the node ends its work
	})
}
