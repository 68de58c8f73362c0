package rules

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
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
			Want: []string{badRequest}, Text: "Unexpected query mode",
			ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
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
				return in(
					c.first.discovery.ListEndpoints(ctx, &Ydb_Discovery.ListEndpointsRequest{Database: strings.Repeat("x", limit+1-head)}),
				)
			}},
		{Name: "compressed message", Says: "A message that is compressed with gzip is accepted.",
			Want: []string{success}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				_, got := c.first.execute(ctx, text("", "SELECT 1", nil), grpc.UseCompressor(gzip.Name))
				return got, nil
			}},
		{Name: "unknown method", Says: "A method that YDB does not have is gRPC's UNIMPLEMENTED.",
			Want: []string{"gRPC Unimplemented"}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				err := c.first.conn.Invoke(ctx, "/Ydb.Query.V1.QueryService/NoSuchMethod",
					&Ydb_Query.CreateSessionRequest{}, &Ydb_Query.CreateSessionResponse{})
				return seen(Ydb.StatusIds_SUCCESS, nil, err), nil
			}},
	}
}

// tableRules are the rules of the table service.
//
// Long: a flat list; each rule stands with the question that it asks, and is read alone.
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
				return in(
					s.table.ExecuteDataQuery(ctx,
						&Ydb_Table.ExecuteDataQueryRequest{SessionId: s.id, TxControl: &Ydb_Table.TransactionControl{CommitTx: true},
							Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "SELECT 1"}}}),
				)
			})},
		{Name: "scheme query without a session", Says: "ExecuteSchemeQuery without a session id is BAD_REQUEST.",
			Want: []string{badRequest}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				return in(
					c.first.table.ExecuteSchemeQuery(ctx,
						&Ydb_Table.ExecuteSchemeQueryRequest{YqlText: "DROP TABLE `" + c.path() + "_nowhere`"}),
				)
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

// discoveryRules are the rules of discovery.
//
// Long: a flat list; each rule stands with the question that it asks, and is read alone.
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
							return Seen{Answer: "no: one address has several ids",
								Text: fmt.Sprintf("nodes %d and %d", before, e.GetNodeId())}, nil
						}
						id[addressOf(e)] = e.GetNodeId()
					}
				}
				return Seen{Answer: "yes"}, nil
			}},
		{Name: "unknown database", Says: "Discovery of a database that does not exist is NOT_FOUND.",
			Want: []string{notFound}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				return in(
					c.first.discovery.ListEndpoints(ctx, &Ydb_Discovery.ListEndpointsRequest{Database: c.target.Database + "_nowhere"}),
				)
			}},
		{Name: "database without a slash", Says: "The database may be named without its leading slash.",
			Want: []string{success}, ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				name := strings.TrimPrefix(c.target.Database, "/")
				return in(
					c.first.discovery.ListEndpoints(with(ctx, headerDatabase, name), &Ydb_Discovery.ListEndpointsRequest{Database: name}),
				)
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
		{Name: "WhoAmI without a ticket",
			Says: "WhoAmI without a ticket is GENERIC_ERROR, or gRPC's UNAUTHENTICATED where tickets are enforced.",
			Want: []string{"GENERIC_ERROR", unauthenticated},
			ask:  func(ctx context.Context, c *Cluster) (Seen, error) { return who(with(ctx, headerTicket, ""), c) }},
		{Name: "WhoAmI with a bad ticket",
			Says: "WhoAmI with a ticket of no user is GENERIC_ERROR, or gRPC's UNAUTHENTICATED where tickets are enforced.",
			Want: []string{"GENERIC_ERROR", unauthenticated},
			ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				return who(with(ctx, headerTicket, "of-no-user"), c)
			}},
		{Name: "unknown database in the header",
			Says: "A call with a ticket, and with a database that does not exist in its header, is gRPC's UNAUTHENTICATED.",
			Want: []string{unauthenticated}, Text: "Unknown database", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				if c.target.Ticket == "" { // the database is looked at before the ticket
					ctx = with(ctx, headerTicket, "of-no-user")
				}
				return create(with(ctx, headerDatabase, c.target.Database+"_nowhere"), c)
			}},
		{Name: "no database in the header",
			Says: "A call without a database header is served, or gRPC's UNAUTHENTICATED where the server asks for one.",
			Want: []string{success, unauthenticated},
			ask:  func(ctx context.Context, c *Cluster) (Seen, error) { return create(with(ctx, headerDatabase, ""), c) }},
	}
}
