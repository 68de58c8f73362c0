package protocol

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
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
		if got := HomeNode([]byte(id)); got != want {
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
	query := func(m string) *Method { return Named("/Ydb.Query.V1.QueryService/" + m) }
	table := func(m string) *Method { return Named("/Ydb.Table.V1.TableService/" + m) }
	for name, c := range map[string]struct {
		method  *Method
		message proto.Message
		want    string
	}{
		"query": {query("ExecuteQuery"),
			&Ydb_Query.ExecuteQueryRequest{SessionId: id,
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}},
			id},
		"implicit": {query("ExecuteQuery"),
			&Ydb_Query.ExecuteQueryRequest{
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}},
			},
			""},
		"second": {table("RenameTables"),
			&Ydb_Table.RenameTablesRequest{OperationParams: &Ydb_Operations.OperationParams{Labels: map[string]string{"a": "b"}},
				SessionId: id},
			id},
		"topic": {Named("/Ydb.Topic.V1.TopicService/UpdateOffsetsInTransaction"),
			&Ydb_Topic.UpdateOffsetsInTransactionRequest{Tx: &Ydb_Topic.TransactionIdentity{Id: "tx", Session: id}, Consumer: "c"}, id},
		"no tx": {Named("/Ydb.Topic.V1.TopicService/UpdateOffsetsInTransaction"),
			&Ydb_Topic.UpdateOffsetsInTransactionRequest{Consumer: "c"}, ""},
	} {
		message := bytesOf(t, c.message)
		got, enough := SessionOf(message, true, c.method.Session)
		if string(got) != c.want || !enough {
			t.Errorf("%s: %q, %v; want %q", name, got, enough, c.want)
		}
		// Of a part of it either the same is said, or that more is needed, or that there is none
		// because of what comes first.
		for n := range message {
			if got, enough := SessionOf(message[:n], false, c.method.Session); enough && string(got) != c.want &&
				len(c.method.Session) == 1 {
				t.Errorf("%s: after %d bytes %q; want %q", name, n, got, c.want)
			}
		}
	}
	if _, enough := SessionOf(nil, false, []int{1}); enough {
		t.Error("no bytes are enough")
	}
	long := bytesOf(t,
		&Ydb_Query.ExecuteQueryRequest{
			Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: string(make([]byte, 1<<20))}},
		})
	if session, enough := SessionOf(long[:100], false, []int{1}); !enough || session != nil {
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
	plain, wrapped, bare := Named("/Ydb.Query.V1.QueryService/ExecuteQuery"), Named(
		"/Ydb.Table.V1.TableService/ExecuteDataQuery",
	), Named("/Ydb.Query.V1.QueryService/ExecuteScript")
	for name, c := range map[string]struct {
		method *Method
		body   []byte
		want   Ydb.StatusIds_StatusCode
	}{
		"plain": {plain, framed(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, Issues: issues}),
			Ydb.StatusIds_SUCCESS},
		"overloaded": {plain,
			framed(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_OVERLOADED, Issues: issues}),
			Ydb.StatusIds_OVERLOADED},
		"operation": {wrapped, framed(&Ydb_Table.ExecuteDataQueryResponse{Operation: operation(Ydb.StatusIds_ABORTED)}),
			Ydb.StatusIds_ABORTED},
		"bare":       {bare, framed(operation(Ydb.StatusIds_UNAUTHORIZED)), Ydb.StatusIds_UNAUTHORIZED},
		"empty":      {plain, framed(&Ydb_Query.ExecuteQueryResponsePart{}), 0},
		"compressed": {plain, append([]byte{1}, framed(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS})[1:]...), 0},
		"none":       {Named("/Ydb.Coordination.V1.CoordinationService/Session"), []byte{0, 0, 0, 0, 2, 8, 1}, 0},
		"nothing":    {plain, nil, 0},
		"foreign":    {wrapped, []byte{0, 0, 0, 0, 4, 8, 1, 10, 200}, 0},
	} {
		if got := c.method.Status(c.body[:min(len(c.body), 32)]); got != c.want {
			t.Errorf("%s: %v; want %v", name, got, c.want)
		}
	}
}

// Every method's refusal is a message of its own type with the status.
func TestRefusals(t *testing.T) {
	for i := range table {
		m := &table[i]
		body := m.Refusal(Ydb.StatusIds_OVERLOADED, "full")
		if m.Style == StyleNone {
			if body != nil {
				t.Errorf("%s: an answer without a place for a status", m.Path)
			}
			continue
		}
		if got := m.StatusOf(body); got != Ydb.StatusIds_OVERLOADED {
			t.Errorf("%s: its own reader finds %v", m.Path, got)
		}
	}
	var part Ydb_Query.ExecuteQueryResponsePart
	if err := proto.Unmarshal(Named("/Ydb.Query.V1.QueryService/ExecuteQuery").Refusal(Ydb.StatusIds_UNAVAILABLE, "gone"),
		&part); err != nil ||
		part.Status != Ydb.StatusIds_UNAVAILABLE || part.Issues[0].GetMessage() != "gone" || part.Issues[0].GetSeverity() != SeverityError {
		t.Errorf("%v, %v", &part, err)
	}
	var answer Ydb_Table.ExecuteDataQueryResponse
	if err := proto.Unmarshal(Named("/Ydb.Table.V1.TableService/ExecuteDataQuery").Refusal(Ydb.StatusIds_OVERLOADED, "full"),
		&answer); err != nil ||
		answer.Operation.GetStatus() != Ydb.StatusIds_OVERLOADED || !answer.Operation.Ready ||
		answer.Operation.Issues[0].GetMessage() != "full" {
		t.Errorf("%v, %v", &answer, err)
	}
}

func FuzzSession(f *testing.F) {
	f.Add([]byte("\x0a\x1eydb://session/3?node_id=2&id=x\x12\x03abc"), 9)
	f.Add([]byte{0x12, 0x04, 0x12, 0x02, 0x61, 0x62}, 3)
	f.Fuzz(func(t *testing.T, message []byte, cut int) {
		for _, path := range [][]int{{1}, {2}, {2, 2}} {
			session, enough := SessionOf(message, true, path)
			if !enough {
				t.Fatal("a whole message is not enough")
			}
			HomeNode(session)
			// The last string of that number that a strict reader finds, as far as the message is well formed.
			if len(path) == 1 {
				if want, ok := lastBytes(message, protowire.Number(path[0])); ok && string(want) != string(session) {
					t.Fatalf("%q; a strict reader finds %q", session, want)
				}
			}
			if cut >= 0 && cut < len(message) {
				SessionOf(message[:cut], false, path)
			}
		}
		for i := range table {
			table[i].Status(message)
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
	message := bytesOf(b,
		&Ydb_Query.ExecuteQueryRequest{SessionId: "ydb://session/3?node_id=50001&id=ZjY0YzQ1",
			Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}})
	path := []byte("/Ydb.Query.V1.QueryService/ExecuteQuery")
	b.ReportAllocs()
	for b.Loop() {
		session, _ := SessionOf(message, true, Find(path).Session)
		if HomeNode(session) != 50001 {
			b.Fatal()
		}
	}
}
