package httpapi

import (
	"maps"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/http1"
	"github.com/ydb-sidecar/sidecar/internal/upstream"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// InlineCall is a call over HTTP that begins in the turn in which its request arrives.
type InlineCall struct {
	core.InlineCall
	api    *API
	x      exchange
	raw    []byte // the body, in the turn in which the call begins
	answer gathered
}

// replying is the job of a request of HTTP.
type replying interface {
	core.Job
	// over tells the job its call, before anything else.
	over(t *InlineCall)
	// rest makes the first call, or waits for its answer, and answers the request.
	rest(t *InlineCall) error
}

// overHTTP is what every job of a request of HTTP has.
type overHTTP struct{ web *InlineCall }

func (o *overHTTP) over(t *InlineCall) { o.web = t }

// routeOf are the routes by the calls that they make.
var routeOf = func() map[string]*route {
	all := make(map[string]*route, len(routes))
	for i := range routes {
		all[routes[i].call] = &routes[i]
	}
	return all
}()

const (
	pathQuery   = "/v1/query"
	pathBeginTx = "/v1/tx/begin"
	pathOfTx    = "/v1/tx/"
	pathOfKV    = "/v1/kv/"
)

// inlineOf makes an inline call of a request; nil: it is none for that. The values of its path are set as http.ServeMux does.
func inlineOf(r *http.Request) (*InlineCall, *route) {
	path := r.URL.Path
	if r.URL.RawPath != "" {
		return nil, nil
	}
	if r.Method == http.MethodPost {
		if path == pathQuery {
			t := new(struct { // one allocation
				InlineCall
				querying
			})
			t.Job = &t.querying
			t.over(&t.InlineCall)
			return &t.InlineCall, routeOf["Execute"]
		}
		if path == pathBeginTx {
			return inlineFor("Begin", new(beginning))
		}
		if rest, ok := strings.CutPrefix(path, pathOfTx); ok {
			id, end, _ := strings.Cut(rest, "/")
			switch {
			case !setPathValue(r, "id", id):
			case end == "commit":
				return inlineFor("Commit", &ending{})
			case end == "rollback":
				return inlineFor("Rollback", &ending{Ending: core.Ending{Back: true}})
			}
			return nil, nil
		}
	}
	table, ok := strings.CutPrefix(path, pathOfKV)
	if !ok || ofBatchGet(table) != (r.Method == http.MethodPost) || !setPathValue(r, "table", table) {
		return nil, nil
	}
	switch r.Method {
	case http.MethodGet:
		return inlineFor(core.CallKVGet, new(kvGetting))
	case http.MethodPut:
		return inlineFor(core.CallKVPut, new(kvPutting))
	case http.MethodDelete:
		return inlineFor(core.CallKVDelete, new(kvDeleting))
	case http.MethodPost:
		return inlineFor(core.CallKVBatchGet, new(kvBatchGetting))
	}
	return nil, nil
}

// inlineFor makes an inline call of a job, and finds the route of its call.
func inlineFor(call string, j replying) (*InlineCall, *route) {
	t := new(InlineCall)
	t.Job = j
	j.over(t)
	return t, routeOf[call]
}

// setPathValue sets a value that is one segment of a path. False: http.ServeMux knows more of it.
func setPathValue(r *http.Request, name, value string) bool {
	if value == "" || value == "." || value == ".." || strings.Contains(value, "/") {
		return false
	}
	r.SetPathValue(name, value)
	return true
}

// Begin begins a call over HTTP with its whole body, and does not wait. ctx is the request's context,
// as for Begin. via carries its first call to a node. Nil: the request cannot be begun in a turn, and
// nothing has happened. Otherwise Resume must be called. The body is not kept.
func (a *API) Begin(ctx *callctx.Context, r *http.Request, body []byte, via upstream.Via) *InlineCall {
	if a.core.Client == nil || a.core.Deps.Memory.Tight() || a.core.Other.Get() != nil || a.guard.Check(r) != nil {
		return nil
	}
	t, rt := inlineOf(r)
	if t == nil {
		return nil
	}
	t.Core, t.api = a.core, a
	x := &t.x
	x.r, x.w, x.route, x.call, x.read = r, &t.answer, rt, &t.Call, true
	if x.wantsStream() {
		return nil
	}
	heads(&t.Call, r, rt)
	t.raw, t.Call.Begun = body, ctx
	t.Begin(core.Extract(r.Context(), propagation.HeaderCarrier(r.Header)), via, func() error {
		if err := a.admit(x, rt); err != nil {
			return err
		}
		return t.early()
	})
	t.raw = nil
	return t
}

// early is what comes before the body of the request.
func (t *InlineCall) early() (err error) {
	t.x.ctx = t.Ctx
	if t.x.r.ContentLength == 0 {
		return nil
	}
	if _, err = t.api.early(&t.x); err == nil { // what the headers say of the time is work's, which ends with the call
		t.Ctx = t.x.ctx
	}
	return err
}

// body takes the body, as bodyUpTo does one that is to come.
func (t *InlineCall) body(limit int, setting string) ([]byte, error) {
	if len(t.raw) > limit {
		return nil, core.OverLimit("bytes of the body", len(t.raw), limit, setting)
	}
	if err := t.Core.RoomFor(len(t.raw)); err != nil {
		return nil, err
	}
	if err := core.TakeRequest(&t.Call.Reserved, len(t.raw)); err != nil {
		return nil, err
	}
	t.Call.Count(len(t.raw))
	return t.raw, nil
}

// read reads and decodes the body of the request.
func (t *InlineCall) read(into proto.Message, out *request) error {
	raw, err := t.body(t.Core.Cfg.API.MaxBody, "api.max_body")
	if err != nil {
		return err
	}
	return t.api.decode(&t.x, raw, into, out) // which waits for the lane with large bodies alone
}

// Resume ends the call. pieces are all that goes out, and stay as they are. last: they say that the connection ends after them.
func (t *InlineCall) Resume(last bool) (pieces [][]byte) {
	t.finishWith(&t.answer, func() error { return t.Job.(replying).rest(t) })
	return t.answer.pieces(last)
}

// Serve ends the call, and answers it.
func (t *InlineCall) Serve(w http.ResponseWriter) {
	maps.Copy(w.Header(), t.answer.header)
	t.finishWith(w, func() error {
		defer whenOver(t.x.ctx, t.x.cutOff)() // before the end of the call, which ends its context
		return t.Job.(replying).rest(t)
	})
}

func (t *InlineCall) finishWith(w http.ResponseWriter, rest func() error) {
	x := &t.x
	x.w, x.control = w, http.NewResponseController(w)
	fault := t.Finish(rest)
	if fault != nil && !x.started {
		t.Core.Deprecated.Shows(&t.Call, fault)
		x.timing()
		t.api.refuse(x, fault, t.Call.TraceID, false)
	}
}

// querying is a call of Execute over HTTP.
type querying struct {
	core.Executing
	overHTTP
	rows   jsonSink
	req    sidecarv1.ExecuteRequest
	beside request
}

func (j *querying) Begin(t *core.InlineCall) (ready bool, err error) {
	if err := j.web.read(&j.req, &j.beside); err != nil {
		return false, err
	}
	j.In = core.ExecuteOf(&j.req, &j.beside)
	if j.rows.format, err = j.web.x.format(j.beside.form, false); err != nil {
		return false, err
	}
	j.Out = &j.rows
	return j.Executing.Begin(t)
}

func (j *querying) rest(t *InlineCall) error {
	done, err := j.Run(&t.InlineCall)
	if err != nil {
		return err
	}
	return t.x.replyRows(&j.rows, done)
}

// beginning is a call of Begin over HTTP.
type beginning struct {
	core.Beginning
	overHTTP
}

func (j *beginning) Begin(t *core.InlineCall) (bool, error) {
	var req sidecarv1.BeginRequest
	if err := j.web.read(&req, new(request)); err != nil {
		return false, err
	}
	j.In = core.BeginOf(&req)
	return j.Beginning.Begin(t)
}

func (j *beginning) rest(t *InlineCall) error {
	res, err := j.Run(&t.InlineCall)
	if err != nil {
		return err
	}
	return t.x.replyMessage(res)
}

// ending is a call of Commit, or of Rollback, over HTTP.
type ending struct {
	core.Ending
	overHTTP
}

func (j *ending) Begin(t *core.InlineCall) (bool, error) {
	var req sidecarv1.CommitRequest // or RollbackRequest, whose JSON is the same
	if err := j.web.read(&req, new(request)); err != nil {
		return false, err
	}
	j.ID, j.Timeout = j.web.x.r.PathValue("id"), req.Timeout
	return j.Ending.Begin(t)
}

func (j *ending) rest(t *InlineCall) error {
	if err := j.Run(&t.InlineCall); err != nil {
		return err
	}
	return t.x.replyMessage(j.Response(&t.InlineCall))
}

// kvGetting reads one value over HTTP.
type kvGetting struct {
	kv.Reading
	overHTTP
	cond kv.Condition
}

func (j *kvGetting) Begin(t *core.InlineCall) (ready bool, err error) {
	var id kv.ID
	if j.Table, id, j.cond, err = j.web.api.kvGetOf(&j.web.x); err != nil {
		return false, err
	}
	return j.Get(t, j.Table.KeyOf(id), "", "")
}

func (j *kvGetting) rest(t *InlineCall) error {
	row, modified, err := j.Row(&t.InlineCall, j.cond)
	if err != nil {
		return err
	}
	return t.x.replyValue(j.Table, row, modified)
}

// kvBatchGetting reads several values over HTTP.
type kvBatchGetting struct {
	kv.Reading
	overHTTP
	ids []kv.ID
}

func (j *kvBatchGetting) Begin(t *core.InlineCall) (_ bool, err error) {
	var req sidecarv1.KvBatchGetRequest
	if j.Table, j.ids, err = j.web.api.kvBatchGetOf(&j.web.x, &req, j.web.read); err != nil {
		return false, err
	}
	j.Statement = j.Table.Batch(j.ids)
	return j.Look(t, req.Timeout, req.Priority)
}

func (j *kvBatchGetting) rest(t *InlineCall) error {
	found, err := j.Found(&t.InlineCall, j.ids)
	if err != nil {
		return err
	}
	return t.x.replyItems(j.Table, j.ids, found)
}

// kvPutting writes one value over HTTP.
type kvPutting struct {
	kv.Writing
	overHTTP
}

func (j *kvPutting) Begin(t *core.InlineCall) (bool, error) {
	w, err := j.web.api.kvPutOf(&j.web.x, func(limit int, setting string) ([]byte, error) {
		return j.web.body(limit, setting)
	})
	if err != nil {
		return false, err
	}
	return j.Writing.Start(t, w, "", "")
}

func (j *kvPutting) rest(t *InlineCall) error {
	done, err := j.Run(&t.InlineCall)
	if err != nil {
		return err
	}
	return t.x.replyWritten(done)
}

// kvDeleting deletes one row over HTTP.
type kvDeleting struct {
	kv.Writing
	overHTTP
}

func (j *kvDeleting) Begin(t *core.InlineCall) (bool, error) {
	w, err := j.web.api.kvDeleteOf(&j.web.x)
	if err != nil {
		return false, err
	}
	return j.Writing.Start(t, w, "", "")
}

func (j *kvDeleting) rest(t *InlineCall) error {
	if _, err := j.Run(&t.InlineCall); err != nil {
		return err
	}
	return t.x.send(http.StatusNoContent, "")
}

// gathered is an answer of HTTP that goes out as a whole.
type gathered struct {
	header http.Header
	status int
	body   [][]byte
	size   int64
}

// Header implements http.ResponseWriter.
func (g *gathered) Header() http.Header {
	if g.header == nil {
		g.header = make(http.Header, 4)
	}
	return g.header
}

// WriteHeader implements http.ResponseWriter.
func (g *gathered) WriteHeader(status int) { g.status = status }

// Write implements http.ResponseWriter, but keeps what it is given.
func (g *gathered) Write(p []byte) (int, error) {
	g.body = append(g.body, p)
	g.size += int64(len(p))
	return len(p), nil
}

// SetWriteDeadline does nothing: the sender of the answer has a deadline of its own.
func (g *gathered) SetWriteDeadline(time.Time) error { return nil }

// pieces are the answer with its head.
func (g *gathered) pieces(last bool) [][]byte {
	head := http1.AppendHead(make([]byte, 0, 512), g.status, g.header, g.size, last)
	return append([][]byte{head}, g.body...)
}
