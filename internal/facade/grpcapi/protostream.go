package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// chunkBytes is how much of a stream goes into one message: well below the
// 4 MiB that gRPC clients accept unless told otherwise.
const chunkBytes = 1 << 20

// outbox sends the messages of one stream over gRPC. A caller that does not read
// blocks the Send of a gRPC server until the handler returns, whatever the call's deadline, so a
// goroutine sends and the handler waits for it no longer than its context lasts.
type outbox[M any] struct {
	direct sender     // not nil: it sends itself, and there is no goroutine
	queue  chan *M    // unbuffered: nothing piles up
	failed chan error // closed when the sender is done
	moved  func()     // called whenever a piece was taken; nil: it is not asked for
}

// sender sends an answer of a stream, of which it keeps nothing, and waits no longer than ctx lasts.
// taken, if not nil, is called whenever a piece of it was taken.
type sender interface {
	Send(ctx context.Context, m proto.Message, taken func()) error
}

func newOutbox[M any](ctx context.Context, a *API, stream interface{ Send(*M) error }) outbox[M] {
	if direct, ok := grpc.ServerTransportStreamFromContext(ctx).(sender); ok {
		return outbox[M]{direct: direct}
	}
	o := outbox[M]{queue: make(chan *M), failed: make(chan error, 1)}
	a.core.Senders.Go(func() {
		defer close(o.failed)
		defer panics.Go("the sender of a stream")
		// When the handler returns early, gRPC ends the stream and with it the Send that hangs.
		for m := range o.queue {
			if err := stream.Send(m); err != nil {
				o.failed <- err
				return
			}
		}
	})
	return o
}

// send hands a message to the sender.
func (o *outbox[M]) send(ctx context.Context, m *M) error {
	if o.direct != nil {
		if err := o.direct.Send(ctx, any(m).(proto.Message), o.moved); err != nil {
			return core.Unread(ctx)
		}
		return nil
	}
	select {
	case o.queue <- m:
		if o.moved != nil {
			o.moved()
		}
		return nil
	case <-o.failed:
		return core.Unread(ctx)
	case <-ctx.Done():
		return core.Unread(ctx)
	}
}

// close ends the sender and waits until all is sent, or ctx ends.
func (o *outbox[M]) close(ctx context.Context) error {
	if o.direct != nil {
		return nil
	}
	close(o.queue)
	select {
	case err, ok := <-o.failed:
		if ok && err != nil {
			return core.Unread(ctx)
		}
		return nil
	case <-ctx.Done():
		return core.Unread(ctx)
	}
}

// protoStream sends results over gRPC as they arrive.
type protoStream struct {
	outbox[sidecarv1.ExecuteStreamResponse]
	set     int
	columns *yql.Columns
	sent    bool
	call    *core.Call // nil: nobody counts
	chunks  [2][]byte  // rows as bytes: of the message that is sent, and of the one that is made
}

func (a *API) newStream(ctx context.Context, stream grpc.ServerStreamingServer[sidecarv1.ExecuteStreamResponse]) *protoStream {
	return &protoStream{outbox: newOutbox[sidecarv1.ExecuteStreamResponse](ctx, a, stream), set: -1}
}

// send counts a message and hands it to the sender.
func (p *protoStream) send(ctx context.Context, m *sidecarv1.ExecuteStreamResponse) error {
	p.sent = true
	if p.call != nil && p.call.App.Metered() {
		p.call.Count(proto.Size(m))
	}
	return p.outbox.send(ctx, m)
}

func (p *protoStream) Begin(ctx context.Context, columns *yql.Columns) error {
	p.set++
	p.columns = columns
	return p.send(ctx, &sidecarv1.ExecuteStreamResponse{Part: &sidecarv1.ExecuteStreamResponse_Columns{
		Columns: &sidecarv1.StreamColumns{Set: uint32(p.set), Columns: p.columns.Header()},
	}})
}

func (p *protoStream) Rows(ctx context.Context, rows [][]byte) (err error) {
	chunk := p.chunks[0][:0]
	for _, row := range rows {
		start := len(chunk)
		if chunk, err = p.columns.AppendRow(chunk, row); err != nil {
			return core.BadAnswer(err)
		}
		if start > 0 && len(chunk) > chunkBytes {
			last := chunk[start:]
			if chunk, err = p.sendRows(ctx, chunk[:start]); err != nil {
				return err
			}
			chunk = append(chunk, last...)
		}
	}
	_, err = p.sendRows(ctx, chunk)
	return err
}

// sendRows sends a chunk and returns the room for the next one: what the message before
// this one was in, which has gone out when the sender takes this one.
func (p *protoStream) sendRows(ctx context.Context, chunk []byte) ([]byte, error) {
	p.chunks[0], p.chunks[1] = p.chunks[1], chunk
	return p.chunks[0][:0], p.send(ctx, &sidecarv1.ExecuteStreamResponse{Part: &sidecarv1.ExecuteStreamResponse_Rows{
		Rows: withRows(&sidecarv1.StreamRows{Set: uint32(p.set)}, chunk),
	}})
}

func (p *protoStream) Cut() {}

func (p *protoStream) Again() bool { return !p.sent }

func (p *protoStream) Held() int { return 0 }
