package devcluster

import (
	"slices"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Calls of the table service report units in their trailer, also through a node that forwards them, and in the
// operation if that is asked for. Failures and what runs nothing report 0, or nothing.
func TestUnitsOfTheTableService(t *testing.T) {
	for _, on := range []bool{false, true} {
		cluster := startCluster(t, func(c *Config) { c.Nodes, c.ConsumedUnits = 2, on })
		own, through := dial(t, cluster.Node(1).Address()), dial(t, cluster.Node(2).Address())
		id := own.tableSession()
		for _, c := range []*client{own, through} {
			var trailer metadata.MD
			check := func(what string, err error, units ...string) {
				t.Helper()
				if !on {
					units = nil
				}
				if got := trailer.Get(headerUnits); err != nil || !slices.Equal(got, units) {
					t.Errorf("reports %v: %s: %v, %q; want %q", on, what, err, got, units)
				}
			}
			control := &Ydb_Table.TransactionControl{CommitTx: true,
				TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: serializableTable()}}
			run := func(sql string, report Ydb.FeatureFlag_Status) (*Ydb_Operations.Operation, error) {
				r, err := c.table.ExecuteDataQuery(testContext(t), &Ydb_Table.ExecuteDataQueryRequest{
					SessionId: id, TxControl: control, Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: sql}},
					OperationParams: &Ydb_Operations.OperationParams{ReportCostInfo: report},
				}, grpc.Trailer(&trailer))
				return r.GetOperation(), err
			}
			for flag, want := range map[Ydb.FeatureFlag_Status]bool{Ydb.FeatureFlag_STATUS_UNSPECIFIED: false,
				Ydb.FeatureFlag_DISABLED: false, Ydb.FeatureFlag_ENABLED: on} {
				o, err := run("SELECT 1", flag)
				check("a statement", err, "1")
				if has := o.GetCostInfo() != nil; has != want || has && o.GetCostInfo().GetConsumedUnits() != 1 {
					t.Errorf("reports %v, asked %v: cost info %v; want %v", on, flag, o.GetCostInfo(), want)
				}
			}
			o, err := run("SELECT nothing FROM nowhere", Ydb.FeatureFlag_ENABLED)
			check("a failure", err, "0")
			if o.GetStatus() == Ydb.StatusIds_SUCCESS {
				t.Error("a statement over no table succeeded")
			}
			_, err = c.table.PrepareDataQuery(
				testContext(t), &Ydb_Table.PrepareDataQueryRequest{SessionId: id, YqlText: "SELECT 1"},
				grpc.Trailer(&trailer),
			)
			check("PrepareDataQuery", err, "0")
			_, err = c.table.ExplainDataQuery(
				testContext(t), &Ydb_Table.ExplainDataQueryRequest{SessionId: id, YqlText: "SELECT 1"},
				grpc.Trailer(&trailer),
			)
			check("ExplainDataQuery", err)
			begun, err := c.table.BeginTransaction(
				testContext(t), &Ydb_Table.BeginTransactionRequest{SessionId: id, TxSettings: serializableTable()},
				grpc.Trailer(&trailer),
			)
			check("BeginTransaction", err, "0")
			tx := unpack[*Ydb_Table.BeginTransactionResult](t, begun.GetOperation()).GetTxMeta().GetId()
			_, err = c.table.RollbackTransaction(
				testContext(t), &Ydb_Table.RollbackTransactionRequest{SessionId: id, TxId: tx}, grpc.Trailer(&trailer),
			)
			check("RollbackTransaction", err)
		}
	}
}

// A statement of the query service that fails reports nothing, and one that is only explained 0.
func TestUnitsOfTheQueryService(t *testing.T) {
	c := dial(t, startCluster(t, func(c *Config) { c.ConsumedUnits = true }).Node(1).Address())
	for _, tc := range []struct {
		sql  string
		mode Ydb_Query.ExecMode
		want []string
	}{
		{"SELECT 1", Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, []string{"1"}},
		{"SELECT 1", Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN, []string{"0"}},
		{"SELECT nothing FROM nowhere", Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, nil},
	} {
		stream, err := c.query.ExecuteQuery(testContext(t), &Ydb_Query.ExecuteQueryRequest{ExecMode: tc.mode, Query: text(tc.sql)})
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if got := stream.Trailer().Get(headerUnits); !slices.Equal(got, tc.want) {
			t.Errorf("%s, %v: %q; want %q", tc.sql, tc.mode, got, tc.want)
		}
	}
}
