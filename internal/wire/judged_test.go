package wire

import (
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// What a node answers to methods of the client's choice does not eject it.
func TestAnswersThatSayNothingOfTheNode(t *testing.T) {
	known := protocol.Named("/Ydb.Query.V1.QueryService/ExecuteQuery")
	for _, c := range []struct {
		method *protocol.Method
		code   codes.Code
		want   cluster.Blame
	}{
		{nil, codes.Unknown, cluster.BlameNone},
		{nil, codes.Internal, cluster.BlameNone},
		{nil, codes.Unimplemented, cluster.BlameNone},
		{nil, codes.Unavailable, cluster.BlameTransport},
		{known, codes.Unimplemented, cluster.BlameNone},
		{known, codes.Internal, cluster.BlameTransport},
		{known, codes.Unavailable, cluster.BlameTransport},
	} {
		s := ydbstatus.Signs{Code: c.code}
		about(&s, c.method)
		if v := ydbstatus.Judge(s); v.Blame != c.want {
			t.Errorf("%v, known: %v: %v; want %v", c.code, c.method != nil, v.Blame, c.want)
		}
	}
}

// What the issues say is read from the first octets of an answer, of every style, whole or cut off.
func TestCongestionOfAnAnswer(t *testing.T) {
	issue := func(code uint32, text string, in ...*Ydb_Issue.IssueMessage) *Ydb_Issue.IssueMessage {
		return &Ydb_Issue.IssueMessage{Message: text, IssueCode: code, Severity: 1, Issues: in}
	}
	hot := issue(2006, "Kikimr cluster or one of its subsystems is overloaded. Tablet 72075186224037888 is overloaded. Table `/local/t`.")
	for _, c := range []struct {
		name    string
		issues  []*Ydb_Issue.IssueMessage
		want    cluster.Congestion
		subject string
	}{
		{"none", nil, cluster.CongestedNothing, ""},
		{"hot_table", []*Ydb_Issue.IssueMessage{hot}, cluster.CongestedTable, "/local/t"},
		{"nested", []*Ydb_Issue.IssueMessage{issue(0, "Execution", hot)}, cluster.CongestedTable, "/local/t"},
		{"quota", []*Ydb_Issue.IssueMessage{issue(200803, "Throughput limit exceeded")}, cluster.CongestedQuota, ""},
		{"compile_queue", []*Ydb_Issue.IssueMessage{issue(0, "Exceeded maximum number of requests in compile service queue.")}, cluster.CongestedNode, ""},
		{"long", []*Ydb_Issue.IssueMessage{issue(0, "Request was rejected, number of local pending requests is 20, "+strings.Repeat("and so on, ", 100))}, cluster.CongestedPool, ""},
		{"other", []*Ydb_Issue.IssueMessage{issue(2005, "Compute node is unavailable")}, cluster.CongestedUnknown, ""},
	} {
		for method, answer := range map[string]proto.Message{
			"/Ydb.Query.V1.QueryService/ExecuteQuery":     &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_OVERLOADED, Issues: c.issues},
			"/Ydb.Table.V1.TableService/ExecuteDataQuery": &Ydb_Table.ExecuteDataQueryResponse{Operation: &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_OVERLOADED, Issues: c.issues}},
			"/Ydb.Query.V1.QueryService/ExecuteScript":    &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_OVERLOADED, Issues: c.issues},
		} {
			body, err := proto.Marshal(answer)
			if err != nil {
				t.Fatal(err)
			}
			body = append([]byte{0, 0, 0, byte(len(body) >> 8), byte(len(body))}, body...)
			m := protocol.Find([]byte(method))
			if got, subject := congestion(m, body[:min(len(body), 240)]); got != c.want || subject != c.subject {
				t.Errorf("%s, %s: %v %q; want %v %q", c.name, method, got, subject, c.want, c.subject)
			}
			for i := range body {
				congestion(m, body[:i]) // it does not panic
			}
		}
	}
}
