package grpcapi

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// readAs is everything that a request says, except its values.
func readAs(in core.ExecuteRequest) string {
	tx := "none"
	if in.Tx != nil {
		tx = fmt.Sprintf("%+v", *in.Tx)
	}
	names := in.Params.Names()
	slices.Sort(names)
	return fmt.Sprintf("%q %q %v %q %v %q tx %s, %t %q %q", in.SQL, names, in.Types, in.Stats, in.Limits, in.Mode, tx,
		in.Idempotent, in.Timeout, in.Priority)
}

// FuzzReadExecute: a request that is read without messages says what its message does, and becomes the same parameters.
func FuzzReadExecute(f *testing.F) {
	s := compose(f, core.DefaultAPI(), core.Deps{})
	text := func(s string) *sidecarv1.Value {
		return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: s}}
	}
	list := &sidecarv1.Value{
		Kind: &sidecarv1.Value_ListValue{ListValue: &sidecarv1.ListValue{Items: []*sidecarv1.Value{text("a"), text("b")}}},
	}
	whole, err := proto.MarshalOptions{Deterministic: true}.Marshal(&sidecarv1.ExecuteRequest{
		Sql:    "DECLARE $c AS Optional<Int32>; SELECT $a, $b",
		Params: map[string]*sidecarv1.Value{"a": text("x"), "$b": list, "c": {Kind: &sidecarv1.Value_Int64Value{Int64Value: -3}}},
		Types:  map[string]string{"a": "Utf8"}, Mode: "snapshot_ro",
		Tx:         &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{Mode: "m"}, Id: "1", Seq: 3, Commit: true},
		Idempotent: true, Timeout: "1s", Limits: &sidecarv1.Limits{Rows: 1, Bytes: 2}, Stats: "full", Priority: "batch",
	})
	if err != nil {
		f.Fatal(err)
	}
	tagged := func(number protowire.Number, fields ...[]byte) (b []byte) {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(fields, nil))
	}
	entry := func(fields ...[]byte) []byte { return tagged(2, fields...) }
	name, other, value, again := tagged(1, []byte("a")), tagged(1, []byte("b")), tagged(
		2, []byte("\x32\x01x"),
	), tagged(2, []byte("\x32\x01y"))
	for _, b := range [][]byte{
		nil, whole, append(whole, whole...), whole[:len(whole)-1],
		entry(name, value), entry(value, name), entry(name), entry(value), entry(), entry(name, value, again), entry(name, other, value),
		append(entry(name, value), entry(name, again)...), append(entry(name, value), entry(again, name)...),
		entry(tagged(1, []byte("\xff")), value), entry(name, tagged(2, []byte("\x32\x05x"))),
		entry(name, value, tagged(3, []byte("more"))), entry(name, []byte("\x10\x01")),
		append(tagged(1, []byte("SELECT $a")), entry(name, tagged(2, []byte{0x18, 5}))...),
		append(tagged(1, []byte("SELECT $a")), entry(name, tagged(2, []byte{0x18, 0xff, 0x7f}))...),
		append(entry(tagged(1, []byte("$a")), tagged(2, []byte{0x18, 5})), entry(name, tagged(2, []byte{0x18, 5}))...),
		{0x10, 0x01}, append(entry(name, value), 0xff), append(entry(name, value), tagged(99, []byte("unknown"))...), {0x0a, 0x01, 0xff},
		tagged(5), append(tagged(5), tagged(5)...), tagged(5, tagged(1), tagged(1)),
		tagged(5, tagged(1, []byte{0x0a, 1, 'm', 0x10, 1})), tagged(5, []byte{0x18, 2, 0x18, 3, 0x20, 2}),
		tagged(8), append(tagged(8, []byte{8, 1}), tagged(8, []byte{0x10, 2})...), tagged(8, []byte{0x18, 1}),
		{0x30, 2, 0x30, 0}, {0x32, 0},
		entry(name, tagged(2, []byte{8, 1})), entry(name, tagged(2)), entry(name, tagged(2, []byte{0x62, 0})),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var message sidecarv1.ExecuteRequest
		refused := proto.Unmarshal(b, &message)
		request := slices.Clone(b)
		var r readRequest
		r.values.depth = s.Core.Cfg.API.MaxDepth
		if !r.read(request) {
			return
		}
		clear(request) // it is the shard's
		if refused != nil || yql.Known(message.ProtoReflect()) != nil {
			t.Fatalf("%x was read; package proto: %v, with unknown fields: %v", b, refused, yql.Known(message.ProtoReflect()))
		}
		want := core.ExecuteOf(&message, s.grpc.params())
		if got, want := readAs(r.ExecuteRequest), readAs(want); got != want {
			t.Fatalf("%x\n got %s\nwant %s", b, got, want)
		}
		if got, want := r.values.count(), valuesOf(&message); got != want {
			t.Fatalf("%x has %d values; want %d", b, got, want)
		}
		for _, learnt := range []*Ydb.Type{nil, {Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT8}}} {
			same := func(in core.Spec) (*upstream.Params, int, error) {
				now := make(map[string]*Ydb.Type)
				for _, name := range in.Params.Names() {
					if learnt != nil {
						now[yql.ParamName(name)] = learnt
					}
				}
				fresh, err := core.New(s.Core.Cfg, core.Deps{Caches: 1 << 20})
				if err != nil {
					return nil, 0, err
				}
				return fresh.Bind(in, true, now)
			}
			checkBound(t, b, r.Spec, want.Spec, same)
		}
	})
}

// checkBound compares the parameters of a request that was read without messages with those of its message.
func checkBound(t *testing.T, request []byte, got, want core.Spec, bind func(core.Spec) (*upstream.Params, int, error)) {
	t.Helper()
	params, size, err := bind(got)
	same, sameSize, bad := bind(want)
	if (err == nil) != (bad == nil) || size != sameSize || err != nil && err.Error() != bad.Error() {
		t.Fatalf("%x: bound %v of %d; want %v of %d", request, err, size, bad, sameSize)
	}
	if err == nil && !bytes.Equal(params.Encoded(), same.Encoded()) {
		t.Fatalf("%x: bound\n     %x\nwant %x", request, params.Encoded(), same.Encoded())
	}
}

// TestUsualRequestsAreReadWithoutMessages: what clients usually send is read without messages, up to mostRead parameters.
func TestUsualRequestsAreReadWithoutMessages(t *testing.T) {
	many := make(map[string]*sidecarv1.Value)
	for i := range mostRead {
		many[fmt.Sprintf("p%d", i)] = &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: int64(i)}}
	}
	more := maps.Clone(many)
	more["q"] = many["p0"]
	for name, tc := range map[string]struct {
		req  *sidecarv1.ExecuteRequest
		read bool
	}{
		"many parameters": {&sidecarv1.ExecuteRequest{Sql: "S", Params: many}, true},
		"more":            {&sidecarv1.ExecuteRequest{Sql: "S", Params: more}, false},
		"a step": {
			&sidecarv1.ExecuteRequest{Sql: "S", Params: many, Tx: &sidecarv1.TxSelector{Id: "x", Seq: 1, Commit: true}, Timeout: "1s"},
			true,
		},
		"a beginning": {&sidecarv1.ExecuteRequest{Sql: "S", Mode: "snapshot_ro", Tx: &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{}}},
			true},
		"a null, text": {
			&sidecarv1.ExecuteRequest{Sql: "S",
				Params: map[string]*sidecarv1.Value{"a": {Kind: &sidecarv1.Value_NullValue{NullValue: true}},
					"$b": {Kind: &sidecarv1.Value_TextValue{TextValue: strings.Repeat("x", 200)}}}},
			true,
		},
	} {
		b, err := proto.Marshal(tc.req)
		if err != nil {
			t.Fatal(err)
		}
		if got := new(readRequest).read(b); got != tc.read {
			t.Errorf("%s: read %t; want %t", name, got, tc.read)
		}
	}
}

// TestAnswersAreEncoded: an answer is encoded as package proto encodes its message.
func TestAnswersAreEncoded(t *testing.T) {
	for name, tc := range map[string]struct {
		sets []*protoSet
		done core.Outcome
		info *sidecarv1.Info
	}{
		"nothing": {info: &sidecarv1.Info{}},
		"an empty set": {sets: []*protoSet{{}},
			info: &sidecarv1.Info{NodeId: 1, Attempts: 2, QueueMs: 0.5, AcquireMs: 1.5, HopMs: 2.5, ServerMs: 3.5,
				TraceId: "t", ConsumedUnits: proto.Uint64(0)}},
		"rows": {sets: []*protoSet{{rows: []byte{0x12, 0x00}, truncated: true}},
			done: core.Outcome{Tx: &sidecarv1.Tx{Id: strings.Repeat("i", 200), ExpiresMs: 5}},
			info: &sidecarv1.Info{TraceId: strings.Repeat("t", 200), ConsumedUnits: proto.Uint64(7)}},
		"a count": {sets: []*protoSet{{rows: []byte{0x12, 0x00}}}, done: core.Outcome{Affected: proto.Uint64(300)},
			info: &sidecarv1.Info{}},
		"none affected": {done: core.Outcome{Affected: proto.Uint64(0)}, info: &sidecarv1.Info{}},
		"two sets":      {sets: []*protoSet{{rows: []byte{0x12, 0x00}}, {truncated: true}}, info: &sidecarv1.Info{NodeId: 1}},
		"statistics": {sets: []*protoSet{{rows: []byte{0x12, 0x00}}},
			done: core.Outcome{Stats: &sidecarv1.Stats{CpuUs: 1}, Tx: &sidecarv1.Tx{}}, info: &sidecarv1.Info{NodeId: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			columns := yql.NewColumns([]*Ydb.Column{{Name: "id", Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}}}})
			p := &protoSink{sets: tc.sets, columns: columns}
			for _, set := range p.sets {
				set.columns = columns.Header()
			}
			c := &core.Call{Info: tc.info}
			want, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.response(c, tc.done))
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.appendResponse([]byte("before"), c, tc.done)
			if err != nil || !bytes.Equal(got, append([]byte("before"), want...)) {
				t.Errorf("%x, %v\nwant %x", got, err, want)
			}
		})
	}
	for m, want := range map[proto.Message]int{&sidecarv1.ExecuteResponse{}: 8, &sidecarv1.Tx{}: 2, &sidecarv1.Info{}: 8,
		&sidecarv1.ExecuteRequest{}: 10, &sidecarv1.TxSelector{}: 4, &sidecarv1.BeginTx{}: 1, &sidecarv1.Limits{}: 2} {
		if got := m.ProtoReflect().Descriptor().Fields().Len(); got != want {
			t.Errorf("%T has %d fields; %d are read, or encoded, by hand", m, got, want)
		}
	}
}
