package upstream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

func TestRetriesFollowTheVerdict(t *testing.T) {
	for _, c := range []struct {
		name       string
		fault      func(executeStream) error
		req        func() Statement
		idempotent bool
		attempts   int
		ok         bool
		effects    yql.Effects
	}{
		{"conflict", answers(Ydb.StatusIds_ABORTED), plain, false, 3, true, yql.Whole},
		{"overloaded", answers(Ydb.StatusIds_OVERLOADED), plain, false, 3, true, yql.Whole},
		{"bad_session", answers(Ydb.StatusIds_BAD_SESSION), plain, false, 3, true, yql.Whole},
		{"bad_sql", answers(Ydb.StatusIds_GENERIC_ERROR), plain, true, 1, false, yql.Whole},
		{"undetermined", answers(Ydb.StatusIds_UNDETERMINED), plain, false, 1, false, yql.Whole},
		{"undetermined_but_idempotent", answers(Ydb.StatusIds_UNDETERMINED), plain, true, 3, true, yql.Whole},
		{"broken", breaks, plain, false, 1, false, yql.Whole},
		{"broken_but_idempotent", breaks, plain, true, 3, true, yql.Whole},
		{"broken_read", breaks, func() Statement { return inTx(plain(), snapshot, "", true) }, false, 3, true, yql.Whole},
		{"broken_text_that_reads", breaks, plain, false, 3, true, yql.Reads},
		{"broken_commit_of_a_text_that_reads", breaks, func() Statement { return inTx(plain(), serializable, "", true) },
			false, 3, true, yql.Reads},
		{"conflict_in_parts", answers(Ydb.StatusIds_ABORTED), plain, false, 1, false, yql.Parts},
		{"unavailable_in_parts", answers(Ydb.StatusIds_UNAVAILABLE), plain, false, 1, false, yql.Parts},
		{"overloaded_in_parts", answers(Ydb.StatusIds_OVERLOADED), plain, false, 1, false, yql.Parts},
		{"bad_session_in_parts", answers(Ydb.StatusIds_BAD_SESSION), plain, false, 3, true, yql.Parts},
		{"unavailable_for_a_schema", answers(Ydb.StatusIds_UNAVAILABLE), plain, false, 1, false, yql.Schema},
		{"unavailable_for_a_schema_but_idempotent", answers(Ydb.StatusIds_UNAVAILABLE), plain, true, 3, true, yql.Schema},
		{"bad_session_for_a_schema", answers(Ydb.StatusIds_BAD_SESSION), plain, false, 3, true, yql.Schema},
		{"idempotent_in_parts", answers(Ydb.StatusIds_ABORTED), plain, true, 3, true, yql.Parts},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStack(t, 1, nil)
				count := s.node(1).fail(2, c.fault)
				r, err := s.query(within(t, 10*time.Second), Call{Idempotent: c.idempotent, Effects: c.effects}, c.req)
				if (err == nil) != c.ok || r.Attempts != c.attempts || count.Load() != int64(c.attempts) {
					t.Errorf("%v after %d attempts, %d statements; want ok %t after %d", err, r.Attempts, count.Load(), c.ok, c.attempts)
				}
			})
		})
	}
}

// TestListsThatReadAreRepeated: a transaction of statements that only read goes again as a whole if the answer to its commit is lost.
func TestListsThatReadAreRepeated(t *testing.T) {
	for effects, want := range map[yql.Effects]int64{yql.Reads: 4, yql.Whole: 2} {
		synctest.Test(t, func(t *testing.T) {
			s := newStack(t, 1, nil)
			var count atomic.Int64
			s.node(1).onExecute = func(r *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
				if count.Add(1) == 2 {
					return breaks(stream)
				}
				return s.node(1).answer(r, stream)
			}
			_, err := s.client.Do(within(t, 10*time.Second), Call{Effects: effects}, func(ctx context.Context, session *Session) error {
				if _, err := run(ctx, session, inTx(plain(), serializable, "", false)); err != nil {
					return err
				}
				_, err := run(ctx, session, inTx(plain(), nil, session.TxID(), true))
				return err
			})
			if (err == nil) != (want == 4) || count.Load() != want {
				t.Errorf("effects %d: %v after %d statements; want %d", effects, err, count.Load(), want)
			}
		})
	}
}

// TestAnAttemptThatMayHaveBeenKeptIsReported: the error of the last attempt says
// nothing about those before it.
func TestAnAttemptThatMayHaveBeenKeptIsReported(t *testing.T) {
	for _, c := range []struct {
		name   string
		first  func(executeStream) error
		unsure bool
	}{
		{"broken", breaks, true},
		{"undetermined", answers(Ydb.StatusIds_UNDETERMINED), true},
		{"conflict", answers(Ydb.StatusIds_ABORTED), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStack(t, 1, nil)
				var count atomic.Int64
				s.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
					if count.Add(1) == 1 {
						return c.first(stream)
					}
					return answers(Ydb.StatusIds_PRECONDITION_FAILED)(stream)
				}
				r, err := s.query(within(t, 10*time.Second), Call{Idempotent: true}, plain)
				e, _ := errors.AsType[*Error](err)
				if e == nil || e.Status != Ydb.StatusIds_PRECONDITION_FAILED || r.Attempts != 2 || r.Unsure != c.unsure {
					t.Errorf("%v after %d attempts, unsure %t; want PRECONDITION_FAILED after 2, unsure %t", err,
						r.Attempts, r.Unsure, c.unsure)
				}
			})
		})
	}
}

func TestFinalStopsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		s.node(1).fail(1, answers(Ydb.StatusIds_ABORTED))
		r, err := s.client.Do(within(t, time.Second), Call{}, func(ctx context.Context, session *Session) error {
			_, err := run(ctx, session, plain())
			return Final(err)
		})
		if e := asError(t, err); r.Attempts != 1 || e.Status != Ydb.StatusIds_ABORTED {
			t.Errorf("%v after %d attempts", err, r.Attempts)
		}
		if Final(nil) != nil {
			t.Error("Final(nil) is an error")
		}
	})
}

func TestErrorsOfTheCallersOwnAreNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		own := errors.New("own")
		r, err := s.client.Do(within(t, time.Second), Call{Idempotent: true}, func(ctx context.Context, session *Session) error {
			if _, err := run(ctx, session, plain()); err != nil {
				return err
			}
			return own
		})
		if !errors.Is(err, own) || r.Attempts != 1 {
			t.Errorf("%v after %d attempts", err, r.Attempts)
		}
		if n := len(s.node(1).live()); n != 1 {
			t.Errorf("%d sessions; want the clean one kept", n)
		}
	})
}

func TestRetriesStayInsideTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		s.node(1).fail(1<<30, answers(Ydb.StatusIds_OVERLOADED))
		start := time.Now()
		r, err := s.query(within(t, 3*time.Second), Call{}, plain)
		if e := asError(t, err); e.Status != Ydb.StatusIds_OVERLOADED {
			t.Errorf("%v; want the last answer, not the deadline", err)
		}
		if took := time.Since(start); took >= 3*time.Second || r.Attempts < 2 {
			t.Errorf("%d attempts in %v; want an end as soon as the next pause would be too long", r.Attempts, took)
		}
	})
}

func TestTheBudgetBoundsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, func(c *stackConfig) {
			c.retry = RetryConfig{Share: 0.2, PerSecond: 10}
			c.pool.Max = 10
		})
		count := s.node(1).fail(1<<30, answers(Ydb.StatusIds_ABORTED))
		start := time.Now()
		const calls = 1000
		for range calls {
			s.query(within(t, 100*time.Millisecond), Call{}, plain)
		}
		retries := count.Load() - calls
		most := int64(10 + 0.2*calls + 10*time.Since(start).Seconds() + 1)
		if retries > most || retries < most*8/10 {
			t.Errorf("%d retries of %d calls in %v; want nearly %d", retries, calls, time.Since(start), most)
		}
	})
}

func TestWaitingForANodeDrawsNothingFromTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, func(c *stackConfig) {
			c.silent = true
			c.retry = RetryConfig{Burst: 1}
			c.pool.Max = 1
		})
		time.AfterFunc(2*time.Second, func() { s.router.SetTopology(s.topology()) })
		if _, err := s.query(within(t, 10*time.Second), Call{}, plain); err != nil {
			t.Errorf("a call that waited for the first topology: %v", err)
		}
		s.client.budget.mu.Lock()
		defer s.client.budget.mu.Unlock()
		if s.client.budget.tokens != 1 {
			t.Errorf("%v tokens left; want 1", s.client.budget.tokens)
		}
	})
}

func TestWithoutAnyNodeTheCallEndsAtItsDeadlineAndSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, func(c *stackConfig) { c.silent = true })
		start := time.Now()
		_, err := s.query(within(t, time.Second), Call{}, plain)
		if !errors.Is(err, pool.ErrNoNode) || time.Since(start) > time.Second {
			t.Errorf("%v after %v; want ErrNoNode", err, time.Since(start))
		}
	})
}

func TestAKilledNodeCostsSafeCallsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 3, func(c *stackConfig) { c.pool.Max = 12; c.pool.Min = 12 })
		synctest.Wait()
		var failed atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					if _, err := s.query(ctx, Call{Idempotent: true}, plain); err != nil {
						failed.Add(1)
						t.Log(err)
					}
					cancel()
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		s.node(2).kill()
		wg.Wait()
		if n := failed.Load(); n != 0 {
			t.Errorf("%d idempotent calls failed", n)
		}
		s.node(2).revive()
	})
}
