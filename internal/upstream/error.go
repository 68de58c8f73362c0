package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// Error is a call to a node that failed, with the verdict on it.
type Error struct {
	Op      string                    // what was tried, such as "ExecuteQuery"
	Node    cluster.NodeID            // 0: the call reached no node
	Status  Ydb.StatusIds_StatusCode  // YDB's answer; 0 if none came
	Issues  []*Ydb_Issue.IssueMessage // with Status; for the caller, not for logs: they may quote the statement
	Code    codes.Code                // gRPC's answer, when Status is 0
	Sent    bool                      // it may have run and may have been kept
	Verdict ydbstatus.Verdict

	Foreign  bool // the node serves another database
	TooLarge bool // a message exceeds the size limit of this process or of the node
	NoTicket bool // there are no credentials to call with; the cause names what this process asks for them, so it is for its log

	unrouted  bool // there was no node to send it to
	unreached bool // there was no connection to send it over
	cause     error
}

// Error names what was tried, where, and the status or, in a few words, why there is none; never issues, which
// may quote the statement.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Node != 0 {
		fmt.Fprintf(&b, " on node %d", e.Node)
	}
	b.WriteString(": ")
	b.WriteString(e.reason())
	return b.String()
}

// reason is what was answered, or why nothing was.
func (e *Error) reason() string {
	switch {
	case e.Status != 0:
		return e.StatusName()
	case e.cause != nil:
		return unanswered(e.Code, e.cause)
	default:
		return ydbstatus.CodeName(e.Code)
	}
}

// ofNode is an Error whose reader knows the node, and that it was to open a session: its text is the reason alone.
type ofNode struct{ whole *Error }

func (e ofNode) Error() string { return e.whole.reason() }
func (e ofNode) Unwrap() error { return e.whole }

// Unwrap gives the cause: a context error, the error of gRPC, of routing.
func (e *Error) Unwrap() error { return e.cause }

// StatusName is the name of the YDB status, or of the gRPC code when none came.
func (e *Error) StatusName() string {
	if e.Status != 0 {
		return ydbstatus.StatusName(e.Status)
	}
	return ydbstatus.CodeName(e.Code)
}

// Message is what the server had to say in words: the texts of the issues, or
// the cause. It may quote the statement.
func (e *Error) Message() string {
	if len(e.Issues) == 0 {
		return e.Error()
	}
	var b strings.Builder
	writeIssues(&b, e.Issues, 0)
	return b.String()
}

// maxIssueDepth bounds the nesting of issues that Message follows.
const maxIssueDepth = 8

func writeIssues(b *strings.Builder, issues []*Ydb_Issue.IssueMessage, depth int) {
	if depth == maxIssueDepth {
		return
	}
	for _, i := range issues {
		if i.GetMessage() != "" {
			if b.Len() > 0 {
				b.WriteString("; ")
			}
			b.WriteString(i.GetMessage())
		}
		writeIssues(b, i.GetIssues(), depth+1)
	}
}

// answer is a YDB status other than SUCCESS inside an answer that arrived.
type answer struct {
	status Ydb.StatusIds_StatusCode
	issues []*Ydb_Issue.IssueMessage
}

func (a *answer) Error() string { return ydbstatus.StatusName(a.status) }

// Check makes an error of a YDB status that is not SUCCESS. Functions given to
// Client.Any and Session.Call return it, to be judged.
func Check(status Ydb.StatusIds_StatusCode, issues []*Ydb_Issue.IssueMessage) error {
	if status == Ydb.StatusIds_SUCCESS {
		return nil
	}
	return &answer{status: status, issues: issues}
}

// CheckOperation is Check for answers that wrap an Operation. An operation that
// is not ready counts as UNDETERMINED: the calls made here are synchronous.
func CheckOperation(op *Ydb_Operations.Operation) error {
	if op.GetStatus() == Ydb.StatusIds_SUCCESS && !op.GetReady() {
		return &answer{status: Ydb.StatusIds_UNDETERMINED, issues: op.GetIssues()}
	}
	return Check(op.GetStatus(), op.GetIssues())
}

// final marks an error that must not be retried.
type final struct{ error }

func (f *final) Unwrap() error { return f.error }

// Final wraps an error so that Do does not try again, whatever the verdict: for
// instance because rows already went to the caller.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &final{err}
}

// isFinal tells whether err was wrapped by Final.
func isFinal(err error) bool {
	_, ok := errors.AsType[*final](err)
	return ok
}

// failure makes signs and an Error of what a call returned, before the verdict.
// own says that the context is the driver's own, so that its end is the node's
// fault and not the caller's.
func failure(ctx context.Context, err error, own bool) (ydbstatus.Signs, *Error) {
	e := &Error{cause: err}
	s := ydbstatus.Signs{}
	if t, ok := errors.AsType[*ticketError](err); ok {
		s.Code, s.NotSent, s.NoTicket = codes.Unauthenticated, true, !t.refused
		e.Code, e.NoTicket = s.Code, true
		return s, e
	}
	if a, ok := errors.AsType[*answer](err); ok {
		s.Status, e.Status, e.Issues, e.cause = a.status, a.status, a.issues, nil
		if s.Status == 0 {
			s.Code, e.Code = codes.Unknown, codes.Unknown // an answer without a status is no answer
		}
		s.Repeats = HasIssue(a.issues, func(i *Ydb_Issue.IssueMessage) bool { return ydbstatus.IssueRepeats(i.GetIssueCode()) })
		s.Shutdown = a.status == Ydb.StatusIds_OVERLOADED &&
			HasIssue(a.issues, func(i *Ydb_Issue.IssueMessage) bool { return ydbstatus.SaysShutdown(i.GetMessage()) })
		if a.status == Ydb.StatusIds_UNAUTHORIZED {
			s.Foreign = HasIssue(a.issues, func(i *Ydb_Issue.IssueMessage) bool { return ydbstatus.IssueForeign(i.GetMessage()) })
			e.Foreign = s.Foreign
		}
		s.Congestion, s.Subject = congestion(a.issues, 0)
		return s, e
	}
	s.Code = status.Code(err)
	reset := strings.Contains(err.Error(), "stream terminated by RST_STREAM") // as grpc-go says it
	if c, ok := errors.AsType[*client.Error](err); ok {
		s.NotSent, s.Lost, reset = c.NotSent, c.Lost, c.Reset
		if c.Here {
			s.Cause = ydbstatus.CauseProcess
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.Code = codes.DeadlineExceeded
	} else if errors.Is(err, context.Canceled) {
		s.Code = codes.Canceled
	}
	switch {
	case s.Code == codes.OK:
		s.Code = codes.Unknown
	case reset && (s.Code == codes.ResourceExhausted || s.Code == codes.PermissionDenied):
		s.Code = codes.Internal // what stands for a code of HTTP/2 is no refusal: the call may have run
	}
	if s.Code == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max") {
		s.TooLarge, e.TooLarge = true, true
	}
	s.Shutdown = s.Code == codes.ResourceExhausted && ydbstatus.SaysShutdown(err.Error())
	if !own && over(ctx) {
		s.CallerGone, s.Shutdown = true, false
		e.cause = ended(ctx)
		s.Code = codes.Canceled
		if errors.Is(e.cause, context.DeadlineExceeded) {
			s.Code = codes.DeadlineExceeded
		}
	}
	e.Code = s.Code
	return s, e
}

// over reports whether the caller waits no longer. A node keeps the caller's deadline,
// too: what it returns then may arrive before the timer of this process fires.
func over(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(end)
}

// ended is why a context is over: its error, and the cause if there is another.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil {
		return context.DeadlineExceeded // the timer is about to fire
	}
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// congestion is what the issues say has too much to do, and its name.
func congestion(issues []*Ydb_Issue.IssueMessage, depth int) (c cluster.Congestion, subject string) {
	if depth == maxIssueDepth {
		return c, ""
	}
	for _, i := range issues {
		is, name := ydbstatus.Congested(i.GetIssueCode(), i.GetMessage())
		if is > c {
			c, subject = is, name
		}
		if is, name = congestion(i.GetIssues(), depth+1); is > c {
			c, subject = is, name
		}
	}
	return c, subject
}

// HasIssue reports whether one of the issues fits, or one of those within them, as deep as Message follows.
func HasIssue(issues []*Ydb_Issue.IssueMessage, fits func(*Ydb_Issue.IssueMessage) bool) bool {
	return hasIssue(issues, fits, 0)
}

func hasIssue(issues []*Ydb_Issue.IssueMessage, fits func(*Ydb_Issue.IssueMessage) bool, depth int) bool {
	return depth < maxIssueDepth && slices.ContainsFunc(issues, func(i *Ydb_Issue.IssueMessage) bool {
		return fits(i) || hasIssue(i.GetIssues(), fits, depth+1)
	})
}

// closing tells whether the node refused the call because it had asked for the session to be closed.
func (e *Error) closing() bool {
	return e.Status == Ydb.StatusIds_BAD_SESSION &&
		HasIssue(e.Issues, func(i *Ydb_Issue.IssueMessage) bool { return ydbstatus.SaysClosing(i.GetMessage()) })
}
