package kv

import (
	"context"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// Job is what the calls of the key-value API have in common.
type Job struct {
	Table     *Table
	Statement *core.Statement // nil: it takes more than one
}

// begin lets a call in. Its statement can be sent if the table was looked at.
func (j *Job) begin(t *core.InlineCall, timeout, priority string) (ready bool, err error) {
	ctx, _, call, err := j.Table.of.enter(t.Ctx, &t.Call, Call{j.Table, timeout, priority})
	if err != nil {
		return false, err
	}
	t.Ctx, t.Upstream = ctx, call
	ready, _ = j.Table.of.checked(j.Table)
	return ready && j.Statement != nil, nil
}

// check looks at the table, if nobody had before the turn.
func (j *Job) check(t *core.InlineCall) error {
	if t.Upstream.Ahead != nil {
		return nil
	}
	return j.Table.of.check(t.Ctx, &t.Call, t.Upstream, j.Table)
}

// Reading is a call that reads.
type Reading struct{ Job }

// Look is begin, with the statement.
func (j *Reading) Look(t *core.InlineCall, timeout, priority string) (ready bool, err error) {
	t.Call.RunsIn(core.ModeSnapshotRO)
	if ready, err = j.Job.begin(t, timeout, priority); err == nil {
		j.Statement.Reads(&t.Upstream)
		t.Own = t.Core.Room(&t.Call)
	}
	return ready, err
}

// First implements core.Job.
func (j *Reading) First(ctx context.Context, t *core.InlineCall, session *upstream.Session) error {
	return core.SendFirst(ctx, session, j.Statement.Request(core.ModeSnapshotRO.Single(), t.Own))
}

// Get begins to read one row.
func (j *Reading) Get(t *core.InlineCall, key *upstream.Params, timeout, priority string) (ready bool, err error) {
	j.Statement = &core.Statement{SQL: j.Table.get, Params: key}
	return j.Look(t, timeout, priority)
}

// Row waits for the row of get.
func (j *Reading) Row(t *core.InlineCall, cond Condition) (row Row, modified bool, err error) {
	if err := j.check(t); err != nil {
		return Row{}, false, err
	}
	return j.Table.of.row(t.Ctx, &t.Call, t.Upstream, j.Table, j.Statement, t.Own, cond)
}

// Found waits for the rows of read.
func (j *Reading) Found(t *core.InlineCall, ids []ID) ([]Found, error) {
	if err := j.check(t); err != nil {
		return nil, err
	}
	return j.Table.of.rows(t.Ctx, &t.Call, t.Upstream, j.Table, j.Statement, t.Own, ids)
}

// Writing is a call that writes. It has a statement of its own, unless a row has to be looked at before.
type Writing struct {
	Job
	w *Write
}

// Start lets a call in that makes the write w, and sets its statement.
func (j *Writing) Start(t *core.InlineCall, w *Write, timeout, priority string) (ready bool, err error) {
	if err := core.TooMuch(t.Call.Reserved.Take(w.params.Size())); err != nil {
		return false, err
	}
	j.Table, j.w, j.Statement = w.Table, w, w.statement()
	t.Call.RunsIn(core.ModeSerializable)
	if ready, err = j.Job.begin(t, timeout, priority); err == nil {
		t.Upstream.Idempotent = w.again
	}
	return ready, err
}

// First implements core.Job.
func (j *Writing) First(ctx context.Context, _ *core.InlineCall, session *upstream.Session) error {
	return core.SendFirst(ctx, session, j.Statement.Request(core.ModeSerializable.Single(), nil))
}

// Run makes the first call, or waits for its answer, and what follows.
func (j *Writing) Run(t *core.InlineCall) (Written, error) {
	if err := j.check(t); err != nil {
		return Written{}, err
	}
	return j.Table.of.finish(t.Ctx, &t.Call, t.Upstream, j.w, j.Statement)
}
