package facadetest

import (
	"context"
	"errors"
	"io"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Session is a session of a Driver.
type Session struct {
	d       *Driver
	tx      string
	spoiled bool
	busy    bool
	cut     bool        // a call of it was cut, and it may not be idle
	Effects yql.Effects // effects of the transaction so far
}

// txSession is a session that a transaction keeps.
type txSession struct{ s *Session }

func (*txSession) Node() cluster.NodeID { return 1 }

func (*txSession) Hash() string { return "5e55" }

func (l *txSession) Run(
	ctx context.Context, call upstream.Call, do func(context.Context, core.Session) error,
) (upstream.Report, error) {
	err := l.s.d.begin(call)
	l.s.Effects = call.Effects
	if err == nil {
		err = do(ctx, l.s)
	}
	return upstream.Report{Node: 1, Attempts: 1, Units: l.s.d.Units, Priced: l.s.d.Priced}, err
}

func (l *txSession) Release(keep bool) { l.s.d.takeBack(l.s, keep) }

// Node implements core.Session: there is one node.
func (*Session) Node() cluster.NodeID { return 1 }

// TxID implements core.Session.
func (s *Session) TxID() string { return s.tx }

// Begin implements core.Session.
func (s *Session) Begin(context.Context, *Ydb_Query.TransactionSettings) error {
	if !s.d.OpensNone {
		s.tx = "t1"
	}
	return nil
}

// Commit implements core.Session.
func (s *Session) Commit(context.Context) error {
	s.d.Mu.Lock()
	s.d.Commits++
	s.d.Mu.Unlock()
	if s.tx == "" {
		return Failed(cluster.CallCommit, Ydb.StatusIds_NOT_FOUND)
	}
	if s.d.Commit != nil {
		if err := s.d.Commit(s); err != nil {
			return err
		}
	}
	s.tx = ""
	return nil
}

// Rollback implements core.Session.
func (s *Session) Rollback(ctx context.Context) error {
	s.d.Mu.Lock()
	s.d.Rollbacks++
	s.d.Mu.Unlock()
	if s.d.DeafNode {
		<-ctx.Done()
		return Lost(ctx, cluster.CallControl)
	}
	if s.d.RolledBack != nil {
		s.d.RolledBack <- struct{}{}
	}
	s.tx = ""
	if s.spoiled {
		return errors.New("the session is gone")
	}
	return nil
}

// requestOf is what a node is sent of a statement.
func requestOf(st upstream.Statement) *Ydb_Query.ExecuteQueryRequest {
	req := &Ydb_Query.ExecuteQueryRequest{ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, StatsMode: st.Stats,
		ResponsePartLimitBytes: st.Part, PoolId: st.Pool,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: st.Text},
		}}
	if st.Explain {
		req.ExecMode = Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN
	}
	switch {
	case st.Begin != nil:
		req.TxControl = &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: st.Begin},
			CommitTx: st.Commit}
	case st.Within:
		req.TxControl = &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: st.TxID}, CommitTx: st.Commit}
	}
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(st.Params.Encoded(), req); err != nil {
		panic(err)
	}
	return req
}

// Execute implements core.Session. What it sent can be asked of Driver.Taken.
func (s *Session) Execute(ctx context.Context, st upstream.Statement) (core.Stream, error) {
	if st.Within && st.TxID == "" {
		return nil, errors.New("the session has no open transaction") // as a Session does
	}
	req := requestOf(st)
	s.d.Mu.Lock()
	s.d.Requests = append(s.d.Requests, req)
	s.d.Mu.Unlock()
	if s.busy {
		panic("a session is used by two calls at a time")
	}
	parts, err := s.d.Answer(ctx, s, req)
	c := req.GetTxControl()
	if err == nil && c != nil {
		if c.GetCommitTx() {
			s.tx = ""
		} else if c.GetBeginTx() != nil {
			s.tx = "t1"
			if s.d.OpensNone {
				s.tx = ""
			}
		} else if c.GetTxId() != s.tx {
			return nil, Failed(cluster.CallExecute, Ydb.StatusIds_NOT_FOUND)
		}
		parts = append(parts, &Ydb_Query.ExecuteQueryResponsePart{TxMeta: &Ydb_Query.TransactionMeta{Id: s.tx}})
	}
	if err != nil {
		var e *upstream.Error
		if errors.As(err, &e) && e.Verdict.DropSession {
			s.spoiled = true
		}
		if errors.As(err, &e) && e.Status != 0 {
			s.tx = ""
		}
	}
	s.busy = true
	return &stream{ctx: ctx, s: s, parts: parts, err: err}, nil
}

// stream hands out the parts, then the error or the end.
type stream struct {
	ctx   context.Context
	s     *Session
	parts []*Ydb_Query.ExecuteQueryResponsePart
	err   error
}

func (t *stream) Next() (*upstream.Part, error) {
	if err := t.ctx.Err(); err != nil {
		t.s.busy, t.s.spoiled = false, true
		return nil, Lost(t.ctx, cluster.CallExecute)
	}
	if t.s.d.OnNext != nil {
		t.s.d.OnNext()
	}
	if len(t.parts) > 0 {
		p := t.parts[0]
		t.parts = t.parts[1:]
		octets, err := proto.Marshal(p)
		if err != nil {
			return nil, err
		}
		part := new(upstream.Part)
		return part, part.Unmarshal(octets)
	}
	t.s.busy = false
	if t.err != nil {
		return nil, t.err
	}
	return nil, io.EOF
}

func (t *stream) Close() {
	if t.s.busy {
		t.s.busy, t.s.cut = false, true
	}
}
