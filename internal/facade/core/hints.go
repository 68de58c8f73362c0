package core

import (
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
)

// hintOfOver is for a step that ended its transaction, of which nothing was kept.
const hintOfOver = "Nothing was kept, and the transaction is over. Do not send this call again: wait for retry_after_ms, then " +
	"begin a new transaction and repeat all of it."

// ofTx returns the fault of a step that ended its transaction. The hint of its code may be for a call that is sent again alone.
func (f *Fault) ofTx() *Fault {
	if !f.Safe || !f.Code.Safe || f.Code == codeTxLost || f.Code == ydbCodes[Ydb.StatusIds_ABORTED] {
		return f
	}
	return f.With(func(f *Fault) { f.hint = hintOfOver })
}

// schemeHints are what a caller does about a YDB_SCHEME_ERROR, by what one of its issues says. That has no code of its own.
var schemeHints = []struct{ says, hint string }{
	{"error: path exist", "Something exists at the path that issues name. Use another name, or IF NOT EXISTS if what exists will do."},
	{"Type mismatch", "A value has another type than its column. Read issues for the column and its type, and send values of that type."},
}

// hintOfScheme is one of schemeHints, if the fault is such an error; "": none of them fits, or it is another error.
func (f *Fault) hintOfScheme() string {
	if f.Code.Name != codeNoPath.Name {
		return ""
	}
	for _, h := range schemeHints {
		if issueSays(f.issues, h.says, 0) {
			return h.hint
		}
	}
	return ""
}

// issueSays reports whether the message of an issue has the text, at any depth that callers are told of.
func issueSays(in []*Ydb_Issue.IssueMessage, text string, depth int) bool {
	if depth == maxIssueDepth {
		return false
	}
	for _, m := range in {
		if strings.Contains(m.GetMessage(), text) || issueSays(m.GetIssues(), text, depth+1) {
			return true
		}
	}
	return false
}
