package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/facade/rows"
	"github.com/ydb-sidecar/sidecar/internal/loopback"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// The types of bodies.
const (
	mediaNDJSON  = "application/x-ndjson"
	mediaProblem = "application/problem+json"
	mediaYAML    = "application/yaml"
)

// The headers of a request that say what its body may say too; the body wins.
const (
	headerTimeout = "Request-Timeout"
	headerRows    = "X-Ydb-Rows"
	headerInts    = "X-Ydb-Ints"
)

const (
	// bodyTimeout bounds the wait for the body of a request.
	bodyTimeout = time.Minute
	// replyTimeout bounds the sending of a reply to a caller that reads slowly.
	replyTimeout = time.Minute
	// refusalTimeout bounds it for a refusal over HTTP/2, whose client may have no window for it.
	refusalTimeout = 5 * time.Second
)

// route is one method and path of the HTTP API.
type route struct {
	core.Route
	call   string // the gRPC method that does the same
	body   []string
	serve  func(*API, *exchange) error
	begins bool // it continues no transaction: what is new is refused before its body is read
}

// callOpenAPI is the name of the call that fetches the description of the API.
const callOpenAPI = "OpenAPI"

// pattern is the path as http.ServeMux can say it: names that end a segment only.
func (rt *route) pattern() string { return strings.TrimSuffix(rt.Path, batchGetSuffix) }

// routes is the whole HTTP API. openapi.yaml describes it, and is made of it.
var routes = []route{
	{core.Route{Method: http.MethodPost, Path: "/v1/query"}, "Execute", []string{core.MediaJSON}, (*API).query, false},
	{core.Route{Method: http.MethodPost, Path: "/v1/tx"}, "Transact", []string{core.MediaJSON}, (*API).transact, false},
	{core.Route{Method: http.MethodPost, Path: "/v1/tx/begin"}, "Begin", []string{core.MediaJSON}, (*API).begin, true},
	{core.Route{Method: http.MethodPost, Path: "/v1/tx/{id}/commit"}, "Commit", []string{core.MediaJSON}, (*API).commit, false},
	{core.Route{Method: http.MethodPost, Path: "/v1/tx/{id}/rollback"}, "Rollback", []string{core.MediaJSON}, (*API).rollback, false},
	{core.Route{Method: http.MethodGet, Path: "/v1/tx/{id}"}, "GetTransaction", nil, (*API).getTransaction, false},
	{core.Route{Method: http.MethodPost, Path: "/v1/batch"}, "Batch", []string{core.MediaJSON}, (*API).batch, true},
	{core.Route{Method: http.MethodPost, Path: "/v1/bulk"}, "BulkUpsert", []string{core.MediaJSON, mediaNDJSON}, (*API).bulk, true},
	{core.Route{Method: http.MethodPost, Path: "/v1/ingest/{table...}"}, core.CallIngest, []string{mediaNDJSON}, (*API).ingest, true},
	{core.Route{Method: http.MethodPost, Path: "/v1/explain"}, "Explain", []string{core.MediaJSON}, (*API).explain, true},
	{core.Route{Method: http.MethodGet, Path: "/v1/schema/{path...}"}, "Describe", nil, (*API).describe, false},
	{core.Route{Method: http.MethodGet, Path: "/v1"}, "Version", nil, (*API).version, false},
	{core.Route{Method: http.MethodGet, Path: "/v1/status"}, "Status", nil, (*API).status, false},
	{core.Route{Method: http.MethodGet, Path: "/v1/kv/{table}"}, core.CallKVGet, nil, (*API).kvGet, false},
	{core.Route{Method: http.MethodPut, Path: "/v1/kv/{table}"}, core.CallKVPut, []string{core.MediaOctets}, (*API).kvPut, true},
	{core.Route{Method: http.MethodDelete, Path: "/v1/kv/{table}"}, core.CallKVDelete, nil, (*API).kvDelete, false},
	{core.Route{Method: http.MethodPost, Path: "/v1/kv/{table}" + batchGetSuffix}, core.CallKVBatchGet,
		[]string{core.MediaJSON}, (*API).kvBatchGet, true},
	{core.Route{Method: http.MethodGet, Path: "/openapi.yaml"}, callOpenAPI, nil, (*API).openAPI, false},
}

// Config is what the HTTP API alone needs.
type Config struct {
	// Names allowed in Host besides the loopback names, as host or host:port
	Hosts []string `yaml:"hosts"`
}

// API is the HTTP API.
type API struct {
	core     *core.Service
	kv       *kv.Service
	rows     *rows.Service
	guard    *loopback.Guard
	bodies   core.Pace // bodies, except for their first pieces
	discards core.Pace // bodies that are read although their calls have ended
}

// Open makes the API ready for its first request.
func (a *API) Open(s *core.Service, byKey *kv.Service, streams *rows.Service, cfg Config) (err error) {
	a.core, a.kv, a.rows = s, byKey, streams
	a.bodies.Rate, a.bodies.Burst = bodyRate*runtime.GOMAXPROCS(0), s.Cfg.API.MaxBody
	a.discards.Rate, a.discards.Burst = discardRate, s.Cfg.API.MaxBody
	if a.guard, err = loopback.New(cfg.Hosts); err != nil {
		return fmt.Errorf("http.hosts: %w", err)
	}
	return nil
}

// exchange is one request and its reply.
type exchange struct {
	w     http.ResponseWriter
	r     *http.Request
	route *route
	ctx   context.Context
	call  *core.Call
	query url.Values            // of the URL; nil: it has none
	on    *core.KnownConnection // nil: it is not known
	told  bool                  // it, that the call is here
	// started says that the head of the reply has gone out.
	started bool
	read    bool // all of the body
	torn    bool // the reply ends inside a line

	control *http.ResponseController
	mu      sync.Mutex // guards what follows
	last    time.Time  // when sending and receiving end at the latest, because the call was cut off; zero: it was not
}

// Server returns a server of Handler whose limits fit the settings; those of
// headers are larger, so that what exceeds the setting a little is still answered
// with an error that names it.
func (a *API) Server() *http.Server {
	return &http.Server{
		Handler:           a.Handler(),
		MaxHeaderBytes:    2*a.core.Cfg.API.MaxHeaders + 4<<10,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
	}
}

// Handler returns the HTTP API.
func (a *API) Handler() http.Handler {
	mux := http.NewServeMux()
	for i := range routes {
		rt := &routes[i]
		mux.HandleFunc(rt.Method+" "+rt.pattern(), func(w http.ResponseWriter, r *http.Request) { a.serve(w, r, rt) })
	}
	lost := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.noRoute(mux, w, r) })
	all := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !routed(mux, r) {
			lost.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
	return panics.Handler(a.guard.Wrap(all, func(w http.ResponseWriter, r *http.Request, err error) {
		a.stray(w, r, core.FaultOf(err, core.Deed{}), time.Now())
	}))
}

// routed reports whether a request has a route. A path of the key-value API that ends as one of a batch get takes POST alone, and
// no other path there takes it. The path that begins a transaction is not that of one with this id.
func routed(mux *http.ServeMux, r *http.Request) bool {
	_, pattern := mux.Handler(r)
	switch path := r.URL.Path; {
	case pattern == "":
		return false
	case strings.HasPrefix(path, pathOfKV):
		return ofBatchGet(path) == (r.Method == http.MethodPost)
	case path == pathBeginTx:
		return strings.HasSuffix(pattern, pathBeginTx)
	}
	return true
}

// noRoute answers a path that does not exist, or not with this method.
func (a *API) noRoute(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodPost} {
		other := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if routed(mux, other) {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		a.stray(w, r, core.Faultf(core.CodeNoRoute, "there is no path %.200q; GET /openapi.yaml lists all paths", r.URL.Path), start)
		return
	}
	methods := strings.Join(allowed, ", ")
	w.Header().Set("Allow", methods)
	f := core.Faultf(core.CodeMethod, "method %.20s is not allowed here; use %s", r.Method, methods)
	if r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, pathOfKV) {
		f = core.Faultf(core.CodeMethod, "method POST is not allowed here; use %s, or POST a list of ids to %.100q",
			methods, r.URL.Path+batchGetSuffix)
	}
	a.stray(w, r, f, start)
}

// stray answers a request that is no call.
func (a *API) stray(w http.ResponseWriter, r *http.Request, f *core.Fault, start time.Time) {
	took := time.Since(start)
	a.refuse(&exchange{w: w, r: r, control: http.NewResponseController(w)}, f, "", true)
	a.core.Strayed(r, f, took)
}

// serve serves one request as a call.
func (a *API) serve(w http.ResponseWriter, r *http.Request, rt *route) {
	x := &exchange{w: w, r: r, route: rt, control: http.NewResponseController(w), call: new(core.Call)}
	// Over HTTP/2 a length of 0 does not say that there is no body. That of ingest lasts as long as the call.
	x.call.Coming = rt.call != core.CallIngest && (r.ContentLength != 0 || len(rt.body) > 0)
	heads(x.call, r, rt)
	x.on = core.ConnectionIn(r.Context())
	defer x.over()
	if !x.call.Coming {
		x.here()
	}
	fault := a.core.Serve(core.Extract(r.Context(), propagation.HeaderCarrier(r.Header)), x.call, func(ctx context.Context) error {
		x.ctx = ctx
		// What the connection is told here must not outlast the handler.
		defer whenOver(ctx, x.cutOff)()
		if err := a.admit(x, rt); err != nil {
			return err
		}
		if r.ContentLength != 0 {
			cancel, err := a.early(x)
			if err != nil {
				return err
			}
			defer cancel()
			ctx = x.ctx
		}
		if p := a.core.Other.OwnerOf(ctx, x.call, r.PathValue("id")); p != nil {
			return a.relay(x, p, nil, rt.call == "Commit")
		}
		return rt.serve(a, x)
	})
	if fault != nil && fault.Code.Name == core.CodeMemory.Name && r.ProtoMajor == 2 {
		x.on.PauseAfter()
	}
	if fault != nil && !x.started {
		a.core.Deprecated.Shows(x.call, fault)
		x.timing()
		a.refuse(x, fault, x.call.TraceID, !x.read)
	}
	if _, broke := errors.AsType[*panics.Error](core.CauseOf(fault)); x.torn || broke && x.started {
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	}
}

// heads notes what the head of a request says.
func heads(c *core.Call, r *http.Request, rt *route) {
	get := r.Header.Get
	c.Name, c.Route, c.URL, c.TLS = rt.call, &rt.Route, r.URL.Path, r.TLS != nil
	c.Timeout, c.Priority = get(headerTimeout), core.PriorityOf(get)
	c.Caller, c.From = core.CallerOf(r.Context(), get, r.Header.Values(core.HeaderToken)), core.ConnectionOf(r.Context(), nil)
	if r.TLS != nil {
		c.Caller.Certificate = core.ConnectionIn(r.Context()).CertificateOf(r.TLS)
	}
}

// here tells the connection that the call has come whole.
func (x *exchange) here() {
	if x.on != nil && x.on.UnderWay != nil && !x.told {
		x.told = true
		x.on.UnderWay(1)
	}
}

// over tells it that the call has ended.
func (x *exchange) over() {
	if x.told {
		x.on.UnderWay(-1)
	}
}

// early checks whatever headers and path decide before the body is read. The time that
// the headers give begins here.
func (a *API) early(x *exchange) (cancel func(), err error) {
	c := x.call
	if x.r.PathValue("id") == "" {
		if _, err := pool.ParseClass(c.Priority); err != nil {
			return nil, core.BadRequest("%v", err)
		}
	}
	switch c.Name {
	case "Execute", "Transact", "Batch":
		_, err = x.format(jsonFormat{}, false)
	case "BulkUpsert":
		if x.lines() {
			var table string
			if table, err = x.parameter("table"); err == nil {
				_, err = a.core.Absolute(table, "table")
			}
		}
	}
	if err != nil {
		return nil, err
	}
	cancel = func() {}
	if c.Timeout != "" && c.Name != core.CallIngest { // a stream may last longer than other calls
		if x.ctx, cancel, err = a.core.Cfg.API.Deadline(x.ctx, c.Work, c.Timeout); err != nil {
			return nil, err
		}
	}
	if x.route.begins {
		if err := a.core.FreshEarly(c); err != nil {
			cancel()
			return nil, err
		}
	}
	return cancel, nil
}

// lines reports whether the body is NDJSON.
func (x *exchange) lines() bool {
	media, _, _ := strings.Cut(x.r.Header.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(media), mediaNDJSON)
}

const (
	openCall   = 18 << 10 // bytes of memory of an open call beside its headers and its body: stacks, most of all
	headerCost = 96       // bytes of memory of a header beside its text
)

// once are the headers that a request may have once.
var once = append(core.OnceHeaders[:],
	headerTimeout, headerRows, headerInts, "Content-Type", "Content-Encoding", "Content-Range")

// admit checks what can be said of a request before its body is read.
func (a *API) admit(x *exchange, rt *route) error {
	r := x.r
	a.core.Deprecated.Uses(x.call, rt.call)
	size, headers, repeated := len(r.RequestURI), 0, ""
	for key, list := range r.Header {
		if len(list) > 1 && slices.Contains(once, key) {
			repeated = max(repeated, key)
		}
		headers += len(list)
		for _, v := range list {
			size += len(key) + len(v)
		}
	}
	if size > a.core.Cfg.API.MaxHeaders {
		return core.OverLimit("bytes of headers", size, a.core.Cfg.API.MaxHeaders, "api.max_headers")
	}
	if repeated != "" {
		return core.Repeated(repeated, len(r.Header[repeated]))
	}
	if err := checkLength(r); err != nil {
		return err
	}
	if err := x.readQuery(rt); err != nil {
		return err
	}
	if why := x.call.Reserved.Take(openCall + size + headerCost*headers); why != "" && !rt.OfTx() {
		return core.TooMuch(why)
	}
	if r.ContentLength == 0 {
		return nil // a form of a foreign page cannot do harm without a body, and Origin gives it away
	}
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	// Each table of the key-value API checks the type of its values itself.
	if media = strings.ToLower(strings.TrimSpace(media)); !slices.Contains(rt.body, media) && rt.call != core.CallKVPut {
		if len(rt.body) == 0 {
			return core.Faultf(core.CodeMedia, "this path takes no body; send none")
		}
		return core.Faultf(core.CodeMedia, "Content-Type %.100q is not accepted here; send %s", media, strings.Join(rt.body, " or "))
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return core.Faultf(core.CodeMedia, "Content-Encoding %.100q is not accepted; send the body without compression (identity)", enc)
	}
	return nil
}

// checkLength rejects a request of HTTP/2 whose length is not that of its body. net/http looks at no length if the headers end the
// stream, and else at the first one only.
func checkLength(r *http.Request) error {
	if r.ProtoMajor != 2 {
		return nil
	}
	for _, text := range r.Header["Content-Length"] {
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n != r.ContentLength {
			return core.BadRequest("the header Content-Length is %.40q, and the body has another length; leave the header out", text)
		}
	}
	return nil
}

// linger is how long a caller that is still sending may take to see why its call
// ended: a connection that is closed before may take the answer with it.
const linger = time.Second

// discardRate bounds the bytes a second that are read of bodies whose calls have ended, in all.
const discardRate = 16 << 20

// refuse sends a fault in place of an answer. A body that is not read is not waited for:
// the connection of HTTP/1 ends after the answer, and a little is read to let that arrive.
func (a *API) refuse(x *exchange, f *core.Fault, traceID string, unread bool) {
	w, r := x.w, x.r
	// HTTP/2 ends the stream alone, and does so without being told.
	unread = unread && r.ProtoMajor == 1 && r.Body != http.NoBody
	if unread {
		w.Header().Set("Connection", "close")
	}
	limit := replyTimeout
	if r.ProtoMajor == 2 { // nothing counts any more what the request keeps
		limit, r.Header = refusalTimeout, nil
	}
	x.sendBy(time.Now().Add(limit))
	writeProblem(w, f, traceID)
	if !unread {
		return
	}
	wait := linger
	if r.Header.Get("Expect") != "" {
		wait = 0 // whoever asks first has sent nothing
	}
	// The server itself reads on when the handler has returned; the deadline is for that, too.
	if x.control.Flush() == nil && x.receiveBy(time.Now().Add(wait)) == nil {
		a.discard(r.Body, time.Now().Add(wait))
	}
}

// discardPiece is how much of such a body is read at a time, in bytes. It is little: one that does not come keeps so much
// of the pace from others.
const discardPiece = 4 << 10

// discarded are the pieces that are read so. Many wait for the pace at a time, and have none meanwhile.
var discarded = sync.Pool{New: func() any { return new([discardPiece]byte) }}

// timing sets the Server-Timing header from what is known of the call so far.
func (x *exchange) timing() {
	if timing := core.ServerTiming(x.call.Info); timing != "" {
		x.w.Header().Set("Server-Timing", timing)
	}
	x.call.Headers(x.w.Header().Set)
}

// reply sends a whole body, in pieces, with status 200.
func (x *exchange) reply(media string, body ...[]byte) error {
	return x.send(http.StatusOK, media, body...)
}

// send sends a whole body; without a media type there is none.
func (x *exchange) send(status int, media string, body ...[]byte) error {
	x.started = true
	x.timing()
	h := x.w.Header()
	if media != "" {
		h.Set("Content-Type", media)
	}
	if media != "" || status == http.StatusCreated {
		size := 0
		for _, piece := range body {
			size += len(piece)
		}
		h.Set("Content-Length", strconv.Itoa(size))
	}
	x.sendBy(time.Now().Add(replyTimeout))
	x.call.Status = status
	x.w.WriteHeader(status)
	for _, piece := range body {
		if len(piece) == 0 {
			continue // some statuses allow none
		}
		x.call.Count(len(piece))
		if _, err := x.w.Write(piece); err != nil {
			return core.Unread(x.ctx)
		}
	}
	return nil
}

// writeProblem sends a fault as application/problem+json.
func writeProblem(w http.ResponseWriter, f *core.Fault, traceID string) {
	body := appendProblem(nil, f, traceID)
	h := w.Header()
	h.Set("Content-Type", mediaProblem)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	if f.Code == core.CodeNoToken {
		h.Set("WWW-Authenticate", "Bearer")
	}
	// The header has whole seconds alone; retry_after_ms in the body is exact. A caller that is told to slow down (429) may as
	// well wait the longer time. Any other one would wait far too long for what takes some milliseconds.
	if f.After >= time.Second/2 || f.After > 0 && f.Code.HTTP == http.StatusTooManyRequests {
		h.Set("Retry-After", strconv.Itoa(int((f.After+time.Second-1)/time.Second)))
	}
	w.WriteHeader(f.Code.HTTP)
	_, _ = w.Write(body) // whoever does not read it is told nothing
}
