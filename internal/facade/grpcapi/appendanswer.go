package grpcapi

import (
	"encoding/binary"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Answers of small calls over gRPC are appended field by field, byte for byte as package proto encodes their messages.

// appendTx appends a Tx.
func appendTx(b []byte, tx *sidecarv1.Tx) []byte {
	const id, expires = 1, 2
	return numberField(textField(b, id, tx.Id), expires, uint64(tx.ExpiresMs))
}

// appendInfo appends an Info.
func appendInfo(b []byte, i *sidecarv1.Info) []byte {
	const node, attempts, queue, acquire, hop, server, trace, units = 1, 2, 3, 4, 5, 6, 7, 8
	b = numberField(numberField(b, node, uint64(i.NodeId)), attempts, uint64(i.Attempts))
	b = doubleField(doubleField(b, queue, i.QueueMs), acquire, i.AcquireMs)
	b = textField(doubleField(doubleField(b, hop, i.HopMs), server, i.ServerMs), trace, i.TraceId)
	if i.ConsumedUnits != nil {
		b = protowire.AppendVarint(protowire.AppendTag(b, units, protowire.VarintType), *i.ConsumedUnits)
	}
	return b
}

// appendInfoAlone appends the answer of Commit, Rollback and Delete.
func appendInfoAlone(b []byte, i *sidecarv1.Info) []byte {
	const info = 1
	return messageField(b, info, func(b []byte) []byte { return appendInfo(b, i) })
}

// appendGet appends the answer of Get.
func appendGet(b []byte, t *kv.Table, c *core.Call, row kv.Row, modified bool) ([]byte, error) {
	const value, version, notModified, media, info = 1, 2, 3, 4, 5 // of KvGetResponse
	if modified {
		octets, null, err := row.Octets()
		if err != nil {
			return nil, err
		}
		if !null {
			b = protowire.AppendBytes(protowire.AppendTag(b, value, protowire.BytesType), octets)
		}
	}
	b = textField(b, version, row.Version)
	if !modified {
		b = numberField(b, notModified, 1)
	}
	return messageField(textField(b, media, t.MediaType()), info, func(b []byte) []byte { return appendInfo(b, c.Info) }), nil
}

// appendPut appends the answer of Put.
func appendPut(b []byte, w kv.Written, c *core.Call) []byte {
	const created, version, info = 1, 2, 3 // of KvPutResponse
	if w.Created {
		b = numberField(b, created, 1)
	}
	return messageField(textField(b, version, w.Version), info, func(b []byte) []byte { return appendInfo(b, c.Info) })
}

// messageField appends a field that is the message which f appends.
func messageField(b []byte, field protowire.Number, f func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	at := len(b)
	b = f(b)
	var room [binary.MaxVarintLen64]byte
	return slices.Insert(b, at, protowire.AppendVarint(room[:0], uint64(len(b)-at))...)
}

// numberField appends a field, if it is not 0.
func numberField(b []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// doubleField appends a field, if it is not +0: package proto writes -0.
func doubleField(b []byte, field protowire.Number, f float64) []byte {
	if math.Float64bits(f) == 0 {
		return b
	}
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), math.Float64bits(f))
}

// textField appends a field of text, if it is not empty.
func textField(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}
