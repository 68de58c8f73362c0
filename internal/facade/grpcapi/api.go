package grpcapi

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/facade/rows"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/panics"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// API is the gRPC API: the service sidecar.v1.Sidecar, and what the other services of it share.
type API struct {
	sidecarv1.UnimplementedSidecarServer

	core *core.Service
	kv   *kv.Service
	rows *rows.Service
}

// Open makes the API ready for its first call.
func (a *API) Open(s *core.Service, byKey *kv.Service, streams *rows.Service) {
	a.core, a.kv, a.rows = s, byKey, streams
}

// Register makes the gRPC API known to a server made with ServerOptions.
func (a *API) Register(r grpc.ServiceRegistrar) {
	for _, one := range a.services() {
		r.RegisterService(a.weighed(one.desc), one.of)
	}
}

// Unary calls each with every method of the gRPC API that has one request and one answer:
// its path, and what runs it as a server would.
func (a *API) Unary(each func(path string, run func(ctx context.Context, decode func(any) error) (any, error))) {
	for _, one := range a.services() {
		for _, m := range a.weighed(one.desc).Methods {
			each(one.path(m.MethodName), func(ctx context.Context, decode func(any) error) (any, error) {
				return m.Handler(one.of, ctx, decode, nil)
			})
		}
	}
}

// Streaming is Unary for the methods that have one request and many answers.
func (a *API) Streaming(each func(path string, run func(grpc.ServerStream) error)) {
	for _, one := range a.services() {
		for _, m := range a.weighed(one.desc).Streams {
			if !m.ClientStreams {
				each(one.path(m.StreamName), func(stream grpc.ServerStream) error { return m.Handler(one.of, stream) })
			}
		}
	}
}

// Denied calls each with every method of the gRPC API: its path, and what answers a call that comes with no token of an app, while any app
// has one. That does all that the method does with such a call, but without its request, of which nothing needs to be here.
func (a *API) Denied(each func(path string, run func(ctx context.Context, decode func(any) error) (any, error))) {
	for _, one := range a.services() {
		var names []string
		for _, m := range one.desc.Methods {
			names = append(names, m.MethodName)
		}
		for _, m := range one.desc.Streams {
			names = append(names, m.StreamName)
		}
		for _, name := range names {
			path := one.path(name)
			each(path, func(ctx context.Context, _ func(any) error) (any, error) {
				in, c := callOf(ctx, nameOf(path))
				fault := a.core.Serve(in, c, func(context.Context) error { return apps.ErrToken }) // which an app may have by now
				return nil, StatusOf(fault, c.TraceID)
			})
		}
	}
}

// nameOf is what the call of a method is named, by its path.
func nameOf(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, "/sidecar.v1."), "Sidecar/")
}

// served is a service of the gRPC API.
type served struct {
	desc *grpc.ServiceDesc
	of   any
}

// path is that of a method.
func (v served) path(method string) string { return "/" + v.desc.ServiceName + "/" + method }

func (a *API) services() []served {
	return []served{{&sidecarv1.Sidecar_ServiceDesc, a}, {&sidecarv1.KeyValue_ServiceDesc, keyValueServer{api: a}},
		{&sidecarv1.Ingest_ServiceDesc, ingestServer{api: a}}}
}

// ServerOptions bound what a gRPC server reads. The limits are twice those of the
// settings, so that what exceeds a setting a little is still answered with an
// error that names it.
func (a *API) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(2 * a.core.Cfg.API.MaxBody),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.MaxHeaderListSize(uint32(2 * a.core.Cfg.API.MaxHeaders)),
		grpc.ChainUnaryInterceptor(func(
			ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler,
		) (res any, err error) {
			err = panics.Call("a gRPC handler", func() (err error) {
				res, err = next(ctx, req)
				return err
			})
			return res, panicStatus(err)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return panicStatus(panics.Call("a gRPC handler", func() error { return next(srv, stream) }))
		}),
	}
}

const (
	keyServerTiming = "server-timing"
	errorDomain     = "sidecar.v1"
)

// unary runs one call of the gRPC API.
func unary[Res proto.Message](ctx context.Context, a *API, name string, req proto.Message,
	f func(context.Context, *core.Call) (Res, error)) (Res, error) {
	var res Res
	c, fault := a.call(ctx, name, req, func(ctx context.Context, c *core.Call) (err error) {
		if p := a.core.Other.OwnerOf(ctx, c, txID(req)); p != nil {
			res, err = relayUnary[Res](ctx, a, c, p, req)
			return err
		}
		if res, err = f(ctx, c); err == nil && c.App.Metered() {
			c.Count(proto.Size(res))
		}
		return err
	})
	if told := a.trailer(c, fault); len(told) > 0 {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(told...)) // fails only outside a call
	}
	if fault != nil {
		var none Res
		return none, StatusOf(fault, c.TraceID)
	}
	return res, nil
}

// trailer is what a caller is told behind the answer: names and values in turn.
func (a *API) trailer(c *core.Call, fault *core.Fault) (told []string) {
	if timing := core.ServerTiming(c.Info); timing != "" {
		told = []string{keyServerTiming, timing}
	}
	if fault != nil {
		a.core.Deprecated.Shows(c, fault)
	}
	c.Headers(func(name, value string) { told = append(told, strings.ToLower(name), value) })
	return told
}

// callOf is a call by its headers, and its context with the trace that they name.
func callOf(ctx context.Context, name string) (context.Context, *core.Call) {
	md, _ := metadata.FromIncomingContext(ctx)
	get := incoming(md).Get
	return core.Extract(
			ctx, incoming(md),
		), &core.Call{Name: name, Priority: core.PriorityOf(get), Caller: core.CallerOf(ctx, get, md.Get(core.HeaderToken)),
			From: core.ConnectionOf(ctx, get)}
}

func (a *API) call(
	ctx context.Context, name string, req proto.Message, f func(context.Context, *core.Call) error,
) (*core.Call, *core.Fault) {
	in, c := callOf(ctx, name)
	fault := a.core.Serve(in, c, func(ctx context.Context) error {
		early := receivedOf(ctx)
		md, _ := metadata.FromIncomingContext(ctx)
		if err := repeated(md); err != nil {
			return err
		}
		if err := a.weigh(c, metadataSize(md), requestSize(ctx, early, req), early, req); err != nil {
			return err
		}
		return f(ctx, c)
	})
	return c, fault
}

// weigh refuses a request that is too large, for which there is no memory, or that says more than this process understands.
func (a *API) weigh(c *core.Call, headers, size int, early *received, req proto.Message) error {
	if err := a.weighRead(c, headers, size, early, func() int { return valuesOf(req) }); err != nil {
		return err
	}
	a.core.UsesFields(c, req)
	return understood(req.ProtoReflect())
}

// weighRead is weigh without the look for unknown fields, for whoever has read the request by hand. values counts those of its parameters.
func (a *API) weighRead(c *core.Call, headers, size int, early *received, values func() int) error {
	a.core.Deprecated.Uses(c, c.Name)
	if headers > a.core.Cfg.API.MaxHeaders {
		return core.OverLimit("bytes of metadata", headers, a.core.Cfg.API.MaxHeaders, "api.max_headers")
	}
	if size > a.core.Cfg.API.MaxBody {
		return core.OverLimit("bytes of the request", size, a.core.Cfg.API.MaxBody, "api.max_body")
	}
	if err := a.core.RoomFor(size); err != nil {
		return err
	}
	if early == nil {
		if err := core.TakeRequest(&c.Reserved, core.DecodedTwice*size+core.ValueCost*values()); err != nil {
			return err
		}
	} else if early.refused != nil {
		return early.refused
	}
	c.Large = size > lane.Large
	c.Count(size)
	return nil
}

// Execute runs one statement and returns all rows.
func (a *API) Execute(ctx context.Context, req *sidecarv1.ExecuteRequest) (*sidecarv1.ExecuteResponse, error) {
	return unary(ctx, a, "Execute", req, func(ctx context.Context, c *core.Call) (*sidecarv1.ExecuteResponse, error) {
		var rows protoSink
		done, err := a.core.Execute(ctx, c, core.ExecuteOf(req, a.params()), &rows)
		if err != nil {
			return nil, err
		}
		return rows.response(c, done), nil
	})
}

// response is the answer of Execute.
func (p *protoSink) response(c *core.Call, done core.Outcome) *sidecarv1.ExecuteResponse {
	first, all := p.result()
	return withRows(&sidecarv1.ExecuteResponse{
		Columns: first.columns, Truncated: first.truncated, Sets: all,
		Tx: done.Tx, Stats: done.Stats, Info: c.Info, RowsAffected: done.Affected,
	}, first.rows)
}

// appendResponse appends the encoded response(c, done). Several result sets, and statistics, are left to package proto.
func (p *protoSink) appendResponse(b []byte, c *core.Call, done core.Outcome) ([]byte, error) {
	if len(p.sets) > 1 || done.Stats != nil {
		return encode(b, p.response(c, done), nil)
	}
	const truncated, tx, info, affected = 3, 5, 6, 8 // of ExecuteResponse
	if len(p.sets) == 1 {
		b = p.columns.AppendMessages(b)
		if p.sets[0].truncated {
			b = numberField(b, truncated, 1)
		}
	}
	if done.Tx != nil {
		b = messageField(b, tx, func(b []byte) []byte { return appendTx(b, done.Tx) })
	}
	b = messageField(b, info, func(b []byte) []byte { return appendInfo(b, c.Info) })
	if done.Affected != nil {
		b = protowire.AppendVarint(protowire.AppendTag(b, affected, protowire.VarintType), *done.Affected)
	}
	if len(p.sets) == 1 {
		b = append(b, p.sets[0].rows...)
	}
	return b, nil
}

// ExecuteStream runs one statement and sends its rows as they arrive.
func (a *API) ExecuteStream(req *sidecarv1.ExecuteRequest, stream grpc.ServerStreamingServer[sidecarv1.ExecuteStreamResponse]) error {
	c, fault := a.call(stream.Context(), "ExecuteStream", req, func(ctx context.Context, c *core.Call) error {
		if p := a.core.Other.OwnerOf(ctx, c, txID(req)); p != nil {
			return a.relayStream(ctx, c, p, req, stream)
		}
		return a.streamTo(ctx, c, req, stream)
	})
	if told := a.trailer(c, fault); len(told) > 0 {
		stream.SetTrailer(metadata.Pairs(told...))
	}
	if fault != nil {
		return StatusOf(fault, c.TraceID)
	}
	return nil
}

func (a *API) streamTo(ctx context.Context, c *core.Call, req *sidecarv1.ExecuteRequest,
	stream grpc.ServerStreamingServer[sidecarv1.ExecuteStreamResponse]) (err error) {
	in := core.ExecuteOf(req, a.params())
	in.Streamed = true
	// The deadline holds for the reader too, so it is set before execute does.
	ctx, moved, cancel, err := a.core.Bounded(c).Moving(ctx, c.Work, in.Timeout)
	if err != nil {
		return err
	}
	defer cancel()
	in.Moved = moved
	out := a.newStream(ctx, stream)
	out.call, out.moved = c, moved
	defer func() {
		if lost := out.close(ctx); err == nil {
			err = lost
		}
	}()
	done, err := a.core.Execute(ctx, c, in, out)
	if err != nil {
		return err
	}
	return out.send(ctx, &sidecarv1.ExecuteStreamResponse{Part: &sidecarv1.ExecuteStreamResponse_End{End: &sidecarv1.StreamEnd{
		Tx: done.Tx, Info: c.Info, Stats: done.Stats, Rows: done.Rows, Truncated: done.Truncated, RowsAffected: done.Affected,
	}}})
}

// Transact runs a list of statements as one transaction.
func (a *API) Transact(ctx context.Context, req *sidecarv1.TransactRequest) (*sidecarv1.TransactResponse, error) {
	return unary(ctx, a, "Transact", req, func(ctx context.Context, c *core.Call) (*sidecarv1.TransactResponse, error) {
		in := core.TransactOf(req, a.params())
		sinks := make([]protoSink, len(in.Statements))
		done, tx, err := a.core.Transact(ctx, c, in, func(i int) core.Sink { return &sinks[i] })
		if err != nil {
			return nil, err
		}
		res := &sidecarv1.TransactResponse{Info: c.Info, Tx: tx}
		for i := range sinks {
			first, all := sinks[i].result()
			res.Results = append(res.Results, withRows(&sidecarv1.StatementResult{
				Columns: first.columns, Truncated: first.truncated, Sets: all, Stats: done[i].Stats, RowsAffected: done[i].Affected,
			}, first.rows))
		}
		return res, nil
	})
}

// Begin opens an interactive transaction.
func (a *API) Begin(ctx context.Context, req *sidecarv1.BeginRequest) (*sidecarv1.BeginResponse, error) {
	return unary(ctx, a, "Begin", req, func(ctx context.Context, c *core.Call) (*sidecarv1.BeginResponse, error) {
		tx, err := a.core.Tx.Begin(ctx, c, core.BeginOf(req))
		return &sidecarv1.BeginResponse{Tx: tx, Info: c.Info}, err
	})
}

// Commit commits an interactive transaction.
func (a *API) Commit(ctx context.Context, req *sidecarv1.CommitRequest) (*sidecarv1.CommitResponse, error) {
	return unary(ctx, a, "Commit", req, func(ctx context.Context, c *core.Call) (*sidecarv1.CommitResponse, error) {
		return &sidecarv1.CommitResponse{Info: c.Info}, a.core.Tx.Commit(ctx, c, req.Id, req.Timeout)
	})
}

// Rollback rolls an interactive transaction back.
func (a *API) Rollback(ctx context.Context, req *sidecarv1.RollbackRequest) (*sidecarv1.RollbackResponse, error) {
	return unary(ctx, a, "Rollback", req, func(ctx context.Context, c *core.Call) (*sidecarv1.RollbackResponse, error) {
		return &sidecarv1.RollbackResponse{Info: c.Info}, a.core.Tx.RollBack(ctx, c, req.Id, req.Timeout)
	})
}

// GetTransaction tells the state of an open interactive transaction.
func (a *API) GetTransaction(ctx context.Context, req *sidecarv1.GetTransactionRequest) (*sidecarv1.GetTransactionResponse, error) {
	return unary(ctx, a, "GetTransaction", req, func(context.Context, *core.Call) (*sidecarv1.GetTransactionResponse, error) {
		return a.core.Tx.Get(req.Id)
	})
}

// Batch runs independent statements, each with an outcome of its own.
func (a *API) Batch(ctx context.Context, req *sidecarv1.BatchRequest) (*sidecarv1.BatchResponse, error) {
	return unary(ctx, a, "Batch", req, func(ctx context.Context, c *core.Call) (*sidecarv1.BatchResponse, error) {
		in := core.BatchOf(req, a.params())
		sinks := make([]protoSink, len(in.Statements))
		done, err := a.core.Batch(ctx, c, in, func(i int) core.Sink { return &sinks[i] })
		if err != nil {
			return nil, err
		}
		res := &sidecarv1.BatchResponse{Results: make([]*sidecarv1.BatchResult, len(done))}
		for i, one := range done {
			res.Results[i] = &sidecarv1.BatchResult{Info: one.Info}
			if one.Fault != nil {
				res.Results[i].Error = one.Fault.Proto(c.Failing())
				continue
			}
			first, all := sinks[i].result()
			r := withRows(res.Results[i], first.rows)
			r.Columns, r.Truncated, r.Sets, r.RowsAffected = first.columns, first.truncated, all, one.Affected
		}
		return res, nil
	})
}

// BulkUpsert writes rows without a transaction.
func (a *API) BulkUpsert(ctx context.Context, req *sidecarv1.BulkUpsertRequest) (*sidecarv1.BulkUpsertResponse, error) {
	return unary(ctx, a, "BulkUpsert", req, func(ctx context.Context, c *core.Call) (*sidecarv1.BulkUpsertResponse, error) {
		n, err := a.core.BulkUpsert(ctx, c, core.BulkOf(req, receivedOf(ctx).rows))
		return &sidecarv1.BulkUpsertResponse{Rows: n, Info: c.Info}, err
	})
}

// Explain returns the plan of a statement.
func (a *API) Explain(ctx context.Context, req *sidecarv1.ExplainRequest) (*sidecarv1.ExplainResponse, error) {
	return unary(ctx, a, "Explain", req, func(ctx context.Context, c *core.Call) (*sidecarv1.ExplainResponse, error) {
		plan, err := a.core.Explain(ctx, c, core.ExplainOf(req))
		return &sidecarv1.ExplainResponse{Plan: plan.Plan, Ast: plan.AST, Info: c.Info}, err
	})
}

// Describe returns the columns and the key of a table.
func (a *API) Describe(ctx context.Context, req *sidecarv1.DescribeRequest) (*sidecarv1.DescribeResponse, error) {
	return unary(ctx, a, "Describe", req, func(ctx context.Context, c *core.Call) (*sidecarv1.DescribeResponse, error) {
		return a.core.DescribeTable(ctx, c, req.Path, req.Timeout)
	})
}

// Status returns the state of the sidecar.
func (a *API) Status(ctx context.Context, req *sidecarv1.StatusRequest) (*sidecarv1.StatusResponse, error) {
	return unary(ctx, a, "Status", req, func(context.Context, *core.Call) (*sidecarv1.StatusResponse, error) {
		return a.core.Status(), nil
	})
}

// Version says what the sidecar serves.
func (a *API) Version(ctx context.Context, req *sidecarv1.VersionRequest) (*sidecarv1.VersionResponse, error) {
	return unary(ctx, a, "Version", req, func(context.Context, *core.Call) (*sidecarv1.VersionResponse, error) {
		return a.core.Version(), nil
	})
}
