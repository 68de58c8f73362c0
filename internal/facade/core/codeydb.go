package core

import (
	"net/http"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
)

// ydbCodes are the answers of the database itself. UNDETERMINED is missing: it
// is OUTCOME_UNKNOWN.
var ydbCodes = map[Ydb.StatusIds_StatusCode]*Code{
	Ydb.StatusIds_BAD_REQUEST: {"YDB_BAD_REQUEST", http.StatusBadRequest, codes.InvalidArgument, false,
		"The database does not understand the request", "issues say what is wrong."},
	Ydb.StatusIds_UNAUTHORIZED: {"YDB_UNAUTHORIZED", http.StatusForbidden, codes.PermissionDenied, false,
		"The sidecar's credentials do not permit this", "Grant the right, or give the sidecar other credentials (ydb.auth)."},
	Ydb.StatusIds_INTERNAL_ERROR: {"YDB_INTERNAL_ERROR", http.StatusInternalServerError, codes.Internal, false,
		"A fault of the database", "issues say more."},
	Ydb.StatusIds_ABORTED: {"YDB_ABORTED", http.StatusConflict, codes.Aborted, true,
		"Another transaction was faster", "Nothing was kept. Repeat the whole transaction, after a short random pause."},
	Ydb.StatusIds_UNAVAILABLE: {"YDB_UNAVAILABLE", http.StatusServiceUnavailable, codes.Unavailable, true,
		"A part of the database is not available now", "Nothing was kept. Try again."},
	Ydb.StatusIds_OVERLOADED: {"YDB_OVERLOADED", http.StatusServiceUnavailable, codes.Unavailable, true,
		"The database is overloaded", "Nothing was kept. Try again later and slow down."},
	Ydb.StatusIds_SCHEME_ERROR: {"YDB_SCHEME_ERROR", http.StatusNotFound, codes.NotFound, false,
		"A table, a column or a path does not exist, or has another form", "issues name it; paths are relative to the database."},
	Ydb.StatusIds_GENERIC_ERROR: {"YDB_GENERIC_ERROR", http.StatusBadRequest, codes.InvalidArgument, false,
		"The statement failed", "issues say where and why."},
	Ydb.StatusIds_TIMEOUT: {"YDB_TIMEOUT", http.StatusGatewayTimeout, codes.DeadlineExceeded, false,
		"The database gave up on the statement", "Make the statement smaller, or give it more time."},
	Ydb.StatusIds_BAD_SESSION: {"YDB_BAD_SESSION", http.StatusServiceUnavailable, codes.Unavailable, true,
		"The session was lost", "Nothing was kept. Try again."},
	Ydb.StatusIds_PRECONDITION_FAILED: {"YDB_PRECONDITION_FAILED", http.StatusPreconditionFailed, codes.FailedPrecondition, false,
		"The data is not as the statement requires", "For an INSERT: the key exists. issues say more."},
	Ydb.StatusIds_ALREADY_EXISTS: {"YDB_ALREADY_EXISTS", http.StatusConflict, codes.AlreadyExists, false,
		"It exists", "issues name it."},
	Ydb.StatusIds_NOT_FOUND: {"YDB_NOT_FOUND", http.StatusNotFound, codes.NotFound, false,
		"It does not exist", "issues name it."},
	Ydb.StatusIds_SESSION_EXPIRED: {"YDB_SESSION_EXPIRED", http.StatusServiceUnavailable, codes.Unavailable, true,
		"The session was lost", "Nothing was kept. Try again."},
	Ydb.StatusIds_CANCELLED: {"YDB_CANCELLED", http.StatusServiceUnavailable, codes.Canceled, false,
		"The database cancelled the statement", "issues say why."},
	Ydb.StatusIds_UNSUPPORTED: {"YDB_UNSUPPORTED", http.StatusNotImplemented, codes.Unimplemented, false,
		"The database does not support this", "issues name it."},
	Ydb.StatusIds_SESSION_BUSY: {"YDB_SESSION_BUSY", http.StatusServiceUnavailable, codes.Unavailable, true,
		"The session was in use", "Nothing was kept. Try again."},
	Ydb.StatusIds_EXTERNAL_ERROR: {"YDB_EXTERNAL_ERROR", http.StatusBadGateway, codes.Unknown, false,
		"Something behind the database failed", "issues say more."},
}

// CodeYDB finds the row of a status; one newer than this table is INTERNAL to callers.
func CodeYDB(s Ydb.StatusIds_StatusCode) *Code {
	if c, ok := ydbCodes[s]; ok {
		return c
	}
	return &Code{"YDB_" + s.String(), http.StatusInternalServerError, codes.Unknown, false,
		"The database answered with a status that this sidecar does not know", "issues say more."}
}
