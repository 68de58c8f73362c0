package upstream

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec below
	"google.golang.org/grpc/mem"
)

// measured is a message that a stream sends or receives, and the bytes of all that
// went through it: counting them elsewhere would take as long as encoding them.
type measured struct {
	message any
	size    int
}

// measuring are the options of a stream of measured messages.
var measuring = []grpc.CallOption{grpc.ForceCodecV2(measuringCodec{encoding.GetCodecV2("proto")})}

type measuringCodec struct{ proto encoding.CodecV2 }

// Marshal encodes the message.
func (c measuringCodec) Marshal(v any) (mem.BufferSlice, error) {
	m := v.(*measured)
	b, err := c.proto.Marshal(m.message)
	m.size += b.Len()
	return b, err
}

// Unmarshal decodes into the message.
func (c measuringCodec) Unmarshal(b mem.BufferSlice, v any) error {
	m := v.(*measured)
	m.size += b.Len()
	return c.proto.Unmarshal(b, m.message)
}

// Name is empty, for the content type that gRPC has without a codec.
func (measuringCodec) Name() string { return "" }
