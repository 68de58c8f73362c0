package devcluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// statusError is a YDB status on its way to the client.
type statusError struct {
	status Ydb.StatusIds_StatusCode
	issues []*Ydb_Issue.IssueMessage
}

func (e *statusError) Error() string {
	if len(e.issues) == 0 {
		return e.status.String()
	}
	return e.status.String() + ": " + e.issues[0].GetMessage()
}

// fatal says whether the session of a call with this status ends.
func (e *statusError) fatal() bool {
	return e.status == Ydb.StatusIds_INTERNAL_ERROR || e.status == Ydb.StatusIds_BAD_SESSION
}

// severityError is the severity of an issue that failed its request.
const severityError = 1

// fail makes a status with one issue.
func fail(status Ydb.StatusIds_StatusCode, format string, args ...any) *statusError {
	return &statusError{status: status, issues: []*Ydb_Issue.IssueMessage{{
		Message:  fmt.Sprintf(format, args...),
		Severity: severityError,
	}}}
}

// statusOf says what the client of a call is told about err. When the call was
// ended from outside (its session deleted, its node stopped, its own time
// limit), the reason given there is the answer, whatever err became of it.
func statusOf(ctx context.Context, err error) *statusError {
	if cause, ok := errors.AsType[*statusError](context.Cause(ctx)); ok {
		return cause
	}
	if e, ok := errors.AsType[*statusError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*engine.Error](err); ok {
		return &statusError{status: e.Status, issues: e.Issues}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fail(Ydb.StatusIds_TIMEOUT, "the deadline of the call passed")
	case errors.Is(err, context.Canceled):
		return fail(Ydb.StatusIds_CANCELLED, "the call was cancelled")
	}
	return fail(Ydb.StatusIds_INTERNAL_ERROR, "%v", err)
}
