package core

import (
	"context"
	"errors"
)

// whoEnded is the error of a call, or of one of its statements, whose context an operator or the end of this process may have ended.
func whoEnded(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case err == nil:
		return nil
	case errors.Is(cause, ErrEnded):
		return endedByOperator(ctx, err)
	case errors.Is(cause, ErrCut):
		return cutOff(err)
	}
	return err
}

// Told is the fault that ends a call, or one of its statements, as its caller is told of it: in its answer, or in the last part of a
// stream, before the call itself has ended.
func (s *Service) Told(ctx context.Context, c *Call, err error) *Fault {
	return s.Answered(c.overtime(FaultOf(whoEnded(ctx, err), Deed{})))
}

// endedByOperator is the error of a call that an operator ended, without a change of what it says about the outcome.
func endedByOperator(ctx context.Context, err error) error {
	f := FaultOf(err, Deed{})
	switch f.Code {
	case codeCancelled, CodeDraining, codeUnknown:
	default:
		return f // it had failed before
	}
	return f.With(func(f *Fault) {
		f.Code, f.Message, f.Safe, f.After, f.Cause = codeCancelled, "ended by an operator", false, 0, context.Cause(ctx)
	})
}

// cutOff names the stop of the sidecar as the cause of an error, without changing
// what it says about the outcome.
func cutOff(err error) error {
	f := FaultOf(err, Deed{})
	if f.Code != codeCancelled {
		return f
	}
	return f.With(func(f *Fault) {
		f.Message = "the sidecar stopped before the call was done"
		if f.Unknown {
			f.Code = codeUnknown
			return
		}
		f.Code, f.Safe, f.After = CodeDraining, true, pause(CodeDraining)
	})
}

// Unread is the fault of a caller that did not read its rows in time, or at all.
func Unread(ctx context.Context) *Fault {
	f := Faultf(codeCancelled, "the caller stopped reading")
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrCut):
		f = Faultf(codeUnknown, "the sidecar stopped before the caller had read all rows")
	case errors.Is(cause, context.DeadlineExceeded):
		f = Faultf(CodeDeadline, "the deadline ended before the caller had read all rows")
	}
	f.Unknown, f.Cause = true, context.Cause(ctx)
	return f
}
