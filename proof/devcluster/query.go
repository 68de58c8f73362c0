package devcluster

import (
	"context"
	"errors"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// maxPartBytes is the largest response_part_limit_bytes that a client may ask for.
const maxPartBytes = 33554432

// enterQuery lets the call into an attached session. The returned function lets it out.
func (c *call) enterQuery(id string) (*session, func(), error) {
	s, err := c.sessions.find(id)
	if err != nil {
		return nil, nil, err
	}
	if !s.isAttached() {
		return nil, nil, fail(Ydb.StatusIds_BAD_REQUEST, "Session is not attached")
	}
	return c.enterSession(s)
}

func (c *call) enterSession(s *session) (*session, func(), error) {
	ctx, err := s.enter(c.ctx)
	if err != nil {
		return nil, nil, err
	}
	c.ctx, c.inside = ctx, s
	return s, func() {
		if ctx.Err() != nil { // cancelled, or its time was over
			s.leaveAfter(c.config.Cleanup)
			return
		}
		s.leave()
	}, nil
}

// enterImplicit lets a call without a session into one that lasts as long as the call. The
// returned function lets it out.
func (c *call) enterImplicit() (func(), error) {
	s, err := c.sessions.worker()
	if err != nil {
		return nil, err
	}
	ctx, err := s.enter(c.ctx)
	if err != nil {
		return nil, err
	}
	c.ctx = ctx
	return func() {
		s.leave()
		s.close(errDeleted())
	}, nil
}

// countRefusal counts an answer of gRPC's as a failure, as one of YDB's is.
func (c *call) countRefusal(err error) {
	if _, ok := errors.AsType[*transportError](err); ok {
		c.counters.failures.Add(1)
	}
}

func createQuerySession(c *call, _ *Ydb_Query.CreateSessionRequest) (*Ydb_Query.CreateSessionResponse, error) {
	s, err := c.createSession(true)
	if err != nil {
		return nil, err
	}
	return &Ydb_Query.CreateSessionResponse{
		Status: Ydb.StatusIds_SUCCESS, SessionId: s.id, NodeId: int64(c.id),
	}, nil
}

// createSession makes a session. One whose client has gone meanwhile, or has no time left, is
// deleted: no client will use it.
func (c *call) createSession(query bool) (*session, error) {
	if err := c.noSession(); err != nil {
		return nil, err
	}
	s, err := c.sessions.create(query, c.header)
	if err != nil {
		c.countRefusal(err)
		return nil, err
	}
	c.counters.sessionsCreated.Add(1)
	if c.ctx.Err() != nil {
		s.close(errDeleted())
		return nil, context.Cause(c.ctx)
	}
	return s, nil
}

func deleteQuerySession(c *call, r *Ydb_Query.DeleteSessionRequest) (*Ydb_Query.DeleteSessionResponse, error) {
	if err := c.deleteSession(r.GetSessionId()); err != nil {
		return nil, err
	}
	return &Ydb_Query.DeleteSessionResponse{Status: Ydb.StatusIds_SUCCESS}, nil
}

// deleteSession succeeds also when the session is gone already: old JS cancels
// the attach stream, which deletes the session, and then takes any other status
// for a failure.
func (c *call) deleteSession(id string) error {
	if id == "" {
		return fail(Ydb.StatusIds_BAD_REQUEST, "session_id is empty")
	}
	if s, err := c.sessions.find(id); err == nil {
		s.close(errDeleted())
	}
	return nil
}

// attachSession is the life of a query session: it ends when the client
// cancels the stream, and the stream ends when the session does. It also ends when the
// session is asked to close, unless that is silent; the session lives on then.
func attachSession(c *call, r *Ydb_Query.AttachSessionRequest, send func(*Ydb_Query.SessionState) error) error {
	if r.GetSessionId() == "" {
		return fail(Ydb.StatusIds_BAD_REQUEST, "session_id is empty")
	}
	s, err := c.sessions.find(r.GetSessionId())
	if err != nil {
		return err
	}
	if err := s.attach(); err != nil {
		return err
	}
	told := false
	defer func() {
		if !told {
			s.close(errDeleted())
		}
	}()
	if err := send(&Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS}); err != nil {
		return err
	}
	hinted := s.hinted
	for {
		select {
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		case <-hinted:
			hinted = nil
			h, mode := s.asked()
			if mode == DrainSilent {
				continue
			}
			err := send(hintState(h, mode))
			told = err == nil
			return err
		case <-s.done:
			if h, mode := s.asked(); hinted != nil && h != noHint && mode != DrainSilent {
				return send(hintState(h, mode)) // it was said before the end
			}
			return send(&Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS})
		}
	}
}

func hintState(h hint, mode DrainMode) *Ydb_Query.SessionState {
	state := &Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS}
	if mode != DrainHints {
		return state
	}
	if h == hintNode {
		state.SessionHint = &Ydb_Query.SessionState_NodeShutdown{NodeShutdown: &Ydb_Query.NodeShutdownHint{}}
	} else {
		state.SessionHint = &Ydb_Query.SessionState_SessionShutdown{SessionShutdown: &Ydb_Query.SessionShutdownHint{}}
	}
	return state
}

func beginQuery(c *call, r *Ydb_Query.BeginTransactionRequest) (*Ydb_Query.BeginTransactionResponse, error) {
	mode, err := queryMode(r.GetTxSettings(), true)
	if err != nil {
		return nil, err
	}
	s, leave, err := c.enterQuery(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	defer leave()
	c.hintTrailer(s)
	c.consumed(0)
	_, id, err := c.begin(s, mode)
	if err != nil {
		return nil, err
	}
	return &Ydb_Query.BeginTransactionResponse{
		Status: Ydb.StatusIds_SUCCESS, TxMeta: &Ydb_Query.TransactionMeta{Id: id},
	}, nil
}

func commitQuery(c *call, r *Ydb_Query.CommitTransactionRequest) (*Ydb_Query.CommitTransactionResponse, error) {
	if err := c.endQuery(r.GetSessionId(), r.GetTxId(), c.commit); err != nil {
		return nil, err
	}
	return &Ydb_Query.CommitTransactionResponse{Status: Ydb.StatusIds_SUCCESS}, nil
}

func rollbackQuery(c *call, r *Ydb_Query.RollbackTransactionRequest) (*Ydb_Query.RollbackTransactionResponse, error) {
	if err := c.endQuery(r.GetSessionId(), r.GetTxId(), c.rollback); err != nil {
		return nil, err
	}
	return &Ydb_Query.RollbackTransactionResponse{Status: Ydb.StatusIds_SUCCESS}, nil
}

// endQuery ends a transaction of the query service.
func (c *call) endQuery(session, tx string, end func(s *session, tx string) error) error {
	s, leave, err := c.enterQuery(session)
	if err != nil {
		return err
	}
	defer leave()
	c.hintTrailer(s)
	c.consumed(0)
	return end(s, tx)
}

// executeQuery runs statements and streams their results.
func executeQuery(c *call, r *Ydb_Query.ExecuteQueryRequest, send func(*Ydb_Query.ExecuteQueryResponsePart) error) error {
	// What these refuse does not reach the session, and leaves its transaction open.
	request, err := c.queryRequest(r)
	if err != nil {
		return err
	}
	control, err := queryControl(r.GetTxControl())
	if err != nil {
		return err
	}
	var s *session
	if r.GetSessionId() != "" {
		entered, leave, err := c.enterQuery(r.GetSessionId())
		if err != nil {
			return err
		}
		defer leave()
		s = entered
	} else {
		leave, err := c.enterImplicit()
		if err != nil {
			return err
		}
		defer leave()
	}
	p := &parts{send: send,
		firstOnly: r.GetSchemaInclusionMode() == Ydb_Query.SchemaInclusionMode_SCHEMA_INCLUSION_MODE_FIRST_ONLY, set: -1}
	if request.Explain {
		control = txControl{} // nothing runs
	}
	request.Warn = func(warnings []*Ydb_Issue.IssueMessage) { p.warnings = warnings }
	stats, err := c.execute(s, control, request, func(id string) {
		if control.kind != txImplicit {
			p.meta = &Ydb_Query.TransactionMeta{Id: id}
		}
	}, p.emit)
	if err != nil {
		return err
	}
	c.consumed(unitsOf(&request, stats))
	return p.finish(queryStats(r, stats))
}

// queryRequest checks everything that does not need a session.
func (c *call) queryRequest(r *Ydb_Query.ExecuteQueryRequest) (engine.Request, error) {
	var none engine.Request
	content := r.GetQueryContent()
	switch {
	case r.GetExecMode() == Ydb_Query.ExecMode_EXEC_MODE_VALIDATE:
		return none, fail(Ydb.StatusIds_UNSUPPORTED, "exec_mode VALIDATE is not supported")
	case r.GetExecMode() != Ydb_Query.ExecMode_EXEC_MODE_EXECUTE && r.GetExecMode() != Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN:
		return none, fail(Ydb.StatusIds_BAD_REQUEST, "Unexpected query mode: %v", r.GetExecMode())
	case content.GetText() == "":
		return none, errNoText()
	case content.GetSyntax() != Ydb_Query.Syntax_SYNTAX_YQL_V1 && content.GetSyntax() != Ydb_Query.Syntax_SYNTAX_UNSPECIFIED:
		return none, fail(Ydb.StatusIds_UNSUPPORTED, "syntax %v is not supported", content.GetSyntax())
	case r.GetResponsePartLimitBytes() < 0 || r.GetResponsePartLimitBytes() > maxPartBytes:
		return none, fail(Ydb.StatusIds_BAD_REQUEST, "response_part_limit_bytes = %d; must be 0 to %d",
			r.GetResponsePartLimitBytes(), maxPartBytes)
	case r.GetResultSetFormat() == Ydb.ResultSet_FORMAT_ARROW:
		return none, fail(Ydb.StatusIds_UNSUPPORTED, "results in Arrow format are not supported")
	}
	if err := c.fits(content.GetText()); err != nil {
		return none, err
	}
	return engine.Request{
		Text: content.GetText(), Params: r.GetParameters(), Inferred: true,
		Database: c.config.Database, Cache: c.plans,
		Explain:   r.GetExecMode() == Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN,
		Plan:      r.GetStatsMode() >= Ydb_Query.StatsMode_STATS_MODE_FULL,
		PartBytes: int(r.GetResponsePartLimitBytes()),
	}, nil
}

// queryStats is what the request wants to hear of the statistics; nil for nothing.
func queryStats(r *Ydb_Query.ExecuteQueryRequest, stats engine.Stats) *Ydb_TableStats.QueryStats {
	if r.GetStatsMode() < Ydb_Query.StatsMode_STATS_MODE_BASIC && r.GetExecMode() != Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN {
		return nil
	}
	return stats.Proto()
}

// parts sends the parts of one answer, one behind: so the last one can carry the
// transaction, the warnings and the statistics, and a commit that fails is the
// first word of a small answer.
type parts struct {
	send      func(*Ydb_Query.ExecuteQueryResponsePart) error
	firstOnly bool // columns only in the first part of each set
	meta      *Ydb_Query.TransactionMeta
	warnings  []*Ydb_Issue.IssueMessage
	set       int // of the last part; -1 before the first
	held      *Ydb_Query.ExecuteQueryResponsePart
}

func (p *parts) emit(set int, rs *Ydb.ResultSet) error {
	if p.held != nil {
		if err := p.send(p.held); err != nil {
			return err
		}
	}
	if p.firstOnly && set == p.set {
		rs.Columns = nil
	}
	p.set = set
	p.held = &Ydb_Query.ExecuteQueryResponsePart{
		Status: Ydb.StatusIds_SUCCESS, ResultSetIndex: int64(set), ResultSet: rs,
	}
	return nil
}

// finish sends the last part; there is always one.
func (p *parts) finish(stats *Ydb_TableStats.QueryStats) error {
	if p.held == nil {
		p.held = &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS}
	}
	p.held.TxMeta, p.held.Issues, p.held.ExecStats = p.meta, p.warnings, stats
	return p.send(p.held)
}
