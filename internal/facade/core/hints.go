package core

import (
	"cmp"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"

	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// hintOfOver is for a step that ended its transaction, of which nothing was kept.
const hintOfOver = "Nothing was kept, and the transaction is over. Do not send this call again: wait for retry_after_ms, then " +
	"begin a new transaction and repeat all of it."

// hintOfLostCommit is for a transaction that is over and may have been committed. Its calls cannot be marked idempotent.
const hintOfLostCommit = "Read the data to see whether the transaction was committed. Do not send this call again: begin a new " +
	"transaction and repeat all of it only if nothing was kept, or if it may happen twice."

// hintOfHarmless is for a call that may have run, and is safe to retry because it only reads or is marked idempotent.
const hintOfHarmless = "The call may have run, and running it twice does no harm: send it again after retry_after_ms."

// ofTx returns the fault of a step that ended its transaction. The hint of its code may be for a call that is sent again alone, or
// that can be marked idempotent.
func (f *Fault) ofTx() *Fault {
	hint := ""
	switch {
	case f.Unknown:
		hint = hintOfLostCommit
	case f.Safe && f.Code.Safe && f.Code != codeTxLost && f.Code != ydbCodes[Ydb.StatusIds_ABORTED]:
		hint = hintOfOver
	default:
		return f
	}
	return f.With(func(f *Fault) { f.hint = hint })
}

// hintOf is what the caller does about the fault.
func (f *Fault) hintOf() string {
	switch {
	case f.hint != "":
		return f.hint
	case !f.Unknown, f.Code != codeUnknown && !f.Code.Safe:
		return cmp.Or(f.hintOfScheme(), f.Code.Hint)
	case f.Code == codeTxLost:
		return hintOfLostCommit
	case f.Safe:
		return hintOfHarmless
	}
	return codeUnknown.Hint // the usual one says that nothing was kept
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
		says := func(i *Ydb_Issue.IssueMessage) bool { return strings.Contains(i.GetMessage(), h.says) }
		if upstream.HasIssue(f.issues, says) {
			return h.hint
		}
	}
	return ""
}
