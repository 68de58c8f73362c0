package ydbstatus

import (
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Signs is all that is known of one call to one node when it has ended.
type Signs struct {
	Kind cluster.CallKind

	// Status is YDB's own answer; 0 when none came. It wins over Code.
	Status Ydb.StatusIds_StatusCode

	// Code is gRPC's answer; it counts only when Status is 0.
	Code codes.Code

	// NotSent says that surely no byte of the call left this process.
	NotSent bool

	// Undone says that whatever the call did is lost with its session: it
	// belongs to an open transaction that it does not commit, or it only reads.
	Undone bool

	// CallerGone says that the caller's own deadline or cancellation ended the call.
	CallerGone bool

	// NoTicket says that the provider of credentials did not answer, so that
	// nothing was sent. A provider that refused is no such case: see Code.
	NoTicket bool

	// Unrouted says that no node was found to send the call to.
	Unrouted bool

	// OwnerLost says the same of a call that only the owner of its session can serve.
	OwnerLost bool

	// TooLarge says that a message exceeded a size limit of this process.
	TooLarge bool

	// Repeats says that the issues of the answer name a cause that the same call
	// will meet again (see IssueRepeats).
	Repeats bool
}

// issueProgramSize is the issue code of a statement too large for a shard: YDB
// reports it as ABORTED, but the same statement is aborted every time.
const issueProgramSize = 200509

// IssueRepeats tells whether an issue code names a cause that does not go away by itself.
func IssueRepeats(code uint32) bool { return code == issueProgramSize }

// success is the verdict on what was done.
var success = statuses[Ydb.StatusIds_SUCCESS].Verdict

// Judge makes the verdict. It is the only place that does.
func Judge(s Signs) Verdict {
	if s == (Signs{Kind: s.Kind, Status: Ydb.StatusIds_SUCCESS}) && s.Kind != cluster.CallOpen && s.Kind != cluster.CallProbe { // as usual
		return success
	}
	switch {
	case s.OwnerLost:
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
	r := lookup(s)
	v := r.Verdict
	if s.TooLarge {
		v = Verdict{Retry: RetryNever, DropSession: true, Unknown: true, Blame: cluster.BlameNone}
	}
	if s.Repeats {
		v.Retry, v.Backoff = RetryNever, BackoffNone
	}
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
		}
	}
	return v
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

// callerGone: nothing is learned about the node, and nobody waits for a
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
	return v
}

// effective tells the kinds of call that can leave something behind.
func effective(k cluster.CallKind) bool {
	return k == cluster.CallExecute || k == cluster.CallCommit
}
