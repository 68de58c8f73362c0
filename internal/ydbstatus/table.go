package ydbstatus

import (
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Row is one line of the table: the verdict on a call that was sent and ended
// with this status, before Judge looks at the kind of call.
type Row struct {
	Verdict
	OpenBlame cluster.Blame // in place of Blame, when a session was being made or a node probed
	Why       string        // one line for docs/reference/statuses.md
}

// Short names keep the table readable as a table.
const (
	never  = RetryNever
	idem   = RetryIdempotent
	always = RetryAlways

	slow = BackoffSlow
	fast = BackoffFast
	now  = BackoffNone

	none   = cluster.BlameNone
	soft   = cluster.BlameRefusal
	broken = cluster.BlameTransport
)

// What becomes of the session.
const (
	keep = iota
	drop // it is deleted
	gone // the node has forgotten it already
)

// Whether the call may have taken effect.
const (
	clean   = false
	unknown = true
)

func row(r Retry, b Backoff, session int, effect bool, blame, openBlame cluster.Blame, why string) Row {
	return Row{
		Verdict: Verdict{
			Retry: r, Backoff: b, Blame: blame, Unknown: effect,
			DropSession: session != keep, SessionGone: session == gone,
		},
		OpenBlame: openBlame,
		Why:       why,
	}
}

// statuses is the first half of the table: what YDB itself answered.
var statuses = map[Ydb.StatusIds_StatusCode]Row{
	//                                  again   pause session effect   blame    on open
	Ydb.StatusIds_SUCCESS:     row(never, now, keep, clean, cluster.BlameSuccess, cluster.BlameSuccess, "done"),
	Ydb.StatusIds_BAD_REQUEST: row(never, now, keep, clean, none, none, "the request is wrong"),
	Ydb.StatusIds_UNAUTHORIZED: row(never, now, keep, clean, none, none,
		"a right is missing, or the password is wrong. If an issue says that the node serves another database: "+
			"`always` (fast), the session is dropped, and the node gets nothing new (`foreign`)"),
	Ydb.StatusIds_INTERNAL_ERROR: row(never, now, drop, unknown, none, soft, "a fault inside the server. The session may be damaged"),
	Ydb.StatusIds_ABORTED: row(always, fast, keep, clean, none, none,
		"rolled back: lost against another transaction. Never sent again if an issue says that the statement is too large for a shard"),
	Ydb.StatusIds_UNAVAILABLE: row(always, fast, keep, clean, none, soft,
		"a shard, another node or the disk space that the statement needs is not there. Nothing ran. On open it is "+
			"the node that is not ready"),
	Ydb.StatusIds_OVERLOADED: row(always, slow, keep, clean, none, soft,
		"rejected for load: of a table, of the database's quota or of a resource pool, mostly. On open it is the "+
			"node's limit of sessions: creation moves to other nodes, and internal/pessimize ejects no node for it"),
	Ydb.StatusIds_SCHEME_ERROR:  row(never, now, keep, clean, none, none, "the statement does not fit the schema"),
	Ydb.StatusIds_GENERIC_ERROR: row(never, now, keep, clean, none, none, "the statement is wrong"),
	Ydb.StatusIds_TIMEOUT: row(idem, fast, drop, unknown, none, none,
		"ran out of the server's own time. It may have run. The server answers while the session still rolls back, "+
			"and until it has, every call on it is SESSION_BUSY. If the call can have left no transaction open, the "+
			"session is kept once its node reports that it is idle (docs/concepts/pool.md)"),
	Ydb.StatusIds_BAD_SESSION: row(always, now, gone, clean, none, none,
		"the node does not know the session: what was open is rolled back, and there is nothing to delete"),
	Ydb.StatusIds_PRECONDITION_FAILED: row(never, now, keep, clean, none, none,
		"the data does not allow it, such as INSERT of a key that exists"),
	Ydb.StatusIds_ALREADY_EXISTS:  row(never, now, keep, clean, none, none, "the object exists"),
	Ydb.StatusIds_NOT_FOUND:       row(never, now, keep, clean, none, none, "no such object or transaction"),
	Ydb.StatusIds_SESSION_EXPIRED: row(always, now, gone, clean, none, none, "the session ended by itself"),
	Ydb.StatusIds_CANCELLED:       row(idem, fast, drop, unknown, none, none, "cancelled inside the server. It may have run"),
	Ydb.StatusIds_UNDETERMINED: row(idem, fast, keep, unknown, none, none,
		"the server itself does not know whether the transaction was committed"),
	Ydb.StatusIds_UNSUPPORTED: row(never, now, keep, clean, none, none, "the server cannot do this"),
	Ydb.StatusIds_SESSION_BUSY: row(always, fast, drop, clean, none, none,
		"the session still runs another call. Nothing ran"),
	Ydb.StatusIds_EXTERNAL_ERROR: row(never, now, keep, clean, none, none, "a system outside YDB failed"),
}

// unknownStatus judges a status that this table has never heard of.
var unknownStatus = row(never, now, drop, unknown, none, none, "a status newer than this table")

// transport is the second half: gRPC's codes, when no YDB status came.
var transport = [...]Row{
	//                            again  pause session effect  blame   on open
	codes.OK:              row(never, now, keep, clean, cluster.BlameSuccess, cluster.BlameSuccess, "done"),
	codes.Canceled:        row(idem, fast, drop, unknown, none, broken, "cut off, and not by the caller"),
	codes.Unknown:         row(idem, slow, drop, unknown, broken, broken, "an answer that is no answer of YDB"),
	codes.InvalidArgument: row(never, now, drop, clean, none, none, "the request is wrong"),
	codes.DeadlineExceeded: row(idem, fast, drop, unknown, none, broken,
		"no answer in time. On open, where the time is the sidecar's own, the node is to blame"),
	codes.NotFound:         row(never, now, drop, clean, none, none, "no such database or object"),
	codes.AlreadyExists:    row(never, now, drop, clean, none, none, "the object exists"),
	codes.PermissionDenied: row(never, now, drop, clean, none, none, "the credentials lack the right"),
	codes.ResourceExhausted: row(always, slow, keep, clean, soft, soft,
		"rejected for load by the node itself. Never sent again if a message is larger than this process accepts"),
	codes.FailedPrecondition: row(never, now, drop, clean, none, none, "the state does not allow it"),
	codes.Aborted:            row(always, now, drop, clean, none, none, "given up by the server. Nothing was kept"),
	codes.OutOfRange:         row(never, now, keep, clean, none, none, "the request is wrong"),
	codes.Unimplemented:      row(never, now, drop, clean, broken, broken, "what answers there is no YDB node, or lacks the service"),
	codes.Internal:           row(idem, fast, drop, unknown, broken, broken, "the connection or the server broke. It may have run"),
	codes.Unavailable:        row(idem, fast, drop, unknown, broken, broken, "the connection broke. It may have run"),
	codes.DataLoss:           row(never, now, drop, unknown, broken, broken, "the answer is damaged"),
	codes.Unauthenticated:    row(never, now, drop, clean, none, none, "the credentials are missing or expired"),
}
