package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/lease"
	"github.com/ydb-sidecar/sidecar/internal/loopback"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Fault is an error in the words of the API: what a caller gets over either API.
type Fault struct {
	Code    *Code
	Message string // for the caller; may quote the statement, so it is not logged
	YDB     string // name of the YDB status; "" if the database did not answer
	issues  []*Ydb_Issue.IssueMessage
	Safe    bool          // nothing was kept, and the same may be sent again
	Unknown bool          // it may have run
	passing bool          // the same call may do better later; safe is this, once nothing was kept or twice does no harm
	After   time.Duration // whole milliseconds: both APIs say it twice, and once in these
	Cause   error         // for the log
	hint    string        // for the caller; "": the code's
	operate string        // for the operator; "": the code's
	Relayed error         // the gRPC status of another process, which is handed on as it came
}

// Error names the code and quotes the message.
func (f *Fault) Error() string { return f.Code.Name + ": " + f.Message }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Cause }

// With returns a changed copy: a fault may be stored, and shared.
func (f *Fault) With(change func(*Fault)) *Fault {
	out := *f
	change(&out)
	return &out
}

// Faultf makes a fault with the usual meaning of its code.
func Faultf(c *Code, format string, args ...any) *Fault {
	passing := c.Safe || c == codeUnknown || c == CodeDeadline || c == codeCancelled
	return &Fault{Code: c, Message: fmt.Sprintf(format, args...), Safe: c.Safe, passing: passing, After: pause(c)}
}

// Asked reports whether the fault is an answer that callers ask for: there is no row with
// this key, or it is another one by now. Nothing failed.
func (f *Fault) Asked() bool {
	return !f.Unknown && (f.Code == CodeKeyNotFound || f.Code == CodeCondition)
}

// BadRequest makes the fault of a request that is malformed.
func BadRequest(format string, args ...any) *Fault { return Faultf(codeBadRequest, format, args...) }

// OverLimit is the error of a bound on one request; it names the setting.
func OverLimit(what string, got, limit int, setting string) *Fault {
	if got > limit {
		return Faultf(CodeLimit, "%s: %d, at most %d are allowed (%s)", what, got, limit, setting)
	}
	return Faultf(CodeLimit, "%s: more than %d (%s)", what, limit, setting)
}

// BadAnswer marks what the database sent and the sidecar cannot read. The error quotes
// values, so the caller hears it and the log does not.
func BadAnswer(err error) error {
	if err == nil {
		return nil
	}
	return Faultf(CodeInternal, "%v: %v", errBadAnswer, err).With(func(f *Fault) { f.Cause = errBadAnswer })
}

var errBadAnswer = errors.New("the database sent a row that does not fit its columns")

// pause is how long a caller should wait before it sends the call again.
func pause(c *Code) time.Duration {
	switch c {
	case codeQueueFull, CodeBusy, CodeQuota, CodeShedDelay, codePoolTimeout, CodeShedDeadline:
		return 100 * time.Millisecond
	case codeNoNode, codeUpstreamLost, CodeMemory:
		return 500 * time.Millisecond
	case CodeDraining:
		return time.Second
	}
	return 0
}

// Deed says what a call did, as far as that changes what its failure means.
type Deed struct {
	Harmless bool // it keeps nothing, or may be repeated: reads, and what the caller marked idempotent
	undone   bool // whatever it did is not kept: it only reads, or a later commit would have kept it
	Unsure   bool // it, or a part of it, may have been kept before the call that failed
}

// FaultOf finds the words for whatever went wrong. It is the one error map.
func FaultOf(err error, d Deed) *Fault {
	f := faultOfError(err, d)
	switch {
	case d.undone && f.Unknown:
		f = f.With(func(f *Fault) { f.Unknown, f.Safe = false, f.passing })
	case d.Unsure && !f.Unknown:
		f = f.With(func(f *Fault) { f.Unknown, f.hint = true, "" }) // it may say that nothing was sent
	}
	return f
}

func faultOfError(err error, d Deed) *Fault {
	if f, ok := errors.AsType[*Fault](err); ok {
		if f.Unknown && d.Harmless && f.passing {
			f = f.With(func(f *Fault) { f.Safe = true })
		}
		return f
	}
	if _, ok := errors.AsType[*panics.Error](err); ok {
		return &Fault{Code: CodeInternal, Message: "the sidecar failed inside the call", Unknown: !d.Harmless, Cause: err}
	}
	if e, ok := errors.AsType[*yql.Error](err); ok {
		return &Fault{Code: codeBadRequest, Message: e.Error(), Cause: err}
	}
	if e, ok := errors.AsType[*hop.PausedError](err); ok {
		return faultOfPause(e)
	}
	if e, ok := errors.AsType[*pool.WaitError](err); ok {
		return faultOfWait(e)
	}
	if e, ok := errors.AsType[*pool.ShedError](err); ok {
		return faultOfShed(e)
	}
	if e, ok := errors.AsType[*apps.Refusal](err); ok {
		return refusedFault(e)
	}
	if e, ok := errors.AsType[*apps.NotGranted](err); ok {
		f := Faultf(codeDenied, "%v", e)
		f.Cause = e
		return f
	}
	if e, ok := errors.AsType[*upstream.Error](err); ok {
		f := faultOfCall(err, e, d)
		if errors.Is(err, errTxMax) {
			f.Code, f.Message, f.Safe = codeTxLost, maxedText, !f.Unknown
		}
		return f
	}
	f := faultOfWord(err)
	f.Cause = err
	return f
}

const maxedText = "the transaction was open for the longest time allowed (tx.max)"

// faultOfWord maps the errors that are only words.
func faultOfWord(err error) *Fault {
	switch {
	case errors.Is(err, pool.ErrQueueFull) && pool.Paused(err):
		return Faultf(codeQueueFull, "").paused()
	case errors.Is(err, pool.ErrQueueFull):
		return Faultf(codeQueueFull, "the queue for a session is full (pool.queue)")
	case errors.Is(err, pool.ErrNoNode):
		return Faultf(codeNoNode, "the sidecar knows no usable node of the cluster")
	case errors.Is(err, pool.ErrClosed), errors.Is(err, upstream.ErrClosed), errors.Is(err, lease.ErrDraining), errors.Is(err, ErrCut):
		return Faultf(CodeDraining, "this sidecar is stopping")
	case errors.Is(err, lease.ErrLimit):
		return Faultf(CodeBusy, "the limit of open transactions is reached (tx.limit)")
	case errors.Is(err, lease.ErrMalformed):
		return BadRequest("tx.id is not the id of a transaction; send the id that begin returned")
	case errors.Is(err, lease.ErrBusy):
		return Faultf(codeTxBusy, "another call of this transaction is running")
	case errors.Is(err, lease.ErrRepeated):
		return Faultf(codeSeqRepeated, "the statement has run already; its outcome was too large to keep (tx.replay)")
	case errors.Is(err, lease.ErrOrder):
		return faultOfOrder(err)
	case errors.Is(err, errTxMax):
		return Faultf(codeTxLost, maxedText)
	case errors.Is(err, apps.ErrNoToken):
		return Faultf(CodeNoToken, "the request has no token; send it in the header Authorization: Bearer TOKEN (apps.token)")
	case errors.Is(err, apps.ErrTokens):
		return Faultf(CodeNoToken, "the request has two Authorization headers with different tokens; send one (apps.token)")
	case errors.Is(err, apps.ErrToken):
		return Faultf(CodeNoToken, "the token belongs to no app; send the token of your app (apps.token, apps.token_file)")
	case errors.Is(err, apps.ErrProofs):
		return Faultf(CodeNoToken,
			"the token and the names in the client certificate belong to different apps; use those of one app (apps.token, apps.users)")
	case errors.Is(err, apps.ErrNotYours):
		return Faultf(codeNotYours,
			"the app name is reserved for another token, user or certificate (apps.token, apps.users)")
	case errors.Is(err, apps.ErrName):
		return BadRequest("X-Sidecar-App: %s", strings.TrimPrefix(err.Error(), "apps: "))
	case errors.Is(err, loopback.ErrHost), errors.Is(err, loopback.ErrOrigin):
		return Faultf(codeForbidden, "%v", err)
	case errors.Is(err, context.DeadlineExceeded):
		f := Faultf(CodeDeadline, "the deadline ended before the call was sent")
		f.Safe = true
		return f
	case errors.Is(err, context.Canceled):
		f := Faultf(codeCancelled, "the caller went away before the call was sent")
		f.Safe = true
		return f
	}
	return Faultf(CodeInternal, "internal error")
}

// faultOfShed is the answer to a call that was turned away from the line.
func faultOfShed(e *pool.ShedError) *Fault {
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	f := Faultf(CodeShedDelay, "the call waited %v for a session, the longest wait that pool.queue_age allows", round(e.Waited))
	switch {
	case e.Why == pool.ShedDelay && e.Ahead > 0:
		f.Message = fmt.Sprintf(
			"many calls of the app get no session in time; the call would have waited about %v for one, longer "+
				"than such calls take (calls of priority batch may wait longer)",
			round(e.Ahead),
		)
	case e.Why == pool.ShedDelay:
		f.Message = fmt.Sprintf("the call waited %v for a session while too many calls of the app wait (pool.queue_target)",
			round(e.Waited))
	case e.Why == pool.ShedDeadline && e.Waited > 0:
		f.Code, f.Message = CodeShedDeadline, fmt.Sprintf(
			"the call has %v left after %v in the queue for a session, and such calls take about %v",
			round(e.Left), round(e.Waited), round(e.Needs),
		)
	case e.Why == pool.ShedDeadline && e.Ahead > 0:
		f.Code, f.Message = CodeShedDeadline, fmt.Sprintf(
			"the deadline is in %v, the wait for a session would be about %v, and such calls take about %v",
			round(e.Left), round(e.Ahead), round(e.Needs),
		)
	case e.Why == pool.ShedDeadline:
		f.Code, f.Message = CodeShedDeadline, fmt.Sprintf(
			"the deadline is in %v, and such calls take about %v", round(e.Left), round(e.Needs),
		)
	}
	f.After, f.Cause = max(e.Retry.Round(time.Millisecond), time.Millisecond), e
	if e.Paused && (e.Waited > 0 || e.Ahead > 0) { // else it has too little time for the work alone
		return f.paused()
	}
	return f
}

// paused returns the fault of a call that was not sent because an operator paused calls: neither more
// time nor more sessions would have helped.
func (f *Fault) paused() *Fault {
	return f.With(func(f *Fault) {
		f.Message = "calls are paused by an operator"
		f.hint = "Nothing was sent. An operator paused this sidecar. Send the call again after retry_after_ms."
		f.operate = "sidecar events shows since when calls are paused; sidecar resume ends the pause: " +
			"docs/operations/runbook.md#pool_paused."
		f.After = max(f.After, time.Second)
	})
}

func faultOfOrder(err error) *Fault {
	e, ok := errors.AsType[*lease.OrderError](err)
	switch {
	case !ok:
		return Faultf(codeSeqOrder, "tx.seq is out of order")
	case e.Seq < e.Next:
		return Faultf(codeSeqOrder, "tx.seq %d was used by another statement; the next statement has number %d", e.Seq, e.Next)
	}
	return Faultf(codeSeqOrder, "tx.seq %d is too high; the next statement has number %d", e.Seq, e.Next)
}

// faultOfPause is the answer to a call that needs no session and waited while calls were paused.
func faultOfPause(e *hop.PausedError) *Fault {
	f := Faultf(codePoolTimeout, "").paused()
	switch {
	case errors.Is(e.Cause, ErrCut):
		f = Faultf(CodeDraining, "this sidecar is stopping")
	case errors.Is(e.Cause, context.Canceled):
		f = Faultf(codeCancelled, "the caller went away while calls were paused by an operator")
		f.Safe = true
	}
	f.Cause = e
	return f
}

// faultOfWait tells apart why a caller got no session in time: no node, or no room.
func faultOfWait(e *pool.WaitError) *Fault {
	f := Faultf(codePoolTimeout, "no session in %v: %d of at most %d in use (pool.max), %d being opened",
		e.Waited.Round(time.Microsecond), e.Busy, e.Max, e.Opening)
	switch {
	case errors.Is(e.Cause, ErrCut):
		f = Faultf(CodeDraining, "this sidecar is stopping")
	case errors.Is(e.Cause, context.Canceled):
		f = Faultf(codeCancelled, "the caller went away while it waited for a session")
		f.Safe = true
	case e.Paused:
		f = f.paused()
	case e.Nodes == 0:
		f = Faultf(codeNoNode, "no node of the cluster could be used for %v", e.Waited.Round(time.Microsecond))
	case e.Limit > 0 && e.Busy >= e.Limit:
		f = Faultf(codePoolTimeout,
			"no session in %v: %d in use, the current limit of pool.adaptive (pool.adaptive_floor is "+
				"the least, pool.max = %d the most)",
			e.Waited.Round(time.Microsecond), e.Busy, e.Max)
	case e.Open != nil && e.Busy < e.Max:
		f = faultOfOpen(e)
	}
	f.Cause = e
	return f
}

// faultOfOpen is the answer when the pool had room and sessions could not be opened.
func faultOfOpen(e *pool.WaitError) *Fault {
	call, ok := errors.AsType[*upstream.Error](e.Open)
	if !ok {
		return Faultf(codeNoNode, "no session could be opened in %v", e.Waited.Round(time.Microsecond))
	}
	if call.Denied() || call.Code == codes.Unauthenticated || call.Code == codes.PermissionDenied {
		return faultOfCall(call, call, Deed{})
	}
	return &Fault{
		Code: codeNoNode, YDB: ydbName(call), issues: call.Issues, Safe: true, After: pause(codeNoNode),
		Message: fmt.Sprintf("no session could be opened in %v; the last try ended with %s",
			e.Waited.Round(time.Microsecond), call.StatusName()),
	}
}

// faultOfCall maps the failure of a call that went to a node, by its verdict.
func faultOfCall(err error, e *upstream.Error, d Deed) *Fault {
	f := &Fault{Message: e.Message(), issues: e.Issues, YDB: ydbName(e), Cause: err, Unknown: e.Verdict.Unknown}
	f.passing = e.Verdict.Retry != ydbstatus.RetryNever
	switch {
	case e.Status == Ydb.StatusIds_UNDETERMINED && f.Unknown:
		f.Code = codeUnknown
	case e.Status == Ydb.StatusIds_UNDETERMINED:
		f.Code = codeUpstreamLost
	case e.Foreign:
		f.Code, f.Message = codeNoNode, "the node that took the call serves another database"
	case e.Status != 0:
		f.Code = codeOfAnswer(e)
	case errors.Is(err, context.DeadlineExceeded):
		// The verdict is that the sidecar must not repeat it: the caller still may.
		f.Code, f.Message, f.passing = CodeDeadline, "the deadline ended while the call ran", true
	case errors.Is(err, context.Canceled):
		f.Code, f.Message, f.passing = codeCancelled, "the caller went away while the call ran", true
	case e.NoTicket:
		f.Code, f.Message = CodeYDB(Ydb.StatusIds_UNAUTHORIZED), "this sidecar cannot get credentials for the database; its log says why"
	case e.Code == codes.Unauthenticated || e.Code == codes.PermissionDenied:
		f.Code = CodeYDB(Ydb.StatusIds_UNAUTHORIZED)
	case e.TooLarge && !f.Unknown:
		f.Code, f.Message = CodeLimit, "the statement with its parameters, or one part of its answer, exceeds "+
			"64,000,000 bytes, the most that one message to or from a node may have"
	case f.Unknown:
		f.Code, f.Message = codeUnknown, fmt.Sprintf("the connection broke while the call ran (%s)", e.StatusName())
	case e.Node == 0 || errors.Is(err, hop.ErrUnknownNode):
		f.Code, f.Message = codeNoNode, "no node could take the call"
	case !f.passing:
		f.Code, f.Message = codeRefused, fmt.Sprintf("node %d answered %s, which another try would not change", e.Node, e.StatusName())
	default:
		f.Code, f.Message = codeUpstreamLost, fmt.Sprintf("the call did not get through to node %d (%s)", e.Node, e.StatusName())
	}
	if errors.Is(err, upstream.ErrKilled) {
		f.Message = upstream.ErrKilled.Error()
	}
	// What may have run does no harm if running it twice is as good as once.
	if f.Safe = f.passing && (!f.Unknown || d.Harmless); f.Safe {
		f.After = max(pause(f.Code), backoff(e.Verdict.Backoff))
	}
	return f
}

// codeOfAnswer finds the row for an answer of the database.
func codeOfAnswer(e *upstream.Error) *Code {
	constraint := func(i *Ydb_Issue.IssueMessage) bool { return i.GetIssueCode() == protocol.IssueConstraint }
	if e.Status == Ydb.StatusIds_PRECONDITION_FAILED && upstream.HasIssue(e.Issues, constraint) {
		return codeKeyExists
	}
	return CodeYDB(e.Status)
}

// OfPath returns the fault of a call whose request names one path, and nothing else that could be missing: if there is no
// table, the request itself asks for what does not exist.
func (f *Fault) OfPath() *Fault {
	if f.Code != ydbCodes[Ydb.StatusIds_SCHEME_ERROR] {
		return f
	}
	return f.With(func(f *Fault) { f.Code = codeNoPath })
}

func ydbName(e *upstream.Error) string {
	if e.Status == 0 {
		return ""
	}
	return e.StatusName()
}

// backoff is a first pause before the same call is sent again.
func backoff(b ydbstatus.Backoff) time.Duration {
	switch b {
	case ydbstatus.BackoffFast:
		return 10 * time.Millisecond
	case ydbstatus.BackoffSlow:
		return time.Second
	}
	return 0
}

// Proto builds what is sent, the same over both APIs.
func (f *Fault) Proto(traceID string) *sidecarv1.Error {
	left := maxIssues
	return &sidecarv1.Error{
		Code: f.Code.Name, Message: Clip(f.Message, MaxMessage), Status: uint32(f.Code.HTTP),
		YdbStatus: f.YDB, Issues: issues(f.issues, 0, &left), SafeToRetry: f.Safe, OutcomeUnknown: f.Unknown,
		RetryAfterMs: f.After.Milliseconds(), Hint: f.hintOf(), OperatorHint: cmp.Or(f.operate, f.Code.Operator), TraceId: traceID,
	}
}

// Bounds of what an error carries.
const (
	MaxMessage    = 1 << 10 // bytes of one text
	maxIssues     = 32      // at all depths together
	maxIssueDepth = 8
)

// issues copies the issues of the server, within bounds; left is how many more
// may be copied.
func issues(in []*Ydb_Issue.IssueMessage, depth int, left *int) []*sidecarv1.Issue {
	if depth == maxIssueDepth {
		return nil
	}
	var out []*sidecarv1.Issue
	for _, m := range in {
		if *left == 0 {
			break
		}
		*left--
		out = append(out, &sidecarv1.Issue{
			Message: Clip(m.GetMessage(), MaxMessage), Code: m.GetIssueCode(), Severity: m.GetSeverity(),
			Row: m.GetPosition().GetRow(), Column: m.GetPosition().GetColumn(),
			Issues: issues(m.GetIssues(), depth+1, left),
		})
	}
	return out
}

// Clip shortens a text to about n bytes, at a whole character.
func Clip(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}

// CauseOf is what led to a fault; nil of none.
func CauseOf(f *Fault) error {
	if f == nil {
		return nil
	}
	return f.Cause
}

// MaxDetails bounds an error in bytes: gRPC clients accept about 8 KiB of
// trailers, in which it stands in base64.
const MaxDetails = 4 << 10
