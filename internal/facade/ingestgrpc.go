package facade

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/ingest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// callIngest is the name of the call, with its service.
const callIngest = "Ingest/Ingest"

// ingestServer is the service sidecar.v1.Ingest.
type ingestServer struct {
	sidecarv1.UnimplementedIngestServer
	s *Service
}

// Ingest writes rows as they come.
func (i ingestServer) Ingest(stream grpc.BidiStreamingServer[sidecarv1.IngestRequest, sidecarv1.IngestResponse]) error {
	c, fault := i.s.grpcCall(stream.Context(), callIngest, &sidecarv1.IngestOpen{}, func(ctx context.Context, c *call) error {
		first, err := stream.Recv()
		if err != nil {
			return gone(ctx, err)
		}
		open := first.GetOpen()
		if open == nil {
			return badRequest("the first message has to open the stream: open.table is missing")
		}
		in := ingestRequest{table: open.Table, offset: open.Offset, stream: open.Stream}
		return i.s.ingestRows(ctx, c, in, &ingestStream{s: i.s, stream: stream, traceID: c.traceID})
	})
	if fault != nil {
		return fault.status(c.traceID)
	}
	return nil
}

// gone is why nothing comes from a caller any more.
func gone(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) {
		return badRequest("the stream has no messages; the first one opens it")
	}
	return badRequest("a message cannot be read: %v", err)
}

// ingestStream is the gRPC face of one stream.
type ingestStream struct {
	s       *Service
	stream  grpc.BidiStreamingServer[sidecarv1.IngestRequest, sidecarv1.IngestResponse]
	traceID string
}

func (*ingestStream) opened(context.Context) error { return nil }

func (g *ingestStream) feed(ctx context.Context, rows *ingest.Stream) error {
	var columns []string
	for {
		g.s.deps.Memory.Slow(ctx)
		m, err := g.stream.Recv()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return gone(ctx, err)
		}
		more := m.GetRows()
		if more == nil {
			return badRequest("a message is neither rows nor the first one")
		}
		if len(more.Columns) > 0 {
			columns = more.Columns
		}
		if len(columns) > g.s.cfg.API.MaxParams {
			return overLimit("columns", len(columns), g.s.cfg.API.MaxParams, "api.max_params")
		}
		for _, row := range more.Rows {
			if err := rows.AddValues(columns, row.GetValues()); err != nil {
				return err
			}
		}
	}
}

func (g *ingestStream) progress(ctx context.Context, p ingest.Progress) error {
	for _, r := range p.Refused {
		err := g.send(ctx, &sidecarv1.IngestResponse{Part: &sidecarv1.IngestResponse_Refused{Refused: &sidecarv1.IngestRefused{
			Offset: r.Offset, Error: ingestFault(r.Err).proto(g.traceID),
		}}})
		if err != nil {
			return err
		}
	}
	return g.send(ctx, &sidecarv1.IngestResponse{Part: &sidecarv1.IngestResponse_Ack{Ack: &sidecarv1.IngestAck{Next: p.Next}}})
}

func (g *ingestStream) end(ctx context.Context, t ingest.Totals) error {
	return g.send(ctx, &sidecarv1.IngestResponse{Part: &sidecarv1.IngestResponse_End{End: &sidecarv1.IngestEnd{
		Next: t.Next, Rows: t.Rows, Refused: t.Refused,
	}}})
}

func (g *ingestStream) send(ctx context.Context, m *sidecarv1.IngestResponse) error {
	if err := g.stream.Send(m); err != nil {
		return unread(ctx)
	}
	return nil
}
