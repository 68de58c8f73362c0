package contract

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// OverGRPC calls the gRPC API.
func OverGRPC(conn *grpc.ClientConn) Client {
	hears := &hearingConn{ClientConn: conn}
	return &grpcClient{hears, sidecarv1.NewSidecarClient(hears)}
}

type grpcClient struct {
	conn *hearingConn
	api  sidecarv1.SidecarClient
}

func (*grpcClient) Name() string { return "grpc" }

func (g *grpcClient) Close() { _ = g.conn.Close() }

func (g *grpcClient) Execute(ctx context.Context, s Statement) (*Reply, error) {
	var trailer metadata.MD
	res, err := g.api.Execute(ctx, s.request(), grpc.Trailer(&trailer))
	if err != nil {
		return nil, grpcError(err)
	}
	r := grpcReply(res.Columns, res.Rows, res.Truncated, res.Sets)
	r.Tx, r.Info, r.Affected = grpcTx(res.Tx), grpcInfo(res.Info, trailer), res.RowsAffected
	r.addStats(res.Stats)
	return r, nil
}

func (g *grpcClient) Stream(ctx context.Context, s Statement) (*Reply, error) {
	stream, err := g.api.ExecuteStream(ctx, s.request())
	if err != nil {
		return nil, grpcError(err)
	}
	var sets []Set
	r := &Reply{}
	for {
		part, err := stream.Recv()
		if err != nil {
			r.gather(sets)
			if errors.Is(err, io.EOF) {
				return r, nil
			}
			return r, grpcError(err)
		}
		switch p := part.Part.(type) {
		case *sidecarv1.ExecuteStreamResponse_Columns:
			r.Lines = append(r.Lines, "columns")
			sets = append(sets, grpcSet(p.Columns.Columns, nil, false))
		case *sidecarv1.ExecuteStreamResponse_Rows:
			r.Lines = append(r.Lines, "rows")
			last := &sets[p.Rows.Set]
			last.Rows = append(last.Rows, grpcRows(p.Rows.Rows)...)
		case *sidecarv1.ExecuteStreamResponse_End:
			r.Lines = append(r.Lines, "end")
			r.Tx, r.Info = grpcTx(p.End.Tx), grpcInfo(p.End.Info, nil)
			r.EndRows, r.Truncated, r.Affected = p.End.Rows, p.End.Truncated, p.End.RowsAffected
			r.addStats(p.End.Stats)
		}
	}
}

func (g *grpcClient) Each(ctx context.Context, s Statement, part func(rows int)) error {
	stream, err := g.api.ExecuteStream(ctx, s.request())
	if err != nil {
		return grpcError(err)
	}
	for ended := false; ; {
		one, err := stream.Recv()
		switch {
		case err == io.EOF && ended:
			return nil
		case err == io.EOF:
			return ErrCut
		case err != nil:
			return grpcError(err)
		}
		ended = ended || one.GetEnd() != nil
		if n := len(one.GetRows().GetRows()); n > 0 {
			part(n)
		}
	}
}

func (g *grpcClient) Transact(ctx context.Context, t Transaction) ([]*Reply, error) {
	req := &sidecarv1.TransactRequest{Mode: t.Mode, Idempotent: t.Idempotent, Timeout: t.Timeout, Limits: &sidecarv1.Limits{Rows: t.Rows},
		Tx: t.Tx.message()}
	for _, s := range t.Statements {
		one := &sidecarv1.Statement{Sql: s.SQL, Params: pack(s.Params), Types: s.Types}
		if s.Expect != nil {
			one.Expect = &sidecarv1.Expect{Rows: s.Expect}
		}
		req.Statements = append(req.Statements, one)
	}
	var trailer metadata.MD
	res, err := g.api.Transact(ctx, req, grpc.Trailer(&trailer))
	if err != nil {
		return nil, grpcError(err)
	}
	var out []*Reply
	for _, one := range res.Results {
		r := grpcReply(one.Columns, one.Rows, one.Truncated, one.Sets)
		r.Info, r.Affected, r.Tx = grpcInfo(res.Info, trailer), one.RowsAffected, grpcTx(res.Tx)
		r.addStats(one.Stats)
		out = append(out, r)
	}
	return out, nil
}

func (g *grpcClient) Begin(ctx context.Context, mode string) (*Tx, error) {
	res, err := g.api.Begin(ctx, &sidecarv1.BeginRequest{Mode: mode})
	if err != nil {
		return nil, grpcError(err)
	}
	return grpcTx(res.Tx), nil
}

func (g *grpcClient) Commit(ctx context.Context, id string) error {
	_, err := g.api.Commit(ctx, &sidecarv1.CommitRequest{Id: id})
	return grpcError(err)
}

func (g *grpcClient) Rollback(ctx context.Context, id string) error {
	_, err := g.api.Rollback(ctx, &sidecarv1.RollbackRequest{Id: id})
	return grpcError(err)
}

func (g *grpcClient) GetTransaction(ctx context.Context, id string) (*Open, error) {
	res, err := g.api.GetTransaction(ctx, &sidecarv1.GetTransactionRequest{Id: id})
	if err != nil {
		return nil, grpcError(err)
	}
	return &Open{Tx: *grpcTx(res.Tx), Seq: res.Seq, Mode: res.Mode, Node: res.NodeId}, nil
}

func (g *grpcClient) Batch(ctx context.Context, list []Statement) ([]*Reply, error) {
	req := &sidecarv1.BatchRequest{}
	for _, s := range list {
		req.Statements = append(req.Statements, &sidecarv1.BatchStatement{
			Sql: s.SQL, Params: pack(s.Params), Types: s.Types, Mode: s.Mode, Idempotent: s.Idempotent,
			Limits: &sidecarv1.Limits{Rows: s.Rows, Bytes: s.Bytes},
		})
	}
	res, err := g.api.Batch(ctx, req)
	if err != nil {
		return nil, grpcError(err)
	}
	var out []*Reply
	for _, one := range res.Results {
		r := grpcReply(one.Columns, one.Rows, one.Truncated, one.Sets)
		r.Info, r.Affected = grpcInfo(one.Info, nil), one.RowsAffected
		if one.Error != nil {
			r.Error = bodyError(one.Error)
		}
		out = append(out, r)
	}
	return out, nil
}

func (g *grpcClient) BulkUpsert(ctx context.Context, b Bulk) (uint64, error) {
	req := &sidecarv1.BulkUpsertRequest{Table: b.Table, Types: b.Types}
	for _, row := range b.Rows {
		req.Rows = append(req.Rows, &sidecarv1.BulkRow{Columns: pack(row)})
	}
	res, err := g.api.BulkUpsert(ctx, req)
	return res.GetRows(), grpcError(err)
}

func (g *grpcClient) Explain(ctx context.Context, sql string, types map[string]string) (string, error) {
	res, err := g.api.Explain(ctx, &sidecarv1.ExplainRequest{Sql: sql, Types: types})
	return res.GetPlan(), grpcError(err)
}

func (g *grpcClient) Describe(ctx context.Context, path string) (*Table, error) {
	res, err := g.api.Describe(ctx, &sidecarv1.DescribeRequest{Path: path})
	if err != nil {
		return nil, grpcError(err)
	}
	t := &Table{Path: res.Path, PrimaryKey: res.PrimaryKey}
	for _, c := range res.Columns {
		t.Columns = append(t.Columns, TableColumn{c.Name, c.Type, c.NotNull})
	}
	for _, i := range res.Indexes {
		t.Indexes = append(t.Indexes, i.Name)
	}
	return t, nil
}

func (g *grpcClient) Version(ctx context.Context) (string, []string, error) {
	res, err := g.api.Version(ctx, &sidecarv1.VersionRequest{})
	return res.GetApi(), res.GetFeatures(), grpcError(err)
}

func (g *grpcClient) Status(ctx context.Context) (*Status, error) {
	res, err := g.api.Status(ctx, &sidecarv1.StatusRequest{})
	return &Status{State: res.GetState(), Database: res.GetDatabase(), Open: res.GetOpenTransactions()}, grpcError(err)
}

func (s Statement) request() *sidecarv1.ExecuteRequest {
	req := &sidecarv1.ExecuteRequest{
		Sql: s.SQL, Params: pack(s.Params), Types: s.Types, Mode: s.Mode, Idempotent: s.Idempotent,
		Timeout: s.Timeout, Limits: &sidecarv1.Limits{Rows: s.Rows, Bytes: s.Bytes}, Stats: s.Stats, Priority: s.Priority,
	}
	req.Tx = s.Tx.message()
	return req
}

func (x *TxSelector) message() *sidecarv1.TxSelector {
	if x == nil {
		return nil
	}
	m := &sidecarv1.TxSelector{Id: x.ID, Seq: x.Seq, Commit: x.Commit}
	if x.Begin {
		m.Begin = &sidecarv1.BeginTx{Mode: x.Mode}
	}
	return m
}

func pack(m map[string]any) map[string]*sidecarv1.Value {
	out := make(map[string]*sidecarv1.Value, len(m))
	for name, v := range m {
		out[name] = packValue(v)
	}
	return out
}

func packValue(v any) *sidecarv1.Value {
	switch v := v.(type) {
	case nil:
		return &sidecarv1.Value{Kind: &sidecarv1.Value_NullValue{NullValue: true}}
	case bool:
		return &sidecarv1.Value{Kind: &sidecarv1.Value_BoolValue{BoolValue: v}}
	case int:
		return &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: int64(v)}}
	case int64:
		return &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: v}}
	case uint64:
		return &sidecarv1.Value{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: v}}
	case float64:
		return &sidecarv1.Value{Kind: &sidecarv1.Value_DoubleValue{DoubleValue: v}}
	case string:
		return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: v}}
	case []byte:
		return &sidecarv1.Value{Kind: &sidecarv1.Value_BytesValue{BytesValue: v}}
	case []any:
		list := &sidecarv1.ListValue{}
		for _, item := range v {
			list.Items = append(list.Items, packValue(item))
		}
		return &sidecarv1.Value{Kind: &sidecarv1.Value_ListValue{ListValue: list}}
	case map[string]any:
		fields := &sidecarv1.StructValue{}
		for name, item := range v {
			fields.Fields = append(fields.Fields, &sidecarv1.Field{Name: name, Value: packValue(item)})
		}
		return &sidecarv1.Value{Kind: &sidecarv1.Value_StructValue{StructValue: fields}}
	case Typed:
		return &sidecarv1.Value{
			Kind: &sidecarv1.Value_TypedValue{TypedValue: &sidecarv1.TypedValue{Type: v.Type, Value: packValue(v.Value)}},
		}
	}
	panic(fmt.Sprintf("contract: no value of the API for %T", v))
}

// unpackValue gives a value the form that HTTP has after plain.
func unpackValue(v *sidecarv1.Value) any {
	switch k := v.GetKind().(type) {
	case *sidecarv1.Value_BoolValue:
		return k.BoolValue
	case *sidecarv1.Value_Int64Value:
		return strconv.FormatInt(k.Int64Value, 10)
	case *sidecarv1.Value_Uint64Value:
		return strconv.FormatUint(k.Uint64Value, 10)
	case *sidecarv1.Value_DoubleValue:
		return number(k.DoubleValue)
	case *sidecarv1.Value_TextValue:
		return k.TextValue
	case *sidecarv1.Value_BytesValue:
		return base64.StdEncoding.EncodeToString(k.BytesValue)
	case *sidecarv1.Value_ListValue:
		list := []any{}
		for _, item := range k.ListValue.GetItems() {
			list = append(list, unpackValue(item))
		}
		return list
	case *sidecarv1.Value_StructValue:
		fields := map[string]any{}
		for _, f := range k.StructValue.GetFields() {
			fields[f.GetName()] = unpackValue(f.GetValue())
		}
		return fields
	}
	return nil
}

func grpcRows(rows []*sidecarv1.Row) [][]any {
	var out [][]any
	for _, row := range rows {
		values := make([]any, len(row.Values))
		for i, v := range row.Values {
			values[i] = unpackValue(v)
		}
		out = append(out, values)
	}
	return out
}

func grpcSet(columns []*sidecarv1.Column, rows []*sidecarv1.Row, truncated bool) Set {
	s := Set{Rows: grpcRows(rows), Truncated: truncated}
	for _, c := range columns {
		s.Columns = append(s.Columns, Column{c.Name, c.Type})
	}
	return s
}

func grpcReply(columns []*sidecarv1.Column, rows []*sidecarv1.Row, truncated bool, sets []*sidecarv1.ResultSet) *Reply {
	r := &Reply{Set: grpcSet(columns, rows, truncated)}
	for _, s := range sets {
		r.Sets = append(r.Sets, grpcSet(s.Columns, s.Rows, s.Truncated))
	}
	return r
}

// gather makes the reply of a stream look like one that was not streamed.
func (r *Reply) gather(sets []Set) {
	truncated := r.Truncated
	if len(sets) > 0 {
		r.Set = sets[0]
	}
	if len(sets) > 1 {
		r.Sets = sets
	}
	r.Truncated = truncated
}

func (r *Reply) addStats(s *sidecarv1.Stats) {
	if s == nil {
		return
	}
	r.Stats = true
	for _, t := range s.Tables {
		r.ReadRows += t.ReadRows
	}
}

func grpcTx(t *sidecarv1.Tx) *Tx {
	if t == nil {
		return nil
	}
	return &Tx{ID: t.Id, Expires: time.Duration(t.ExpiresMs) * time.Millisecond}
}

func grpcInfo(i *sidecarv1.Info, trailer metadata.MD) Info {
	info := Info{Node: i.GetNodeId(), Attempts: i.GetAttempts(), TraceID: i.GetTraceId()}
	if i != nil {
		info.Units = i.ConsumedUnits
	}
	if t := trailer.Get("server-timing"); len(t) > 0 {
		info.Timing = t[0]
	}
	return info
}

func bodyError(b *sidecarv1.Error) *Error {
	return &Error{
		Code: b.Code, Status: int(b.Status), Message: b.Message, YDB: b.YdbStatus, Issues: len(b.Issues),
		Safe: b.SafeToRetry, Unknown: b.OutcomeUnknown, RetryAfter: time.Duration(b.RetryAfterMs) * time.Millisecond,
		Hint: b.Hint, Operator: b.OperatorHint, TraceID: b.TraceId,
	}
}

// grpcError takes an error apart; details that contradict each other show as a
// code that no case expects.
func grpcError(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	out := &Error{Transport: st.Code().String(), Message: st.Message()}
	var info *errdetails.ErrorInfo
	var retry time.Duration
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *sidecarv1.Error:
			transport := out.Transport
			out = bodyError(d)
			out.Transport = transport
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		}
	}
	if info != nil && (info.Reason != out.Code || info.Metadata["safe_to_retry"] != strconv.FormatBool(out.Safe) ||
		info.Metadata["outcome_unknown"] != strconv.FormatBool(out.Unknown) || info.Metadata["ydb_status"] != out.YDB ||
		info.Metadata["hint"] != out.Hint || info.Metadata["operator_hint"] != out.Operator || retry != out.RetryAfter) {
		out.Code = fmt.Sprintf("CONTRADICTION of %v and %v", info, out)
	}
	return out
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
