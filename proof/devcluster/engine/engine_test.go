package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
)

// Of requests that come at the same time with the same text one compiles it.
func TestCompilesOnceForCallsAtATime(t *testing.T) {
	db := sampleDB(t, "")
	cache := NewPlanCache(1000)
	const texts, callers = 200, 8
	var compiled atomic.Int64
	for i := range texts {
		request := Request{Text: fmt.Sprintf("SELECT title AS t%d FROM series", i), Database: "/local", Cache: cache}
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				<-start
				st, err := db.Execute(context.Background(), request, nothing)
				if err != nil {
					t.Error(err)
				}
				if st.Compiled {
					compiled.Add(1)
				}
			})
		}
		close(start)
		wg.Wait()
	}
	if compiled.Load() != texts || cache.Compilations() != texts {
		t.Errorf("%d texts: compiled %d times, counter %d", texts, compiled.Load(), cache.Compilations())
	}
}

// A thousand calls with other values compile once; other types, another text or another
// cache compile again.
func TestCompilesOncePerTextAndTypes(t *testing.T) {
	db := sampleDB(t, "")
	cache := NewPlanCache(10)
	call := func(req Request) bool {
		req.Cache, req.Database = cache, "/local"
		st, err := db.Execute(context.Background(), req, nothing)
		if err != nil {
			t.Fatal(err)
		}
		return st.Compiled
	}
	const declared = "DECLARE $id AS Uint64; SELECT title FROM series WHERE id = $id"
	compiled := 0
	for i := range 1000 {
		if call(Request{Text: declared, Params: params(t, fmt.Sprintf("$id = %dul", i))}) {
			compiled++
		}
	}
	if compiled != 1 || cache.Compilations() != 1 {
		t.Errorf("declared: compiled %d times, counter %d", compiled, cache.Compilations())
	}
	const inferred = "SELECT title FROM series WHERE id = $id"
	for i := range 100 {
		call(Request{Text: inferred, Inferred: true, Params: params(t, fmt.Sprintf("$id = %dul", i))})
		call(Request{Text: inferred, Inferred: true, Params: params(t, fmt.Sprintf("$id = %d", i))})
	}
	if got := cache.Compilations(); got != 3 {
		t.Errorf("two types of one parameter: counter %d, want 3", got)
	}
	mustRun(t, db, "ALTER TABLE series ADD COLUMN extra Int32")
	if !call(Request{Text: declared, Params: params(t, "$id = 1ul")}) {
		t.Error("a plan outlived its table")
	}
	mustRun(t, db, "ALTER TABLE episodes ADD COLUMN extra Int32")
	if call(Request{Text: declared, Params: params(t, "$id = 1ul")}) {
		t.Error("another table's change made the plan new")
	}
	for i := range 50 {
		call(Request{Text: fmt.Sprintf("SELECT %d", i)})
	}
	if n := cache.used.Len(); n != 10 || len(cache.texts) != 10 {
		t.Errorf("the cache holds %d texts (%d), want 10", n, len(cache.texts))
	}
}

// every type of the wire, with the exact form of its values
func wireValues() []*Ydb.TypedValue {
	prim := func(id Ydb.Type_PrimitiveTypeId) *Ydb.Type { return &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}} }
	opt := func(t *Ydb.Type) *Ydb.Type {
		return &Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: t}}}
	}
	i32 := func(v int32) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_Int32Value{Int32Value: v}} }
	u32 := func(v uint32) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_Uint32Value{Uint32Value: v}} }
	i64 := func(v int64) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_Int64Value{Int64Value: v}} }
	u64 := func(v uint64) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: v}} }
	text := func(v string) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: v}} }
	bytes := func(v string) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_BytesValue{BytesValue: []byte(v)}} }
	wide := func(hi, lo uint64) *Ydb.Value {
		return &Ydb.Value{Value: &Ydb.Value_Low_128{Low_128: lo}, High_128: hi}
	}
	nested := func(v *Ydb.Value) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_NestedValue{NestedValue: v}} }
	items := func(v ...*Ydb.Value) *Ydb.Value { return &Ydb.Value{Items: v} }
	null := &Ydb.Value{Value: &Ydb.Value_NullFlagValue{NullFlagValue: structpb.NullValue_NULL_VALUE}}
	void := &Ydb.Type{Type: &Ydb.Type_VoidType{}}
	int32T, utf8T := prim(Ydb.Type_INT32), prim(Ydb.Type_UTF8)
	tuple := &Ydb.TupleType{Elements: []*Ydb.Type{int32T, utf8T}}
	strct := &Ydb.StructType{Members: []*Ydb.StructMember{{Name: "a", Type: int32T}, {Name: "b", Type: opt(utf8T)}}}
	pg := &Ydb.Type{Type: &Ydb.Type_PgType{PgType: &Ydb.PgType{Oid: 23, Typlen: 4, Typmod: -1, TypeName: "pgint4"}}}
	variant := &Ydb.Type{Type: &Ydb.Type_VariantType{VariantType: &Ydb.VariantType{Type: &Ydb.VariantType_TupleItems{TupleItems: tuple}}}}
	tagged := &Ydb.Type{Type: &Ydb.Type_TaggedType{TaggedType: &Ydb.TaggedType{Tag: "t", Type: int32T}}}
	dict := func(k, v *Ydb.Type) *Ydb.Type {
		return &Ydb.Type{Type: &Ydb.Type_DictType{DictType: &Ydb.DictType{Key: k, Payload: v}}}
	}
	list := func(t *Ydb.Type) *Ydb.Type {
		return &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: t}}}
	}
	decimal := &Ydb.Type{Type: &Ydb.Type_DecimalType{DecimalType: &Ydb.DecimalType{Precision: 22, Scale: 9}}}
	of := func(t *Ydb.Type, v *Ydb.Value) *Ydb.TypedValue { return &Ydb.TypedValue{Type: t, Value: v} }
	return []*Ydb.TypedValue{
		of(prim(Ydb.Type_BOOL), &Ydb.Value{Value: &Ydb.Value_BoolValue{BoolValue: true}}),
		of(prim(Ydb.Type_INT8), i32(-128)), of(prim(Ydb.Type_UINT8), u32(255)), of(prim(Ydb.Type_INT16), i32(-32768)),
		of(prim(Ydb.Type_UINT16), u32(65535)),
		of(int32T, i32(math.MinInt32)), of(prim(Ydb.Type_UINT32), u32(math.MaxUint32)),
		of(prim(Ydb.Type_INT64), i64(math.MinInt64)), of(prim(Ydb.Type_UINT64), u64(math.MaxUint64)),
		of(prim(Ydb.Type_FLOAT), &Ydb.Value{Value: &Ydb.Value_FloatValue{FloatValue: 1.1}}),
		of(prim(Ydb.Type_DOUBLE), &Ydb.Value{Value: &Ydb.Value_DoubleValue{DoubleValue: math.Inf(-1)}}),
		of(prim(Ydb.Type_DATE), u32(49672)), of(prim(Ydb.Type_DATETIME), u32(4291747199)),
		of(prim(Ydb.Type_TIMESTAMP), u64(4291747199999999)), of(prim(Ydb.Type_INTERVAL), i64(-5)),
		of(prim(Ydb.Type_DATE32), i32(-53375809)), of(prim(Ydb.Type_DATETIME64), i64(-1)),
		of(prim(Ydb.Type_TIMESTAMP64), i64(-1)), of(prim(Ydb.Type_INTERVAL64), i64(math.MaxInt64/2)),
		of(prim(Ydb.Type_TZ_DATE), text("2020-01-01,Europe/Moscow")),
		of(prim(Ydb.Type_TZ_DATETIME), text("2020-01-01T00:00:00,GMT")),
		of(prim(Ydb.Type_TZ_TIMESTAMP), text("2020-01-01T00:00:00.5,GMT")),
		of(prim(Ydb.Type_STRING), bytes("\xff\x00")), of(utf8T, text("ü\x00")),
		of(prim(Ydb.Type_YSON), bytes("<a=1>[]")), of(prim(Ydb.Type_JSON), text(` {"b" : 1, "a":2}`)),
		of(prim(Ydb.Type_JSON_DOCUMENT), text("[1]")), of(prim(Ydb.Type_UUID), wide(1<<63, 42)),
		of(prim(Ydb.Type_DYNUMBER), text("-12.30e5")),
		of(decimal, wide(math.MaxUint64, math.MaxUint64)), of(decimal, wide(0, 1_500_000_000)),
		of(opt(int32T), i32(5)), of(opt(int32T), null), of(opt(opt(int32T)), null), of(opt(opt(int32T)), nested(null)),
		of(opt(opt(int32T)), i32(7)),
		of(opt(opt(opt(int32T))), nested(nested(null))), of(opt(list(opt(int32T))), items(null, i32(1))),
		of(list(int32T), items()), of(list(int32T), items(i32(1), i32(2))),
		of(&Ydb.Type{Type: &Ydb.Type_TupleType{TupleType: tuple}}, items(i32(1), text("x"))),
		of(&Ydb.Type{Type: &Ydb.Type_StructType{StructType: strct}}, items(i32(1), null)),
		of(dict(utf8T, int32T), &Ydb.Value{Pairs: []*Ydb.ValuePair{{Key: text("a"), Payload: i32(1)}, {Key: text("b"), Payload: i32(2)}}}),
		of(dict(int32T, void), &Ydb.Value{Pairs: []*Ydb.ValuePair{{Key: i32(1), Payload: null}}}),
		of(variant, &Ydb.Value{Value: &Ydb.Value_NestedValue{NestedValue: text("v")}, VariantIndex: 1}), of(opt(variant), nested(i32(3))),
		of(tagged, i32(4)), of(opt(tagged), null), of(void, null), of(&Ydb.Type{Type: &Ydb.Type_NullType{}}, null),
		of(&Ydb.Type{Type: &Ydb.Type_EmptyListType{}}, items()), of(&Ydb.Type{Type: &Ydb.Type_EmptyDictType{}}, items()),
		of(pg, text("42")), of(pg, bytes("\x00\x00\x00\x2a")), of(pg, null),
	}
}

func TestValuesKeepTheirWireForm(t *testing.T) {
	db := sampleDB(t, "")
	for _, v := range wireValues() {
		var got *Ydb.ResultSet
		if _, err := db.Execute(
			context.Background(),
			Request{Text: "SELECT $v AS v", Inferred: true, Params: map[string]*Ydb.TypedValue{"$v": v}},
			func(_ int, rs *Ydb.ResultSet) error { got = rs; return nil },
		); err != nil {
			t.Errorf("%v: %v", v, err)
			continue
		}
		want := &Ydb.ResultSet{Columns: []*Ydb.Column{{Name: "v", Type: v.Type}}, Rows: []*Ydb.Value{{Items: []*Ydb.Value{v.Value}}}}
		if d := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreEmptyMessages()); d != "" {
			t.Errorf("%v: %s", v, d)
		}
	}
}

// Every type that a column can have comes back from a table as it went in, also as a key.
func TestStoredValuesKeepTheirForm(t *testing.T) {
	db := openDB(t, "")
	ctx := context.Background()
	n := 0
	for _, v := range wireValues() {
		if v.Type.GetTypeId() == 0 && v.Type.GetDecimalType() == nil {
			continue
		}
		n++
		path := fmt.Sprintf("/local/t%d", n)
		spec := TableSpec{Columns: []Column{{Name: "k", Type: v.Type, NotNull: true}, {Name: "v", Type: v.Type}}, Key: []string{"k"}}
		if err := db.CreateTable(ctx, path, spec); err != nil {
			spec.Columns = append(spec.Columns, Column{Name: "i", Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_INT32}}})
			spec.Key = []string{"i"}
			if err := db.CreateTable(ctx, path, spec); err != nil {
				t.Errorf("%v: %v", v.Type, err)
				continue
			}
		}
		text := fmt.Sprintf("UPSERT INTO t%d (k, v) VALUES ($v, $v)", n)
		if spec.Key[0] == "i" {
			text = fmt.Sprintf("UPSERT INTO t%d (k, v, i) VALUES ($v, $v, 1)", n)
		}
		ps := map[string]*Ydb.TypedValue{"$v": v}
		if _, err := run(db, Request{Text: text, Inferred: true, Params: ps}); err != nil {
			t.Errorf("%v: %v", v.Type, err)
			continue
		}
		where := ""
		if spec.Key[0] == "k" {
			where = " WHERE k = $v"
		}
		var got *Ydb.ResultSet
		if _, err := db.Execute(
			ctx,
			Request{Text: fmt.Sprintf("SELECT k, v FROM t%d%s", n, where), Database: "/local", Inferred: true, Params: ps},
			func(_ int, rs *Ydb.ResultSet) error { got = rs; return nil },
		); err != nil {
			t.Errorf("%v: %v", v.Type, err)
			continue
		}
		if len(got.Rows) != 1 || !proto.Equal(got.Rows[0].Items[0], v.Value) ||
			!proto.Equal(got.Rows[0].Items[1], v.Value) || !proto.Equal(got.Columns[0].Type, v.Type) {
			t.Errorf("%v: %v", v, got)
		}
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	db := openDB(t, "")
	prim := func(id Ydb.Type_PrimitiveTypeId) *Ydb.Type { return &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}} }
	deep := prim(Ydb.Type_BOOL)
	for range 200 {
		deep = &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: deep}}}
	}
	for name, v := range map[string]*Ydb.TypedValue{
		"nothing":      {},
		"no type":      {Value: &Ydb.Value{}},
		"no value":     {Type: prim(Ydb.Type_INT32)},
		"other form":   {Type: prim(Ydb.Type_INT32), Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: "1"}}},
		"range":        {Type: prim(Ydb.Type_INT8), Value: &Ydb.Value{Value: &Ydb.Value_Int32Value{Int32Value: 200}}},
		"date":         {Type: prim(Ydb.Type_DATE), Value: &Ydb.Value{Value: &Ydb.Value_Uint32Value{Uint32Value: 49673}}},
		"utf8":         {Type: prim(Ydb.Type_UTF8), Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: "\xff"}}},
		"json":         {Type: prim(Ydb.Type_JSON), Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: "{"}}},
		"unknown type": {Type: prim(9999), Value: &Ydb.Value{}},
		"too deep":     {Type: deep, Value: &Ydb.Value{}},
		"decimal digits": {Type: &Ydb.Type{Type: &Ydb.Type_DecimalType{DecimalType: &Ydb.DecimalType{Precision: 36, Scale: 1}}},
			Value: &Ydb.Value{}},
	} {
		_, err := run(db, Request{Text: "SELECT $v", Inferred: true, Params: map[string]*Ydb.TypedValue{"$v": v}})
		if e, ok := err.(*Error); !ok || e.Status != Ydb.StatusIds_BAD_REQUEST || !strings.Contains(e.Error(), "$v") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPartsAndTruncation(t *testing.T) {
	db := openDB(t, "")
	mustRun(t, db, "CREATE TABLE t (k Uint64 NOT NULL, v String, PRIMARY KEY (k))")
	rows := typed(t, fmt.Sprintf("[<|k: 0ul, v: '%s'|>]", strings.Repeat("x", 1000)))
	for i := 1; i < 250; i++ {
		row := proto.CloneOf(rows.Value.Items[0])
		row.Items[0] = &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: uint64(i)}}
		rows.Value.Items = append(rows.Value.Items, row)
	}
	if err := db.BulkUpsert(context.Background(), "/local/t", rows, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		req   Request
		parts []int
		more  bool
	}{
		{"by bytes", Request{Text: "SELECT * FROM t", PartBytes: 50_000}, []int{49, 49, 49, 49, 49, 5}, false},
		{"by rows", Request{Text: "SELECT * FROM t", PartRows: 100}, []int{100, 100, 50}, false},
		{"truncated", Request{Text: "SELECT * FROM t; SELECT 1", MaxRows: 100}, []int{100, 1}, true},
		{"exactly as many", Request{Text: "SELECT * FROM t LIMIT 10", MaxRows: 10}, []int{10}, false},
		{"none", Request{Text: "SELECT * FROM t WHERE k = 9999"}, []int{0}, false},
	} {
		var parts []int
		more := false
		c.req.Database = "/local"
		_, err := db.Execute(context.Background(), c.req, func(_ int, rs *Ydb.ResultSet) error {
			if len(rs.Columns) == 0 {
				t.Errorf("%s: a part without columns", c.name)
			}
			parts = append(parts, len(rs.Rows))
			more = more || rs.Truncated
			return nil
		})
		if err != nil || !cmp.Equal(parts, c.parts) || more != c.more {
			t.Errorf("%s: parts %v, truncated %v, %v; want %v, %v", c.name, parts, more, err, c.parts, c.more)
		}
	}
	boom := errors.New("the client is gone")
	if _, err := db.Execute(
		context.Background(), Request{Text: "SELECT * FROM t", Database: "/local"},
		func(int, *Ydb.ResultSet) error { return boom },
	); err != boom {
		t.Errorf("error of emit: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := db.Execute(ctx, Request{Text: "SELECT COUNT(*) FROM t AS a JOIN t AS b ON true", Database: "/local"}, nothing)
	wantStatus(t, err, Ydb.StatusIds_CANCELLED, "canceled")
}

func TestExplainAndStats(t *testing.T) {
	db := sampleDB(t, "")
	st, err := db.Execute(
		context.Background(),
		Request{Text: "UPSERT INTO series (id) VALUES (77); SELECT 1", Database: "/local", Explain: true},
		func(int, *Ydb.ResultSet) error {
			t.Error("EXPLAIN emitted a result")
			return nil
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	var plan map[string]any
	if err := json.Unmarshal(
		[]byte(st.Plan), &plan,
	); err != nil || plan["Plan"] == nil || plan["tables"] == nil || plan["meta"] == nil || !strings.Contains(st.AST, "return") {
		t.Errorf("plan %s, AST %s: %v", st.Plan, st.AST, err)
	}
	if got := mustRun(t, db, "SELECT COUNT(*) AS n FROM series"); got != "n Uint64: (3)" {
		t.Errorf("EXPLAIN wrote: %s", got)
	}
	st, err = db.Execute(
		context.Background(),
		Request{Text: "UPDATE series SET rating = 1.0 WHERE id < 3; DELETE FROM series WHERE id = 3", Database: "/local"},
		nothing,
	)
	if err != nil || len(st.Tables) != 1 || st.Tables[0].Updates != 2 || st.Tables[0].Deletes != 1 || st.Tables[0].Reads != 3 {
		t.Errorf("stats %+v, %v", st.Tables, err)
	}
	p := st.Proto()
	if p.QueryPhases[0].TableAccess[0].Updates.Rows != 2 || p.Compilation.FromCache || p.TotalDurationUs == 0 {
		t.Errorf("wire stats %v", p)
	}
}

func TestPrepareAndIsSchema(t *testing.T) {
	db := sampleDB(t, "")
	got, err := db.Prepare(
		context.Background(),
		Request{Text: "DECLARE $a AS Uint64; DECLARE $b AS List<Utf8>; SELECT title FROM series WHERE id = $a", Database: "/local"},
	)
	if err != nil || len(got) != 2 || got["$a"].GetTypeId() != Ydb.Type_UINT64 || got["$b"].GetListType() == nil {
		t.Errorf("types %v, %v", got, err)
	}
	_, err = db.Prepare(context.Background(), Request{Text: "SELECT * FROM nope", Database: "/local"})
	wantStatus(t, err, Ydb.StatusIds_SCHEME_ERROR, "nope")
	for text, want := range map[string]bool{"SELECT 1": false, "PRAGMA TablePathPrefix('/x'); DROP TABLE t": true,
		"CREATE TABLE t (a Int32, PRIMARY KEY (a))": true, "ALTER TABLE t ADD COLUMN b Int32": true} {
		if is, err := db.IsSchema(Request{Text: text}); is != want || err != nil {
			t.Errorf("%s: %v, %v", text, is, err)
		}
	}
	if _, err := db.IsSchema(Request{Text: "SELECT"}); err == nil {
		t.Error("a faulty text is no schema text")
	}
}
