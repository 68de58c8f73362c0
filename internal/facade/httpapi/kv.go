package httpapi

import (
	"encoding/json"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// batchGetSuffix ends the path of a batch get; a pattern of http.ServeMux cannot say so.
const batchGetSuffix = ":batchGet"

// ofBatchGet reports whether a path of the key-value API, or its last segment, is that of a batch get.
func ofBatchGet(path string) bool { return strings.HasSuffix(path, batchGetSuffix) }

func (a *API) kvGet(x *exchange) error {
	t, id, cond, err := a.kvGetOf(x)
	if err != nil {
		return err
	}
	row, modified, err := a.kv.Get(x.ctx, x.call, kv.Call{Table: t}, t.KeyOf(id), cond)
	if err != nil {
		return err
	}
	return x.replyValue(t, row, modified)
}

// kvGetOf reads a request for one value.
func (a *API) kvGetOf(x *exchange) (*kv.Table, kv.ID, kv.Condition, error) {
	t, err := a.kv.Table(x.r.PathValue("table"))
	if err != nil {
		return nil, nil, kv.Condition{}, err
	}
	id, cond, err := a.kvRequest(x, t)
	return t, id, cond, err
}

// replyValue sends one value, or says that the caller has it already.
func (x *exchange) replyValue(t *kv.Table, row kv.Row, modified bool) error {
	value, null, err := row.Octets()
	if err != nil {
		return err
	}
	h := x.w.Header()
	// The value is somebody's: a browser that is shown it must not run it with the rights of this origin.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Cache-Control", "no-cache") // a copy is asked about first
	setETag(h, row.Version)
	switch {
	case !modified:
		return x.send(http.StatusNotModified, "")
	case null:
		return x.send(http.StatusNoContent, "")
	}
	return x.send(http.StatusOK, t.MediaType(), value)
}

func (a *API) kvPut(x *exchange) error {
	w, err := a.kvPutOf(x, func(limit int, setting string) ([]byte, error) { return a.bodyUpTo(x, limit, setting, nil) })
	if err != nil {
		return err
	}
	done, err := a.kv.Write(x.ctx, x.call, kv.Call{Table: w.Table}, w)
	if err != nil {
		return err
	}
	return x.replyWritten(done)
}

// kvPutOf reads a request that writes one value, which body reads.
func (a *API) kvPutOf(x *exchange, body func(limit int, setting string) ([]byte, error)) (*kv.Write, error) {
	t, err := a.kv.TableToWrite(x.r.PathValue("table"))
	if err != nil {
		return nil, x.refuseToWrite(err)
	}
	if err := takes(t, x.r.Header.Get("Content-Type")); err != nil {
		return nil, err
	}
	if part := x.r.Header.Get("Content-Range"); part != "" { // RFC 9110, 14.5
		return nil, core.BadRequest("Content-Range %.100q: a part of a value cannot be written; send the whole value without this header",
			part)
	}
	id, cond, err := a.kvRequest(x, t)
	if err != nil {
		return nil, err
	}
	limit, setting := a.kv.MaxValue(t)
	if limit > a.core.Cfg.API.MaxBody {
		limit, setting = a.core.Cfg.API.MaxBody, "api.max_body"
	}
	value, err := body(limit, setting)
	if err != nil {
		return nil, err
	}
	return a.kv.Put(t, t.KeyOf(id), value, cond)
}

// replyWritten says that a value was written.
func (x *exchange) replyWritten(done kv.Written) error {
	setETag(x.w.Header(), done.Version)
	if done.Created {
		return x.send(http.StatusCreated, "")
	}
	return x.send(http.StatusNoContent, "")
}

func (a *API) kvDelete(x *exchange) error {
	w, err := a.kvDeleteOf(x)
	if err != nil {
		return err
	}
	if _, err := a.kv.Write(x.ctx, x.call, kv.Call{Table: w.Table}, w); err != nil {
		return err
	}
	return x.send(http.StatusNoContent, "")
}

// kvDeleteOf reads a request that deletes one row.
func (a *API) kvDeleteOf(x *exchange) (*kv.Write, error) {
	t, err := a.kv.TableToWrite(x.r.PathValue("table"))
	if err != nil {
		return nil, x.refuseToWrite(err)
	}
	id, cond, err := a.kvRequest(x, t)
	if err != nil {
		return nil, err
	}
	return t.Delete(t.KeyOf(id), cond), nil
}

func (a *API) kvBatchGet(x *exchange) error {
	var req sidecarv1.KvBatchGetRequest
	t, ids, err := a.kvBatchGetOf(x, &req, func(into proto.Message, out *request) error { return a.read(x, into, out) })
	if err != nil {
		return err
	}
	found, err := a.kv.BatchGet(x.ctx, x.call, kv.Call{Table: t, Timeout: req.Timeout, Priority: req.Priority}, ids)
	if err != nil {
		return err
	}
	return x.replyItems(t, ids, found)
}

// kvBatchGetOf reads a request for several values, whose body read decodes.
func (a *API) kvBatchGetOf(x *exchange, req *sidecarv1.KvBatchGetRequest, read func(into proto.Message, out *request) error) (
	*kv.Table, []kv.ID, error,
) {
	t, err := a.kv.Table(strings.TrimSuffix(x.r.PathValue("table"), batchGetSuffix))
	if err != nil {
		return nil, nil, err
	}
	var beside request
	if err := read(req, &beside); err != nil {
		return nil, nil, err
	}
	if err := a.kv.Count(x.call, len(beside.ids)); err != nil {
		return nil, nil, err
	}
	ids := make([]kv.ID, len(beside.ids))
	for i, raw := range beside.ids {
		if ids[i], err = a.id(t, raw); err != nil {
			return nil, nil, kv.AtID(i, err)
		}
	}
	return t, ids, nil
}

// replyItems sends what a batch get found.
func (x *exchange) replyItems(t *kv.Table, ids []kv.ID, found []kv.Found) (err error) {
	items, missing := []byte(`{"items":[`), []byte(`],"missing":[`)
	for i, f := range found {
		if f.None {
			missing, err = appendID(comma(missing), t, ids[i])
		} else {
			items, err = appendItem(comma(items), t, ids[i], f.Row)
		}
		if err != nil {
			return core.BadAnswer(err)
		}
	}
	b := append(append(items, missing...), ']')
	return x.reply(core.MediaJSON, append(appendMember(b, "info", x.call.Info), '}'))
}

// comma separates an item from the one before.
func comma(b []byte) []byte {
	if b[len(b)-1] != '[' {
		b = append(b, ',')
	}
	return b
}

// id reads an id in JSON: a value in the JSON form of its type, or the list
// of them where the key has several columns.
func (a *API) id(t *kv.Table, raw json.RawMessage) (kv.ID, error) {
	parts := []json.RawMessage{raw}
	if len(t.Key) > 1 {
		if err := json.Unmarshal(raw, &parts); err != nil {
			return nil, core.BadRequest("id must be a list of %d values, one for each column of the key", len(t.Key))
		}
	}
	return a.kv.ID(t, len(parts), len(raw), func(i int, t *Ydb.Type) (*Ydb.Value, error) { return yql.ParseJSON(parts[i], t) })
}

func appendID(b []byte, t *kv.Table, id kv.ID) (_ []byte, err error) {
	if len(id) > 1 {
		b = append(b, '[')
	}
	for i, v := range id {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = yql.AppendJSON(b, v, t.Key[i].Type, yql.JSONOptions{}); err != nil {
			return b, err
		}
	}
	if len(id) > 1 {
		b = append(b, ']')
	}
	return b, nil
}

func appendItem(b []byte, t *kv.Table, id kv.ID, row kv.Row) (_ []byte, err error) {
	if b, err = appendID(append(b, `{"id":`...), t, id); err != nil {
		return b, err
	}
	v, err := row.Value.Value()
	if err != nil {
		return b, err
	}
	if b, err = yql.AppendJSON(append(b, `,"value":`...), v, row.Value.Type, yql.JSONOptions{}); err != nil {
		return b, err
	}
	return append(appendText(append(b, `,"version":`...), row.Version), '}'), nil
}

// kvRequest reads what the address and the headers of a request say: the id, one
// value for each column of the key, and the condition.
func (a *API) kvRequest(x *exchange, t *kv.Table) (kv.ID, kv.Condition, error) {
	parts, size := x.query["id"], 0
	for _, p := range parts {
		size += len(p)
	}
	id, err := a.kv.ID(t, len(parts), size, func(i int, t *Ydb.Type) (*Ydb.Value, error) { return yql.ParseKey(parts[i], t) })
	if err != nil {
		return nil, kv.Condition{}, err
	}
	match, err := tags(x.r.Header, "If-Match", strong)
	if err != nil {
		return nil, kv.Condition{}, err
	}
	noneMatch, err := tags(x.r.Header, "If-None-Match", weak)
	return id, kv.Condition{Match: match, NoneMatch: noneMatch}, err
}

// How tags are compared (RFC 9110, 8.8.3.2).
const (
	strong = iota // a weak tag is like none
	weak          // a weak tag is like a strong one
)

// tags reads the entity tags of a header: * or a list (RFC 9110, 13.1.1). nil is
// a header that is not there.
func tags(h http.Header, name string, how int) (*kv.Versions, error) {
	lines := h.Values(name)
	if len(lines) == 0 {
		return nil, nil
	}
	text := strings.TrimSpace(strings.Join(lines, ","))
	if text == "*" {
		return &kv.Versions{Any: true}, nil
	}
	v := &kv.Versions{}
	for text != "" {
		quoted, isWeak := strings.CutPrefix(text, "W/")
		tag, rest, ok := strings.Cut(strings.TrimPrefix(quoted, `"`), `"`)
		if !ok || quoted[0] != '"' {
			return nil, core.BadRequest(`%s must be * or a list of tags in quotes, such as "5"`, name)
		}
		if how == weak || !isWeak {
			v.List = append(v.List, tag)
		}
		rest = strings.TrimLeft(rest, " \t")
		if rest != "" && rest[0] != ',' {
			return nil, core.BadRequest("%s: separate the tags by commas", name)
		}
		text = strings.TrimLeft(rest, " \t,")
	}
	return v, nil
}

func setETag(h http.Header, version string) {
	if version != "" {
		h["Etag"] = []string{`"` + version + `"`}
	}
}

// takes tells whether a value of this Content-Type is taken: the one that
// readers are told, or none in particular.
func takes(t *kv.Table, contentType string) error {
	if contentType == "" {
		return nil
	}
	media, _, err := mime.ParseMediaType(contentType)
	own, _, _ := mime.ParseMediaType(t.MediaType())
	if err == nil && slices.Contains([]string{core.MediaOctets, own}, media) {
		return nil
	}
	send := core.MediaOctets
	if own != core.MediaOctets {
		send = own + " or " + core.MediaOctets
	}
	return core.Faultf(core.CodeMedia, "Content-Type %.100q is not accepted here; send %s, or leave it out", contentType, send)
}

// refuseToWrite adds what is allowed to the refusal of a table that may not be written.
func (x *exchange) refuseToWrite(err error) error {
	if core.FaultOf(err, core.Deed{}).Code == core.CodeReadOnly {
		x.w.Header().Set("Allow", "GET, HEAD")
	}
	return err
}
