package core

import (
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Both APIs have their requests as messages of sidecar.proto. Here is the one place where those become requests of this package,
// except for what grpcapi reads without a message.

// Params finds the parameters of statements, which each API has in a form of its own until their types are known.
type Params interface {
	// Of returns the parameters of a message that has a statement. They are in byName over gRPC.
	Of(statement proto.Message, byName map[string]*sidecarv1.Value) Values
}

// ExecuteOf is the call that a message asks for.
func ExecuteOf(m *sidecarv1.ExecuteRequest, params Params) ExecuteRequest {
	return ExecuteRequest{
		Spec: Spec{SQL: m.Sql, Params: params.Of(m, m.Params), Types: m.Types, Stats: m.Stats, Limits: limitsOf(m.Limits)},
		Mode: m.Mode, Tx: selectorOf(m.Tx), Idempotent: m.Idempotent, Timeout: m.Timeout, Priority: m.Priority,
	}
}

func selectorOf(m *sidecarv1.TxSelector) *TxSelector {
	if m == nil {
		return nil
	}
	return &TxSelector{Begin: m.Begin != nil, Mode: m.Begin.GetMode(), ID: m.Id, Seq: m.Seq, Commit: m.Commit}
}

func limitsOf(m *sidecarv1.Limits) Limits {
	return Limits{Rows: m.GetRows(), Bytes: m.GetBytes()}
}

func expectOf(m *sidecarv1.Expect) *uint64 {
	if m == nil {
		return nil
	}
	return m.Rows
}

// TransactOf is the call that a message asks for.
func TransactOf(m *sidecarv1.TransactRequest, params Params) TransactRequest {
	in := TransactRequest{Mode: m.Mode, Tx: selectorOf(m.Tx), Idempotent: m.Idempotent, Timeout: m.Timeout, Priority: m.Priority}
	for _, st := range m.Statements {
		in.Statements = append(in.Statements, Spec{
			SQL: st.GetSql(), Params: params.Of(st, st.GetParams()), Types: st.GetTypes(), Stats: m.Stats, Limits: limitsOf(m.Limits),
			Expect: expectOf(st.GetExpect()),
		})
	}
	return in
}

// BatchOf is the call that a message asks for.
func BatchOf(m *sidecarv1.BatchRequest, params Params) BatchRequest {
	in := BatchRequest{Timeout: m.Timeout, Priority: m.Priority}
	for _, st := range m.Statements {
		in.Statements = append(in.Statements, ExecuteRequest{
			Spec: Spec{SQL: st.GetSql(), Params: params.Of(st, st.GetParams()), Types: st.GetTypes(), Limits: limitsOf(st.GetLimits())},
			Mode: st.GetMode(), Idempotent: st.GetIdempotent(),
		})
	}
	return in
}

// BeginOf is the call that a message asks for.
func BeginOf(m *sidecarv1.BeginRequest) BeginRequest {
	return BeginRequest{Mode: m.Mode, Timeout: m.Timeout, Priority: m.Priority}
}

// BulkOf is the call that a message asks for, with the rows that came beside it.
func BulkOf(m *sidecarv1.BulkUpsertRequest, rows bulkRows) BulkRequest {
	return BulkRequest{Table: m.Table, Rows: rows, Types: m.Types, Timeout: m.Timeout, Priority: m.Priority}
}

// ExplainOf is the call that a message asks for.
func ExplainOf(m *sidecarv1.ExplainRequest) ExplainRequest {
	return ExplainRequest{SQL: m.Sql, Types: m.Types, Timeout: m.Timeout, Priority: m.Priority}
}
