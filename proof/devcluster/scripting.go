package devcluster

import (
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Scripting"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// scriptRequest is the request of a script: it runs without a session, as one transaction.
func (c *call) scriptRequest(
	text string, params map[string]*Ydb.TypedValue, stats Ydb_Table.QueryStatsCollection_Mode,
) (engine.Request, error) {
	request, err := c.tableRequest(&Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: text}}, params)
	request.Plan = stats >= Ydb_Table.QueryStatsCollection_STATS_COLLECTION_FULL
	return request, err
}

func executeYql(c *call, r *Ydb_Scripting.ExecuteYqlRequest) (proto.Message, error) {
	request, err := c.scriptRequest(r.GetScript(), r.GetParameters(), r.GetCollectStats())
	if err != nil {
		return nil, err
	}
	result := &Ydb_Scripting.ExecuteYqlResult{}
	stats, err := c.execute(nil, txControl{}, request, func(string) {}, join(&result.ResultSets))
	if err != nil {
		c.consumed(0)
		return nil, err
	}
	c.consumed(unitsOf(&request, stats))
	if r.GetCollectStats() >= Ydb_Table.QueryStatsCollection_STATS_COLLECTION_BASIC {
		result.QueryStats = stats.Proto()
	}
	return result, nil
}

func streamExecuteYql(c *call, r *Ydb_Scripting.ExecuteYqlRequest, send func(*Ydb_Scripting.ExecuteYqlPartialResponse) error) error {
	request, err := c.scriptRequest(r.GetScript(), r.GetParameters(), r.GetCollectStats())
	if err != nil {
		return err
	}
	result := func(r *Ydb_Scripting.ExecuteYqlPartialResult) error {
		return send(&Ydb_Scripting.ExecuteYqlPartialResponse{Status: Ydb.StatusIds_SUCCESS, Result: r})
	}
	stats, err := c.execute(nil, txControl{}, request, func(string) {}, func(set int, part *Ydb.ResultSet) error {
		return result(&Ydb_Scripting.ExecuteYqlPartialResult{ResultSetIndex: uint32(set), ResultSet: part})
	})
	if err != nil {
		return err
	}
	c.consumed(unitsOf(&request, stats))
	if r.GetCollectStats() < Ydb_Table.QueryStatsCollection_STATS_COLLECTION_BASIC {
		return nil
	}
	return result(&Ydb_Scripting.ExecuteYqlPartialResult{QueryStats: stats.Proto()})
}

func explainYql(c *call, r *Ydb_Scripting.ExplainYqlRequest) (proto.Message, error) {
	request, err := c.scriptRequest(r.GetScript(), nil, 0)
	if err != nil {
		return nil, err
	}
	types, err := c.db.Prepare(c.ctx, request)
	if err != nil {
		return nil, err
	}
	result := &Ydb_Scripting.ExplainYqlResult{ParametersTypes: types}
	if r.GetMode() == Ydb_Scripting.ExplainYqlRequest_PLAN {
		request.Explain = true
		stats, err := c.db.Execute(c.ctx, request, discard)
		if err != nil {
			return nil, err
		}
		result.Plan = stats.Plan
	}
	return result, nil
}
