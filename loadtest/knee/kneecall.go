package knee

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// kneeMessages are a call of the plain API and the same of YDB's own protocol, without a session: it gets one of the pool.
func kneeMessages(sql string, params map[string]any) (plain, own []byte) {
	request := &sidecarv1.ExecuteRequest{Sql: sql, Params: map[string]*sidecarv1.Value{}}
	query := &Ydb_Query.ExecuteQueryRequest{ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		TxControl: &Ydb_Query.TransactionControl{CommitTx: true,
			TxSelector: &Ydb_Query.TransactionControl_BeginTx{
				BeginTx: &Ydb_Query.TransactionSettings{TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{}},
			}},
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: sql},
		},
		Parameters: map[string]*Ydb.TypedValue{}}
	for name, value := range params {
		kind, v := Ydb.Type_UINT64, &Ydb.Value{}
		switch value := value.(type) {
		case int:
			request.Params[name] = traffic.Unsigned(uint64(value))
			v.Value = &Ydb.Value_Uint64Value{Uint64Value: uint64(value)}
		case string:
			request.Params[name] = traffic.Text(value)
			kind, v.Value = Ydb.Type_UTF8, &Ydb.Value_TextValue{TextValue: value}
		}
		query.Parameters["$"+name] = &Ydb.TypedValue{Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: kind}}, Value: v}
	}
	return traffic.Must(request), traffic.Must(query)
}

// checked is an answer that is looked at and not decoded: what that costs is the client's.
type checked func(answer []byte) error

// checking is the codec of requests that were encoded before and of checked answers.
type checking struct{ traffic.Encoded }

var checkedAfter = grpc.ForceCodecV2(checking{traffic.Encoded{CodecV2: encoding.GetCodecV2("proto")}})

func (c checking) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(checked)
	if !ok {
		return c.Encoded.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	return f(b.ReadOnlyData())
}

// long checks the length of an answer.
func long(least int) checked {
	return func(answer []byte) error {
		if len(answer) < least {
			return fmt.Errorf("an answer of %d bytes; want %d at least", len(answer), least)
		}
		return nil
	}
}

// succeeded checks that a part of an answer begins with its status, SUCCESS (400000 as a varint).
func succeeded(answer []byte) error {
	if !bytes.HasPrefix(answer, []byte{0x08, 0x80, 0xb5, 0x18}) {
		return fmt.Errorf("an answer that begins with %x; want SUCCESS", answer[:min(len(answer), 40)])
	}
	return nil
}

// kneeStream makes a call of YDB's own protocol.
func kneeStream(ctx context.Context, conn *grpc.ClientConn, message []byte) error {
	stream, err := conn.NewStream(
		traffic.WithDatabase(ctx), &grpc.StreamDesc{ServerStreams: true},
		Ydb_Query_V1.QueryService_ExecuteQuery_FullMethodName, checkedAfter,
	)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(message), stream.CloseSend()); err != nil {
		return err
	}
	for parts := 0; ; parts++ {
		if err := stream.RecvMsg(checked(succeeded)); errors.Is(err, io.EOF) {
			if parts == 0 {
				return errors.New("an answer without a part")
			}
			return nil
		} else if err != nil {
			return err
		}
	}
}

func kneeOpen(
	conns []*grpc.ClientConn, call func(context.Context, *grpc.ClientConn) error,
) func(context.Context, int, time.Duration) lab.Result {
	var turn atomic.Uint64
	return func(ctx context.Context, rate int, d time.Duration) lab.Result {
		return lab.Open(ctx, lab.Rate(rate), d, func(ctx context.Context) error { return call(ctx, conns[turn.Add(1)%uint64(len(conns))]) })
	}
}

func kneeWeb(l *lab.Lab, url string, body []byte) func(context.Context, int, time.Duration) lab.Result {
	transport := &http.Transport{MaxConnsPerHost: kneeWebConns, MaxIdleConnsPerHost: kneeWebConns}
	l.Defer(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	return func(ctx context.Context, rate int, d time.Duration) lab.Result {
		return lab.Attack(ctx, lab.Post(url, func() []byte { return body }), lab.Rate(rate), d, vegeta.Client(client))
	}
}
