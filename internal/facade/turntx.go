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

// beginningGRPC is a call of Begin over gRPC.
type beginningGRPC struct{ beginning }

func (j *beginningGRPC) read(_ *GRPCTurn, request []byte) (proto.Message, bool) {
	if readTexts(request, &j.in.mode, &j.in.timeout, &j.in.priority) {
		return nil, true
	}
	req := new(sidecarv1.BeginRequest)
	err := proto.Unmarshal(request, req)
	j.in = beginRequest{mode: req.Mode, timeout: req.Timeout, priority: req.Priority}
	return req, err == nil
}

func (j *beginningGRPC) rest(t *GRPCTurn, b []byte) ([]byte, error) {
	res, err := j.run(&t.Turn)
	if err != nil {
		return nil, err
	}
	const tx, info = 1, 2 // of BeginResponse
	b = messageField(b, tx, func(b []byte) []byte { return appendTx(b, res.Tx) })
	return messageField(b, info, func(b []byte) []byte { return appendInfo(b, res.Info) }), nil
}

// endRequest is a request of Commit, or of Rollback.
type endRequest[T any] interface {
	*T
	proto.Message
	GetId() string
	GetTimeout() string
}

// endingGRPC is a call of Commit, or of Rollback, over gRPC.
type endingGRPC[T any, R endRequest[T]] struct{ txEnding }

func (j *endingGRPC[T, R]) read(t *GRPCTurn, request []byte) (m proto.Message, ok bool) {
	if !readTexts(request, &j.id, &j.timeout) {
		req := R(new(T))
		if proto.Unmarshal(request, req) != nil {
			return nil, false
		}
		m, j.id, j.timeout = req, req.GetId(), req.GetTimeout()
	}
	return m, t.s.other.owner(j.id) == nil
}

func (j *endingGRPC[T, R]) rest(t *GRPCTurn, b []byte) ([]byte, error) {
	if err := j.run(&t.Turn); err != nil {
		return nil, err
	}
	return appendInfoAlone(b, t.c.info), nil
}

func newCommitting(*grpcAPI) answering {
	return new(endingGRPC[sidecarv1.CommitRequest, *sidecarv1.CommitRequest])
}

func newRollingBack(*grpcAPI) answering {
	return &endingGRPC[sidecarv1.RollbackRequest, *sidecarv1.RollbackRequest]{txEnding: txEnding{back: true}}
}
