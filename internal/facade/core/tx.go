package core

import (
	"context"
	"errors"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/lease"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// errTxMax is the cause of the end of a statement that ran into tx.max.
var errTxMax = errors.New("facade: the transaction is as old as it may get")

// rollbackTimeout bounds the clean-up of a transaction that nobody finished.
const rollbackTimeout = 5 * time.Second

// failedTimeout bounds it while the caller of a step that failed waits for its
// answer, which must not be late.
const failedTimeout = 500 * time.Millisecond

// transactions are the interactive ones: those that callers begin, go on with and end by calls.
type transactions struct {
	core   *Service
	leases *lease.Table[*transaction, stored]
}

// transaction is what a lease holds: the session with the open transaction.
// Only node, session, mode, app and trace may be read without its turn, and fate once it has ended.
type transaction struct {
	session TxSession
	node    cluster.NodeID
	mode    *mode
	hash    string // short hash
	app     string // that began it
	trace   string // of the call that did
	fate    *Fault // of the step that ended it; nil if none failed
	lost    bool   // the session is of no use: a call on it was cut, or got no answer
	maxed   bool   // a step of it ran into tx.max
	writes  bool   // not all of its statements so far certainly only read
	spans   txTrace
	until   time.Time       // when a caller that waits for the end must have its answer; zero: none waits
	ahead   *upstream.Ahead // of the rollback at the end, if it has begun; see InlineCall
}

// end gives the session back. What was not committed is rolled back first,
// unless the session is lost anyway; a rollback that fails costs the session,
// which rolls back as well.
func (t *transaction) end(why lease.Reason, core *Service) {
	clean := why == lease.Finished
	how := t.endOf(why)
	core.counts.ended[how].Add(1)
	var report upstream.Report
	defer func() { core.tel.ended(t, how, &report) }()
	if !clean && !t.lost {
		ctx, cancel := t.ending()
		defer cancel()
		var err error
		ahead := t.ahead
		t.ahead = nil // the transaction is remembered for a while, which would keep the request
		report, err = t.session.Run(ctx, upstream.Call{Name: "Rollback", Ahead: ahead}, func(ctx context.Context, s Session) error {
			return s.Rollback(ctx)
		})
		clean = err == nil
	}
	t.session.Release(clean)
}

// ending is the context of the rollback at the end.
func (t *transaction) ending() (context.Context, context.CancelFunc) {
	until := t.until
	if until.IsZero() {
		until = time.Now().Add(rollbackTimeout)
	}
	return context.WithDeadline(t.spans.within(context.Background()), until)
}

// The calls that end a transaction and have no seq, as steps of its lease.
var (
	commitStep   = lease.Step{Print: 1, Final: true}
	rollbackStep = lease.Step{Print: 2, Final: true}
)

// BeginRequest is the call Begin, over either API.
type BeginRequest struct {
	Mode, Timeout, Priority string
}

// Begin opens an interactive transaction.
func (x *transactions) Begin(ctx context.Context, c *Call, in BeginRequest) (*sidecarv1.Tx, error) {
	m, err := parseTxMode(in.Mode)
	if err != nil {
		return nil, err
	}
	ctx, cancel, call, err := x.core.Begin(ctx, c, in.Timeout, in.Priority)
	if err != nil {
		return nil, err
	}
	defer cancel()
	turn, err := x.letIn(c)
	if err != nil {
		return nil, err
	}
	return x.openEmpty(ctx, c, call, turn, m)
}

// openEmpty begins a transaction without a statement, in a turn of letIn.
func (x *transactions) openEmpty(ctx context.Context, c *Call, call upstream.Call, turn *txStep, m *mode) (*sidecarv1.Tx, error) {
	if err := x.beginOn(ctx, c, call, turn, m, func(ctx context.Context, session Session) error {
		if err := session.Begin(ctx, m.settings); err != nil {
			return err
		}
		return opened(session)
	}); err != nil {
		return nil, err
	}
	return txOf(turn.Token(), turn.Keep(nil)), nil
}

// opened refuses a session on which no transaction is open, although the database said that one had begun.
func opened(session Session) error {
	if session.TxID() == "" {
		return upstream.Final(Faultf(CodeInternal, "the database opened no transaction"))
	}
	return nil
}

func txOf(id string, left time.Duration) *sidecarv1.Tx {
	return &sidecarv1.Tx{Id: id, ExpiresMs: left.Milliseconds()}
}

// txStep is the right to run one step of a transaction.
type txStep = lease.ActiveStep[*transaction, stored]

// letIn lets in a call that begins a transaction. The turn that it returns has none yet: see beginOn.
func (x *transactions) letIn(c *Call) (*txStep, error) {
	if err := x.core.Allow(c, Wish{Kind: apps.Statements}); err != nil {
		return nil, err
	}
	if err := x.core.Fresh(c); err != nil {
		return nil, err
	}
	return x.leases.Open()
}

// beginOn takes a session for a transaction that f begins on it, and that turn holds from then on. With an error the turn has ended.
func (x *transactions) beginOn(ctx context.Context, c *Call, call upstream.Call, turn *txStep, m *mode,
	f func(context.Context, Session) error) error {
	var leased TxSession
	var report upstream.Report
	err := panics.Call("the beginning of a transaction", func() (err error) {
		leased, report, err = x.core.Deps.Driver.BeginTx(ctx, call, f)
		return err
	})
	c.Note(report)
	if err != nil {
		turn.Drop()
		return FaultOf(err, Deed{Harmless: true}) // what was begun is rolled back
	}
	t := &transaction{session: leased, node: leased.Node(), hash: leased.Hash(), mode: m, app: c.App.Name(), trace: c.TraceID}
	c.opened(&t.spans)
	turn.Grant(t)
	return nil
}

// giveUp ends a turn of which nothing else can be said, and gives its session up.
func (x *transactions) giveUp(turn *txStep) {
	t := turn.Value()
	if t == nil {
		turn.Drop()
		return
	}
	t.lost = true
	turn.End(lease.Failed, nil)
}

// execute runs a statement that begins, continues or commits an interactive transaction.
func (x *transactions) execute(ctx context.Context, c *Call, call upstream.Call, in ExecuteRequest, st *Statement,
	m *mode, out Sink) (Outcome, error) {
	m, err := txModeOf(in.Tx, m)
	switch {
	case err != nil:
		return Outcome{}, err
	case !in.Tx.Begin:
		return x.continueWaiting(ctx, c, call, in.Tx, st, in.room(x.core, c), out)
	case in.alone(): // begun and committed with one statement: nothing stays open
		if err := x.core.Fresh(c); err != nil {
			return Outcome{}, err
		}
		return x.core.executeAlone(ctx, c, call, in.Spec, st, m, in.room(x.core, c), out)
	}
	turn, err := x.letIn(c)
	if err != nil {
		return Outcome{}, err
	}
	return x.open(ctx, c, call, turn, st, m, in.room(x.core, c), out)
}

// txModeOf returns the mode of a transaction that a statement begins, whose own mode is m; it refuses what does not fit together.
func txModeOf(sel *TxSelector, m *mode) (*mode, error) {
	switch {
	case sel.Begin && sel.ID != "":
		return nil, BadRequest("tx has both begin and id; send one of them")
	case !sel.Begin && sel.ID == "":
		return nil, BadRequest("tx has neither begin nor id; send one of them")
	case m != modeImplicit && !sel.Begin:
		return nil, BadRequest("mode: the transaction already has a mode; omit it together with tx.id")
	case m != modeImplicit && sel.Mode != "" && sel.Mode != m.name:
		return nil, BadRequest("mode: %s and tx.begin.mode: %.40q differ", m.name, sel.Mode)
	case !sel.Begin:
		return m, nil
	case sel.Seq > 1:
		return nil, BadRequest("tx.seq: %d; the statement that begins a transaction is number 1", sel.Seq)
	}
	name := sel.Mode
	if name == "" && m != modeImplicit {
		name = m.name
	}
	return parseTxMode(name)
}

// open begins a transaction with its first statement, in a turn of letIn.
func (x *transactions) open(ctx context.Context, c *Call, call upstream.Call, turn *txStep, st *Statement, m *mode,
	own *Room, out Sink) (Outcome, error) {
	rec := &recorder{Sink: out, limit: x.core.Cfg.Tx.Replay}
	var end ending
	err := x.beginOn(ctx, c, call, turn, m, func(ctx context.Context, session Session) (err error) {
		if end, err = Run(ctx, session, st, m.Begin(false), false, own, rec); err == nil {
			err = opened(session)
		}
		return err
	})
	x.core.Count(c, st, end.rows, end.bytes, err)
	if err != nil {
		return Outcome{}, err
	}
	x.joins(turn.Value(), &call, st)
	turn.Count(lease.Step{Seq: 1, Print: st.print("")})
	done := end.outcome()
	done.Tx = txOf(turn.Token(), turn.Keep(rec.outcome(done)))
	return done, nil
}

// stepOf is a statement as a step of an open transaction.
func stepOf(sel *TxSelector, st *Statement) lease.Step {
	step := lease.Step{Seq: sel.Seq}
	if sel.Seq > 0 {
		control := ""
		if sel.Commit {
			control = "commit"
		}
		step.Print = st.print(control)
	}
	return step
}

// continueWaiting runs one more statement of an open transaction, as soon as it is its turn.
func (x *transactions) continueWaiting(ctx context.Context, c *Call, call upstream.Call, sel *TxSelector, st *Statement,
	own *Room, out Sink) (Outcome, error) {
	turn, old, err := x.leases.Take(ctx, sel.ID, stepOf(sel, st))
	if err != nil {
		return Outcome{}, x.fault(sel.ID, err, sel.Commit)
	}
	if old != nil {
		return x.repeat(ctx, c, sel.ID, old, out)
	}
	ctx, cancel := lasting(ctx, turn)
	defer cancel()
	return x.goOn(ctx, c, call, turn, sel, st, own, out)
}

// goOn runs one more statement of an open transaction, in its turn.
func (x *transactions) goOn(ctx context.Context, c *Call, call upstream.Call, turn *txStep, sel *TxSelector,
	st *Statement, own *Room, out Sink) (Outcome, error) {
	t := turn.Value()
	if call.Ahead == nil { // else it has
		x.joins(t, &call, st)
	}
	var rec *recorder
	if sel.Seq > 0 {
		rec = &recorder{Sink: out, limit: x.core.Cfg.Tx.Replay}
		out = rec
	}
	var end ending
	err := x.step(ctx, c, call, turn, func(ctx context.Context, session Session) (err error) {
		end, err = Run(ctx, session, st, Inside(session.TxID(), sel.Commit), false, own, out)
		return err
	})
	x.core.Count(c, st, end.rows, end.bytes, err)
	if err != nil {
		return Outcome{}, x.failed(ctx, turn, err, sel.Commit)
	}
	done := end.outcome()
	var keep *stored
	if rec != nil {
		keep = rec.outcome(done)
	}
	if sel.Commit {
		turn.End(lease.Finished, keep)
		return done, nil
	}
	if end.tx == "" {
		// The server says that nothing is open any more, without an error.
		t.fate = Faultf(codeTxLost, "the database ended the transaction")
		turn.End(lease.Failed, keep)
		return done, nil
	}
	done.Tx = txOf(sel.ID, turn.Keep(keep))
	return done, nil
}

// joins notes a statement of a transaction, and in its call whether all of them so far only read.
func (x *transactions) joins(t *transaction, call *upstream.Call, st *Statement) {
	t.writes = t.writes || !t.mode.readOnly && x.core.Cached.effectsOf(st.SQL, kindOf(st.SQL)) != yql.Reads
	call.Effects = t.effects()
}

// effects are those of all statements so far.
func (t *transaction) effects() yql.Effects {
	if t.writes {
		return yql.Whole
	}
	return yql.Reads
}

// lasting is the context of a step, which ends when the transaction does.
func lasting(ctx context.Context, turn *txStep) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, turn.Deadline(), errTxMax)
}

// step runs f on the session of a turn. ctx is of lasting.
func (x *transactions) step(ctx context.Context, c *Call, call upstream.Call, turn *txStep, f func(context.Context, Session) error) error {
	c.txTrace = &turn.Value().spans
	var report upstream.Report
	err := panics.Call("a statement of a transaction", func() (err error) {
		report, err = turn.Value().session.Run(ctx, call, f)
		return err
	})
	c.Note(report)
	if err != nil && errors.Is(context.Cause(ctx), errTxMax) {
		err = &maxed{err}
	}
	return err
}

// maxed marks an error that came because the transaction ran into tx.max.
type maxed struct{ error }

// Unwrap gives the error itself, and its cause.
func (m *maxed) Unwrap() []error { return []error{m.error, errTxMax} }

// failed ends the turn of a step that failed, and finds the words for it. A
// transaction survives no failure, except of a call that was surely not sent. ctx is that of the step.
func (x *transactions) failed(ctx context.Context, turn *txStep, err error, commits bool) *Fault {
	t := turn.Value()
	f := FaultOf(err, Deed{undone: !commits || t.mode.readOnly || !t.writes})
	e, ok := errors.AsType[*upstream.Error](err)
	if ok && refusedUnrun(e) {
		turn.Undo()
		return f
	}
	t.lost, t.until = (!ok || e.Status == 0) && f.Code != codeExpectation, time.Now().Add(failedTimeout)
	t.maxed = errors.Is(err, errTxMax)
	switch f.Code {
	case codeUpstreamLost, codeNoNode, CodeYDB(Ydb.StatusIds_BAD_SESSION), CodeYDB(Ydb.StatusIds_SESSION_EXPIRED):
		// Whatever the reason, what the caller needs to know is that the
		// transaction is over and nothing of it was kept.
		f = f.With(func(f *Fault) {
			f.Code, f.Message, f.Safe = codeTxLost, "the session of the transaction was lost: "+f.Message, true
		})
	}
	t.fate = f
	f = FaultOf(whoEnded(ctx, f), Deed{}).ofTx() // a repeat of the step is told this, too
	turn.End(lease.Failed, &stored{fault: f})
	return f
}

// refusedUnrun tells whether a call on a session surely did not run and left the
// session as it was: the node has too many calls open, or there was no ticket.
func refusedUnrun(e *upstream.Error) bool {
	return e.Status == 0 && !e.Verdict.DropSession && !e.Verdict.Unknown
}

// repeat answers a statement that was run before.
func (x *transactions) repeat(ctx context.Context, c *Call, id string, old *stored, out Sink) (Outcome, error) {
	if err := x.repeated(old); err != nil {
		return Outcome{}, err
	}
	done, err := old.replay(ctx, out, c.App.Grants().Rows())
	if err != nil {
		return Outcome{}, err
	}
	done.Tx = x.stillOpen(id)
	return done, nil
}

// fault finds the words for a step that was refused. A transaction that is not
// known may have been committed by a call whose answer got lost; mayBeOver says
// that this caller may have made one: it commits (again), or looks, or cleans up.
func (x *transactions) fault(id string, err error, mayBeOver bool) *Fault {
	if errors.Is(err, lease.ErrForeign) {
		f := Faultf(codeTxLost, "the transaction is unknown: it ended long ago, or the sidecar restarted")
		f.Safe, f.Unknown = !mayBeOver, mayBeOver
		return f
	}
	ended, ok := errors.AsType[*lease.EndedError](err)
	if !ok {
		return FaultOf(err, Deed{})
	}
	f := Faultf(codeTxLost, "the transaction has ended: ")
	switch ended.Why {
	case lease.Finished:
		return Faultf(codeTxCommitted, "the transaction was committed")
	case lease.Abandoned:
		f.Message += "it was rolled back"
	case lease.Idle:
		f.Message += "nothing was sent for " + x.core.Cfg.Tx.Idle.String() + " (tx.idle), so it was rolled back"
	case lease.Unused:
		f.Message += "the sidecar stops, and nothing was sent for a while (drain.idle), so it was rolled back"
	case lease.Expired:
		f.Message += "it was open for " + x.core.Cfg.Tx.Max.String() + ", the limit (tx.max), so it was rolled back"
	case lease.Closed:
		f.Message += "the sidecar stopped and rolled it back"
	case lease.Killed:
		f.Message += upstream.ErrKilled.Error() + ", which rolled it back"
	default:
		f.Message += "a statement failed"
		if _, t, err := x.leases.Look(id); err == nil && t.fate != nil {
			f.Message += " with " + t.fate.Code.Name
			f.Unknown, f.Safe = t.fate.Unknown, !t.fate.Unknown
		}
	}
	return f
}

// EndUnused rolls back every transaction for which nothing is sent for so long
// from now on, if tx.idle does not do so before.
func (s *Service) EndUnused(after time.Duration) { s.Tx.leases.EndUnused(after) }

// EndIdle ends the transaction that has the session of that hash, unless a call of it runs: then the call fails and ends it.
func (x *transactions) EndIdle(session string) {
	x.leases.EndIdle(func(t *transaction) bool { return t != nil && t.hash == session })
}

// Commit commits an interactive transaction. A repeat gets the first outcome.
func (x *transactions) Commit(ctx context.Context, c *Call, id, timeout string) error {
	ctx, cancel, call, err := x.core.Begin(ctx, c, timeout, "")
	if err != nil {
		return err
	}
	defer cancel()
	return x.commitWaiting(ctx, c, call, id)
}

// commitWaiting waits for the turn of the transaction, and commits it.
func (x *transactions) commitWaiting(ctx context.Context, c *Call, call upstream.Call, id string) error {
	turn, old, err := x.leases.Take(ctx, id, commitStep)
	if ended, ok := errors.AsType[*lease.EndedError](err); ok && ended.Why == lease.Finished {
		return nil // with its last statement
	}
	if err != nil {
		return x.fault(id, err, true)
	}
	if old != nil {
		return x.repeated(old)
	}
	ctx, stop := lasting(ctx, turn)
	defer stop()
	call.Effects = turn.Value().effects()
	return x.commitNow(ctx, c, call, turn)
}

// commitNow commits a transaction in its turn.
func (x *transactions) commitNow(ctx context.Context, c *Call, call upstream.Call, turn *txStep) error {
	err := x.step(ctx, c, call, turn, func(ctx context.Context, session Session) error {
		return session.Commit(ctx)
	})
	if err != nil {
		return x.failed(ctx, turn, err, true)
	}
	turn.End(lease.Finished, &stored{})
	return nil
}

// RollBack rolls an interactive transaction back; one that is over already,
// and was not committed, is fine.
func (x *transactions) RollBack(ctx context.Context, c *Call, id, timeout string) error {
	ctx, cancel, _, err := x.core.Begin(ctx, c, timeout, "")
	if err != nil {
		return err
	}
	defer cancel()
	return x.rollBackWaiting(ctx, c, id)
}

// rollBackWaiting waits for the turn of the transaction, and rolls it back.
func (x *transactions) rollBackWaiting(ctx context.Context, c *Call, id string) error {
	turn, old, err := x.leases.Take(ctx, id, rollbackStep)
	if err != nil {
		f := x.fault(id, err, true)
		if _, ok := errors.AsType[*lease.EndedError](err); ok && f.Code == codeTxLost && !f.Unknown {
			return nil
		}
		return f
	}
	if old != nil {
		return x.repeated(old)
	}
	x.endsBy(ctx, c, turn)
	turn.End(lease.Abandoned, &stored{})
	return nil
}

// endsBy notes that a call ends the transaction whose turn it has. If the node does not answer in time, the session is deleted instead.
func (x *transactions) endsBy(ctx context.Context, c *Call, turn *txStep) {
	t := turn.Value()
	c.Info.NodeId, c.txTrace = uint32(t.node), &t.spans
	t.until, _ = ctx.Deadline()
}

// repeated counts a repeat that gets a stored outcome, and returns its error.
func (x *transactions) repeated(old *stored) error {
	x.core.counts.replayed.Add(1)
	if old.fault == nil {
		return nil
	}
	return old.fault
}

// Get tells the state of an interactive transaction that is open.
func (x *transactions) Get(id string) (*sidecarv1.GetTransactionResponse, error) {
	info, t, err := x.leases.Look(id)
	if err == nil && info.Why != lease.Open {
		err = &lease.EndedError{Why: info.Why, Seq: info.Seq}
	}
	if err != nil {
		return nil, x.fault(id, err, true)
	}
	return &sidecarv1.GetTransactionResponse{
		Tx: txOf(id, info.Expires), Seq: info.Seq, Mode: t.mode.name, NodeId: uint32(t.node), AgeMs: info.Age.Milliseconds(),
	}, nil
}
