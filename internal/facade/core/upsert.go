package core

import (
	"context"
	"fmt"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// Upsert sends an encoded BulkUpsertRequest.
func (s *Service) Upsert(ctx context.Context, call upstream.Call, request mem.Buffer) (upstream.Report, error) {
	return s.Deps.Driver.Any(ctx, call, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		r := new(Ydb_Table.BulkUpsertResponse)
		if err := conn.Invoke(ctx, Ydb_Table_V1.TableService_BulkUpsert_FullMethodName, encoded{request}, r,
			grpc.ForceCodecV2(EncodedCodec{})); err != nil {
			return err
		}
		return upstream.CheckOperation(r.GetOperation())
	})
}

// encoded is a message that is encoded already.
type encoded struct{ mem.Buffer }

// AppendMessage has the data path's client send the octets.
func (e encoded) AppendMessage(b []byte) ([]byte, error) { return append(b, e.ReadOnlyData()...), nil }

// EncodedCodec has grpc-go do so: it sends encoded messages as they are, and reads answers as usual.
type EncodedCodec struct{}

// Marshal hands out another reference to the octets, which gRPC lets go of once they are sent.
func (EncodedCodec) Marshal(v any) (mem.BufferSlice, error) {
	e, ok := v.(encoded)
	if !ok {
		return nil, fmt.Errorf("facade: a %T is not encoded", v)
	}
	e.Ref()
	return mem.BufferSlice{e.Buffer}, nil
}

// Unmarshal reads an answer.
func (EncodedCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("facade: a %T is no message", v)
	}
	return proto.Unmarshal(data.Materialize(), m)
}

// Name is that of the usual codec: what is sent is the same.
func (EncodedCodec) Name() string { return "proto" }
