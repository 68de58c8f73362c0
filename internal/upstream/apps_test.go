package upstream

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

var classNames = [apps.Classes]string{"normal", "system", "interactive", "batch"}

// Work that took longer than its callers wait is tried again by one call, after a while without a measurement.
func TestSlowWorkIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		all, err := apps.New(apps.Default(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = all.Run(ctx) }()
		defer func() { cancel(); <-done }()
		web, err := all.Of(apps.Caller{Name: "web"})
		if err != nil {
			t.Fatal(err)
		}
		call := Call{App: web.Stripe(0), Work: 1}
		for range 100 {
			call.errand().Took(time.Second)
		}
		ran := func() bool {
			_, err := s.client.Do(
				within(t, 100*time.Millisecond), call,
				func(context.Context, *Session) error { return errors.New("no figure") },
			)
			_, shed := errors.AsType[*pool.ShedError](err)
			return !shed
		}
		if ran() {
			t.Error("it ran, though it takes a second and its caller waits for a tenth of that")
		}
		time.Sleep(8 * time.Second)
		if first, second := ran(), ran(); !first || second {
			t.Errorf("after a while the first one ran: %v, the second: %v; want the first alone", first, second)
		}
	})
}

// webOf makes the apps of a configuration, and finds the one that is named web.
func webOf(t *testing.T, config apps.Config) (*apps.Registry, *apps.App) {
	t.Helper()
	all, err := apps.New(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	web, err := all.Of(apps.Caller{Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	return all, web
}

// unitsOfWeb is how many request units are counted for web.
func unitsOfWeb(all *apps.Registry) uint64 {
	for _, one := range all.State(classNames) {
		if one.App == "web" {
			return one.Units
		}
	}
	return 0
}

// Whatever becomes of a call, what its app uses is counted while it uses it, and taken
// back; beyond its quota it gets no session.
func TestSessionsOfAnAppAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		all, web := webOf(t, apps.Config{Max: 5, Quotas: []string{"web sessions=2"}})
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
		if _, err := s.client.Do(
			within(t, time.Second), call, func(context.Context, *Session) error { return errors.New("no") },
		); err == nil {
			t.Error("no error")
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = s.client.Do(within(t, time.Second), call, func(context.Context, *Session) error { panic("x") })
		}()
		var held []*TxSession
		for range 2 {
			l, _, err := s.client.BeginTx(within(t, time.Second), call, nil)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, l)
		}
		_, err := s.query(within(t, time.Second), call, plain)
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
		web, err := all.Of(apps.Caller{Name: "web"})
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

// What nodes report of the cost of calls is counted for the app, of all attempts and also of calls that failed, and is
// in the report. Without a report nothing is counted.
func TestConsumedUnitsOfAnApp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		var units []string // of the next answers, ABORTED except the last one
		s.byID[1].onExecute = func(r *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			now := units[0]
			units = units[1:]
			if now != "" {
				stream.SetTrailer(metadata.Pairs("x-ydb-consumed-units", now))
			}
			if len(units) > 0 {
				return stream.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_ABORTED})
			}
			return s.byID[1].answer(r, stream)
		}
		all, web := webOf(t, apps.Default())
		for _, c := range []struct {
			units  []string
			sum    uint64
			priced bool
			all    uint64 // afterwards
		}{
			{[]string{""}, 0, false, 0},
			{[]string{"5"}, 5, true, 5},
			{[]string{"0"}, 0, true, 5},
			{[]string{"2", "", "3"}, 5, true, 10},
			{[]string{"1.5"}, 0, false, 10},
			{[]string{"-1"}, 0, false, 10},
		} {
			units = c.units
			report, err := s.query(within(t, time.Minute), Call{App: web.Stripe(0), Idempotent: true}, plain)
			if err != nil {
				t.Fatal(err)
			}
			if report.Units != c.sum || report.Priced != c.priced || unitsOfWeb(all) != c.all {
				t.Errorf("%q: %d units, reported %v, and %d of the app; want %d, %v, %d", c.units, report.Units,
					report.Priced, unitsOfWeb(all), c.sum, c.priced, c.all)
			}
		}
		s.byID[1].onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			stream.SetTrailer(metadata.Pairs("x-ydb-consumed-units", "0"))
			return errors.Join(stream.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS}),
				stream.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS}))
		}
		if report, err := s.client.Do(within(t, time.Minute), Call{App: web.Stripe(0)}, func(ctx context.Context, session *Session) error {
			stream, err := session.Execute(ctx, statement("x"))
			if err == nil {
				_, err = stream.Next()
			}
			synctest.Wait() // the end is here, too
			return err
		}); err != nil || !report.Priced {
			t.Errorf("an answer that is not read to its end: %v, reported %v", err, report.Priced)
		}
	})
}

// So are those of calls without a session, and of transactions.
func TestConsumedUnitsBesideStatements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		all, web := webOf(t, apps.Default())
		s.byID[1].bulkUnits = "20"
		if report, err := s.client.Any(
			within(t, time.Minute), Call{Name: "BulkUpsert", Method: bulkUpsert, App: web.Stripe(0)}, bulk,
		); err != nil || report.Units != 20 || unitsOfWeb(all) != 20 {
			t.Errorf("a call without a session: %v, %d units, and %d of the app; want 20, 20", err, report.Units, unitsOfWeb(all))
		}
		if _, err := s.client.Any(
			within(t, time.Minute), Call{Name: "BulkUpsert", Method: bulkUpsert}, bulk,
		); err != nil || unitsOfWeb(all) != 20 {
			t.Errorf("nobody's call: %v, %d units of the app; want 20", err, unitsOfWeb(all))
		}
		s.byID[1].onCommit = func(ctx context.Context) (Ydb.StatusIds_StatusCode, error) {
			return Ydb.StatusIds_SUCCESS, grpc.SetTrailer(ctx, metadata.Pairs("x-ydb-consumed-units", "100"))
		}
		leased, report, err := s.client.BeginTx(within(t, time.Minute), Call{
			App: web.Stripe(0),
		}, func(ctx context.Context, session *Session) error {
			return session.Begin(ctx, serializable)
		})
		if err != nil || report.Priced {
			t.Fatalf("a transaction begins: %v, reported %v; want nothing", err, report.Priced)
		}
		defer leased.Release(true)
		report, err = leased.Run(
			within(t, time.Minute), Call{},
			func(ctx context.Context, session *Session) error { return session.Commit(ctx) },
		)
		if err != nil || report.Units != 100 || unitsOfWeb(all) != 120 {
			t.Errorf("its commit: %v, %d units, and %d of the app; want 100, 120", err, report.Units, unitsOfWeb(all))
		}
	})
}
