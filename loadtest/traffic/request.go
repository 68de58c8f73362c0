package traffic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Request is a statement with its parameters, for YDB's own protocol and for the plain API alike.
type Request struct {
	SQL    string
	Mode   string // serializable_rw or snapshot_ro, each committed with the statement; "" leaves it to the server
	Params map[string]Value
}

func (r Request) control() *Ydb_Query.TransactionControl {
	settings := map[string]*Ydb_Query.TransactionSettings{
		"serializable_rw": {
			TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}},
		},
		"snapshot_ro": {TxMode: &Ydb_Query.TransactionSettings_SnapshotReadOnly{SnapshotReadOnly: &Ydb_Query.SnapshotModeSettings{}}},
	}[r.Mode]
	if settings == nil {
		return nil
	}
	return &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: settings}, CommitTx: true}
}

// Value is a parameter in both forms.
type Value struct {
	Typed *Ydb.TypedValue
	Plain *sidecarv1.Value
}

func primitive(t Ydb.Type_PrimitiveTypeId, v *Ydb.Value, plain *sidecarv1.Value) Value {
	return Value{&Ydb.TypedValue{Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: t}}, Value: v}, plain}
}

// UnsignedValue returns a Uint64.
func UnsignedValue(n uint64) Value {
	return primitive(Ydb.Type_UINT64, &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: n}}, Unsigned(n))
}

// SmallValue returns a Uint32.
func SmallValue(n uint32) Value {
	return primitive(Ydb.Type_UINT32, &Ydb.Value{Value: &Ydb.Value_Uint32Value{Uint32Value: n}}, Unsigned(uint64(n)))
}

// SignedValue returns an Int64.
func SignedValue(n int64) Value {
	return primitive(Ydb.Type_INT64, &Ydb.Value{Value: &Ydb.Value_Int64Value{Int64Value: n}},
		&sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: n}})
}

// DoubleValue returns a Double.
func DoubleValue(x float64) Value {
	return primitive(Ydb.Type_DOUBLE, &Ydb.Value{Value: &Ydb.Value_DoubleValue{DoubleValue: x}},
		&sidecarv1.Value{Kind: &sidecarv1.Value_DoubleValue{DoubleValue: x}})
}

// TextValue returns a Utf8.
func TextValue(s string) Value {
	return primitive(Ydb.Type_UTF8, &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}}, Text(s))
}

// DatetimeValue is in seconds, timestampValue in microseconds.
func DatetimeValue(t time.Time) Value {
	t = t.UTC().Truncate(time.Second)
	return primitive(Ydb.Type_DATETIME, &Ydb.Value{Value: &Ydb.Value_Uint32Value{Uint32Value: uint32(t.Unix())}},
		Text(t.Format(time.RFC3339)))
}

// TimestampValue returns a Timestamp.
func TimestampValue(t time.Time) Value {
	t = t.UTC().Truncate(time.Microsecond)
	return primitive(Ydb.Type_TIMESTAMP, &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: uint64(t.UnixMicro())}},
		Text(t.Format(time.RFC3339Nano)))
}

// ListValue is a list of structs with the same members.
func ListValue(items []map[string]Value) Value {
	structure, typed, plain := &Ydb.StructType{}, &Ydb.Value{}, &sidecarv1.ListValue{}
	for i, item := range items {
		row, fields := &Ydb.Value{}, &sidecarv1.StructValue{}
		for _, name := range slices.Sorted(maps.Keys(item)) {
			v := item[name]
			if i == 0 {
				structure.Members = append(structure.Members, &Ydb.StructMember{Name: name, Type: v.Typed.Type})
			}
			row.Items = append(row.Items, v.Typed.Value)
			fields.Fields = append(fields.Fields, &sidecarv1.Field{Name: name, Value: v.Plain})
		}
		typed.Items = append(typed.Items, row)
		plain.Items = append(plain.Items, &sidecarv1.Value{Kind: &sidecarv1.Value_StructValue{StructValue: fields}})
	}
	kind := &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: &Ydb.Type{Type: &Ydb.Type_StructType{StructType: structure}}}}}
	return Value{&Ydb.TypedValue{Type: kind, Value: typed}, &sidecarv1.Value{Kind: &sidecarv1.Value_ListValue{ListValue: plain}}}
}

// YDBError is an answer that is no success.
type YDBError struct {
	Status Ydb.StatusIds_StatusCode
	issues string
}

// Error returns the status and the issues.
func (e *YDBError) Error() string { return fmt.Sprintf("%v: %.200s", e.Status, e.issues) }

// Sender makes a request until it succeeds or cannot, and tells how many attempts there were and how many rows came.
type Sender func(ctx context.Context, r Request) (attempts, rows int, err error)

// OverNodes sends requests in YDB's own protocol, and again as its SDKs do.
func OverNodes(d *Direct) Sender {
	return func(ctx context.Context, r Request) (attempts, rows int, err error) {
		return Repeat(ctx, func(ctx context.Context) (int, int, error) {
			rows, err := d.execute(ctx, r)
			return 1, rows, err
		})
	}
}

// OverPlain sends requests to the plain API, which sends them again itself; what it gives up is tried again as by an SDK.
func OverPlain(client sidecarv1.SidecarClient) Sender {
	return func(ctx context.Context, r Request) (attempts, rows int, err error) {
		params := make(map[string]*sidecarv1.Value, len(r.Params))
		for name, v := range r.Params {
			params[name] = v.Plain
		}
		return Repeat(ctx, func(ctx context.Context) (int, int, error) {
			answer, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: r.SQL, Mode: r.Mode, Params: params})
			return max(1, int(answer.GetInfo().GetAttempts())), len(answer.GetRows()), err
		})
	}
}

// Most is how often a request is tried: the backoff of YDB's SDKs, slots of 5 ms that double up to 64, takes some seconds for that.
const Most = 20

// Repeat tries what an SDK would: what surely did nothing.
func Repeat(ctx context.Context, try func(context.Context) (attempts, rows int, err error)) (attempts, rows int, err error) {
	for n := range Most {
		var a int
		a, rows, err = try(ctx)
		attempts += a
		if err == nil || !repeats(err) {
			return attempts, rows, err
		}
		select {
		case <-time.After(rand.N(5 * time.Millisecond << min(n, 6))):
		case <-ctx.Done():
			return attempts, rows, context.Cause(ctx)
		}
	}
	return attempts, rows, err
}

func repeats(err error) bool {
	if e, ok := errors.AsType[*YDBError](err); ok {
		switch e.Status {
		case Ydb.StatusIds_ABORTED, Ydb.StatusIds_UNAVAILABLE, Ydb.StatusIds_OVERLOADED, Ydb.StatusIds_SESSION_BUSY:
			return true
		}
		return false
	}
	code := status.Code(err)
	return code == codes.Aborted || code == codes.ResourceExhausted
}

// Retried runs a load and adds to its figures how often requests were sent again and how often the
// nodes answered ABORTED, each by transaction.
func Retried(ctx context.Context, cluster *lab.Cluster, run func(count func(attempts, requests int)) lab.Result) (lab.Result, error) {
	before, err := cluster.Counter(ctx, "conflicts")
	if err != nil {
		return lab.Result{}, err
	}
	var again atomic.Int64
	result := run(func(attempts, requests int) { again.Add(int64(attempts - requests)) })
	after, err := cluster.Counter(ctx, "conflicts")
	if err != nil {
		return lab.Result{}, err
	}
	if result.Figures == nil {
		result.Figures = lab.Figures{}
	}
	if n := float64(result.Calls); n > 0 {
		result.Figures[FigureRetries], result.Figures[FigureAborted] = float64(again.Load())/n, float64(after-before)/n
	}
	return result, nil
}

// Figures of the loads that are tried again.
const (
	FigureRetries = "retries/call"
	FigureAborted = "aborted/call"
)
