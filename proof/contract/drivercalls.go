package contract

import (
	"context"
	"encoding/base64"
	"io"
	"time"
)

// driverSet is a result set as drivers send it.
type driverSet struct {
	Columns   []Column
	Rows      [][]any
	Truncated bool
}

func (s driverSet) set() Set {
	out := Set(s)
	for _, row := range out.Rows {
		for i := range row {
			row[i] = plain(row[i])
		}
	}
	return out
}

// driverReply is the result of a statement as drivers send it.
type driverReply struct {
	driverSet
	Sets []driverSet
	Tx   *jsonTx
	Info struct {
		Node, Attempts uint32
		TraceID        string `json:"trace_id"`
		Units          *uint64
	}
	Stats    bool
	ReadRows uint64 `json:"read_rows"`
	Affected *uint64
	EndRows  uint64 `json:"end_rows"`
	Lines    []string
	Error    *driverProblem
}

func (r *driverReply) reply() *Reply {
	out := &Reply{Set: r.set(), Stats: r.Stats, ReadRows: r.ReadRows, Affected: r.Affected, EndRows: r.EndRows, Lines: r.Lines,
		Info: Info{Node: r.Info.Node, Attempts: r.Info.Attempts, TraceID: r.Info.TraceID, Units: r.Info.Units}}
	for _, s := range r.Sets {
		out.Sets = append(out.Sets, s.set())
	}
	if r.Tx != nil {
		out.Tx = r.Tx.tx()
	}
	if r.Error != nil {
		out.Error = r.Error.error()
	}
	return out
}

func (d *driver) Execute(ctx context.Context, s Statement) (*Reply, error) {
	var r driverReply
	if err := d.call(ctx, "execute", s.args(), &r); err != nil {
		return nil, err
	}
	return r.reply(), nil
}

func (d *driver) Stream(ctx context.Context, s Statement) (*Reply, error) {
	var r driverReply
	err := d.call(ctx, "stream", s.args(), &r)
	return r.reply(), err
}

func (d *driver) Each(ctx context.Context, s Statement, part func(rows int)) error {
	r, err := d.Stream(ctx, s)
	part(len(r.Rows))
	return err
}

func (d *driver) results(ctx context.Context, call string, args object) ([]*Reply, error) {
	var r struct{ Results []driverReply }
	if err := d.call(ctx, call, args, &r); err != nil {
		return nil, err
	}
	var out []*Reply
	for i := range r.Results {
		out = append(out, r.Results[i].reply())
	}
	return out, nil
}

func (d *driver) Transact(ctx context.Context, t Transaction) ([]*Reply, error) {
	args := object{"statements": allArgs(t.Statements), "mode": t.Mode, "idempotent": t.Idempotent, "timeout": t.Timeout, "rows": t.Rows}
	if t.Tx != nil {
		args["tx"] = t.Tx.args()
	}
	return d.results(ctx, "transact", args)
}

func (d *driver) Batch(ctx context.Context, list []Statement) ([]*Reply, error) {
	return d.results(ctx, "batch", object{"statements": allArgs(list)})
}

func (d *driver) Begin(ctx context.Context, mode string) (*Tx, error) {
	var tx jsonTx
	if err := d.call(ctx, "begin", object{"mode": mode}, &tx); err != nil {
		return nil, err
	}
	return tx.tx(), nil
}

func (d *driver) Commit(ctx context.Context, id string) error {
	return d.call(ctx, "commit", object{"id": id}, &struct{}{})
}

func (d *driver) Rollback(ctx context.Context, id string) error {
	return d.call(ctx, "rollback", object{"id": id}, &struct{}{})
}

func (d *driver) GetTransaction(ctx context.Context, id string) (*Open, error) {
	var r struct {
		jsonTx
		Seq  uint64
		Mode string
		Node uint32
	}
	if err := d.call(ctx, "get_transaction", object{"id": id}, &r); err != nil {
		return nil, err
	}
	return &Open{Tx: *r.tx(), Seq: r.Seq, Mode: r.Mode, Node: r.Node}, nil
}

func (d *driver) BulkUpsert(ctx context.Context, b Bulk) (uint64, error) {
	rows := []object{}
	for _, row := range b.Rows {
		rows = append(rows, named(row))
	}
	var r struct{ Rows uint64 }
	err := d.call(ctx, "bulk", object{"table": b.Table, "rows": rows, "types": b.Types}, &r)
	return r.Rows, err
}

func (d *driver) Explain(ctx context.Context, sql string, types map[string]string) (string, error) {
	var r struct{ Plan string }
	err := d.call(ctx, "explain", object{"sql": sql, "types": types}, &r)
	return r.Plan, err
}

func (d *driver) Describe(ctx context.Context, path string) (*Table, error) {
	var r struct {
		Path    string
		Columns []struct {
			Name, Type string
			NotNull    bool `json:"not_null"`
		}
		PrimaryKey []string `json:"primary_key"`
		Indexes    []string
	}
	if err := d.call(ctx, "describe", object{"path": path}, &r); err != nil {
		return nil, err
	}
	t := &Table{Path: r.Path, PrimaryKey: r.PrimaryKey, Indexes: r.Indexes}
	for _, c := range r.Columns {
		t.Columns = append(t.Columns, TableColumn(c))
	}
	return t, nil
}

func (d *driver) Status(ctx context.Context) (*Status, error) {
	var r struct {
		State, Database string
		Open            uint32 `json:"open_transactions"`
	}
	err := d.call(ctx, "status", object{}, &r)
	return &Status{State: r.State, Database: r.Database, Open: r.Open}, err
}

func (d *driver) Version(ctx context.Context) (string, []string, error) {
	var r struct {
		API      string
		Features []string
	}
	err := d.call(ctx, "version", object{}, &r)
	return r.API, r.Features, err
}

// kv makes one call of the key-value API.
func (d *driver) kv(ctx context.Context, call string, c KV) (*KVReply, error) {
	var r struct {
		Value       *string
		NotModified bool `json:"not_modified"`
		Created     bool
		Version     string
		ContentType string `json:"content_type"`
		Missing     bool
	}
	args := object{"table": c.Table, "id": arguments(c.ID), "value": base64.StdEncoding.EncodeToString(c.Value),
		"match": c.Match, "none_match": c.NoneMatch}
	if err := d.call(ctx, call, args, &r); err != nil {
		return nil, err
	}
	if r.Missing {
		return nil, &Error{Code: "KEY_NOT_FOUND", Status: 404, Message: "the library returned no row",
			Hint: "none: it is no error of the library"}
	}
	out := &KVReply{Null: r.Value == nil && !r.NotModified, NotModified: r.NotModified, Created: r.Created, Version: r.Version,
		ContentType: r.ContentType}
	if r.Value == nil {
		return out, nil
	}
	var err error
	out.Value, err = base64.StdEncoding.DecodeString(*r.Value)
	return out, err
}

func (d *driver) Get(ctx context.Context, c KV) (*KVReply, error) { return d.kv(ctx, "kv_get", c) }
func (d *driver) Put(ctx context.Context, c KV) (*KVReply, error) { return d.kv(ctx, "kv_put", c) }

func (d *driver) Delete(ctx context.Context, c KV) error {
	_, err := d.kv(ctx, "kv_delete", c)
	return err
}

func (d *driver) BatchGet(ctx context.Context, table string, ids [][]any, text bool) (items []KVItem, missing []any, err error) {
	list := make([]any, len(ids))
	for i, id := range ids {
		list[i] = arguments(id)
	}
	var r struct {
		Items []struct {
			ID      any
			Value   *string
			Version string
		}
		Missing []any
	}
	if err := d.call(ctx, "kv_batch_get", object{"table": table, "ids": list, "text": text}, &r); err != nil {
		return nil, nil, err
	}
	for _, one := range r.Items {
		item := KVItem{ID: plain(one.ID), Null: one.Value == nil, Version: one.Version}
		if one.Value != nil {
			if item.Value, err = base64.StdEncoding.DecodeString(*one.Value); err != nil {
				return nil, nil, err
			}
		}
		items = append(items, item)
	}
	for _, id := range r.Missing {
		missing = append(missing, plain(id))
	}
	return items, missing, nil
}

// driverIngest is the stream of rows that a driver has open.
type driverIngest struct{ *driver }

func (d *driver) Ingest(ctx context.Context, o IngestOpen) (IngestStream, error) {
	err := d.call(ctx, "ingest_open", object{"table": o.Table, "offset": o.Offset, "stream": o.Stream}, &struct{}{})
	return driverIngest{d}, err
}

// within bounds a call of a stream, which has no context of its own.
func (d driverIngest) within(call string, args object, reply any) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return d.call(ctx, call, args, reply)
}

func (d driverIngest) Send(columns []string, rows ...[]any) error {
	list := make([]any, len(rows))
	for i, row := range rows {
		list[i] = arguments(row)
	}
	return d.within("ingest_send", object{"columns": columns, "rows": list}, &struct{}{})
}

func (d driverIngest) CloseSend() error { return d.within("ingest_close_send", object{}, &struct{}{}) }

func (d driverIngest) Next() (IngestPart, error) {
	var r struct {
		Next, Offset uint64
		Refused      *driverProblem
		End          *IngestEnd
		Done         bool
	}
	if err := d.within("ingest_next", object{}, &r); err != nil {
		return IngestPart{}, err
	}
	part := IngestPart{Next: r.Next, Offset: r.Offset, End: r.End}
	if r.Refused != nil {
		part.Refused = r.Refused.error()
	}
	if r.Done {
		return part, io.EOF
	}
	return part, nil
}

// Close leaves the stream. What the driver says about it is of no use to the case.
func (d driverIngest) Close() { _ = d.within("ingest_close", object{}, &struct{}{}) }
