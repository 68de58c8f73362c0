package grpcapi

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/rows"
	"github.com/ydb-sidecar/sidecar/internal/ingest"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// ingestServer is the service sidecar.v1.Ingest.
type ingestServer struct {
	sidecarv1.UnimplementedIngestServer
	api *API
}

// Ingest writes rows as they come.
func (i ingestServer) Ingest(stream grpc.BidiStreamingServer[sidecarv1.IngestRequest, sidecarv1.IngestResponse]) error {
	c, fault := i.api.call(stream.Context(), core.CallIngest, &sidecarv1.IngestOpen{}, func(ctx context.Context, c *core.Call) error {
		first, err := i.first(ctx, stream)
		if err != nil {
			return gone(ctx, err)
		}
		open := &sidecarv1.IngestOpen{}
		switch part, octets, err := partOf(first); {
		case err != nil:
			return err
		case part != fieldOpen:
			return core.BadRequest("open.table is missing; the first message must open the stream")
		default:
			if err := proto.Unmarshal(octets, open); err != nil {
				return gone(ctx, err)
			}
		}
		i.api.core.UsesFields(c, open)
		if err := understood(open.ProtoReflect()); err != nil {
			return err
		}
		in := rows.Request{Table: open.Table, Offset: open.Offset, Stream: open.Stream}
		return i.rows(ctx, c, in, stream)
	})
	if told := i.api.trailer(c, fault); len(told) > 0 {
		stream.SetTrailer(metadata.Pairs(told...))
	}
	if fault != nil {
		return StatusOf(fault, c.TraceID)
	}
	return nil
}

// rows is the stream after its first message.
func (i ingestServer) rows(ctx context.Context, c *core.Call, in rows.Request,
	stream grpc.BidiStreamingServer[sidecarv1.IngestRequest, sidecarv1.IngestResponse]) (err error) {
	out := newOutbox[sidecarv1.IngestResponse](stream.Context(), i.api, stream)
	defer func() { // also after a panic: else its goroutine waits for ever
		if unsent := out.close(ctx); err == nil {
			err = unsent
		}
	}()
	return i.api.rows.Run(ctx, c, in, &ingestStream{api: i.api, stream: stream, outbox: out, traceID: c.TraceID})
}

// first returns the message that opens a stream, as bytes, unless ctx ends before it comes:
// gRPC's Recv ends only with the handler.
func (i ingestServer) first(ctx context.Context,
	stream grpc.BidiStreamingServer[sidecarv1.IngestRequest, sidecarv1.IngestResponse]) ([]byte, error) {
	type received struct {
		m   emptypb.Empty // rows are not taken apart: see feed
		err error
	}
	came := make(chan *received, 1)
	i.api.core.Senders.Go(func() {
		r := new(received)
		r.err = panics.Call("the first message of a stream", func() error { return stream.RecvMsg(&r.m) })
		came <- r
	})
	select {
	case r := <-came:
		return r.m.ProtoReflect().GetUnknown(), r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// gone is why nothing comes from a caller any more.
func gone(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) {
		return core.BadRequest("the stream has no messages; the first one opens it")
	}
	return core.BadRequest("a message cannot be read: %v", err)
}

// ingestStream is the gRPC side of one stream.
type ingestStream struct {
	api     *API
	stream  grpc.BidiStreamingServer[sidecarv1.IngestRequest, sidecarv1.IngestResponse]
	outbox  outbox[sidecarv1.IngestResponse]
	traceID string
}

func (*ingestStream) Opened(context.Context) error { return nil }

func (g *ingestStream) Feed(ctx context.Context, rows *ingest.Stream, pace func(int) error, added func()) error {
	var columns []string
	for {
		g.api.core.Deps.Memory.Slow(ctx)
		// Rows are not taken apart into messages, which would cost more than all the
		// rest: to a message without fields everything is unknown, and kept as it came.
		m := &emptypb.Empty{}
		switch err := g.stream.RecvMsg(m); {
		case err == io.EOF:
			return nil
		case err != nil:
			return gone(ctx, err)
		}
		octets := m.ProtoReflect().GetUnknown()
		if err := pace(len(octets)); err != nil {
			return err
		}
		part, more, err := partOf(octets)
		if err != nil {
			return err
		}
		if part != fieldRows {
			return core.BadRequest("every message after the first must have rows")
		}
		if err := g.add(more, &columns, rows); err != nil {
			return err
		}
		added()
	}
}

// Numbers of fields in ingest.proto.
const (
	fieldOpen    = 1 // IngestRequest.open
	fieldRows    = 2 // IngestRequest.rows
	fieldColumns = 1 // IngestRows.columns
	fieldRow     = 2 // IngestRows.rows
)

// add adds the rows of one message: the bytes of IngestRows.
func (g *ingestStream) add(message []byte, columns *[]string, rows *ingest.Stream) error {
	var names []string
	for number, field := range yql.Fields(message) {
		switch {
		case number == 0:
			return core.BadRequest("a message cannot be read: it is not an IngestRows")
		case number > fieldRow || field == nil:
			return yql.UnknownField(number, ingestRowsName)
		case number == fieldColumns:
			if names = append(names, string(field)); len(names) > g.api.core.Cfg.API.MaxParams {
				return core.OverLimit("columns", len(names), g.api.core.Cfg.API.MaxParams, "api.max_params")
			}
		}
	}
	if len(names) > 0 {
		*columns = names
	}
	for number, field := range yql.Fields(message) {
		if number == fieldRow {
			if err := rows.AddEncoded(*columns, field); err != nil {
				return err
			}
		}
	}
	return nil
}

// partOf returns the part of an IngestRequest: its number, 0 if there is none, and its bytes.
func partOf(message []byte) (part protowire.Number, octets []byte, err error) {
	for number, field := range yql.Fields(message) {
		switch {
		case number == 0:
			return 0, nil, core.BadRequest("a message cannot be read: it is not an IngestRequest")
		case number > fieldRows || field == nil:
			return 0, nil, yql.UnknownField(number, ingestRequestName)
		}
		part, octets = number, field // the last one counts
	}
	return part, octets, nil
}

var (
	ingestRequestName = (&sidecarv1.IngestRequest{}).ProtoReflect().Descriptor().FullName()
	ingestRowsName    = (&sidecarv1.IngestRows{}).ProtoReflect().Descriptor().FullName()
)

func (g *ingestStream) Progress(ctx context.Context, p ingest.Progress) error {
	for _, r := range p.Refused {
		err := g.outbox.send(ctx, &sidecarv1.IngestResponse{Part: &sidecarv1.IngestResponse_Refused{Refused: &sidecarv1.IngestRefused{
			Offset: r.Offset, Error: g.api.core.Answered(rows.FaultOf(r.Err)).Proto(g.traceID),
		}}})
		if err != nil {
			return err
		}
	}
	return g.outbox.send(ctx, &sidecarv1.IngestResponse{Part: &sidecarv1.IngestResponse_Ack{Ack: &sidecarv1.IngestAck{Next: p.Next}}})
}

func (g *ingestStream) End(ctx context.Context, t ingest.Totals) error {
	return g.outbox.send(ctx, &sidecarv1.IngestResponse{Part: &sidecarv1.IngestResponse_End{End: &sidecarv1.IngestEnd{
		Next: t.Next, Rows: t.Rows, Refused: t.Refused,
	}}})
}
