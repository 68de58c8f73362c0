package facade

import (
	"context"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// kvJob is what the calls of the key-value face have in common.
type kvJob struct {
	t  *kvTable
	st *core.Statement // nil: it takes more than one
}

// begin lets a call in. Its statement can be sent if the table was looked at.
func (j *kvJob) begin(t *core.Turn, timeout, priority string) (ready bool, err error) {
	ctx, _, call, err := j.t.of.enter(t.Ctx, &t.Call, kvCall{j.t, timeout, priority})
	if err != nil {
		return false, err
	}
	t.Ctx, t.Upstream = ctx, call
	ready, _ = j.t.of.checked(j.t)
	return ready && j.st != nil, nil
}

// check looks at the table, if nobody had before the turn.
func (j *kvJob) check(t *core.Turn) error {
	if t.Upstream.Ahead != nil {
		return nil
	}
	return j.t.of.check(t.Ctx, &t.Call, t.Upstream, j.t)
}

// kvReading is a call that reads.
type kvReading struct{ kvJob }

// look is begin, with the statement.
func (j *kvReading) look(t *core.Turn, timeout, priority string) (ready bool, err error) {
	if ready, err = j.kvJob.begin(t, timeout, priority); err == nil {
		j.st.Reads(&t.Upstream)
		t.Own = t.Core.Room(&t.Call)
	}
	return ready, err
}

func (j *kvReading) First(ctx context.Context, t *core.Turn, session *upstream.Session) error {
	return core.SendFirst(ctx, session, j.st.Request(core.ModeSnapshotRO.Single(), t.Own))
}

// get begins to read one row.
func (j *kvReading) get(t *core.Turn, key *upstream.Params, timeout, priority string) (ready bool, err error) {
	j.st = &core.Statement{SQL: j.t.get, Params: key}
	return j.look(t, timeout, priority)
}

// row waits for the row of get.
func (j *kvReading) row(t *core.Turn, cond condition) (row kvRow, modified bool, err error) {
	if err := j.check(t); err != nil {
		return kvRow{}, false, err
	}
	return j.t.of.row(t.Ctx, &t.Call, t.Upstream, j.t, j.st, t.Own, cond)
}

// found waits for the rows of read.
func (j *kvReading) found(t *core.Turn, ids []kvID) ([]kvFound, error) {
	if err := j.check(t); err != nil {
		return nil, err
	}
	return j.t.of.rows(t.Ctx, &t.Call, t.Upstream, j.t, j.st, t.Own, ids)
}

// kvWriting is a call that writes. It has a statement of its own, unless a row has to be looked at before.
type kvWriting struct {
	kvJob
	w *kvWrite
}

func (j *kvWriting) begin(t *core.Turn, w *kvWrite, timeout, priority string) (ready bool, err error) {
	if err := core.TooMuch(t.Call.Reserved.Take(w.params.Size())); err != nil {
		return false, err
	}
	j.t, j.w, j.st = w.t, w, w.statement()
	if ready, err = j.kvJob.begin(t, timeout, priority); err == nil {
		t.Upstream.Idempotent = w.again
	}
	return ready, err
}

func (j *kvWriting) First(ctx context.Context, _ *core.Turn, session *upstream.Session) error {
	return core.SendFirst(ctx, session, j.st.Request(core.ModeSerializable.Single(), nil))
}

func (j *kvWriting) run(t *core.Turn) (kvWritten, error) {
	if err := j.check(t); err != nil {
		return kvWritten{}, err
	}
	return j.t.of.write(t.Ctx, &t.Call, t.Upstream, j.w, j.st)
}
