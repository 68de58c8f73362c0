package upstream

import (
	"bytes"
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
	return &Ydb.TypedValue{Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UTF8}}, Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}}}
}

// A statement is encoded as package proto would, whatever it has.
func TestStatementsAreEncoded(t *testing.T) {
	codec := measuringCodec{encoding.GetCodecV2("proto")}
	for name, r := range map[string]*Ydb_Query.ExecuteQueryRequest{
		"nothing": {},
		"without parameters": {SessionId: "s", ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}, StatsMode: Ydb_Query.StatsMode_STATS_MODE_FULL, ResponsePartLimitBytes: 1 << 20, PoolId: "p"},
		"with all fields": {SessionId: "s", ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN, TxControl: &Ydb_Query.TransactionControl{
			TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: "tx"}}, Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{
			Syntax: 2, Text: strings.Repeat("x", 200)}}, Parameters: map[string]*Ydb.TypedValue{"": nil},
			StatsMode: Ydb_Query.StatsMode_STATS_MODE_BASIC, ConcurrentResultSets: true, ResponsePartLimitBytes: -1, PoolId: "p"},
		"with what is left to package proto": {SessionId: "s", StatsPeriodMs: 1, Parameters: map[string]*Ydb.TypedValue{"$a": text("b")}},
		"with empty messages":                {TxControl: &Ydb_Query.TransactionControl{}, Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{}},
		"with one":                           {SessionId: "s", Parameters: map[string]*Ydb.TypedValue{"$a": text("b")}},
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
	for i, v := range []*Ydb.Value{
		nil, {}, {Value: &Ydb.Value_BoolValue{BoolValue: true}}, {Value: &Ydb.Value_BoolValue{}},
		{Value: &Ydb.Value_Int32Value{Int32Value: -1}}, {Value: &Ydb.Value_Uint32Value{Uint32Value: math.MaxUint32}},
		{Value: &Ydb.Value_Int64Value{Int64Value: math.MinInt64}}, {Value: &Ydb.Value_Uint64Value{Uint64Value: 1}},
		{Value: &Ydb.Value_FloatValue{FloatValue: 1.5}}, {Value: &Ydb.Value_DoubleValue{DoubleValue: -1.5}},
		{Value: &Ydb.Value_BytesValue{BytesValue: []byte("\xff")}}, {Value: &Ydb.Value_BytesValue{}}, {Value: &Ydb.Value_TextValue{}},
		{Value: &Ydb.Value_TextValue{TextValue: strings.Repeat("x", 200)}}, {Value: &Ydb.Value_NullFlagValue{}},
		{Value: &Ydb.Value_NestedValue{NestedValue: &Ydb.Value{}}}, {Value: &Ydb.Value_Low_128{Low_128: 1}, High_128: 2},
		{Value: &Ydb.Value_Uint64Value{Uint64Value: 1}, High_128: 2}, {Value: &Ydb.Value_BoolValue{}, VariantIndex: 1},
		{Items: []*Ydb.Value{{}}}, {Pairs: []*Ydb.ValuePair{{}}},
	} {
		for _, typ := range []*Ydb.Type{nil, {}, {Type: &Ydb.Type_TypeId{}}, {Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_JSON_DOCUMENT}}, {Type: &Ydb.Type_VoidType{}}} {
			r := &Ydb_Query.ExecuteQueryRequest{Parameters: map[string]*Ydb.TypedValue{"$a": {Type: typ, Value: v}}}
			got, err := appendStatement(nil, r)
			want, err2 := proto.Marshal(r)
			if err != nil || err2 != nil || !bytes.Equal(got, want) {
				t.Errorf("value %d of type %v: %x, %v; want %x, %v", i, typ, got, err, want, err2)
			}
		}
	}
	bad := measured{message: &Ydb_Query.ExecuteQueryRequest{Parameters: map[string]*Ydb.TypedValue{"$a": text("\xff")}}}
	if _, err := codec.Marshal(&bad); err == nil {
		t.Error("text that is not UTF-8 was encoded")
	}
}

// Every field that a statement may have is one that is encoded.
func TestFieldsOfAStatement(t *testing.T) {
	for m, want := range map[proto.Message][]int{
		&Ydb_Query.ExecuteQueryRequest{}: {fieldSession, fieldExecMode, fieldTxControl, fieldQuery, fieldParameters, fieldStats, fieldConcurrent, fieldPartLimit, fieldPool, 11, 12, 13, 14},
		&Ydb_Query.QueryContent{}:        {fieldSyntax, fieldText},
		&Ydb.TypedValue{}:                {fieldTyped, fieldValue},
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
	r := &Ydb_Query.ExecuteQueryRequest{SessionId: strings.Repeat("s", 90), ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query:                  &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: "SELECT id, v FROM t WHERE id = $id"}},
		Parameters:             map[string]*Ydb.TypedValue{"$id": {Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}}, Value: &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: 1}}}},
		ResponsePartLimitBytes: 1 << 20}
	for name, f := range map[string]func([]byte) ([]byte, error){
		"here":          func(to []byte) ([]byte, error) { return appendStatement(to, r) },
		"package proto": func(to []byte) ([]byte, error) { return proto.MarshalOptions{}.MarshalAppend(to, r) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			to := make([]byte, 0, 1<<10)
			for b.Loop() {
				if _, err := f(to); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
