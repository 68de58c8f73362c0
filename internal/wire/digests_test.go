package wire

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/statements"
)

// Statements of SDKs count by digest, in sessions and without, also those of prepared queries.
func TestStatementsCountByDigest(t *testing.T) {
	r := statements.New(statements.Config{})
	h := newHouseWith(t, 2, nil, nil, nil, func(d *Deps) { d.Statements = r })
	a := h.guest("a")
	s := a.session()
	for _, text := range []string{"select 1", "SELECT 2", "select  'three'"} {
		s.must(success, text, nil)
	}
	s.must(Ydb.StatusIds_SCHEME_ERROR, "fail SCHEME_ERROR", nil)
	if st, _, err := a.run(h.ctx, "", "select", nil); st != success || err != nil {
		t.Fatal(st, err)
	}
	p, err := s.table.PrepareDataQuery(s.with(h.ctx),
		&Ydb_Table.PrepareDataQueryRequest{SessionId: s.id, YqlText: "select prepared", OperationParams: &Ydb_Operations.OperationParams{}})
	result := new(Ydb_Table.PrepareQueryResult)
	if err != nil || p.GetOperation().GetResult().UnmarshalTo(result) != nil {
		t.Fatal(p, err)
	}
	for _, query := range []*Ydb_Table.Query{{Query: &Ydb_Table.Query_Id{Id: result.GetQueryId()}},
		{Query: &Ydb_Table.Query_YqlText{YqlText: "select prepared"}}} {
		if _, err := s.table.ExecuteDataQuery(s.with(h.ctx), &Ydb_Table.ExecuteDataQueryRequest{SessionId: s.id, Query: query,
			TxControl: &Ydb_Table.TransactionControl{CommitTx: true, TxSelector: &Ydb_Table.TransactionControl_BeginTx{
				BeginTx: &Ydb_Table.TransactionSettings{}}}}); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]statements.Row{}
	h.eventually("all calls are counted", func() string {
		r.Gather(time.Now())
		st := r.State(statements.Query{Limit: 100})
		for _, row := range st.Rows {
			got[row.Digest] = row
		}
		if st.All.Calls < 7 {
			return fmt.Sprint(st.All.Calls, " calls; want 7")
		}
		return ""
	})
	for text, want := range map[string]statements.Figures{
		"select 1": {Calls: 3}, "fail SCHEME_ERROR": {Calls: 1, Failed: 1}, "select": {Calls: 1}, "select prepared": {Calls: 2},
	} {
		row := got[statements.Digest(text).String()]
		f := row.Start
		if f.Calls != want.Calls || f.Failed != want.Failed || f.Failed != f.Statuses["SCHEME_ERROR"] || f.TookMS <= 0 ||
			f.HopMS <= 0 || f.Bytes == 0 {
			t.Errorf("%s: %+v", text, row)
		}
		delete(got, row.Digest)
	}
	if len(got) != 0 {
		t.Errorf("and %v", got)
	}
}

// What is looked at of a message.
func TestTextsOfMessages(t *testing.T) {
	const text = "SELECT a FROM t"
	syntax := Ydb_Query.Syntax_SYNTAX_YQL_V1
	execute := func(text string, session int) []byte {
		b, err := proto.Marshal(&Ydb_Query.ExecuteQueryRequest{SessionId: strings.Repeat("s", session),
			Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: text, Syntax: syntax}}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	f := &frames{series: newInstruments(nil, statements.New(statements.Config{})).series()}
	whole := execute(text, 50)
	syntax = protocol.SyntaxPG
	postgres := execute("SELECT $$a secret$$", 50)
	for name, c := range map[string]struct {
		message []byte
		want    statements.ID
	}{
		"whole":        {whole, statements.Digest(text)},
		"cut off":      {whole[:len(whole)-1], 0},
		"without text": {execute("", 50), 0},
		"empty":        {nil, 0},
		"PostgreSQL's": {postgres, 0},
	} {
		k := &call{}
		k.method = methodExecuteQuery
		if f.series.look(k, c.message); k.statement.ID != c.want || k.statement == (statements.Ref{}) {
			t.Errorf("%s: got %v, want %v", name, k.statement, c.want)
		}
	}
	k := &call{}
	k.method = prepareQuery
	if f.series.look(k, whole); k.statement != (statements.Ref{}) {
		t.Errorf("a call that runs no statement has %v", k.statement)
	}
}
