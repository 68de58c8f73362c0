package wire

import (
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/statements"
)

// look finds the statement of a call in as much of its message as is here. A text that is not whole yet, belongs to a query that
// was prepared, or is in PostgreSQL's syntax, is unread.
func (s *series) look(k *call, message []byte) {
	outer, inner := 0, 0
	switch k.method {
	case methodExecuteQuery:
		outer, inner = protocol.QueryOfExecuteQuery, 2
	case executeData:
		outer, inner = protocol.QueryOfExecuteDataQuery, 1
	default:
		return
	}
	k.statement = statements.Unread
	query, _, _ := protocol.Field(message, outer)
	if k.method == methodExecuteQuery && protocol.InPostgres(query) {
		return // what YQL takes for names may be literals there
	}
	if text, _, to := protocol.Field(query, inner); to > 0 {
		k.statement = s.statements.LookBytes(text)
	}
}

// count counts the statement of a call that has ended.
func (s *series) count(k *call, o *h2.Outcome, d *hop.Done) {
	if s.statements == nil || k.statement == (statements.Ref{}) {
		return
	}
	c := statements.Call{App: d.App.Name(), Retries: int(k.reroutes), Bytes: uint64(o.Answer), Acquire: d.Waited, Hop: d.Took - d.Waited,
		Took: d.Took}
	if d.Failed() {
		c.Status = d.Result()
	}
	s.statements.Add(k.statement, &c)
	k.statement = statements.Ref{}
}
