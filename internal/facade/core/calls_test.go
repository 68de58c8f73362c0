package core

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/hop"
)

// Calls are listed while they come, state their statements, go and are ended by operators.
func TestCallsAreListedWhileTheyRun(t *testing.T) {
	s := &Service{gate: newGate(1000)}
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	var callers, operators sync.WaitGroup
	for i := range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				c := &Call{Name: "Execute", From: uint64(i)}
				if _, err := s.gate.enter(ctx, c); err != nil {
					t.Error(err)
					return
				}
				c.states(fmt.Sprint("SELECT ", i))
				s.gate.leave(&c.open)
			}
		})
	}
	operators.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			list, more := s.Calls("", 0, 2)
			if len(list) > 2 || len(list) < 2 && more > 0 || len(list)+more > 4 {
				t.Errorf("%d calls and %d more", len(list), more)
			}
			for _, c := range list {
				if c.Name != "Execute" || c.API != "grpc" || c.Phase != hop.InSidecar.String() {
					t.Errorf("%+v", c)
				}
				s.EndCalls(c.ID)
			}
		}
	})
	callers.Wait()
	operators.Wait()
	if list, more := s.Calls("", 0, 2); len(list)+more > 0 || s.gate.open != 0 {
		t.Errorf("left: %v and %d more", list, more)
	}
}

// The oldest calls are listed first, and the list ends with those that have not lasted for long enough.
func TestTheOldestCallsAreListedFirst(t *testing.T) {
	s, now := &Service{gate: newGate(10)}, time.Now()
	var calls []*Call
	for i := range 4 {
		c := &Call{Name: fmt.Sprint(i)}
		c.began = now.Add(-time.Duration(4-i) * time.Minute)
		if _, err := s.gate.enter(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		calls = append(calls, c)
	}
	list, more := s.Calls("", 90*time.Second, 2)
	if len(list) != 2 || list[0].Name != "0" || list[1].Name != "1" || more != 1 || list[0].Age < 239_000 {
		t.Errorf("%+v and %d more", list, more)
	}
	if list, more := s.Calls("shop", 0, 2); len(list)+more > 0 {
		t.Errorf("calls of an app that has none: %v", list)
	}
	for _, c := range calls {
		s.gate.leave(&c.open)
	}
}

// A call that an operator ended is told so, whatever it had come to, unless it had failed before.
func TestFaultsOfEndedCalls(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrEnded)
	if !errors.Is(context.Cause(ctx), ErrCut) {
		t.Error("what cuts reading and sending off does not see the end")
	}
	for _, tc := range []struct {
		err     error
		code    codes.Code
		unknown bool
	}{
		{context.Canceled, codes.Canceled, false},
		{ErrEnded, codes.Canceled, false},
		{Unread(ctx), codes.Canceled, true},
		{BadRequest("sql is empty"), codes.InvalidArgument, false},
	} {
		f, ok := errors.AsType[*Fault](endedByOperator(ctx, tc.err))
		if !ok || f.Code.GRPC != tc.code || f.Unknown != tc.unknown || f.Safe {
			t.Errorf("%v: %+v", tc.err, f)
		}
		if ended := f.Message == "ended by an operator"; ended != (tc.code == codes.Canceled) {
			t.Errorf("%v: %q", tc.err, f.Message)
		}
	}
}
