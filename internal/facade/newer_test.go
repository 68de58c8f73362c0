package facade

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// TestRequestsOfNewerCallers: what a request asks for in fields that this sidecar does not
// know is not passed over.
func TestRequestsOfNewerCallers(t *testing.T) {
	b := start(t, withKV(t, plainEntry), &fake{answer: echo})
	kv := sidecarv1.NewKeyValueClient(b.conn)
	for name, call := range map[string]func(ctx context.Context, newer func(proto.Message)) error{
		"execute": func(ctx context.Context, newer func(proto.Message)) error {
			req := &sidecarv1.ExecuteRequest{Sql: "S", Params: map[string]*sidecarv1.Value{"p": {Kind: &sidecarv1.Value_BoolValue{}}}}
			newer(req)
			_, err := b.api.Execute(ctx, req)
			return err
		},
		"inside": func(ctx context.Context, newer func(proto.Message)) error {
			req := &sidecarv1.ExecuteRequest{Sql: "S", Tx: &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{}, Commit: true}}
			newer(req.Tx.Begin)
			_, err := b.api.Execute(ctx, req)
			return err
		},
		"in_a_list": func(ctx context.Context, newer func(proto.Message)) error {
			req := &sidecarv1.BatchRequest{Statements: []*sidecarv1.BatchStatement{{Sql: "S"}, {Sql: "S"}, {Sql: "S"}}}
			newer(req.Statements[1])
			_, err := b.api.Batch(ctx, req)
			return err
		},
		"stream": func(ctx context.Context, newer func(proto.Message)) error {
			req := &sidecarv1.ExecuteRequest{Sql: "S"}
			newer(req)
			stream, err := b.api.ExecuteStream(ctx, req)
			for err == nil {
				_, err = stream.Recv()
			}
			if err.Error() == "EOF" {
				return nil
			}
			return err
		},
		"key_value": func(ctx context.Context, newer func(proto.Message)) error {
			req := &sidecarv1.KvDeleteRequest{Table: "nothing"}
			newer(req)
			if _, err := kv.Delete(ctx, req); !strings.Contains(err.Error(), "is not open") {
				return err
			}
			return nil
		},
		"ingest": func(ctx context.Context, newer func(proto.Message)) error {
			stream, err := b.ingest.Ingest(ctx)
			if err != nil {
				return err
			}
			open := &sidecarv1.IngestOpen{Table: ""}
			newer(open)
			if err := stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: open}}); err != nil {
				return err
			}
			if _, err = stream.Recv(); strings.Contains(err.Error(), "table") {
				return nil
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(t.Context(), func(proto.Message) {}); err != nil {
				t.Fatalf("as it is: %v", err)
			}
			b.taken()
			err := call(t.Context(), func(m proto.Message) {
				m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
			})
			if err == nil || !strings.Contains(err.Error(), "field 99 of sidecar.v1.") {
				t.Errorf("%v; want that field 99 is not known", err)
			}
			if n := len(b.taken()); n != 0 {
				t.Errorf("%d statements were sent", n)
			}
		})
	}
}
