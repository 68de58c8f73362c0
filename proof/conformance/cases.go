package conformance

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Result is what a caller saw.
type Result struct {
	Bodies          [][sha256.Size]byte // hashes
	Sum             int32
	Header, Trailer metadata.MD
	Code            codes.Code
	Message         string
}

func (r *Result) end(err error) {
	if errors.Is(err, io.EOF) {
		err = nil
	}
	r.Code, r.Message = status.Code(err), status.Convert(err).Message()
	for _, name := range []string{"content-type", "date"} {
		delete(r.Header, name)
	}
}

// Output asks for answers of those sizes.
func Output(sizes ...int32) (all []*testpb.ResponseParameters) {
	for _, n := range sizes {
		all = append(all, &testpb.ResponseParameters{Size: n})
	}
	return all
}

// Cases are the calls, by name. c takes messages of MaxMessage.
var Cases = map[string]func(ctx context.Context, c testpb.TestServiceClient, r *Result){
	"empty": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		_, err := c.EmptyCall(ctx, &testpb.Empty{}, grpc.Header(&r.Header), grpc.Trailer(&r.Trailer))
		r.end(err)
	},
	"large_unary": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		a, err := c.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 16 << 20, Payload: Payload(16 << 20)})
		r.Bodies = append(r.Bodies, sha256.Sum256(a.GetPayload().GetBody()))
		r.end(err)
	},
	"compressed": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		a, err := c.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 100000, Payload: Payload(100000)}, grpc.UseCompressor(gzip.Name))
		r.Bodies = append(r.Bodies, sha256.Sum256(a.GetPayload().GetBody()))
		r.end(err)
	},
	"client_stream": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		s, err := c.StreamingInputCall(ctx)
		for _, n := range []int32{27182, 8, 1828, 45904, 300000} {
			if err == nil {
				err = s.Send(&testpb.StreamingInputCallRequest{Payload: Payload(n)})
			}
		}
		if err == nil {
			var a *testpb.StreamingInputCallResponse
			a, err = s.CloseAndRecv()
			r.Sum = a.GetAggregatedPayloadSize()
		}
		r.end(err)
	},
	"server_stream": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		s, err := c.StreamingOutputCall(
			ctx, &testpb.StreamingOutputCallRequest{ResponseParameters: Output(31415, 9, 2653, 58979, 3<<20, 0)},
		)
		for err == nil {
			var a *testpb.StreamingOutputCallResponse
			if a, err = s.Recv(); err == nil {
				r.Bodies = append(r.Bodies, sha256.Sum256(a.GetPayload().GetBody()))
			}
		}
		r.end(err)
	},
	"ping_pong": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		s, err := c.FullDuplexCall(ctx)
		for _, n := range []int32{31415, 9, 2653, 58979} {
			if err == nil {
				err = s.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: Output(n), Payload: Payload(n / 2)})
			}
			if err == nil {
				var a *testpb.StreamingOutputCallResponse
				a, err = s.Recv()
				r.Bodies = append(r.Bodies, sha256.Sum256(a.GetPayload().GetBody()))
			}
		}
		if err == nil {
			s.CloseSend()
			_, err = s.Recv()
		}
		r.end(err)
	},
	"empty_stream": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		s, err := c.FullDuplexCall(ctx)
		if err == nil {
			s.CloseSend()
			_, err = s.Recv()
		}
		r.end(err)
	},
	"headers_before_messages": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		s, err := c.FullDuplexCall(metadata.AppendToOutgoingContext(ctx, atOnce, "x"))
		if err == nil {
			r.Header, err = s.Header()
		}
		if err == nil {
			s.CloseSend()
			_, err = s.Recv()
		}
		r.end(err)
	},
	"cancel_after_begin": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		ctx, cancel := context.WithCancel(ctx)
		s, err := c.StreamingInputCall(ctx)
		cancel()
		if err == nil {
			err = s.RecvMsg(new(testpb.StreamingInputCallResponse)) // the end of the requests could be answered first
		}
		r.end(err)
	},
	"cancel_after_first_answer": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		ctx, cancel := context.WithCancel(ctx)
		s, err := c.FullDuplexCall(ctx)
		if err == nil {
			err = s.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: Output(31415), Payload: Payload(27182)})
		}
		if err == nil {
			_, err = s.Recv()
		}
		cancel()
		if err == nil {
			_, err = s.Recv()
		}
		r.end(err)
	},
	"timeout_on_sleeping_server": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		s, err := c.FullDuplexCall(ctx)
		if err == nil {
			_, err = s.Recv()
		}
		r.end(err)
		r.Message = "" // either side may be the first to notice
	},
	"custom_metadata": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-grpc-test-echo-initial", "test_initial_metadata_value",
			"x-grpc-test-echo-trailing-bin", "\x00\xab\xab\xff\x01", "x-long", strings.Repeat("long ", 3000))
		_, err := c.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 1}, grpc.Header(&r.Header), grpc.Trailer(&r.Trailer))
		r.end(err)
	},
	"unimplemented": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		_, err := c.UnimplementedCall(ctx, &testpb.Empty{}, grpc.Trailer(&r.Trailer))
		r.end(err)
	},
	"special_status_message": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		_, err := c.UnaryCall(
			ctx,
			&testpb.SimpleRequest{
				ResponseStatus: &testpb.EchoStatus{Code: 2, Message: "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"},
			},
		)
		r.end(err)
	},
	"status_after_begin": func(ctx context.Context, c testpb.TestServiceClient, r *Result) {
		s, err := c.FullDuplexCall(ctx)
		if err == nil {
			err = s.Send(&testpb.StreamingOutputCallRequest{ResponseStatus: &testpb.EchoStatus{Code: 2, Message: "test status message"}})
		}
		if err == nil {
			_, err = s.Recv()
		}
		r.end(err)
	},
}
