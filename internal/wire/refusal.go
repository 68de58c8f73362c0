package wire

import (
	"errors"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// errWaited says that no session became free while the call could wait.
var errWaited = errors.New("no session became free")

// errKept says that the wait for a session is in vain; see keptWait.
var errKept = errors.New("sessions of mode session keep all sessions of the pool")

// door is the observer of a call that no session of the pool serves. If it is bound to no node, it looks at the first bytes of the answer.
type door struct {
	call   *call
	opened bool           // the answer has begun, or does not matter
	scan   *protocol.Scan // of the request; nil: it need not be looked at
	named  bool           // a session's id was in the part of it that is known
}

// Observe implements h2.Observer.
func (d *door) Observe(client bool, p []byte) error {
	if client {
		if s := d.scan; s != nil && (!s.Write(p) || s.Session && !d.named) {
			return d.call.refuse(errForm)
		}
		return nil
	}
	if d.opened {
		return nil
	}
	d.opened = true
	if d.call.method.Status(p) != Ydb.StatusIds_UNAUTHORIZED || !ydbstatus.AnswerForeign(p) {
		return nil
	}
	d.call.foreign = true
	return d.call.refuse(errForeign)
}

// errForeign is what a client is told, for UNAUTHORIZED, which SDKs do not repeat.
var errForeign = refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE,
	"ydb-sidecar: the node serves another database, it has the address of one that left; the call was not executed"}

// refusal is what a client is told of a call that is sent to no node.
type refusal struct {
	code   codes.Code // where no message can carry status
	status Ydb.StatusIds_StatusCode
	text   string
}

// overloaded is the refusal of a call that its client may send again later.
func overloaded(text string) refusal {
	return refusal{codes.ResourceExhausted, Ydb.StatusIds_OVERLOADED, "ydb-sidecar: " + text}
}

// Where the server has words for it they come first: clients look for them. None is on a method's way that
// has no place for a status.
var (
	errNoSession = refusal{status: Ydb.StatusIds_BAD_SESSION, text: "Session not found (ydb-sidecar: it has ended, or never was)"}
	errNoTx      = refusal{status: Ydb.StatusIds_NOT_FOUND, text: "Transaction not found (ydb-sidecar: none is open on the session)"}
	errLost      = refusal{status: Ydb.StatusIds_BAD_SESSION,
		text: "Session not found (ydb-sidecar: the transaction was lost with the session that it was open on; it was rolled back)"}
)

// refusalOf is that of a call on a session of owner, or of one that is bound to none, for 0.
func refusalOf(err error, owner cluster.NodeID) refusal {
	if r, ok := refusalOfApp(err); ok {
		return r
	}
	switch err {
	case virtual.ErrNoSession:
		return errNoSession
	case virtual.ErrBusy:
		return refusal{status: Ydb.StatusIds_SESSION_BUSY,
			text: "Pending previous query completion (ydb-sidecar: the session runs another call)"}
	case virtual.ErrAttached:
		return refusal{status: Ydb.StatusIds_SESSION_BUSY, text: "ydb-sidecar: the session is attached already"}
	case virtual.ErrNoTx:
		return errNoTx
	case virtual.ErrLost:
		return errLost
	case virtual.ErrPools, virtual.ErrAsks:
		return overloaded(err.Error())
	case virtual.ErrUnauthorized:
		return refusal{codes.Unauthenticated, Ydb.StatusIds_UNAUTHORIZED, "ydb-sidecar: " + err.Error()}
	case virtual.ErrNobodyKnows:
		return refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE, "ydb-sidecar: " + err.Error()}
	}
	denied, isDenied := errors.AsType[*pool.DeniedError](err)
	switch {
	case isDenied:
		return refusal{codes.PermissionDenied, Ydb.StatusIds_UNAUTHORIZED, denied.Text}
	case hop.Busy(err):
		return overloaded("as many calls are open on the node as routing.max_calls_per_node allows; the call was not sent")
	case errors.Is(err, routing.ErrGone):
		return refusal{codes.Unavailable, Ydb.StatusIds_BAD_SESSION,
			"Session not found (ydb-sidecar: the node that owns it left the cluster; the call was not sent)"}
	case errors.Is(err, pool.ErrQueueFull):
		return overloaded("as many calls wait for a session as pool.queue allows; the call was not sent")
	case errors.Is(err, errWaited):
		return overloaded("none of the pool.max sessions became free in time; the call was not sent")
	case errors.Is(err, errKept):
		return overloaded("sessions of wire.mode=session keep all sessions that pool.max allows: raise pool.max, " +
			"make the SDK's pool of sessions smaller, or use wire.mode=transaction; the call was not sent")
	case errors.Is(err, pool.ErrClosed):
		return refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE, "ydb-sidecar: the sidecar is stopping; the call was not sent"}
	case owner != 0: // SDKs keep a session at any other status, and some know no other sign that it is over
		return refusal{codes.Unavailable, Ydb.StatusIds_BAD_SESSION,
			"Session not found (ydb-sidecar: the node that owns it cannot be reached; the call was not sent)"}
	case errors.Is(err, routing.ErrNoNode), errors.Is(err, pool.ErrNoNode):
		return refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE,
			"ydb-sidecar: no node of the cluster can be used now; the call was not sent"}
	}
	return refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE, "ydb-sidecar: the node cannot be reached; the call was not sent"}
}

// body is the refusal as an answer of the method, or nil. A session that cannot be deleted
// is gone, or ends by itself: SDKs take anything but SUCCESS for a fault, which ends the process of one.
func (r refusal) body(m *protocol.Method) []byte {
	switch {
	case m == nil:
		return nil
	case m.Role == protocol.RoleDelete && r.status == Ydb.StatusIds_BAD_SESSION:
		return m.Refusal(Ydb.StatusIds_SUCCESS, r.text)
	case r == errNoTx:
		return m.RefusalWith(r.status, protocol.IssueNoTx, r.text)
	}
	return m.Refusal(r.status, r.text)
}

// kindOf is the kind of a call; m is nil for one that is not known.
func kindOf(m *protocol.Method) cluster.CallKind {
	if m == nil {
		return cluster.CallControl
	}
	return m.Kind
}

// about adds to what is known of a call what its method tells.
func about(s *ydbstatus.Signs, m *protocol.Method) {
	s.Kind = kindOf(m)
	if (m == nil && s.Code != codes.Unavailable) || s.Code == codes.Unimplemented {
		s.Cause = ydbstatus.CauseRequest // the answer is about the method, and the node is there
	}
}
