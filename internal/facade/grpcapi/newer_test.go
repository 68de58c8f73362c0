package grpcapi

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// placed is err, or that it lacks the path of what is wrong.
func placed(err error, path string) error {
	if err != nil && !strings.Contains(err.Error(), path) {
		return fmt.Errorf("no path %q in: %v", path, strings.ReplaceAll(err.Error(), "field 99", "a field"))
	}
	return err
}

// TestRequestsOfNewerCallers: what a request asks for in fields that this sidecar does not
// know is not passed over.
func TestRequestsOfNewerCallers(t *testing.T) {
	d := &facadetest.Driver{Answer: facadetest.Echo, Bulk: func(*Ydb_Table.BulkUpsertRequest) error { return nil },
		Table: facadetest.NewWriter(t).Table}
	b := compose(t, facadetest.Small(), core.Deps{Driver: d},
		facadetest.Entry(t, "plain=t key=id:Uint64 value=v:String")).serve(t, d)
	kv := sidecarv1.NewKeyValueClient(b.conn)
	opened := &sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: "dir/items"}}}
	ingested := func(ctx context.Context, messages ...*sidecarv1.IngestRequest) error {
		stream, err := b.ingest.Ingest(ctx)
		for _, m := range messages {
			if err == nil {
				err = stream.Send(m)
			}
		}
		if err == nil {
			err = stream.CloseSend()
		}
		for err == nil || err == io.EOF { // the stream's end says why a message was not taken
			var part *sidecarv1.IngestResponse
			if part, err = stream.Recv(); part.GetEnd() != nil || err == io.EOF {
				return nil
			}
		}
		return err
	}
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
		"first_of_ingest": func(ctx context.Context, newer func(proto.Message)) error {
			first := &sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: "dir/items"}}}
			newer(first)
			return ingested(ctx, first)
		},
		"later_of_ingest": func(ctx context.Context, newer func(proto.Message)) error {
			later := &sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Rows{Rows: &sidecarv1.IngestRows{Columns: []string{"id"}}}}
			newer(later)
			return ingested(ctx, opened, later)
		},
		"rows_of_ingest": func(ctx context.Context, newer func(proto.Message)) error {
			rows := &sidecarv1.IngestRows{Columns: []string{"id"}}
			newer(rows)
			return ingested(ctx, opened, &sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Rows{Rows: rows}})
		},
		"value": func(ctx context.Context, newer func(proto.Message)) error {
			v := &sidecarv1.Value{Kind: &sidecarv1.Value_BoolValue{}}
			newer(v)
			_, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "S", Params: map[string]*sidecarv1.Value{"p": v}})
			return placed(err, "params.p: ")
		},
		"list_value": func(ctx context.Context, newer func(proto.Message)) error {
			list := &sidecarv1.ListValue{Items: []*sidecarv1.Value{{Kind: &sidecarv1.Value_BoolValue{}}}}
			newer(list)
			_, err := b.api.Execute(
				ctx,
				&sidecarv1.ExecuteRequest{Sql: "S",
					Params: map[string]*sidecarv1.Value{"p": {Kind: &sidecarv1.Value_ListValue{ListValue: list}}}},
			)
			return placed(err, "params.p: ")
		},
		"inside_of_a_list": func(ctx context.Context, newer func(proto.Message)) error {
			list := &sidecarv1.ListValue{
				Items: []*sidecarv1.Value{{Kind: &sidecarv1.Value_BoolValue{}}, {Kind: &sidecarv1.Value_BoolValue{}}},
			}
			newer(list.Items[1])
			_, err := b.api.Execute(
				ctx,
				&sidecarv1.ExecuteRequest{Sql: "S",
					Params: map[string]*sidecarv1.Value{"p": {Kind: &sidecarv1.Value_ListValue{ListValue: list}}}},
			)
			return placed(err, "params.p[1]: ")
		},
		"typed_value": func(ctx context.Context, newer func(proto.Message)) error {
			typed := &sidecarv1.TypedValue{Type: "Bool", Value: &sidecarv1.Value{Kind: &sidecarv1.Value_BoolValue{}}}
			newer(typed)
			_, err := b.api.Execute(
				ctx,
				&sidecarv1.ExecuteRequest{Sql: "S",
					Params: map[string]*sidecarv1.Value{"p": {Kind: &sidecarv1.Value_TypedValue{TypedValue: typed}}}},
			)
			return placed(err, "params.p: ")
		},
		"field_of_a_struct": func(ctx context.Context, newer func(proto.Message)) error {
			field := &sidecarv1.Field{Name: "a", Value: &sidecarv1.Value{Kind: &sidecarv1.Value_BoolValue{}}}
			newer(field)
			_, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "S", Types: map[string]string{"p": "Struct<a:Bool>"},
				Params: map[string]*sidecarv1.Value{
					"p": {Kind: &sidecarv1.Value_StructValue{StructValue: &sidecarv1.StructValue{Fields: []*sidecarv1.Field{field}}}},
				}})
			return placed(err, "params.p.a: ")
		},
		"bulk_row": func(ctx context.Context, newer func(proto.Message)) error {
			row := &sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{"id": {Kind: &sidecarv1.Value_Int64Value{}}}}
			newer(row)
			_, err := b.api.BulkUpsert(
				ctx,
				&sidecarv1.BulkUpsertRequest{Table: "t", Types: map[string]string{"id": "Int64"}, Rows: []*sidecarv1.BulkRow{row}},
			)
			return placed(err, "rows[0]: ")
		},
		"cell_of_a_bulk": func(ctx context.Context, newer func(proto.Message)) error {
			v := &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{}}
			newer(v)
			_, err := b.api.BulkUpsert(
				ctx,
				&sidecarv1.BulkUpsertRequest{Table: "t", Types: map[string]string{"id": "Int64"},
					Rows: []*sidecarv1.BulkRow{{Columns: map[string]*sidecarv1.Value{"id": v}}}},
			)
			return placed(err, "rows[0].id: ")
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(t.Context(), func(proto.Message) {}); err != nil {
				t.Fatalf("as it is: %v", err)
			}
			d.Taken()
			err := call(t.Context(), func(m proto.Message) {
				m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
			})
			if err == nil || !strings.Contains(err.Error(), "field 99 of sidecar.v1.") {
				t.Errorf("%v; want that field 99 is not known", err)
			}
			if n := len(d.Taken()); n != 0 {
				t.Errorf("%d statements were sent", n)
			}
		})
	}
}

// TestEveryMethodRefusesUnknownFields: no method passes over a field that this sidecar does not know, and the caller hears
// which one it is.
func TestEveryMethodRefusesUnknownFields(t *testing.T) {
	d := &facadetest.Driver{Answer: facadetest.Echo}
	b := compose(t, facadetest.Small(), core.Deps{Driver: d, Database: "/local"}).serve(t, d)
	methods := 0
	for _, file := range []protoreflect.FileDescriptor{sidecarv1.File_sidecar_v1_sidecar_proto, sidecarv1.File_sidecar_v1_kv_proto,
		sidecarv1.File_sidecar_v1_ingest_proto} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				request := dynamicpb.NewMessage(method.Input())
				request.SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
				path := fmt.Sprintf("/%s/%s", service.FullName(), method.Name())
				stream, err := b.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, path)
				if err != nil {
					t.Fatal(err)
				}
				if err = stream.SendMsg(request); err == nil {
					err = stream.CloseSend()
				}
				for err == nil {
					err = stream.RecvMsg(dynamicpb.NewMessage(method.Output()))
				}
				want := "field 99 of " + string(method.Input().FullName())
				if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v; want INVALID_ARGUMENT with %q", path, err, want)
				}
				methods++
			}
		}
	}
	if methods < 17 {
		t.Errorf("%d methods; want all", methods)
	}
}
