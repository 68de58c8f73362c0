package ydbstatus

import (
	"bytes"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Signs is all that is known of one call to one node when it has ended.
//
// Wide: each field is one fact that the table of verdicts looks at.
type Signs struct {
	Kind cluster.CallKind

	// Status is YDB's own answer; 0 when none came. It wins over Code.
	Status Ydb.StatusIds_StatusCode

	// Code is gRPC's answer; it counts only when Status is 0.
	Code codes.Code

	// NotSent says that surely no byte of the call left this process.
	NotSent bool

	// Lost is the number of the connection that ended under the call; 0: none did, or it
	// is not known. What is lost with one connection is one sign against its node.
	Lost uint64

	// Undone says that whatever the call did is lost with its session: it
	// belongs to an open transaction that it does not commit, or it only reads.
	Undone bool

	// InParts says that the statement may run in steps that are not rolled back with
	// one another, such as DDL beside other statements: an error does not undo what came before it.
	InParts bool

	// Schema says that the call is one statement outside of a transaction, such as CREATE. YDB
	// also answers UNAVAILABLE when it has lost sight of the change, which goes on, and its answers
	// do not tell whether the change had begun
	// (ydb/core/kqp/gateway/actors/scheme.h@05e9d0dd, TEvClientDestroyed after ExecInProgress).
	Schema bool

	// CallerGone says that the caller's own deadline or cancellation ended the call.
	CallerGone bool

	// NoTicket says that the provider of credentials did not answer, so that
	// nothing was sent. A provider that refused is no such case: see Code.
	NoTicket bool

	// Unrouted says that no node was found to send the call to.
	Unrouted bool

	// HomeNodeLost says the same of a call that only the owner of its session can serve.
	HomeNodeLost bool

	// TooLarge says that a message exceeded a size limit of this process.
	TooLarge bool

	// Shutdown says that the node refused to begin the call because it shuts down: see
	// SaysShutdown.
	Shutdown bool

	// Foreign says that the node serves another database (see IssueForeign): it has the
	// address of one that left.
	Foreign bool

	// Cause is whose doing the outcome is, as far as something else than the answer tells.
	Cause Cause

	// Forwarded says that the node sent the call on to the owner of its session.
	Forwarded bool

	// Congestion is what the issues of an answer OVERLOADED or UNAVAILABLE say has too
	// much to do (see Congested); CongestedNothing: there were none.
	Congestion cluster.Congestion
	Subject    string // the table or the resource pool that Congestion is about; "": unknown

	// Repeats says that the issues of the answer name a cause that the same call
	// will meet again (see IssueRepeats).
	Repeats bool
}

// Cause is whose doing the outcome of a call is.
type Cause uint8

// The causes.
const (
	CauseUnknown  Cause = iota // the answer tells
	CauseRequest               // the client's: a method that it chose, or the bytes of its request
	CauseHomeNode              // the owner's of the session, to which the node sent the call on: it is lost, or silent
	CauseProcess               // this process ended the call
)

// issueProgramSize is the issue code of a statement too large for a shard: YDB
// reports it as ABORTED, but the same statement is aborted every time.
const issueProgramSize = 200509

// IssueRepeats tells whether an issue code names a cause that does not go away by itself.
func IssueRepeats(code uint32) bool { return code == issueProgramSize }

// What a node says while it shuts down, in every version of the server that is known.
const (
	textShutdown  = "system shutdown requested"
	textSoftLimit = "Session is under shutdown"
)

// SaysShutdown tells whether the text of a refused creation of a session, also of one that the
// node wanted to make for a call without any, says that the whole node shuts down.
func SaysShutdown(text string) bool { return strings.Contains(text, textShutdown) }

// SaysClosing tells whether the text of BAD_SESSION says that the node had asked for the session
// to be closed, and waited: because it shuts down, or because it has too many.
func SaysClosing(text string) bool { return strings.Contains(text, textSoftLimit) }

// foreign is how the text of the issue begins with which a node refuses a database that
// is not its own, before it looks at anything else. Its status and its code are those of missing rights.
const foreign = "Unexpected node to perform query on database"

// IssueForeign tells whether the text of an issue says that the node serves another database.
func IssueForeign(text string) bool { return strings.HasPrefix(text, foreign) }

// AnswerForeign tells the same of the bytes of an answer whose status is UNAUTHORIZED.
func AnswerForeign(answer []byte) bool { return bytes.Contains(answer, []byte(foreign)) }

// success is the verdict on what was done.
var success = statuses[Ydb.StatusIds_SUCCESS].Verdict

// Judge makes the verdict. It is the only place that does.
func Judge(s Signs) Verdict {
	if s == (Signs{Kind: s.Kind, Status: Ydb.StatusIds_SUCCESS}) && s.Kind != cluster.CallOpen && s.Kind != cluster.CallProbe { // as usual
		return success
	}
	v := judge(s)
	switch {
	case s.Cause == CauseProcess:
		v.Blame, v.DropSession = cluster.BlameNone, true
	case s.Cause != CauseUnknown:
		v.Blame = cluster.BlameNone
	case s.Forwarded && s.Status != 0 && v.Blame == cluster.BlameRefusal:
		v.Blame = cluster.BlameNone // the refusal may be the owner's
	}
	return v
}

func judge(s Signs) Verdict {
	switch {
	case s.HomeNodeLost:
		return Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameNone}
	case s.Unrouted:
		return Verdict{Retry: RetryAlways, Backoff: BackoffFast, Blame: cluster.BlameNone}
	case s.NoTicket:
		return Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Blame: cluster.BlameNone}
	}
	if s.Status == 0 && s.Code == codes.OK {
		return success
	}
	if s.Status == 0 && s.CallerGone {
		return callerGone(s)
	}
	if s.Status == 0 && s.NotSent {
		return notSent(s)
	}
	if s.Shutdown {
		return Verdict{Retry: RetryAlways, Backoff: BackoffFast, Blame: cluster.BlameDraining}
	}
	if s.Status == Ydb.StatusIds_UNAUTHORIZED && s.Foreign {
		return Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameForeign}
	}
	r := lookup(s)
	v := r.Verdict
	if s.TooLarge {
		v = Verdict{Retry: RetryNever, DropSession: true, Unknown: true, Blame: cluster.BlameNone}
	}
	if s.Repeats {
		v.Retry, v.Backoff = RetryNever, BackoffNone
	}
	v = congested(v, s)
	switch s.Kind {
	case cluster.CallOpen, cluster.CallProbe:
		v = opening(v, r)
	case cluster.CallControl:
		v.Unknown = false // begin, rollback, describe: nothing that could be kept
		if v.Retry == RetryIdempotent {
			v.Retry = RetryAlways
		}
	case cluster.CallExecute, cluster.CallCommit:
		if s.Undone && s.Kind == cluster.CallExecute {
			v.Unknown = false
			if v.Retry == RetryIdempotent {
				v.Retry, v.DropSession = RetryAlways, true
			}
		} else if (s.InParts || s.Schema && s.Status != 0 && v.Retry == RetryAlways) && !atTheDoor(s, v) {
			v.Unknown = true
			v.Retry = min(v.Retry, RetryIdempotent)
		}
	}
	return v
}

// congested finds out what has too much to do. Only a node that says so of itself is to blame.
func congested(v Verdict, s Signs) Verdict {
	switch {
	case s.Status == Ydb.StatusIds_OVERLOADED, s.Status == Ydb.StatusIds_UNAVAILABLE:
		v.Congestion = max(s.Congestion, cluster.CongestedUnknown)
		if v.Congestion == cluster.CongestedNode {
			v.Blame = cluster.BlameRefusal
		}
	case s.Status == 0 && s.Code == codes.ResourceExhausted && !s.TooLarge:
		v.Congestion = cluster.CongestedNode
	}
	return v
}

// atTheDoor tells whether a node refused a call before it began to run it.
func atTheDoor(s Signs, v Verdict) bool {
	switch s.Status {
	case Ydb.StatusIds_STATUS_CODE_UNSPECIFIED:
		return v.Retry == RetryNever && !v.Unknown // gRPC refused it
	case Ydb.StatusIds_BAD_REQUEST, Ydb.StatusIds_BAD_SESSION, Ydb.StatusIds_SESSION_EXPIRED, Ydb.StatusIds_SESSION_BUSY:
		return true
	}
	return false
}

// lookup finds the line of the table for signs that came from a node.
func lookup(s Signs) Row {
	if s.Status != 0 {
		if r, ok := statuses[s.Status]; ok {
			return r
		}
		return unknownStatus
	}
	if int(s.Code) < len(transport) {
		return transport[s.Code]
	}
	return transport[codes.Unknown]
}

// callerGone: nothing is learned about the node, and no caller waits for a
// repeat. The session may still be at work for the lost call, so it is dropped.
func callerGone(s Signs) Verdict {
	return Verdict{
		Retry:       RetryNever,
		DropSession: true,
		Unknown:     !s.NotSent && !s.Undone && effective(s.Kind),
		Blame:       cluster.BlameNone,
	}
}

// notSent: the connection failed before the call. It may go anywhere again.
func notSent(s Signs) Verdict {
	switch s.Code {
	case codes.Unauthenticated, codes.PermissionDenied, codes.Internal, codes.InvalidArgument, codes.ResourceExhausted:
		// This process could not make the call: no ticket, or a message that it cannot encode or send.
		return Verdict{Retry: RetryNever, Blame: cluster.BlameNone}
	}
	return Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameTransport}
}

// opening adapts a verdict to making a session or probing: a lost try leaves at
// worst a session that the node ends by itself, so it may always be repeated,
// and a node that does not answer in time is as bad as one that cannot be reached.
func opening(v Verdict, r Row) Verdict {
	v.Unknown = false
	if v.Retry == RetryIdempotent {
		v.Retry = RetryAlways
	}
	v.Blame = r.OpenBlame
	switch v.Congestion {
	case cluster.CongestedTable, cluster.CongestedDisk, cluster.CongestedQuota, cluster.CongestedPool:
		v.Blame = cluster.BlameNone
	}
	return v
}

// effective tells the kinds of call that can leave something behind.
func effective(k cluster.CallKind) bool {
	return k == cluster.CallExecute || k == cluster.CallCommit
}
