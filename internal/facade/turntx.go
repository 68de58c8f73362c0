package facade

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/lease"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The calls that begin and end interactive transactions, as Turns.

// takeStep takes the turn of a step of an open transaction, without waiting. False: the step must wait, or cannot run.
func (t *Turn) takeStep(id string, step lease.Step) bool {
	if t.tx = t.s.leases.Now(id, step); t.tx == nil {
		return false
	}
	t.work.LimitAt(t.tx.Deadline(), errTxMax) // see lasting
	return true
}

// prepare sets the call to the driver, and the context with its deadline.
func (t *Turn) prepare(timeout, priority string) error {
	ctx, _, call, err := t.s.begin(t.ctx, &t.c, timeout, priority)
	if err == nil {
		t.ctx, t.call = ctx, call
	}
	return err
}

// beginning is a call of Begin.
type beginning struct {
	in beginRequest
	m  *mode
}

func (j *beginning) begin(t *Turn) (ready bool, err error) {
	if j.m, err = parseTxMode(j.in.mode); err != nil {
		return false, err
	}
	if err := t.prepare(j.in.timeout, j.in.priority); err != nil {
		return false, err
	}
	t.tx, err = t.s.newTx(&t.c)
	return err == nil, err
}

func (j *beginning) first(ctx context.Context, _ *Turn, session *upstream.Session) error {
	return session.Begin(ctx, j.m.settings)
}

func (j *beginning) run(t *Turn) (*sidecarv1.BeginResponse, error) {
	tx, err := t.s.openEmpty(t.ctx, &t.c, t.call, t.tx, j.m)
	return &sidecarv1.BeginResponse{Tx: tx, Info: t.c.info}, err
}

// committing is a call of Commit.
type committing struct{ id, timeout string }

func (j *committing) begin(t *Turn) (ready bool, err error) {
	if err := t.prepare(j.timeout, ""); err != nil || !t.takeStep(j.id, commitStep) {
		return false, err
	}
	t.call.Effects = t.tx.Value().effects()
	return true, nil
}

func (j *committing) first(ctx context.Context, _ *Turn, session *upstream.Session) error {
	return session.Commit(ctx)
}

func (j *committing) run(t *Turn) error {
	if t.tx == nil {
		return t.s.commitWaiting(t.ctx, &t.c, t.call, j.id)
	}
	return t.s.commit(t.ctx, &t.c, t.call, t.tx)
}

// rollingBack is a call of Rollback.
type rollingBack struct {
	id, timeout string
	ctx         context.Context // of the rollback; it does not end when the caller leaves
}

func (j *rollingBack) begin(t *Turn) (ready bool, err error) {
	if err := t.prepare(j.timeout, ""); err != nil {
		return false, err
	}
	if t.tx = t.s.leases.Now(j.id, rollbackStep); t.tx == nil {
		return false, nil
	}
	t.s.endsBy(t.ctx, &t.c, t.tx)
	j.ctx, t.atEnd = t.tx.Value().ending()
	return true, nil
}

func (j *rollingBack) first(_ context.Context, _ *Turn, session *upstream.Session) error {
	return session.Rollback(j.ctx)
}

func (j *rollingBack) run(t *Turn) error {
	if t.tx == nil {
		return t.s.rollBackWaiting(t.ctx, &t.c, j.id)
	}
	t.tx.Value().ahead = t.call.Ahead
	t.tx.End(lease.Abandoned, &stored{})
	return nil
}

// beginningGRPC is a call of Begin over gRPC.
type beginningGRPC struct {
	beginning
	req sidecarv1.BeginRequest
}

func (j *beginningGRPC) read(_ *Turn, request []byte) (proto.Message, bool) {
	return readMessage(request, &j.req)
}

func (j *beginningGRPC) begin(t *Turn) (bool, error) {
	j.in = beginRequest{mode: j.req.Mode, timeout: j.req.Timeout, priority: j.req.Priority}
	return j.beginning.begin(t)
}

func (j *beginningGRPC) rest(t *Turn, b []byte) ([]byte, error) {
	res, err := j.run(t)
	return encode(b, res, err)
}

// committingGRPC is a call of Commit over gRPC.
type committingGRPC struct {
	committing
	req sidecarv1.CommitRequest
}

func (j *committingGRPC) read(t *Turn, request []byte) (m proto.Message, ok bool) {
	m, ok = readMessage(request, &j.req)
	return m, ok && t.s.peerOf(j.req.Id) == nil
}

func (j *committingGRPC) begin(t *Turn) (bool, error) {
	j.id, j.timeout = j.req.Id, j.req.Timeout
	return j.committing.begin(t)
}

func (j *committingGRPC) rest(t *Turn, b []byte) ([]byte, error) {
	err := j.run(t)
	return encode(b, &sidecarv1.CommitResponse{Info: t.c.info}, err)
}

// rollingBackGRPC is a call of Rollback over gRPC.
type rollingBackGRPC struct {
	rollingBack
	req sidecarv1.RollbackRequest
}

func (j *rollingBackGRPC) read(t *Turn, request []byte) (m proto.Message, ok bool) {
	m, ok = readMessage(request, &j.req)
	return m, ok && t.s.peerOf(j.req.Id) == nil
}

func (j *rollingBackGRPC) begin(t *Turn) (bool, error) {
	j.id, j.timeout = j.req.Id, j.req.Timeout
	return j.rollingBack.begin(t)
}

func (j *rollingBackGRPC) rest(t *Turn, b []byte) ([]byte, error) {
	err := j.run(t)
	return encode(b, &sidecarv1.RollbackResponse{Info: t.c.info}, err)
}
