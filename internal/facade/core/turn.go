package core

import (
	"context"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// InlineCall is a call of one statement, or of one step of a transaction, that needs no goroutine
// while it waits for a session and while a node works on it. InlineCalls of the facade begins it; Resume does the
// rest once the answer is here, or whatever else has become of it. Both run what the call runs
// otherwise.
type InlineCall struct {
	Core     *Service
	Job      Job
	Call     Call
	work     callctx.Context // ends when what the call waits for is no longer waited for
	Ctx      context.Context // work, once it has a deadline
	atEnd    func()          // nil: nothing
	Upstream upstream.Call
	Own      *Room   // nil: the reply is small
	tx       *txStep // of the transaction that the call begins, goes on with or ends; nil
	err      error   // of the beginning; nil: the first call is to be made
}

// Job is what differs from one kind of call to another.
type Job interface {
	// Begin is what comes before the first call to a node. It sets the turn's context, call, room and transaction. False: something must be
	// waited for before that call.
	Begin(t *InlineCall) (ready bool, err error)
	// First makes that call on the session. See upstream.FirstCall.
	First(ctx context.Context, t *InlineCall, session *upstream.Session) error
}

// SendFirst sends a statement as the first call of an InlineCall.
func SendFirst(ctx context.Context, session *upstream.Session, st upstream.Statement) error {
	_, err := session.Execute(ctx, st)
	return err
}

// Begin makes the first call, if nothing has to be waited for before.
func (t *InlineCall) Begin(ctx context.Context, via upstream.Via, weigh func() error) {
	s, ready := t.Core, false
	if t.Ctx, t.err = s.enter(ctx, &t.Call); t.err == nil {
		t.work.Values, t.Call.Work = t.Ctx, &t.work
		t.work.Under(t.Call.Begun)
		t.err = t.Call.run(func() (err error) {
			if err = weigh(); err == nil {
				ready, err = t.Job.Begin(t)
			}
			return err
		})
	}
	if t.err != nil && t.tx != nil { // a panic
		s.Tx.giveUp(t.tx)
	}
	if t.err != nil || !ready {
		return
	}
	whole := false
	defer func() {
		if !whole { // a panic, which is for whoever's turn this is
			if t.tx != nil {
				s.Tx.giveUp(t.tx)
			}
			s.end(t.Ctx, &t.Call, errUntold)
			t.close()
		}
	}()
	first := func(ctx context.Context, session *upstream.Session) error { return t.Job.First(ctx, t, session) }
	if t.tx != nil && t.tx.Value() != nil {
		t.Upstream.Ahead = t.tx.Value().session.(txSession).Ahead(t.Ctx, &t.Upstream, via, first)
	} else {
		t.Upstream.Ahead = s.Client.Ahead(t.Ctx, &t.Upstream, via, first)
	}
	whole = true
}

// Context ends when the call does, or is to.
func (t *InlineCall) Context() *callctx.Context { return &t.work }

// Here reports whether Resume does not wait, given the messages of an answer with their prefixes, which has ended well. Then
// Resume is to be called at once.
func (t *InlineCall) Here(answer []byte) bool {
	if t.err != nil || t.Upstream.Ahead == nil || !t.Upstream.Ahead.Here(answer) {
		return false
	}
	if t.Own != nil {
		t.Own.here = true
	}
	return true
}

// close ends the contexts of the call that are its own.
func (t *InlineCall) close() {
	t.work.Cancel(nil)
	if t.atEnd != nil {
		t.atEnd()
	}
}

// Finish runs the rest of the call, and ends it.
func (t *InlineCall) Finish(rest func() error) *Fault {
	err := t.err
	if err == nil {
		err = t.Call.run(rest)
	}
	fault := t.Core.end(t.Ctx, &t.Call, err)
	t.close()
	return fault
}

// Executing is a call of Execute, over either API.
type Executing struct {
	In  ExecuteRequest
	st  *Statement
	m   *mode
	Out Sink
}

// Begin begins a call whose request was read.
func (j *Executing) Begin(t *InlineCall) (ready bool, err error) {
	s, c := t.Core, &t.Call
	if j.st, j.m, err = s.compose(t.Ctx, c, j.In); err != nil {
		return false, err
	}
	if err := t.prepare(j.In.Timeout, j.In.Priority); err != nil {
		return false, err
	}
	t.Upstream.Idempotent = j.In.Idempotent
	tx := j.In.Tx
	if tx != nil {
		if j.m, err = txModeOf(tx, j.m); err != nil {
			return false, err
		}
	}
	switch {
	case j.In.alone():
		if err := s.Fresh(c); err != nil {
			return false, err
		}
		s.classify(&t.Upstream, j.st)
	case tx.Begin:
		if t.tx, err = s.Tx.letIn(c); err != nil {
			return false, err
		}
	default:
		if !t.takeStep(tx.ID, stepOf(tx, j.st)) {
			return false, nil
		}
		s.Tx.joins(t.tx.Value(), &t.Upstream, j.st)
	}
	t.Own = j.In.room(s, c)
	return true, nil
}

// First implements Job.
func (j *Executing) First(ctx context.Context, t *InlineCall, session *upstream.Session) error {
	control := j.m.Single()
	switch {
	case t.tx == nil:
	case j.In.Tx.Begin:
		control = j.m.Begin(false)
	default:
		control = Inside(session.TxID(), j.In.Tx.Commit)
	}
	return SendFirst(ctx, session, j.st.Request(control, t.Own))
}

// Run makes the first call, or waits for its answer, and what follows.
func (j *Executing) Run(t *InlineCall) (done Outcome, err error) {
	s, c, tx := t.Core, &t.Call, j.In.Tx
	switch {
	case j.In.alone():
		return s.executeAlone(t.Ctx, c, t.Upstream, j.In.Spec, j.st, j.m, t.Own, j.Out)
	case t.tx == nil: // it has to wait for its turn, or gets none
		done, err = s.Tx.continueWaiting(t.Ctx, c, t.Upstream, tx, j.st, j.In.room(s, c), j.Out)
	case tx.Begin:
		done, err = s.Tx.open(t.Ctx, c, t.Upstream, t.tx, j.st, j.m, t.Own, j.Out)
	default:
		done, err = s.Tx.goOn(t.Ctx, c, t.Upstream, t.tx, tx, j.st, t.Own, j.Out)
	}
	return done, hinted(err, j.st)
}
