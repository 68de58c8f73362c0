package grpcapi

import (
	"context"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// keyValueServer is the service sidecar.v1.KeyValue.
type keyValueServer struct {
	sidecarv1.UnimplementedKeyValueServer
	api *API
}

// Get reads one value.
func (k keyValueServer) Get(ctx context.Context, req *sidecarv1.KvGetRequest) (*sidecarv1.KvGetResponse, error) {
	return unary(ctx, k.api, core.CallKVGet, req, func(ctx context.Context, c *core.Call) (*sidecarv1.KvGetResponse, error) {
		t, id, err := k.api.getOf(req)
		if err != nil {
			return nil, err
		}
		row, modified, err := k.api.kv.Get(
			ctx, c, kv.Call{Table: t, Timeout: req.Timeout, Priority: req.Priority}, t.KeyOf(id),
			conditionOf(req.Condition),
		)
		if err != nil {
			return nil, err
		}
		return getResponse(t, c, row, modified)
	})
}

func (a *API) getOf(req *sidecarv1.KvGetRequest) (*kv.Table, kv.ID, error) {
	t, err := a.kv.Table(req.Table)
	if err != nil {
		return nil, nil, err
	}
	id, err := a.id(t, req.Id)
	return t, id, err
}

func getResponse(t *kv.Table, c *core.Call, row kv.Row, modified bool) (_ *sidecarv1.KvGetResponse, err error) {
	res := &sidecarv1.KvGetResponse{Version: row.Version, NotModified: !modified, ContentType: t.MediaType(), Info: c.Info}
	if modified {
		res.Value, err = optional(row)
	}
	return res, err
}

// Put writes one value.
func (k keyValueServer) Put(ctx context.Context, req *sidecarv1.KvPutRequest) (*sidecarv1.KvPutResponse, error) {
	return unary(ctx, k.api, core.CallKVPut, req, func(ctx context.Context, c *core.Call) (*sidecarv1.KvPutResponse, error) {
		w, err := k.api.putOf(req)
		if err != nil {
			return nil, err
		}
		done, err := k.api.kv.Write(ctx, c, kv.Call{Table: w.Table, Timeout: req.Timeout, Priority: req.Priority}, w)
		return putResponse(done, c), err
	})
}

func (a *API) putOf(req *sidecarv1.KvPutRequest) (*kv.Write, error) {
	t, err := a.kv.TableToWrite(req.Table)
	if err != nil {
		return nil, err
	}
	id, err := a.id(t, req.Id)
	if err != nil {
		return nil, err
	}
	return a.kv.Put(t, t.KeyOf(id), req.Value, conditionOf(req.Condition))
}

func putResponse(w kv.Written, c *core.Call) *sidecarv1.KvPutResponse {
	return &sidecarv1.KvPutResponse{Created: w.Created, Version: w.Version, Info: c.Info}
}

// Delete deletes one row.
func (k keyValueServer) Delete(ctx context.Context, req *sidecarv1.KvDeleteRequest) (*sidecarv1.KvDeleteResponse, error) {
	return unary(ctx, k.api, core.CallKVDelete, req, func(ctx context.Context, c *core.Call) (*sidecarv1.KvDeleteResponse, error) {
		w, err := k.api.deleteOf(req)
		if err != nil {
			return nil, err
		}
		_, err = k.api.kv.Write(ctx, c, kv.Call{Table: w.Table, Timeout: req.Timeout, Priority: req.Priority}, w)
		return &sidecarv1.KvDeleteResponse{Info: c.Info}, err
	})
}

func (a *API) deleteOf(req *sidecarv1.KvDeleteRequest) (*kv.Write, error) {
	t, err := a.kv.TableToWrite(req.Table)
	if err != nil {
		return nil, err
	}
	id, err := a.id(t, req.Id)
	if err != nil {
		return nil, err
	}
	return t.Delete(t.KeyOf(id), conditionOf(req.Condition)), nil
}

// BatchGet reads several values.
func (k keyValueServer) BatchGet(ctx context.Context, req *sidecarv1.KvBatchGetRequest) (*sidecarv1.KvBatchGetResponse, error) {
	return unary(ctx, k.api, core.CallKVBatchGet, req, func(ctx context.Context, c *core.Call) (*sidecarv1.KvBatchGetResponse, error) {
		t, ids, err := k.api.batchOf(c, req)
		if err != nil {
			return nil, err
		}
		found, err := k.api.kv.BatchGet(ctx, c, kv.Call{Table: t, Timeout: req.Timeout, Priority: req.Priority}, ids)
		if err != nil {
			return nil, err
		}
		return batchResponse(t, c, ids, found)
	})
}

func (a *API) batchOf(c *core.Call, req *sidecarv1.KvBatchGetRequest) (*kv.Table, []kv.ID, error) {
	t, err := a.kv.Table(req.Table)
	if err == nil {
		err = a.kv.Count(c, len(req.Ids))
	}
	if err != nil {
		return nil, nil, err
	}
	ids := make([]kv.ID, len(req.Ids))
	for i, one := range req.Ids {
		if ids[i], err = a.id(t, one); err != nil {
			return nil, nil, kv.AtID(i, err)
		}
	}
	return t, ids, nil
}

func batchResponse(t *kv.Table, c *core.Call, ids []kv.ID, found []kv.Found) (*sidecarv1.KvBatchGetResponse, error) {
	res := &sidecarv1.KvBatchGetResponse{Info: c.Info}
	for i, f := range found {
		id, err := idOf(t, ids[i])
		if err != nil {
			return nil, core.BadAnswer(err)
		}
		if f.None {
			res.Missing = append(res.Missing, id)
			continue
		}
		item := &sidecarv1.KvItem{Id: id, Version: f.Row.Version}
		if item.Value, err = optional(f.Row); err != nil {
			return nil, err
		}
		res.Items = append(res.Items, item)
	}
	return res, nil
}

// id reads an id.
func (a *API) id(t *kv.Table, id *sidecarv1.KvId) (kv.ID, error) {
	parts := id.GetColumns()
	return a.kv.ID(t, len(parts), proto.Size(id), func(i int, t *Ydb.Type) (*Ydb.Value, error) {
		if deeper(parts[i], 2) { // a value, or one with its type
			return nil, core.BadRequest("id: %s is one value", yql.FormatType(t))
		}
		return yql.FromValue(parts[i], t)
	})
}

// idOf writes an id as API.id reads one.
func idOf(t *kv.Table, id kv.ID) (*sidecarv1.KvId, error) {
	out := &sidecarv1.KvId{Columns: make([]*sidecarv1.Value, len(id))}
	for i, v := range id {
		var err error
		if out.Columns[i], err = yql.ToValue(v, t.Key[i].Type); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// optional is the value of an optional field of bytes: nil is NULL, and no
// value is empty bytes.
func optional(r kv.Row) ([]byte, error) {
	b, null, err := r.Octets()
	if err == nil && !null && b == nil {
		b = []byte{}
	}
	return b, err
}

func conditionOf(c *sidecarv1.KvCondition) kv.Condition {
	return kv.Condition{Match: versionsOf(c.GetMatch()), NoneMatch: versionsOf(c.GetNoneMatch())}
}

func versionsOf(list []string) *kv.Versions {
	var v *kv.Versions
	for _, one := range list {
		v = v.With(one)
	}
	return v
}
