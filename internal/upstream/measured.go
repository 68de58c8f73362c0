package upstream

import (
	"slices"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec below
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// measured is a message that a stream sends or receives, and the bytes of all that
// went through it: counting them elsewhere would take as long as encoding them.
type measured struct {
	message any
	size    int
}

// measuring is the option of a stream of measured messages.
var measuring = grpc.ForceCodecV2(measuringCodec{encoding.GetCodecV2("proto")})

type measuringCodec struct{ proto encoding.CodecV2 }

// Marshal encodes the message.
func (c measuringCodec) Marshal(v any) (mem.BufferSlice, error) {
	m := v.(*measured)
	if r, ok := m.message.(*Ydb_Query.ExecuteQueryRequest); ok {
		b, err := encodeStatement(r)
		m.size += len(b)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	b, err := c.proto.Marshal(m.message)
	m.size += b.Len()
	return b, err
}

// encodeStatement encodes a statement. Its parameters, which are a map, are not
// left to package proto: that encodes maps by reflection, twice.
func encodeStatement(r *Ydb_Query.ExecuteQueryRequest) ([]byte, error) {
	return appendStatement(nil, r)
}

func appendStatement(b []byte, r *Ydb_Query.ExecuteQueryRequest) ([]byte, error) {
	parameters := r.Parameters
	r.Parameters = nil
	size := proto.Size(r)
	for name, value := range parameters {
		size += entrySize(name, proto.Size(value))
	}
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(slices.Grow(b, size), r)
	r.Parameters = parameters
	for name, value := range parameters {
		n := proto.MarshalOptions{UseCachedSize: true}.Size(value)
		b = protowire.AppendVarint(protowire.AppendTag(b, parametersField, protowire.BytesType), uint64(pairSize(name, n)))
		b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), name)
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.BytesType), uint64(n))
		if err == nil {
			b, err = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, value)
		}
	}
	return b, err
}

const parametersField = 6 // of ExecuteQueryRequest

// pairSize is the size of the entry of a map, whose value has n octets.
func pairSize(name string, n int) int {
	return protowire.SizeTag(1) + protowire.SizeBytes(len(name)) + protowire.SizeTag(2) + protowire.SizeBytes(n)
}

// entrySize is that with its own head.
func entrySize(name string, n int) int {
	return protowire.SizeTag(parametersField) + protowire.SizeBytes(pairSize(name, n))
}

// Unmarshal decodes into the message.
func (c measuringCodec) Unmarshal(b mem.BufferSlice, v any) error {
	m := v.(*measured)
	m.size += b.Len()
	if p, ok := m.message.(*Part); ok {
		return p.hold(b)
	}
	return c.proto.Unmarshal(b, m.message)
}

// AppendMessage implements client.Sender.
func (m *measured) AppendMessage(b []byte) ([]byte, error) {
	at := len(b)
	var err error
	if r, ok := m.message.(*Ydb_Query.ExecuteQueryRequest); ok {
		b, err = appendStatement(b, r)
	} else {
		b, err = proto.MarshalOptions{}.MarshalAppend(b, m.message.(proto.Message))
	}
	m.size += len(b) - at
	return b, err
}

// ReadMessage implements client.Receiver. A Part's rows are where p is.
func (m *measured) ReadMessage(p []byte) error {
	m.size += len(p)
	if part, ok := m.message.(*Part); ok {
		part.release()
		return part.Unmarshal(p)
	}
	return proto.Unmarshal(p, m.message.(proto.Message))
}

// Name is empty, for the content type that gRPC has without a codec.
func (measuringCodec) Name() string { return "" }
