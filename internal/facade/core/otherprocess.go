package core

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/lease"
)

// While one process takes the place of another, each has open transactions, and
// callers reach either of them. The id of a transaction names its process, so a
// call for one of the other process is handed over to it, and its answer given
// back as it came.

// OtherProcess is how to reach it. A call that came from the other process is never handed over
// again: that is why the other process calls over doors of its own (OtherOptions,
// OtherHandler).
type OtherProcess struct {
	Instance string // its Service.Instance
	GRPC     grpc.ClientConnInterface
	HTTP     http.RoundTripper
}

// otherSlack is how much longer than its deadline a call that was handed over may
// take: the answer of the other process says more than that there was none.
const otherSlack = time.Second

// Instance names this process in the ids of its transactions.
func (s *Service) Instance() string { return s.Tx.leases.Instance() }

// SetOther makes calls for transactions of the other process go to it; nil ends that.
func (s *Service) SetOther(p *OtherProcess) { s.Other.process.Store(p) }

// otherProcess is the way to the other process, if there is one.
type otherProcess struct {
	core    *Service
	process atomic.Pointer[OtherProcess] // nil: there is none
	handed  atomic.Uint64                // calls handed over to it
}

// Get returns the other process; nil: there is none.
func (o *otherProcess) Get() *OtherProcess { return o.process.Load() }

// OwnerOf returns the other process if the transaction of that id is its own, and the call
// of ctx may be handed over.
func (o *otherProcess) OwnerOf(ctx context.Context, c *Call, id string) *OtherProcess {
	p := o.Owner(id)
	if p == nil || ctx.Value(FromOther{}) != nil {
		return nil
	}
	c.handed = true
	return p
}

// Owner returns the other process if the transaction of that id is its own.
func (o *otherProcess) Owner(id string) *OtherProcess {
	if p := o.process.Load(); p != nil && id != "" && lease.InstanceOf(id) == p.Instance {
		return p
	}
	return nil
}

// FromOther marks the context of a call that came from the other process.
type FromOther struct{}

// HandOver runs f, which sends a call to its owner, not much longer than the
// call may last; timeouts are what the request says of that.
func (o *otherProcess) HandOver(ctx context.Context, timeouts []string, f func(context.Context) error) error {
	bounded, cancel, err := o.core.Cfg.API.Deadline(ctx, nil, timeouts...)
	if err != nil {
		return err
	}
	until, _ := bounded.Deadline()
	cancel()
	o.handed.Add(1)
	// Not a deadline, which would go to the owner as the caller's own.
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	timer := time.AfterFunc(time.Until(until)+otherSlack, func() { end(context.DeadlineExceeded) })
	defer timer.Stop()
	return f(ctx)
}

// Unanswered is the fault of a call whose owner gave no answer. Its transaction
// does not outlive the owner.
func Unanswered(ctx context.Context, err error, commits bool) *Fault {
	var f *Fault
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrCut):
		f = Faultf(CodeDraining, "the sidecar stopped before the call was done")
	case errors.Is(cause, context.DeadlineExceeded):
		f = Faultf(CodeDeadline, "the deadline ended while the call ran")
	case cause != nil:
		f = Faultf(codeCancelled, "the caller went away while the call ran")
	default:
		f = Faultf(codeTxLost, "the sidecar process that had the transaction ended")
	}
	f.Cause, f.Unknown, f.Safe = err, commits, !commits
	if commits && (f.Code == CodeDraining || f.Code == codeTxLost) {
		f.Code, f.After = codeUnknown, 0
	}
	return f.ofTx()
}

// CodeNamed finds a row of the error map by its name; of an unknown name it makes one.
func CodeNamed(name string) *Code {
	for _, c := range ownCodes {
		if c.Name == name {
			return c
		}
	}
	for _, c := range ydbCodes {
		if c.Name == name {
			return c
		}
	}
	return &Code{Name: name, HTTP: http.StatusInternalServerError, GRPC: codes.Unknown}
}
