package wire

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// PrepareDataQuery gives out ids that no node knows afterwards.
func (t tableNode) PrepareDataQuery(
	ctx context.Context, r *Ydb_Table.PrepareDataQueryRequest,
) (*Ydb_Table.PrepareDataQueryResponse, error) {
	s, _, st := t.q.enter(ctx, r.GetSessionId(), "")
	if s == nil {
		return &Ydb_Table.PrepareDataQueryResponse{Operation: operationOf(nil, st, nil)}, nil
	}
	defer t.q.leave(s)
	return &Ydb_Table.PrepareDataQueryResponse{
		Operation: operationOf(nil, st, &Ydb_Table.PrepareQueryResult{QueryId: fmt.Sprintf("prepared %d", len(r.GetYqlText()))}),
	}, nil
}

func TestPreparedQueriesGoAsTexts(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	prepare := func(text string) string {
		r, err := s.table.PrepareDataQuery(
			s.with(h.ctx),
			&Ydb_Table.PrepareDataQueryRequest{SessionId: s.id, YqlText: text, OperationParams: &Ydb_Operations.OperationParams{}},
		)
		result := new(Ydb_Table.PrepareQueryResult)
		if err != nil || r.GetOperation().GetResult().UnmarshalTo(result) != nil || result.GetQueryId() == "" {
			t.Fatal(r, err)
		}
		return result.GetQueryId()
	}
	run := func(id string, parameters int) Ydb.StatusIds_StatusCode {
		values := map[string]*Ydb.TypedValue{}
		for i := range parameters {
			values[fmt.Sprint("$", i)] = &Ydb.TypedValue{
				Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: strings.Repeat("v", 1000)}},
			}
		}
		r, err := s.table.ExecuteDataQuery(
			s.with(h.ctx),
			&Ydb_Table.ExecuteDataQueryRequest{SessionId: s.id,
				Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_Id{Id: id}}, Parameters: values,
				TxControl: &Ydb_Table.TransactionControl{CommitTx: true,
					TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{}}}},
		)
		if err != nil {
			t.Fatal(err)
		}
		return r.GetOperation().GetStatus()
	}
	good, bad, long := prepare("select"), prepare("fail SCHEME_ERROR"), prepare("select "+strings.Repeat("x", 60_000))
	for _, parameters := range []int{0, 1, 100} {
		if st := run(good, parameters); st != success {
			t.Error(st)
		}
		if st := run(bad, parameters); st != Ydb.StatusIds_SCHEME_ERROR { // the node has read the text
			t.Error(st)
		}
		if st := run(long, parameters); st != success {
			t.Error(st)
		}
		if st := run("never prepared", parameters); st != Ydb.StatusIds_NOT_FOUND {
			t.Error(st)
		}
	}
	prepare(strings.Repeat("y", 200_000)) // too long to be kept, but prepared all the same
	h.resting()
}

func TestTextsAreBounded(t *testing.T) {
	k := texts{most: 4 << 20}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 200 {
				id := fmt.Sprint(i, " ", n)
				k.keep(id, strings.Repeat("x", maxText))
				k.keep(id, "shorter")
				k.keep(id, strings.Repeat("x", maxText))
			}
		})
	}
	wg.Wait()
	size := 0
	for id, text := range k.byID {
		size += perText + len(id) + len(text)
	}
	if size != k.size || size > k.most || size < k.most-2*maxText {
		t.Errorf("%d bytes, counted as %d; at most %d", size, k.size, k.most)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	many := texts{most: k.most}
	for i := range 60_000 {
		many.keep(fmt.Sprintf("ydb://preparedqueryid/4?id=%044d", i), strings.Clone("x"))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if got := int(after.HeapAlloc - before.HeapAlloc); got > k.most*5/4 {
		t.Errorf("short texts take %d bytes; at most %d", got, k.most)
	}
	runtime.KeepAlive(&many)
	k.keep("", "x")
	if _, ok := k.find(nil); ok {
		t.Error("no id is kept")
	}
}

func TestFieldStart(t *testing.T) {
	message := bytesOf(t,
		&Ydb_Table.ExecuteDataQueryRequest{SessionId: "s", Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_Id{Id: "id"}}, CollectStats: 1})
	for n := range len(message) + 1 {
		got, ok := protocol.FieldStart(message[:n], protocol.QueryOfExecuteDataQuery)
		var want []byte
		if at := strings.Index(string(message), "\x12\x02id"); n >= at {
			want = message[at:min(n, at+4)]
		} else if ok {
			t.Errorf("after %d bytes: %q", n, got)
			continue
		} else {
			continue
		}
		if !ok || string(got) != string(want) {
			t.Errorf("after %d bytes: %q, %v; want %q", n, got, ok, want)
		}
	}
}
