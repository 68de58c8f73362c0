package main

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

// request is a statement with its parameters, for YDB's own protocol and for the plain API alike.
type request struct {
	sql    string
	mode   string // serializable_rw or snapshot_ro, each committed with the statement; "" leaves it to the server
	params map[string]value
}

func (r request) control() *Ydb_Query.TransactionControl {
	settings := map[string]*Ydb_Query.TransactionSettings{
		"serializable_rw": {TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}}},
		"snapshot_ro":     {TxMode: &Ydb_Query.TransactionSettings_SnapshotReadOnly{SnapshotReadOnly: &Ydb_Query.SnapshotModeSettings{}}},
	}[r.mode]
	if settings == nil {
		return nil
	}
	return &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: settings}, CommitTx: true}
}

// value is a parameter in both forms.
type value struct {
	typed *Ydb.TypedValue
	plain *sidecarv1.Value
}

func primitive(t Ydb.Type_PrimitiveTypeId, v *Ydb.Value, plain *sidecarv1.Value) value {
	return value{&Ydb.TypedValue{Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: t}}, Value: v}, plain}
}

func unsignedValue(n uint64) value {
	return primitive(Ydb.Type_UINT64, &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: n}}, unsigned(n))
}

func smallValue(n uint32) value {
	return primitive(Ydb.Type_UINT32, &Ydb.Value{Value: &Ydb.Value_Uint32Value{Uint32Value: n}}, unsigned(uint64(n)))
}

func signedValue(n int64) value {
	return primitive(Ydb.Type_INT64, &Ydb.Value{Value: &Ydb.Value_Int64Value{Int64Value: n}}, &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: n}})
}

func doubleValue(x float64) value {
	return primitive(Ydb.Type_DOUBLE, &Ydb.Value{Value: &Ydb.Value_DoubleValue{DoubleValue: x}}, &sidecarv1.Value{Kind: &sidecarv1.Value_DoubleValue{DoubleValue: x}})
}

func textValue(s string) value {
	return primitive(Ydb.Type_UTF8, &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}}, text(s))
}

// datetimeValue is in seconds, timestampValue in microseconds.
func datetimeValue(t time.Time) value {
	t = t.UTC().Truncate(time.Second)
	return primitive(Ydb.Type_DATETIME, &Ydb.Value{Value: &Ydb.Value_Uint32Value{Uint32Value: uint32(t.Unix())}}, text(t.Format(time.RFC3339)))
}

func timestampValue(t time.Time) value {
	t = t.UTC().Truncate(time.Microsecond)
	return primitive(Ydb.Type_TIMESTAMP, &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: uint64(t.UnixMicro())}}, text(t.Format(time.RFC3339Nano)))
}

// listValue is a list of structs with the same members.
func listValue(items []map[string]value) value {
	structure, typed, plain := &Ydb.StructType{}, &Ydb.Value{}, &sidecarv1.ListValue{}
	for i, item := range items {
		row, fields := &Ydb.Value{}, &sidecarv1.StructValue{}
		for _, name := range slices.Sorted(maps.Keys(item)) {
			v := item[name]
			if i == 0 {
				structure.Members = append(structure.Members, &Ydb.StructMember{Name: name, Type: v.typed.Type})
			}
			row.Items = append(row.Items, v.typed.Value)
			fields.Fields = append(fields.Fields, &sidecarv1.Field{Name: name, Value: v.plain})
		}
		typed.Items = append(typed.Items, row)
		plain.Items = append(plain.Items, &sidecarv1.Value{Kind: &sidecarv1.Value_StructValue{StructValue: fields}})
	}
	kind := &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: &Ydb.Type{Type: &Ydb.Type_StructType{StructType: structure}}}}}
	return value{&Ydb.TypedValue{Type: kind, Value: typed}, &sidecarv1.Value{Kind: &sidecarv1.Value_ListValue{ListValue: plain}}}
}

// ydbError is an answer that is no success.
type ydbError struct {
	status Ydb.StatusIds_StatusCode
	issues string
}

func (e *ydbError) Error() string { return fmt.Sprintf("%v: %.200s", e.status, e.issues) }

// sender makes a request until it succeeds or cannot, and tells how many attempts there were and how many rows came.
type sender func(ctx context.Context, r request) (attempts, rows int, err error)

// overNodes sends requests in YDB's own protocol, and again as its SDKs do.
func overNodes(d *direct) sender {
	return func(ctx context.Context, r request) (attempts, rows int, err error) {
		return repeat(ctx, func(ctx context.Context) (int, int, error) {
			rows, err := d.execute(ctx, r)
			return 1, rows, err
		})
	}
}

// overPlain sends requests to the plain API, which sends them again itself; what it gives up is tried again as by an SDK.
func overPlain(client sidecarv1.SidecarClient) sender {
	return func(ctx context.Context, r request) (attempts, rows int, err error) {
		params := make(map[string]*sidecarv1.Value, len(r.params))
		for name, v := range r.params {
			params[name] = v.plain
		}
		return repeat(ctx, func(ctx context.Context) (int, int, error) {
			answer, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: r.sql, Mode: r.mode, Params: params})
			return max(1, int(answer.GetInfo().GetAttempts())), len(answer.GetRows()), err
		})
	}
}

// most is how often a request is tried: the backoff of YDB's SDKs, slots of 5 ms that double up to 64, takes some seconds for that.
const most = 20

// repeat tries what an SDK would: what surely did nothing.
func repeat(ctx context.Context, try func(context.Context) (attempts, rows int, err error)) (attempts, rows int, err error) {
	for n := range most {
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
	if e, ok := errors.AsType[*ydbError](err); ok {
		switch e.status {
		case Ydb.StatusIds_ABORTED, Ydb.StatusIds_UNAVAILABLE, Ydb.StatusIds_OVERLOADED, Ydb.StatusIds_SESSION_BUSY:
			return true
		}
		return false
	}
	code := status.Code(err)
	return code == codes.Aborted || code == codes.ResourceExhausted
}

// retried runs a load and adds to its figures how often requests were sent again and how often the nodes answered ABORTED, each by transaction.
func retried(ctx context.Context, cluster *lab.Cluster, run func(count func(attempts, requests int)) lab.Result) (lab.Result, error) {
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
		result.Figures[figureRetries], result.Figures[figureAborted] = float64(again.Load())/n, float64(after-before)/n
	}
	return result, nil
}

// Figures of the loads that are tried again.
const (
	figureRetries = "retries/call"
	figureAborted = "aborted/call"
)
