package core

import (
	"net/http"

	"google.golang.org/grpc/codes"
)

// Codes of requests that the sidecar does not serve as they are.
var (
	codeBadRequest = &Code{
		Name: "BAD_REQUEST", HTTP: http.StatusBadRequest, GRPC: codes.InvalidArgument, Caller: true,
		Title: "The request is malformed",
		Hint:  "Correct the request; the message names the field.",
	}
	CodeLimit = &Code{
		Name: "LIMIT_EXCEEDED", HTTP: http.StatusRequestEntityTooLarge, GRPC: codes.ResourceExhausted, Caller: true,
		Title:    "The request exceeds a limit",
		Hint:     "Send less at a time; the message names the limit. The same request would be rejected again.",
		Operator: "The message names the setting; docs/reference/limits.md lists all limits.",
	}
	CodeNoToken = &Code{
		Name: "UNAUTHENTICATED", HTTP: http.StatusUnauthorized, GRPC: codes.Unauthenticated, Caller: true,
		Title:    "The request has no valid token",
		Hint:     "Send Authorization: Bearer with the token of your app.",
		Operator: "Tokens are in apps.token and apps.token_file; names of client certificates that prove an app are in apps.users.",
	}
	codeNotYours = &Code{
		Name: "APP_FORBIDDEN", HTTP: http.StatusForbidden, GRPC: codes.PermissionDenied, Caller: true,
		Title:    "The name of the app belongs to another caller",
		Hint:     "Send the token of that app, or leave X-Sidecar-App out.",
		Operator: "apps.token, apps.token_file and apps.users list who may use a name.",
	}
	codeDenied = &Code{
		Name: "APP_DENIED", HTTP: http.StatusForbidden, GRPC: codes.PermissionDenied, Caller: true,
		Title:    "The app may not do this",
		Hint:     "Nothing was sent. Ask the operator for the grant that the message names.",
		Operator: "Grants are set in apps.limits: docs/how-to/grants.md.",
	}
	codeForbidden = &Code{
		Name: "FORBIDDEN", HTTP: http.StatusForbidden, GRPC: codes.PermissionDenied, Caller: true,
		Title:    "The request comes from a foreign web page or names a foreign host",
		Hint:     "Call from a program, and use a loopback name or a name that the operator allows.",
		Operator: "List the host names that apps use in http.hosts.",
	}
	CodeMedia = &Code{
		Name: "UNSUPPORTED_MEDIA_TYPE", HTTP: http.StatusUnsupportedMediaType, GRPC: codes.InvalidArgument, Caller: true,
		Title: "The type or the encoding of the body is not accepted here",
		Hint:  "Send the Content-Type that the message names: application/json, except for rows (application/x-ndjson) and values.",
	}
	CodeNoRoute = &Code{
		Name: "NO_SUCH_ROUTE", HTTP: http.StatusNotFound, GRPC: codes.Unimplemented, Caller: true,
		Title: "The path does not exist",
		Hint:  "GET /openapi.yaml lists every path.",
	}
	CodeMethod = &Code{
		Name: "METHOD_NOT_ALLOWED", HTTP: http.StatusMethodNotAllowed, GRPC: codes.Unimplemented, Caller: true,
		Title: "The path does not take this method",
		Hint:  "GET /openapi.yaml lists every path with its method.",
	}
)

// Codes of the key-value API.
var (
	CodeTableNotOpen = &Code{
		Name: "TABLE_NOT_OPEN", HTTP: http.StatusForbidden, GRPC: codes.PermissionDenied, Caller: true,
		Title:    "The key-value API does not serve this table",
		Hint:     "Use the name of an open table, or ask the operator to open this one.",
		Operator: "Add an entry for the table to kv.tables: docs/reference/kv.md#opening-a-table.",
	}
	CodeReadOnly = &Code{
		Name: "TABLE_READ_ONLY", HTTP: http.StatusMethodNotAllowed, GRPC: codes.PermissionDenied, Caller: true,
		Title:    "The key-value API only reads this table",
		Hint:     "Write the table with a statement, or ask the operator to open it for writing.",
		Operator: "To open it for writing, remove read_only from its entry in kv.tables.",
	}
	CodeTableMismatch = &Code{
		Name: "TABLE_MISMATCH", HTTP: http.StatusBadGateway, GRPC: codes.FailedPrecondition,
		Title:    "The table differs from its entry in kv.tables",
		Hint:     "Report it to the operator. The same call fails until the entry and the table agree.",
		Operator: "Correct the entry in kv.tables, or the table; the message says what differs: docs/reference/kv.md#opening-a-table.",
	}
	CodeKeyNotFound = &Code{
		Name: "KEY_NOT_FOUND", HTTP: http.StatusNotFound, GRPC: codes.NotFound, Caller: true,
		Title: "There is no row with this id",
		Hint:  "Treat the row as missing, or write it with a put.",
	}
	CodeKeyTooLarge = &Code{
		Name: "KEY_TOO_LARGE", HTTP: http.StatusBadRequest, GRPC: codes.InvalidArgument, Caller: true,
		Title: "The id exceeds a limit",
		Hint:  "Send a shorter id.",
	}
	CodeCondition = &Code{
		Name: "CONDITION_FAILED", HTTP: http.StatusPreconditionFailed, GRPC: codes.FailedPrecondition, Caller: true,
		Title: "The row does not meet the condition",
		Hint:  "Nothing was written. Get the row again, and decide with its new version.",
	}
)

// Codes of back-pressure: nothing is wrong with the call, and there is too much to do. All of
// them have one status over each API, and a pause after which the call may be sent again.
// YDB_OVERLOADED is the database's own.
var (
	CodeBusy = &Code{
		Name: "TOO_MANY_OPEN", HTTP: http.StatusTooManyRequests, GRPC: codes.ResourceExhausted, Safe: true,
		Title:    "The limit of open calls or transactions is reached",
		Hint:     "Nothing was sent. Send the call again after retry_after_ms, and keep fewer calls or transactions open at a time.",
		Operator: "GET /state/apps lists open calls by app, sidecar sessions lists open transactions. The message names the setting.",
	}
	CodeQuota = &Code{
		Name: "QUOTA_EXCEEDED", HTTP: http.StatusTooManyRequests, GRPC: codes.ResourceExhausted, Safe: true, Caller: true,
		Title:    "The app has reached its quota",
		Hint:     "Nothing was sent. Send the call again after retry_after_ms, and send less.",
		Operator: "The quota in apps.limits is reached, as configured; the message names it: docs/operations/runbook.md#quota_reached.",
	}
	CodeMemory = &Code{
		Name: "MEMORY_SHORT", HTTP: http.StatusTooManyRequests, GRPC: codes.ResourceExhausted, Safe: true,
		Title:    "The sidecar is short of memory for large requests",
		Hint:     "Nothing was kept. Send the call again after retry_after_ms, and send less at a time.",
		Operator: "The message names the limit: docs/operations/runbook.md#memory_short.",
	}
	codeQueueFull = &Code{
		Name: "QUEUE_FULL", HTTP: http.StatusTooManyRequests, GRPC: codes.ResourceExhausted, Safe: true,
		Title:    "The queue for a session is full",
		Hint:     "Nothing was sent. Send the call again after retry_after_ms, and send less.",
		Operator: whySessionsAreShort,
	}
	CodeShedDelay = &Code{
		Name: "SHED_DELAY", HTTP: http.StatusTooManyRequests, GRPC: codes.ResourceExhausted, Safe: true,
		Title:    "Too many calls wait for a session",
		Hint:     "Nothing was sent. Send the call again after retry_after_ms, and send less. Calls of priority batch may wait longer.",
		Operator: whySessionsAreShort,
	}
)

// whySessionsAreShort leads the operator to the cause, because the remedies contradict each other: more sessions help
// against POOL_SMALL and do harm in OVERLOAD.
const whySessionsAreShort = "sidecar top names the cause: too few sessions, one app that holds them, or a cluster that cannot do " +
	"more. Each has its own remedy: docs/operations/runbook.md#refused."

// Codes of calls that did not get to the database, or not through it.
var (
	codePoolTimeout = &Code{
		Name: "POOL_TIMEOUT", HTTP: http.StatusServiceUnavailable, GRPC: codes.Unavailable, Safe: true,
		Title:    "No session came free before the deadline",
		Hint:     "Nothing was sent. Send the call again after retry_after_ms, with more time if its timeout was short.",
		Operator: whySessionsAreShort,
	}
	CodeShedDeadline = &Code{
		Name: "SHED_DEADLINE", HTTP: http.StatusServiceUnavailable, GRPC: codes.Unavailable, Safe: true,
		Title:    "The call could not finish before the deadline",
		Hint:     "Nothing was sent. Send the call again after retry_after_ms, or with more time.",
		Operator: whySessionsAreShort,
	}
	codeNoNode = &Code{
		Name: "NO_HEALTHY_NODE", HTTP: http.StatusServiceUnavailable, GRPC: codes.Unavailable, Safe: true,
		Title: "No node of the cluster can be used",
		Hint:  "Nothing was sent. Send the call again after retry_after_ms.",
		Operator: "sidecar doctor shows how far a connection gets; sidecar nodes shows the reason for each node: " +
			"docs/operations/runbook.md#no_node.",
	}
	CodeDraining = &Code{
		Name: "DRAINING", HTTP: http.StatusServiceUnavailable, GRPC: codes.Unavailable, Safe: true,
		Title:    "This sidecar is stopping",
		Hint:     "Send the call again; a restarted sidecar serves it.",
		Operator: "If this lasts, GET /drain shows what the sidecar waits for: docs/operations/runbook.md#not_serving.",
	}
	codeUpstreamLost = &Code{
		Name: "UPSTREAM_LOST", HTTP: http.StatusServiceUnavailable, GRPC: codes.Unavailable, Safe: true,
		Title:    "The database could not be reached, or the connection broke",
		Hint:     "Nothing was kept. Send the call again after retry_after_ms.",
		Operator: "The message names the node; sidecar why NODE explains its state: docs/operations/runbook.md#node_dead.",
	}
	codeRefused = &Code{
		Name: "UPSTREAM_REFUSED", HTTP: http.StatusBadGateway, GRPC: codes.FailedPrecondition,
		Title:    "The cluster rejects the call for good",
		Hint:     "The same call would be rejected again. Report it to the operator.",
		Operator: "Check ydb.url and the version of the cluster; the message has the gRPC code: docs/operations/runbook.md#errors.",
	}
	codeUnknown = &Code{
		Name: "OUTCOME_UNKNOWN", HTTP: http.StatusInternalServerError, GRPC: codes.Unknown,
		Title: "The call may have run",
		Hint:  "Read the data to see whether the call took effect. If it may run twice, mark it idempotent.",
		Operator: "If this happens often, a node or the network to it breaks calls off. sidecar top names the node: " +
			"docs/operations/runbook.md#node_dead.",
	}
	CodeDeadline = &Code{
		Name: "DEADLINE_EXCEEDED", HTTP: http.StatusGatewayTimeout, GRPC: codes.DeadlineExceeded,
		Title:    "The deadline ended before the call was done",
		Hint:     "outcome_unknown says whether the call may have run. Allow more time with timeout.",
		Operator: "Calls without a deadline get api.timeout. If all calls are slow: docs/operations/runbook.md#cluster_slow.",
	}
	codeCancelled = &Code{
		Name: "CANCELLED", HTTP: 499, GRPC: codes.Canceled, Caller: true,
		Title: "The call was ended before its answer",
		Hint: "The message says whether the caller went away or an operator ended the call. outcome_unknown " +
			"says whether it may have run.",
		Operator: "sidecar events lists the calls that operators ended.",
	}
)

// Codes of streams of rows and of transactions, and of faults of the sidecar.
var (
	CodeStreamEnded = &Code{
		Name: "STREAM_ENDED", HTTP: http.StatusConflict, GRPC: codes.Aborted, Safe: true, Caller: true,
		Title: "The stream of rows was ended",
		Hint: "The message says why. Send unacknowledged rows again on a new stream, unless another stream " +
			"took the place of this one.",
	}
	codeExpectation = &Code{
		Name: "EXPECTATION_FAILED", HTTP: http.StatusConflict, GRPC: codes.FailedPrecondition, Caller: true,
		Title: "A statement returned another number of rows than expected",
		Hint:  "Nothing was kept. Read the rows again, then decide. The message names the statement, its rows and the expected rows.",
	}
	codeTxLost = &Code{
		Name: "TX_LOST", HTTP: http.StatusGone, GRPC: codes.Aborted, Safe: true,
		Title:    "The transaction is not open",
		Hint:     "Nothing was kept. Do not send this call again: begin a new transaction and repeat all of it.",
		Operator: "tx.idle and tx.max end transactions, and so does the loss of a node: docs/operations/runbook.md#node_dead.",
	}
	codeTxCommitted = &Code{
		Name: "TX_COMMITTED", HTTP: http.StatusConflict, GRPC: codes.FailedPrecondition, Caller: true,
		Title: "The transaction was committed",
		Hint:  "The transaction is done. Begin a new one for further statements.",
	}
	codeTxBusy = &Code{
		Name: "TX_BUSY", HTTP: http.StatusConflict, GRPC: codes.Aborted, Safe: true, Caller: true,
		Title: "Another call of the transaction is running",
		Hint:  "The transaction is still open. Send its calls one after the other: this one again when the other has ended.",
	}
	codeSeqRepeated = &Code{
		Name: "SEQ_REPEATED", HTTP: http.StatusConflict, GRPC: codes.AlreadyExists, Caller: true,
		Title: "The statement has run, and its outcome was not kept",
		Hint:  "The statement ran exactly once. Go on with the next seq, or roll back.",
	}
	codeSeqOrder = &Code{
		Name: "SEQ_OUT_OF_ORDER", HTTP: http.StatusConflict, GRPC: codes.FailedPrecondition, Caller: true,
		Title: "The statement is out of order",
		Hint:  "Raise seq by one with each statement. A repeat must be the same statement.",
	}
	CodeInternal = &Code{
		Name: "INTERNAL", HTTP: http.StatusInternalServerError, GRPC: codes.Internal,
		Title:    "An internal error of the sidecar",
		Hint:     "Report it to the operator with the trace_id.",
		Operator: "Search the log for the trace_id: docs/operations/runbook.md#panicked.",
	}
)

// ownCodes lists them in the order of docs/reference/api.md.
var ownCodes = []*Code{
	codeBadRequest, CodeLimit, CodeNoToken, codeNotYours, codeDenied, codeForbidden, CodeMedia, CodeNoRoute, CodeMethod,
	CodeTableNotOpen, CodeReadOnly, CodeTableMismatch, CodeKeyNotFound, CodeKeyTooLarge, CodeCondition,
	CodeBusy, CodeQuota, CodeMemory, codeQueueFull, CodeShedDelay,
	codePoolTimeout, CodeShedDeadline, codeNoNode, CodeDraining, codeUpstreamLost, codeRefused, codeUnknown, CodeDeadline,
	codeCancelled,
	CodeStreamEnded, codeExpectation, codeTxLost, codeTxCommitted, codeTxBusy, codeSeqRepeated, codeSeqOrder, CodeInternal,
}
