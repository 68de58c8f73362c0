package grpcapi

import (
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// kvGetting is a call of Get.
type kvGetting struct {
	kv.Reading
	api *API
	req kvRequest
}

func (j *kvGetting) read(_ *InlineCall, request []byte) (proto.Message, bool) {
	const table, id, cond, timeout, priority = 1, 2, 3, 4, 5
	if j.req.read(request, kvFields{table, id, cond, timeout, priority, 0}) {
		return nil, true
	}
	req := new(sidecarv1.KvGetRequest)
	return req, proto.Unmarshal(request, req) == nil && j.req.of(req.Table, req.Id, req.Condition, req.Timeout, req.Priority, nil)
}

func (j *kvGetting) Begin(t *core.InlineCall) (ready bool, err error) {
	if j.Table, err = j.api.kv.Table(j.req.table); err != nil {
		return false, err
	}
	key, err := j.req.key(j.api, j.Table)
	if err != nil {
		return false, err
	}
	return j.Get(t, key, j.req.timeout, j.req.priority)
}

func (j *kvGetting) rest(t *InlineCall, b []byte) ([]byte, error) {
	row, modified, err := j.Row(&t.InlineCall, j.req.cond)
	if err != nil {
		return nil, err
	}
	return appendGet(b, j.Table, &t.Call, row, modified)
}

// kvBatchGetting is a call of BatchGet.
type kvBatchGetting struct {
	kv.Reading
	api *API
	req sidecarv1.KvBatchGetRequest
	ids []kv.ID
}

func (j *kvBatchGetting) read(_ *InlineCall, request []byte) (proto.Message, bool) {
	return readMessage(request, &j.req)
}

func (j *kvBatchGetting) Begin(t *core.InlineCall) (ready bool, err error) {
	if j.Table, j.ids, err = j.api.batchOf(&t.Call, &j.req); err != nil {
		return false, err
	}
	j.Statement = j.Table.Batch(j.ids)
	return j.Look(t, j.req.Timeout, j.req.Priority)
}

func (j *kvBatchGetting) rest(t *InlineCall, b []byte) ([]byte, error) {
	found, err := j.Found(&t.InlineCall, j.ids)
	if err != nil {
		return nil, err
	}
	res, err := batchResponse(j.Table, &t.Call, j.ids, found)
	return encode(b, res, err)
}

// kvPutting is a call of Put.
type kvPutting struct {
	kv.Writing
	api *API
	req kvRequest
}

func (j *kvPutting) read(_ *InlineCall, request []byte) (proto.Message, bool) {
	const table, id, value, cond, timeout, priority = 1, 2, 3, 4, 5, 6
	if j.req.read(request, kvFields{table, id, cond, timeout, priority, value}) {
		return nil, true
	}
	req := new(sidecarv1.KvPutRequest)
	return req, proto.Unmarshal(request, req) == nil && j.req.of(req.Table, req.Id, req.Condition, req.Timeout, req.Priority, req.Value)
}

func (j *kvPutting) Begin(t *core.InlineCall) (bool, error) {
	table, key, err := j.req.toWrite(j.api)
	if err != nil {
		return false, err
	}
	w, err := j.api.kv.Put(table, key, j.req.value, j.req.cond)
	if err != nil {
		return false, err
	}
	return j.Writing.Start(t, w, j.req.timeout, j.req.priority)
}

func (j *kvPutting) rest(t *InlineCall, b []byte) ([]byte, error) {
	done, err := j.Run(&t.InlineCall)
	if err != nil {
		return nil, err
	}
	return appendPut(b, done, &t.Call), nil
}

// kvDeleting is a call of Delete.
type kvDeleting struct {
	kv.Writing
	api *API
	req kvRequest
}

func (j *kvDeleting) read(_ *InlineCall, request []byte) (proto.Message, bool) {
	const table, id, cond, timeout, priority = 1, 2, 3, 4, 5
	if j.req.read(request, kvFields{table, id, cond, timeout, priority, 0}) {
		return nil, true
	}
	req := new(sidecarv1.KvDeleteRequest)
	return req, proto.Unmarshal(request, req) == nil && j.req.of(req.Table, req.Id, req.Condition, req.Timeout, req.Priority, nil)
}

func (j *kvDeleting) Begin(t *core.InlineCall) (bool, error) {
	table, key, err := j.req.toWrite(j.api)
	if err != nil {
		return false, err
	}
	return j.Writing.Start(t, table.Delete(key, j.req.cond), j.req.timeout, j.req.priority)
}

func (j *kvDeleting) rest(t *InlineCall, b []byte) ([]byte, error) {
	if _, err := j.Run(&t.InlineCall); err != nil {
		return nil, err
	}
	return appendInfoAlone(b, t.Call.Info), nil
}
