package wire

import (
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

func TestOwnerOfASession(t *testing.T) {
	for id, want := range map[string]cluster.NodeID{
		"ydb://session/3?node_id=1&id=abc":                       1,
		"ydb://session/3?id=abc&node_id=50001":                   50001,
		"ydb://session/3?node_id=4294967295&id=x":                4294967295,
		"ydb://session/3?node_id=4294967296&id=x":                0,
		"ydb://session/3?other_node_id=5&id=x":                   0,
		"ydb://session/3?other_node_id=5&node_id=7":              7,
		"ydb://session/3?node_id=&id=x":                          0,
		"ydb://session/3?node_id=99999999999999999999999999&i=1": 0,
		"bare": 0, "": 0, "node_id=5": 0, "?node_id=5": 5,
	} {
		if got := ownerOf([]byte(id)); got != want {
			t.Errorf("%s: %d; want %d", id, got, want)
		}
	}
}

func bytesOf(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSessionInTheFirstMessage(t *testing.T) {
	const id = "ydb://session/3?node_id=2&id=x"
	query := func(m string) *Method { return methods["/Ydb.Query.V1.QueryService/"+m] }
	table := func(m string) *Method { return methods["/Ydb.Table.V1.TableService/"+m] }
	for name, c := range map[string]struct {
		method  *Method
		message proto.Message
		want    string
	}{
		"query":    {query("ExecuteQuery"), &Ydb_Query.ExecuteQueryRequest{SessionId: id, Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}}, id},
		"implicit": {query("ExecuteQuery"), &Ydb_Query.ExecuteQueryRequest{Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}}, ""},
		"second":   {table("RenameTables"), &Ydb_Table.RenameTablesRequest{OperationParams: &Ydb_Operations.OperationParams{Labels: map[string]string{"a": "b"}}, SessionId: id}, id},
		"topic": {methods["/Ydb.Topic.V1.TopicService/UpdateOffsetsInTransaction"],
			&Ydb_Topic.UpdateOffsetsInTransactionRequest{Tx: &Ydb_Topic.TransactionIdentity{Id: "tx", Session: id}, Consumer: "c"}, id},
		"no tx": {methods["/Ydb.Topic.V1.TopicService/UpdateOffsetsInTransaction"], &Ydb_Topic.UpdateOffsetsInTransactionRequest{Consumer: "c"}, ""},
	} {
		message := bytesOf(t, c.message)
		got, enough := sessionOf(message, true, c.method.session)
		if string(got) != c.want || !enough {
			t.Errorf("%s: %q, %v; want %q", name, got, enough, c.want)
		}
		// Of a part of it either the same is said, or that more is needed, or that there is none
		// because of what comes first.
		for n := range message {
			if got, enough := sessionOf(message[:n], false, c.method.session); enough && string(got) != c.want && len(c.method.session) == 1 {
				t.Errorf("%s: after %d octets %q; want %q", name, n, got, c.want)
			}
		}
	}
	if _, enough := sessionOf(nil, false, []int{1}); enough {
		t.Error("no octets are enough")
	}
	long := bytesOf(t, &Ydb_Query.ExecuteQueryRequest{Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: string(make([]byte, 1<<20))}}})
	if session, enough := sessionOf(long[:100], false, []int{1}); !enough || session != nil {
		t.Error("a long statement without a session is waited for")
	}
}

func TestStatusOfAnAnswer(t *testing.T) {
	framed := func(m proto.Message) []byte {
		b := bytesOf(t, m)
		return append([]byte{0, byte(len(b) >> 24), byte(len(b) >> 16), byte(len(b) >> 8), byte(len(b))}, b...)
	}
	issues := []*Ydb_Issue.IssueMessage{{Message: "a long text, to be longer than what is kept of an answer"}}
	operation := func(s Ydb.StatusIds_StatusCode) *Ydb_Operations.Operation {
		return &Ydb_Operations.Operation{Ready: true, Status: s, Issues: issues}
	}
	plain, wrapped, bare := methods["/Ydb.Query.V1.QueryService/ExecuteQuery"], methods["/Ydb.Table.V1.TableService/ExecuteDataQuery"], methods["/Ydb.Query.V1.QueryService/ExecuteScript"]
	for name, c := range map[string]struct {
		method *Method
		body   []byte
		want   Ydb.StatusIds_StatusCode
	}{
		"plain":      {plain, framed(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, Issues: issues}), Ydb.StatusIds_SUCCESS},
		"overloaded": {plain, framed(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_OVERLOADED, Issues: issues}), Ydb.StatusIds_OVERLOADED},
		"operation":  {wrapped, framed(&Ydb_Table.ExecuteDataQueryResponse{Operation: operation(Ydb.StatusIds_ABORTED)}), Ydb.StatusIds_ABORTED},
		"bare":       {bare, framed(operation(Ydb.StatusIds_UNAUTHORIZED)), Ydb.StatusIds_UNAUTHORIZED},
		"empty":      {plain, framed(&Ydb_Query.ExecuteQueryResponsePart{}), 0},
		"compressed": {plain, append([]byte{1}, framed(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS})[1:]...), 0},
		"none":       {methods["/Ydb.Coordination.V1.CoordinationService/Session"], []byte{0, 0, 0, 0, 2, 8, 1}, 0},
		"nothing":    {plain, nil, 0},
		"foreign":    {wrapped, []byte{0, 0, 0, 0, 4, 8, 1, 10, 200}, 0},
	} {
		if got := c.method.status(c.body[:min(len(c.body), 32)]); got != c.want {
			t.Errorf("%s: %v; want %v", name, got, c.want)
		}
	}
}

// Every method's refusal is a message of its own type with the status.
func TestRefusals(t *testing.T) {
	for i := range methodTable {
		m := &methodTable[i]
		body := m.refusal(Ydb.StatusIds_OVERLOADED, "full")
		if m.style == styleNone {
			if body != nil {
				t.Errorf("%s: an answer without a place for a status", m.Path)
			}
			continue
		}
		if got := m.statusOf(body); got != Ydb.StatusIds_OVERLOADED {
			t.Errorf("%s: its own reader finds %v", m.Path, got)
		}
	}
	var part Ydb_Query.ExecuteQueryResponsePart
	if err := proto.Unmarshal(methods["/Ydb.Query.V1.QueryService/ExecuteQuery"].refusal(Ydb.StatusIds_UNAVAILABLE, "gone"), &part); err != nil ||
		part.Status != Ydb.StatusIds_UNAVAILABLE || part.Issues[0].GetMessage() != "gone" || part.Issues[0].GetSeverity() != severityError {
		t.Errorf("%v, %v", &part, err)
	}
	var answer Ydb_Table.ExecuteDataQueryResponse
	if err := proto.Unmarshal(methods["/Ydb.Table.V1.TableService/ExecuteDataQuery"].refusal(Ydb.StatusIds_OVERLOADED, "full"), &answer); err != nil ||
		answer.Operation.GetStatus() != Ydb.StatusIds_OVERLOADED || !answer.Operation.Ready || answer.Operation.Issues[0].GetMessage() != "full" {
		t.Errorf("%v, %v", &answer, err)
	}
}

func FuzzSession(f *testing.F) {
	f.Add([]byte("\x0a\x1eydb://session/3?node_id=2&id=x\x12\x03abc"), 9)
	f.Add([]byte{0x12, 0x04, 0x12, 0x02, 0x61, 0x62}, 3)
	f.Fuzz(func(t *testing.T, message []byte, cut int) {
		for _, path := range [][]int{{1}, {2}, {2, 2}} {
			session, enough := sessionOf(message, true, path)
			if !enough {
				t.Fatal("a whole message is not enough")
			}
			ownerOf(session)
			// The last string of that number that a strict reader finds, as far as the message is well formed.
			if len(path) == 1 {
				if want, ok := lastBytes(message, protowire.Number(path[0])); ok && string(want) != string(session) {
					t.Fatalf("%q; a strict reader finds %q", session, want)
				}
			}
			if cut >= 0 && cut < len(message) {
				sessionOf(message[:cut], false, path)
			}
		}
		for i := range methodTable {
			methodTable[i].status(message)
		}
	})
}

func lastBytes(b []byte, number protowire.Number) (last []byte, ok bool) {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 || kind == protowire.StartGroupType || kind == protowire.EndGroupType {
			return nil, false
		}
		b = b[size:]
		size = protowire.ConsumeFieldValue(n, kind, b)
		if size < 0 {
			return nil, false
		}
		if n == number && kind == protowire.BytesType {
			last, _ = protowire.ConsumeBytes(b)
		}
		b = b[size:]
	}
	return last, true
}

func BenchmarkSession(b *testing.B) {
	message := bytesOf(b, &Ydb_Query.ExecuteQueryRequest{SessionId: "ydb://session/3?node_id=50001&id=ZjY0YzQ1", Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}})
	path := []byte("/Ydb.Query.V1.QueryService/ExecuteQuery")
	b.ReportAllocs()
	for b.Loop() {
		session, _ := sessionOf(message, true, methodOf(path).session)
		if ownerOf(session) != 50001 {
			b.Fatal()
		}
	}
}

// What a node answers to methods of the client's choice does not eject it.
func TestAnswersThatSayNothingOfTheNode(t *testing.T) {
	known := methods["/Ydb.Query.V1.QueryService/ExecuteQuery"]
	for _, c := range []struct {
		method *Method
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
		if o, _ := judged(1, c.method, ydbstatus.Signs{Code: c.code}); o.Blame != c.want {
			t.Errorf("%v, known: %v: %v; want %v", c.code, c.method != nil, o.Blame, c.want)
		}
	}
}

// A hot table makes a bulk upsert last for minutes on any node, and nothing else waits so.
func TestOnlyBulkUpsertsWaitInside(t *testing.T) {
	for path, m := range methods {
		o, _ := judged(1, m, ydbstatus.Signs{Status: Ydb.StatusIds_SUCCESS})
		if want := path == "/Ydb.Table.V1.TableService/BulkUpsert"; o.Waits != want {
			t.Errorf("%s: the server waits inside: %t; want %t", path, o.Waits, want)
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
			m := methodOf([]byte(method))
			if got, subject := m.congestion(body[:min(len(body), 240)]); got != c.want || subject != c.subject {
				t.Errorf("%s, %s: %v %q; want %v %q", c.name, method, got, subject, c.want, c.subject)
			}
			for i := range body {
				m.congestion(body[:i]) // it does not panic
			}
		}
	}
}
