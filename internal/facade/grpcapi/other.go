package grpcapi

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// OtherOptions are ServerOptions for the server over which the other process calls.
func (a *API) OtherOptions() []grpc.ServerOption {
	return append(a.ServerOptions(), grpc.StatsHandler(markOther{}))
}

// markOther marks the context of each call before its request is decoded, which no interceptor could.
type markOther struct{}

// TagRPC implements stats.Handler.
func (markOther) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, core.FromOther{}, true)
}

// HandleRPC implements stats.Handler.
func (markOther) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn implements stats.Handler.
func (markOther) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (markOther) HandleConn(context.Context, stats.ConnStats) {}

// txID returns the id of the transaction that a request continues or asks for.
func txID(req proto.Message) string {
	switch r := req.(type) {
	case interface {
		GetTx() *sidecarv1.TxSelector
	}: // Execute, Transact
		return r.GetTx().GetId()
	case interface{ GetId() string }: // Commit, Rollback, GetTransaction
		return r.GetId()
	}
	return ""
}

// mayCommit tells whether the request may have committed its transaction.
func mayCommit(req proto.Message) bool {
	switch r := req.(type) {
	case interface {
		GetTx() *sidecarv1.TxSelector
	}: // Execute, Transact
		return r.GetTx().GetCommit()
	case *sidecarv1.CommitRequest:
		return true
	}
	return false
}

// relayUnary hands a call of the gRPC API over.
func relayUnary[Res proto.Message](ctx context.Context, a *API, c *core.Call, p *core.OtherProcess, req proto.Message) (Res, error) {
	var none Res
	res := none.ProtoReflect().New().Interface().(Res)
	var header, trailer metadata.MD
	err := a.core.Other.HandOver(ctx, []string{timeoutOf(req)}, func(ctx context.Context) error {
		err := p.GRPC.Invoke(relayed(ctx, c), methodPath(c.Name), req, res, grpc.Header(&header), grpc.Trailer(&trailer))
		return relayedFault(ctx, err, mayCommit(req))
	})
	_ = grpc.SetHeader(ctx, own(header)) // headers and trailers fail only outside a call
	_ = grpc.SetTrailer(ctx, own(trailer))
	if err != nil {
		return none, err
	}
	return res, nil
}

// relayStream hands ExecuteStream over. Its owner ends it when it does not move.
func (a *API) relayStream(ctx context.Context, c *core.Call, p *core.OtherProcess, req *sidecarv1.ExecuteRequest,
	stream grpc.ServerStreamingServer[sidecarv1.ExecuteStreamResponse]) error {
	return a.core.Other.HandOver(ctx, []string{req.GetTimeout(), a.core.Cfg.API.MaxTimeout.String()},
		func(ctx context.Context) (err error) {
			from, err := p.GRPC.NewStream(relayed(ctx, c), &grpc.StreamDesc{ServerStreams: true}, methodPath("ExecuteStream"))
			if err == nil {
				err = from.SendMsg(req)
			}
			if err == nil || errors.Is(err, io.EOF) { // the reason for that comes with RecvMsg
				err = from.CloseSend()
			}
			if err != nil {
				return relayedFault(ctx, err, mayCommit(req))
			}
			out := a.newStream(ctx, stream)
			defer func() {
				if lost := out.close(ctx); err == nil {
					err = lost
				}
			}()
			for {
				part := new(sidecarv1.ExecuteStreamResponse)
				switch err := from.RecvMsg(part); {
				case errors.Is(err, io.EOF):
					stream.SetTrailer(own(from.Trailer()))
					return nil
				case err != nil:
					stream.SetTrailer(own(from.Trailer()))
					return relayedFault(ctx, err, mayCommit(req))
				}
				if err := out.send(ctx, part); err != nil {
					return err
				}
			}
		})
}

func timeoutOf(req proto.Message) string {
	if r, ok := req.(interface{ GetTimeout() string }); ok {
		return r.GetTimeout()
	}
	return ""
}

func methodPath(name string) string {
	return "/" + sidecarv1.Sidecar_ServiceDesc.ServiceName + "/" + name
}

// relayed is the context of a call that is handed over: with the caller's
// metadata and the app that this process found it to be of, below this process's span.
func relayed(ctx context.Context, c *core.Call) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	md = own(md)
	md.Set(core.HeaderApp, c.App.Name())
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for key, value := range carrier {
		md.Set(key, value)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// own leaves out what gRPC itself puts into metadata, and what HTTP/2 allows in headers and a client of grpc-go refuses to send: the API
// reads nothing of that.
func own(md metadata.MD) metadata.MD {
	out := maps.Clone(md)
	if out == nil {
		out = metadata.MD{}
	}
	maps.DeleteFunc(out, func(key string, values []string) bool {
		return key == "content-type" || key == "user-agent" || strings.HasPrefix(key, "grpc-") ||
			strings.ContainsFunc(key, isNotOfKeys) || !strings.HasSuffix(key, "-bin") && slices.ContainsFunc(values, isUnprintable)
	})
	return out
}

// isNotOfKeys reports whether keys of metadata must not have the character.
func isNotOfKeys(c rune) bool {
	return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
}

// isUnprintable reports whether a value of metadata must not be like this, except under a key that ends in -bin.
func isUnprintable(value string) bool {
	return strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' })
}

// relayedFault makes a fault of the owner's error: its own words as they came,
// or, if it gave none, what can be said without it.
func relayedFault(ctx context.Context, err error, commits bool) error {
	if err == nil {
		return nil
	}
	for _, detail := range status.Convert(err).Details() {
		if e, ok := detail.(*sidecarv1.Error); ok {
			return &core.Fault{Code: core.CodeNamed(e.Code), Message: e.Message, Safe: e.SafeToRetry,
				Unknown: e.OutcomeUnknown, Relayed: err}
		}
	}
	return core.Unanswered(ctx, err, commits)
}
