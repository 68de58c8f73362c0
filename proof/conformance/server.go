// Package conformance holds what anything that forwards gRPC calls must pass, for the
// tests of the data path: the cases of gRPC's interoperability tests with their
// server, and all of h2spec.
//
// It owns the cases and nothing of how the forwarder under test is made: the driver's
// tests run them in the process, those of the whole product against the built program.
// A case passes when what the caller saw through the forwarder equals what it saw
// without it.
package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// MaxMessage is the least that servers and clients of the cases must take, in bytes.
const MaxMessage = 64 << 20

// Server is the server of gRPC's interoperability cases.
type Server struct {
	testpb.UnimplementedTestServiceServer
	Cancelled chan struct{} // told when a stream's context ends early; what is not taken is dropped beyond 1024
}

// NewServer returns a server.
func NewServer() *Server { return &Server{Cancelled: make(chan struct{}, 1024)} }

func (s *Server) tell() {
	select {
	case s.Cancelled <- struct{}{}:
	default:
	}
}

// atOnce has the server send its headers before anything else.
const atOnce = "x-at-once"

func echo(ctx context.Context) {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get("x-grpc-test-echo-initial"); len(v) > 0 {
		grpc.SetHeader(ctx, metadata.Pairs("x-grpc-test-echo-initial", v[0]))
	}
	if v := md.Get("x-grpc-test-echo-trailing-bin"); len(v) > 0 {
		grpc.SetTrailer(ctx, metadata.Pairs("x-grpc-test-echo-trailing-bin", v[0]))
	}
	if v := md.Get(atOnce); len(v) > 0 {
		grpc.SendHeader(ctx, metadata.Pairs(atOnce, v[0]))
	}
}

func (s *Server) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return &testpb.Empty{}, nil
}

// period is after how many bytes a payload repeats itself.
const period = 2048

// Payload returns n bytes that any client can check.
func Payload(n int32) *testpb.Payload {
	b := make([]byte, n)
	for i := range min(len(b), period) {
		b[i] = byte(i * 7 >> 3)
	}
	for n := period; n < len(b); n *= 2 { // with -race a byte at a time takes ten times as long
		copy(b[n:], b[:n])
	}
	return &testpb.Payload{Body: b}
}

func (s *Server) UnaryCall(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	echo(ctx)
	if st := r.GetResponseStatus(); st.GetCode() != 0 {
		return nil, status.Error(codes.Code(st.Code), st.Message)
	}
	if r.GetPayload() != nil && !bytes.Equal(r.Payload.Body, Payload(int32(len(r.Payload.Body))).Body) {
		return nil, status.Error(codes.DataLoss, "the payload is damaged")
	}
	return &testpb.SimpleResponse{Payload: Payload(r.ResponseSize)}, nil
}

func (s *Server) StreamingOutputCall(r *testpb.StreamingOutputCallRequest,
	stream grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for _, p := range r.ResponseParameters {
		if p.IntervalUs < 0 { // until the caller goes
			<-stream.Context().Done()
			s.tell()
			return stream.Context().Err()
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: Payload(p.Size)}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) StreamingInputCall(
	stream grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse],
) error {
	sum := int32(0)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: sum})
		}
		if err != nil {
			s.tell()
			return err
		}
		sum += int32(len(r.Payload.Body))
	}
}

func (s *Server) FullDuplexCall(
	stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse],
) error {
	echo(stream.Context())
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			s.tell()
			return err
		}
		if st := r.GetResponseStatus(); st.GetCode() != 0 {
			return status.Error(codes.Code(st.Code), st.Message)
		}
		for _, p := range r.ResponseParameters {
			if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: Payload(p.Size)}); err != nil {
				return err
			}
		}
	}
}
