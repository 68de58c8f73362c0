package core

import (
	"context"
	"hash/maphash"
	"strconv"

	"github.com/ydb-sidecar/sidecar/internal/lease"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// list is a list of statements that run one after the other in one transaction, and what has become of them.
type list struct {
	core       *Service
	call       *Call
	statements []*Statement
	ends       []ending
	at         int // the statement that ran last
	room       *Room
	out        func(i int) Sink
}

func newList(s *Service, c *Call, statements []*Statement, out func(i int) Sink) *list {
	return &list{core: s, call: c, statements: statements, ends: make([]ending, len(statements)), out: out}
}

// run runs all statements once. begin is the mode of the transaction that the first one begins; nil: one is open. commit says that the
// transaction ends with the list: the last statement commits, unless its rows must be counted before.
func (l *list) run(ctx context.Context, session Session, begin *mode, commit bool) (err error) {
	inline := commit && l.last().expect == nil
	for i, st := range l.statements {
		l.at = i
		last := inline && i == len(l.statements)-1
		control := Inside(session.TxID(), last)
		if i == 0 && begin != nil {
			control = begin.Begin(last)
		}
		if l.ends[i], err = l.core.RunCounted(ctx, l.call, session, st, control, false, l.room, l.out(i)); err != nil {
			return err
		}
		if err := st.met(i, l.ends[i]); err != nil {
			return err
		}
	}
	if commit && !inline {
		return session.Commit(ctx)
	}
	return nil
}

func (l *list) last() *Statement { return l.statements[len(l.statements)-1] }

// outcomes are those of all statements.
func (l *list) outcomes() []Outcome {
	out := make([]Outcome, len(l.ends))
	for i, e := range l.ends {
		out[i] = e.outcome()
	}
	return out
}

// met returns the fault of statement i of a list that has not returned as many rows as expected.
func (st *Statement) met(i int, e ending) error {
	if st.expect == nil || e.sets > 0 && e.returned == *st.expect {
		return nil
	}
	got := strconv.FormatUint(e.returned, 10)
	if e.sets == 0 {
		got = "no result set, so no"
	}
	return Faultf(codeExpectation,
		"statements[%d] returned %s rows, and expect.rows is %d; the transaction was rolled back", i, got, *st.expect)
}

// unmet returns the fault of a list that did not meet an expectation, perhaps because an attempt before, whose answer was lost, was
// committed.
func (f *Fault) unmet() *Fault {
	if f.Code != codeExpectation || !f.Unknown {
		return f
	}
	return f.With(func(f *Fault) {
		f.Message += ", but an earlier attempt may have been committed"
		f.hint = codeUnknown.Hint
	})
}

// countable refuses the expectation of a statement whose rows the database does not count before the commit: of a write
// without RETURNING in an open transaction it may not even look at the rows before.
func (s *Service) countable(st *Statement) error {
	if st.expect == nil || s.Cached.effectsOf(st.SQL, kindOf(st.SQL)) == yql.Reads || yql.Returns(st.SQL) {
		return nil
	}
	return BadRequest("expect.rows: the statement may change rows without returning them, and YDB counts changed rows only at the " +
		"commit. End the statement with RETURNING and the names of key columns, or expect the rows of a SELECT before it")
}

// stepOfList is a list as one step of an open transaction.
func stepOfList(sel *TxSelector, statements []*Statement) lease.Step {
	step := lease.Step{Seq: sel.Seq}
	if sel.Seq == 0 {
		return step
	}
	var h maphash.Hash
	h.SetSeed(printSeed)
	maphash.WriteComparable(&h, sel.Commit)
	for _, st := range statements {
		expected, rows := st.expect != nil, uint64(0)
		if expected {
			rows = *st.expect
		}
		maphash.WriteComparable(&h, st.print("in a list"))
		maphash.WriteComparable(&h, expected)
		maphash.WriteComparable(&h, rows)
	}
	step.Print = h.Sum64()
	return step
}

// listRecorder keeps the outcomes of a list, up to a number of bytes in all.
type listRecorder struct {
	limit int
	parts []*recorder
}

// sink is the place of the next statement of a list, before out.
func (r *listRecorder) sink(out Sink) Sink {
	left := r.limit
	for _, part := range r.parts {
		left -= part.size
	}
	part := &recorder{Sink: out, limit: max(0, left)}
	r.parts = append(r.parts, part)
	return part
}

// outcome is what was recorded, or nil if it was too much.
func (r *listRecorder) outcome(ends []Outcome) *stored {
	all := &stored{}
	for i, part := range r.parts {
		one := part.outcome(ends[i])
		if one == nil {
			return nil
		}
		all.list = append(all.list, *one)
	}
	return all
}

// transact runs a list in an interactive transaction that it begins, or that is open.
func (x *transactions) transact(ctx context.Context, c *Call, call upstream.Call, sel *TxSelector, l *list, m *mode) (
	[]Outcome, *sidecarv1.Tx, error) {
	keep := &listRecorder{limit: x.core.Cfg.Tx.Replay}
	plain := l.out
	l.out = func(i int) Sink { return keep.sink(plain(i)) }
	l.room = x.core.Room(c)
	if sel.Begin {
		return x.openWith(ctx, c, call, l, m, keep)
	}
	turn, old, err := x.leases.Take(ctx, sel.ID, stepOfList(sel, l.statements))
	if err != nil {
		return nil, nil, x.fault(sel.ID, err, sel.Commit)
	}
	if old != nil {
		return x.repeatList(ctx, c, sel.ID, old, plain)
	}
	ctx, cancel := lasting(ctx, turn)
	defer cancel()
	t := turn.Value()
	for _, st := range l.statements {
		x.joins(t, &call, st)
	}
	err = x.step(ctx, c, call, turn, func(ctx context.Context, session Session) error { return l.run(ctx, session, nil, sel.Commit) })
	if err != nil {
		commits := sel.Commit && l.at == len(l.statements)-1
		return nil, nil, hinted(x.failed(ctx, turn, err, commits), l.statements[l.at])
	}
	done := l.outcomes()
	kept := keep.outcome(done)
	switch {
	case sel.Commit:
		turn.End(lease.Finished, kept)
		return done, nil, nil
	case l.ends[l.at].tx == "":
		t.fate = Faultf(codeTxLost, "the database ended the transaction")
		turn.End(lease.Failed, kept)
		return done, nil, nil
	}
	return done, txOf(sel.ID, turn.Keep(kept)), nil
}

// openWith begins a transaction with a list, which stays open.
func (x *transactions) openWith(ctx context.Context, c *Call, call upstream.Call, l *list, m *mode, keep *listRecorder) (
	[]Outcome, *sidecarv1.Tx, error) {
	if err := x.core.freshList(c, len(l.statements)); err != nil {
		return nil, nil, err
	}
	turn, err := x.leases.Open()
	if err != nil {
		return nil, nil, err
	}
	if err := x.beginOn(ctx, c, call, turn, m, func(ctx context.Context, session Session) error {
		l.room.forget()
		l.room, keep.parts = x.core.Room(c), nil
		if err := l.run(ctx, session, m, false); err != nil {
			return err
		}
		return opened(session)
	}); err != nil {
		return nil, nil, hinted(err, l.statements[l.at])
	}
	for _, st := range l.statements {
		x.joins(turn.Value(), &call, st)
	}
	turn.Count(stepOfList(&TxSelector{Seq: 1}, l.statements))
	done := l.outcomes()
	return done, txOf(turn.Token(), turn.Keep(keep.outcome(done))), nil
}

// repeatList answers a list that was run before.
func (x *transactions) repeatList(ctx context.Context, c *Call, id string, old *stored, out func(i int) Sink) (
	done []Outcome, tx *sidecarv1.Tx, err error,
) {
	if err := x.repeated(old); err != nil {
		return nil, nil, err
	}
	done = make([]Outcome, len(old.list))
	for i, one := range old.list {
		if done[i], err = one.replay(ctx, out(i), c.App.Grants().Rows()); err != nil {
			return nil, nil, err
		}
	}
	return done, x.stillOpen(id), nil
}

// stillOpen is a transaction, if it is open.
func (x *transactions) stillOpen(id string) *sidecarv1.Tx {
	info, _, err := x.leases.Look(id)
	if err != nil || info.Why != lease.Open {
		return nil
	}
	return txOf(id, info.Expires)
}
