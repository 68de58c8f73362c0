package ydbstatus

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write docs/reference/statuses.md again")

const page = "../../docs/reference/statuses.md"

func TestDocsAreTheTable(t *testing.T) {
	doctable.Whole(t, *update, page, doctable.Link("docs/reference/statuses.md", render()))
}

// render writes the page. What each kind of call makes of a line comes from
// Judge itself, so that the page cannot differ from what happens.
//
// Long: it is one page from its top to its end.
func render() string {
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(`# From a status to what the sidecar does

This page is generated from ~internal/ydbstatus~ by its test (~go test ./internal/ydbstatus -update~).
That package alone classifies the outcome of a call. Retries, sessions, the health of nodes and the errors of the API follow it.

## How to read the tables

The first six columns say whether the sidecar sends a call again, by the kind of the call:

| column | calls |
|---|---|
| statement | a statement that commits itself, and a commit |
| in parts | a text without a transaction that has DDL beside other statements, ~BATCH~, ~CREATE TABLE ... AS SELECT~ or ~COMMIT~ |
| schema | a statement without a transaction that is all of its text and changes the schema, such as ~CREATE~ |
| in a transaction | a statement that only a later commit would keep, and every statement that only reads |
| begin, rollback, describe | these calls. They leave nothing behind |
| open | creating and attaching a session, and probes of a node |

- **in parts**: YDB does not roll back the parts that came before the error. So the outcome is
  unknown after every error, except when the call was rejected before it began.
- **schema**: YDB may go on after an error that otherwise says that nothing was kept. So the outcome of such errors is unknown.
- **in a transaction**: the outcome of the statement does not matter, because it is rolled back with its session.

| value | meaning |
|---|---|
| ~always~ | sent again. The call surely did not run, or was rolled back |
| ~idempotent~ | sent again only if the caller marked it as idempotent, because it may have run |
| ~never~ | not sent again |
| at once | without a pause |
| fast | after a pause drawn from 0 to 5 ms·2ⁿ, n up to 6 |
| slow | after a pause drawn from 0 to 500 ms·2ⁿ, n up to 6 |

All retries stay inside the caller's deadline and inside the retry budget.

The other columns:

| column | meaning |
|---|---|
| session | ~kept~, ~dropped~ (deleted on its node) or ~gone~ (the node has forgotten it, and nothing is deleted) |
| unknown | ~yes~ if the call may have taken effect. If it is not sent again, the API answers ~OUTCOME_UNKNOWN~ |
| node | effect on the node (docs/concepts/health.md): ~refusal~ is a soft failure signal (overload error), ~transport~ a hard one |
| node, on open | the same, for the calls of the column *open* |

~OVERLOADED~ and ~UNAVAILABLE~ of a statement are mostly not about the node that answers. The issues of the answer name
what has too much to do: see [what is congested](#what-is-congested).

`, "~", "`")) // a raw string holds no backquote
	header := func(title, first string) {
		fmt.Fprintf(&b, "## %s\n\n", title)
		fmt.Fprintf(&b,
			"| %s | statement | in parts | schema | in a transaction | begin, rollback, describe | open | session | "+
				"unknown | node | node, on open | why |\n",
			first)
		b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	}
	line := func(name string, s Signs, why string) {
		inParts := s
		inParts.Kind, inParts.InParts = cluster.CallExecute, true
		schema := s
		schema.Kind, schema.Schema = cluster.CallExecute, true
		judge := func(kind cluster.CallKind, undone bool) Verdict {
			s.Kind, s.Undone = kind, undone
			return Judge(s)
		}
		v := judge(cluster.CallCommit, false)
		open := judge(cluster.CallOpen, false)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", name,
			again(v), again(Judge(inParts)), again(Judge(schema)), again(judge(cluster.CallExecute, true)),
			again(judge(cluster.CallControl, false)), again(open),
			fate(v), yes(v.Unknown), v.Blame, open.Blame, why)
	}
	header("What YDB answers", "status")
	known := make([]Ydb.StatusIds_StatusCode, 0, len(statuses))
	for code := range statuses {
		known = append(known, code)
	}
	slices.Sort(known)
	for _, code := range known {
		line("`"+code.String()+"`", Signs{Status: code}, statuses[code].Why)
	}
	line("any other", Signs{Status: 499999}, unknownStatus.Why)
	b.WriteString("\n")
	header("What gRPC answers, when no YDB status came", "code")
	for code, row := range transport {
		if codes.Code(code) != codes.OK {
			line("`"+codes.Code(code).String()+"`", Signs{Code: codes.Code(code)}, row.Why)
		}
	}
	b.WriteString("\n")
	header("Before the table", "case")
	line("the caller cancelled, or its deadline ended", Signs{Code: codes.DeadlineExceeded, CallerGone: true},
		"no caller waits for a repeat, and it is not the node's fault. The session may still be in use: it is kept "+
			"once its node reports that it is idle, if the call can have left no transaction open (docs/concepts/pool.md)")
	line("nothing was sent: no connection", Signs{Code: codes.Unavailable, NotSent: true}, "any other node will do")
	line("nothing was sent: this process could not make the call", Signs{Code: codes.Internal, NotSent: true}, "it would fail again")
	line("the provider of credentials does not answer",
		Signs{Code: codes.Unauthenticated, NotSent: true, NoTicket: true}, "not the node's fault")
	line("the provider of credentials rejected the request", Signs{Code: codes.Unauthenticated, NotSent: true}, "it would reject it again")
	line("no node to send it to, or all have too many calls open", Signs{Code: codes.Unavailable, Unrouted: true},
		"draws nothing from the retry budget")
	line("the home node of the session cannot be reached", Signs{Code: codes.Unavailable, HomeNodeLost: true}, "another session will do")
	line("a message exceeds 64,000,000 bytes", Signs{Code: codes.ResourceExhausted, TooLarge: true}, "it would fail again")
	line("`OVERLOADED`, or gRPC's `RESOURCE_EXHAUSTED`, \"system shutdown requested\"",
		Signs{Status: Ydb.StatusIds_OVERLOADED, Shutdown: true}, "the node shuts down and makes no session. Nothing ran")
	line("`OVERLOADED`, and the node's compile queue is full",
		Signs{Status: Ydb.StatusIds_OVERLOADED, Congestion: cluster.CongestedNode},
		"the one status of a statement that blames the node: its text names its own queue")
	line("gRPC's `UNAVAILABLE`, about the request: a method that the node does not know, or bytes that it cannot decode",
		Signs{Code: codes.Unavailable, Cause: CauseRequest}, "the node is there, and other requests are served")
	line("gRPC's `UNAVAILABLE`, because the home node of the session is lost, to which the node forwarded the call",
		Signs{Code: codes.Unavailable, Cause: CauseHomeNode}, "the node did what it could")
	line("gRPC's `UNAVAILABLE`, because the sidecar ended the call (`sidecar kill`)",
		Signs{Code: codes.Unavailable, Cause: CauseProcess}, "not the node's fault. The session is deleted")
	line("a compile queue is full, for a call that the node forwarded",
		Signs{Status: Ydb.StatusIds_OVERLOADED, Congestion: cluster.CongestedNode, Forwarded: true},
		"the queue may be that of the home node")
	line("`ABORTED` with issue 200509", Signs{Status: Ydb.StatusIds_ABORTED, Repeats: true},
		"the statement is too large for a shard, every time")
	b.WriteString(strings.ReplaceAll(`
## What is congested

The issues of an answer ~OVERLOADED~ or ~UNAVAILABLE~, at any depth, name what has too much to do. Findings name it, and
retries pause for it. ~pool.adaptive~ lowers its limit only for ~OVERLOADED~ with ~unknown~ or ~node~, and for ~RESOURCE_EXHAUSTED~.

| issue | congested | blames the node |
|---|---|---|
`, "~", "`"))
	for _, c := range []struct {
		issue, text string
		code        uint32
	}{
		{"200803 (YDB_RESOURCE_USAGE_LIMITED)", "", issueUsageLimited},
		{"2033 (disk space exhausted, or its quota exceeded), 2036 (disk group out of space), any text with \"out of disk space\"",
			"", issueDiskQuota},
		{"2005, 2006 whose text names a table or a tablet, 200300 (datashard error), \"Bulk upsert to table ...\"",
			"Table `t`", issueOverloaded},
		{"\"Query failed during adding/waiting in workload pool ...\", \"Request was rejected, number of local pending requests is ...\"",
			textPoolFailed + "p", 0},
		{"\"Exceeded maximum number of requests in compile service queue.\"", textCompileQueue, 0},
		{"any other, such as 2005 \"Compute node is unavailable\" and 2006 \"Not enough computation units to execute query\"",
			"", issueUnavailable},
	} {
		is, _ := Congested(c.code, c.text)
		v := Judge(Signs{Kind: cluster.CallExecute, Status: Ydb.StatusIds_OVERLOADED, Congestion: is})
		fmt.Fprintf(&b, "| %s | %v | %s |\n", c.issue, is, yes(v.Blame == cluster.BlameRefusal))
	}
	return b.String()
}

func again(v Verdict) string {
	if v.Retry == RetryNever {
		return "never"
	}
	if v.Backoff == BackoffNone {
		return v.Retry.String() + ", at once"
	}
	return v.Retry.String() + ", " + v.Backoff.String()
}

func fate(v Verdict) string {
	switch {
	case v.SessionGone:
		return "gone"
	case v.DropSession:
		return "dropped"
	}
	return "kept"
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}
