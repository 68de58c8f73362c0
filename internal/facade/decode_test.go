package facade

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// FuzzDecode decodes any bytes as package proto does.
func FuzzDecode(f *testing.F) {
	text := func(s string) *sidecarv1.Value {
		return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: s}}
	}
	whole, err := proto.MarshalOptions{Deterministic: true}.Marshal(&sidecarv1.ExecuteRequest{
		Sql: "SELECT $a, $b", Params: map[string]*sidecarv1.Value{"a": text("x"), "$b": text("")}, Types: map[string]string{"a": "Utf8"},
		Tx: &sidecarv1.TxSelector{Id: "1"}, Limits: &sidecarv1.Limits{Rows: 1}, Timeout: "1s",
	})
	if err != nil {
		f.Fatal(err)
	}
	entry := func(fields ...[]byte) (b []byte) {
		for _, field := range fields {
			b = append(b, field...)
		}
		return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), b)
	}
	field := func(number protowire.Number, b string) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), []byte(b))
	}
	name, other, value, again := field(1, "a"), field(1, "b"), field(2, "\x32\x01x"), field(2, "\x32\x01y")
	for _, b := range [][]byte{
		nil, whole, append(whole, whole...), whole[:len(whole)-1],
		entry(name, value), entry(value, name), entry(name), entry(value), entry(), entry(name, value, again), entry(name, other, value),
		append(entry(name, value), entry(name, again)...), append(entry(name, value), entry(again, name)...), append(entry(again, name), entry(name, value)...),
		entry(field(1, "\xff"), value), entry(name, field(2, "\x32\x05x")), entry(name, value, field(3, "more")), entry(name, []byte("\x10\x01")),
		{0x10, 0x01}, append(entry(name, value), 0xff), append(entry(name, value), field(99, "unknown")...), append([]byte{0x0a, 0x01, 0xff}, entry(name, value)...),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var want, got sidecarv1.ExecuteRequest
		refused, err := proto.Unmarshal(b, &want), decode(b, &got)
		if (refused == nil) != (err == nil) || err == nil && !proto.Equal(&want, &got) {
			t.Errorf("%x\n got %v, %v\nwant %v, %v", b, &got, err, &want, refused)
		}
	})
}

// BenchmarkDecode decodes the request of a point read.
func BenchmarkDecode(b *testing.B) {
	message, err := proto.Marshal(&sidecarv1.ExecuteRequest{
		Sql: "SELECT id, v FROM t WHERE id = $id", Params: map[string]*sidecarv1.Value{"id": {Kind: &sidecarv1.Value_Uint64Value{Uint64Value: 1}}},
	})
	if err != nil {
		b.Fatal(err)
	}
	for name, f := range map[string]func([]byte, proto.Message) error{"here": decode, "package proto": proto.Unmarshal} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f(message, new(sidecarv1.ExecuteRequest)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
