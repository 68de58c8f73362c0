package grpcapi

import (
	"context"
	"errors"
	"math"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// received is a request that was looked at before it became a message: a large one could take fifty times as
// much then as it has bytes.
type received struct {
	reserved memguard.Reservation
	size     int
	rows     protoRows // of a BulkUpsert
	refused  error
}

type receivedKey struct{}

// receivedOf returns what is known of the request of a call; nil: it is small.
func receivedOf(ctx context.Context) *received {
	r, _ := ctx.Value(receivedKey{}).(*received)
	return r
}

// weighed returns a service whose requests are looked at as bytes first, unless they are small.
func (a *API) weighed(d *grpc.ServiceDesc) *grpc.ServiceDesc {
	out := *d
	out.Methods = slices.Clone(d.Methods)
	for i, m := range d.Methods {
		out.Methods[i].Handler = func(of any, ctx context.Context, decode func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
			// The weight of small ones that run where they arrive is that of the message.
			if raw, here := requestBytes(ctx); here && len(raw) <= lane.Large && m.MethodName != "BulkUpsert" {
				return m.Handler(of, ctx, decode, chain)
			}
			r := &received{}
			defer r.reserved.Release()
			return m.Handler(of, context.WithValue(ctx, receivedKey{}, r),
				func(into any) error { return a.receive(ctx, r, decode, into.(proto.Message)) }, chain)
		}
	}
	out.Streams = slices.Clone(d.Streams)
	for i, m := range d.Streams {
		if m.ClientStreams {
			continue // what comes is not decoded
		}
		out.Streams[i].Handler = func(of any, stream grpc.ServerStream) error {
			w := &weighedStream{ServerStream: stream, api: a}
			defer w.r.reserved.Release()
			w.ctx = context.WithValue(stream.Context(), receivedKey{}, &w.r)
			return m.Handler(of, w)
		}
	}
	return &out
}

// weighedStream is a call that has one request and many answers.
type weighedStream struct {
	grpc.ServerStream
	api *API
	ctx context.Context
	r   received
}

func (w *weighedStream) Context() context.Context { return w.ctx }

func (w *weighedStream) RecvMsg(into any) error {
	return w.api.receive(w.ctx, &w.r, w.ServerStream.RecvMsg, into.(proto.Message))
}

// requestBytes returns a request that somebody has as bytes before it is decoded. They are there until it is answered.
func requestBytes(ctx context.Context) (request []byte, ok bool) {
	s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ Request() []byte })
	if !ok {
		return nil, false
	}
	return s.Request(), true
}

// rawMessage are a message that is not decoded.
type rawMessage []byte

// codec is that of messages, which leaves bytes as they came.
type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, into any) error {
	if o, ok := into.(*rawMessage); ok {
		*o = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, into)
}

// receive decodes a request if its app is known and there is memory for it. If not, the message stays empty, and the
// call says why. gRPC calls it before any interceptor, so it catches its own panics. Nothing has run by then.
func (a *API) receive(ctx context.Context, r *received, decode func(any) error, into proto.Message) error {
	err := panics.Call("the decoding of a request", func() error { return a.receiveNow(ctx, r, decode, into) })
	if _, ok := errors.AsType[*panics.Error](err); ok {
		return StatusOf(core.FaultOf(err, core.Deed{Harmless: true}), "")
	}
	return err
}

func (a *API) receiveNow(ctx context.Context, r *received, decode func(any) error, into proto.Message) error {
	raw, ok := requestBytes(ctx)
	if !ok {
		if err := decode((*rawMessage)(&raw)); err != nil {
			return err
		}
	}
	r.size = len(raw)
	md, _ := metadata.FromIncomingContext(ctx)
	app, err := a.core.Deps.Apps.Of(core.CallerOf(ctx, incoming(md).Get, md.Get(core.HeaderToken)))
	if err != nil || r.size > a.core.Cfg.API.MaxBody {
		return nil // the call says so
	}
	r.reserved.Begin(a.core.Deps.Requests, &app.Held, 0)
	if f, ok := errors.AsType[*core.Fault](core.TakeRequest(&r.reserved, len(raw))); ok { // it may wait for the lane
		r.refused = f
		return nil
	}
	err = a.core.InLane(ctx, r.size > lane.Large, func() error { return a.decodeRaw(r, raw, into) })
	if f, ok := errors.AsType[*core.Fault](err); ok {
		r.refused = f
		return nil
	}
	return err
}

// decodeRaw decodes a request, if there is memory for it.
func (a *API) decodeRaw(r *received, raw []byte, into proto.Message) error {
	d := into.ProtoReflect().Descriptor()
	if err := a.tooMany(d, raw); err != nil {
		return err
	}
	takes := len(raw) // beside what counts since it came
	if _, bulk := into.(*sidecarv1.BulkUpsertRequest); !bulk {
		n, ok := yql.Messages(d, raw, math.MaxInt)
		if !ok {
			return core.OverLimit("depth of the request", a.core.Cfg.API.MaxDepth, a.core.Cfg.API.MaxDepth, "api.max_depth")
		}
		takes = (core.DecodedTwice-1)*len(raw) + core.ValueCost*n
	}
	if err := core.TakeRequest(&r.reserved, takes); err != nil {
		return err
	}
	if _, bulk := into.(*sidecarv1.BulkUpsertRequest); bulk {
		raw, r.rows = without(raw, core.FieldBulkRows)
	}
	if err := proto.Unmarshal(raw, into); err != nil {
		return status.Errorf(codes.Internal, "the request cannot be decoded: %v", err)
	}
	return nil
}

// tooMany refuses more parameters, types or statements than a request may have, before any of them is decoded.
func (a *API) tooMany(d protoreflect.MessageDescriptor, message []byte) error {
	var bounds [3]core.Bound
	var numbers [3]protowire.Number
	var counts [3]int
	for i, name := range [...]protoreflect.Name{"params", "types", "statements"} {
		if f := d.Fields().ByName(name); f != nil {
			numbers[i], bounds[i] = f.Number(), a.core.Cfg.API.BoundOf(string(name))
		}
	}
	for number, inner := range yql.Fields(message) {
		i := slices.Index(numbers[:], number)
		if inner == nil || i < 0 { // also at the end of what is no message: whoever decodes it says so
			continue
		}
		if counts[i]++; counts[i] > bounds[i].Most {
			return bounds[i].Exceeded()
		}
		if f := d.Fields().ByNumber(number); !f.IsMap() {
			if err := a.tooMany(f.Message(), inner); err != nil {
				return err
			}
		}
	}
	return nil
}

// without parts the fields of a number from the others, each with its tag. Those that stand together are not copied.
func without(message []byte, number protowire.Number) (others, those []byte) {
	copied := false
	for rest := message; len(rest) > 0; {
		n, _, size := protowire.ConsumeField(rest)
		switch at := len(message) - len(rest); {
		case size < 0:
			return append(others, rest...), those // whoever decodes it says so
		case n != number:
			others = append(others, rest[:size]...)
		case those == nil:
			those = message[at : at+size : at+size]
		case !copied && &those[0] == &message[at-len(those)]:
			those = message[at-len(those) : at+size : at+size]
		default:
			those, copied = append(those, rest[:size]...), true
		}
		rest = rest[size:]
	}
	return others, those
}

// nesting is how deep values are counted; deeper ones do not fit api.max_depth.
const nesting = 1000

// valuesOf is how many values the parameters of a request have.
func valuesOf(req proto.Message) (n int) {
	count := func(params map[string]*sidecarv1.Value) {
		for _, v := range params {
			n += valuesIn(v, 0)
		}
	}
	switch r := req.(type) {
	case *sidecarv1.ExecuteRequest:
		count(r.GetParams())
	case *sidecarv1.TransactRequest:
		for _, one := range r.GetStatements() {
			count(one.GetParams())
		}
	case *sidecarv1.BatchRequest:
		for _, one := range r.GetStatements() {
			count(one.GetParams())
		}
	}
	return n
}

func valuesIn(v *sidecarv1.Value, depth int) int {
	n := 1
	if depth == nesting {
		return n
	}
	switch x := v.GetKind().(type) {
	case *sidecarv1.Value_ListValue:
		for _, item := range x.ListValue.GetItems() {
			n += valuesIn(item, depth+1)
		}
	case *sidecarv1.Value_StructValue:
		for _, f := range x.StructValue.GetFields() {
			n += 1 + valuesIn(f.GetValue(), depth+1)
		}
	case *sidecarv1.Value_DictValue:
		for _, pair := range x.DictValue.GetPairs() {
			n += 1 + valuesIn(pair.GetKey(), depth+1) + valuesIn(pair.GetValue(), depth+1)
		}
	case *sidecarv1.Value_VariantValue:
		n += valuesIn(x.VariantValue.GetValue(), depth+1)
	case *sidecarv1.Value_TypedValue:
		n += valuesIn(x.TypedValue.GetValue(), depth+1)
	}
	return n
}
