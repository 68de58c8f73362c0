package facade

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
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// fault is an error in the words of the API: what a caller gets over either face.
type fault struct {
	code    *Code
	message string // for the caller; may quote the statement, so it is not logged
	ydb     string // name of the YDB status; "" if the database did not answer
	issues  []*Ydb_Issue.IssueMessage
	safe    bool // nothing was kept, and the same may be sent again
	unknown bool // it may have run
	passing bool // the same call may do better later; safe is this, once nothing was kept or twice does no harm
	after   time.Duration
	cause   error  // for the log
	hint    string // "": the code's
	relayed error  // the gRPC status of another process, which is handed on as it came
}

func (f *fault) Error() string { return f.code.Name + ": " + f.message }

func (f *fault) Unwrap() error { return f.cause }

// with returns a changed copy: a fault may be stored, and shared.
func (f *fault) with(change func(*fault)) *fault {
	out := *f
	change(&out)
	return &out
}

// faultf makes a fault with the usual meaning of its code.
func faultf(c *Code, format string, args ...any) *fault {
	passing := c.Safe || c == codeUnknown || c == codeDeadline || c == codeCancelled
	return &fault{code: c, message: fmt.Sprintf(format, args...), safe: c.Safe, passing: passing, after: pause(c)}
}

// asked reports whether the fault is an answer that callers ask for: there is no row with
// this key, or it is another one by now. Nothing failed.
func (f *fault) asked() bool {
	return !f.unknown && (f.code == codeKeyNotFound || f.code == codeCondition)
}

func badRequest(format string, args ...any) *fault { return faultf(codeBadRequest, format, args...) }

// overLimit is the error of a bound on one request; it names the setting.
func overLimit(what string, got, limit int, setting string) *fault {
	if got > limit {
		return faultf(codeLimit, "%s: %d, at most %d are allowed (%s)", what, got, limit, setting)
	}
	return faultf(codeLimit, "%s: more than %d (%s)", what, limit, setting)
}

// tooMuch is the fault of a request for which there is no memory; nil: there is some.
func tooMuch(why string) error {
	if why == "" {
		return nil
	}
	return faultf(codeMemory, "%s", why)
}

// badAnswer marks what the database sent and nobody can read. The error quotes
// values, so the caller hears it and the log does not.
func badAnswer(err error) error {
	if err == nil {
		return nil
	}
	return faultf(codeInternal, "%v: %v", errBadAnswer, err).with(func(f *fault) { f.cause = errBadAnswer })
}

var errBadAnswer = errors.New("the database sent a row that does not fit its columns")

// pause is how long a caller should wait before it sends the call again.
func pause(c *Code) time.Duration {
	switch c {
	case codeQueueFull, codeBusy, codePoolTimeout:
		return 100 * time.Millisecond
	case codeNoNode, codeUpstreamLost, codeMemory:
		return 500 * time.Millisecond
	case codeDraining:
		return time.Second
	}
	return 0
}

// unread is the fault of a caller that did not read its rows in time, or at all.
func unread(ctx context.Context) *fault {
	f := faultf(codeCancelled, "the caller stopped reading")
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errCut):
		f = faultf(codeUnknown, "the sidecar stopped before the caller had read all rows")
	case errors.Is(cause, context.DeadlineExceeded):
		f = faultf(codeDeadline, "the deadline ended before the caller had read all rows")
	}
	f.unknown, f.cause = true, context.Cause(ctx)
	return f
}

// deed says what a call did, as far as that changes what its failure means.
type deed struct {
	harmless bool // it keeps nothing, or may be repeated: reads, and what the caller marked idempotent
	undone   bool // whatever it did is not kept: it only reads, or a later commit would have kept it
	unsure   bool // it, or a part of it, may have been kept before the call that failed
}

// faultOf finds the words for whatever went wrong. It is the one error map.
func faultOf(err error, d deed) *fault {
	f := faultOfError(err, d)
	switch {
	case d.undone && f.unknown:
		f = f.with(func(f *fault) { f.unknown, f.safe = false, f.passing })
	case d.unsure && !f.unknown:
		f = f.with(func(f *fault) { f.unknown = true })
	}
	return f
}

func faultOfError(err error, d deed) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		if f.unknown && d.harmless && f.passing {
			f = f.with(func(f *fault) { f.safe = true })
		}
		return f
	}
	if _, ok := errors.AsType[*panics.Error](err); ok {
		return &fault{code: codeInternal, message: "the sidecar failed inside the call", unknown: !d.harmless, cause: err}
	}
	if e, ok := errors.AsType[*yql.Error](err); ok {
		return &fault{code: codeBadRequest, message: e.Error(), cause: err}
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
	if e, ok := errors.AsType[*upstream.Error](err); ok {
		f := faultOfCall(err, e, d)
		if errors.Is(err, errTxMax) {
			f.code, f.message, f.safe = codeTxLost, maxedText, !f.unknown
		}
		return f
	}
	f := faultOfWord(err)
	f.cause = err
	return f
}

const maxedText = "the transaction was open for as long as allowed (tx.max)"

// faultOfWord maps the errors that are only words.
func faultOfWord(err error) *fault {
	switch {
	case errors.Is(err, pool.ErrQueueFull):
		return faultf(codeQueueFull, "as many calls wait for a session as allowed (pool.queue)")
	case errors.Is(err, pool.ErrNoNode):
		return faultf(codeNoNode, "no node of the cluster is known to be usable")
	case errors.Is(err, pool.ErrClosed), errors.Is(err, upstream.ErrClosed), errors.Is(err, lease.ErrDraining), errors.Is(err, errCut):
		return faultf(codeDraining, "this sidecar is stopping")
	case errors.Is(err, lease.ErrLimit):
		return faultf(codeBusy, "as many transactions are open as allowed (tx.limit)")
	case errors.Is(err, lease.ErrMalformed):
		return badRequest("tx.id: this is not the id of a transaction")
	case errors.Is(err, lease.ErrBusy):
		return faultf(codeTxBusy, "another call of this transaction is running")
	case errors.Is(err, lease.ErrRepeated):
		return faultf(codeSeqRepeated, "this statement was run; its outcome was too large to be kept (tx.replay)")
	case errors.Is(err, lease.ErrOrder):
		return faultOfOrder(err)
	case errors.Is(err, errTxMax):
		return faultf(codeTxLost, maxedText)
	case errors.Is(err, apps.ErrNoToken):
		return faultf(codeNoToken, "a token is needed: Authorization: Bearer (apps.token)")
	case errors.Is(err, apps.ErrTokens):
		return faultf(codeNoToken, "two headers Authorization have tokens that differ: send one (apps.token)")
	case errors.Is(err, apps.ErrToken):
		return faultf(codeNoToken, "nobody has this token (apps.token, apps.token_file)")
	case errors.Is(err, apps.ErrNotYours):
		return faultf(codeNotYours, "the name of the app belongs to the owner of another token or user (apps.token, apps.users)")
	case errors.Is(err, apps.ErrName):
		return badRequest("X-Sidecar-App: %s", strings.TrimPrefix(err.Error(), "apps: "))
	case errors.Is(err, loopback.ErrHost), errors.Is(err, loopback.ErrOrigin):
		return faultf(codeForbidden, "%v", err)
	case errors.Is(err, context.DeadlineExceeded):
		f := faultf(codeDeadline, "the deadline ended before the call was sent")
		f.safe = true
		return f
	case errors.Is(err, context.Canceled):
		f := faultf(codeCancelled, "the caller went away before the call was sent")
		f.safe = true
		return f
	}
	return faultf(codeInternal, "internal error")
}

// faultOfShed is the answer to a call that was turned away from the line.
func faultOfShed(e *pool.ShedError) *fault {
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	f := faultf(codeShedDelay, "it waited %v for a session, as long as pool.queue_age allows", round(e.Waited))
	switch {
	case e.Why == pool.ShedDelay && e.Ahead > 0:
		f.message = fmt.Sprintf("many calls of the app get no session in time, and it would have had to wait about %v for one, longer than such work takes (pool.max; priority batch may wait)", round(e.Ahead))
	case e.Why == pool.ShedDelay:
		f.message = fmt.Sprintf("it waited %v for a session while too many calls of the app wait (pool.queue_target)", round(e.Waited))
	case e.Why == pool.ShedDeadline && e.Waited > 0:
		f.code, f.message = codeShedDeadline, fmt.Sprintf("%v of its time are left after %v in line for a session (pool.max), and such work takes about %v", round(e.Left), round(e.Waited), round(e.Needs))
	case e.Why == pool.ShedDeadline && e.Ahead > 0:
		f.code, f.message = codeShedDeadline, fmt.Sprintf("its deadline is in %v, the wait for a session would be about %v (pool.max), and such work takes about %v", round(e.Left), round(e.Ahead), round(e.Needs))
	case e.Why == pool.ShedDeadline:
		f.code, f.message = codeShedDeadline, fmt.Sprintf("its deadline is in %v, and such work takes about %v", round(e.Left), round(e.Needs))
	}
	f.after, f.cause = max(e.Retry, time.Millisecond), e
	return f
}

func faultOfOrder(err error) *fault {
	e, ok := errors.AsType[*lease.OrderError](err)
	switch {
	case !ok:
		return faultf(codeSeqOrder, "tx.seq is out of order")
	case e.Seq < e.Next:
		return faultf(codeSeqOrder, "tx.seq %d was used by another statement; the next one is %d", e.Seq, e.Next)
	}
	return faultf(codeSeqOrder, "tx.seq %d is too high; the next one is %d", e.Seq, e.Next)
}

// faultOfWait tells apart why a caller got no session in time: no node, or no room.
func faultOfWait(e *pool.WaitError) *fault {
	f := faultf(codePoolTimeout, "no session in %v: %d of at most %d in use (pool.max), %d being opened",
		e.Waited.Round(time.Microsecond), e.Busy, e.Max, e.Opening)
	switch {
	case errors.Is(e.Cause, errCut):
		f = faultf(codeDraining, "this sidecar is stopping")
	case errors.Is(e.Cause, context.Canceled):
		f = faultf(codeCancelled, "the caller went away while it waited for a session")
		f.safe = true
	case e.Nodes == 0:
		f = faultf(codeNoNode, "no node of the cluster could be used for %v", e.Waited.Round(time.Microsecond))
	case e.Limit > 0 && e.Busy >= e.Limit:
		f = faultf(codePoolTimeout, "no session in %v: %d in use, as many as the cluster bears now (pool.adaptive; pool.adaptive_floor is the least, pool.max = %d the most)",
			e.Waited.Round(time.Microsecond), e.Busy, e.Max)
	case e.Open != nil && e.Busy < e.Max:
		f = faultOfOpen(e)
	}
	f.cause = e
	return f
}

// faultOfOpen is the answer when the pool had room and sessions could not be opened.
func faultOfOpen(e *pool.WaitError) *fault {
	call, ok := errors.AsType[*upstream.Error](e.Open)
	if !ok {
		return faultf(codeNoNode, "no session could be opened in %v", e.Waited.Round(time.Microsecond))
	}
	if call.Denied() || call.Code == codes.Unauthenticated || call.Code == codes.PermissionDenied {
		return faultOfCall(call, call, deed{})
	}
	return &fault{
		code: codeNoNode, ydb: ydbName(call), issues: call.Issues, safe: true, after: pause(codeNoNode),
		message: fmt.Sprintf("no session could be opened in %v; the last try ended with %s", e.Waited.Round(time.Microsecond), call.StatusName()),
	}
}

// faultOfCall maps the failure of a call that went to a node, by its verdict.
func faultOfCall(err error, e *upstream.Error, d deed) *fault {
	f := &fault{message: e.Message(), issues: e.Issues, ydb: ydbName(e), cause: err, unknown: e.Verdict.Unknown}
	f.passing = e.Verdict.Retry != ydbstatus.RetryNever
	switch {
	case e.Status == Ydb.StatusIds_UNDETERMINED && f.unknown:
		f.code = codeUnknown
	case e.Status == Ydb.StatusIds_UNDETERMINED:
		f.code = codeUpstreamLost
	case e.Foreign:
		f.code, f.message = codeNoNode, "the node that took the call serves another database"
	case e.Status != 0:
		f.code = codeYDB(e.Status)
	case errors.Is(err, context.DeadlineExceeded):
		// The verdict is that the sidecar must not repeat it: the caller still may.
		f.code, f.message, f.passing = codeDeadline, "the deadline ended while the call ran", true
	case errors.Is(err, context.Canceled):
		f.code, f.message, f.passing = codeCancelled, "the caller went away while the call ran", true
	case e.NoTicket:
		f.code, f.message = codeYDB(Ydb.StatusIds_UNAUTHORIZED), "this sidecar cannot get credentials for the database; its log says why"
	case e.Code == codes.Unauthenticated || e.Code == codes.PermissionDenied:
		f.code = codeYDB(Ydb.StatusIds_UNAUTHORIZED)
	case e.TooLarge && !f.unknown:
		f.code, f.message = codeLimit, "the statement with its parameters, or one part of its answer, exceeds 64,000,000 bytes, the most that one message to or from a node may have"
	case f.unknown:
		f.code, f.message = codeUnknown, fmt.Sprintf("the connection broke while the call ran (%s)", e.StatusName())
	case e.Node == 0 || errors.Is(err, hop.ErrUnknownNode):
		f.code, f.message = codeNoNode, "no node could take the call"
	case !f.passing:
		f.code, f.message = codeRefused, fmt.Sprintf("node %d answered %s, which another try would not change", e.Node, e.StatusName())
	default:
		f.code, f.message = codeUpstreamLost, fmt.Sprintf("the call did not get through to node %d (%s)", e.Node, e.StatusName())
	}
	if errors.Is(err, upstream.ErrKilled) {
		f.message = upstream.ErrKilled.Error()
	}
	// What may have run does no harm if running it twice is as good as once.
	if f.safe = f.passing && (!f.unknown || d.harmless); f.safe {
		f.after = max(pause(f.code), backoff(e.Verdict.Backoff))
	}
	return f
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

// proto builds what is sent, the same over both faces.
func (f *fault) proto(traceID string) *sidecarv1.Error {
	left := maxIssues
	hint := cmp.Or(f.hint, f.code.Hint)
	if f.unknown && f.code.Safe {
		hint = codeUnknown.Hint // the usual one says that nothing was kept
	}
	return &sidecarv1.Error{
		Code: f.code.Name, Message: clip(f.message, maxMessage), Status: uint32(f.code.HTTP),
		YdbStatus: f.ydb, Issues: issues(f.issues, 0, &left), SafeToRetry: f.safe, OutcomeUnknown: f.unknown,
		RetryAfterMs: f.after.Milliseconds(), Hint: hint, TraceId: traceID,
	}
}

// Bounds of what an error carries.
const (
	maxMessage    = 1 << 10 // bytes of one text
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
			Message: clip(m.GetMessage(), maxMessage), Code: m.GetIssueCode(), Severity: m.GetSeverity(),
			Row: m.GetPosition().GetRow(), Column: m.GetPosition().GetColumn(),
			Issues: issues(m.GetIssues(), depth+1, left),
		})
	}
	return out
}

// clip shortens a text to about n bytes, at a whole character.
func clip(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}

// causeOf is what led to a fault; nil of none.
func causeOf(f *fault) error {
	if f == nil {
		return nil
	}
	return f.cause
}

// maxDetails bounds an error in bytes: gRPC clients accept about 8 KiB of
// trailers, in which it stands in base64.
const maxDetails = 4 << 10
