package contract

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// OverHTTP calls the HTTP API at a base URL such as http://127.0.0.1:7401.
func OverHTTP(base string) Client {
	keeps := &http.Transport{MaxIdleConnsPerHost: mostIdle, IdleConnTimeout: time.Minute}
	hears := &hearingHTTP{under: keeps}
	return &httpClient{base: strings.TrimSuffix(base, "/"), client: &http.Client{Transport: hears}, hears: hears, idle: keeps}
}

// mostIdle is how many connections a client keeps: as many as it has calls under way.
const mostIdle = 256

type httpClient struct {
	base   string
	client *http.Client
	hears  *hearingHTTP
	idle   *http.Transport
}

func (*httpClient) Name() string { return "http" }

func (h *httpClient) Close() { h.idle.CloseIdleConnections() }

// object is a JSON object under construction.
type object map[string]any

func (h *httpClient) send(ctx context.Context, method, path string, body any, accept string) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, h.base+path, r)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", accept)
	nameApp(req)
	res, err := h.client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	return nil, refusal(res, raw)
}

// nameApp names the app of the request's context, and its trace.
func nameApp(req *http.Request) {
	if app := appOf(req.Context()); app != "" {
		req.Header.Set(headerApp, app)
	}
	if parent, ok := req.Context().Value(traceKey{}).(string); ok {
		req.Header.Set("Traceparent", parent)
	}
}

func (h *httpClient) call(ctx context.Context, method, path string, body any, into any) (*http.Response, error) {
	res, err := h.send(ctx, method, path, body, "application/json")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	d := json.NewDecoder(res.Body)
	d.UseNumber()
	if err := d.Decode(into); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	_, _ = io.Copy(io.Discard, res.Body) // so that the connection can serve again
	return res, nil
}

type jsonProblem struct {
	Type, Title, Detail, Code, Message, Hint string
	Operator                                 string `json:"operator_hint"`
	Status                                   int
	YDBStatus                                string `json:"ydb_status"`
	Issues                                   []any
	Safe                                     bool   `json:"safe_to_retry"`
	Unknown                                  bool   `json:"outcome_unknown"`
	RetryAfter                               int64  `json:"retry_after_ms"`
	TraceID                                  string `json:"trace_id"`
}

// errorsPage is what the types of problems begin with.
const errorsPage = "https://github.com/ydb-sidecar/sidecar/blob/main/docs/reference/errors.md#"

func problem(raw []byte) *Error {
	var p jsonProblem
	if err := json.Unmarshal(raw, &p); err != nil || p.Type != errorsPage+strings.ToLower(p.Code) || p.Title == "" ||
		p.Detail != p.Message {
		return &Error{Code: fmt.Sprintf("NO PROBLEM: %v: %.200s", err, raw)}
	}
	return &Error{
		Code: p.Code, Status: p.Status, Message: p.Message, YDB: p.YDBStatus, Issues: len(p.Issues), Safe: p.Safe, Unknown: p.Unknown,
		RetryAfter: time.Duration(p.RetryAfter) * time.Millisecond, Hint: p.Hint, Operator: p.Operator,
		TraceID: p.TraceID,
	}
}

// jsonBodies: what comes back.

type jsonColumns []struct{ Name, Type string }

type jsonSet struct {
	Columns   jsonColumns
	Rows      []json.RawMessage
	Truncated bool
}

type jsonReply struct {
	jsonSet
	Sets  []jsonSet
	Tx    *jsonTx
	Info  jsonInfo
	Stats *jsonStats
	Error json.RawMessage

	Affected *uint64 `json:"rows_affected"`
}

type jsonTx struct {
	ID      string
	Expires int64 `json:"expires_ms"`
}

type jsonInfo struct {
	Node     uint32 `json:"node_id"`
	Attempts uint32
	TraceID  string  `json:"trace_id"`
	Units    *uint64 `json:"consumed_units"`
}

type jsonStats struct {
	Tables []struct {
		ReadRows uint64 `json:"read_rows"`
	}
}

func (s jsonSet) set() Set {
	out := Set{Truncated: s.Truncated}
	for _, c := range s.Columns {
		out.Columns = append(out.Columns, Column{c.Name, c.Type})
	}
	for _, raw := range s.Rows {
		out.Rows = append(out.Rows, row(raw, out.Columns))
	}
	return out
}

// row reads a row in either form.
func row(raw json.RawMessage, columns []Column) []any {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return []any{err}
	}
	if list, ok := v.([]any); ok {
		return plain(list).([]any)
	}
	out := make([]any, len(columns))
	for i, c := range columns {
		v, ok := v.(map[string]any)[c.Name]
		if !ok {
			v = fmt.Errorf("no member %s", c.Name)
		}
		out[i] = plain(v)
	}
	return out
}

// plain writes every number as text.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		if !strings.ContainsAny(string(v), ".eE") {
			return string(v)
		}
		f, err := v.Float64()
		if err != nil {
			return err
		}
		return number(f)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}
		return out
	case map[string]any:
		for name := range v {
			v[name] = plain(v[name])
		}
	}
	return v
}

func (r jsonReply) reply(res *http.Response) *Reply {
	out := &Reply{Set: r.set(), Affected: r.Affected,
		Info: Info{Node: r.Info.Node, Attempts: r.Info.Attempts, TraceID: r.Info.TraceID, Units: r.Info.Units}}
	if res != nil {
		out.Info.Timing = res.Header.Get("Server-Timing")
	}
	for _, s := range r.Sets {
		out.Sets = append(out.Sets, s.set())
	}
	if r.Tx != nil {
		out.Tx = r.Tx.tx()
	}
	if r.Stats != nil {
		out.Stats = true
		for _, t := range r.Stats.Tables {
			out.ReadRows += t.ReadRows
		}
	}
	if r.Error != nil {
		out.Error = problem(r.Error)
	}
	return out
}

func (t *jsonTx) tx() *Tx { return &Tx{ID: t.ID, Expires: time.Duration(t.Expires) * time.Millisecond} }

func (s Statement) body() object {
	o := object{"sql": s.SQL, "params": params(s.Params)}
	put := func(name string, v any, there bool) {
		if there {
			o[name] = v
		}
	}
	put("types", s.Types, s.Types != nil)
	put("mode", s.Mode, s.Mode != "")
	put("idempotent", true, s.Idempotent)
	put("timeout", s.Timeout, s.Timeout != "")
	put("stats", s.Stats, s.Stats != "")
	put("priority", s.Priority, s.Priority != "")
	put("limits", object{"rows": s.Rows, "bytes": s.Bytes}, s.Rows > 0 || s.Bytes > 0)
	if s.Tx != nil {
		o["tx"] = s.Tx.object()
	}
	return o
}

func (x *TxSelector) object() object {
	tx := object{}
	if x.Begin {
		tx["begin"] = object{"mode": x.Mode}
	}
	if x.ID != "" {
		tx["id"] = x.ID
	}
	if x.Seq > 0 {
		tx["seq"] = x.Seq
	}
	if x.Commit {
		tx["commit"] = true
	}
	return tx
}

func params(m map[string]any) object {
	out := make(object, len(m))
	for name, v := range m {
		out[name] = jsonValue(v)
	}
	return out
}

func jsonValue(v any) any {
	switch v := v.(type) {
	case Typed:
		return object{"type": v.Type, "value": jsonValue(v.Value)}
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = jsonValue(v[i])
		}
		return out
	case map[string]any:
		return params(v)
	case float64:
		return json.RawMessage(strconv.FormatFloat(v, 'e', -1, 64)) // 2 is an integer, 2e+00 is not
	}
	return v // encoding/json writes []byte in base64
}

func (h *httpClient) Execute(ctx context.Context, s Statement) (*Reply, error) {
	var r jsonReply
	res, err := h.call(ctx, "POST", "/v1/query", s.body(), &r)
	if err != nil {
		return nil, err
	}
	return r.reply(res), nil
}

func (h *httpClient) Stream(ctx context.Context, s Statement) (*Reply, error) {
	res, err := h.send(ctx, "POST", "/v1/query", s.body(), "application/x-ndjson")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	out := &Reply{}
	var sets []Set
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var line struct {
			Columns *jsonColumns
			Row     json.RawMessage
			End     *struct {
				jsonReply
				Rows uint64
			}
			Error json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("line %.200q: %w", lines.Text(), err)
		}
		switch {
		case line.Columns != nil:
			out.Lines = append(out.Lines, "columns")
			sets = append(sets, jsonSet{Columns: *line.Columns}.set())
		case line.Row != nil:
			if n := len(out.Lines); out.Lines[n-1] != "rows" {
				out.Lines = append(out.Lines, "rows")
			}
			last := &sets[len(sets)-1]
			last.Rows = append(last.Rows, row(line.Row, last.Columns))
		case line.End != nil:
			out.Lines = append(out.Lines, "end")
			end := line.End.reply(nil)
			out.Tx, out.Info, out.Stats, out.ReadRows = end.Tx, end.Info, end.Stats, end.ReadRows
			out.EndRows, out.Truncated, out.Affected = line.End.Rows, line.End.Truncated, end.Affected
		case line.Error != nil:
			out.gather(sets)
			return out, problem(line.Error)
		}
	}
	out.gather(sets)
	if err := lines.Err(); err != nil {
		return out, err
	}
	if n := len(out.Lines); n == 0 || out.Lines[n-1] != "end" {
		return out, errors.New("the stream has no last line")
	}
	return out, nil
}

func (h *httpClient) Each(ctx context.Context, s Statement, part func(rows int)) error {
	res, err := h.send(ctx, "POST", "/v1/query", s.body(), "application/x-ndjson")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if bytes.HasPrefix(lines.Bytes(), []byte(`{"row":`)) {
			part(1)
			continue
		}
		var line struct{ End, Error json.RawMessage }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("line %.200q: %w", lines.Text(), err)
		}
		switch {
		case line.Error != nil:
			return problem(line.Error)
		case line.End != nil:
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return ErrCut
}

func (h *httpClient) Transact(ctx context.Context, t Transaction) ([]*Reply, error) {
	body := object{"mode": t.Mode, "idempotent": t.Idempotent, "timeout": t.Timeout, "limits": object{"rows": t.Rows}}
	list := []object{}
	for _, s := range t.Statements {
		one := object{"sql": s.SQL, "params": params(s.Params), "types": s.Types}
		if s.Expect != nil {
			one["expect"] = object{"rows": *s.Expect}
		}
		list = append(list, one)
	}
	if t.Tx != nil {
		body["tx"] = t.Tx.object()
	}
	body["statements"] = list
	var r struct {
		Results []jsonReply
		Tx      *jsonTx
		Info    jsonInfo
	}
	res, err := h.call(ctx, "POST", "/v1/tx", body, &r)
	if err != nil {
		return nil, err
	}
	var out []*Reply
	for _, one := range r.Results {
		one.Info, one.Tx = r.Info, r.Tx
		out = append(out, one.reply(res))
	}
	return out, nil
}

func (h *httpClient) Begin(ctx context.Context, mode string) (*Tx, error) {
	var r jsonReply
	if _, err := h.call(ctx, "POST", "/v1/tx/begin", object{"mode": mode}, &r); err != nil {
		return nil, err
	}
	return r.Tx.tx(), nil
}

func (h *httpClient) Commit(ctx context.Context, id string) error {
	_, err := h.call(ctx, "POST", "/v1/tx/"+url.PathEscape(id)+"/commit", nil, new(jsonReply))
	return err
}

func (h *httpClient) Rollback(ctx context.Context, id string) error {
	_, err := h.call(ctx, "POST", "/v1/tx/"+url.PathEscape(id)+"/rollback", object{}, new(jsonReply))
	return err
}

func (h *httpClient) GetTransaction(ctx context.Context, id string) (*Open, error) {
	var r struct {
		Tx   jsonTx
		Seq  uint64
		Mode string
		Node uint32 `json:"node_id"`
	}
	if _, err := h.call(ctx, "GET", "/v1/tx/"+url.PathEscape(id), nil, &r); err != nil {
		return nil, err
	}
	return &Open{Tx: *r.Tx.tx(), Seq: r.Seq, Mode: r.Mode, Node: r.Node}, nil
}

func (h *httpClient) Batch(ctx context.Context, list []Statement) ([]*Reply, error) {
	statements := []object{}
	for _, s := range list {
		statements = append(statements, s.body())
	}
	var r struct{ Results []jsonReply }
	if _, err := h.call(ctx, "POST", "/v1/batch", object{"statements": statements}, &r); err != nil {
		return nil, err
	}
	var out []*Reply
	for _, one := range r.Results {
		out = append(out, one.reply(nil))
	}
	return out, nil
}

func (h *httpClient) BulkUpsert(ctx context.Context, b Bulk) (uint64, error) {
	rows := []object{}
	for _, row := range b.Rows {
		rows = append(rows, params(row))
	}
	var r struct{ Rows uint64 }
	_, err := h.call(ctx, "POST", "/v1/bulk", object{"table": b.Table, "rows": rows, "types": b.Types}, &r)
	return r.Rows, err
}

func (h *httpClient) Explain(ctx context.Context, sql string, types map[string]string) (string, error) {
	var r struct{ Plan string }
	_, err := h.call(ctx, "POST", "/v1/explain", object{"sql": sql, "types": types}, &r)
	return r.Plan, err
}

func (h *httpClient) Describe(ctx context.Context, path string) (*Table, error) {
	var r struct {
		Path    string
		Columns []struct {
			Name, Type string
			NotNull    bool `json:"not_null"`
		}
		PrimaryKey []string `json:"primary_key"`
		Indexes    []struct{ Name string }
	}
	if _, err := h.call(ctx, "GET", "/v1/schema/"+url.PathEscape(path), nil, &r); err != nil {
		return nil, err
	}
	t := &Table{Path: r.Path, PrimaryKey: r.PrimaryKey}
	for _, c := range r.Columns {
		t.Columns = append(t.Columns, TableColumn(c))
	}
	for _, i := range r.Indexes {
		t.Indexes = append(t.Indexes, i.Name)
	}
	return t, nil
}

func (h *httpClient) Version(ctx context.Context) (string, []string, error) {
	var r struct {
		API      string
		Features []string
	}
	_, err := h.call(ctx, "GET", "/v1", nil, &r)
	return r.API, r.Features, err
}

func (h *httpClient) Status(ctx context.Context) (*Status, error) {
	var r struct {
		State    string
		Database string
		Open     uint32 `json:"open_transactions"`
	}
	_, err := h.call(ctx, "GET", "/v1/status", nil, &r)
	return &Status{State: r.State, Database: r.Database, Open: r.Open}, err
}
