package upstream

import (
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"
)

func text(s string) *Ydb.TypedValue {
	return &Ydb.TypedValue{Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UTF8}}, Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}}}
}

// A statement is encoded as package proto would, whatever it has.
func TestStatementsAreEncoded(t *testing.T) {
	codec := measuringCodec{encoding.GetCodecV2("proto")}
	for name, r := range map[string]*Ydb_Query.ExecuteQueryRequest{
		"nothing": {},
		"without parameters": {SessionId: "s", ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}, StatsMode: Ydb_Query.StatsMode_STATS_MODE_FULL, ResponsePartLimitBytes: 1 << 20, PoolId: "p"},
		"with one": {SessionId: "s", Parameters: map[string]*Ydb.TypedValue{"$a": text("b")}},
		"with many, of all sizes": {SessionId: "s", TxControl: &Ydb_Query.TransactionControl{CommitTx: true}, Parameters: map[string]*Ydb.TypedValue{
			"$a": text(""), "$" + strings.Repeat("b", 200): text(strings.Repeat("c", 100)), "$d": text(strings.Repeat("e", 1<<20)), "": {}}},
	} {
		t.Run(name, func(t *testing.T) {
			before := proto.Clone(r)
			m := measured{message: r}
			got, err := codec.Marshal(&m)
			if err != nil {
				t.Fatal(err)
			}
			var back Ydb_Query.ExecuteQueryRequest
			if err := proto.Unmarshal(got.Materialize(), &back); err != nil || !proto.Equal(&back, before) || !proto.Equal(r, before) {
				t.Errorf("got %v, %v, and the statement is %v; want %v", &back, err, r, before)
			}
			if want := proto.Size(r); m.size != want || got.Len() != want {
				t.Errorf("got %d octets, and %d counted; want %d", got.Len(), m.size, want)
			}
		})
	}
	bad := measured{message: &Ydb_Query.ExecuteQueryRequest{Parameters: map[string]*Ydb.TypedValue{"$a": text("\xff")}}}
	if _, err := codec.Marshal(&bad); err == nil {
		t.Error("text that is not UTF-8 was encoded")
	}
}
