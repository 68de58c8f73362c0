package facade

import (
	"context"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// Turn is a call of one statement, or of one step of a transaction, that needs no goroutine while it waits for a session and while a node works
// on it. Service.Turns begins it; Resume does the rest once the answer is here, or whatever else has become of it. Both run what the call runs
// otherwise.
type Turn struct {
	s      *coreService
	job    job
	c      call
	work   callctx.Context // ends when what the call waits for is no longer waited for
	ctx    context.Context // work, once it has a deadline
	atEnd  func()          // nil: nothing
	call   upstream.Call
	own    *room   // nil: the reply is small
	tx     *txTurn // of the transaction that the call begins, goes on with or ends; nil
	err    error   // of the beginning; nil: the first call is to be made
	values int     // of the parameters of a request that was read without a message
}

// job is what differs from one kind of call to another.
type job interface {
	// begin is what comes before the first call to a node. It sets the turn's context, call, room and transaction. False: something must be
	// waited for before that call.
	begin(t *Turn) (ready bool, err error)
	// first makes that call on the session. See upstream.FirstCall.
	first(ctx context.Context, t *Turn, session *upstream.Session) error
}

// execute sends a statement as the first call of a Turn.
func execute(ctx context.Context, session *upstream.Session, st upstream.Statement) error {
	_, err := session.Execute(ctx, st)
	return err
}

// begin makes the first call, if nothing has to be waited for before.
func (t *Turn) begin(ctx context.Context, via upstream.Via, weigh func() error) {
	s, ready := t.s, false
	if t.ctx, t.err = s.enter(ctx, &t.c); t.err == nil {
		t.work.Values, t.c.work = t.ctx, &t.work
		t.work.Under(t.c.begun)
		t.err = t.c.run(func() (err error) {
			if err = weigh(); err == nil {
				ready, err = t.job.begin(t)
			}
			return err
		})
	}
	if t.err != nil && t.tx != nil { // a panic
		s.tx.giveUp(t.tx)
	}
	if t.err != nil || !ready {
		return
	}
	whole := false
	defer func() {
		if !whole { // a panic, which is for whoever's turn this is
			if t.tx != nil {
				s.tx.giveUp(t.tx)
			}
			s.end(t.ctx, &t.c, errUntold)
			t.close()
		}
	}()
	first := func(ctx context.Context, session *upstream.Session) error { return t.job.first(ctx, t, session) }
	if t.tx != nil && t.tx.Value() != nil {
		t.call.Ahead = t.tx.Value().session.(txSession).Ahead(t.ctx, &t.call, via, first)
	} else {
		t.call.Ahead = s.client.Ahead(t.ctx, &t.call, via, first)
	}
	whole = true
}

// Context ends when the call does, or is to.
func (t *Turn) Context() *callctx.Context { return &t.work }

// Here reports whether Resume does not wait, given the messages of an answer with their prefixes, which has ended well. Then
// Resume is to be called at once.
func (t *Turn) Here(answer []byte) bool {
	if t.err != nil || t.call.Ahead == nil || !t.call.Ahead.Here(answer) {
		return false
	}
	if t.own != nil {
		t.own.here = true
	}
	return true
}

// close ends the contexts of the call that are its own.
func (t *Turn) close() {
	t.work.Cancel(nil)
	if t.atEnd != nil {
		t.atEnd()
	}
}

// finish runs the rest of the call, and ends it.
func (t *Turn) finish(rest func() error) *fault {
	err := t.err
	if err == nil {
		err = t.c.run(rest)
	}
	fault := t.s.end(t.ctx, &t.c, err)
	t.close()
	return fault
}

// executing is a call of Execute, over either face.
type executing struct {
	in  executeRequest
	st  *statement
	m   *mode
	out sink
}

// begin begins a call whose request was read.
func (j *executing) begin(t *Turn) (ready bool, err error) {
	s, c := t.s, &t.c
	if j.st, j.m, err = s.compose(t.ctx, c, j.in); err != nil {
		return false, err
	}
	if err := t.prepare(j.in.timeout, j.in.priority); err != nil {
		return false, err
	}
	t.call.Idempotent = j.in.idempotent
	tx := j.in.tx
	if tx != nil {
		if j.m, err = txModeOf(tx, j.m); err != nil {
			return false, err
		}
	}
	switch {
	case j.in.alone():
		if err := s.fresh(c); err != nil {
			return false, err
		}
		s.classify(&t.call, j.st)
	case tx.begin:
		if t.tx, err = s.tx.letIn(c); err != nil {
			return false, err
		}
	default:
		if !t.takeStep(tx.id, stepOf(tx, j.st)) {
			return false, nil
		}
		s.tx.joins(t.tx.Value(), &t.call, j.st)
	}
	t.own = j.in.room(s, c)
	return true, nil
}

func (j *executing) first(ctx context.Context, t *Turn, session *upstream.Session) error {
	control := j.m.single()
	switch {
	case t.tx == nil:
	case j.in.tx.begin:
		control = j.m.begin(false)
	default:
		control = inside(session.TxID(), j.in.tx.commit)
	}
	return execute(ctx, session, j.st.request(control, t.own))
}

func (j *executing) run(t *Turn) (done outcome, err error) {
	s, c, tx := t.s, &t.c, j.in.tx
	switch {
	case j.in.alone():
		return s.executeAlone(t.ctx, c, t.call, j.in.spec, j.st, j.m, t.own, j.out)
	case t.tx == nil: // it has to wait for its turn, or gets none
		done, err = s.tx.continueWaiting(t.ctx, c, t.call, tx, j.st, j.in.room(s, c), j.out)
	case tx.begin:
		done, err = s.tx.open(t.ctx, c, t.call, t.tx, j.st, j.m, t.own, j.out)
	default:
		done, err = s.tx.goOn(t.ctx, c, t.call, t.tx, tx, j.st, t.own, j.out)
	}
	return done, hinted(err, j.st)
}
