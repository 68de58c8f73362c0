package unary

import (
	"context"
	"encoding/binary"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// Streaming is the Method of one that has one request and many answers, which run is as the Handler of a grpc.StreamDesc is.
func Streaming(run func(grpc.ServerStream) error) Method {
	return func(ctx context.Context, decode func(any) error) (any, error) {
		v, ok := grpc.ServerTransportStreamFromContext(ctx).(*Call)
		if !ok {
			return nil, status.Error(codes.Internal, "a stream that did not come over a shard")
		}
		v.stream = &stream{call: v, decode: decode, room: make(chan struct{}, 1)}
		return nil, run(v.stream)
	}
}

// stream is a call that has one request and many answers. One goroutine at a time may use it.
type stream struct {
	call   *Call
	decode func(any) error
	read   bool          // the request
	room   chan struct{} // there may be some again
}

// prefix is what goes before a message: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Length-Prefixed-Message".
const prefix = 5

// Send sends an answer of a stream, of which it keeps nothing. While as much of the answers waits for the client as h2.Config.Window, it
// waits, until ctx ends or the call does. What the client has a part of it gets whole: with half a message it would understand nothing of
// what ends the call. taken, if not nil, is called whenever a piece of the message was taken. One goroutine at a time may call it.
func (v *Call) Send(ctx context.Context, m proto.Message, taken func()) error {
	if v.stream == nil {
		return status.Error(codes.Internal, "the call has one answer")
	}
	buf := mem.DefaultBufferPool().Get(prefix + proto.Size(m))
	defer mem.DefaultBufferPool().Put(buf)
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(append((*buf)[:0], 0, 0, 0, 0, 0), m)
	if err != nil {
		return status.Errorf(codes.Internal, "an answer cannot be encoded: %v", err)
	}
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-prefix))
	for room, begun := chan<- struct{}(v.stream.room), false; ; {
		n, ok := 0, false
		v.port.shard.Do(func(f *h2.Forwarder) { n, ok = f.Write(v.ticket, v.status.Header, b, room) })
		if !ok {
			return status.Error(codes.Canceled, "the call is over")
		}
		if n > 0 && taken != nil {
			taken()
		}
		begun = begun || n > 0
		if b = b[n:]; len(b) == 0 {
			return ctx.Err()
		}
		select {
		case <-v.stream.room:
		case <-v.ctx.Done():
			return v.ctx.Err()
		case <-ctx.Done():
			if !begun {
				return ctx.Err()
			}
			room = nil
		}
	}
}

// Context implements grpc.ServerStream.
func (s *stream) Context() context.Context { return s.call.ctx }

// SetHeader implements grpc.ServerStream. Headers go out with the first answer.
func (s *stream) SetHeader(md metadata.MD) error { return s.call.SetHeader(md) }

// SendHeader implements grpc.ServerStream, as SetHeader.
func (s *stream) SendHeader(md metadata.MD) error { return s.call.SetHeader(md) }

// SetTrailer implements grpc.ServerStream.
func (s *stream) SetTrailer(md metadata.MD) { _ = s.call.SetTrailer(md) } // it never fails

// SendMsg implements grpc.ServerStream.
func (s *stream) SendMsg(answer any) error {
	m, ok := answer.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "an answer is no %T", answer)
	}
	return s.call.Send(s.call.ctx, m, nil)
}

// RecvMsg implements grpc.ServerStream.
func (s *stream) RecvMsg(into any) error {
	if s.read {
		return io.EOF
	}
	s.read = true
	return s.decode(into)
}
