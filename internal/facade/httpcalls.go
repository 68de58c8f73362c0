package facade

import (
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/lane"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// read reads and decodes the body of a request.
func (s *Service) read(x *exchange, into any) error {
	raw, err := s.bodyOfJSON(x)
	if err != nil {
		return err
	}
	return s.decode(x, raw, into)
}

// replyMessage sends a message of ours.
func (x *exchange) replyMessage(m proto.Message) error {
	return x.reply(mediaJSON, appendMessage(nil, m.ProtoReflect()))
}

func (s *Service) httpQuery(x *exchange) error {
	raw, err := s.bodyOfJSON(x)
	if err != nil {
		return err
	}
	var body jsonExecute
	if err := s.decode(x, raw, &body); err != nil {
		return err
	}
	if p := s.other.ownerOf(x.ctx, x.call, body.Tx.id()); p != nil {
		return s.relayHTTP(x, p, raw, body.Tx.Commit, body.Timeout)
	}
	in := body.request()
	if x.wantsStream() {
		return s.httpStream(x, in, body.jsonFormat)
	}
	f, err := x.format(body.jsonFormat, false)
	if err != nil {
		return err
	}
	rows := jsonSink{format: f}
	done, err := s.execute(x.ctx, x.call, in, &rows)
	if err != nil {
		return err
	}
	return x.replyRows(&rows, done)
}

// request is what the body asks for.
func (b *jsonExecute) request() executeRequest {
	return executeRequest{
		spec: b.spec(b.Stats, b.Limits),
		mode: b.Mode, tx: b.Tx.selector(), idempotent: b.Idempotent, timeout: b.Timeout, priority: b.Priority,
	}
}

// replyRows sends the answer to a statement.
func (x *exchange) replyRows(rows *jsonSink, done outcome) error {
	p := pieces{last: []byte{'{'}}
	rows.appendTo(&p)
	p.last = append(appendOutcome(p.last, done, x.call.info), '}')
	return x.reply(mediaJSON, p.all()...)
}

func (s *Service) httpTransact(x *exchange) error {
	var body jsonTransact
	if err := s.read(x, &body); err != nil {
		return err
	}
	f, err := x.format(body.jsonFormat, false)
	if err != nil {
		return err
	}
	in := transactRequest{mode: body.Mode, idempotent: body.Idempotent, timeout: body.Timeout, priority: body.Priority}
	for _, st := range body.Statements {
		in.statements = append(in.statements, st.spec(body.Stats, body.Limits))
	}
	sinks := make([]jsonSink, len(in.statements))
	done, err := s.transact(x.ctx, x.call, in, func(i int) sink {
		sinks[i].format = f
		return &sinks[i]
	})
	if err != nil {
		return err
	}
	p := pieces{last: []byte(`{"results":[`)}
	for i := range sinks {
		if i > 0 {
			p.last = append(p.last, ',')
		}
		p.last = append(p.last, '{')
		sinks[i].appendTo(&p)
		sinks[i].again() // what was copied is there once
		p.last = append(appendOutcome(p.last, done[i], nil), '}')
	}
	p.last = append(appendMember(append(p.last, ']'), "info", x.call.info), '}')
	return x.reply(mediaJSON, p.all()...)
}

func (s *Service) httpBatch(x *exchange) error {
	var body jsonBatch
	if err := s.read(x, &body); err != nil {
		return err
	}
	f, err := x.format(body.jsonFormat, false)
	if err != nil {
		return err
	}
	in := batchRequest{timeout: body.Timeout, priority: body.Priority}
	for _, st := range body.Statements {
		in.statements = append(in.statements, executeRequest{spec: st.spec("", st.Limits), mode: st.Mode, idempotent: st.Idempotent})
	}
	sinks := make([]jsonSink, len(in.statements))
	done, err := s.batch(x.ctx, x.call, in, func(i int) sink {
		sinks[i].format = f
		return &sinks[i]
	})
	if err != nil {
		return err
	}
	p := pieces{last: []byte(`{"results":[`)}
	for i := range done {
		if i > 0 {
			p.last = append(p.last, ',')
		}
		p.last = append(p.last, '{')
		if fault := done[i].fault; fault != nil {
			p.last = appendProblem(append(p.last, `"error":`...), fault, x.call.failing())
		} else {
			sinks[i].appendTo(&p)
			sinks[i].again() // what was copied is there once
		}
		p.last = append(appendMember(p.last, "info", done[i].info), '}')
	}
	p.last = append(p.last, "]}"...)
	return x.reply(mediaJSON, p.all()...)
}

func (s *Service) httpBegin(x *exchange) error {
	var body jsonBegin
	if err := s.read(x, &body); err != nil {
		return err
	}
	tx, err := s.tx.begin(x.ctx, x.call, body.request())
	if err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.BeginResponse{Tx: tx, Info: x.call.info})
}

// request is what the body asks for.
func (b *jsonBegin) request() beginRequest {
	return beginRequest{mode: b.Mode, timeout: b.Timeout, priority: b.Priority}
}

func (s *Service) httpCommit(x *exchange) error {
	var body jsonEndTx
	if err := s.read(x, &body); err != nil {
		return err
	}
	if err := s.tx.commit(x.ctx, x.call, x.r.PathValue("id"), body.Timeout); err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.CommitResponse{Info: x.call.info})
}

func (s *Service) httpRollback(x *exchange) error {
	var body jsonEndTx
	if err := s.read(x, &body); err != nil {
		return err
	}
	if err := s.tx.rollBack(x.ctx, x.call, x.r.PathValue("id"), body.Timeout); err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.RollbackResponse{Info: x.call.info})
}

func (s *Service) httpGetTransaction(x *exchange) error {
	tx, err := s.tx.get(x.r.PathValue("id"))
	if err != nil {
		return err
	}
	return x.replyMessage(tx)
}

func (s *Service) httpBulk(x *exchange) error {
	read := s.bodyOfJSON
	if x.lines() {
		read = s.body
	}
	raw, err := read(x)
	if err != nil {
		return err
	}
	x.call.large = len(raw) > lane.Large
	in := bulkRequest{table: x.r.URL.Query().Get("table"), rows: jsonRows{raw: raw, lines: true, depth: s.cfg.API.MaxDepth, take: x.call.reserved.Take}}
	if !x.lines() {
		var body jsonBulk
		rows, err := s.decodeAround(x, raw, "rows", &body)
		if err != nil {
			return err
		}
		in = bulkRequest{table: body.Table, rows: jsonRows{raw: rows}, types: body.Types, timeout: body.Timeout, priority: body.Priority}
	}
	n, err := s.bulkUpsert(x.ctx, x.call, in)
	if err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.BulkUpsertResponse{Rows: n, Info: x.call.info})
}

func (s *Service) httpExplain(x *exchange) error {
	var body jsonExplain
	if err := s.read(x, &body); err != nil {
		return err
	}
	plan, err := s.explain(x.ctx, x.call, explainRequest{sql: body.SQL, types: body.Types, timeout: body.Timeout, priority: body.Priority})
	if err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.ExplainResponse{Plan: plan.plan, Ast: plan.ast, Info: x.call.info})
}

func (s *Service) httpDescribe(x *exchange) error {
	// HTTP servers fold the two slashes before an absolute path into one.
	path := x.r.PathValue("path")
	if within("/"+path, s.deps.Database) {
		path = "/" + path
	}
	d, err := s.describeTable(x.ctx, x.call, path, "")
	if err != nil {
		return err
	}
	return x.replyMessage(d)
}

func (s *Service) httpStatus(x *exchange) error { return x.replyMessage(s.status()) }

func (s *Service) httpOpenAPI(x *exchange) error { return x.reply(mediaYAML, openAPI) }
