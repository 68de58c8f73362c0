package facade

import (
	"context"

	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// kvJob is what the calls of the key-value face have in common.
type kvJob struct {
	t  *kvTable
	st *statement // nil: it takes more than one
}

// begin lets a call in. Its statement can be sent if the table was looked at.
func (j *kvJob) begin(t *Turn, timeout, priority string) (ready bool, err error) {
	ctx, _, call, err := j.t.of.enter(t.ctx, &t.c, kvCall{j.t, timeout, priority})
	if err != nil {
		return false, err
	}
	t.ctx, t.call = ctx, call
	ready, _ = j.t.of.checked(j.t)
	return ready && j.st != nil, nil
}

// check looks at the table, if nobody had before the turn.
func (j *kvJob) check(t *Turn) error {
	if t.call.Ahead != nil {
		return nil
	}
	return j.t.of.check(t.ctx, &t.c, t.call, j.t)
}

// kvReading is a call that reads.
type kvReading struct{ kvJob }

// look is begin, with the statement.
func (j *kvReading) look(t *Turn, timeout, priority string) (ready bool, err error) {
	if ready, err = j.kvJob.begin(t, timeout, priority); err == nil {
		j.st.reads(&t.call)
		t.own = t.s.room(&t.c)
	}
	return ready, err
}

func (j *kvReading) first(ctx context.Context, t *Turn, session *upstream.Session) error {
	return execute(ctx, session, j.st.request(modeSnapshotRO.single(), t.own))
}

// get begins to read one row.
func (j *kvReading) get(t *Turn, key *upstream.Params, timeout, priority string) (ready bool, err error) {
	j.st = &statement{sql: j.t.get, params: key}
	return j.look(t, timeout, priority)
}

// row waits for the row of get.
func (j *kvReading) row(t *Turn, cond condition) (row kvRow, modified bool, err error) {
	if err := j.check(t); err != nil {
		return kvRow{}, false, err
	}
	return j.t.of.row(t.ctx, &t.c, t.call, j.t, j.st, t.own, cond)
}

// found waits for the rows of read.
func (j *kvReading) found(t *Turn, ids []kvID) ([]kvFound, error) {
	if err := j.check(t); err != nil {
		return nil, err
	}
	return j.t.of.rows(t.ctx, &t.c, t.call, j.t, j.st, t.own, ids)
}

// kvWriting is a call that writes. It has a statement of its own, unless a row has to be looked at before.
type kvWriting struct {
	kvJob
	w *kvWrite
}

func (j *kvWriting) begin(t *Turn, w *kvWrite, timeout, priority string) (ready bool, err error) {
	if err := tooMuch(t.c.reserved.Take(w.params.Size())); err != nil {
		return false, err
	}
	j.t, j.w, j.st = w.t, w, w.statement()
	if ready, err = j.kvJob.begin(t, timeout, priority); err == nil {
		t.call.Idempotent = w.again
	}
	return ready, err
}

func (j *kvWriting) first(ctx context.Context, _ *Turn, session *upstream.Session) error {
	return execute(ctx, session, j.st.request(modeSerializable.single(), nil))
}

func (j *kvWriting) run(t *Turn) (kvWritten, error) {
	if err := j.check(t); err != nil {
		return kvWritten{}, err
	}
	return j.t.of.write(t.ctx, &t.c, t.call, j.w, j.st)
}
