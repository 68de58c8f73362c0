package wire

import (
	"encoding/binary"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// No quota keeps a statement out of a transaction that is open, also if the request comes in parts and the first one
// ends before the transaction is named.
func TestARequestInPartsIsOfItsTransaction(t *testing.T) {
	all, err := apps.New(apps.Config{Max: 5, Quotas: []string{"* calls_per_second=1 calls_burst=20"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := newHouseOf(t, all, nil)
	g := h.guest("a")
	s, other := g.session(), g.session()
	tx := s.must(success, "select", beginTx)
	request := func(control *Ydb_Query.TransactionControl, session string) []byte {
		body, err := proto.Marshal(&Ydb_Query.ExecuteQueryRequest{SessionId: session, TxControl: control,
			Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "select"}}})
		if err != nil {
			t.Fatal(err)
		}
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	send := func(session string, control *Ydb_Query.TransactionControl) Ydb.StatusIds_StatusCode {
		t.Helper()
		whole := request(control, session)
		cut := 5 + 2 + len(session) + 1 // the session, and the tag of what follows
		answer, body := framesOf(t, h.addr, protocol.QueryService+"ExecuteQuery",
			[]string{"x-client", "a", "x-ydb-database", "/local", "x-ydb-auth-ticket", "caller's"}, nil, whole[:cut], whole[cut:])
		part := new(Ydb_Query.ExecuteQueryResponsePart)
		if len(body) < 5 || proto.Unmarshal(body[5:][:binary.BigEndian.Uint32(body[1:])], part) != nil {
			t.Fatalf("answered %v and %d bytes", answer, len(body))
		}
		return part.GetStatus()
	}
	for refused := false; !refused; { // the quota is used up
		refused = send(other.id, nil) == Ydb.StatusIds_OVERLOADED
	}
	if got := send(s.id, inTx(tx, false)); got != success {
		t.Errorf("a statement of the open transaction: %v", got)
	}
}
