package engine

import (
	"fmt"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
)

// Issue codes that clients look at.
const (
	issueLocksInvalidated = 2001
	issueScheme           = 2003
	issueBadRequest       = 2017
	issueReadOnly         = 2008
	issueConstraint       = 2012
	issueTypeAnnotation   = 1030
)

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
