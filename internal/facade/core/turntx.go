package core

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/lease"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The calls that begin and end interactive transactions, as inline calls.

// takeStep takes the turn of a step of an open transaction, without waiting. False: the step must wait, or cannot run.
func (t *InlineCall) takeStep(id string, step lease.Step) bool {
	if t.tx = t.Core.Tx.leases.Now(id, step); t.tx == nil {
		return false
	}
	t.work.LimitAt(t.tx.Deadline(), errTxMax) // see lasting
	return true
}

// prepare sets the call to the driver, and the context with its deadline.
func (t *InlineCall) prepare(timeout, priority string) error {
	ctx, _, call, err := t.Core.Begin(t.Ctx, &t.Call, timeout, priority)
	if err == nil {
		t.Ctx, t.Upstream = ctx, call
	}
	return err
}

// Beginning is a call of Begin.
type Beginning struct {
	In BeginRequest
	m  *mode
}

// Begin implements Job.
func (j *Beginning) Begin(t *InlineCall) (ready bool, err error) {
	if j.m, err = parseTxMode(j.In.Mode); err != nil {
		return false, err
	}
	if err := t.prepare(j.In.Timeout, j.In.Priority); err != nil {
		return false, err
	}
	t.tx, err = t.Core.Tx.letIn(&t.Call)
	return err == nil, err
}

// First implements Job.
func (j *Beginning) First(ctx context.Context, _ *InlineCall, session *upstream.Session) error {
	return session.Begin(ctx, j.m.settings)
}

// Run makes the first call, or waits for its answer, and what follows.
func (j *Beginning) Run(t *InlineCall) (*sidecarv1.BeginResponse, error) {
	tx, err := t.Core.Tx.openEmpty(t.Ctx, &t.Call, t.Upstream, t.tx, j.m)
	return &sidecarv1.BeginResponse{Tx: tx, Info: t.Call.Info}, err
}

// Ending is a call of Commit, or of Rollback.
type Ending struct {
	ID, Timeout string
	Back        bool            // it is a rollback
	ctx         context.Context // of a rollback; it does not end when the caller leaves
}

// Begin implements Job.
func (j *Ending) Begin(t *InlineCall) (ready bool, err error) {
	if err := t.prepare(j.Timeout, ""); err != nil {
		return false, err
	}
	if !j.Back {
		if !t.takeStep(j.ID, commitStep) {
			return false, nil
		}
		t.Upstream.Effects = t.tx.Value().effects()
		return true, nil
	}
	if t.tx = t.Core.Tx.leases.Now(j.ID, rollbackStep); t.tx == nil {
		return false, nil
	}
	t.Core.Tx.endsBy(t.Ctx, &t.Call, t.tx)
	j.ctx, t.atEnd = t.tx.Value().ending()
	return true, nil
}

// First implements Job.
func (j *Ending) First(ctx context.Context, _ *InlineCall, session *upstream.Session) error {
	if j.Back {
		return session.Rollback(j.ctx)
	}
	return session.Commit(ctx)
}

// Run makes the first call, or waits for its answer, and what follows.
func (j *Ending) Run(t *InlineCall) error {
	switch {
	case t.tx == nil && j.Back:
		return t.Core.Tx.rollBackWaiting(t.Ctx, &t.Call, j.ID)
	case t.tx == nil:
		return t.Core.Tx.commitWaiting(t.Ctx, &t.Call, t.Upstream, j.ID)
	case j.Back:
		t.tx.Value().ahead = t.Upstream.Ahead
		t.tx.End(lease.Abandoned, &stored{})
		return nil
	default:
		return t.Core.Tx.commitNow(t.Ctx, &t.Call, t.Upstream, t.tx)
	}
}

// Response is the answer to the call, as a message.
func (j *Ending) Response(t *InlineCall) proto.Message {
	if j.Back {
		return &sidecarv1.RollbackResponse{Info: t.Call.Info}
	}
	return &sidecarv1.CommitResponse{Info: t.Call.Info}
}
