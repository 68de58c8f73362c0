package grpcapi

import (
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Calls of one row over gRPC that begin in a turn are read without messages, as those of Execute are: see readexecute.go.

// kvRequest is a call of Get, Put or Delete. What is bytes is only valid in the turn in which the call begins.
type kvRequest struct {
	table, timeout, priority string
	cond                     kv.Condition
	value                    []byte
	columns                  [][]byte        // of the id, if it was read without a message: scalars
	size                     int             // of the id, in bytes
	id                       *sidecarv1.KvId // else; nil: it has none

	room [2][]byte
}

// kvFields are the numbers of the fields; 0: there is none.
type kvFields struct{ table, id, cond, timeout, priority, value protowire.Number }

// of takes over what a message says. It returns true.
func (r *kvRequest) of(table string, id *sidecarv1.KvId, cond *sidecarv1.KvCondition, timeout, priority string, value []byte) bool {
	*r = kvRequest{table: table, timeout: timeout, priority: priority, cond: conditionOf(cond), value: value, id: id}
	return true
}

// read reads a request as package proto does. False: it has something that package proto has to read, or refuses.
func (r *kvRequest) read(message []byte, fields kvFields) bool {
	id := false
	return eachField(message, func(f field) bool {
		switch f.number {
		case fields.table:
			return f.text(&r.table)
		case fields.id:
			once := !id
			id = true
			return once && f.isBytes() && r.readID(f.bytes)
		case fields.cond:
			return f.isBytes() && readCondition(&r.cond, f.bytes)
		case fields.timeout:
			return f.text(&r.timeout)
		case fields.priority:
			return f.text(&r.priority)
		case fields.value:
			r.value = f.bytes
			return f.isBytes()
		}
		return false
	}) && id
}

// readID keeps the values of an id.
func (r *kvRequest) readID(message []byte) bool {
	const columns = 1
	r.columns, r.size = r.room[:0], len(message)
	return eachField(message, func(f field) bool {
		if f.number != columns || !f.isBytes() || !yql.IsScalar(f.bytes) {
			return false
		}
		r.columns = append(r.columns, f.bytes)
		return true
	})
}

// readCondition reads a KvCondition, as if it followed those that were read before.
func readCondition(c *kv.Condition, message []byte) bool {
	const match, noneMatch = 1, 2
	return eachField(message, func(f field) bool {
		var version string
		if !f.text(&version) {
			return false
		}
		switch f.number {
		case match:
			c.Match = c.Match.With(version)
		case noneMatch:
			c.NoneMatch = c.NoneMatch.With(version)
		default:
			return false
		}
		return true
	})
}

// key makes the parameters of a statement on the row.
func (r *kvRequest) key(a *API, t *kv.Table) (*upstream.Params, error) {
	if r.columns == nil {
		id, err := a.id(t, r.id)
		if err != nil {
			return nil, err
		}
		return t.KeyOf(id), nil
	}
	if err := a.kv.FitsKey(t, len(r.columns), r.size); err != nil {
		return nil, err
	}
	p := new(upstream.Params)
	for i, c := range t.Key {
		if p.AddScalar(t.KeyNames[i], r.columns[i], c.Type) {
			continue
		}
		var v sidecarv1.Value
		err := proto.Unmarshal(r.columns[i], &v)
		var value *Ydb.Value
		if err == nil {
			value, err = yql.FromValue(&v, c.Type)
		}
		if err != nil {
			return nil, yql.At(yql.At(err, c.Name), "id")
		}
		p.Add(t.KeyNames[i], &Ydb.TypedValue{Type: c.Type, Value: value})
	}
	return p, nil
}

// toWrite finds the table of a call that writes, and makes its key.
func (r *kvRequest) toWrite(a *API) (*kv.Table, *upstream.Params, error) {
	t, err := a.kv.TableToWrite(r.table)
	if err != nil {
		return nil, nil, err
	}
	key, err := r.key(a, t)
	return t, key, err
}

// readTexts reads a message whose fields are all text, numbered from 1. False: package proto has to read it, or refuses it.
func readTexts(message []byte, fields ...*string) bool {
	return eachField(message, func(f field) bool {
		return int(f.number) <= len(fields) && f.text(fields[f.number-1])
	})
}
