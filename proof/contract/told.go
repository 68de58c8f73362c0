package contract

import (
	"context"
	"net/http"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Told is what an answer says of deprecated parts that its call used: headers over HTTP, trailers over gRPC. The zero value
// says nothing.
type Told struct{ Deprecation, Link, Sunset string }

// hearing keeps what the last answer of a client told.
type hearing struct{ last atomic.Pointer[Told] }

func (h *hearing) heard(get func(string) string) {
	h.last.Store(&Told{Deprecation: get("Deprecation"), Link: get("Link"), Sunset: get("Sunset")})
}

// hearingHTTP hears what comes over HTTP.
type hearingHTTP struct {
	hearing
	under http.RoundTripper
}

func (h *hearingHTTP) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := h.under.RoundTrip(req)
	if err == nil {
		h.heard(res.Header.Get)
	}
	return res, err
}

// hearingConn hears what comes over gRPC.
type hearingConn struct {
	hearing
	*grpc.ClientConn
}

func (h *hearingConn) trailer(md metadata.MD) {
	h.heard(func(name string) string {
		if all := md.Get(name); len(all) > 0 {
			return all[0]
		}
		return ""
	})
}

// Invoke implements grpc.ClientConnInterface.
func (h *hearingConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	var md metadata.MD
	err := h.ClientConn.Invoke(ctx, method, args, reply, append(opts, grpc.Trailer(&md))...)
	h.trailer(md)
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (h *hearingConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := h.ClientConn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &hearingStream{s, h}, nil
}

type hearingStream struct {
	grpc.ClientStream
	of *hearingConn
}

func (s *hearingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.of.trailer(s.Trailer())
	}
	return err
}

// told compares what the last answer told with what it should. Libraries keep it to themselves.
func (t *test) told(what string, want Told) {
	t.Helper()
	var got Told
	switch c := t.Client.(type) {
	case *httpClient:
		got = *c.hears.last.Load()
	case *grpcClient:
		got = *c.conn.last.Load()
	default:
		return
	}
	if got != want {
		t.Errorf("%s: the answer told %+v; want %+v", what, got, want)
	}
}
