package wire

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// message is one message as it came.
type message struct{ data mem.BufferSlice }

func (m *message) free() { m.data.Free() }

// codec passes messages as they are and encodes all other values.
type codec struct{ encoding.CodecV2 }

var passing = codec{encoding.GetCodecV2(encodingproto.Name)}

// Marshal gives the message's reference away.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*message); ok {
		return m.data, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	data.Ref()
	m.data = data
	return nil
}

// anyStream describes a call whose two sides both may stream.
var anyStream = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
