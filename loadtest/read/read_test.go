package read

import (
	"context"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

// recordNode answers every read with one record.
type recordNode struct {
	Ydb_Table_V1.TableServiceClient
	answer traffic.AppRecord
	asked  int
	sent   *Ydb_Table.ExecuteDataQueryRequest
}

func (n *recordNode) ExecuteDataQuery(
	_ context.Context, r *Ydb_Table.ExecuteDataQueryRequest, _ ...grpc.CallOption,
) (*Ydb_Table.ExecuteDataQueryResponse, error) {
	n.asked++
	n.sent = r
	found, err := anypb.New(&Ydb_Table.ExecuteQueryResult{ResultSets: []*Ydb.ResultSet{{Rows: []*Ydb.Value{{Items: []*Ydb.Value{
		{Value: &Ydb.Value_TextValue{TextValue: n.answer.UUID}}, {Value: &Ydb.Value_BytesValue{BytesValue: n.answer.Payload}}}}}}}})
	return &Ydb_Table.ExecuteDataQueryResponse{Operation: &Ydb_Operations.Operation{Status: Ydb.StatusIds_SUCCESS, Result: found}}, err
}

// Ten reads take one session, which comes back whatever they found; a row that is another's is an error.
func TestReadsWithOneSession(t *testing.T) {
	right := traffic.MakeRecord(3, 100)
	for _, c := range []struct {
		name   string
		answer traffic.AppRecord
		reads  int
		want   readTimes
		asked  int
	}{
		{"one", right, 1, readTimes{gets: 1, reads: 1}, 1},
		{"ten", right, 10, readTimes{gets: 1, reads: 10}, 10},
		{"another_row", traffic.MakeRecord(4, 100), 10, readTimes{}, 1},
	} {
		node := &recordNode{answer: c.answer}
		p := &traffic.RecordSessions{Idle: make(chan traffic.RecordSession, 1)}
		p.Release(traffic.RecordSession{Client: node, ID: "s"})
		var got readTimes
		err := readOn(t.Context(), p, c.reads, func() traffic.AppRecord { return right }, got.note)
		if (err == nil) != (c.want.reads > 0) || got.gets != c.want.gets || got.reads != c.want.reads ||
			node.asked != c.asked || len(p.Idle) != 1 {
			t.Errorf("%s: %v, got %d, read %d, asked %d, %d sessions idle", c.name, err, got.gets, got.reads, node.asked, len(p.Idle))
		}
		if node.sent.SessionId != "s" || !node.sent.TxControl.CommitTx || node.sent.Parameters["$uuid"].Value.GetTextValue() != right.UUID {
			t.Errorf("%s: sent %v", c.name, node.sent)
		}
	}
}

func TestReadTimes(t *testing.T) {
	var a, b, all readTimes
	if got := all.figures(); got != nil {
		t.Errorf("nothing read: %v", got)
	}
	a.note(2*time.Microsecond, 10*time.Microsecond)
	a.note(gotBefore, 30*time.Microsecond)
	b.note(4*time.Microsecond, 20*time.Microsecond)
	all.add(a)
	all.add(b)
	for name, want := range (lab.Figures{getMean: 3e3, getMax: 4e3, dataMean: 20e3, dataMax: 30e3}) {
		if got := all.figures()[name]; got != want {
			t.Errorf("%s is %v; want %v", name, got, want)
		}
	}
}
