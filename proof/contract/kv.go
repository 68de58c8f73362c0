package contract

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// KV is one call of the key-value API. An id has a part for each column of the
// key: text, or []byte for String.
type KV struct {
	Table     string
	ID        []any
	Value     []byte
	Match     []string // versions, or "*"
	NoneMatch []string
}

// KVReply is the reply to one.
type KVReply struct {
	Value       []byte
	Null        bool
	NotModified bool
	Created     bool
	Version     string
	ContentType string
	Timing      string // Server-Timing
}

// KVItem is what a batch get found. IDs are as in rows: an item for a key of one
// column, a list for one of several.
type KVItem struct {
	ID      any
	Value   []byte
	Null    bool
	Version string
}

// kvClient is the part of Client for the key-value API.
type kvClient interface {
	Get(ctx context.Context, c KV) (*KVReply, error)
	Put(ctx context.Context, c KV) (*KVReply, error)
	Delete(ctx context.Context, c KV) error
	// BatchGet reads several ids; text says that values are text, not String.
	BatchGet(ctx context.Context, table string, ids [][]any, text bool) (items []KVItem, missing []any, err error)
}

// kv sends a call and returns the reply with its whole body, if the status is one of want.
func (h *httpClient) kv(ctx context.Context, method string, c KV, want ...int) (*http.Response, []byte, error) {
	query := url.Values{}
	for _, part := range c.ID {
		switch part := part.(type) {
		case []byte:
			query.Add("id", string(part))
		case string:
			query.Add("id", part)
		}
	}
	var body io.Reader
	if method == http.MethodPut {
		body = bytes.NewReader(c.Value)
	}
	req, err := http.NewRequestWithContext(ctx, method, h.base+"/v1/kv/"+url.PathEscape(c.Table)+"?"+query.Encode(), body)
	if err != nil {
		return nil, nil, err
	}
	for name, list := range map[string][]string{"If-Match": c.Match, "If-None-Match": c.NoneMatch} {
		for _, one := range list {
			if one != "*" {
				one = `"` + one + `"`
			}
			req.Header.Add(name, one)
		}
	}
	nameApp(req)
	res, err := h.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, nil, err
	}
	for _, status := range want {
		if res.StatusCode == status {
			return res, raw, nil
		}
	}
	return nil, nil, refusal(res, raw)
}

func version(res *http.Response) string {
	return strings.TrimSuffix(strings.TrimPrefix(res.Header.Get("ETag"), `"`), `"`)
}

func (h *httpClient) Get(ctx context.Context, c KV) (*KVReply, error) {
	res, raw, err := h.kv(ctx, http.MethodGet, c, http.StatusOK, http.StatusNoContent, http.StatusNotModified)
	if err != nil {
		return nil, err
	}
	r := &KVReply{Value: raw, Version: version(res), ContentType: res.Header.Get("Content-Type"), Timing: res.Header.Get("Server-Timing"),
		Null: res.StatusCode == http.StatusNoContent, NotModified: res.StatusCode == http.StatusNotModified}
	if r.Null || r.NotModified {
		r.Value = nil
	}
	return r, nil
}

func (h *httpClient) Put(ctx context.Context, c KV) (*KVReply, error) {
	res, _, err := h.kv(ctx, http.MethodPut, c, http.StatusCreated, http.StatusNoContent)
	if err != nil {
		return nil, err
	}
	return &KVReply{Created: res.StatusCode == http.StatusCreated, Version: version(res), Timing: res.Header.Get("Server-Timing")}, nil
}

func (h *httpClient) Delete(ctx context.Context, c KV) error {
	_, _, err := h.kv(ctx, http.MethodDelete, c, http.StatusNoContent)
	return err
}

func (h *httpClient) BatchGet(ctx context.Context, table string, ids [][]any, text bool) ([]KVItem, []any, error) {
	list := make([]any, len(ids))
	for i, id := range ids {
		if list[i] = jsonValue(any(id)); len(id) == 1 {
			list[i] = jsonValue(id[0])
		}
	}
	var r struct {
		Items []struct {
			ID      any
			Value   *string
			Version string
		}
		Missing []any
	}
	if _, err := h.call(ctx, "POST", "/v1/kv/"+url.PathEscape(table)+":batchGet", object{"ids": list}, &r); err != nil {
		return nil, nil, err
	}
	var items []KVItem
	for _, one := range r.Items {
		item := KVItem{ID: plain(one.ID), Version: one.Version, Null: one.Value == nil}
		if one.Value != nil {
			item.Value = []byte(*one.Value)
		}
		if !text && one.Value != nil {
			var err error
			if item.Value, err = base64.StdEncoding.DecodeString(*one.Value); err != nil {
				return nil, nil, err
			}
		}
		items = append(items, item)
	}
	for i := range r.Missing {
		r.Missing[i] = plain(r.Missing[i])
	}
	return items, r.Missing, nil
}

// refusal reads an error that came over HTTP.
func refusal(res *http.Response, raw []byte) *Error {
	e := problem(raw)
	e.Transport = strconv.Itoa(res.StatusCode)
	if again := res.Header.Get("Retry-After"); res.StatusCode == http.StatusTooManyRequests && e.Safe && again != seconds(e.RetryAfter) {
		e.Code = fmt.Sprintf("CONTRADICTION: Retry-After: %s, and %s", again, raw)
	}
	if e.Status != res.StatusCode || res.Header.Get("Content-Type") != "application/problem+json" {
		e.Code = fmt.Sprintf("CONTRADICTION: status %d, type %q and %s", res.StatusCode, res.Header.Get("Content-Type"), raw)
	}
	return e
}

// seconds is a pause as Retry-After has it: whole seconds, rounded up.
func seconds(d time.Duration) string { return strconv.Itoa(int((d + time.Second - 1) / time.Second)) }

func (g *grpcClient) kv() sidecarv1.KeyValueClient { return sidecarv1.NewKeyValueClient(g.conn) }

func kvID(parts []any) *sidecarv1.KvId {
	id := &sidecarv1.KvId{}
	for _, p := range parts {
		id.Columns = append(id.Columns, packValue(p))
	}
	return id
}

func (c KV) condition() *sidecarv1.KvCondition {
	return &sidecarv1.KvCondition{Match: c.Match, NoneMatch: c.NoneMatch}
}

func (g *grpcClient) Get(ctx context.Context, c KV) (*KVReply, error) {
	var trailer metadata.MD
	r, err := g.kv().Get(ctx, &sidecarv1.KvGetRequest{Table: c.Table, Id: kvID(c.ID), Condition: c.condition()}, grpc.Trailer(&trailer))
	if err != nil {
		return nil, grpcError(err)
	}
	return &KVReply{Value: r.Value, Null: r.Value == nil && !r.NotModified, NotModified: r.NotModified, Version: r.Version,
		ContentType: r.ContentType, Timing: grpcInfo(r.Info, trailer).Timing}, nil
}

func (g *grpcClient) Put(ctx context.Context, c KV) (*KVReply, error) {
	var trailer metadata.MD
	r, err := g.kv().Put(
		ctx, &sidecarv1.KvPutRequest{Table: c.Table, Id: kvID(c.ID), Value: c.Value, Condition: c.condition()},
		grpc.Trailer(&trailer),
	)
	if err != nil {
		return nil, grpcError(err)
	}
	return &KVReply{Created: r.Created, Version: r.Version, Timing: grpcInfo(r.Info, trailer).Timing}, nil
}

func (g *grpcClient) Delete(ctx context.Context, c KV) error {
	_, err := g.kv().Delete(ctx, &sidecarv1.KvDeleteRequest{Table: c.Table, Id: kvID(c.ID), Condition: c.condition()})
	return grpcError(err)
}

func (g *grpcClient) BatchGet(ctx context.Context, table string, ids [][]any, _ bool) (items []KVItem, missing []any, err error) {
	req := &sidecarv1.KvBatchGetRequest{Table: table}
	for _, id := range ids {
		req.Ids = append(req.Ids, kvID(id))
	}
	r, err := g.kv().BatchGet(ctx, req)
	if err != nil {
		return nil, nil, grpcError(err)
	}
	for _, one := range r.Items {
		items = append(items, KVItem{ID: unpackID(one.Id), Value: one.Value, Null: one.Value == nil, Version: one.Version})
	}
	for _, id := range r.Missing {
		missing = append(missing, unpackID(id))
	}
	return items, missing, nil
}

func unpackID(id *sidecarv1.KvId) any {
	var parts []any
	for _, c := range id.Columns {
		parts = append(parts, unpackValue(c))
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return parts
}
