package upstream

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"
)

func text(s string) *Ydb.TypedValue {
	return &Ydb.TypedValue{Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UTF8}},
		Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}}}
}

// A statement is encoded as package proto encodes its ExecuteQueryRequest, whatever it has.
func TestStatementsAreEncoded(t *testing.T) {
	codec := measuringCodec{encoding.GetCodecV2("proto")}
	content := func(text string) *Ydb_Query.ExecuteQueryRequest_QueryContent {
		return &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: text},
		}
	}
	many := map[string]*Ydb.TypedValue{"$a": text(""), "$" + strings.Repeat("b", 200): text(strings.Repeat("c", 100)),
		"$d": text(strings.Repeat("e", 1<<20)), "$f": text("g")}
	for name, tc := range map[string]struct {
		st   Statement
		want *Ydb_Query.ExecuteQueryRequest
	}{
		"nothing": {Statement{}, &Ydb_Query.ExecuteQueryRequest{Query: content("")}},
		"without parameters": {Statement{Text: "SELECT 1", Stats: Ydb_Query.StatsMode_STATS_MODE_FULL, Part: 1 << 20, Pool: "p"},
			&Ydb_Query.ExecuteQueryRequest{Query: content("SELECT 1"), StatsMode: Ydb_Query.StatsMode_STATS_MODE_FULL,
				ResponsePartLimitBytes: 1 << 20, PoolId: "p"}},
		"within a transaction": {Statement{Text: strings.Repeat("x", 200), Within: true, TxID: "tx", Explain: true, Part: -1},
			&Ydb_Query.ExecuteQueryRequest{Query: content(strings.Repeat("x", 200)),
				ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN, ResponsePartLimitBytes: -1,
				TxControl: &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: "tx"}}}},
		"that commits": {Statement{Within: true, TxID: "tx", Commit: true},
			&Ydb_Query.ExecuteQueryRequest{Query: content(""),
				TxControl: &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: "tx"}, CommitTx: true}}},
		"that begins": {Statement{Begin: serializable},
			&Ydb_Query.ExecuteQueryRequest{Query: content(""),
				TxControl: &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: serializable}}}},
		"that begins and commits": {Statement{Begin: snapshot, Commit: true, Params: ParamsOf(many)},
			&Ydb_Query.ExecuteQueryRequest{Query: content(""), Parameters: many,
				TxControl: &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: snapshot},
					CommitTx: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.want.SessionId = "s"; tc.want.ExecMode == 0 {
				tc.want.ExecMode = Ydb_Query.ExecMode_EXEC_MODE_EXECUTE
			}
			same := func(how string, got []byte, err error) { // its oneofs stand elsewhere
				t.Helper()
				var back Ydb_Query.ExecuteQueryRequest
				if err == nil {
					err = proto.Unmarshal(got, &back)
				}
				if err != nil || !proto.Equal(&back, tc.want) || len(got) != proto.Size(tc.want) {
					t.Errorf("%s: %.200x, %v; want %.200v", how, got, err, tc.want)
				}
			}
			m := measured{message: &sending{tc.st, "s"}}
			got, err := codec.Marshal(&m)
			same("marshalled", got.Materialize(), err)
			if m.size != got.Len() {
				t.Errorf("%d bytes are counted of %d", m.size, got.Len())
			}
			direct, err := (&measured{message: &sending{tc.st, "s"}}).AppendMessage([]byte("before"))
			rest, ok := bytes.CutPrefix(direct, []byte("before"))
			if same("appended", rest, err); !ok {
				t.Errorf("appended: %.200x is before", direct)
			}
		})
	}
	bad := measured{message: &sending{Statement{Params: ParamsOf(map[string]*Ydb.TypedValue{"$a": text("\xff")})}, "s"}}
	if _, err := codec.Marshal(&bad); err == nil {
		t.Error("text that is not UTF-8 was encoded")
	}
}

// A statement of a transaction without an id is not sent: the node would commit it as one of its own.
func TestNoStatementWithinNoTransaction(t *testing.T) {
	s := new(Session)
	if _, err := s.Execute(t.Context(), Statement{Text: "UPSERT", Within: true, Commit: true}); !errors.Is(err, errNoTx) {
		t.Errorf("got %v; want %v", err, errNoTx)
	}
	if b, err := (&sending{Statement{Within: true}, "s"}).append(nil); err != nil || !bytes.Contains(b, []byte{fieldTxControl<<3 | 2, 0}) {
		t.Errorf("%x, %v; want a control in it", b, err)
	}
}

// A parameter is encoded as package proto would, whatever its type and its value are.
func TestParamsAreEncoded(t *testing.T) {
	for i, v := range []*Ydb.Value{
		{}, {Value: &Ydb.Value_BoolValue{BoolValue: true}}, {Value: &Ydb.Value_BoolValue{}},
		{Value: &Ydb.Value_Int32Value{Int32Value: -1}}, {Value: &Ydb.Value_Uint32Value{Uint32Value: math.MaxUint32}},
		{Value: &Ydb.Value_Int64Value{Int64Value: math.MinInt64}}, {Value: &Ydb.Value_Uint64Value{Uint64Value: 1}},
		{Value: &Ydb.Value_FloatValue{FloatValue: 1.5}}, {Value: &Ydb.Value_DoubleValue{DoubleValue: -1.5}},
		{Value: &Ydb.Value_BytesValue{BytesValue: []byte("\xff")}}, {Value: &Ydb.Value_BytesValue{}}, {Value: &Ydb.Value_TextValue{}},
		{Value: &Ydb.Value_TextValue{TextValue: strings.Repeat("x", 200)}}, {Value: &Ydb.Value_NullFlagValue{}},
		{Value: &Ydb.Value_NestedValue{NestedValue: &Ydb.Value{}}}, {Value: &Ydb.Value_Low_128{Low_128: 1}, High_128: 2},
		{Items: []*Ydb.Value{{}}}, {Pairs: []*Ydb.ValuePair{{}}},
	} {
		for _, typ := range []*Ydb.Type{{}, {Type: &Ydb.Type_TypeId{}},
			{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_JSON_DOCUMENT}}, {Type: &Ydb.Type_VoidType{}},
			{
				Type: &Ydb.Type_OptionalType{
					OptionalType: &Ydb.OptionalType{Item: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}}},
				},
			}} {
			want, err := proto.Marshal(&Ydb_Query.ExecuteQueryRequest{Parameters: map[string]*Ydb.TypedValue{"$a": {Type: typ, Value: v}}})
			if err != nil {
				t.Fatal(err)
			}
			p := new(Params)
			p.Add("$a", &Ydb.TypedValue{Type: typ, Value: v})
			if !bytes.Equal(p.Encoded(), want) || p.err != nil {
				t.Errorf("value %d of type %v: %x, %v; want %x", i, typ, p.Encoded(), p.err, want)
			}
			if name, got := p.At(0); name != "$a" || got != typ || p.Len() != 1 {
				t.Errorf("%s of type %v, of %d; want $a of %v", name, got, p.Len(), typ)
			}
		}
	}
}

// A scalar by its bytes is the parameter that its value is, and one that was dropped leaves nothing.
func TestScalarParams(t *testing.T) {
	uint64Type := &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}}
	optional := &Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: uint64Type}}}
	value := &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: 5}}
	for _, declared := range []*Ydb.Type{nil, uint64Type, optional} {
		p, want := new(Params), new(Params)
		want.Add("$b", text("before"))
		p.Add("$b", text("before"))
		size := len(p.Encoded())
		if p.AddScalar("$a", []byte{0x32, 1, 'x'}, uint64Type) || p.Len() != 1 || len(p.Encoded()) != size {
			t.Fatalf("text was added as a number: %x", p.Encoded())
		}
		for range 2 {
			if !p.AddScalar("$a", []byte{0x20, 5}, declared) {
				t.Fatal("a number was not added")
			}
			if p.Len() == 2 && want.Len() == 1 {
				p.Truncate(1)
				if p.Len() != 1 || len(p.Encoded()) != size {
					t.Fatalf("%d are left, %x", p.Len(), p.Encoded())
				}
				typ := declared
				if typ == nil {
					typ = uint64Type
				}
				want.Add("$a", &Ydb.TypedValue{Type: typ, Value: value})
			}
		}
		if !bytes.Equal(p.Encoded(), want.Encoded()) {
			t.Errorf("%x; want %x", p.Encoded(), want.Encoded())
		}
	}
}

// Every field that a statement may have is one that is encoded, or one that the sidecar asks nothing of.
func TestFieldsOfAStatement(t *testing.T) {
	for m, want := range map[proto.Message][]int{
		&Ydb_Query.ExecuteQueryRequest{}: {fieldSession, fieldExecMode, fieldTxControl, fieldQuery, fieldParameters,
			fieldStats, 8, fieldPartLimit, fieldPool, 11, 12, 13, 14},
		&Ydb_Query.TransactionControl{}: {fieldTxID, fieldBeginTx, fieldCommitTx},
		&Ydb_Query.QueryContent{}:       {fieldSyntax, fieldText},
		&Ydb.TypedValue{}:               {fieldTyped, fieldValue},
	} {
		var got []int
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			got = append(got, int(fields.Get(i).Number()))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%T has the fields %v; %v are encoded", m, got, want)
		}
	}
}

// BenchmarkStatement encodes the statement of a point read.
func BenchmarkStatement(b *testing.B) {
	name, value := "$id", []byte{0x20, 1}
	b.ReportAllocs()
	to := make([]byte, 0, 1<<10)
	for b.Loop() {
		p := new(Params)
		p.AddScalar(name, value, nil)
		st := sending{Statement{Text: "SELECT id, v FROM t WHERE id = $id", Params: p, Part: 1 << 20}, strings.Repeat("s", 90)}
		if _, err := st.append(to); err != nil {
			b.Fatal(err)
		}
	}
}
