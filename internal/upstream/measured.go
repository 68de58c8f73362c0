package upstream

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec below
	"google.golang.org/grpc/mem"
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
	if st, ok := m.message.(*sending); ok {
		b, err := st.append(nil)
		m.size += len(b)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	b, err := c.proto.Marshal(m.message)
	m.size += b.Len()
	return b, err
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
	if st, ok := m.message.(*sending); ok {
		b, err = st.append(b)
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
