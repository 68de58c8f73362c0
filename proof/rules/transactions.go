package rules

import (
	"context"
	"fmt"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
)

// transactionRules are the rules of transactions.
//
// Long: a flat list; each rule stands with the question that it asks, and is read alone.
func transactionRules() []Rule {
	one := func(c *Cluster) string { return "SELECT n FROM `" + c.path() + "` WHERE id = 1" }
	write := func(c *Cluster) string { return "UPSERT INTO `" + c.path() + "` (id, n) VALUES (1, 1)" }
	return []Rule{
		{Name: "unknown transaction", Says: "A statement in a transaction that is not open is NOT_FOUND.",
			Want: []string{notFound}, Text: "Transaction not found",
			ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.do(ctx, "SELECT 1", inTx("01k00000000000000000000000", false))
				return got, nil
			})},
		{Name: "transaction after an error", Says: "A statement that fails ends its transaction: the next one in it is NOT_FOUND.",
			Want: []string{notFound}, Text: "Transaction not found",
			ask: inTransaction(func(ctx context.Context, c *Cluster, s *session, tx string) (Seen, error) {
				if _, got := s.do(ctx, "SELECT * FROM `"+c.path()+"_nowhere`", inTx(tx, false)); got.Answer == success {
					return Seen{}, cannotAsk("the statement did not fail")
				}
				_, got := s.do(ctx, "SELECT 1", inTx(tx, false))
				return got, nil
			})},
		{Name: "transaction after a refused request",
			Says: "A request that is refused before it reaches the session (here: an empty text) leaves its transaction open.",
			Want: []string{success}, ask: inTransaction(func(ctx context.Context, _ *Cluster, s *session, tx string) (Seen, error) {
				if _, got := s.do(ctx, "", inTx(tx, false)); got.Answer == success {
					return Seen{}, cannotAsk("the request was not refused")
				}
				_, got := s.do(ctx, "SELECT 1", inTx(tx, false))
				return got, nil
			})},
		{Name: "conflict", Says: "A transaction whose reads were overwritten is ABORTED, with issue 2001.",
			Want: []string{"ABORTED"}, Text: "(2001)",
			ask: inTransaction(func(ctx context.Context, c *Cluster, s *session, tx string) (Seen, error) {
				if _, got := s.do(ctx, one(c), inTx(tx, false)); got.Answer != success {
					return Seen{}, fmt.Errorf("read: %v", got)
				}
				if err := fine(c.first.run(ctx, write(c))); err != nil {
					return Seen{}, fmt.Errorf("write between: %w", err)
				}
				_, got := s.do(ctx, write(c), inTx(tx, true))
				return got, nil
			})},
		{Name: "tx_meta of a small answer", Says: "The one part of a small answer has the id of the open transaction.",
			Want: []string{"in the one part"}, ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				parts, got := s.do(ctx, one(c), begin(false))
				return whichPart(parts, got), nil
			})},
		{Name: "tx_meta of a large answer", Says: "The last part of a large answer has the id of the open transaction, and no other.",
			Want: []string{"in the last part"}, ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				r := text(s.id, "SELECT * FROM `"+c.path()+"`", begin(false))
				r.ResponsePartLimitBytes = 16 << 10
				parts, got := s.execute(ctx, r)
				if got.Answer == success && len(parts) < 2 {
					return Seen{}, cannotAsk("the answer has one part")
				}
				return whichPart(parts, got), nil
			})},
		{Name: "eleventh transaction", Says: "An eleventh open transaction of a session is BAD_SESSION.",
			Want: []string{badSession}, Text: "(2014)", ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				for range 10 {
					if _, got := s.begin(ctx, serializable()); got.Answer != success {
						return Seen{}, fmt.Errorf("BeginTransaction: %v", got)
					}
				}
				_, got := s.begin(ctx, serializable())
				return got, nil
			})},
		{Name: "session after too many transactions", Says: "The session ends with its eleventh open transaction.",
			Want: []string{badSession}, Text: "Session not found",
			ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				for range 11 {
					if _, got := s.begin(ctx, serializable()); got.Answer == badSession {
						_, got := s.alive(ctx, s.id)
						return got, nil
					}
				}
				return Seen{}, cannotAsk("the session holds eleven transactions")
			})},
		{Name: "BeginTransaction without settings", Says: "BeginTransaction without a mode is BAD_REQUEST.",
			Want: []string{badRequest}, ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.begin(ctx, &Ydb_Query.TransactionSettings{})
				return got, nil
			})},
		{Name: "begin_tx without settings", Says: "A statement that begins a transaction without a mode is BAD_REQUEST.",
			Want: []string{badRequest}, Text: "Invalid tx_settings",
			ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.do(
					ctx, "SELECT 1",
					&Ydb_Query.TransactionControl{CommitTx: true,
						TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: &Ydb_Query.TransactionSettings{}}},
				)
				return got, nil
			})},
		{Name: "BeginTransaction online", Says: "BeginTransaction in mode online_read_only is BAD_REQUEST.",
			Want: []string{badRequest}, ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.begin(
					ctx,
					&Ydb_Query.TransactionSettings{
						TxMode: &Ydb_Query.TransactionSettings_OnlineReadOnly{OnlineReadOnly: &Ydb_Query.OnlineModeSettings{}},
					},
				)
				return got, nil
			})},
		{Name: "transaction control without a transaction", Says: "tx_control that names no transaction is BAD_REQUEST.",
			Want: []string{badRequest}, ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.do(ctx, "SELECT 1", &Ydb_Query.TransactionControl{CommitTx: true})
				return got, nil
			})},
		{Name: "scheme statement in a transaction", Says: "CREATE TABLE in a transaction is PRECONDITION_FAILED.",
			Want: []string{"PRECONDITION_FAILED"}, Text: "Scheme operations cannot be executed inside transaction",
			ask: inTransaction(func(ctx context.Context, c *Cluster, s *session, tx string) (Seen, error) {
				_, got := s.do(ctx, "CREATE TABLE `"+c.path()+"_in_tx` (id Uint64 NOT NULL, PRIMARY KEY (id))", inTx(tx, false))
				return got, nil
			})},
	}
}

// whichPart says which parts have the id of a transaction.
func whichPart(parts []*part, got Seen) Seen {
	if got.Answer != success {
		return got
	}
	var with []int
	for i, p := range parts {
		if p.GetTxMeta().GetId() != "" {
			with = append(with, i)
		}
	}
	switch last := len(parts) - 1; {
	case len(with) == 1 && last == 0:
		return Seen{Answer: "in the one part"}
	case len(with) == 1 && with[0] == 0:
		return Seen{Answer: "in the first part"}
	case len(with) == 1 && with[0] == last:
		return Seen{Answer: "in the last part"}
	default:
		return Seen{Answer: fmt.Sprintf("in %d of %d parts", len(with), len(parts))}
	}
}

// key is a list of one key of the table.
func key(id uint64) *Ydb.TypedValue {
	return &Ydb.TypedValue{
		Type: &Ydb.Type{
			Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: &Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{
				Members: []*Ydb.StructMember{{Name: "id", Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}}}}}}}}},
		},
		Value: &Ydb.Value{Items: []*Ydb.Value{{Items: []*Ydb.Value{{Value: &Ydb.Value_Uint64Value{Uint64Value: id}}}}}},
	}
}
