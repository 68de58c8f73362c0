package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/store"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
)

// Issue codes that clients look at.
const (
	issueLocksInvalidated = 2001
	issueScheme           = 2003
	issueBadRequest       = 2017
	issueReadOnly         = 2008
	issueBadOperation     = 2008
	issueConstraint       = 2012
	issueTypeAnnotation   = 1030
	issueUnused           = 4527
)

// severityWarning is the severity of an issue that comes with a success; that of errors is 1.
const severityWarning = 2

// Error is the one error of this package: a YDB status and its issues. Errors of
// the text carry the row and the column (both from 1) of the construct.
type Error struct {
	Status Ydb.StatusIds_StatusCode
	Issues []*Ydb_Issue.IssueMessage
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Status.String())
	for _, is := range e.Issues {
		writeIssue(&b, is)
	}
	return b.String()
}

func writeIssue(b *strings.Builder, is *Ydb_Issue.IssueMessage) {
	b.WriteString(": ")
	if p := is.GetPosition(); p != nil {
		fmt.Fprintf(b, "%d:%d: ", p.GetRow(), p.GetColumn())
	}
	b.WriteString(is.GetMessage())
	for _, in := range is.GetIssues() {
		writeIssue(b, in)
	}
}

// errorf builds an error without a position.
func errorf(status Ydb.StatusIds_StatusCode, code uint32, format string, args ...any) *Error {
	return &Error{Status: status, Issues: []*Ydb_Issue.IssueMessage{{
		Message: fmt.Sprintf(format, args...), IssueCode: code, Severity: 1,
	}}}
}

// at builds an error of the text at a place: GENERIC_ERROR unless the status says otherwise.
func at(pos syntax.Pos, status Ydb.StatusIds_StatusCode, code uint32, format string, args ...any) *Error {
	e := errorf(status, code, format, args...)
	e.Issues[0].Position = &Ydb_Issue.IssueMessage_Position{Row: pos.Row, Column: pos.Col}
	return e
}

// invalid builds the error of a construct that is wrong or outside of the subset.
func invalid(pos syntax.Pos, format string, args ...any) *Error {
	return at(pos, Ydb.StatusIds_GENERIC_ERROR, issueTypeAnnotation, format, args...)
}

// storeError gives an error of the store its status; an *Error and nil pass.
func storeError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	status := Ydb.StatusIds_INTERNAL_ERROR
	switch {
	case errors.Is(err, context.Canceled):
		status = Ydb.StatusIds_CANCELLED
	case errors.Is(err, context.DeadlineExceeded):
		status = Ydb.StatusIds_TIMEOUT
	case errors.Is(err, store.ErrSnapshotLost):
		return errorf(Ydb.StatusIds_ABORTED, issueLocksInvalidated, "The snapshot of the transaction is gone: %v", err)
	case errors.Is(err, store.ErrUndetermined):
		status = Ydb.StatusIds_UNDETERMINED
	case errors.Is(err, store.ErrClosed), store.IsBusy(err):
		status = Ydb.StatusIds_UNAVAILABLE
	}
	return errorf(status, 0, "%v", err)
}

// invalidRuntime is a fault of the data that the text asked to fail on.
func invalidRuntime(pos syntax.Pos, format string, args ...any) *Error {
	return at(pos, Ydb.StatusIds_PRECONDITION_FAILED, 0, format, args...)
}

// emitError carries an error of the caller's Emit through the execution unchanged.
type emitError struct{ err error }

func (e emitError) Error() string { return e.err.Error() }

func (e emitError) Unwrap() error { return e.err }
