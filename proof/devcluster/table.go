package devcluster

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"sync"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// maxDataRows is the most rows of one result set of ExecuteDataQuery; the set
// then says that it is truncated.
const maxDataRows = 1000

// enterTable lets the call into a session. The returned function lets it out.
// The trailer of the call says when the session was asked to go.
func (c *call) enterTable(id string) (*session, func(), error) {
	if id == "" {
		return nil, nil, fail(Ydb.StatusIds_BAD_REQUEST, "session_id is empty")
	}
	s, err := c.sessions.find(id)
	if err != nil {
		return nil, nil, err
	}
	c.hintTrailer(s)
	return c.enterSession(s)
}

// hintTrailer has the trailer of the call say that the session was asked to go.
func (c *call) hintTrailer(s *session) {
	if h, _ := s.asked(); h != noHint {
		c.stream.SetTrailer(metadata.Pairs(headerHints, "session-close"))
	}
}

func createTableSession(c *call, _ *Ydb_Table.CreateSessionRequest) (proto.Message, error) {
	s, err := c.createSession(false)
	if err != nil {
		return nil, err
	}
	return &Ydb_Table.CreateSessionResult{SessionId: s.id}, nil
}

func deleteTableSession(c *call, r *Ydb_Table.DeleteSessionRequest) (proto.Message, error) {
	return nil, c.deleteSession(r.GetSessionId())
}

func keepAlive(c *call, r *Ydb_Table.KeepAliveRequest) (proto.Message, error) {
	s, err := c.sessions.find(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	// The server watches for idle time, and so for rest, only while no stream is attached.
	if s.isBusy() || s.isAttached() {
		return &Ydb_Table.KeepAliveResult{SessionStatus: Ydb_Table.KeepAliveResult_SESSION_STATUS_BUSY}, nil
	}
	s.touch()
	return &Ydb_Table.KeepAliveResult{SessionStatus: Ydb_Table.KeepAliveResult_SESSION_STATUS_READY}, nil
}

func beginTable(c *call, r *Ydb_Table.BeginTransactionRequest) (proto.Message, error) {
	if r.GetTxSettings() == nil {
		return nil, fail(Ydb.StatusIds_BAD_REQUEST, "Empty tx_settings.")
	}
	s, leave, err := c.enterTable(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	defer leave()
	c.consumed(0)
	mode, err := tableMode(r.GetTxSettings(), true)
	if err != nil {
		return nil, err
	}
	_, id, err := c.begin(s, mode)
	if err != nil {
		return nil, err
	}
	return &Ydb_Table.BeginTransactionResult{TxMeta: &Ydb_Table.TransactionMeta{Id: id}}, nil
}

func commitTable(c *call, r *Ydb_Table.CommitTransactionRequest) (proto.Message, error) {
	s, leave, err := c.enterTable(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	defer leave()
	c.consumed(0)
	if err := c.commit(s, r.GetTxId()); err != nil {
		return nil, err
	}
	result := &Ydb_Table.CommitTransactionResult{}
	if r.GetCollectStats() >= Ydb_Table.QueryStatsCollection_STATS_COLLECTION_BASIC {
		result.QueryStats = &Ydb_TableStats.QueryStats{}
	}
	return result, nil
}

func rollbackTable(c *call, r *Ydb_Table.RollbackTransactionRequest) (proto.Message, error) {
	s, leave, err := c.enterTable(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	defer leave()
	return nil, c.rollback(s, r.GetTxId())
}

// executeDataQuery runs statements whose whole result fits into one message.
func executeDataQuery(c *call, r *Ydb_Table.ExecuteDataQueryRequest) (proto.Message, error) {
	// What these refuse does not reach the session, and leaves its transaction open.
	control, err := tableControl(r.GetTxControl())
	if err != nil {
		return nil, err
	}
	if r.GetQuery().GetYqlText() == "" && r.GetQuery().GetId() == "" {
		return nil, errNoText()
	}
	if err := c.fits(r.GetQuery().GetYqlText()); err != nil {
		return nil, err
	}
	s, leave, err := c.enterTable(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	defer leave()
	request, err := c.tableRequest(r.GetQuery(), r.GetParameters())
	if err != nil {
		c.abandon(s, control)
		return nil, err
	}
	request.MaxRows = maxDataRows
	request.Warn = func(warnings []*Ydb_Issue.IssueMessage) { c.warnings = warnings }
	request.Plan = r.GetCollectStats() >= Ydb_Table.QueryStatsCollection_STATS_COLLECTION_FULL
	result := &Ydb_Table.ExecuteQueryResult{}
	stats, err := c.execute(s, control, request, func(id string) {
		result.TxMeta = &Ydb_Table.TransactionMeta{Id: id}
	}, join(&result.ResultSets))
	if err != nil {
		c.consumed(0)
		return nil, err
	}
	c.consumedIn(r.GetOperationParams(), unitsOf(&request, stats))
	if r.GetCollectStats() >= Ydb_Table.QueryStatsCollection_STATS_COLLECTION_BASIC {
		result.QueryStats = stats.Proto()
	}
	if r.GetQueryCachePolicy().GetKeepInCache() {
		types, err := c.db.Prepare(c.ctx, request)
		if err != nil {
			return nil, err
		}
		result.QueryMeta = &Ydb_Table.QueryMeta{Id: c.texts.keep(request.Text), ParametersTypes: types}
	}
	return result, nil
}

// join collects the parts of result sets into whole ones.
func join(sets *[]*Ydb.ResultSet) engine.Emit {
	return func(set int, part *Ydb.ResultSet) error {
		if set == len(*sets) {
			*sets = append(*sets, part)
			return nil
		}
		whole := (*sets)[set]
		whole.Rows = append(whole.Rows, part.GetRows()...)
		whole.Truncated = whole.Truncated || part.GetTruncated()
		return nil
	}
}

// tableRequest finds the text of a query of the table service, where every
// parameter must be declared.
func (c *call) tableRequest(q *Ydb_Table.Query, params map[string]*Ydb.TypedValue) (engine.Request, error) {
	text := q.GetYqlText()
	if id := q.GetId(); id != "" {
		kept, ok := c.texts.find(id)
		if !ok {
			return engine.Request{}, fail(Ydb.StatusIds_NOT_FOUND, "Prepared query not found: %s", id)
		}
		text = kept
	}
	if text == "" {
		return engine.Request{}, errNoText()
	}
	if err := c.fits(q.GetYqlText()); err != nil { // a prepared one was looked at when it came
		return engine.Request{}, err
	}
	return engine.Request{Text: text, Params: params, Database: c.config.Database, Cache: c.plans}, nil
}

// fits refuses a text that is longer than the cluster takes. Server: ydb/core/kqp/proxy_service/kqp_proxy_service.cpp, TEvQueryRequest.
func (c *call) fits(text string) error {
	if n := c.config.QueryLimit; n > 0 && len(text) > n {
		return fail(Ydb.StatusIds_BAD_REQUEST, "Query text size exceeds limit (%db > %db)", len(text), n)
	}
	return nil
}

func errNoText() error { return fail(Ydb.StatusIds_BAD_REQUEST, "Query text is empty") }

func explainDataQuery(c *call, r *Ydb_Table.ExplainDataQueryRequest) (proto.Message, error) {
	_, leave, err := c.enterTable(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	defer leave()
	request, err := c.tableRequest(&Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: r.GetYqlText()}}, nil)
	if err != nil {
		return nil, err
	}
	request.Explain = true
	stats, err := c.db.Execute(c.ctx, request, discard)
	if err != nil {
		return nil, err
	}
	return &Ydb_Table.ExplainQueryResult{QueryAst: stats.AST, QueryPlan: stats.Plan}, nil
}

func discard(int, *Ydb.ResultSet) error { return nil }

func prepareDataQuery(c *call, r *Ydb_Table.PrepareDataQueryRequest) (proto.Message, error) {
	_, leave, err := c.enterTable(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	defer leave()
	c.consumed(0)
	request, err := c.tableRequest(&Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: r.GetYqlText()}}, nil)
	if err != nil {
		return nil, err
	}
	types, err := c.db.Prepare(c.ctx, request)
	if err != nil {
		return nil, err
	}
	return &Ydb_Table.PrepareQueryResult{QueryId: c.texts.keep(request.Text), ParametersTypes: types}, nil
}

// maxTexts is the number of prepared texts that a node remembers.
const maxTexts = 1000

// texts remembers prepared statements by id. When it is full it forgets any one
// of them; clients send the text again.
type texts struct {
	mu   sync.Mutex // guards byID
	byID map[string]string
}

func (t *texts) keep(text string) string {
	sum := sha256.Sum256([]byte(text))
	id := "ydb://preparedqueryid/4?id=" + base64.RawURLEncoding.EncodeToString(sum[:])
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = make(map[string]string)
	}
	if _, ok := t.byID[id]; !ok && len(t.byID) >= maxTexts {
		for any := range t.byID {
			delete(t.byID, any)
			break
		}
	}
	t.byID[id] = text
	return id
}

func (t *texts) find(id string) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text, ok := t.byID[id]
	return text, ok
}

func executeSchemeQuery(c *call, r *Ydb_Table.ExecuteSchemeQueryRequest) (proto.Message, error) {
	_, leave, err := c.enterTable(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	defer leave()
	request, err := c.tableRequest(&Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: r.GetYqlText()}}, nil)
	if err != nil {
		return nil, err
	}
	schema, err := c.db.IsSchema(request)
	if err != nil {
		return nil, err
	}
	if !schema {
		return nil, fail(Ydb.StatusIds_GENERIC_ERROR, "Only schema statements can be executed in a scheme query")
	}
	c.counters.statements.Add(1)
	_, err = c.db.Execute(c.ctx, request, discard)
	return nil, err
}

func bulkUpsert(c *call, r *Ydb_Table.BulkUpsertRequest) (proto.Message, error) {
	c.counters.statements.Add(1)
	if r.GetArrowBatchSettings() != nil {
		return nil, fail(Ydb.StatusIds_UNSUPPORTED, "a bulk upsert in Arrow format is not supported")
	}
	write := func(ctx context.Context, between engine.Between) error {
		if r.GetCsvSettings() != nil {
			return c.db.BulkUpsertCSV(ctx, r.GetTable(), r.GetCsvSettings(), r.GetData(), between)
		}
		return c.db.BulkUpsert(ctx, r.GetTable(), r.GetRows(), between)
	}
	between, err := c.onBulk(r.GetTable(), func(ctx context.Context) error { return write(ctx, nil) })
	if err != nil {
		return nil, err
	}
	if err := write(c.ctx, between); err != nil {
		return nil, err
	}
	c.consumedIn(r.GetOperationParams(), unitsOfBulk(r))
	return &Ydb_Table.BulkUpsertResult{}, nil
}

func readRows(c *call, r *Ydb_Table.ReadRowsRequest) (*Ydb_Table.ReadRowsResponse, error) {
	c.counters.statements.Add(1)
	if err := c.onTables(r, []string{r.GetPath()}, nil); err != nil {
		return nil, err
	}
	set, err := c.db.ReadRows(c.ctx, r.GetPath(), r.GetKeys(), r.GetColumns())
	if err != nil {
		return nil, err
	}
	c.consumed(unitsOfRows(set))
	return &Ydb_Table.ReadRowsResponse{Status: Ydb.StatusIds_SUCCESS, ResultSet: set}, nil
}

func streamReadTable(c *call, r *Ydb_Table.ReadTableRequest, send func(*Ydb_Table.ReadTableResponse) error) error {
	c.counters.statements.Add(1)
	if err := c.onTables(r, []string{r.GetPath()}, nil); err != nil {
		return err
	}
	return c.db.ReadTable(c.ctx, engine.TableRead{
		Path: r.GetPath(), Range: r.GetKeyRange(), Columns: r.GetColumns(), Limit: r.GetRowLimit(),
		PartRows:          int(min(r.GetBatchLimitRows(), maxPartBytes)),
		PartBytes:         int(min(r.GetBatchLimitBytes(), maxPartBytes)),
		NotNullAsOptional: r.GetReturnNotNullDataAsOptional() == Ydb.FeatureFlag_ENABLED,
	}, func(_ int, set *Ydb.ResultSet) error {
		return send(&Ydb_Table.ReadTableResponse{
			Status: Ydb.StatusIds_SUCCESS, Result: &Ydb_Table.ReadTableResult{ResultSet: set},
		})
	})
}

// streamScanQuery runs one read-only statement without a session.
func streamScanQuery(c *call, r *Ydb_Table.ExecuteScanQueryRequest, send func(*Ydb_Table.ExecuteScanQueryPartialResponse) error) error {
	leave, err := c.enterImplicit()
	if err != nil {
		return err
	}
	defer leave()
	request, err := c.tableRequest(r.GetQuery(), r.GetParameters())
	if err != nil {
		return err
	}
	result := func(r *Ydb_Table.ExecuteScanQueryPartialResult) error {
		return send(&Ydb_Table.ExecuteScanQueryPartialResponse{Status: Ydb.StatusIds_SUCCESS, Result: r})
	}
	wantStats := r.GetCollectStats() >= Ydb_Table.QueryStatsCollection_STATS_COLLECTION_BASIC
	request.Plan = r.GetCollectStats() >= Ydb_Table.QueryStatsCollection_STATS_COLLECTION_FULL
	control := txControl{kind: txBegin, mode: engine.SnapshotRO, commit: true}
	if r.GetMode() == Ydb_Table.ExecuteScanQueryRequest_MODE_EXPLAIN {
		request.Explain, wantStats, control = true, true, txControl{}
	}
	stats, err := c.execute(nil, control, request, func(string) {}, func(_ int, set *Ydb.ResultSet) error {
		return result(&Ydb_Table.ExecuteScanQueryPartialResult{ResultSet: set})
	})
	if err != nil {
		return err
	}
	c.consumed(unitsOf(&request, stats))
	if !wantStats {
		return nil
	}
	return result(&Ydb_Table.ExecuteScanQueryPartialResult{QueryStats: stats.Proto()})
}
