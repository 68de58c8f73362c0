package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// OtherHandler is the Handler for the server over which the other process calls.
func (a *API) OtherHandler() http.Handler {
	next := a.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), core.FromOther{}, true)))
	})
}

// relay hands a request of the HTTP API over. body is what was read of the
// request's own; nil: nothing was, and it is one to the path of a transaction.
func (a *API) relay(x *exchange, p *core.OtherProcess, body []byte, commits bool, timeouts ...string) error {
	if body == nil {
		var err error
		if body, err = a.body(x); err != nil {
			return err
		}
		var end sidecarv1.CommitRequest
		_ = decodeJSON(body, &end, new(request)) // what is wrong with it, the owner says
		timeouts = []string{end.Timeout}
	}
	if x.wantsStream() { // its owner ends it when it does not move
		timeouts = append(timeouts, a.core.Cfg.API.MaxTimeout.String())
	}
	return a.core.Other.HandOver(x.ctx, append(timeouts, x.call.Timeout), func(ctx context.Context) error {
		request := x.r.Clone(ctx)
		request.URL = &url.URL{Scheme: "http", Host: "peer", Path: x.r.URL.Path, RawPath: x.r.URL.RawPath, RawQuery: x.r.URL.RawQuery}
		request.RequestURI = ""
		request.Trailer = nil // the API reads none, and a client of net/http refuses names that its server takes
		request.Body, request.ContentLength = http.NoBody, int64(len(body))
		if len(body) > 0 {
			// The transport repeats what the owner surely has not looked at: calls that come while the first connection is being made.
			request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
			request.Body, _ = request.GetBody()
		}
		for _, key := range []string{"Connection", "Keep-Alive", "Te", "Transfer-Encoding", "Upgrade", "Trailer", "Expect"} {
			request.Header.Del(key)
		}
		request.Header.Set(core.HeaderApp, x.call.App.Name())
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(request.Header))
		response, err := p.HTTP.RoundTrip(request)
		if err != nil {
			return core.Unanswered(ctx, err, commits)
		}
		defer response.Body.Close()
		return a.answerOf(ctx, x, response, commits)
	})
}

// answerOf sends an answer of the owner as it comes.
func (a *API) answerOf(ctx context.Context, x *exchange, response *http.Response, commits bool) error {
	h := x.w.Header()
	maps.Copy(h, response.Header)
	for key := range response.Trailer {
		h.Add("Trailer", key)
	}
	// A caller that does not read holds nothing up for longer than this.
	stop := whenOver(ctx, func() { x.sendBy(time.Now().Add(endTimeout)) })
	defer stop()
	x.started = true
	x.call.Status = response.StatusCode
	x.w.WriteHeader(response.StatusCode)
	part := make([]byte, 32<<10)
	var problem []byte
	torn := false // what was sent ends inside a line
	for {
		n, err := response.Body.Read(part)
		if n > 0 {
			torn = part[n-1] != '\n'
			if response.StatusCode >= http.StatusBadRequest && len(problem) < core.MaxDetails {
				problem = append(problem, part[:n]...)
			}
			x.sendBy(time.Now().Add(replyTimeout))
			if _, err := x.w.Write(part[:n]); err != nil {
				return core.Unread(ctx)
			}
			if err := x.control.Flush(); err != nil {
				return core.Unread(ctx)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			f := core.Unanswered(ctx, err, commits)
			if response.Header.Get("Content-Type") == mediaNDJSON {
				// The form of a stream: its last line says how it ended.
				if x.torn = torn; !torn {
					told := a.core.Told(x.ctx, x.call, f)
					_, _ = x.w.Write(append(appendProblem([]byte(`{"error":`), told, x.call.TraceID), '}', '\n'))
				}
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
		return &core.Fault{Code: core.CodeNamed(said.Code)}
	}
	return nil
}
