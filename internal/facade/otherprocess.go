package facade

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/lease"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// While one process takes the place of another, each has open transactions, and
// callers reach either of them. The id of a transaction names its process, so a
// call for one of the other process is handed over to it, and its answer given
// back as it came.

// OtherProcess is how to reach it. A call that came from the other process is never handed over
// again: that is why the other process calls over doors of its own (OtherOptions,
// OtherHandler).
type OtherProcess struct {
	Instance string // its Service.Instance
	GRPC     grpc.ClientConnInterface
	HTTP     http.RoundTripper
}

// otherSlack is how much longer than its deadline a call that was handed over may
// take: the answer of the other process says more than that there was none.
const otherSlack = time.Second

// Instance names this process in the ids of its transactions.
func (s *Service) Instance() string { return s.tx.leases.Instance() }

// SetOther makes calls for transactions of the other process go to it; nil ends that.
func (s *Service) SetOther(p *OtherProcess) { s.other.process.Store(p) }

// otherProcess is the way to the other process, if there is one.
type otherProcess struct {
	core    *Service
	process atomic.Pointer[OtherProcess] // nil: there is none
	handed  atomic.Uint64                // calls handed over to it
}

// ownerOf returns the other process if the transaction of that id is its own, and the call
// of ctx may be handed over.
func (o *otherProcess) ownerOf(ctx context.Context, c *call, id string) *OtherProcess {
	p := o.owner(id)
	if p == nil || ctx.Value(fromOther{}) != nil {
		return nil
	}
	c.handed = true
	return p
}

// owner returns the other process if the transaction of that id is its own.
func (o *otherProcess) owner(id string) *OtherProcess {
	if p := o.process.Load(); p != nil && id != "" && lease.InstanceOf(id) == p.Instance {
		return p
	}
	return nil
}

// fromOther marks the context of a call that came from the other process.
type fromOther struct{}

// OtherOptions are ServerOptions for the server over which the other process calls.
func (a *grpcAPI) OtherOptions() []grpc.ServerOption {
	return append(a.ServerOptions(),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return next(context.WithValue(ctx, fromOther{}, true), req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, otherStream{stream})
		}))
}

type otherStream struct{ grpc.ServerStream }

func (s otherStream) Context() context.Context {
	return context.WithValue(s.ServerStream.Context(), fromOther{}, true)
}

// OtherHandler is the Handler for the server over which the other process calls.
func (a *httpAPI) OtherHandler() http.Handler {
	next := a.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), fromOther{}, true)))
	})
}

// txID returns the id of the transaction that a request continues or asks for.
func txID(req proto.Message) string {
	switch r := req.(type) {
	case *sidecarv1.ExecuteRequest:
		return r.GetTx().GetId()
	case interface{ GetId() string }: // Commit, Rollback, GetTransaction
		return r.GetId()
	}
	return ""
}

// mayCommit tells whether the request may have committed its transaction.
func mayCommit(req proto.Message) bool {
	switch r := req.(type) {
	case *sidecarv1.ExecuteRequest:
		return r.GetTx().GetCommit()
	case *sidecarv1.CommitRequest:
		return true
	}
	return false
}

// handOver runs f, which sends a call to its owner, not much longer than the
// call may last; timeouts are what the request says of that.
func (o *otherProcess) handOver(ctx context.Context, timeouts []string, f func(context.Context) error) error {
	bounded, cancel, err := o.core.cfg.API.deadline(ctx, nil, timeouts...)
	if err != nil {
		return err
	}
	until, _ := bounded.Deadline()
	cancel()
	o.handed.Add(1)
	// Not a deadline, which would go to the owner as the caller's own.
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	timer := time.AfterFunc(time.Until(until)+otherSlack, func() { end(context.DeadlineExceeded) })
	defer timer.Stop()
	return f(ctx)
}

// relayUnary hands a call of the gRPC face over.
func relayUnary[Res proto.Message](ctx context.Context, a *grpcAPI, c *call, p *OtherProcess, req proto.Message) (Res, error) {
	var none Res
	res := none.ProtoReflect().New().Interface().(Res)
	var header, trailer metadata.MD
	err := a.core.other.handOver(ctx, []string{timeoutOf(req)}, func(ctx context.Context) error {
		err := p.GRPC.Invoke(relayed(ctx, c), methodPath(c.name), req, res, grpc.Header(&header), grpc.Trailer(&trailer))
		return relayedFault(ctx, err, mayCommit(req))
	})
	_ = grpc.SetHeader(ctx, own(header)) // these fail only outside a call
	_ = grpc.SetTrailer(ctx, own(trailer))
	if err != nil {
		return none, err
	}
	return res, nil
}

// relayStream hands ExecuteStream over.
func (a *grpcAPI) relayStream(ctx context.Context, c *call, p *OtherProcess, req *sidecarv1.ExecuteRequest, stream grpc.ServerStreamingServer[sidecarv1.ExecuteStreamResponse]) error {
	return a.core.other.handOver(ctx, []string{req.GetTimeout()}, func(ctx context.Context) (err error) {
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
func relayed(ctx context.Context, c *call) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	md = own(md)
	md.Set(headerApp, c.app.Name())
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for key, value := range carrier {
		md.Set(key, value)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// own leaves out what gRPC itself puts into metadata.
func own(md metadata.MD) metadata.MD {
	out := maps.Clone(md)
	if out == nil {
		out = metadata.MD{}
	}
	maps.DeleteFunc(out, func(key string, _ []string) bool {
		return key == "content-type" || key == "user-agent" || strings.HasPrefix(key, ":") || strings.HasPrefix(key, "grpc-")
	})
	return out
}

// relayedFault makes a fault of the owner's error: its own words as they came,
// or, if it gave none, what can be said without it.
func relayedFault(ctx context.Context, err error, commits bool) error {
	if err == nil {
		return nil
	}
	for _, detail := range status.Convert(err).Details() {
		if e, ok := detail.(*sidecarv1.Error); ok {
			return &fault{code: codeNamed(e.Code), message: e.Message, safe: e.SafeToRetry, unknown: e.OutcomeUnknown, relayed: err}
		}
	}
	return unanswered(ctx, err, commits)
}

// unanswered is the fault of a call whose owner gave no answer. Its transaction
// does not outlive the owner.
func unanswered(ctx context.Context, err error, commits bool) *fault {
	var f *fault
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errCut):
		f = faultf(codeDraining, "the sidecar stopped before the call was done")
	case errors.Is(cause, context.DeadlineExceeded):
		f = faultf(codeDeadline, "the deadline ended while the call ran")
	case cause != nil:
		f = faultf(codeCancelled, "the caller went away while the call ran")
	default:
		f = faultf(codeTxLost, "the sidecar process that had the transaction ended")
	}
	f.cause, f.unknown, f.safe = err, commits, !commits
	if commits && (f.code == codeDraining || f.code == codeTxLost) {
		f.code, f.after = codeUnknown, 0
	}
	return f
}

func codeNamed(name string) *code {
	for _, c := range ownCodes {
		if c.name == name {
			return c
		}
	}
	for _, c := range ydbCodes {
		if c.name == name {
			return c
		}
	}
	return &code{name: name, http: http.StatusInternalServerError, grpc: codes.Unknown}
}

// relay hands a request of the HTTP face over. body is what was read of the
// request's own; nil: nothing was, and it is one to the path of a transaction.
func (a *httpAPI) relay(x *exchange, p *OtherProcess, body []byte, commits bool, timeouts ...string) error {
	if body == nil {
		var err error
		if body, err = a.body(x); err != nil {
			return err
		}
		var end jsonEndTx
		_ = json.Unmarshal(body, &end) // what is wrong with it, the owner says
		timeouts = []string{end.Timeout}
	}
	return a.core.other.handOver(x.ctx, append(timeouts, x.call.timeout), func(ctx context.Context) error {
		request := x.r.Clone(ctx)
		request.URL = &url.URL{Scheme: "http", Host: "peer", Path: x.r.URL.Path, RawPath: x.r.URL.RawPath, RawQuery: x.r.URL.RawQuery}
		request.RequestURI = ""
		request.Body, request.ContentLength = http.NoBody, int64(len(body))
		if len(body) > 0 {
			request.Body = io.NopCloser(bytes.NewReader(body))
		}
		for _, key := range []string{"Connection", "Keep-Alive", "Te", "Transfer-Encoding", "Upgrade", "Trailer", "Expect"} {
			request.Header.Del(key)
		}
		request.Header.Set(headerApp, x.call.app.Name())
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(request.Header))
		response, err := p.HTTP.RoundTrip(request)
		if err != nil {
			return unanswered(ctx, err, commits)
		}
		defer response.Body.Close()
		return x.relay(ctx, response, commits)
	})
}

// relay sends an answer of the owner as it comes.
func (x *exchange) relay(ctx context.Context, response *http.Response, commits bool) error {
	h := x.w.Header()
	maps.Copy(h, response.Header)
	for key := range response.Trailer {
		h.Add("Trailer", key)
	}
	// A caller that does not read holds nothing up for longer than this.
	stop := whenOver(ctx, func() { x.sendBy(time.Now().Add(endTimeout)) })
	defer stop()
	x.started = true
	x.call.status = response.StatusCode
	x.w.WriteHeader(response.StatusCode)
	part := make([]byte, 32<<10)
	var problem []byte
	for {
		n, err := response.Body.Read(part)
		if n > 0 {
			if response.StatusCode >= http.StatusBadRequest && len(problem) < maxDetails {
				problem = append(problem, part[:n]...)
			}
			x.sendBy(time.Now().Add(replyTimeout))
			if _, err := x.w.Write(part[:n]); err != nil {
				return unread(ctx)
			}
			if err := x.control.Flush(); err != nil {
				return unread(ctx)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			f := unanswered(ctx, err, commits)
			if response.Header.Get("Content-Type") == mediaNDJSON {
				// The form of a stream: its last line says how it ended.
				_, _ = x.w.Write(append(appendProblem([]byte(`{"error":`), f, x.call.traceID), '}', '\n'))
			}
			return f // a shorter body than announced says the rest
		}
	}
	for key, list := range response.Trailer {
		h[key] = list
	}
	if response.StatusCode >= http.StatusBadRequest {
		var said struct{ Code string }
		_ = json.Unmarshal(problem, &said) // only for this process's own figures
		return &fault{code: codeNamed(said.Code)}
	}
	return nil
}
