package httpapi

import (
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/lane"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// read reads and decodes the body of a request.
func (a *API) read(x *exchange, into proto.Message, out *request) error {
	raw, err := a.bodyOfJSON(x)
	if err != nil {
		return err
	}
	return a.decode(x, raw, into, out)
}

// replyMessage sends a message of ours.
func (x *exchange) replyMessage(m proto.Message) error {
	return x.reply(core.MediaJSON, appendMessage(nil, m.ProtoReflect()))
}

func (a *API) query(x *exchange) error {
	raw, err := a.bodyOfJSON(x)
	if err != nil {
		return err
	}
	var req sidecarv1.ExecuteRequest
	var beside request
	if err := a.decode(x, raw, &req, &beside); err != nil {
		return err
	}
	if p := a.core.Other.OwnerOf(x.ctx, x.call, req.Tx.GetId()); p != nil {
		return a.relay(x, p, raw, req.Tx.GetCommit(), req.Timeout)
	}
	in := core.ExecuteOf(&req, &beside)
	if x.wantsStream() {
		return a.stream(x, in, beside.form)
	}
	f, err := x.format(beside.form, false)
	if err != nil {
		return err
	}
	rows := jsonSink{format: f}
	done, err := a.core.Execute(x.ctx, x.call, in, &rows)
	if err != nil {
		return err
	}
	return x.replyRows(&rows, done)
}

// replyRows sends the answer to a statement.
func (x *exchange) replyRows(rows *jsonSink, done core.Outcome) error {
	p := pieces{last: []byte{'{'}}
	rows.appendTo(&p)
	p.last = append(appendOutcome(p.last, done, x.call.Info), '}')
	return x.reply(core.MediaJSON, p.all()...)
}

func (a *API) transact(x *exchange) error {
	raw, err := a.bodyOfJSON(x)
	if err != nil {
		return err
	}
	var req sidecarv1.TransactRequest
	var beside request
	if err := a.decode(x, raw, &req, &beside); err != nil {
		return err
	}
	if p := a.core.Other.OwnerOf(x.ctx, x.call, req.Tx.GetId()); p != nil {
		return a.relay(x, p, raw, req.Tx.GetCommit(), req.Timeout)
	}
	f, err := x.format(beside.form, false)
	if err != nil {
		return err
	}
	in := core.TransactOf(&req, &beside)
	sinks := make([]jsonSink, len(in.Statements))
	done, tx, err := a.core.Transact(x.ctx, x.call, in, func(i int) core.Sink {
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
		sinks[i].Again() // what was copied is there once
		p.last = append(appendOutcome(p.last, done[i], nil), '}')
	}
	p.last = append(appendMember(appendMember(append(p.last, ']'), "tx", tx), "info", x.call.Info), '}')
	return x.reply(core.MediaJSON, p.all()...)
}

func (a *API) batch(x *exchange) error {
	var req sidecarv1.BatchRequest
	var beside request
	if err := a.read(x, &req, &beside); err != nil {
		return err
	}
	f, err := x.format(beside.form, false)
	if err != nil {
		return err
	}
	in := core.BatchOf(&req, &beside)
	sinks := make([]jsonSink, len(in.Statements))
	done, err := a.core.Batch(x.ctx, x.call, in, func(i int) core.Sink {
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
		if fault := done[i].Fault; fault != nil {
			p.last = appendProblem(append(p.last, `"error":`...), fault, x.call.Failing())
		} else {
			sinks[i].appendTo(&p)
			sinks[i].Again() // what was copied is there once
		}
		p.last = append(appendOutcome(p.last, done[i].Outcome, done[i].Info), '}')
	}
	p.last = append(p.last, "]}"...)
	return x.reply(core.MediaJSON, p.all()...)
}

func (a *API) begin(x *exchange) error {
	var req sidecarv1.BeginRequest
	if err := a.read(x, &req, new(request)); err != nil {
		return err
	}
	tx, err := a.core.Tx.Begin(x.ctx, x.call, core.BeginOf(&req))
	if err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.BeginResponse{Tx: tx, Info: x.call.Info})
}

func (a *API) commit(x *exchange) error {
	var req sidecarv1.CommitRequest
	if err := a.read(x, &req, new(request)); err != nil {
		return err
	}
	if err := a.core.Tx.Commit(x.ctx, x.call, x.r.PathValue("id"), req.Timeout); err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.CommitResponse{Info: x.call.Info})
}

func (a *API) rollback(x *exchange) error {
	var req sidecarv1.RollbackRequest
	if err := a.read(x, &req, new(request)); err != nil {
		return err
	}
	if err := a.core.Tx.RollBack(x.ctx, x.call, x.r.PathValue("id"), req.Timeout); err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.RollbackResponse{Info: x.call.Info})
}

func (a *API) getTransaction(x *exchange) error {
	tx, err := a.core.Tx.Get(x.r.PathValue("id"))
	if err != nil {
		return err
	}
	return x.replyMessage(tx)
}

func (a *API) bulk(x *exchange) error {
	read := a.bodyOfJSON
	if x.lines() {
		read = a.body
	}
	raw, err := read(x)
	if err != nil {
		return err
	}
	x.call.Large = len(raw) > lane.Large
	table, err := x.parameter("table")
	if err != nil {
		return err
	}
	in := core.BulkRequest{Table: table,
		Rows: jsonRows{raw: raw, lines: true, depth: a.core.Cfg.API.MaxDepth, take: x.call.Reserved.Take}}
	if !x.lines() {
		var req sidecarv1.BulkUpsertRequest
		rows, err := a.decodeAround(x, raw, "rows", &req)
		if err != nil {
			return err
		}
		if in.Table != "" && in.Table != req.Table {
			return core.BadRequest("table: the query has %.64q, the body %.64q; with %s only the body names the table", in.Table,
				req.Table, core.MediaJSON)
		}
		in = core.BulkOf(&req, jsonRows{raw: rows})
	}
	n, err := a.core.BulkUpsert(x.ctx, x.call, in)
	if err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.BulkUpsertResponse{Rows: n, Info: x.call.Info})
}

func (a *API) explain(x *exchange) error {
	var req sidecarv1.ExplainRequest
	if err := a.read(x, &req, new(request)); err != nil {
		return err
	}
	plan, err := a.core.Explain(x.ctx, x.call, core.ExplainOf(&req))
	if err != nil {
		return err
	}
	return x.replyMessage(&sidecarv1.ExplainResponse{Plan: plan.Plan, Ast: plan.AST, Info: x.call.Info})
}

// tablePath returns the path of a table that ends the URL, relative to the database or absolute.
func (a *API) tablePath(x *exchange, name string) string {
	// HTTP servers fold the two slashes before an absolute path into one.
	path := x.r.PathValue(name)
	if a.core.InDatabase("/" + path) {
		return "/" + path
	}
	return path
}

func (a *API) describe(x *exchange) error {
	d, err := a.core.DescribeTable(x.ctx, x.call, a.tablePath(x, "path"), "")
	if err != nil {
		return err
	}
	return x.replyMessage(d)
}

func (a *API) status(x *exchange) error { return x.replyMessage(a.core.Status()) }

func (a *API) version(x *exchange) error { return x.replyMessage(a.core.Version()) }

func (a *API) openAPI(x *exchange) error { return x.reply(mediaYAML, openAPI) }
