package devcluster

import (
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// frame is one gRPC message as it came, for calls that are passed on undecoded.
// The code that has a frame frees it.
type frame struct{ data mem.BufferSlice }

func (f *frame) free() {
	f.data.Free()
	f.data = nil
}

// decode reads the message; the frame stays valid.
func (f *frame) decode(m proto.Message) error {
	if len(f.data) == 1 {
		return proto.Unmarshal(f.data[0].ReadOnlyData(), m)
	}
	whole := wholes.Get().(*[]byte)
	defer wholes.Put(whole)
	*whole = slices.Grow((*whole)[:0], f.data.Len())[:f.data.Len()]
	f.data.CopyTo(*whole)
	return proto.Unmarshal(*whole, m)
}

// wholes are buffers for messages of several frames. Those of gRPC are cleared each time, which took a
// tenth of a node's time for texts of 200 KB.
var wholes = sync.Pool{New: func() any { return new([]byte) }}

// codec is gRPC's own protobuf codec that lets frames through as they are.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(grpcproto.Name)} }

// Marshal implements encoding.CodecV2. The caller frees what it returns, so a
// frame, which its holder frees as well, gets another reference.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		f.data.Ref()
		return f.data, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		data.Ref()
		f.data = data
		return nil
	}
	if err := c.CodecV2.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	return nil
}
