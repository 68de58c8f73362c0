package core

import (
	"net/http"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
)

// ydbCodes are the answers of the database itself. UNDETERMINED is missing: it
// is OUTCOME_UNKNOWN.
//
// Over HTTP 404 means that the URL names nothing, and 412 that a condition in the headers does not hold, so
// neither says what is wrong with a statement in a body. Such an error is 400, and 409 if the data stands against it.
// Over gRPC it is FAILED_PRECONDITION where the data or the schema would have to change first, and
// INVALID_ARGUMENT where no state of the database would help.
var ydbCodes = map[Ydb.StatusIds_StatusCode]*Code{
	Ydb.StatusIds_BAD_REQUEST: {
		Name: "YDB_BAD_REQUEST", HTTP: http.StatusBadRequest, GRPC: codes.InvalidArgument, Caller: true,
		Title: "The database does not understand the request",
		Hint:  "Correct the request. Read issues for the error.",
	},
	Ydb.StatusIds_UNAUTHORIZED: {
		Name: "YDB_UNAUTHORIZED", HTTP: http.StatusBadGateway, GRPC: codes.FailedPrecondition,
		Title:    "The sidecar's credentials do not permit this",
		Hint:     "Report it to the operator: the sidecar uses its own credentials for every caller.",
		Operator: "Grant the right to the sidecar's user, or correct ydb.auth: docs/operations/runbook.md#credentials_bad.",
	},
	Ydb.StatusIds_INTERNAL_ERROR: {
		Name: "YDB_INTERNAL_ERROR", HTTP: http.StatusInternalServerError, GRPC: codes.Internal,
		Title:    "An internal error of the database",
		Hint:     "Report it to the operator, with the text in issues.",
		Operator: "Read the log of the node; info.node_id or the trace names it.",
	},
	Ydb.StatusIds_ABORTED: {
		Name: "YDB_ABORTED", HTTP: http.StatusConflict, GRPC: codes.Aborted, Safe: true, Caller: true,
		Title: "The transaction conflicted with another one",
		Hint:  "Nothing was kept. Repeat the whole transaction, after a short random pause.",
	},
	Ydb.StatusIds_UNAVAILABLE: {
		Name: "YDB_UNAVAILABLE", HTTP: http.StatusServiceUnavailable, GRPC: codes.Unavailable, Safe: true,
		Title:    "A part of the database is not available now",
		Hint:     "Nothing was kept. Send the call again after retry_after_ms.",
		Operator: "sidecar top names what is short: docs/operations/runbook.md#cluster_overloaded, docs/operations/runbook.md#disk_full.",
	},
	Ydb.StatusIds_OVERLOADED: {
		Name: "YDB_OVERLOADED", HTTP: http.StatusTooManyRequests, GRPC: codes.ResourceExhausted, Safe: true,
		Title: "The database is overloaded",
		Hint:  "Nothing was kept. Send the call again after retry_after_ms, and send less.",
		Operator: "sidecar top names what is overloaded: a table, a quota, a resource pool or the cluster: " +
			"docs/operations/runbook.md#cluster_overloaded.",
	},
	Ydb.StatusIds_SCHEME_ERROR: {
		Name: "YDB_SCHEME_ERROR", HTTP: http.StatusBadRequest, GRPC: codes.FailedPrecondition, Caller: true,
		Title: "A table, a column or a path does not exist, exists already, or is of another kind or type",
		Hint:  "Read issues for the name, and for what is wrong with it. Paths are relative to the database.",
	},
	Ydb.StatusIds_GENERIC_ERROR: {
		Name: "YDB_GENERIC_ERROR", HTTP: http.StatusBadRequest, GRPC: codes.InvalidArgument, Caller: true,
		Title: "The statement failed",
		Hint:  "Correct the statement. Read issues for the place and the reason.",
	},
	Ydb.StatusIds_TIMEOUT: {
		Name: "YDB_TIMEOUT", HTTP: http.StatusGatewayTimeout, GRPC: codes.DeadlineExceeded,
		Title: "The database gave up on the statement",
		Hint:  "Make the statement smaller, or give it more time.",
	},
	Ydb.StatusIds_BAD_SESSION: {
		Name: "YDB_BAD_SESSION", HTTP: http.StatusServiceUnavailable, GRPC: codes.Unavailable, Safe: true,
		Title: "The session was lost",
		Hint:  "Nothing was kept. Send the call again.",
	},
	Ydb.StatusIds_PRECONDITION_FAILED: {
		Name: "YDB_PRECONDITION_FAILED", HTTP: http.StatusBadRequest, GRPC: codes.FailedPrecondition, Caller: true,
		Title: "The data does not meet a condition of the statement, or the statement needs more resources than allowed",
		Hint:  "Read issues for the details.",
	},
	Ydb.StatusIds_ALREADY_EXISTS: {
		Name: "YDB_ALREADY_EXISTS", HTTP: http.StatusConflict, GRPC: codes.AlreadyExists, Caller: true,
		Title: "The object exists already",
		Hint:  "Read issues for the name.",
	},
	Ydb.StatusIds_NOT_FOUND: {
		Name: "YDB_NOT_FOUND", HTTP: http.StatusBadRequest, GRPC: codes.NotFound, Caller: true,
		Title: "What the statement names does not exist",
		Hint:  "Read issues for the name.",
	},
	Ydb.StatusIds_SESSION_EXPIRED: {
		Name: "YDB_SESSION_EXPIRED", HTTP: http.StatusServiceUnavailable, GRPC: codes.Unavailable, Safe: true,
		Title: "The session was lost",
		Hint:  "Nothing was kept. Send the call again.",
	},
	Ydb.StatusIds_CANCELLED: {
		Name: "YDB_CANCELLED", HTTP: http.StatusServiceUnavailable, GRPC: codes.Canceled,
		Title: "The database cancelled the statement",
		Hint:  "Read issues for the reason.",
	},
	Ydb.StatusIds_UNSUPPORTED: {
		Name: "YDB_UNSUPPORTED", HTTP: http.StatusNotImplemented, GRPC: codes.Unimplemented, Caller: true,
		Title: "The database does not support this",
		Hint:  "Read issues for the name.",
	},
	Ydb.StatusIds_SESSION_BUSY: {
		Name: "YDB_SESSION_BUSY", HTTP: http.StatusServiceUnavailable, GRPC: codes.Unavailable, Safe: true,
		Title: "The session was in use",
		Hint:  "Nothing was kept. Send the call again after retry_after_ms.",
	},
	Ydb.StatusIds_EXTERNAL_ERROR: {
		Name: "YDB_EXTERNAL_ERROR", HTTP: http.StatusBadGateway, GRPC: codes.Unknown,
		Title: "A system that the database depends on failed",
		Hint:  "Read issues for the details.",
	},
}

// The rows that hold in place of the usual ones of their names.
var (
	codeNoPath = &Code{
		Name: "YDB_SCHEME_ERROR", Case: "the request itself names the path, as `Describe` and `Ingest` do",
		HTTP: http.StatusNotFound, GRPC: codes.NotFound, Caller: true,
		Title: "There is no table at this path",
		Hint:  "Read issues for the name. Paths are relative to the database.",
	}
	codeKeyExists = &Code{
		Name: "YDB_PRECONDITION_FAILED", Case: "a row with this key exists (issue 2012)",
		HTTP: http.StatusConflict, GRPC: codes.AlreadyExists, Caller: true,
		Title: "A row with this key exists",
		Hint:  "Nothing was kept. Use another key, or UPSERT or REPLACE if the row may be overwritten.",
	}

	specialCodes = []*Code{codeNoPath, codeKeyExists}
)

// CodeYDB finds the usual row of a status; one newer than this table is INTERNAL to callers.
func CodeYDB(s Ydb.StatusIds_StatusCode) *Code {
	if c, ok := ydbCodes[s]; ok {
		return c
	}
	return &Code{Name: "YDB_" + s.String(), HTTP: http.StatusInternalServerError, GRPC: codes.Unknown,
		Title: "The database answered with a status that this sidecar does not know", Hint: "Read issues for the details."}
}
