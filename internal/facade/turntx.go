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
	if t.tx = t.s.tx.leases.Now(id, step); t.tx == nil {
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
	t.tx, err = t.s.tx.letIn(&t.c)
	return err == nil, err
}

func (j *beginning) first(ctx context.Context, _ *Turn, session *upstream.Session) error {
	return session.Begin(ctx, j.m.settings)
}

func (j *beginning) run(t *Turn) (*sidecarv1.BeginResponse, error) {
	tx, err := t.s.tx.openEmpty(t.ctx, &t.c, t.call, t.tx, j.m)
	return &sidecarv1.BeginResponse{Tx: tx, Info: t.c.info}, err
}

// txEnding is a call of Commit, or of Rollback.
type txEnding struct {
	id, timeout string
	back        bool            // it is a rollback
	ctx         context.Context // of a rollback; it does not end when the caller leaves
}

func (j *txEnding) begin(t *Turn) (ready bool, err error) {
	if err := t.prepare(j.timeout, ""); err != nil {
		return false, err
	}
	if !j.back {
		if !t.takeStep(j.id, commitStep) {
			return false, nil
		}
		t.call.Effects = t.tx.Value().effects()
		return true, nil
	}
	if t.tx = t.s.tx.leases.Now(j.id, rollbackStep); t.tx == nil {
		return false, nil
	}
	t.s.tx.endsBy(t.ctx, &t.c, t.tx)
	j.ctx, t.atEnd = t.tx.Value().ending()
	return true, nil
}

func (j *txEnding) first(ctx context.Context, _ *Turn, session *upstream.Session) error {
	if j.back {
		return session.Rollback(j.ctx)
	}
	return session.Commit(ctx)
}

func (j *txEnding) run(t *Turn) error {
	switch {
	case t.tx == nil && j.back:
		return t.s.tx.rollBackWaiting(t.ctx, &t.c, j.id)
	case t.tx == nil:
		return t.s.tx.commitWaiting(t.ctx, &t.c, t.call, j.id)
	case j.back:
		t.tx.Value().ahead = t.call.Ahead
		t.tx.End(lease.Abandoned, &stored{})
		return nil
	default:
		return t.s.tx.commitNow(t.ctx, &t.c, t.call, t.tx)
	}
}

func (j *txEnding) response(t *Turn) proto.Message {
	if j.back {
		return &sidecarv1.RollbackResponse{Info: t.c.info}
	}
	return &sidecarv1.CommitResponse{Info: t.c.info}
}
