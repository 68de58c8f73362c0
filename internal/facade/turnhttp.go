package facade

import (
	"net/http"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/ydb-sidecar/sidecar/internal/http1"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// HTTPTurn is a Turn of a request of HTTP.
type HTTPTurn struct {
	Turn
	job querying
}

// BeginHTTP begins a call of Execute over HTTP with its whole body, and does not wait. via carries the statement, if it can be sent at once. Nil: the
// request is none for here, and nothing has happened. Otherwise Resume must be called. The body is not kept.
func (s *Service) BeginHTTP(r *http.Request, body []byte, via upstream.Via) *HTTPTurn {
	rt := &routes[0]
	d, ok := s.deps.Driver.(driver)
	if !ok || r.Method != rt.method || r.URL.Path != rt.path || r.URL.RawPath != "" || len(body) == 0 || s.deps.Memory.Tight() || s.peer.Load() != nil || s.guard.Check(r) != nil {
		return nil
	}
	t := &HTTPTurn{}
	t.s, t.Turn.job = s, &t.job
	x := &t.job.x
	x.r, x.call, x.read = r, &t.c, true
	if x.wantsStream() {
		return nil
	}
	t.c.heads(r, rt)
	t.job.raw = body
	t.begin(extract(r.Context(), propagation.HeaderCarrier(r.Header)), d, via, func() error { return s.admit(x, rt) })
	t.job.raw = nil
	return t
}

// Resume ends the call. pieces are all that goes out, and stay as they are. last: they say that the connection ends after them.
func (t *HTTPTurn) Resume(last bool) (pieces [][]byte) {
	t.finishWith(&t.job.answer, func() error { return t.job.rest(&t.Turn) })
	return t.job.answer.pieces(last)
}

// Serve ends the call, and answers it.
func (t *HTTPTurn) Serve(w http.ResponseWriter) {
	t.finishWith(w, func() error {
		defer whenOver(t.job.x.ctx, t.job.x.cutOff)() // before the end of the call, which ends its context
		return t.job.rest(&t.Turn)
	})
}

func (t *HTTPTurn) finishWith(w http.ResponseWriter, rest func() error) {
	x := &t.job.x
	x.w, x.control = w, http.NewResponseController(w)
	fault := t.finish(rest)
	if t.job.stop != nil {
		t.job.stop()
	}
	if fault != nil && !x.started {
		x.timing()
		t.s.refuse(x, fault, t.c.traceID, false)
	}
}

// querying is a call of Execute over HTTP.
type querying struct {
	executing
	x      exchange
	raw    []byte // the body, in the turn in which the call begins
	rows   jsonSink
	stop   func() // ends what the headers say of the time; nil: they were not read
	answer gathered
}

func (j *querying) begin(t *Turn) (ready bool, err error) {
	s, x := t.s, &j.x
	x.ctx = t.ctx
	if j.stop, err = s.early(x); err != nil {
		return false, err
	}
	t.ctx = x.ctx
	if len(j.raw) > s.cfg.API.MaxBody {
		return false, overLimit("bytes of the body", len(j.raw), s.cfg.API.MaxBody, "api.max_body")
	}
	if err := s.roomFor(len(j.raw)); err != nil {
		return false, err
	}
	if err := tooMuch(t.c.share.Take(len(j.raw))); err != nil {
		return false, err
	}
	t.c.count(len(j.raw))
	var body jsonExecute
	if err := s.decodeNow(&t.c, j.raw, &body); err != nil {
		return false, err
	}
	j.in = body.request()
	if j.rows.format, err = x.format(body.jsonFormat, false); err != nil {
		return false, err
	}
	j.out = &j.rows
	return j.executing.begin(t)
}

// rest runs the statement, or waits for its answer.
func (j *querying) rest(t *Turn) error {
	done, err := j.run(t)
	if err != nil {
		return err
	}
	return j.x.replyRows(&j.rows, done)
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

// SetWriteDeadline is for http.ResponseController. Who sends the answer sees to it.
func (g *gathered) SetWriteDeadline(time.Time) error { return nil }

// pieces are the answer with its head.
func (g *gathered) pieces(last bool) [][]byte {
	head := http1.AppendHead(make([]byte, 0, 512), g.status, g.header, g.size, last)
	return append([][]byte{head}, g.body...)
}
