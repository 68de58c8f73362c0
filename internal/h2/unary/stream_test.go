package unary

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/proof/await"
)

// streams has run serve the calls of Check.
func (s *served) streams(run func(*healthv1.HealthCheckRequest, grpc.ServerStream) error) {
	s.on(func(ctx context.Context, r *healthv1.HealthCheckRequest) (any, error) {
		return Streaming(func(stream grpc.ServerStream) error { return run(r, stream) })(ctx, func(any) error { return nil })
	})
}

// begin begins a call, of which nothing is read but what the window has room for.
func (s *served) begin(t *testing.T, ctx context.Context) grpc.ClientStream {
	t.Helper()
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, checkPath)
	if err == nil {
		err = errors.Join(stream.SendMsg(&healthv1.HealthCheckRequest{Service: "x"}), stream.CloseSend())
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func text(n int) *healthv1.HealthCheckRequest { // as good a message as any
	return &healthv1.HealthCheckRequest{Service: strings.Repeat("x", n)}
}

func TestAStreamHasWhatAStreamOfGRPCHas(t *testing.T) {
	s := newServed(t)
	for name, tc := range map[string]struct {
		sizes []int
		err   error
		code  codes.Code
	}{
		"nothing":                   {nil, nil, codes.OK},
		"a refusal":                 {nil, status.Error(codes.NotFound, "none"), codes.NotFound},
		"small ones":                {[]int{1, 0, 2}, nil, codes.OK},
		"one of several pieces":     {[]int{3*largeAnswer + 17}, nil, codes.OK},
		"large ones, then an error": {[]int{1 << 20, 1 << 20, 1}, status.Error(codes.Aborted, "over"), codes.Aborted},
	} {
		t.Run(name, func(t *testing.T) {
			s.streams(func(r *healthv1.HealthCheckRequest, stream grpc.ServerStream) error {
				if err := stream.RecvMsg(r); err != nil {
					return err
				}
				if err := stream.RecvMsg(r); err != io.EOF {
					t.Errorf("a second request: %v", err)
				}
				if err := stream.SetHeader(metadata.Pairs("x-head", "h")); err != nil {
					t.Error(err)
				}
				stream.SetTrailer(metadata.Pairs("x-tail", "t"))
				for _, n := range tc.sizes {
					if err := stream.SendMsg(text(n)); err != nil {
						return err
					}
				}
				return tc.err
			})
			stream := s.begin(t, t.Context())
			var sizes []int
			for {
				var got healthv1.HealthCheckRequest
				err := stream.RecvMsg(&got)
				if err == nil {
					sizes = append(sizes, len(got.Service))
					continue
				}
				if err == io.EOF {
					err = nil
				}
				if status.Code(err) != tc.code {
					t.Errorf("got %v; want %v", err, tc.code)
				}
				break
			}
			if len(sizes) != len(tc.sizes) {
				t.Fatalf("got messages of %v bytes; want %v", sizes, tc.sizes)
			}
			for i, n := range tc.sizes {
				if sizes[i] != n {
					t.Errorf("got messages of %v bytes; want %v", sizes, tc.sizes)
				}
			}
			if header, err := stream.Header(); err != nil || len(sizes) > 0 && len(header.Get("x-head")) != 1 {
				t.Errorf("got the headers %v, %v", header, err)
			}
			if tail := stream.Trailer().Get("x-tail"); len(tail) != 1 {
				t.Errorf("got the trailers %v", stream.Trailer())
			}
		})
	}
}

// A stream that is not read keeps little here, and waits no longer than it is told to, or than its client does.
func TestAStreamThatIsNotRead(t *testing.T) {
	const size = 600 << 10 // several pieces
	for name, leave := range map[string]func(caller, method context.CancelFunc){
		"its time is up":    func(_, method context.CancelFunc) { method() },
		"the caller leaves": func(caller, _ context.CancelFunc) { caller() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newServed(t)
			ended := make(chan error, 1)
			method, stop := context.WithCancel(t.Context())
			defer stop()
			s.streams(func(_ *healthv1.HealthCheckRequest, stream grpc.ServerStream) error {
				v := grpc.ServerTransportStreamFromContext(stream.Context()).(*Call)
				ctx, cancel := context.WithCancel(stream.Context())
				defer cancel()
				defer context.AfterFunc(method, cancel)()
				for {
					if err := v.Send(ctx, text(size), nil); err != nil {
						ended <- err
						return status.Error(codes.DeadlineExceeded, "its time is up")
					}
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			client := s.begin(t, ctx)
			most := h2.Default().Window
			await.True(t, "the stream waits for its reader", func() bool { return s.shard.Stats().Answers > 64<<10 })
			if n := s.shard.Stats().Answers; n > most { // more only to end a message
				t.Errorf("%d bytes wait for a reader that takes nothing; want %d at most", n, most)
			}
			leave(cancel, stop)
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
					t.Errorf("got %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("it waits for ever")
			}
			for err := error(nil); ctx.Err() == nil; { // what it has begun to get it gets whole, and then why there is no more
				if err = client.RecvMsg(new(healthv1.HealthCheckRequest)); err == nil {
					continue
				}
				if status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("the client gets %v", err)
				}
				break
			}
			cancel()
			await.True(t, "nothing is left", func() bool { return s.shard.Stats().Buffered == 0 && s.open.Load() == 0 })
		})
	}
}

// BenchmarkStream is a stream of 16 MB in messages of 1 MB.
func BenchmarkStream(b *testing.B) {
	s := newServed(b)
	answer := text(1 << 20)
	s.streams(func(_ *healthv1.HealthCheckRequest, stream grpc.ServerStream) error {
		for range 16 {
			if err := stream.SendMsg(answer); err != nil {
				return err
			}
		}
		return nil
	})
	b.SetBytes(16 << 20)
	b.ReportAllocs()
	for b.Loop() {
		stream, err := s.conn.NewStream(b.Context(), &grpc.StreamDesc{ServerStreams: true}, checkPath)
		if err == nil {
			err = errors.Join(stream.SendMsg(&healthv1.HealthCheckRequest{}), stream.CloseSend())
		}
		for err == nil {
			err = stream.RecvMsg(new(healthv1.HealthCheckRequest))
		}
		if err != io.EOF {
			b.Fatal(err)
		}
	}
}
