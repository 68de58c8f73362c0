package facade

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// grpcAPI is the gRPC API: the service sidecar.v1.Sidecar, and what the other services of it share.
type grpcAPI struct {
	sidecarv1.UnimplementedSidecarServer

	core *coreService
	kv   *keyValue
	rows *rowStreams
}

// open makes the API ready for its first call.
func (a *grpcAPI) open(s *coreService, kv *keyValue, rows *rowStreams) {
	a.core, a.kv, a.rows = s, kv, rows
}

// Register makes the gRPC face known to a server made with ServerOptions.
func (a *grpcAPI) Register(r grpc.ServiceRegistrar) {
	for _, one := range a.services() {
		r.RegisterService(a.weighed(one.desc), one.of)
	}
}

// Unary calls each with every method of the gRPC face that has one request and one answer:
// its path, and what runs it as a server would.
func (a *grpcAPI) Unary(each func(path string, run func(ctx context.Context, decode func(any) error) (any, error))) {
	for _, one := range a.services() {
		for _, m := range a.weighed(one.desc).Methods {
			each(one.path(m.MethodName), func(ctx context.Context, decode func(any) error) (any, error) {
				return m.Handler(one.of, ctx, decode, nil)
			})
		}
	}
}

// Streaming is Unary for the methods that have one request and many answers.
func (a *grpcAPI) Streaming(each func(path string, run func(grpc.ServerStream) error)) {
	for _, one := range a.services() {
		for _, m := range a.weighed(one.desc).Streams {
			if !m.ClientStreams {
				each(one.path(m.StreamName), func(stream grpc.ServerStream) error { return m.Handler(one.of, stream) })
			}
		}
	}
}

// Denied calls each with every method of the gRPC face: its path, and what answers a call that comes with no token of an app, while any app
// has one. That does all that the method does with such a call, but without its request, of which nothing needs to be here.
func (a *grpcAPI) Denied(each func(path string, run func(ctx context.Context, decode func(any) error) (any, error))) {
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
				fault := a.core.serve(in, c, func(context.Context) error { return apps.ErrToken }) // which an app may have by now
				return nil, statusOf(fault, c.traceID)
			})
		}
	}
}

// nameOf is what the call of a method is named, by its path.
func nameOf(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, "/sidecar.v1."), "Sidecar/")
}

// served is a service of the gRPC face.
type served struct {
	desc *grpc.ServiceDesc
	of   any
}

// path is that of a method.
func (v served) path(method string) string { return "/" + v.desc.ServiceName + "/" + method }

func (a *grpcAPI) services() []served {
	return []served{{&sidecarv1.Sidecar_ServiceDesc, a}, {&sidecarv1.KeyValue_ServiceDesc, keyValueServer{api: a}}, {&sidecarv1.Ingest_ServiceDesc, ingestServer{api: a}}}
}

// ServerOptions bound what a gRPC server reads. The limits are twice those of the
// settings, so that what exceeds a setting a little is still answered with an
// error that names it.
func (a *grpcAPI) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(2 * a.core.cfg.API.MaxBody),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.MaxHeaderListSize(uint32(2 * a.core.cfg.API.MaxHeaders)),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (res any, err error) {
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

// unary runs one call of the gRPC face.
func unary[Res proto.Message](ctx context.Context, a *grpcAPI, name string, req proto.Message, f func(context.Context, *call) (Res, error)) (Res, error) {
	var res Res
	c, fault := a.call(ctx, name, req, func(ctx context.Context, c *call) (err error) {
		if p := a.core.other.ownerOf(ctx, c, txID(req)); p != nil {
			res, err = relayUnary[Res](ctx, a, c, p, req)
			return err
		}
		if res, err = f(ctx, c); err == nil && c.app.Metered() {
			c.count(proto.Size(res))
		}
		return err
	})
	if timing := serverTiming(c.info); timing != "" {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(keyServerTiming, timing)) // fails only outside a call
	}
	if fault != nil {
		var none Res
		return none, statusOf(fault, c.traceID)
	}
	return res, nil
}

// callOf is a call by its headers, and its context with the trace that they name.
func callOf(ctx context.Context, name string) (context.Context, *call) {
	md, _ := metadata.FromIncomingContext(ctx)
	get := incoming(md).Get
	return extract(ctx, incoming(md)), &call{name: name, priority: priorityOf(get), caller: callerOf(ctx, get, md.Get(headerToken)), from: connectionOf(ctx, get)}
}

func (a *grpcAPI) call(ctx context.Context, name string, req proto.Message, f func(context.Context, *call) error) (*call, *fault) {
	in, c := callOf(ctx, name)
	fault := a.core.serve(in, c, func(ctx context.Context) error {
		early := receivedOf(ctx)
		md, _ := metadata.FromIncomingContext(ctx)
		if err := a.weigh(c, metadataSize(md), requestSize(ctx, early, req), early, req); err != nil {
			return err
		}
		return f(ctx, c)
	})
	return c, fault
}

// weigh refuses a request that is too large, for which there is no memory, or that says more than this process understands.
func (a *grpcAPI) weigh(c *call, headers, size int, early *received, req proto.Message) error {
	if err := a.weighRead(c, headers, size, early, func() int { return valuesOf(req) }); err != nil {
		return err
	}
	return understood(req.ProtoReflect())
}

// weighRead is weigh without the look for unknown fields, for whoever has read the request by hand. values counts those of its parameters.
func (a *grpcAPI) weighRead(c *call, headers, size int, early *received, values func() int) error {
	if headers > a.core.cfg.API.MaxHeaders {
		return overLimit("bytes of metadata", headers, a.core.cfg.API.MaxHeaders, "api.max_headers")
	}
	if size > a.core.cfg.API.MaxBody {
		return overLimit("bytes of the request", size, a.core.cfg.API.MaxBody, "api.max_body")
	}
	if err := a.core.roomFor(size); err != nil {
		return err
	}
	if early == nil {
		if err := tooMuch(c.reserved.Take(decodedTwice*size + valueCost*values())); err != nil {
			return err
		}
	} else if early.refused != nil {
		return early.refused
	}
	c.large = size > lane.Large
	c.count(size)
	return nil
}

// Execute runs one statement and returns all rows.
func (a *grpcAPI) Execute(ctx context.Context, req *sidecarv1.ExecuteRequest) (*sidecarv1.ExecuteResponse, error) {
	return unary(ctx, a, "Execute", req, func(ctx context.Context, c *call) (*sidecarv1.ExecuteResponse, error) {
		var rows protoSink
		done, err := a.core.execute(ctx, c, a.executeOf(req), &rows)
		if err != nil {
			return nil, err
		}
		return rows.response(c, done), nil
	})
}

// response is the answer of Execute.
func (p *protoSink) response(c *call, done outcome) *sidecarv1.ExecuteResponse {
	first, all := p.result()
	return withRows(&sidecarv1.ExecuteResponse{
		Columns: first.columns, Truncated: first.truncated, Sets: all,
		Tx: done.tx, Stats: done.stats, Info: c.info,
	}, first.rows)
}

// appendResponse appends the encoded response(c, done). Several result sets, and statistics, are left to package proto.
func (p *protoSink) appendResponse(b []byte, c *call, done outcome) ([]byte, error) {
	if len(p.sets) > 1 || done.stats != nil {
		return encode(b, p.response(c, done), nil)
	}
	const truncated, tx, info = 3, 5, 6 // of ExecuteResponse
	if len(p.sets) == 1 {
		b = p.columns.AppendMessages(b)
		if p.sets[0].truncated {
			b = numberField(b, truncated, 1)
		}
	}
	if done.tx != nil {
		b = messageField(b, tx, func(b []byte) []byte { return appendTx(b, done.tx) })
	}
	b = messageField(b, info, func(b []byte) []byte { return appendInfo(b, c.info) })
	if len(p.sets) == 1 {
		b = append(b, p.sets[0].rows...)
	}
	return b, nil
}

// ExecuteStream runs one statement and sends its rows as they arrive.
func (a *grpcAPI) ExecuteStream(req *sidecarv1.ExecuteRequest, stream grpc.ServerStreamingServer[sidecarv1.ExecuteStreamResponse]) error {
	c, fault := a.call(stream.Context(), "ExecuteStream", req, func(ctx context.Context, c *call) error {
		if p := a.core.other.ownerOf(ctx, c, txID(req)); p != nil {
			return a.relayStream(ctx, c, p, req, stream)
		}
		return a.streamTo(ctx, c, req, stream)
	})
	if timing := serverTiming(c.info); timing != "" {
		stream.SetTrailer(metadata.Pairs(keyServerTiming, timing))
	}
	if fault != nil {
		return statusOf(fault, c.traceID)
	}
	return nil
}

func (a *grpcAPI) streamTo(ctx context.Context, c *call, req *sidecarv1.ExecuteRequest, stream grpc.ServerStreamingServer[sidecarv1.ExecuteStreamResponse]) (err error) {
	in := a.executeOf(req)
	in.streamed = true
	// The deadline holds for the reader too, so it is set before execute does.
	ctx, cancel, err := a.core.cfg.API.deadline(ctx, c.work, in.timeout)
	if err != nil {
		return err
	}
	defer cancel()
	out := a.newStream(ctx, stream)
	out.call = c
	defer func() {
		if lost := out.close(ctx); err == nil {
			err = lost
		}
	}()
	done, err := a.core.execute(ctx, c, in, out)
	if err != nil {
		return err
	}
	return out.send(ctx, &sidecarv1.ExecuteStreamResponse{Part: &sidecarv1.ExecuteStreamResponse_End{End: &sidecarv1.StreamEnd{
		Tx: done.tx, Info: c.info, Stats: done.stats, Rows: done.rows, Truncated: done.truncated,
	}}})
}

// Transact runs a list of statements as one transaction.
func (a *grpcAPI) Transact(ctx context.Context, req *sidecarv1.TransactRequest) (*sidecarv1.TransactResponse, error) {
	return unary(ctx, a, "Transact", req, func(ctx context.Context, c *call) (*sidecarv1.TransactResponse, error) {
		in := transactRequest{mode: req.Mode, idempotent: req.Idempotent, timeout: req.Timeout, priority: req.Priority}
		for _, st := range req.Statements {
			in.statements = append(in.statements, spec{
				sql: st.GetSql(), params: a.values(st.GetParams()), types: st.GetTypes(), stats: req.Stats, limits: limitsOf(req.Limits),
			})
		}
		sinks := make([]protoSink, len(in.statements))
		done, err := a.core.transact(ctx, c, in, func(i int) sink { return &sinks[i] })
		if err != nil {
			return nil, err
		}
		res := &sidecarv1.TransactResponse{Info: c.info}
		for i := range sinks {
			first, all := sinks[i].result()
			res.Results = append(res.Results, withRows(&sidecarv1.StatementResult{
				Columns: first.columns, Truncated: first.truncated, Sets: all, Stats: done[i].stats,
			}, first.rows))
		}
		return res, nil
	})
}

// Begin opens an interactive transaction.
func (a *grpcAPI) Begin(ctx context.Context, req *sidecarv1.BeginRequest) (*sidecarv1.BeginResponse, error) {
	return unary(ctx, a, "Begin", req, func(ctx context.Context, c *call) (*sidecarv1.BeginResponse, error) {
		tx, err := a.core.tx.begin(ctx, c, beginRequest{mode: req.Mode, timeout: req.Timeout, priority: req.Priority})
		return &sidecarv1.BeginResponse{Tx: tx, Info: c.info}, err
	})
}

// Commit commits an interactive transaction.
func (a *grpcAPI) Commit(ctx context.Context, req *sidecarv1.CommitRequest) (*sidecarv1.CommitResponse, error) {
	return unary(ctx, a, "Commit", req, func(ctx context.Context, c *call) (*sidecarv1.CommitResponse, error) {
		return &sidecarv1.CommitResponse{Info: c.info}, a.core.tx.commit(ctx, c, req.Id, req.Timeout)
	})
}

// Rollback rolls an interactive transaction back.
func (a *grpcAPI) Rollback(ctx context.Context, req *sidecarv1.RollbackRequest) (*sidecarv1.RollbackResponse, error) {
	return unary(ctx, a, "Rollback", req, func(ctx context.Context, c *call) (*sidecarv1.RollbackResponse, error) {
		return &sidecarv1.RollbackResponse{Info: c.info}, a.core.tx.rollBack(ctx, c, req.Id, req.Timeout)
	})
}

// GetTransaction tells the state of an open interactive transaction.
func (a *grpcAPI) GetTransaction(ctx context.Context, req *sidecarv1.GetTransactionRequest) (*sidecarv1.GetTransactionResponse, error) {
	return unary(ctx, a, "GetTransaction", req, func(context.Context, *call) (*sidecarv1.GetTransactionResponse, error) {
		return a.core.tx.get(req.Id)
	})
}

// Batch runs independent statements, each with an outcome of its own.
func (a *grpcAPI) Batch(ctx context.Context, req *sidecarv1.BatchRequest) (*sidecarv1.BatchResponse, error) {
	return unary(ctx, a, "Batch", req, func(ctx context.Context, c *call) (*sidecarv1.BatchResponse, error) {
		in := batchRequest{timeout: req.Timeout, priority: req.Priority}
		for _, st := range req.Statements {
			in.statements = append(in.statements, executeRequest{
				spec: spec{sql: st.GetSql(), params: a.values(st.GetParams()), types: st.GetTypes(), limits: limitsOf(st.GetLimits())},
				mode: st.GetMode(), idempotent: st.GetIdempotent(),
			})
		}
		sinks := make([]protoSink, len(in.statements))
		done, err := a.core.batch(ctx, c, in, func(i int) sink { return &sinks[i] })
		if err != nil {
			return nil, err
		}
		res := &sidecarv1.BatchResponse{Results: make([]*sidecarv1.BatchResult, len(done))}
		for i, one := range done {
			res.Results[i] = &sidecarv1.BatchResult{Info: one.info}
			if one.fault != nil {
				res.Results[i].Error = one.fault.proto(c.failing())
				continue
			}
			first, all := sinks[i].result()
			r := withRows(res.Results[i], first.rows)
			r.Columns, r.Truncated, r.Sets = first.columns, first.truncated, all
		}
		return res, nil
	})
}

// BulkUpsert writes rows without a transaction.
func (a *grpcAPI) BulkUpsert(ctx context.Context, req *sidecarv1.BulkUpsertRequest) (*sidecarv1.BulkUpsertResponse, error) {
	return unary(ctx, a, "BulkUpsert", req, func(ctx context.Context, c *call) (*sidecarv1.BulkUpsertResponse, error) {
		in := bulkRequest{table: req.Table, types: req.Types, timeout: req.Timeout, priority: req.Priority, rows: receivedOf(ctx).rows}
		n, err := a.core.bulkUpsert(ctx, c, in)
		return &sidecarv1.BulkUpsertResponse{Rows: n, Info: c.info}, err
	})
}

// Explain returns the plan of a statement.
func (a *grpcAPI) Explain(ctx context.Context, req *sidecarv1.ExplainRequest) (*sidecarv1.ExplainResponse, error) {
	return unary(ctx, a, "Explain", req, func(ctx context.Context, c *call) (*sidecarv1.ExplainResponse, error) {
		plan, err := a.core.explain(ctx, c, explainRequest{sql: req.Sql, types: req.Types, timeout: req.Timeout, priority: req.Priority})
		return &sidecarv1.ExplainResponse{Plan: plan.plan, Ast: plan.ast, Info: c.info}, err
	})
}

// Describe returns the columns and the key of a table.
func (a *grpcAPI) Describe(ctx context.Context, req *sidecarv1.DescribeRequest) (*sidecarv1.DescribeResponse, error) {
	return unary(ctx, a, "Describe", req, func(ctx context.Context, c *call) (*sidecarv1.DescribeResponse, error) {
		return a.core.describeTable(ctx, c, req.Path, req.Timeout)
	})
}

// Status returns the state of the sidecar.
func (a *grpcAPI) Status(ctx context.Context, req *sidecarv1.StatusRequest) (*sidecarv1.StatusResponse, error) {
	return unary(ctx, a, "Status", req, func(context.Context, *call) (*sidecarv1.StatusResponse, error) {
		return a.core.status(), nil
	})
}
