package rules

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
)

func statementRules() []Rule {
	return []Rule{
		{Name: "statement without a session", Says: "ExecuteQuery works without a session id.",
			Want: []string{success}, ask: func(ctx context.Context, c *Cluster) (Seen, error) { return c.first.run(ctx, "SELECT 1") }},
		{Name: "at least one part", Says: "A statement without a result is answered with one part.",
			Want: []string{"1 part"}, ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				parts, got := s.do(ctx, "UPSERT INTO `"+c.path()+"` (id, n) VALUES (1, 0)", nil)
				if got.Answer == success {
					got.Answer = fmt.Sprintf("%d part", len(parts))
				}
				return got, nil
			})},
		{Name: "empty text", Says: "A statement without text is BAD_REQUEST.",
			Want: []string{badRequest}, ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.do(ctx, "", nil)
				return got, nil
			})},
		{Name: "no mode of execution", Says: "A statement without exec_mode is BAD_REQUEST.",
			Want: []string{badRequest}, Text: "Unexpected query mode", ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				r := text(s.id, "SELECT 1", nil)
				r.ExecMode = Ydb_Query.ExecMode_EXEC_MODE_UNSPECIFIED
				_, got := s.execute(ctx, r)
				return got, nil
			})},
		{Name: "unknown table", Says: "A statement on a table that does not exist is SCHEME_ERROR.",
			Want: []string{"SCHEME_ERROR"}, ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				_, got := s.do(ctx, "SELECT * FROM `"+c.path()+"_nowhere`", nil)
				return got, nil
			})},
		{Name: "message size", Says: "A message of 64,000,001 bytes is gRPC's RESOURCE_EXHAUSTED.",
			Want: []string{"gRPC ResourceExhausted"}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				const limit, head = 64_000_000, 5 // bytes; head: the field's number and its length
				return in(c.first.discovery.ListEndpoints(ctx, &Ydb_Discovery.ListEndpointsRequest{Database: strings.Repeat("x", limit+1-head)}))
			}},
		{Name: "compressed message", Says: "A message that is compressed with gzip is accepted.",
			Want: []string{success}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				_, got := c.first.execute(ctx, text("", "SELECT 1", nil), grpc.UseCompressor(gzip.Name))
				return got, nil
			}},
		{Name: "unknown method", Says: "A method that YDB does not have is gRPC's UNIMPLEMENTED.",
			Want: []string{"gRPC Unimplemented"}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				err := c.first.conn.Invoke(ctx, "/Ydb.Query.V1.QueryService/NoSuchMethod", &Ydb_Query.CreateSessionRequest{}, &Ydb_Query.CreateSessionResponse{})
				return seen(Ydb.StatusIds_SUCCESS, nil, err), nil
			}},
	}
}

func transactionRules() []Rule {
	one := func(c *Cluster) string { return "SELECT n FROM `" + c.path() + "` WHERE id = 1" }
	write := func(c *Cluster) string { return "UPSERT INTO `" + c.path() + "` (id, n) VALUES (1, 1)" }
	return []Rule{
		{Name: "unknown transaction", Says: "A statement in a transaction that is not open is NOT_FOUND.",
			Want: []string{notFound}, Text: "Transaction not found", ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.do(ctx, "SELECT 1", inTx("01k00000000000000000000000", false))
				return got, nil
			})},
		{Name: "transaction after an error", Says: "A statement that fails ends its transaction: the next one in it is NOT_FOUND.",
			Want: []string{notFound}, Text: "Transaction not found", ask: inTransaction(func(ctx context.Context, c *Cluster, s *session, tx string) (Seen, error) {
				if _, got := s.do(ctx, "SELECT * FROM `"+c.path()+"_nowhere`", inTx(tx, false)); got.Answer == success {
					return Seen{}, cannotAsk("the statement did not fail")
				}
				_, got := s.do(ctx, "SELECT 1", inTx(tx, false))
				return got, nil
			})},
		{Name: "transaction after a refused request", Says: "A request that is refused before it reaches the session (here: an empty text) leaves its transaction open.",
			Want: []string{success}, ask: inTransaction(func(ctx context.Context, _ *Cluster, s *session, tx string) (Seen, error) {
				if _, got := s.do(ctx, "", inTx(tx, false)); got.Answer == success {
					return Seen{}, cannotAsk("the request was not refused")
				}
				_, got := s.do(ctx, "SELECT 1", inTx(tx, false))
				return got, nil
			})},
		{Name: "conflict", Says: "A transaction whose reads were overwritten is ABORTED, with issue 2001.",
			Want: []string{"ABORTED"}, Text: "(2001)", ask: inTransaction(func(ctx context.Context, c *Cluster, s *session, tx string) (Seen, error) {
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
			Want: []string{badSession}, Text: "Session not found", ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
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
			Want: []string{badRequest}, Text: "Invalid tx_settings", ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.do(ctx, "SELECT 1", &Ydb_Query.TransactionControl{CommitTx: true, TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: &Ydb_Query.TransactionSettings{}}})
				return got, nil
			})},
		{Name: "BeginTransaction online", Says: "BeginTransaction in mode online_read_only is BAD_REQUEST.",
			Want: []string{badRequest}, ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				_, got := s.begin(ctx, &Ydb_Query.TransactionSettings{TxMode: &Ydb_Query.TransactionSettings_OnlineReadOnly{OnlineReadOnly: &Ydb_Query.OnlineModeSettings{}}})
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
		Type: &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: &Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{
			Members: []*Ydb.StructMember{{Name: "id", Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}}}}}}}}}},
		Value: &Ydb.Value{Items: []*Ydb.Value{{Items: []*Ydb.Value{{Value: &Ydb.Value_Uint64Value{Uint64Value: id}}}}}},
	}
}

func tableRules() []Rule {
	return []Rule{
		{Name: "1000 rows", Says: "ExecuteDataQuery cuts a result at 1000 rows and says that it is truncated.",
			Want: []string{"1000 rows, truncated"}, ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				result, got := s.data(ctx, s.id, "SELECT id FROM `"+c.path()+"`", 0)
				if got.Answer != success {
					return got, nil
				}
				if len(result.GetResultSets()) != 1 {
					return Seen{Answer: fmt.Sprintf("%d result sets", len(result.GetResultSets()))}, nil
				}
				set := result.GetResultSets()[0]
				got.Answer = fmt.Sprintf("%d rows", len(set.GetRows()))
				if set.GetTruncated() {
					got.Answer += ", truncated"
				}
				return got, nil
			})},
		{Name: "empty transaction control", Says: "ExecuteDataQuery with an empty tx_control is BAD_REQUEST.",
			Want: []string{badRequest}, Text: "empty", ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				return in(s.table.ExecuteDataQuery(ctx, &Ydb_Table.ExecuteDataQueryRequest{SessionId: s.id, TxControl: &Ydb_Table.TransactionControl{CommitTx: true},
					Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "SELECT 1"}}}))
			})},
		{Name: "scheme query without a session", Says: "ExecuteSchemeQuery without a session id is BAD_REQUEST.",
			Want: []string{badRequest}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				return in(c.first.table.ExecuteSchemeQuery(ctx, &Ydb_Table.ExecuteSchemeQueryRequest{YqlText: "DROP TABLE `" + c.path() + "_nowhere`"}))
			}},
		{Name: "bulk upsert without a session", Says: "BulkUpsert has no session; one into a table that does not exist is SCHEME_ERROR.",
			Want: []string{"SCHEME_ERROR"}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				r := c.upsert(1)
				r.Table += "_nowhere"
				return in(c.first.table.BulkUpsert(ctx, r))
			}},
		{Name: "scan query", Says: "The statistics of a scan query are in its last part.",
			Want: []string{"in the last part"}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				stream, err := c.first.table.StreamExecuteScanQuery(ctx, &Ydb_Table.ExecuteScanQueryRequest{
					Mode: Ydb_Table.ExecuteScanQueryRequest_MODE_EXEC, CollectStats: Ydb_Table.QueryStatsCollection_STATS_COLLECTION_BASIC,
					Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "SELECT * FROM `" + c.path() + "`"}}})
				if err != nil {
					return seen(0, nil, err), nil
				}
				var with []bool
				for {
					p, err := stream.Recv()
					if isEnd(err) {
						break
					}
					if err != nil || p.GetStatus() != Ydb.StatusIds_SUCCESS {
						return seen(p.GetStatus(), p.GetIssues(), err), nil
					}
					with = append(with, p.GetResult().GetQueryStats() != nil)
				}
				if i := slices.Index(with, true); i < 0 {
					return Seen{Answer: "nowhere"}, nil
				} else if i < len(with)-1 {
					return Seen{Answer: fmt.Sprintf("in part %d of %d", i+1, len(with))}, nil
				}
				return Seen{Answer: "in the last part"}, nil
			}},
		{Name: "operation", Says: "The answer of a call with an operation is ready and has a typed result.",
			Want: []string{"ready, Ydb.Table.DescribeTableResult"}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				answer, err := c.first.table.DescribeTable(ctx, &Ydb_Table.DescribeTableRequest{Path: c.path()})
				got, _ := in(answer, err)
				if got.Answer != success {
					return got, nil
				}
				ready := "not ready"
				if answer.GetOperation().GetReady() {
					ready = "ready"
				}
				return Seen{Answer: ready + ", " + string(answer.GetOperation().GetResult().MessageName())}, nil
			}},
	}
}

func discoveryRules() []Rule {
	return []Rule{
		{Name: "load factor", Says: "The load factor of every endpoint is 0.",
			Want: []string{"0 everywhere"}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				list, err := c.endpoints(ctx)
				if err != nil {
					return Seen{}, err
				}
				for _, e := range list.GetEndpoints() {
					if e.GetLoadFactor() != 0 {
						return Seen{Answer: fmt.Sprintf("%v at node %d", e.GetLoadFactor(), e.GetNodeId())}, nil
					}
				}
				return Seen{Answer: "0 everywhere"}, nil
			}},
		{Name: "TLS of endpoints", Says: "The endpoints are of the kind that was asked: with TLS, or without.",
			Want: []string{"as asked"}, ask: func(_ context.Context, c *Cluster) (Seen, error) {
				for _, e := range c.listed.GetEndpoints() {
					if e.GetSsl() != (c.target.TLS != nil) {
						return Seen{Answer: fmt.Sprintf("ssl: %v at node %d", e.GetSsl(), e.GetNodeId())}, nil
					}
				}
				return Seen{Answer: "as asked"}, nil
			}},
		{Name: "one address, one node", Says: "Every entry of discovery has an address of its own.",
			Want: []string{"yes"}, ask: func(_ context.Context, c *Cluster) (Seen, error) {
				first := map[string]uint32{}
				for _, e := range c.listed.GetEndpoints() {
					if id, ok := first[addressOf(e)]; ok {
						return Seen{Answer: fmt.Sprintf("nodes %d and %d at one", id, e.GetNodeId())}, nil
					}
					first[addressOf(e)] = e.GetNodeId()
				}
				return Seen{Answer: "yes"}, nil
			}},
		{Name: "stable node ids", Says: "An address keeps its node id from one answer of discovery to the next.",
			Want: []string{"yes"}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				id := map[string]uint32{}
				for range 10 {
					list, err := c.endpoints(ctx)
					if err != nil {
						return Seen{}, err
					}
					for _, e := range list.GetEndpoints() {
						if before, ok := id[addressOf(e)]; ok && before != e.GetNodeId() {
							return Seen{Answer: "no: one address has several ids", Text: fmt.Sprintf("nodes %d and %d", before, e.GetNodeId())}, nil
						}
						id[addressOf(e)] = e.GetNodeId()
					}
				}
				return Seen{Answer: "yes"}, nil
			}},
		{Name: "unknown database", Says: "Discovery of a database that does not exist is NOT_FOUND.",
			Want: []string{notFound}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				return in(c.first.discovery.ListEndpoints(ctx, &Ydb_Discovery.ListEndpointsRequest{Database: c.target.Database + "_nowhere"}))
			}},
		{Name: "database without a slash", Says: "The database may be named without its leading slash.",
			Want: []string{success}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				name := strings.TrimPrefix(c.target.Database, "/")
				return in(c.first.discovery.ListEndpoints(with(ctx, headerDatabase, name), &Ydb_Discovery.ListEndpointsRequest{Database: name}))
			}},
	}
}

const unauthenticated = "gRPC Unauthenticated"

func accessRules() []Rule {
	who := func(ctx context.Context, c *Cluster) (Seen, error) {
		return in(c.first.discovery.WhoAmI(ctx, &Ydb_Discovery.WhoAmIRequest{}))
	}
	create := func(ctx context.Context, c *Cluster) (Seen, error) {
		answer, err := c.first.query.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
		if id := answer.GetSessionId(); id != "" {
			_, _ = c.first.delete(context.WithoutCancel(ctx), id)
		}
		return plain(answer, err)
	}
	return []Rule{
		{Name: "WhoAmI without a ticket", Says: "WhoAmI without a ticket is GENERIC_ERROR, or gRPC's UNAUTHENTICATED where tickets are enforced.",
			Want: []string{"GENERIC_ERROR", unauthenticated},
			ask:  func(ctx context.Context, c *Cluster) (Seen, error) { return who(with(ctx, headerTicket, ""), c) }},
		{Name: "WhoAmI with a bad ticket", Says: "WhoAmI with a ticket of no user is GENERIC_ERROR, or gRPC's UNAUTHENTICATED where tickets are enforced.",
			Want: []string{"GENERIC_ERROR", unauthenticated},
			ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				return who(with(ctx, headerTicket, "of-no-user"), c)
			}},
		{Name: "unknown database in the header", Says: "A call with a ticket, and with a database that does not exist in its header, is gRPC's UNAUTHENTICATED.",
			Want: []string{unauthenticated}, Text: "Unknown database", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				if c.target.Ticket == "" { // the database is looked at before the ticket
					ctx = with(ctx, headerTicket, "of-no-user")
				}
				return create(with(ctx, headerDatabase, c.target.Database+"_nowhere"), c)
			}},
		{Name: "no database in the header", Says: "A call without a database header is served, or gRPC's UNAUTHENTICATED where the server asks for one.",
			Want: []string{success, unauthenticated}, ask: func(ctx context.Context, c *Cluster) (Seen, error) { return create(with(ctx, headerDatabase, ""), c) }},
	}
}

func facts() []Rule {
	return []Rule{
		{Name: "version", Says: "What does SELECT Version() say?", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
			parts, got := c.first.execute(ctx, text("", "SELECT Version() AS v", nil))
			if got.Answer != success {
				return got, nil
			}
			for _, p := range parts {
				if rows := p.GetResultSet().GetRows(); len(rows) > 0 {
					v := rows[0].GetItems()[0]
					return Seen{Answer: cmp.Or(v.GetTextValue(), string(v.GetBytesValue()))}, nil
				}
			}
			return Seen{Answer: "nothing"}, nil
		}},
		{Name: "endpoints", Says: "How many entries does discovery list, at how many addresses?", ask: func(_ context.Context, c *Cluster) (Seen, error) {
			nodes, addresses, names, places := map[uint32]bool{}, map[string]bool{}, 0, map[string]bool{}
			for _, e := range c.listed.GetEndpoints() {
				nodes[e.GetNodeId()], addresses[addressOf(e)], places[e.GetLocation()] = true, true, true
				if net.ParseIP(e.GetAddress()) == nil {
					names++
				}
			}
			return Seen{Answer: fmt.Sprintf("%d entries, %d node ids, %d addresses (%d by name), %d locations", len(c.listed.GetEndpoints()), len(nodes), len(addresses), names, len(places))}, nil
		}},
		{Name: "WhoAmI", Says: "What does WhoAmI say to the ticket of this run?", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
			if c.target.Ticket == "" {
				return Seen{}, cannotAsk("there is no ticket")
			}
			answer, err := c.first.discovery.WhoAmI(ctx, &Ydb_Discovery.WhoAmIRequest{})
			got, _ := in(answer, err)
			result := &Ydb_Discovery.WhoAmIResult{}
			if got.Answer != success {
				return got, nil
			}
			if err := answer.GetOperation().GetResult().UnmarshalTo(result); err != nil {
				return Seen{}, err
			}
			if result.GetUser() == "" {
				return Seen{Answer: "SUCCESS, no user"}, nil
			}
			return Seen{Answer: "SUCCESS, a user"}, nil // whose name is not for a report
		}},
		{Name: "transaction without a session", Says: "What becomes of a transaction that stays open without a session?", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
			parts, got := c.first.execute(ctx, text("", "SELECT 1", begin(false)))
			return whichPart(parts, got), nil
		}},
		{Name: "tx_meta without tx_control", Says: "Does a statement without tx_control get a tx_meta?", ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
			parts, got := s.do(ctx, "SELECT 1", nil)
			if got.Answer != success {
				return got, nil
			}
			for _, p := range parts {
				if p.GetTxMeta() != nil {
					return Seen{Answer: fmt.Sprintf("yes, the id has %d characters", len(p.GetTxMeta().GetId()))}, nil
				}
			}
			return Seen{Answer: "no"}, nil
		})},
		{Name: "tx_meta after a commit", Says: "Does a statement that commits get the id of its transaction?", ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
			parts, got := s.do(ctx, "SELECT 1", begin(true))
			return whichPart(parts, got), nil
		})},
		{Name: "unknown database in the header without a ticket", Says: "What becomes of a call without a ticket whose header names a database that does not exist?",
			ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				answer, err := c.first.query.CreateSession(with(with(ctx, headerTicket, ""), headerDatabase, c.target.Database+"_nowhere"), &Ydb_Query.CreateSessionRequest{})
				if id := answer.GetSessionId(); id != "" {
					_, _ = c.first.delete(context.WithoutCancel(ctx), id)
				}
				return plain(answer, err)
			}},
		{Name: "unknown operation", Says: "What does GetOperation say to an id that does not exist?", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
			return in(c.operation(ctx, "ydb://operation/1?id=0"))
		}},
		{Name: "trailers", Says: "Which trailers come with a statement?", ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
			var trailer metadata.MD
			_, got := s.execute(ctx, text(s.id, "SELECT COUNT(*) AS n FROM `"+c.path()+"`", nil), grpc.Trailer(&trailer))
			if got.Answer != success {
				return got, nil
			}
			return Seen{Answer: names(trailer)}, nil
		})},
		{Name: "headers", Says: "Which headers come with a new session?", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
			var header metadata.MD
			answer, err := c.first.query.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{}, grpc.Header(&header))
			if err := fine(plain(answer, err)); err != nil {
				return Seen{}, err
			}
			return Seen{Answer: names(header)}, fine(c.first.delete(ctx, answer.GetSessionId()))
		}},
		{Name: "busy after a timeout", Says: "What does a session say to the next statement right after a timeout?", ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
			if _, got := s.data(ctx, s.id, c.slowStatement(), timeout); got.Answer != "TIMEOUT" {
				return Seen{}, cannotAsk("the statement did not time out: " + got.String())
			}
			_, got := s.do(ctx, "SELECT 1", nil)
			return got, nil
		})},
	}
}

// names are the keys of metadata, without their values.
func names(md metadata.MD) string {
	var list []string
	for name := range md {
		list = append(list, name)
	}
	if len(list) == 0 {
		return "none"
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
