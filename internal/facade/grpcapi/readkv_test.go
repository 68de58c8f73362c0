package grpcapi

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// FuzzReadKV: a request for a row that is read without a message says what its message does, and its key is the same.
func FuzzReadKV(f *testing.F) {
	s := compose(f, core.DefaultAPI(), core.Deps{})
	table := kv.NewTable(facadetest.Entry(f, "x=x key=a:Utf8 key=b:Timestamp value=v:Json version=r:Int64"), "/local/x")
	text := func(s string) *sidecarv1.Value {
		return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: s}}
	}
	moment := &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: "2026-11-28T00:00:00Z"}}
	for _, req := range []*sidecarv1.KvPutRequest{
		{}, {Table: "x", Id: &sidecarv1.KvId{}},
		{Table: "x", Id: &sidecarv1.KvId{Columns: []*sidecarv1.Value{text("a"), moment}}, Value: []byte("{}"),
			Timeout: "1s", Priority: "batch"},
		{Id: &sidecarv1.KvId{Columns: []*sidecarv1.Value{text("a"), {Kind: &sidecarv1.Value_Uint64Value{Uint64Value: 5}}}},
			Condition: &sidecarv1.KvCondition{Match: []string{"*", "1"}, NoneMatch: []string{"2"}}},
		{Id: &sidecarv1.KvId{Columns: []*sidecarv1.Value{text("a"), {Kind: &sidecarv1.Value_NullValue{NullValue: true}}}}},
		{Id: &sidecarv1.KvId{Columns: []*sidecarv1.Value{text("a"), text("b"), text("c")}}},
	} {
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, b...))
	}
	for _, b := range [][]byte{{0x12, 0}, {0x12, 0, 0x22, 0}, {0x12, 0, 0x22, 2, 0x1a, 0}, {0x12, 2, 0x12, 0},
		{0x12, 0, 0x1a, 1}, {0x12, 0, 0x0a, 1, 0xff}, {0x12, 0, 0x38, 1}, {0x12, 0, 0x22, 3, 0x0a, 1, 0xff}} {
		f.Add(b)
	}
	versions := func(v *kv.Versions) string {
		if v == nil {
			return "none"
		}
		return fmt.Sprintf("%+v", *v)
	}
	says := func(r *kvRequest) string {
		return fmt.Sprintf("%q %q %q %x %s %s", r.table, r.timeout, r.priority, r.value, versions(r.cond.Match), versions(r.cond.NoneMatch))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var put kvPutting
		m, ok := put.read(nil, slices.Clone(b))
		if !ok || m != nil {
			return
		}
		req := new(sidecarv1.KvPutRequest)
		if err := proto.Unmarshal(b, req); err != nil || understood(req.ProtoReflect()) != nil {
			t.Fatalf("%x was read; package proto: %v, or has unknown fields", b, err)
		}
		var want kvRequest
		want.of(req.Table, req.Id, req.Condition, req.Timeout, req.Priority, req.Value)
		if says(&put.req) != says(&want) {
			t.Fatalf("%x\n got %s\nwant %s", b, says(&put.req), says(&want))
		}
		key, err := put.req.key(&s.grpc, table)
		same, bad := want.key(&s.grpc, table)
		if (err == nil) != (bad == nil) ||
			err != nil && proto.Size(req.Id) == put.req.size && err.Error() != bad.Error() ||
			err == nil && !bytes.Equal(key.Encoded(), same.Encoded()) {
			t.Fatalf("%x: key %v; want %v", b, err, bad)
		}
	})
}

// TestReadTexts reads the requests of Begin, Commit and Rollback.
func TestReadTexts(t *testing.T) {
	b, err := proto.Marshal(&sidecarv1.BeginRequest{Mode: "m", Timeout: "t", Priority: "p"})
	if err != nil {
		t.Fatal(err)
	}
	var mode, timeout, priority string
	if !readTexts(b, &mode, &timeout, &priority) || mode != "m" || timeout != "t" || priority != "p" {
		t.Errorf("read %q, %q, %q", mode, timeout, priority)
	}
	for _, b := range [][]byte{{0x0a}, {0x0a, 1, 0xff}, {0x08, 1}, {0x1a, 0}, {0x0d, 1, 2, 3, 4}, {0}} {
		if readTexts(b, &mode, &timeout) {
			t.Errorf("%x was read", b)
		}
	}
}

// TestAnswersOfRowsAreEncoded: the answers of Get, Put and Delete, and of Begin, Commit and Rollback,
// are encoded as package proto encodes their messages.
func TestAnswersOfRowsAreEncoded(t *testing.T) {
	table := kv.NewTable(facadetest.Entry(t, "x=x key=a:Utf8 value=v:String version=r:Int64 media=a/b"), "/local/x")
	optional := &Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: table.Value.Type}}}
	octets := func(b string) []byte {
		v, err := yql.AppendRaw(nil, []byte(b), table.Value.Type)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	c := &core.Call{Info: &sidecarv1.Info{NodeId: 3, TraceId: "t", HopMs: 1}}
	same := func(name string, got []byte, want proto.Message) {
		t.Helper()
		b, err := proto.Marshal(want)
		if err != nil || !bytes.Equal(got, append([]byte("before"), b...)) {
			t.Errorf("%s: %x, %v; want %x", name, got, err, b)
		}
	}
	for name, row := range map[string]kv.Row{
		"a value":      {Value: kv.Cell{Octets: octets("abc"), Type: table.Value.Type}, Version: "7"},
		"an empty one": {Value: kv.Cell{Octets: octets(""), Type: optional}, Version: ""},
		"null":         {Value: kv.Cell{Octets: []byte{10 << 3, 0}, Type: optional}, Version: "7"},
	} {
		for _, modified := range []bool{true, false} {
			want, err := getResponse(table, c, row, modified)
			if err != nil {
				t.Fatal(err)
			}
			got, err := appendGet([]byte("before"), table, c, row, modified)
			if err != nil {
				t.Fatal(err)
			}
			same(name, got, want)
		}
	}
	for _, done := range []kv.Written{{}, {Created: true, Version: "9"}} {
		same("written", appendPut([]byte("before"), done, c), putResponse(done, c))
	}
	same("deleted", appendInfoAlone([]byte("before"), c.Info), &sidecarv1.KvDeleteResponse{Info: c.Info})
	same("committed", appendInfoAlone([]byte("before"), c.Info), &sidecarv1.CommitResponse{Info: c.Info})
	same("rolled back", appendInfoAlone([]byte("before"), c.Info), &sidecarv1.RollbackResponse{Info: c.Info})
	for m, want := range map[proto.Message]int{&sidecarv1.KvGetRequest{}: 5, &sidecarv1.KvPutRequest{}: 6,
		&sidecarv1.KvDeleteRequest{}: 5, &sidecarv1.KvId{}: 1, &sidecarv1.KvCondition{}: 2,
		&sidecarv1.KvGetResponse{}: 5, &sidecarv1.KvPutResponse{}: 3, &sidecarv1.KvDeleteResponse{}: 1,
		&sidecarv1.BeginRequest{}: 3, &sidecarv1.BeginResponse{}: 2,
		&sidecarv1.CommitRequest{}: 2, &sidecarv1.CommitResponse{}: 1, &sidecarv1.RollbackRequest{}: 2, &sidecarv1.RollbackResponse{}: 1} {
		if got := m.ProtoReflect().Descriptor().Fields().Len(); got != want {
			t.Errorf("%T has %d fields; %d are read, or encoded, by hand", m, got, want)
		}
	}
}
