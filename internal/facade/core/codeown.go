package core

import (
	"net/http"

	"google.golang.org/grpc/codes"
)

// The sidecar's own codes.
var (
	codeBadRequest = &Code{"BAD_REQUEST", http.StatusBadRequest, codes.InvalidArgument, false,
		"The request is malformed", "Correct the request; the message names the field."}
	CodeLimit = &Code{"LIMIT_EXCEEDED", http.StatusRequestEntityTooLarge, codes.ResourceExhausted, false,
		"The request exceeds a limit", "Send less, or raise the setting that the message names."}
	CodeBusy = &Code{"TOO_MANY_OPEN", http.StatusTooManyRequests, codes.ResourceExhausted, true,
		"As many calls or transactions are open as allowed", "Try again later, or raise the setting that the message names."}
	CodeQuota = &Code{"QUOTA_EXCEEDED", http.StatusTooManyRequests, codes.ResourceExhausted, true,
		"The app uses as much as it may", "Nothing was sent. Slow down, or raise the limit that the message names in apps.limits."}
	CodeMemory = &Code{"MEMORY_SHORT", http.StatusServiceUnavailable, codes.ResourceExhausted, true,
		"The sidecar has no memory for large work now",
		"Nothing was kept. Try again, send less at a time, or raise the limit that the message names."}
	CodeNoToken = &Code{"UNAUTHENTICATED", http.StatusUnauthorized, codes.Unauthenticated, false,
		"A token is needed, and this is none", "Send Authorization: Bearer with a token of apps.token or apps.token_file."}
	codeNotYours = &Code{"APP_FORBIDDEN", http.StatusForbidden, codes.PermissionDenied, false,
		"The name of the app belongs to another caller", "Send the token of that app, or leave X-Sidecar-App out."}
	codeForbidden = &Code{"FORBIDDEN", http.StatusForbidden, codes.PermissionDenied, false,
		"The request comes from a foreign web page or names a foreign host", "Call from a program, or list the host in http.hosts."}
	CodeMedia = &Code{"UNSUPPORTED_MEDIA_TYPE", http.StatusUnsupportedMediaType, codes.InvalidArgument, false,
		"The body has a type that is not served here",
		"Send the Content-Type that the message names; application/json but for rows (application/x-ndjson) and values."}
	CodeNoRoute = &Code{"NO_SUCH_ROUTE", http.StatusNotFound, codes.Unimplemented, false,
		"There is nothing at this path", "GET /openapi.yaml lists every path."}
	CodeMethod = &Code{"METHOD_NOT_ALLOWED", http.StatusMethodNotAllowed, codes.Unimplemented, false,
		"The path does not take this method", "GET /openapi.yaml lists every path with its method."}

	CodeTableNotOpen = &Code{"TABLE_NOT_OPEN", http.StatusForbidden, codes.PermissionDenied, false,
		"The key-value API does not serve this table", "Use a name of kv.tables, or let the operator open the table there."}
	CodeReadOnly = &Code{"TABLE_READ_ONLY", http.StatusMethodNotAllowed, codes.PermissionDenied, false,
		"The key-value API only reads this table",
		"Write it by a statement, or let the operator take read_only from its entry in kv.tables."}
	CodeTableMismatch = &Code{"TABLE_MISMATCH", http.StatusInternalServerError, codes.FailedPrecondition, false,
		"The table is not as its entry in kv.tables says", "Correct the entry in kv.tables, or the table; the message says what differs."}
	CodeKeyNotFound = &Code{"KEY_NOT_FOUND", http.StatusNotFound, codes.NotFound, false,
		"There is no row with this id", "Treat it as missing, or put it."}
	CodeKeyTooLarge = &Code{"KEY_TOO_LARGE", http.StatusRequestHeaderFieldsTooLarge, codes.ResourceExhausted, false,
		"The id exceeds a limit", "Send a shorter id."}
	CodeCondition = &Code{"CONDITION_FAILED", http.StatusPreconditionFailed, codes.FailedPrecondition, false,
		"The row is not as the condition asks", "Nothing was written. Get the row, and decide anew with its version."}

	codePoolTimeout = &Code{"POOL_TIMEOUT", http.StatusServiceUnavailable, codes.Unavailable, true,
		"No session came free before the deadline", "Nothing was sent. Give more time, or raise pool.max."}
	codeQueueFull = &Code{"QUEUE_FULL", http.StatusTooManyRequests, codes.ResourceExhausted, true,
		"The queue for a session is full", "Nothing was sent. Slow down, or raise pool.queue or pool.max."}
	CodeShedDeadline = &Code{"SHED_DEADLINE", http.StatusServiceUnavailable, codes.Unavailable, true,
		"It could not be done before the deadline",
		"Nothing was sent. Try again after retry_after_ms, give it more time, or raise pool.max."}
	CodeShedDelay = &Code{"SHED_DELAY", http.StatusServiceUnavailable, codes.Unavailable, true,
		"Too many calls wait for a session", "Nothing was sent. Slow down, or raise pool.max, or the setting that the message names."}
	codeNoNode = &Code{"NO_HEALTHY_NODE", http.StatusServiceUnavailable, codes.Unavailable, true,
		"No node of the cluster can be used", "Nothing was sent. GET /v1/status shows what is wrong with each node."}
	CodeDraining = &Code{"DRAINING", http.StatusServiceUnavailable, codes.Unavailable, true,
		"This sidecar is stopping", "Nothing was sent. Try again; a restarted sidecar will serve it."}
	codeUpstreamLost = &Code{"UPSTREAM_LOST", http.StatusServiceUnavailable, codes.Unavailable, true,
		"The database could not be reached, or the connection broke", "Nothing was kept. Send it again."}
	codeRefused = &Code{"UPSTREAM_REFUSED", http.StatusBadGateway, codes.FailedPrecondition, false,
		"The cluster refuses the call for good",
		"The same call would be refused again. Look at ydb.url and the version of the cluster; the message has the gRPC code."}
	codeUnknown = &Code{"OUTCOME_UNKNOWN", http.StatusInternalServerError, codes.Unknown, false,
		"It may have run", "Read back whether it was kept, or mark the call idempotent if it may run twice."}
	CodeDeadline = &Code{"DEADLINE_EXCEEDED", http.StatusGatewayTimeout, codes.DeadlineExceeded, false,
		"The deadline ended first", "outcome_unknown says whether it may have run. Give more time with timeout, or raise api.timeout."}
	codeCancelled = &Code{"CANCELLED", 499, codes.Canceled, false,
		"The caller went away", "outcome_unknown says whether it may have run."}

	CodeStreamEnded = &Code{"STREAM_ENDED", http.StatusConflict, codes.Aborted, true,
		"The stream of rows was ended",
		"The message says why. What was not acknowledged may be sent again on a new stream, unless another stream " +
			"took the place of this one."}

	codeTxLost = &Code{"TX_LOST", http.StatusGone, codes.Aborted, true,
		"The transaction is not open",
		"Nothing of it was kept, unless outcome_unknown says otherwise. Begin a new one and repeat all of it."}
	codeTxCommitted = &Code{"TX_COMMITTED", http.StatusConflict, codes.FailedPrecondition, false,
		"The transaction was committed", "It is done; begin a new one."}
	codeTxBusy = &Code{"TX_BUSY", http.StatusConflict, codes.Aborted, true,
		"Another call of the transaction is running", "Send the statements of a transaction one after the other."}
	codeSeqRepeated = &Code{"SEQ_REPEATED", http.StatusConflict, codes.AlreadyExists, false,
		"The statement was run, and its outcome is not kept", "It was run once and not again. Go on with the next seq, or roll back."}
	codeSeqOrder = &Code{"SEQ_OUT_OF_ORDER", http.StatusConflict, codes.FailedPrecondition, false,
		"The statement is out of order", "seq goes up by one with each statement; a repeat must be the same statement."}

	CodeInternal = &Code{"INTERNAL", http.StatusInternalServerError, codes.Internal, false,
		"A fault of the sidecar", "The log has it under the trace_id."}
)

// ownCodes lists them in the order of docs/api.md.
var ownCodes = []*Code{
	codeBadRequest, CodeLimit, CodeBusy, CodeQuota, CodeMemory, CodeNoToken, codeNotYours, codeForbidden, CodeMedia,
	CodeNoRoute, CodeMethod,
	CodeTableNotOpen, CodeReadOnly, CodeTableMismatch, CodeKeyNotFound, CodeKeyTooLarge, CodeCondition,
	codePoolTimeout, codeQueueFull, CodeShedDeadline, CodeShedDelay, codeNoNode, CodeDraining, codeUpstreamLost,
	codeRefused, codeUnknown, CodeDeadline, codeCancelled,
	CodeStreamEnded, codeTxLost, codeTxCommitted, codeTxBusy, codeSeqRepeated, codeSeqOrder, CodeInternal,
}
