package facade

import (
	"context"
	"errors"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

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
	core   *coreService
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
	fate    *fault // of the step that ended it; nil if none failed
	lost    bool   // the session is of no use: a call on it was cut, or got no answer
	writes  bool   // not all of its statements so far certainly only read
	spans   txTrace
	until   time.Time       // when a caller that waits for the end must have its answer; zero: none waits
	ahead   *upstream.Ahead // of the rollback at the end, if it has begun; see Turn
}

// end gives the session back. What was not committed is rolled back first,
// unless the session is lost anyway; a rollback that fails costs the session,
// which rolls back as well.
func (t *transaction) end(why lease.Reason, tel *telemetry) {
	clean := why == lease.Finished
	var report upstream.Report
	defer func() { tel.ended(t, why, &report) }()
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

// beginRequest is the call Begin, from either face.
type beginRequest struct {
	mode, timeout, priority string
}

// begin opens an interactive transaction.
func (x *transactions) begin(ctx context.Context, c *call, in beginRequest) (*sidecarv1.Tx, error) {
	m, err := parseTxMode(in.mode)
	if err != nil {
		return nil, err
	}
	ctx, cancel, call, err := x.core.begin(ctx, c, in.timeout, in.priority)
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
func (x *transactions) openEmpty(ctx context.Context, c *call, call upstream.Call, turn *txTurn, m *mode) (*sidecarv1.Tx, error) {
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
		return upstream.Final(faultf(codeInternal, "the database opened no transaction"))
	}
	return nil
}

func txOf(id string, left time.Duration) *sidecarv1.Tx {
	return &sidecarv1.Tx{Id: id, ExpiresMs: left.Milliseconds()}
}

// txTurn is the right to run a step of a transaction.
type txTurn = lease.Turn[*transaction, stored]

// letIn lets in a call that begins a transaction. The turn that it returns has none yet: see beginOn.
func (x *transactions) letIn(c *call) (*txTurn, error) {
	if err := x.core.fresh(c); err != nil {
		return nil, err
	}
	return x.leases.Open()
}

// beginOn takes a session for a transaction that f begins on it, and that turn holds from then on. With an error the turn has ended.
func (x *transactions) beginOn(ctx context.Context, c *call, call upstream.Call, turn *txTurn, m *mode, f func(context.Context, Session) error) error {
	var leased TxSession
	var report upstream.Report
	err := panics.Call("the beginning of a transaction", func() (err error) {
		leased, report, err = x.core.deps.Driver.BeginTx(ctx, call, f)
		return err
	})
	c.note(report)
	if err != nil {
		turn.Drop()
		return faultOf(err, deed{harmless: true}) // what was begun is rolled back
	}
	t := &transaction{session: leased, node: leased.Node(), hash: leased.Hash(), mode: m, app: c.app.Name(), trace: c.traceID}
	c.opened(&t.spans)
	turn.Grant(t)
	return nil
}

// giveUp ends a turn of which nothing else can be said, and gives its session up.
func (x *transactions) giveUp(turn *txTurn) {
	t := turn.Value()
	if t == nil {
		turn.Drop()
		return
	}
	t.lost = true
	turn.End(lease.Failed, nil)
}

// execute runs a statement that begins, continues or commits an interactive transaction.
func (x *transactions) execute(ctx context.Context, c *call, call upstream.Call, in executeRequest, st *statement, m *mode, out sink) (outcome, error) {
	m, err := txModeOf(in.tx, m)
	switch {
	case err != nil:
		return outcome{}, err
	case !in.tx.begin:
		return x.continueWaiting(ctx, c, call, in.tx, st, in.room(x.core, c), out)
	case in.alone(): // begun and committed with one statement: nothing stays open
		if err := x.core.fresh(c); err != nil {
			return outcome{}, err
		}
		return x.core.executeAlone(ctx, c, call, in.spec, st, m, in.room(x.core, c), out)
	}
	turn, err := x.letIn(c)
	if err != nil {
		return outcome{}, err
	}
	return x.open(ctx, c, call, turn, st, m, in.room(x.core, c), out)
}

// txModeOf returns the mode of a transaction that a statement begins, whose own mode is m; it refuses what does not fit together.
func txModeOf(sel *txSelector, m *mode) (*mode, error) {
	switch {
	case sel.begin && sel.id != "":
		return nil, badRequest("tx: begin and id exclude each other")
	case !sel.begin && sel.id == "":
		return nil, badRequest("tx: either begin or id is needed")
	case m != modeImplicit && !sel.begin:
		return nil, badRequest("mode: the transaction has one already; leave it out with tx.id")
	case m != modeImplicit && sel.mode != "" && sel.mode != m.name:
		return nil, badRequest("mode: %s and tx.begin.mode: %.40q differ", m.name, sel.mode)
	case !sel.begin:
		return m, nil
	case sel.seq > 1:
		return nil, badRequest("tx.seq: %d; the statement that begins a transaction is number 1", sel.seq)
	}
	name := sel.mode
	if name == "" && m != modeImplicit {
		name = m.name
	}
	return parseTxMode(name)
}

// open begins a transaction with its first statement, in a turn of letIn.
func (x *transactions) open(ctx context.Context, c *call, call upstream.Call, turn *txTurn, st *statement, m *mode, own *room, out sink) (outcome, error) {
	rec := &recorder{sink: out, limit: x.core.cfg.Tx.Replay}
	var end ending
	if err := x.beginOn(ctx, c, call, turn, m, func(ctx context.Context, session Session) (err error) {
		if end, err = run(ctx, session, st, m.begin(false), false, own, rec); err == nil {
			err = opened(session)
		}
		return err
	}); err != nil {
		return outcome{}, err
	}
	x.joins(turn.Value(), &call, st)
	turn.Count(lease.Step{Seq: 1, Print: st.print("")})
	done := end.outcome()
	done.tx = txOf(turn.Token(), turn.Keep(rec.outcome(done)))
	return done, nil
}

// stepOf is a statement as a step of an open transaction.
func stepOf(sel *txSelector, st *statement) lease.Step {
	step := lease.Step{Seq: sel.seq}
	if sel.seq > 0 {
		control := ""
		if sel.commit {
			control = "commit"
		}
		step.Print = st.print(control)
	}
	return step
}

// continueWaiting runs one more statement of an open transaction, as soon as it is its turn.
func (x *transactions) continueWaiting(ctx context.Context, c *call, call upstream.Call, sel *txSelector, st *statement, own *room, out sink) (outcome, error) {
	turn, old, err := x.leases.Take(ctx, sel.id, stepOf(sel, st))
	if err != nil {
		return outcome{}, x.fault(sel.id, err, sel.commit)
	}
	if old != nil {
		return x.repeat(ctx, sel.id, old, out)
	}
	ctx, cancel := lasting(ctx, turn)
	defer cancel()
	return x.goOn(ctx, c, call, turn, sel, st, own, out)
}

// goOn runs one more statement of an open transaction, in its turn.
func (x *transactions) goOn(ctx context.Context, c *call, call upstream.Call, turn *txTurn, sel *txSelector, st *statement, own *room, out sink) (outcome, error) {
	t := turn.Value()
	if call.Ahead == nil { // else it has
		x.joins(t, &call, st)
	}
	var rec *recorder
	if sel.seq > 0 {
		rec = &recorder{sink: out, limit: x.core.cfg.Tx.Replay}
		out = rec
	}
	var end ending
	err := x.step(ctx, c, call, turn, func(ctx context.Context, session Session) (err error) {
		end, err = run(ctx, session, st, inside(session.TxID(), sel.commit), false, own, out)
		return err
	})
	if err != nil {
		return outcome{}, x.failed(turn, err, sel.commit)
	}
	done := end.outcome()
	var keep *stored
	if rec != nil {
		keep = rec.outcome(done)
	}
	if sel.commit {
		turn.End(lease.Finished, keep)
		return done, nil
	}
	if end.tx == "" {
		// The server says that nothing is open any more, without an error.
		t.fate = faultf(codeTxLost, "the database ended the transaction")
		turn.End(lease.Failed, keep)
		return done, nil
	}
	done.tx = txOf(sel.id, turn.Keep(keep))
	return done, nil
}

// joins notes a statement of a transaction, and in its call whether all of them so far only read.
func (x *transactions) joins(t *transaction, call *upstream.Call, st *statement) {
	t.writes = t.writes || !t.mode.readOnly && x.core.cached.effectsOf(st.sql, kindOf(st.sql)) != yql.Reads
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
func lasting(ctx context.Context, turn *txTurn) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, turn.Deadline(), errTxMax)
}

// step runs f on the session of a turn. ctx is of lasting.
func (x *transactions) step(ctx context.Context, c *call, call upstream.Call, turn *txTurn, f func(context.Context, Session) error) error {
	c.txTrace = &turn.Value().spans
	var report upstream.Report
	err := panics.Call("a statement of a transaction", func() (err error) {
		report, err = turn.Value().session.Run(ctx, call, f)
		return err
	})
	c.note(report)
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
// transaction survives no failure, except of a call that was surely not sent.
func (x *transactions) failed(turn *txTurn, err error, commits bool) *fault {
	t := turn.Value()
	f := faultOf(err, deed{undone: !commits || t.mode.readOnly || !t.writes})
	e, ok := errors.AsType[*upstream.Error](err)
	if ok && refusedUnrun(e) {
		turn.Undo()
		return f
	}
	t.lost, t.until = !ok || e.Status == 0, time.Now().Add(failedTimeout)
	switch f.code {
	case codeUpstreamLost, codeNoNode, codeYDB(Ydb.StatusIds_BAD_SESSION), codeYDB(Ydb.StatusIds_SESSION_EXPIRED):
		// Whatever the reason, what the caller needs to know is that the
		// transaction is over and nothing of it was kept.
		f = f.with(func(f *fault) {
			f.code, f.message, f.safe = codeTxLost, "the session of the transaction was lost: "+f.message, true
		})
	}
	t.fate = f
	turn.End(lease.Failed, &stored{fault: f})
	return f
}

// refusedUnrun tells whether a call on a session surely did not run and left the
// session as it was: the node has too many calls open, or there was no ticket.
func refusedUnrun(e *upstream.Error) bool {
	return e.Status == 0 && !e.Verdict.DropSession && !e.Verdict.Unknown
}

// repeat answers a statement that was run before.
func (x *transactions) repeat(ctx context.Context, id string, old *stored, out sink) (outcome, error) {
	if old.fault != nil {
		return outcome{}, old.fault
	}
	if err := old.replay(ctx, out); err != nil {
		return outcome{}, err
	}
	done := old.end
	if info, _, err := x.leases.Look(id); err == nil && info.Why == lease.Open {
		done.tx = txOf(id, info.Expires)
	}
	return done, nil
}

// fault finds the words for a step that was refused. A transaction that nobody
// knows may have been committed by a call whose answer got lost; mayBeOver says
// that this caller may have made one: it commits (again), or looks, or cleans up.
func (x *transactions) fault(id string, err error, mayBeOver bool) *fault {
	if errors.Is(err, lease.ErrForeign) {
		f := faultf(codeTxLost, "this transaction is not known: it has ended long ago, or the sidecar was started anew")
		f.safe, f.unknown = !mayBeOver, mayBeOver
		return f
	}
	ended, ok := errors.AsType[*lease.EndedError](err)
	if !ok {
		return faultOf(err, deed{})
	}
	f := faultf(codeTxLost, "the transaction is over: ")
	switch ended.Why {
	case lease.Finished:
		return faultf(codeTxCommitted, "the transaction was committed")
	case lease.Abandoned:
		f.message += "it was rolled back"
	case lease.Idle:
		f.message += "nothing was sent for " + x.core.cfg.Tx.Idle.String() + " (tx.idle), so it was rolled back"
		if x.core.State().Draining {
			f.message = "the transaction is over: the sidecar stops, and nothing was sent for a while (drain.idle, tx.idle), so it was rolled back"
		}
	case lease.Expired:
		f.message += "it was open for " + x.core.cfg.Tx.Max.String() + " (tx.max), so it was rolled back"
	case lease.Closed:
		f.message += "the sidecar stopped and rolled it back"
	default:
		f.message += "a statement failed"
		if _, t, err := x.leases.Look(id); err == nil && t.fate != nil {
			f.message += " with " + t.fate.code.Name
			f.unknown, f.safe = t.fate.unknown, !t.fate.unknown
		}
	}
	return f
}

// EndUnused rolls back every transaction for which nothing is sent for so long
// from now on, if tx.idle does not do so before.
func (s *coreService) EndUnused(after time.Duration) { s.tx.leases.EndUnused(after) }

// commit commits an interactive transaction. A repeat gets the first outcome.
func (x *transactions) commit(ctx context.Context, c *call, id, timeout string) error {
	ctx, cancel, call, err := x.core.begin(ctx, c, timeout, "")
	if err != nil {
		return err
	}
	defer cancel()
	return x.commitWaiting(ctx, c, call, id)
}

// commitWaiting waits for the turn of the transaction, and commits it.
func (x *transactions) commitWaiting(ctx context.Context, c *call, call upstream.Call, id string) error {
	turn, old, err := x.leases.Take(ctx, id, commitStep)
	if ended, ok := errors.AsType[*lease.EndedError](err); ok && ended.Why == lease.Finished {
		return nil // with its last statement
	}
	if err != nil {
		return x.fault(id, err, true)
	}
	if old != nil {
		return old.err()
	}
	ctx, stop := lasting(ctx, turn)
	defer stop()
	call.Effects = turn.Value().effects()
	return x.commitNow(ctx, c, call, turn)
}

// commitNow commits a transaction in its turn.
func (x *transactions) commitNow(ctx context.Context, c *call, call upstream.Call, turn *txTurn) error {
	err := x.step(ctx, c, call, turn, func(ctx context.Context, session Session) error {
		return session.Commit(ctx)
	})
	if err != nil {
		return x.failed(turn, err, true)
	}
	turn.End(lease.Finished, &stored{})
	return nil
}

// rollBack rolls an interactive transaction back; one that is over already,
// and was not committed, is fine.
func (x *transactions) rollBack(ctx context.Context, c *call, id, timeout string) error {
	ctx, cancel, _, err := x.core.begin(ctx, c, timeout, "")
	if err != nil {
		return err
	}
	defer cancel()
	return x.rollBackWaiting(ctx, c, id)
}

// rollBackWaiting waits for the turn of the transaction, and rolls it back.
func (x *transactions) rollBackWaiting(ctx context.Context, c *call, id string) error {
	turn, old, err := x.leases.Take(ctx, id, rollbackStep)
	if err != nil {
		f := x.fault(id, err, true)
		if _, ok := errors.AsType[*lease.EndedError](err); ok && f.code == codeTxLost && !f.unknown {
			return nil
		}
		return f
	}
	if old != nil {
		return old.err()
	}
	x.endsBy(ctx, c, turn)
	turn.End(lease.Abandoned, &stored{})
	return nil
}

// endsBy notes that a call ends the transaction whose turn it has. If the node does not answer in time, the session is deleted instead.
func (x *transactions) endsBy(ctx context.Context, c *call, turn *txTurn) {
	t := turn.Value()
	c.info.NodeId, c.txTrace = uint32(t.node), &t.spans
	t.until, _ = ctx.Deadline()
}

func (o *stored) err() error {
	if o.fault == nil {
		return nil
	}
	return o.fault
}

// get tells the state of an interactive transaction that is open.
func (x *transactions) get(id string) (*sidecarv1.GetTransactionResponse, error) {
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
