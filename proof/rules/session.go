package rules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
)

const (
	success    = "SUCCESS"
	badRequest = "BAD_REQUEST"
	badSession = "BAD_SESSION"
	busy       = "SESSION_BUSY"
	notFound   = "NOT_FOUND"
)

// noTx is the id of no transaction, in the form that the server's ids have.
const noTx = "00000000000000000000000000"

// unknown is the id of a session that was never there, on the node of another id.
func unknown(id string) string {
	head, _, _ := strings.Cut(id, "&id=")
	return head + "&id=MDAwMDAwMDAtMDAwMC0wMDAwLTAwMDAtMDAwMDAwMDAwMDAw"
}

// sessionRules are the rules of sessions.
//
// Long: a flat list; each rule stands with the question that it asks, and is read alone.
func sessionRules() []Rule {
	return []Rule{
		{Name: "session id", Says: "The id of a session has the form ydb://session/3?node_id=N&id=....",
			Want: []string{"ydb://session/3?node_id=N&id=..."}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				id, err := c.first.create(ctx)
				if err != nil {
					return Seen{}, err
				}
				defer func() { _, _ = c.first.delete(ctx, id) }()
				if nodeOf(id) == "" {
					return Seen{Answer: "another form", Text: id}, nil
				}
				return Seen{Answer: "ydb://session/3?node_id=N&id=..."}, nil
			}},
		{Name: "session's node", Says: "A session created at an address of discovery has the id of that node.",
			Want: []string{"the node of its address"}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				for _, n := range c.nodes {
					id, err := n.create(ctx)
					if err != nil {
						return Seen{}, err
					}
					_, _ = n.delete(ctx, id)
					if nodeOf(id) != fmt.Sprint(n.id) {
						return Seen{Answer: "another node",
							Text: fmt.Sprintf("node %s, created at the address of node %d", nodeOf(id), n.id)}, nil
					}
				}
				return Seen{Answer: "the node of its address"}, nil
			}},
		{Name: "id that cannot be parsed", Says: "A statement on a session id that cannot be parsed is BAD_REQUEST.",
			Want: []string{badRequest}, Text: "failed to parse session id", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				_, got := c.first.execute(ctx, text("not-a-session", "SELECT 1", nil))
				return got, nil
			}},
		{Name: "unknown session", Says: "A statement on a session that its node does not have is BAD_SESSION.",
			Want: []string{badSession}, Text: "Session not found",
			ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.execute(ctx, text(unknown(s.id), "SELECT 1", nil))
				return got, nil
			})},
		{Name: "session of an unknown node", Says: "A statement on a session of a node that does not exist is BAD_SESSION.",
			Want: []string{badSession}, Text: "Session not found", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				_, got := c.first.execute(ctx, text(unknown("ydb://session/3?node_id=65432"), "SELECT 1", nil))
				return got, nil
			}},
		{Name: "KeepAlive of an unknown session", Says: "KeepAlive of a session that its node does not have is BAD_SESSION.",
			Want: []string{badSession}, Text: "Session not found",
			ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.alive(ctx, unknown(s.id))
				return got, nil
			})},
		{Name: "DeleteSession of an unknown session", Says: "DeleteSession of a session that does not exist is SUCCESS.",
			Want: []string{success}, ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				return s.delete(ctx, unknown(s.id))
			})},
		{Name: "DeleteSession without an id", Says: "DeleteSession with an empty id is BAD_REQUEST.",
			Want: []string{badRequest}, ask: func(ctx context.Context, c *Cluster) (Seen, error) { return c.first.delete(ctx, "") }},
		{Name: "statement before attach", Says: "A statement of the query service on a session without attach stream is BAD_REQUEST.",
			Want: []string{badRequest}, Text: "attach", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				id, err := c.first.create(ctx)
				if err != nil {
					return Seen{}, err
				}
				defer func() { _, _ = c.first.delete(ctx, id) }()
				_, got := c.first.execute(ctx, text(id, "SELECT 1", nil))
				return got, nil
			}},
		{Name: "table service before attach", Says: "A statement of the table service works on a query session without attach stream.",
			Want: []string{success}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				id, err := c.first.create(ctx)
				if err != nil {
					return Seen{}, err
				}
				defer func() { _, _ = c.first.delete(ctx, id) }()
				_, got := c.first.data(ctx, id, "SELECT 1", 0)
				return got, nil
			}},
		{Name: "second attach stream", Says: "A second attach stream of a session is SESSION_BUSY.",
			Want: []string{busy}, ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				second, got := s.attach(ctx, s.id)
				second.cancel()
				return got, nil
			})},
		{Name: "cancelled attach stream", Says: "A cancelled attach stream ends its session, within 30 s.",
			Want: []string{badSession}, ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				s.cancel()
				ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
				defer cancel()
				last := Seen{Answer: "no answer"}
				return until(ctx, func() (Seen, error) {
					if _, got := s.alive(ctx, s.id); ctx.Err() == nil { // an answer after the end of the time is none
						last = got
					}
					return last, nil
				}, success, busy)
			})},
		{Name: "end of the attach stream", Says: "The attach stream of a deleted session ends with SUCCESS and gRPC's OK.",
			Want: []string{"SUCCESS, OK", "OK"}, ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				if err := fine(s.delete(ctx, s.id)); err != nil {
					return Seen{}, err
				}
				var states []string
				for {
					state, err := s.stream.Recv()
					if errors.Is(err, io.EOF) {
						return Seen{Answer: strings.Join(append(states, "OK"), ", ")}, nil
					}
					if err != nil {
						return seen(0, nil, err), nil
					}
					states = append(states, state.GetStatus().String())
				}
			})},
		{Name: "call through another node", Says: "A statement that reaches another node than the session's is sent on to it.",
			Want: []string{success}, ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				n, err := c.other(s.id)
				if err != nil {
					return Seen{}, err
				}
				_, got := n.execute(ctx, text(s.id, "SELECT 1", nil))
				return got, nil
			})},
		{Name: "two statements at a time", Says: "A second statement at a time on a session is SESSION_BUSY.",
			Want: []string{busy}, Text: "Pending previous query completion",
			ask: whileBusy(func(ctx context.Context, _ *Cluster, s *session, _ *running) (Seen, error) {
				_, got := s.do(ctx, "SELECT 1", nil)
				return got, nil
			})},
		{Name: "KeepAlive of a busy session", Says: "KeepAlive of a session with a statement under way is SUCCESS and says BUSY.",
			Want: []string{"SESSION_STATUS_BUSY"},
			ask: whileBusy(func(ctx context.Context, _ *Cluster, s *session, _ *running) (Seen, error) {
				result, got := s.alive(ctx, s.id)
				if got.Answer == success {
					got.Answer = result.GetSessionStatus().String()
				}
				return got, nil
			})},
		{Name: "DeleteSession during a statement", Says: "DeleteSession ends the statement that runs in the session with CANCELLED.",
			Want: []string{Ydb.StatusIds_CANCELLED.String()},
			ask: whileBusy(func(ctx context.Context, _ *Cluster, s *session, r *running) (Seen, error) {
				if err := fine(s.delete(ctx, s.id)); err != nil {
					return Seen{}, err
				}
				return r.end(), nil
			})},
		{Name: "session after a cancelled statement",
			Says: "A session whose statement the client cancelled is busy for a moment, and lives on.",
			Want: []string{success}, ask: whileBusy(func(ctx context.Context, _ *Cluster, s *session, r *running) (Seen, error) {
				r.cancel()
				return s.settled(ctx)
			})},
		{Name: "rollback of no transaction",
			Says: "RollbackTransaction of a transaction that does not exist is NOT_FOUND on a session at rest, and keeps the session.",
			Want: []string{"NOT_FOUND, then SUCCESS"}, Text: "Transaction not found",
			ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				return s.rollback(ctx, noTx).then(notFound, func() Seen { return s.next(ctx) }), nil
			})},
		{Name: "rollback of no transaction over the table service",
			Says: "The table service's RollbackTransaction of a transaction that does not exist is NOT_FOUND on a " +
				"table session at rest, and keeps the session.",
			Want: []string{"NOT_FOUND, then SUCCESS"}, Text: "Transaction not found",
			ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				id, err := c.first.createTable(ctx)
				if err != nil {
					return Seen{}, err
				}
				defer func() { _, _ = c.first.table.DeleteSession(ctx, &Ydb_Table.DeleteSessionRequest{SessionId: id}) }()
				got, err := in(c.first.table.RollbackTransaction(ctx, &Ydb_Table.RollbackTransactionRequest{SessionId: id, TxId: noTx}))
				return got.then(notFound, func() Seen {
					_, got := c.first.data(ctx, id, "SELECT 1", 0)
					return got
				}), err
			}},
		{Name: "rollback during a statement",
			Says: "RollbackTransaction of a transaction that does not exist is SESSION_BUSY during a statement, and " +
				"keeps the statement and the session.",
			Want: []string{"SESSION_BUSY, then SUCCESS, then SUCCESS"}, Text: "Pending previous query completion",
			ask: whileBusy(func(ctx context.Context, _ *Cluster, s *session, r *running) (Seen, error) {
				return s.rollback(ctx, noTx).then(busy, func() Seen { return r.goesOn(beyond) }, func() Seen {
					r.cancel()
					got, _ := s.settled(ctx) // the error is that of asking, which has none
					return got
				}), nil
			})},
		{Name: "rollback after a cancelled statement",
			Says: "After a cancelled statement, RollbackTransaction of a transaction that does not exist is " +
				"SESSION_BUSY until the session can take the next statement, and then NOT_FOUND.",
			Want: []string{"NOT_FOUND, then SUCCESS"}, Text: "Transaction not found",
			ask: whileBusy(func(ctx context.Context, _ *Cluster, s *session, r *running) (Seen, error) {
				r.cancel()
				got, err := until(ctx, func() (Seen, error) { return s.rollback(ctx, noTx), nil }, busy)
				return got.then(notFound, func() Seen { return s.next(ctx) }), err
			})},
		{Name: "operation_timeout", Says: "A statement whose operation_timeout passes is TIMEOUT.",
			Want: []string{Ydb.StatusIds_TIMEOUT.String()}, ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				_, got := s.data(ctx, s.id, c.slowStatement(), timeout)
				return got, nil
			})},
		{Name: "session after a timeout", Says: "A session whose statement timed out is busy for a moment, and lives on.",
			Want: []string{success}, ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				if _, got := s.data(ctx, s.id, c.slowStatement(), timeout); got.Answer != Ydb.StatusIds_TIMEOUT.String() {
					return Seen{}, cannotAsk("the statement did not time out: " + got.String())
				}
				return s.settled(ctx)
			})},
		{Name: "calls that ignore the session", Says: "DescribeTable does not look at its session id.",
			Want: []string{success}, ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				return in(s.table.DescribeTable(ctx, &Ydb_Table.DescribeTableRequest{SessionId: unknown(s.id), Path: c.path()}))
			})},
		{Name: "ReadRows ignores the session", Says: "ReadRows does not look at its session id.",
			Want: []string{success}, ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				return plain(s.table.ReadRows(ctx, &Ydb_Table.ReadRowsRequest{SessionId: unknown(s.id), Path: c.path(), Keys: key(1)}))
			})},
	}
}

// next is the answer of the session to one statement more.
func (s *session) next(ctx context.Context) Seen {
	_, got := s.do(ctx, "SELECT 1", nil)
	return got
}

// settled is the answer of the session after it was busy.
func (s *session) settled(ctx context.Context) (Seen, error) {
	return until(ctx, func() (Seen, error) { return s.next(ctx), nil }, busy)
}

// timeout is what slowStatement gets.
const timeout = 20 * time.Millisecond

// slowStatement takes much longer than its timeout, and has a small answer.
func (c *Cluster) slowStatement() string {
	return "SELECT COUNT(*) AS n " + c.pairs() + " WHERE a.n < b.n"
}
