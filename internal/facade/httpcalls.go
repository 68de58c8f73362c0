package facade

import (
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/lane"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// read reads and decodes the body of a request.
func (a *httpAPI) read(x *exchange, into any) error {
	raw, err := a.bodyOfJSON(x)
	if err != nil {
		return err
	}
	return a.decode(x, raw, into)
}

// replyMessage sends a message of ours.
func (x *exchange) replyMessage(m proto.Message) error {
	return x.reply(mediaJSON, appendMessage(nil, m.ProtoReflect()))
}

func (a *httpAPI) query(x *exchange) error {
	raw, err := a.bodyOfJSON(x)
	if err != nil {
		return err
	}
	var body jsonExecute
	if err := a.decode(x, raw, &body); err != nil {
		return err
	}
	if p := a.core.other.ownerOf(x.ctx, x.call, body.Tx.id()); p != nil {
		return a.relay(x, p, raw, body.Tx.Commit, body.Timeout)
	}
	in := body.request()
	if x.wantsStream() {
		return a.stream(x, in, body.jsonFormat)
	}
	f, err := x.format(body.jsonFormat, false)
	if err != nil {
		return err
	}
	rows := jsonSink{format: f}
	done, err := a.core.execute(x.ctx, x.call, in, &rows)
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

func (a *httpAPI) transact(x *exchange) error {
	var body jsonTransact
	if err := a.read(x, &body); err != nil {
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
	done, err := a.core.transact(x.ctx, x.call, in, func(i int) sink {
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

func (a *httpAPI) batch(x *exchange) error {
	var body jsonBatch
	if err := a.read(x, &body); err != nil {
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
	done, err := a.core.batch(x.ctx, x.call, in, func(i int) sink {
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

func (a *httpAPI) begin(x *exchange) error {
	var body jsonBegin
	if err := a.read(x, &body); err != nil {
		return err
	}
	tx, err := a.core.tx.begin(x.ctx, x.call, body.request())
	if err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.BeginResponse{Tx: tx, Info: x.call.info})
}

// request is what the body asks for.
func (b *jsonBegin) request() beginRequest {
	return beginRequest{mode: b.Mode, timeout: b.Timeout, priority: b.Priority}
}

func (a *httpAPI) commit(x *exchange) error {
	var body jsonEndTx
	if err := a.read(x, &body); err != nil {
		return err
	}
	if err := a.core.tx.commit(x.ctx, x.call, x.r.PathValue("id"), body.Timeout); err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.CommitResponse{Info: x.call.info})
}

func (a *httpAPI) rollback(x *exchange) error {
	var body jsonEndTx
	if err := a.read(x, &body); err != nil {
		return err
	}
	if err := a.core.tx.rollBack(x.ctx, x.call, x.r.PathValue("id"), body.Timeout); err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.RollbackResponse{Info: x.call.info})
}

func (a *httpAPI) getTransaction(x *exchange) error {
	tx, err := a.core.tx.get(x.r.PathValue("id"))
	if err != nil {
		return err
	}
	return x.replyMessage(tx)
}

func (a *httpAPI) bulk(x *exchange) error {
	read := a.bodyOfJSON
	if x.lines() {
		read = a.body
	}
	raw, err := read(x)
	if err != nil {
		return err
	}
	x.call.large = len(raw) > lane.Large
	in := bulkRequest{table: x.r.URL.Query().Get("table"), rows: jsonRows{raw: raw, lines: true, depth: a.core.cfg.API.MaxDepth, take: x.call.reserved.Take}}
	if !x.lines() {
		var body jsonBulk
		rows, err := a.decodeAround(x, raw, "rows", &body)
		if err != nil {
			return err
		}
		in = bulkRequest{table: body.Table, rows: jsonRows{raw: rows}, types: body.Types, timeout: body.Timeout, priority: body.Priority}
	}
	n, err := a.core.bulkUpsert(x.ctx, x.call, in)
	if err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.BulkUpsertResponse{Rows: n, Info: x.call.info})
}

func (a *httpAPI) explain(x *exchange) error {
	var body jsonExplain
	if err := a.read(x, &body); err != nil {
		return err
	}
	plan, err := a.core.explain(x.ctx, x.call, explainRequest{sql: body.SQL, types: body.Types, timeout: body.Timeout, priority: body.Priority})
	if err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.ExplainResponse{Plan: plan.plan, Ast: plan.ast, Info: x.call.info})
}

func (a *httpAPI) describe(x *exchange) error {
	// HTTP servers fold the two slashes before an absolute path into one.
	path := x.r.PathValue("path")
	if a.core.inDatabase("/" + path) {
		path = "/" + path
	}
	d, err := a.core.describeTable(x.ctx, x.call, path, "")
	if err != nil {
		return err
	}
	return x.replyMessage(d)
}

func (a *httpAPI) status(x *exchange) error { return x.replyMessage(a.core.status()) }

func (a *httpAPI) openAPI(x *exchange) error { return x.reply(mediaYAML, openAPI) }
